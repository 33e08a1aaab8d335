//! Hundreds of simulated sessions on machines whose true performance is known: how often the judgement claims chance as
//! a difference, and how often it finds a real one.
//!
//! Each world is simulated `RINGFILE_TEST_SIMULATED_SESSIONS` times, 40 by default. Seeds are fixed, so rates are counts
//! that never change; the figures in docs/architecture/decisions.md are from 1000 sessions of each world.

use super::on;
use super::recorded::{Truth, World, all_the_same};
use crate::advice::*;
use crate::compare::differences::SessionComparison;
use crate::compare::load::Saved;
use crate::model::advice::{Setting, Sure, Value};
use crate::model::{Buffers, Metric, Role, Run, Setup, distinct};
use crate::report::judge::{self, Noise};

/// Pieces of advice that claim a difference, except of the block size: bandwidth grows with it however noisy it is.
fn claims(advice: &[Advice]) -> Vec<&Advice> {
    let claims = |advice: &&Advice| {
        let count = |word| advice.because.matches(word).count();
        advice.sure == Sure::OutsideNoise
            || count(" times ") != count("inside the noise") + count("not every round is outside")
    };
    advice.iter().filter(|advice| advice.name != Setting::BlockSize).filter(claims).collect()
}

/// Returns kinds of buffers in each cell whose difference from normal ones is claimed, and how many there are.
fn claims_in_cells(results: &Results, kind: Buffers) -> (usize, usize) {
    let noise = Noise::of(&results.runs, Metric::Iops);
    let measured = |run: &&Run| run.role == Role::Measure;
    let of_kind = results.runs.iter().filter(measured).filter(|run| run.setup.buffers == kind);
    let keys: Vec<Setup> = distinct(of_kind.map(|run| run.setup));
    let of = |key: Setup| {
        results.runs.iter().filter(measured).filter(move |run| run.setup == key).collect::<Vec<_>>()
    };
    let claimed = keys.iter().filter(|&&key| {
        let pairs = judge::pairs(&of(key), &of(Setup { buffers: Buffers::Normal, ..key }), Metric::Iops);
        judge::compare(&pairs, noise.in_cell(&key, pairs.len())).is_some_and(|verdict| verdict.outside)
    });
    (claimed.count(), keys.len())
}

/// Worlds in which nothing makes a difference, and how many of 1000 sessions of each may claim one.
///
/// Machines that are quiet and that are not; single runs that are 40 % slower, and bad rounds, in which every run of a
/// cell is up to six times as slow. In each case the whole grid with 3 rounds, and the small one with 5.
fn worlds_of_noise() -> Vec<(String, World)> {
    let mut worlds = Vec::new();
    for (machine, noise) in [("quiet", (0.02, 0.05)), ("noisy", (0.02, 0.2))] {
        for (what, outliers, bad_rounds) in [("outlying runs", 50, 0), ("bad rounds", 0, 30)] {
            let world = || World { noise, outliers, bad_rounds, ..World::new(all_the_same) };
            worlds.push((format!("{machine}, {what}"), world()));
            worlds.push((format!("{machine}, {what}, quick"), world().quick()));
        }
    }
    worlds
}

