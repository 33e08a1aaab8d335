//! The plots of a session's figures: which there are, and their contents.
//!
//! Knows runs and plots. Invariants: a series looks the same in every plot of a session.

use maud::Markup;

use super::bars::{self, Bar};
use super::layout::{Layout, titled};
use super::marks::LegendEntry;
use super::plot::{Plot, Point, Series};
use super::scale::{self, Scale};
use crate::model::{
    Factor, Group, Kind, Metric, Results, Run, Spread, Way, by, columns, distinct, groups, words,
};
use crate::values::short_size;

/// What a plot shows, in the order of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Operations a second over depth.
    Iops,
    /// Idle time of the whole machine over depth (`perf buffers`).
    Idle,
    /// CPU time for one operation over depth.
    Cpu,
    /// Bytes a second over block size.
    Bandwidth,
    /// Percentiles of latency.
    Latency,
}

/// A session, prepared for drawing.
#[derive(Debug)]
pub struct Look<'a> {
    /// Which factor goes where.
    pub layout: Layout,
    /// Cells beside the grid that the choice of direct I/O and route rests on (`perf buffers`).
    pub beside: Vec<Group<'a>>,
    kind: Option<Kind>,
    /// The cells of the plots.
    pub groups: Vec<Group<'a>>,
    /// The names of the series, in the order of their styles.
    names: Vec<String>,
}

impl<'a> Look<'a> {
    /// Prepares a session.
    pub fn of(results: &'a Results) -> Look<'a> {
        let all = groups(&results.runs);
        let firsts: Vec<&Run> = all.iter().map(|group| group[0]).collect();
        let way = (results.kind == Some(Kind::Buffers)).then(|| usual_way(&firsts)).flatten();
        let in_grid = |run: &Run| way.is_none_or(|way| way == run.setup.way());
        let (groups, others): (Vec<Group<'a>>, Vec<Group<'a>>) =
            all.into_iter().partition(|group| in_grid(group[0]));
        let firsts: Vec<&Run> = groups.iter().map(|group| group[0]).collect();
        let layout = Layout::of(results.kind, &firsts);
        let names = distinct(firsts.iter().map(|run| layout.name(run)));
        Look { layout, beside: others, kind: results.kind, groups, names }
    }

    fn smallest_block(&self) -> u64 {
        self.groups.iter().map(|group| group[0].setup.block).min().unwrap_or(0)
    }

    /// Returns the style of a run's series.
    pub fn style(&self, run: &Run) -> usize {
        let name = self.layout.name(run);
        self.names.iter().position(|known| *known == name).unwrap_or(0)
    }
}

/// Returns the way of most runs.
pub fn usual_way(runs: &[&Run]) -> Option<Way> {
    let ways = by(runs, |run| run.setup.way()).into_iter().rev();
    ways.max_by_key(|(_, runs)| runs.len()).map(|(way, _)| way)
}

impl What {
    /// All of them, in this order.
    pub const ALL: [What; 5] = [What::Iops, What::Idle, What::Cpu, What::Bandwidth, What::Latency];

    /// Returns the heading of its section.
    pub fn title(self) -> &'static str {
        match self {
            What::Iops => "Operations a second",
            What::Idle => "Idle CPU",
            What::Cpu => "CPU time for one operation",
            What::Bandwidth => "Bandwidth",
            What::Latency => "Latency",
        }
    }

    /// What it means, in a few words.
    pub fn meaning(self, look: &Look<'_>) -> String {
        let spread = match look.layout.x {
            Some(_) => "Points are medians of the rounds, bars reach from the least to the most.",
            None => "Bars are medians of the rounds, thin lines reach from the least to the most.",
        };
        match self {
            What::Iops => format!(
                "How many operations were done each second (IOPS); more is better. {spread} Each plot has a scale of its own."
            ),
            What::Idle => format!(
                "How much of the whole machine's processor time was left, waiting for I/O included and other programs not; at the \
                 same rate, more is better. {spread}"
            ),
            What::Cpu => format!(
                "Processor time, user and kernel, that one operation took; less is better, and leaves more for the program. {spread}"
            ),
            What::Bandwidth => format!("Bytes read or written each second; more is better. {spread}"),
            What::Latency => {
                let blocks = short_size(look.smallest_block());
                let several = look.groups.iter().any(|group| group[0].setup.block != look.smallest_block());
                let blocks = if several {
                    format!(" Shown are {blocks} blocks; the tables have the others.")
                } else {
                    String::new()
                };
                let counts = match look.kind {
                    Some(Kind::Pool) => {
                        "Latency is that of whole batches: a producer's from when the rate made the batch due, so that a stall \
                         shows; a consumer's from when the batch was written."
                    }
                    Some(Kind::Batch | Kind::Multiread) => {
                        "Latency is that of whole batches, from submission to the last completion, and for fio and pread that \
                         of single reads."
                    }
                    _ => "Measured from submission to completion.",
                };
                format!(
                    "99 of 100 operations took no longer than p99, 999 of 1000 no longer than p99.9. Less is better; the axis is logarithmic. {counts}{blocks}"
                )
            }
        }
    }

