//! Reading back what `--json` wrote.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::results::{Results, SCHEMA};
use crate::error::{Failure, errno_text, usage};

/// More than any results take: profiles of four kinds and thousands of runs are some MiB.
const LARGEST: u64 = 256 << 20;

/// The results in a file; what is something else is told in one line.
pub fn read(path: &Path) -> Result<Results, Failure> {
    let shown = path.display();
    let cant = |error: std::io::Error| {
        Failure::Usage(format!("can't read {shown}: {}; name a file that --json wrote", errno_text(&error)))
    };
    if !fs::metadata(path).map_err(cant)?.is_file() {
        return usage(format!("{shown} is no file: name one that --json wrote"));
    }
    let mut text = Vec::new();
    fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text)).map_err(cant)?;
    if text.len() as u64 > LARGEST {
        return usage(format!("{shown} is larger than any results: name a file that --json wrote"));
    }
    parse(&text).map_err(|why| Failure::Usage(format!("{shown} {why}: name a file that --json wrote")))
}

fn parse(text: &[u8]) -> Result<Results, String> {
    let value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| format!("is not whole JSON ({error})"))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        None => return Err("holds no results of ringfile perf (it has no schema number)".into()),
        Some(schema) if schema != u64::from(SCHEMA) => {
            return Err(format!("has schema {schema}, and this ringfile reads schema {SCHEMA}"));
        }
        Some(_) => {}
    }
    serde_json::from_value(value).map_err(|error| format!("holds no results of ringfile perf ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_told() {
        for (text, part) in [
            ("{", "not whole JSON"),
            ("[1, 2]", "no schema number"),
            (r#"{"schema": 99}"#, "schema 99"),
            (r#"{"schema": 1, "command": "x"}"#, "holds no results"),
        ] {
            let why = parse(text.as_bytes()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