fn sessions() -> u64 {
    std::env::var("RINGFILE_TEST_SIMULATED_SESSIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

/// Simulates every world, and asserts that at most `allowed` of 1000 sessions claim something.
fn assert_rarely(what: &str, allowed: u64, claims: impl Fn(&Results) -> bool) {
    for (name, world) in worlds_of_noise() {
        let wrong: Vec<u64> = (0..sessions()).filter(|&seed| claims(&world.session(seed))).collect();
        println!("{what}: {name}: {} of {} sessions", wrong.len(), sessions());
        let most = (sessions() * allowed).div_ceil(1000);
        assert!(wrong.len() as u64 <= most, "{what}: {name}: seeds {wrong:?}, more than {allowed} in 1000");
    }
}

#[test]
fn noise_alone_is_hardly_ever_advice() {
    assert_rarely("advice", 10, |results| !claims(&advise(results)).is_empty());
}

#[test]
fn noise_alone_is_hardly_ever_a_difference_in_any_cell() {
    let kinds = [Buffers::Fixed, Buffers::Vectored, Buffers::VectoredFixed];
    assert_rarely("cells", 10, |results| kinds.iter().any(|&kind| claims_in_cells(results, kind).0 > 0));
}

#[test]
fn sessions_of_the_same_machine_hardly_ever_differ() {
    let saved = |results: Results| Saved { path: "a".into(), name: "a".into(), results };
    // Each session is compared with the next: fewer, since matching their cells takes longer than simulating them.
    for (name, world) in worlds_of_noise().into_iter().filter(|(_, world)| world.rounds > 3) {
        let sessions: Vec<Saved> = (0..20).map(|seed| saved(world.session(seed))).collect();
        let differ = |pair: &&[Saved]| {
            SessionComparison::of(&pair[0], &pair[1]).is_ok_and(|compared| !compared.outside.is_empty())
        };
        assert_eq!(sessions.windows(2).filter(differ).count(), 0, "{name}");
    }
}

/// Registered memory is worth a factor of 3.5, and depth 16 a factor of 4.
fn by_far_more(job: Setup) -> Truth {
    let truth = all_the_same(job);
    let fixed = if job.buffers == Buffers::Fixed { 3.5 } else { 1.0 };
    let deep = if job.iodepth > 1 { 4.0 } else { 1.0 };
    Truth { iops: truth.iops * fixed * deep, ..truth }
}

#[test]
fn one_bad_round_of_each_cell_hides_nothing_that_every_round_shows() {
    let world = World { noise: (0.03, 0.05), ..World::new(by_far_more).quick() };
    for seed in 0..20 {
        let mut results = world.session(seed);
        // A stall in the second round: it hit the A/A run alone, six times as slow.
        for run in results.runs.iter_mut().filter(|run| run.role == Role::Aa && run.round == 2) {
            run.iops /= 6.0;
        }
        let (claimed, cells) = claims_in_cells(&results, Buffers::Fixed);
        assert_eq!(claimed, cells, "seed {seed}");
        // And one that made the whole round slow, in the cell of depth 16.
        for run in results.runs.iter_mut().filter(|run| run.setup.iodepth == 16 && run.round == 4) {
            run.iops /= 2.0;
        }
        let depth = on(&results, Setting::Depth);
        assert_eq!((&depth.value, depth.sure), (&Value::Number(16), Sure::OutsideNoise), "{depth:?}");
        let buffers = on(&results, Setting::Buffers);
        assert_eq!(buffers.sure, Sure::OutsideNoise, "{buffers:?}");
    }
}

/// Registered memory is worth a fifth.
fn a_fifth_more(job: Setup) -> Truth {
    let truth = all_the_same(job);
    if job.buffers == Buffers::Fixed { Truth { iops: truth.iops * 1.2, ..truth } } else { truth }
}

#[test]
fn a_fifth_more_is_found() {
    let world = World { noise: (0.05, 0.05), ..World::new(a_fifth_more).quick() };
    let (mut claimed, mut cells) = (0, 0);
    for seed in 0..100 {
        let results = world.session(seed);
        let buffers = on(&results, Setting::Buffers);
        assert_eq!(
            (buffers.value, buffers.sure),
            (Value::Text("fixed".into()), Sure::OutsideNoise),
            "seed {seed}"
        );
        let (claimed_here, here) = claims_in_cells(&results, Buffers::Fixed);
        claimed += claimed_here;
        cells += here;
    }
    println!("a fifth more: in {claimed} of {cells} cells");
    assert!(claimed * 2 > cells, "{claimed} of {cells} cells");
}
