//! The notes below the tables: what a reader needs to judge the figures and to reproduce them.

use super::plan::{Grid, Timing};
use super::request::Request;
use crate::engine::{Fio, fio};
use crate::machine;
use crate::model::{Access, Cache, Engine, Kind, Open, Results, Role, Run};
use crate::numbers::counted;
use crate::report::cold;
use crate::report::routes;
use crate::testfile::TestFile;
use crate::values::{self, Bytes};

/// Returns the notes, one line each.
pub fn of(request: &Request<'_>, test_file: &TestFile, fio: Option<&Fio>, results: &Results) -> Vec<String> {
    let runs = &results.runs[..];
    let mut notes =
        vec![file(test_file, &request.grid, request.verify), timing(request.timing, results), machine()];
    notes.extend(test_file.notes.iter().cloned());
    match request.kind {
        Kind::Mixed => notes.push(UNITS_OF_MIXED.into()),
        Kind::Buffers => {
            notes.extend(UNITS_OF_BUFFERS.map(String::from));
            notes.extend(without_parts(&request.grid));
        }
        Kind::File | Kind::Batch | Kind::Multiread | Kind::Pool => {
            notes.extend(access(runs));
            notes.extend(cold::note(runs));
            notes.push(units(runs));
        }
    }
    notes.extend(routes::routes(runs));
    notes.extend(routes::registered(runs));
    if let Some(fio) = fio.filter(|_| runs.iter().any(|run| run.setup.engine.is_fio())) {
        notes.push(format!(
            "{}: the same file, blocks, threads and amount or time; CPU of the whole process but its main thread, which \
             only sets up and reports",
            fio.version
        ));
        for engine in [Engine::Fio, Engine::FioBatch, Engine::FioPsync] {
            if runs.iter().any(|run| run.setup.engine == engine) {
                notes.push(format!("{}: {}", values::name(&engine), fio::describe(engine)));
            }
        }
    }
    notes
}

/// The meaning of the figures of `perf buffers`.
const UNITS_OF_BUFFERS: [&str; 4] = [
    "each thread runs on a core of its own; ratios are paired within rounds, with the least and the most; a star: every round is \
     outside the noise, which A/A runs measure",
    "latencies in µs from submission to completion; user and sys: CPU time in per cent of a core, kernel workers included",
    "per operation: CPU µs, sw (context switches), calls (system calls), irqs (interrupts of the whole machine)",
    "whole machine: CPU time of all cores in per cent of one, whoever used it: own is that of this process, irq \
     that of interrupts, idle with waiting for I/O",
];

/// The meaning of the figures of `perf file --cache mixed`.
const UNITS_OF_MIXED: &str = "IOPS of the reads that come back (Zipf); CPU µs for one of them, with its share of the scan; hits, \
                              misses and admitted: blocks, as the library counts them";

/// Returns what was measured.
fn file(test_file: &TestFile, grid: &Grid, verify: bool) -> String {
    let created = if test_file.created { ", made for this run and removed" } else { "" };
    let blocks: Vec<String> = grid.blocks.iter().map(|&block| Bytes(block).to_string()).collect();
    format!(
        "{} on {}: {} in blocks of {}, {}{}{created}",
        test_file.path.display(),
        test_file.filesystem,
        Bytes(test_file.size()),
        blocks.join(", "),
        match grid.open[..] {
            [Open::Direct] => "direct",
            [Open::Buffered] => "through the page cache",
            [Open::Adaptive] => "adaptive",
            _ => "opened in several ways",
        },
        if verify { ", contents checked" } else { "" },
    )
}

/// Returns how long each run took, and how many rounds there were.
pub fn timing(timing: Timing, results: &Results) -> String {
    let time = humantime::format_duration;
    let is_cold = results.params.cache.iter().all(|&cache| cache == Cache::Cold);
    let warmup = if is_cold { String::new() } else { format!(" after {} of warm-up", time(timing.warmup)) };
    let are_medians = results.params.rounds > 1 && !results.interrupted;
    let medians = if are_medians { "medians of " } else { "" };
    format!("{} a run{warmup}, {medians}{}", time(timing.duration), results.rounds())
}

/// Returns a note on the blocks that have no vectored rows.
fn without_parts(grid: &Grid) -> Option<String> {
    let vectored = grid.buffers().iter().any(|buffers| buffers.vectored());
    let without = grid.blocks.iter().filter(|&&block| vectored && grid.parts_of(block).is_none());
    let without: Vec<String> = without.map(|&block| Bytes(block).to_string()).collect();
    (!without.is_empty()).then(|| {
        format!(
            "no vectored rows for {}: the file's alignment of {} allows no two parts",
            without.join(", "),
            grid.alignment
        )
    })
}

/// Returns a note on the blocks that the runs visited.
fn access(runs: &[Run]) -> Option<String> {
    let took = |access| runs.iter().any(|run| run.setup.rw.random() && run.access == Some(access));
    let fio = runs.iter().any(|run| run.setup.engine.is_fio());
    let as_fio = |how: &str| if fio { format!(" (fio: {how})") } else { String::new() };
    let once = took(Access::Once).then(|| {
        format!(
            "cold: each thread visits every block of its part of the file at most once, in random order{}",
            as_fio("random map")
        )
    });
    let any =
        took(Access::Any).then(|| format!("each operation picks a random block{}", as_fio("norandommap")));
    let notes: Vec<String> = once.into_iter().chain(any).collect();
    (!notes.is_empty()).then(|| notes.join("; else "))
}

/// Returns a description of the machine in one line.
pub fn machine() -> String {
    let cores = counted(machine::cpus(), "core");
    let known =
        |fact: Option<String>, before: &str| fact.map(|fact| format!(", {before}{fact}")).unwrap_or_default();
    format!("{cores}{}{}", known(machine::cpu_model(), ""), known(machine::kernel(), "Linux "))
}

fn units(runs: &[Run]) -> String {
    let mut text = String::from(
        "latencies in µs from submission to completion; CPU µs per operation, kernel workers included",
    );
    if runs.iter().any(|run| run.setup.batch.is_some()) {
        text += "; µs/read: the time of all requested threads, divided by their reads; cores: how many were busy; latencies of \
                 engines that submit batches are those of a whole batch";
        let others = [Engine::Fio, Engine::Pread]
            .into_iter()
            .filter(|&other| runs.iter().any(|run| run.setup.engine == other));
        let others: Vec<String> = others.map(|other| values::name(&other)).collect();
        if !others.is_empty() {
            let per_cent: Vec<String> = others.iter().map(|other| format!("% of {other}")).collect();
            let (per_cent, others) = (per_cent.join(" and "), others.join(" and "));
            text += &format!(", of {others} those of one read; {per_cent}: reads a second beside theirs");
        }
    } else {
        let has_fio = runs.iter().any(|run| run.setup.engine.is_fio());
        let over_fio = "fixed/fio is ringfile with fixed buffers over fio with fixed ones, and so on; ";
        text += &format!(
            "; changes: {}before → after are medians, % is the median of the changes within rounds",
            if has_fio { over_fio } else { "" }
        );
    }
    if runs.iter().any(|run| run.role == Role::Aa) {
        text += "; A/A compares ringfile with itself: smaller changes are noise";
    }
    text
}