    fn y_title(self) -> &'static str {
        match self {
            What::Iops => "operations a second",
            What::Idle => "idle, % of all cores",
            What::Cpu => "CPU µs for one operation, logarithmic",
            What::Bandwidth => "MiB a second",
            What::Latency => "latency, logarithmic",
        }
    }

    /// Returns the metric it plots. Latency has a point for each percentile instead.
    fn metric(self) -> Metric {
        match self {
            What::Iops => Metric::Iops,
            What::Idle => Metric::MachineIdleShare,
            What::Cpu => Metric::Cpu,
            What::Bandwidth => Metric::Bandwidth,
            What::Latency => Metric::P50,
        }
    }

    /// Returns the function that labels its axis.
    fn label(self) -> fn(f64) -> String {
        if self == What::Cpu { scale::trimmed } else { scale::count }
    }
}

/// A plot under its group's heading.
#[derive(Debug)]
pub struct Picture {
    /// What the plots of its group have in common; may be empty.
    pub heading: String,
    /// The plot as an element of a page.
    pub svg: Markup,
    /// The series for the legend to name.
    series: Vec<LegendEntry>,
}

impl Picture {
    fn of_plot(heading: String, plot: &Plot) -> Picture {
        let series =
            plot.series.iter().map(|series| LegendEntry { name: series.name.clone(), style: series.style });
        Picture { heading, svg: plot.svg(), series: series.collect() }
    }
}

/// Returns the plots of a kind; none if it was not measured.
pub fn plots(look: &Look<'_>, what: What) -> Vec<Picture> {
    match what {
        What::Latency => latency(look),
        What::Iops | What::Cpu => over(look, what, &look.layout),
        What::Idle if look.kind == Some(Kind::Buffers) => over(look, what, &look.layout),
        What::Idle => Vec::new(),
        What::Bandwidth if look.kind == Some(Kind::Pool) => over(look, what, &look.layout),
        What::Bandwidth
            if look.layout.plots.contains(&Factor::Block) || look.layout.x == Some(Factor::Block) =>
        {
            over(look, what, &look.layout.over(Factor::Block))
        }
        What::Bandwidth => Vec::new(),
    }
}

/// Returns the heading of a plot's group, and the plot's own title.
fn titles(layout: &Layout, parts: &[Factor], run: &Run) -> (String, String) {
    let heading = titled(&words(&layout.headings, &run.setup), "");
    (heading, titled(&words(parts, &run.setup), "All runs"))
}

fn over(look: &Look<'_>, what: What, layout: &Layout) -> Vec<Picture> {
    let any = |group: &Group<'_>, is: fn(f64) -> bool| {
        group.iter().any(|run| what.metric().of(run).is_some_and(is))
    };
    let groups: Vec<&Group<'_>> = look.groups.iter().filter(|group| any(group, |_| true)).collect();
    let mut plots = by(&groups, |group| titles(layout, &layout.plots, group[0]));
    // A plot of zeros shows nothing.
    plots.retain(|(_, groups)| groups.iter().any(|group| any(group, |figure| figure > 0.0)));
    let picture = |((heading, title), groups): ((String, String), Vec<&Group<'_>>)| match layout.x {
        Some(x) => Picture::of_plot(heading, &plot(look, what, x, title, &groups)),
        None => Picture { heading, svg: bars(look, what, &title, &groups), series: Vec::new() },
    };
    plots.into_iter().map(picture).collect()
}

