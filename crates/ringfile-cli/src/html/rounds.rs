//! The section that shows each round as a dot, which makes the noise visible.
//!
//! Knows runs and strips. A round is compared with the first series of the same cell and round, since a machine's speed
//! changes over time.

use maud::{Markup, html};

use super::drawing::Look;
use super::layout::titled;
use super::marks::NOISE;
use super::page;
use super::scale::Scale;
use super::strip::{Dot, Row, Strip};
use crate::model::{Kind, Metric, Results, Role, Run, Setup, by, groups, words};
use crate::numbers::change;
use crate::report::judge::{LEAST_ROUNDS, Noise, fewer, floor};

/// Returns the metric that rounds are compared in. At a set rate, operations a second are always the same.
fn metric(results: &Results) -> Metric {
    if results.kind == Some(Kind::Pool) { Metric::P99 } else { Metric::Iops }
}

/// Returns the section; empty if there was only one round.
pub fn section(results: &Results) -> Markup {
    let look = Look::of(results);
    let groups = groups(&results.runs);
    let firsts: Vec<&Run> = groups.iter().map(|group| group[0]).filter(|run| look.in_grid(run)).collect();
    let several = results.runs.iter().any(|run| run.round > 1);
    let (Some(first), true) = (firsts.first(), several) else { return Markup::default() };
    let titles = |run: &Run| {
        let of = |factors| words(factors, &run.setup);
        (titled(&of(&look.layout.headings), ""), titled(&of(&look.layout.plots), "All rounds"))
    };
    let strips: Vec<(String, Markup)> = by(&firsts, titles)
        .into_iter()
        .filter_map(|((heading, title), cells)| {
            strip(results, &look, title, &cells).map(|strip| (heading.clone(), strip.svg()))
        })
        .collect();
    if strips.is_empty() {
        return Markup::default();
    }
    let meaning = format!(
        "Each dot is one round: the change of its {} from that of the first series ({}) in the same round. The bar is the \
         median. Grey dots are A/A, repetitions of the same run. The grey band is the largest noise that they show: a \
         difference is claimed if every round lies outside.",
        metric(results).title(),
        look.layout.name(first)
    );
    let all: Vec<&(String, Markup)> = strips.iter().collect();
    let groups = by(&all, |(heading, _)| heading.clone());
    let body = html! {
        @for (heading, strips) in groups { (page::group(&heading, strips.into_iter().map(|(_, svg)| svg.clone()))) }
    };
    page::section("Rounds and noise", &meaning, body)
}

fn strip(results: &Results, look: &Look<'_>, title: String, cells: &[&Run]) -> Option<Strip> {
    let axis = look.layout.x;
    let mut rows = Vec::new();
    let noise = Noise::of(&results.runs, metric(results));
    let mut band: Option<f64> = None;
    for (place, cells) in
        by(cells, |run| axis.and_then(|factor| factor.words(&run.setup)).unwrap_or_default())
    {
        let base = cells[0];
        let mut of_place = Vec::new();
        for cell in cells {
            let name = look.layout.name(cell);
            let again = row(results, cell, cell, Role::Aa, format!("A/A {name}"), NOISE);
            if let Some(again) = again.as_ref().filter(|again| again.dots.len() >= LEAST_ROUNDS) {
                let of_cell = floor(noise.in_cell(&cell.setup, again.dots.len()));
                band = Some(band.map_or(of_cell, |band| band.max(of_cell)));
            }
            if cell.setup != base.setup {
                of_place.extend(row(results, cell, base, Role::Measure, name, look.style(cell)));
            }
            of_place.extend(again);
        }
        if !of_place.is_empty() && !place.is_empty() {
            rows.push(Row::heading(place));
        }
        rows.extend(of_place);
    }
    let noise = band.map(|band| (-100.0 * fewer(band), 100.0 * band));
    let x = Scale::changes(rows.iter().flat_map(|row| &row.dots).map(|dot| dot.x));
    (!rows.is_empty()).then(|| Strip {
        title,
        x_title: format!("change of {} in each round", metric(results).title()),
        x,
        noise,
        rows,
    })
}

/// Returns the row of a cell's rounds, compared with those of a base.
fn row(results: &Results, cell: &Run, base: &Run, role: Role, label: String, style: usize) -> Option<Row> {
    let metric = metric(results);
    let of = |setup: Setup, role: Role| {
        results.runs.iter().filter(move |run| run.role == role && run.setup == setup)
    };
    let dots = of(cell.setup, role).filter_map(|run| {
        let beside = of(base.setup, Role::Measure).find(|other| other.round == run.round)?;
        let (own, beside) = (metric.of(run)?, metric.of(beside)?);
        let by = (own / beside - 1.0) * 100.0;
        let (title, own, other) = (metric.title(), metric.text(own), metric.text(beside));
        let tip = format!("{label}, round {}: {} %, {title} {own} against {other}", run.round, change(by));
        by.is_finite().then_some(Dot { x: by, tip })
    });
    let dots: Vec<Dot> = dots.collect();
    (!dots.is_empty()).then(|| Row::of_dots(label, style, dots))
}
