//! The sections of a session's page: the plots and texts of its results.
//!
//! Knows results and plots. Invariants: every run to compare is in some plot.

use maud::{Markup, html};

use super::drawing::{self, Look, Picture};
use super::layout::titled;
use super::marks;
use super::overview;
use super::page;
use super::tables;
use crate::advice::text::{self, unquiet};
use crate::error::one_line;
use crate::model::{Hot, Kind, Machine, Open, Profile, Results, by, distinct};
use crate::numbers::{counted, figure};
use crate::values::{self, Bytes, short_size};

/// Returns the title of the page.
pub fn title(results: &Results) -> String {
    format!("{}: {} on {}", command(results), file(results), one_line(&results.machine.filesystem))
}

/// Returns the command's name.
fn command(results: &Results) -> &'static str {
    results.kind.map_or("perf", Kind::command)
}

fn file(results: &Results) -> String {
    one_line(&results.params.file)
}

/// Returns the heading of the page: what was measured, and on which machine.
pub fn header(results: &Results) -> Markup {
    let params = &results.params;
    let lead = match results.kind {
        Some(Kind::Batch) => "Random reads in batches, several batches in flight.",
        Some(Kind::Multiread) => "Blocking reads of many blocks at once: the time for one read.",
        Some(Kind::Buffers) => {
            "What direct I/O, the page cache, registered and vectored buffers, depth and block size give on this machine."
        }
        Some(Kind::Pool) => {
            "Producers write buffers to segment files; consumers read them back and check them. Latency by kind of \
             memory."
        }
        Some(Kind::Mixed) => {
            "Repeated reads of part of the file during a scan of all of it, with little memory (see the notes). The \
             library (adaptive) or the kernel (buffered) decides what stays in memory; direct I/O keeps nothing."
        }
        Some(Kind::File) | None => "Reads and writes of one file, with and without registered buffers.",
    };
    let sizes = if params.block_sizes_bytes.is_empty() {
        vec![params.block_size_bytes]
    } else {
        params.block_sizes_bytes.clone()
    };
    let sizes: Vec<String> = sizes.iter().map(|&bytes| short_size(bytes)).collect();
    let ways = distinct(results.runs.iter().map(|run| run.setup.open()));
    let is_of_several = results.kind != Some(Kind::Buffers) && ways.len() > 1;
    let mut io = match (params.direct, &ways[..]) {
        _ if is_of_several => "in several ways",
        (true, _) => "direct (O_DIRECT)",
        (false, [Open::Adaptive]) => "adaptive",
        (false, _) => "through the page cache",
    }
    .to_string();
    io += if params.verify { ", contents checked" } else { "" };
    let rounds = results.rounds();
    let created = if params.file_created { ", created for this run and removed" } else { "" };
    let mut facts = machine(&results.machine);
    facts.extend([
        ("file", format!("{}{created}", file(results))),
        ("file system", one_line(&results.machine.filesystem)),
        ("size used", format!("{} in blocks of {}", Bytes(params.size_bytes), sizes.join(", "))),
        ("I/O", io),
        ("timing", format!("{} s a run after {} s of warm-up, {rounds}", params.duration_s, params.warmup_s)),
    ]);
    let rate = params.rate_limit_bytes.map(|bytes| format!("{} a second for each side", Bytes(bytes)));
    facts.extend(rate.map(|rate| ("rate asked", rate)));
    html! {
        header {
            h1 { (command(results)) ": " bdi { (file(results)) } }
            p.lead { (lead) }
            @if results.interrupted { p.warn { "Interrupted: only a part of the plan was measured." } }
            @for behind in results.behind.iter().filter(|behind| behind.is_sure()) { p.warn { (one_line(&behind.note)) } }
            (overview::section(results))
            (page::facts(&facts))
            pre { "$ " (one_line(&results.command)) }
        }
    }
}

/// Returns the facts about a machine.
fn machine(machine: &Machine) -> Vec<(&'static str, String)> {
    let known = |fact: &Option<String>| fact.as_deref().map_or_else(|| "unknown".into(), one_line);
    let mut facts = vec![
        ("processor", format!("{}, {}", known(&machine.cpu_model), counted(machine.cpus, "core"))),
        ("kernel", known(&machine.kernel)),
    ];
    facts.extend(machine.fio.as_ref().map(|fio| ("compared with", one_line(fio))));
    facts
}

