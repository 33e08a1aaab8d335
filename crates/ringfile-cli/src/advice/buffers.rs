//! Whether to register memory, and what it costs to split blocks into parts.
//!
//! Judged over all cells together: a difference of some per cent disappears in the noise of one cell, but shows in a
//! hundred.

use super::measured::{Contest, Measured, Runs, Winner, elsewhere};
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::model::{Buffers, Cache, Metric, Route, Run, Setup, by};
use crate::report::judge::{self, Cell, Verdict};
use crate::report::routes::why_not_fixed;
use crate::values::name;

/// Returns the advice, and the kind of whole buffers that the rest of the advice is for.
pub fn advise(measured: &Measured<'_>, direct: bool, route: Route) -> (Option<Advice>, Buffers) {
    // Neither plain calls nor AIO can use registered memory.
    if matches!(route, Route::Inline | Route::Workers | Route::Aio) {
        let because =
            format!("plain calls and Linux AIO can't use registered memory (route {})", name(&route));
        return (Some(advice(Buffers::Normal, because, Sure::NotCompared)), Buffers::Normal);
    }
    let whole = contest(measured, Buffers::Fixed, Buffers::Normal);
    let parts = contest(measured, Buffers::VectoredFixed, Buffers::Vectored);
    let asked = measured.runs(|run| run.setup.buffers.registered());
    if let Some(refused) = refused(&asked) {
        return (Some(advice(Buffers::Normal, refused, Sure::NotCompared)), Buffers::Normal);
    }
    let elsewhere = elsewhere(&asked, direct, route);
    let Some(deciding) = deciding(whole, parts) else { return (None, only(measured)) };
    // Settings whose difference is within the noise stay at the library's default.
    let kind = if deciding.better == Winner::Base { Buffers::Normal } else { Buffers::Fixed };
    let mut said = Vec::new();
    let whole_decides = whole.is_some_and(|whole| whole.sure == deciding.sure);
    if let Some(whole) = whole {
        let of_whole = if whole_decides { "" } else { "for whole blocks " };
        let no_difference = whole.no_difference();
        said.push(format!("{of_whole}{no_difference}fixed {}{elsewhere}", whole.figures("normal")));
    }
    if let Some(cost) = contest(measured, Buffers::Vectored, Buffers::Normal) {
        said.push(format!("blocks in parts: vectored {}", cost.short("normal")));
    }
    if let Some(parts) = parts {
        let decides = if whole_decides { "" } else { ": chosen for this" };
        said.push(format!("vectored-fixed {}{decides}", parts.short("vectored")));
    }
    let over = match kind {
        Buffers::Fixed => deciding.over("normal"),
        _ => deciding.turned().over("fixed"),
    };
    (Some(advice(kind, said.join("; "), deciding.sure).over(Some(over))), kind)
}

/// Whole blocks decide. If they show no difference, blocks in parts do, because they can use the same memory.
fn deciding(whole: Option<Contest>, parts: Option<Contest>) -> Option<Contest> {
    let decided = |contest: &Contest| contest.sure == Sure::OutsideNoise;
    whole.filter(decided).or(parts.filter(decided)).or(whole).or(parts)
}

fn advice(kind: Buffers, because: String, sure: Sure) -> Advice {
    Advice::new(Setting::Buffers, Value::Text(name(&kind)), because, sure)
}

/// Returns the kind that was measured if there is nothing to compare.
fn only(measured: &Measured<'_>) -> Buffers {
    let any = |kind: Buffers| !measured.runs(|run| run.setup.buffers == kind).is_empty();
    if any(Buffers::Fixed) && !any(Buffers::Normal) { Buffers::Fixed } else { Buffers::Normal }
}

/// Compares one kind with another over all cells that have both.
fn contest(measured: &Measured<'_>, subject: Buffers, base: Buffers) -> Option<Contest> {
    let iops = verdict(measured, subject, base, Metric::Iops)?;
    Some(Contest::of(iops, verdict(measured, subject, base, Metric::Cpu)))
}

fn verdict(measured: &Measured<'_>, subject: Buffers, base: Buffers, metric: Metric) -> Option<Verdict> {
    let of_kind =
        |kind: Buffers| measured.runs(|run| run.setup.buffers == kind && run.setup.cache != Cache::Cold);
    let (subjects, bases) = (of_kind(subject), of_kind(base));
    let cells = by(&subjects, |run| Setup { buffers: base, ..run.setup });
    let cells = cells.into_iter().filter_map(|(key, subject)| {
        let base: Runs<'_> = bases.iter().copied().filter(|run| run.setup == key).collect();
        Cell::of(&subject, &base, metric)
    });
    judge::compare_all(&cells.collect::<Vec<_>>(), measured.noise(metric))
}

/// Returns a remark if the kernel registered little of the memory, so that the runs did not measure registered memory.
fn refused(asked: &[&Run]) -> Option<String> {
    let sum = |ops: &mut dyn Iterator<Item = u64>| ops.fold(0, u64::saturating_add);
    let on_ring = sum(&mut asked.iter().filter_map(|run| run.route_ops).map(|routes| routes.ring));
    let fixed = sum(&mut asked.iter().filter_map(|run| run.fixed_ops));
    (on_ring > 0 && asked.iter().all(|run| run.fixed_ops.is_some()) && fixed < on_ring / 2).then(|| {
        let share = fixed as f64 * 100.0 / on_ring as f64;
        let why = why_not_fixed(asked);
        format!("only {share:.0} % of the operations that requested registered memory used it: {why}")
    })
}
