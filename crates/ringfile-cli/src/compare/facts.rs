//! The differences between two sessions other than their figures: machine, kernel, parameters.

use serde::Serialize;
use serde_json::Value;

use crate::error::one_line;
use crate::model::Results;

/// Something in which two sessions differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// Its value in the first session.
    pub first: String,
    /// Its value in the other session.
    pub other: String,
}

/// Returns everything in which the two differ.
pub fn differing(first: &Results, other: &Results) -> Vec<Fact> {
    let mut facts = of(&first.machine, &other.machine);
    facts.extend(of(&first.params, &other.params));
    if first.interrupted != other.interrupted {
        let text = |interrupted| if interrupted { "yes" } else { "no" }.to_string();
        let (first, other) = (text(first.interrupted), text(other.interrupted));
        facts.push(Fact { name: "interrupted".into(), first, other });
    }
    facts
}

/// Returns the fields in which two values of the same type differ.
fn of(first: &impl Serialize, other: &impl Serialize) -> Vec<Fact> {
    let (Ok(Value::Object(first)), Ok(Value::Object(other))) =
        (serde_json::to_value(first), serde_json::to_value(other))
    else {
        return Vec::new();
    };
    let differs = first.iter().filter_map(|(name, value)| Some((name, value, other.get(name)?)));
    differs
        .filter(|(_, first, other)| first != other)
        .map(|(name, one, two)| Fact { name: title(name), first: beside(one, two), other: beside(two, one) })
        .collect()
}

/// Returns a field's name in words, with its unit.
fn title(name: &str) -> String {
    let (name, unit) = match name.rsplit_once('_') {
        Some((name, "bytes")) => (name, " in bytes"),
        Some((name, "s")) => (name, " in seconds"),
        _ => (name, ""),
    };
    format!("{}{unit}", name.replace('_', " ").replace("cpus", "cores").replace("cpu model", "processor"))
}

/// Returns a value in words; of a long list only the items that the other lacks.
fn beside(value: &Value, other: &Value) -> String {
    match (value, other) {
        (Value::Array(items), Value::Array(others)) if items.len() > 6 || others.len() > 6 => {
            let own: Vec<String> = items.iter().filter(|item| !others.contains(item)).map(plain).collect();
            if own.is_empty() {
                "nothing that the other lacks".into()
            } else {
                format!("also {}", own.join(", "))
            }
        }
        _ => plain(value),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "unknown".into(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        Value::String(text) => one_line(text),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_that_differ_are_named_with_their_units() {
        let first = json!({"kernel": "6.1", "cpus": 2, "size_bytes": 1, "rw": ["randread"], "fio": null, "same": [1]});
        let other =
            json!({"kernel": "6.18", "cpus": 4, "size_bytes": 2, "rw": [], "fio": "3.3\n", "same": [1]});
        let facts = of(&first, &other);
        let facts: Vec<String> =
            facts.iter().map(|fact| format!("{}: {} / {}", fact.name, fact.first, fact.other)).collect();
        assert_eq!(
            facts,
            [
                "cores: 2 / 4",
                "fio: unknown / 3.3\\n",
                "kernel: 6.1 / 6.18",
                "rw: randread / none",
                "size in bytes: 1 / 2"
            ]
        );
    }
}
