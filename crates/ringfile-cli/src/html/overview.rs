//! The plot at the top of a page of `perf buffers`: the speed of direct, adaptive and buffered files, cold and warm.
//!
//! Knows runs and bars.

use maud::Markup;

use super::bars::{self, Bar};
use super::{marks, page};
use crate::model::{
    Buffers, Cache, Engine, Kind, Metric, Open, Results, Role, Route, Run, Rw, Setup, Spread,
};
use crate::numbers::rate;
use crate::values::{self, short_size};

/// Returns the section; empty if direct I/O was not compared with the page cache.
pub fn section(results: &Results) -> Markup {
    let Some(cell) = cell(results) else { return Markup::default() };
    let of = |cache| bars_of(results, &cell, cache);
    let (cold, warm) = (of(Cache::Cold), of(Cache::Warm));
    let has = |is: fn(&Bar) -> bool| cold.iter().chain(&warm).any(is);
    let mut meaning = format!(
        "Random reads of {} with {} in flight: the number of reads a second, more is better. A thin line reaches from the slowest \
         to the fastest round. Direct I/O always reads the disk; buffered files use the page cache",
        short_size(cell.block),
        cell.iodepth
    );
    meaning += if has(|bar| bar.label == "adaptive") {
        ", and adaptive ones use it for what it holds."
    } else {
        "."
    };
    meaning += if has(|bar| bar.style == marks::NOISE) { " Grey: fio with the same job." } else { "" };
    let panels = [("Nothing in memory (cold page cache)", cold), ("All in memory (warm page cache)", warm)];
    let panels = panels.into_iter().filter(|(_, bars)| !bars.is_empty());
    let panels = panels.map(|(title, bars)| bars::svg(title, "reads a second", &bars, rate));
    page::section("What each way of opening a file gives here", &meaning, page::plots(panels))
}

/// Returns what the bars have in common: the deepest random reads of whole blocks by the fewest threads for which cold
/// buffered reads were measured.
fn cell(results: &Results) -> Option<Setup> {
    let is_cold = |run: &&Run| {
        let setup = run.setup;
        (setup.open(), setup.cache) == (Open::Buffered, Cache::Cold) && setup.rw == Rw::RandRead
    };
    let runs = results.runs.iter().filter(is_cold).filter(|run| run.setup.engine.is_ours());
    let is_of_grid = results.params.direct && results.kind == Some(Kind::Buffers);
    runs.map(|run| run.setup).filter(|_| is_of_grid).max_by_key(|setup| setup.iodepth)
}

fn bars_of(results: &Results, cell: &Setup, cache: Cache) -> Vec<Bar> {
    let ways = [
        (Engine::Ringfile, Open::Direct),
        (Engine::Ringfile, Open::Adaptive),
        (Engine::Ringfile, Open::Buffered),
        (Engine::Fio, Open::Direct),
        (Engine::Fio, Open::Buffered),
    ];
    let bar = |(engine, open): (Engine, Open)| {
        let ours = engine.is_ours();
        // A program that opens a file gets route auto; direct I/O was measured on the grid's route.
        let route = if open == Open::Direct { *results.params.route.first()? } else { Route::Auto };
        let setup = Setup {
            engine,
            cache: if open == Open::Direct { Cache::Keep } else { cache },
            route: ours.then_some(route),
            ring_flags: cell.ring_flags.filter(|_| ours),
            buffers: Buffers::Normal,
            ..cell.opened(open)
        };
        let runs = results.runs.iter().filter(|run| run.role == Role::Measure && run.setup == setup);
        let spread = Spread::of(runs.filter_map(|run| Metric::Iops.of(run)))?;
        let way = values::name(&open);
        let (label, style) = if ours { (way, 0) } else { (format!("fio, {way}"), marks::NOISE) };
        Some(Bar { label, style, spread })
    };
    let bars: Vec<Bar> = ways.into_iter().filter_map(bar).collect();
    // Direct I/O alone, which has no page cache, says nothing about one.
    if bars.iter().any(|bar| !bar.label.ends_with("direct")) { bars } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::tests::recorded::{World, disk};

    /// Returns the labels of each panel's bars.
    fn labels(results: &Results) -> Vec<Vec<String>> {
        let Some(cell) = cell(results) else { return Vec::new() };
        let labels = |bars: Vec<Bar>| bars.into_iter().map(|bar| bar.label).collect::<Vec<_>>();
        [Cache::Cold, Cache::Warm].map(|cache| labels(bars_of(results, &cell, cache))).into()
    }

    #[test]
    fn each_way_has_a_bar_beside_fio() {
        let ways = ["direct", "adaptive", "buffered"];
        let alone = World::new(disk).quick().session(1);
        assert_eq!(labels(&alone), [ways, ways]);
        let fios = ["direct", "adaptive", "buffered", "fio, direct", "fio, buffered"];
        let beside = World { fio: true, ..World::new(disk).quick() }.session(1);
        assert_eq!(labels(&beside), [fios, fios]);
        let page = section(&beside).into_string();
        assert!(page.contains("with 16 in flight") && page.contains("Grey: fio"), "{page}");
        assert!(!section(&alone).into_string().contains("fio"));
    }

    #[test]
    fn older_files_have_no_adaptive_bars_and_other_commands_no_plot() {
        let mut older = World::new(disk).quick().session(1);
        older.runs.retain(|run| !run.setup.adaptive);
        assert_eq!(labels(&older), [["direct", "buffered"], ["direct", "buffered"]]);
        assert!(!section(&older).into_string().contains("adaptive"));
        older.kind = Some(Kind::File);
        assert_eq!(section(&older).into_string(), "");
        let in_memory = World { direct: false, ..World::new(disk).quick() }.session(1);
        assert_eq!(section(&in_memory).into_string(), "");
    }
}
