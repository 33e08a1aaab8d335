//! Reads back the JSON that `--json` wrote.

use std::fs;
use std::io::Read;
use std::path::Path;

use crate::error::{Failure, cant, refuse};
use crate::model::{Results, Run, SCHEMA};

/// More than any results take: thousands of runs with four profiles are a few MiB.
const LARGEST: u64 = 256 << 20;

/// Reads the results in a file. The error says in one line what is wrong with the file.
pub fn read(path: &Path) -> Result<Results, Failure> {
    let cant = |error: std::io::Error| cant("read", path, &error, "name a file that --json wrote");
    if !fs::metadata(path).map_err(cant)?.is_file() {
        return refuse(path, "is not a regular file: name one that --json wrote");
    }
    let mut text = Vec::new();
    fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut text)).map_err(cant)?;
    if text.len() as u64 > LARGEST {
        return refuse(path, "is larger than any results: name a file that --json wrote");
    }
    parse(&text).or_else(|why| refuse(path, format!("{why}: name a file that --json wrote")))
}

/// Parses results. The error is worded to follow the file's name.
pub fn parse(text: &[u8]) -> Result<Results, String> {
    // Some editors put a mark in front of UTF-8.
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err("is empty".into());
    }
    let mut value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| format!("is not whole JSON ({error})"))?;
    let Some(schema) = value.get("schema").and_then(serde_json::Value::as_u64) else {
        return Err("holds no results of ringfile perf (it has no schema number)".into());
    };
    if schema != u64::from(SCHEMA) {
        let newer = if schema > u64::from(SCHEMA) { ": use a newer ringfile, or" } else { "" };
        return Err(format!("has schema {schema}, and this ringfile reads schema {SCHEMA}{newer}"));
    }
    // Older files have processes of one thread each.
    for run in value.get_mut("runs").and_then(serde_json::Value::as_array_mut).into_iter().flatten() {
        if let Some(processes) = run.get("processes").filter(|count| count.is_number()).cloned() {
            run["numjobs"] = processes;
        }
    }
    let results: Results = serde_json::from_value(value)
        .map_err(|error| format!("holds no results of ringfile perf ({error})"))?;
    match results.runs.iter().position(|run| !is_possible(run)) {
        Some(index) => Err(format!("has figures in run {index} that no machine gives")),
        None => Ok(results),
    }
}

/// Returns whether every figure of a run is one that could be measured.
fn is_possible(run: &Run) -> bool {
    /// More than any machine does in a second, in any unit.
    const MOST: f64 = 1e15;
    let always = [run.iops, run.bw_bytes, run.duration_s];
    let sometimes = [
        run.cpu_us_per_io,
        run.user_us_per_io,
        run.system_us_per_io,
        run.user_percent,
        run.system_percent,
        run.cached_before,
        run.cached_after,
        run.cache_hits,
    ];
    always.into_iter().chain(sometimes.into_iter().flatten()).all(|figure| (0.0..MOST).contains(&figure))
}
