//! Reading saved results, and telling what is wrong with a file that holds none.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Failure, errno_text, usage};
use crate::report::results::{Results, SCHEMA};

/// The largest file that is read: results of a thousand runs take one MiB.
const LARGEST: u64 = 256 << 20;

/// Results, and where they come from.
#[derive(Debug)]
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// A short name, as the file has.
    pub name: String,
    /// What is in it.
    pub results: Results,
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Saved, Failure> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        return usage(format!("can't read {shown}: {}; name a file that --json wrote", errno_text(&error)));
    }
    if bytes.len() as u64 > LARGEST {
        return usage(format!("{shown} is larger than any results: name a file that --json wrote"));
    }
    let results = parse(&bytes).map_err(|why| Failure::Usage(format!("{shown} {why}")))?;
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Saved { path: path.to_path_buf(), name, results })
}

/// Results in a text, or what is wrong with it, to follow the file's name.
fn parse(bytes: &[u8]) -> Result<Results, String> {
    const NAME: &str = "name a file that --json wrote";
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(_) if bytes.iter().all(u8::is_ascii_whitespace) => return Err(format!("is empty: {NAME}")),
        Err(error) if error.is_eof() => {
            return Err(format!("ends in the middle (line {}): was it copied whole?", error.line()));
        }
        Err(error) => return Err(format!("is not JSON: {error}; {NAME}")),
    };
    match value.get("schema").map(Value::as_u64) {
        None => return Err(format!("is JSON, but not of ringfile: it has no \"schema\"; {NAME}")),
        Some(Some(schema)) if schema > u64::from(SCHEMA) => {
            return Err(format!("has schema {schema}, this ringfile knows {SCHEMA}: use a newer ringfile"));
        }
        Some(Some(schema)) if schema == u64::from(SCHEMA) => {}
        Some(_) => {
            return Err(format!("is JSON, but not of ringfile: its \"schema\" is not {SCHEMA}; {NAME}"));
        }
    }
    let results: Results = serde_json::from_value(value)
        .map_err(|error| format!("is JSON, but not results of a perf command: {error}; {NAME}"))?;
    if results.runs.is_empty() {
        return Err("has no runs: measure again, it was ended before its first run".into());
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let cases = [
            ("", "is empty"),
            ("  \n", "is empty"),
            ("{\"schema\": 1", "ends in the middle"),
            ("schema: 1", "is not JSON"),
            ("[1, 2]", "no \"schema\""),
            ("{}", "no \"schema\""),
            ("null", "no \"schema\""),
            ("{\"schema\": 2}", "newer ringfile"),
            ("{\"schema\": 0}", "is not 1"),
            ("{\"schema\": \"1\"}", "is not 1"),
            ("{\"schema\": 1, \"runs\": []}", "missing field `command`"),
            ("{\"schema\": 1, \"kind\": \"disk\"}", "unknown variant `disk`"),
        ];
        for (text, said) in cases {
            let why = parse(text.as_bytes()).expect_err(text);
            assert!(why.contains(said) && !why.contains('\n'), "{text}: {why}");
        }
    }
}
