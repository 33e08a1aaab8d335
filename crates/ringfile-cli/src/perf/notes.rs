//! The notes below the tables: what a reader must know to trust the figures, and to get them again.

use super::session::Request;
use crate::cli::{Access, Cache, IoSize};
use crate::engine::fio::{self, Fio};
use crate::engine::{Engine, RouteOps};
use crate::machine;
use crate::report::cold;
use crate::report::results::{Role, Run};
use crate::testfile::TestFile;
use crate::values::{self, Bytes};

/// One line for each thing.
pub fn of(test_file: &TestFile, request: &Request<'_>, fio: Option<&Fio>, runs: &[Run]) -> Vec<String> {
    let mut notes = vec![file(test_file, request), timing(request), machine()];
    notes.extend(access(request, runs));
    notes.extend(test_file.notes.iter().cloned());
    notes.extend(cache(test_file, runs));
    notes.extend(cold::note(runs));
    notes.push(units(runs));
    notes.extend(routes(runs));
    notes.extend(registered(runs));
    if let Some(fio) = fio.filter(|_| runs.iter().any(|run| run.engine.is_fio())) {
        notes.push(format!(
            "{}: the same file, blocks, threads and amount or time; CPU of the whole process but its main thread, which \
             only sets up and reports",
            fio.version
        ));
        for engine in [Engine::Fio, Engine::FioBatch, Engine::FioPsync] {
            if runs.iter().any(|run| run.engine == engine) {
                let settings = if engine == Engine::Fio { settings(request) } else { String::new() };
                notes.push(format!("{}: {}{settings}", values::name(&engine), fio::describe(engine)));
            }
        }
    }
    notes
}

/// Lists fio's batch settings that were given.
fn settings(request: &Request<'_>) -> String {
    let settings = request.settings;
    [
        ("iodepth_batch_submit", settings.submit),
        ("iodepth_batch_complete_min", settings.complete),
        ("iodepth_low", settings.low),
    ]
    .into_iter()
    .filter_map(|(name, figure)| Some(format!("; {name}={}", figure?)))
    .collect()
}

fn file(test_file: &TestFile, args: &Request<'_>) -> String {
    let created = if test_file.created { ", made for this run and removed" } else { "" };
    format!(
        "{} on {}: {} in blocks of {}, {}{}{created}",
        test_file.path.display(),
        test_file.filesystem,
        Bytes(test_file.size()),
        Bytes(test_file.block),
        if args.direct { "direct" } else { "through the page cache" },
        if args.verify { ", contents checked" } else { "" },
    )
}

fn timing(args: &Request<'_>) -> String {
    let time = humantime::format_duration;
    let is_cold = args.grid.cache.iter().all(|&cache| cache == Cache::Cold);
    let warmup = match time(args.timing.warmup) {
        _ if is_cold => String::new(),
        warmup => format!(" after {warmup} of warm-up"),
    };
    let length = match args.work.io_size {
        Some(IoSize::Bytes(bytes)) => Bytes(bytes).to_string(),
        Some(IoSize::All) => "all of the file".into(),
        None => time(args.timing.duration).to_string(),
    };
    format!("{length} a run{warmup}, {}", rounds(args.timing.rounds))
}

/// Says which blocks the runs visited.
fn access(args: &Request<'_>, runs: &[Run]) -> Option<String> {
    let random = runs.iter().any(|run| run.rw.random());
    let took = |access| random && runs.iter().any(|run| run.access == Some(access));
    let fio = runs.iter().any(|run| run.engine.is_fio());
    let as_fio = |how: &str| if fio { format!(" (fio: {how})") } else { String::new() };
    let ends = if args.work.io_size.is_some() { "" } else { " or when the time is over" };
    let once = took(Access::Once).then(|| {
        format!(
            "access once: each thread visits every block of its part of the file once, in random order{}; a run ends after the last \
             block{ends}",
            as_fio("random map")
        )
    });
    let any = took(Access::Any)
        .then(|| format!("access any: each operation picks a random block{}", as_fio("norandommap")));
    match (once, any) {
        (Some(once), Some(any)) => Some(format!("cold: {once}. Else {any}")),
        (once, any) => once.or(any),
    }
}

/// How often it was measured.
pub fn rounds(rounds: u32) -> String {
    match rounds {
        1 => "1 round".to_string(),
        rounds => format!("medians of {rounds} rounds"),
    }
}

/// The machine, in one line.
pub fn machine() -> String {
    let cores = match machine::cpus() {
        1 => "1 core".to_string(),
        cores => format!("{cores} cores"),
    };
    let known =
        |fact: Option<String>, before: &str| fact.map(|fact| format!(", {before}{fact}")).unwrap_or_default();
    format!("{cores}{}{}", known(machine::cpu_model(), ""), known(machine::kernel(), "Linux "))
}