/// Returns the advice, if there is any.
pub fn advice(results: &Results) -> Markup {
    if results.advice.is_empty() {
        return Markup::default();
    }
    let body = html! {
        @if let Some(warning) = unquiet(results) { p.warn { (warning) } }
        (tables::table(&text::table(&results.advice)))
        details {
            summary { "Reasons" small { "the figures that decided" } }
            ul.advice {
                @for advice in &results.advice {
                    li { p { code { (advice.name) " = " (advice.value) } } p { (one_line(&advice.because)) } }
                }
            }
        }
    };
    page::section("What to set here", "For this file on this machine, from the figures below.", body)
}

/// Returns the plots of speed, cost and latency.
pub fn plots(results: &Results) -> Markup {
    let look = Look::of(results);
    let mut sections: Vec<(bool, Markup)> = Vec::new();
    for what in drawing::What::ALL {
        let plots = drawing::plots(&look, what);
        if plots.is_empty() {
            continue;
        }
        let all: Vec<&Picture> = plots.iter().collect();
        let groups = by(&all, |plot| plot.heading.clone());
        let body = html! {
            @let entries = drawing::entries(&plots);
            @if !entries.is_empty() { (marks::legend(&entries)) }
            @for (heading, plots) in groups { (page::group(&heading, plots.into_iter().map(|plot| plot.svg.clone()))) }
        };
        sections.push((plots.len() == 1, page::section(what.title(), &what.meaning(&look), body)));
    }
    html! {
        // Sections of one plot stand beside each other.
        @for sections in sections.chunk_by(|one, other| one.0 && other.0) {
            @if sections.len() > 1 {
                div.beside { @for (_, section) in sections { (section) } }
            } @else {
                @for (_, section) in sections { (section) }
            }
        }
    }
}

/// Returns where CPU time goes, for each kind of buffers that was profiled.
pub fn profile(results: &Results) -> Markup {
    let body = html! {
        @for profile in &results.profile { (profiled(profile)) }
    };
    let meaning = "The functions that took most time themselves while each kind of buffers was measured, in per cent of all \
                   samples. In a flame graph the width of a box is its share of the time, and each box stands on its caller.";
    if results.profile.is_empty() {
        Markup::default()
    } else {
        page::section("Where CPU time goes", meaning, body)
    }
}

fn profiled(profile: &Profile) -> Markup {
    let name = format!(
        "{} buffers, {}, {} blocks, depth {}",
        values::name(&profile.buffers),
        profile.rw.words(),
        short_size(profile.block_size_bytes),
        profile.iodepth
    );
    let functions = |title: &str, functions: &[Hot]| {
        html! {
            table {
                thead { tr { th scope="col" { (title) } th.n scope="col" { "%" } } }
                @for hot in functions {
                    tr { td { (one_line(&hot.function)) } td.n { (figure(hot.percent)) } }
                }
            }
        }
    };
    let counted = format!(
        "{} samples by {}, {} % of them in the kernel",
        profile.samples,
        one_line(&profile.event),
        figure(profile.kernel_percent)
    );
    html! {
        h3 { (titled(&name, "")) }
        p.means { (counted) }
        div.beside {
            @if !profile.kernel.is_empty() { (functions("kernel", &profile.kernel)) }
            @if !profile.user.is_empty() { (functions("user space", &profile.user)) }
        }
        @if !profile.flame_graph.is_empty() {
            details { summary { "Flame graph" } (page::image(&profile.flame_graph, &format!("Flame graph: {name}"))) }
        }
    }
}

/// Returns the notes on the figures.
pub fn notes(results: &Results) -> Markup {
    let engines = distinct(results.runs.iter().map(|run| run.setup.engine));
    let meant = engines.iter().filter_map(|engine| Some((values::name(engine), engine.described()?)));
    let meant: Vec<(String, &str)> = meant.collect();
    let body = html! {
        ul.notes { @for note in &results.notes { li { (one_line(note)) } } }
        @if meant.len() > 1 { ul.notes { @for (name, what) in meant { li { b { (name) } ": " (what) } } } }
    };
    if results.notes.is_empty() && engines.len() < 2 {
        Markup::default()
    } else {
        page::section("Notes", "", body)
    }
}