fn plot(look: &Look<'_>, what: What, x: Factor, title: String, groups: &[&Group<'_>]) -> Plot {
    let place = |run: &Run| x.number(&run.setup).unwrap_or(0.0);
    let series = by(groups, |group| look.layout.name(group[0]));
    let series: Vec<Series> = series
        .into_iter()
        .map(|(name, mut groups)| {
            groups.sort_by(|one, other| place(one[0]).total_cmp(&place(other[0])));
            let points = groups.iter().filter_map(|group| point(&name, what, x, group)).collect();
            Series { style: look.style(groups[0][0]), points, name }
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let y = match what {
        // At depth 1 an operation costs many times what it costs at 128.
        What::Cpu => Scale::logarithmic(points().flat_map(|point| [point.low, point.high]), what.label()),
        _ => Scale::from_zero(points().map(|point| point.high), what.label()),
    };
    let places: Vec<f64> = groups.iter().map(|group| place(group[0])).collect();
    let label = if x == Factor::Block { scale::block } else { scale::count };
    let x_scale = Scale::doublings(&places, label);
    Plot { title, y_title: what.y_title().into(), x_title: x.axis().into(), x: x_scale, y, series }
}

/// Returns the plot of a layout without an axis: a bar for each series.
fn bars(look: &Look<'_>, what: What, title: &str, groups: &[&Group<'_>]) -> Markup {
    let bar = |group: &&Group<'_>| {
        let spread = Spread::of(group.iter().filter_map(|run| what.metric().of(run)))?;
        Some(Bar { label: look.layout.name(group[0]), style: look.style(group[0]), spread })
    };
    let bars: Vec<Bar> = groups.iter().filter_map(bar).collect();
    let unit = what.y_title().trim_end_matches(", logarithmic");
    bars::svg(title, unit, &bars, |value| what.metric().text(value))
}

fn point(name: &str, what: What, axis: Factor, group: &Group<'_>) -> Option<Point> {
    let run = group[0];
    let Spread { median, min, max } = Spread::of(group.iter().filter_map(|run| what.metric().of(run)))?;
    let metric = what.metric();
    let (text, unit) = (|value| metric.text(value), metric.unit());
    let at = axis.words(&run.setup).unwrap_or_default();
    let range = if max > min { format!(" ({} to {})", text(min), text(max)) } else { String::new() };
    let tip = format!("{name}, {at}: {} {unit}{range}", text(median));
    Some(Point { x: axis.number(&run.setup)?, y: median, low: min, high: max, tip })
}

/// Returns the plots of percentiles. If there are several block sizes, they show the smallest.
fn latency(look: &Look<'_>) -> Vec<Picture> {
    let mut parts = look.layout.plots.clone();
    parts.extend(look.layout.x);
    let smallest = look.smallest_block();
    let shown = |group: &&Group<'_>| {
        group[0].setup.block == smallest && group.iter().any(|run| run.latency_ns.is_some())
    };
    let shown: Vec<&Group<'_>> = look.groups.iter().filter(shown).collect();
    let plots = by(&shown, |group| titles(&look.layout, &parts, group[0]));
    let picture = |((heading, title), groups): ((String, String), Vec<&Group<'_>>)| {
        Picture::of_plot(heading, &percentiles(look, title, &groups))
    };
    plots.into_iter().map(picture).collect()
}

fn percentiles(look: &Look<'_>, title: String, groups: &[&Group<'_>]) -> Plot {
    let of = |group: &Group<'_>, metric: Metric| Spread::of(group.iter().filter_map(|run| metric.of(run)));
    let is_known = |metric: &Metric| groups.iter().any(|group| of(group, *metric).is_some());
    let known: Vec<Metric> = columns::PERCENTILES.into_iter().filter(is_known).collect();
    let series: Vec<Series> = groups
        .iter()
        .map(|group| {
            let name = look.layout.name(group[0]);
            let points = known.iter().enumerate().filter_map(|(place, &metric)| {
                let Spread { median, min, max } = of(group, metric)?;
                let text = |value| metric.text(value);
                let (title, unit) = (metric.title(), metric.unit());
                let tip =
                    format!("{name}, {title}: {} {unit} ({} to {})", text(median), text(min), text(max));
                // Bars of many series would hide each other; the tooltip has their values.
                let (low, high) = if groups.len() > 4 { (median, median) } else { (min, max) };
                Some(Point { x: place as f64, y: median, low, high, tip })
            });
            Series { points: points.collect(), style: look.style(group[0]), name }
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let y = Scale::logarithmic(points().flat_map(|point| [point.low, point.high]), scale::micros);
    let titles: Vec<&str> = known.iter().map(|metric| metric.title().trim_start_matches('p')).collect();
    let x = Scale::steps(&titles);
    let (x_title, y_title) = ("percentile of the operations".into(), What::Latency.y_title().into());
    Plot { title, y_title, x_title, x, y, series }
}

/// Returns the series of some plots, each once, in the order of their styles.
pub fn entries(plots: &[Picture]) -> Vec<LegendEntry> {
    let mut entries = distinct(plots.iter().flat_map(|plot| plot.series.iter().cloned()));
    entries.sort_by_key(|entry| entry.style);
    entries
}