fn units(runs: &[Run]) -> String {
    let mut text = String::from(
        "latencies in µs from hand-in to completion; CPU µs for one operation, kernel workers included",
    );
    if runs.iter().any(|run| run.batch.is_some()) {
        text += "; µs/read is what one read takes of the time of one of the threads asked for; cores: how many were busy; \
                 latencies of what hands in batches are those of a whole batch";
        let others = [Engine::Fio, Engine::Pread]
            .into_iter()
            .filter(|&other| runs.iter().any(|run| run.engine == other));
        let others: Vec<String> = others.map(|other| values::name(&other)).collect();
        if !others.is_empty() {
            let per_cent: Vec<String> = others.iter().map(|other| format!("% of {other}")).collect();
            let (per_cent, others) = (per_cent.join(" and "), others.join(" and "));
            text += &format!(", of {others} those of one read; {per_cent}: reads a second beside theirs");
        }
    } else {
        text += "; changes: fixed/fio is ringfile with fixed buffers over fio with fixed ones, and so on; before → after are \
                 IOPS";
    }
    if runs.iter().any(|run| run.role == Role::Aa) {
        text += "; A/A is ringfile over itself: smaller changes than that say nothing";
    }
    text
}

/// Which way the operations went, where nothing else tells: with one route asked for.
pub fn routes(runs: &[Run]) -> Option<String> {
    let several_buffers = runs.iter().any(|run| run.engine.is_ours() && run.buffers != runs[0].buffers);
    let and = if several_buffers { "; normal and fixed differ on the ring alone" } else { "" };
    let mut sum = RouteOps::default();
    runs.iter().filter_map(|run| run.route_ops).for_each(|run| sum += run);
    let total = sum.total() as f64;
    let part = |ops: u64| ops as f64 * 100.0 / total;
    let by_aio = if sum.aio > 0 { format!(", {:.1} % by AIO", part(sum.aio)) } else { String::new() };
    (total > 0.0).then(|| {
        format!(
            "routes: {:.1} % of ringfile's operations went through the ring, {:.1} % were inline calls, {:.1} % \
             were done by workers{by_aio}{and}",
            part(sum.ring),
            part(sum.inline),
            part(sum.workers)
        )
    })
}

/// What was asked for is not always what was had: a refused registration makes `fixed` plain.
pub fn registered(runs: &[Run]) -> Option<String> {
    let asked = || runs.iter().filter(|run| run.engine.is_ours() && run.buffers.registered());
    let ops: u64 = asked().filter_map(|run| run.route_ops).map(|routes| routes.ring).sum();
    let fixed = ops - asked().map(Run::not_fixed).sum::<u64>();
    (fixed < ops).then(|| {
        format!(
            "fixed: only {:.1} % of the operations on the ring used registered memory, so these rows say little: {}",
            fixed as f64 * 100.0 / ops as f64,
            why_not_fixed(&asked().collect::<Vec<_>>())
        )
    })
}

/// Why a run's memory was not registered, as far as the library tells.
pub fn refused(run: &Run, refused: Option<ringfile::RegistrationRefused>) -> Option<String> {
    refused.filter(|_| run.not_fixed() > 0).map(|refused| refused.to_string())
}

/// Why operations on memory that was to be registered were not fixed.
pub fn why_not_fixed(runs: &[&Run]) -> String {
    let plain = || runs.iter().filter(|run| run.not_fixed() > 0);
    if let Some(refused) = plain().find_map(|run| run.refused.clone()) {
        refused
    } else if plain().all(|run| run.buffers.vectored()) {
        // Whole blocks were, of the same memory.
        "this kernel has no fixed form of vectored I/O (READV_FIXED, since Linux 6.15)".into()
    } else {
        "`ringfile doctor` may find out why".into()
    }
}

fn cache(test_file: &TestFile, runs: &[Run]) -> Option<String> {
    let least = |figures: &mut dyn Iterator<Item = Option<f64>>| {
        figures
            .flatten()
            .reduce(f64::min)
            .map(|fraction| format!("{:.0} %", (fraction * 1000.0).floor() / 10.0))
    };
    let before = least(&mut runs.iter().map(|run| run.cached_before))?;
    let after = least(&mut runs.iter().map(|run| run.cached_after))?;
    let mut note = format!("page cache held at least {before} of the file before a run, {after} after it");
    let stayed =
        |run: &Run| run.cache == Cache::Cold && run.cached_before.is_some_and(|fraction| fraction > 0.01);
    if runs.iter().any(stayed) {
        note += &format!("; {} does not let go of it, so nothing was cold", test_file.filesystem);
    }
    Some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::recorded::{World, disk};
    use crate::cli::Buffers;

    /// Runs of which those with such buffers were not fixed.
    fn plain(buffers: &[Buffers], refused: Option<&str>) -> Vec<Run> {
        let mut runs = World::new(disk).quick().session(1).runs;
        for run in runs.iter_mut().filter(|run| buffers.contains(&run.buffers)) {
            run.fixed_ops = Some(0);
            run.refused = refused.map(str::to_string);
        }
        runs
    }

    #[test]
    fn why_memory_was_not_registered_is_what_the_library_says() {
        let fixed = [Buffers::Fixed, Buffers::VectoredFixed];
        for cause in ["this kernel has no sparse tables", "RLIMIT_MEMLOCK leaves no room"] {
            let note = registered(&plain(&fixed, Some(cause))).expect("a note");
            assert!(note.starts_with("fixed: only 0.0 %") && note.ends_with(&format!(": {cause}")), "{note}");
        }
        let unknown = registered(&plain(&fixed, None)).expect("a note");
        assert!(unknown.contains("doctor") && !unknown.contains("MEMLOCK"), "{unknown}");
        let vectored = registered(&plain(&[Buffers::VectoredFixed], None)).expect("a note");
        assert!(vectored.contains("READV_FIXED") && !vectored.contains("MEMLOCK"), "{vectored}");
        assert_eq!(registered(&plain(&[], None)), None);
    }
}
