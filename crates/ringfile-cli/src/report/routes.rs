//! The routes that operations took, and whether they used registered memory, which may differ from what was asked for.

use crate::model::{RouteOps, Run};

/// Returns the routes that the operations of some runs took, in per cent; `None` if that was not counted.
pub fn shares<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<String> {
    let mut sum = RouteOps::default();
    runs.filter_map(|run| run.route_ops).for_each(|run| sum += run);
    let total = sum.total() as f64;
    let part = |ops: u64| ops as f64 * 100.0 / total;
    let by_aio = if sum.aio > 0 { format!(", {:.1} % AIO", part(sum.aio)) } else { String::new() };
    let (ring, inline, workers) = (part(sum.ring), part(sum.inline), part(sum.workers));
    (total > 0.0)
        .then(|| format!("{ring:.1} % ring, {inline:.1} % inline calls, {workers:.1} % workers{by_aio}"))
}

/// Returns the routes that ringfile's operations took.
pub fn routes(runs: &[Run]) -> Option<String> {
    let ours = || runs.iter().filter(|run| run.setup.engine.is_ours());
    let several_buffers = ours().any(|run| run.setup.buffers != runs[0].setup.buffers);
    let and = if several_buffers { "; normal and fixed differ on the ring alone" } else { "" };
    shares(ours()).map(|shares| format!("routes of ringfile's operations: {shares}{and}"))
}

/// Returns a note if operations on memory that was to be registered were not fixed.
pub fn registered(runs: &[Run]) -> Option<String> {
    let asked = || runs.iter().filter(|run| run.setup.engine.is_ours() && run.setup.buffers.registered());
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

/// Returns why operations on memory that was to be registered were not fixed.
pub fn why_not_fixed(runs: &[&Run]) -> String {
    let plain = || runs.iter().filter(|run| run.not_fixed() > 0);
    if let Some(refused) = plain().find_map(|run| run.refused.clone()) {
        refused
    } else if plain().all(|run| run.setup.buffers.vectored()) {
        // Operations on whole blocks of the same memory were fixed.
        "this kernel has no fixed form of vectored I/O (READV_FIXED, since Linux 6.15)".into()
    } else {
        "`ringfile doctor` may find out why".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::tests::recorded::{World, disk};
    use crate::model::Buffers;

    /// Returns runs of which those with such buffers were not fixed.
    fn plain(buffers: &[Buffers], refused: Option<&str>) -> Vec<Run> {
        let mut runs = World::new(disk).quick().session(1).runs;
        for run in runs.iter_mut().filter(|run| buffers.contains(&run.setup.buffers)) {
            run.fixed_ops = Some(0);
            run.refused = refused.map(str::to_string);
        }
        runs
    }

    #[test]
    fn the_report_gives_the_librarys_reason_for_unregistered_memory() {
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
