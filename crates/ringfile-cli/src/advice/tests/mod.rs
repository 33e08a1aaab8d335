//! Recorded sessions, and the advice that they must give.

pub mod recorded;
mod simulated;

use super::*;
use crate::model::Setup;
use crate::model::advice::{Setting, Sure, Value};
use crate::model::{Behind, Buffers, Route, Run};
use recorded::{Truth, World, all_the_same, disk, loop_device, overlay, tmpfs};

/// What is advised, as the configuration file has it, and how sure it is.
fn advised(results: &Results) -> Vec<(String, Sure)> {
    let advice = advise(results).into_iter();
    advice.map(|advice| (format!("{} = {}", advice.name, advice.value), advice.sure)).collect()
}

/// Advice on one setting.
pub fn on(results: &Results, name: Setting) -> Advice {
    advise(results).into_iter().find(|advice| advice.name == name).expect("advised")
}

#[track_caller]
fn expect_fixed_on_the_ring(world: &World, block_size: &str) {
    let expected = [
        ("direct = true", OutsideNoise),
        ("route = ring", OutsideNoise),
        ("buffers = fixed", OutsideNoise),
        ("depth = 16", OutsideNoise),
        (block_size, OutsideNoise),
        ("capacity = 64MiB", NotCompared),
        ("huge_pages = auto", NotCompared),
    ];
    for seed in 0..5 {
        let expected = expected.map(|(text, sure)| (text.to_string(), sure));
        assert_eq!(advised(&world.session(seed)), expected, "seed {seed}");
    }
}

fn on_tmpfs() -> World {
    World { filesystem: "tmpfs", direct: false, ..World::new(tmpfs) }
}

use Sure::{InsideNoise, NotCompared, OutsideNoise};

#[test]
fn a_disk_is_read_directly_through_the_ring() {
    expect_fixed_on_the_ring(&World::new(disk), "block_size = 16KiB");
    let buffers = on(&World::new(disk).session(0), Setting::Buffers).because;
    assert!(buffers.starts_with("fixed 1.0") || buffers.starts_with("fixed 0.9"), "{buffers}");
    assert!(
        buffers.contains("its CPU time for one I/O (outside the noise of 2.0 %): chosen for this"),
        "{buffers}"
    );
    assert!(buffers.contains("blocks in parts: vectored") && buffers.contains("vectored-fixed"), "{buffers}");
}

/// Whole blocks of registered memory and of any are alike, and so are parts but for the registered ones.
fn only_parts_gain(job: Setup) -> Truth {
    let Truth { iops, cpu_us } = disk(Setup { buffers: Buffers::Normal, ..job });
    if job.buffers == Buffers::VectoredFixed {
        Truth { iops: iops * 1.3, cpu_us: cpu_us * 0.6 }
    } else {
        Truth { iops, cpu_us }
    }
}

#[test]
fn advice_that_depends_on_vectored_blocks_mentions_them() {
    for seed in 0..3 {
        let advice = on(&World::new(only_parts_gain).session(seed), Setting::Buffers);
        let said = &advice.because;
        assert_eq!(advice.sure, OutsideNoise, "{said}");
        assert!(
            said.starts_with("for whole blocks no difference") && said.ends_with(": chosen for this"),
            "{said}"
        );
    }
}

#[test]
fn a_loop_device_gains_from_registered_memory() {
    expect_fixed_on_the_ring(&World::new(loop_device).quick(), "block_size = 128KiB");
}

#[test]
fn memory_is_read_by_plain_calls() {
    let expected = [
        ("direct = false", NotCompared),
        ("route = inline", OutsideNoise),
        ("buffers = normal", NotCompared),
        ("depth = 1", InsideNoise),
    ];
    let overlay = World { filesystem: "overlay", direct: false, ..World::new(overlay).quick() };
    for world in [on_tmpfs(), on_tmpfs().quick(), overlay] {
        for seed in 0..5 {
            let mut advised = advised(&world.session(seed));
            advised.truncate(expected.len());
            assert_eq!(advised, expected.map(|(text, sure)| (text.to_string(), sure)));
        }
    }
}

#[test]
fn without_a_ring_the_way_that_is_found_out_is_compared() {
    let world = World { has_ring: false, ..on_tmpfs().quick() };
    let route = on(&world.session(1), Setting::Route);
    assert_eq!((route.value, route.sure), (Value::Text("auto".into()), InsideNoise));
}

#[test]
fn workers_are_advised_with_their_number() {
    let mut results = World::new(disk).quick().session(1);
    for run in &mut results.runs {
        if run.setup.route == Some(crate::model::Route::Ring) {
            run.setup.route = Some(crate::model::Route::Workers);
        }
    }
    let advised: Vec<String> = advised(&results).into_iter().map(|(text, _)| text).collect();
    assert!(advised.contains(&"route = workers".into()), "{advised:?}");
    assert!(advised.contains(&"workers = 16".into()), "{advised:?}");
}

#[test]
fn an_interrupted_session_gives_what_it_has() {
    let whole = World::new(disk).session(3);
    for part in 0..20 {
        let mut results = whole.clone();
        results.interrupted = true;
        results.runs.truncate(whole.runs.len() * part / 20);
        results.advice = advise(&results);
        assert_eq!(results.advice.is_empty(), part == 0);
        let text = text::block(&results, None, true);
        assert!(part == 0 || text.contains("before it was interrupted"), "{text}");
    }
    let mut first = whole.clone();
    let of_first = |run: &Run| run.setup.block == 4096 && run.setup.iodepth == 1 && run.setup.numjobs == 1;
    first.runs.retain(|run| of_first(run) && run.setup.rw == crate::model::Rw::RandRead);
    let advised = advised(&first);
    assert!(advised.contains(&("depth = 1".into(), NotCompared)), "{advised:?}");
    assert!(!on(&first, Setting::BlockSize).because.contains(" times "));
}

#[test]
fn one_round_claims_nothing() {
    let results = World { rounds: 1, ..World::new(disk) }.session(1);
    let advice = advise(&results);
    assert!(advice.iter().all(|advice| advice.sure == NotCompared), "{advice:?}");
    let advised: Vec<String> =
        advice.iter().map(|advice| format!("{} = {}", advice.name, advice.value)).collect();
    assert!(
        advised.contains(&"direct = true".into()) && advised.contains(&"route = ring".into()),
        "{advised:?}"
    );
    let said = advice.iter().filter(|advice| advice.because.contains("one round shows no spread"));
    assert_eq!(said.count(), 5);
}

#[test]
fn hostile_figures_never_panic() {
    let hostile = [0.0, -1.0, f64::MIN_POSITIVE, f64::MAX, f64::INFINITY, f64::NAN, 1.0];
    for seed in 0..40 {
        let mut results = World::new(disk).quick().session(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let any = |random: &mut fastrand::Rng| hostile[random.usize(..hostile.len())];
        for run in &mut results.runs {
            if random.u64(..3) == 0 {
                run.iops = any(&mut random);
                run.bw_bytes = any(&mut random);
                run.cpu_us_per_io = Some(any(&mut random)).filter(|figure| *figure != 1.0);
                run.cached_after = Some(any(&mut random));
                run.latency_ns = None;
                run.fixed_ops = [None, Some(u64::MAX)][random.usize(..2)];
                run.route_ops = None;
                run.setup.numjobs = [1, usize::MAX, 0][random.usize(..3)];
                run.setup.block = [0, 1, u64::MAX, 4096][random.usize(..4)];
                run.setup.iodepth = [0, 1, usize::MAX, 16][random.usize(..4)];
                run.round = [0, 1, u32::MAX][random.usize(..3)];
            }
        }
        results.params.numjobs = vec![usize::MAX];
        results.params.file = "a\n\u{1b}[31m\"b\" = # x".into();
        results.advice = advise(&results);
        assert!(!text::block(&results, Some(20), true).is_empty());
        let config = text::config(&results);
        assert!(config.lines().all(|line| line.is_empty() || line.starts_with("# ") || line.contains(" = ")));
        let _ = ringfile::Config::parse(&config)
            .expect("whatever was measured, the library takes what is advised");
    }
}

#[test]
fn advice_is_read_back() {
    let advice = advise(&World::new(disk).quick().session(1));
    let text = serde_json::to_string(&advice).expect("JSON");
    assert!(text.contains(r#""name":"block_size","value":"128KiB""#), "{text}");
    assert_eq!(serde_json::from_str::<Vec<Advice>>(&text).expect("read back"), advice);
}

#[test]
fn the_text_fits_the_terminal() {
    let mut results = World::new(disk).quick().session(1);
    results.advice = advise(&results);
    let text = text::block(&results, Some(80), true);
    assert!(text.starts_with("Best here: direct = true, route = ring, "), "{text}");
    let list = "\nAdvice for /data/file.bin on ext4:\n\n|setting";
    assert!(text.contains(list) && text.contains("\n- direct = true: "), "{text}");
    let short = text::block(&results, Some(100), false);
    assert!(short.lines().count() <= 6 + results.advice.len() && !short.contains("- direct"), "{short}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(text::block(&results, None, true).lines().count(), 6 + 2 * results.advice.len());
    let defect = "auto is behind, which is a defect of ringfile to report";
    results.behind = vec![Behind {
        cell: String::new(),
        route: Route::Ring,
        auto_iops: 1.0,
        route_iops: 2.0,
        ratio: 0.5,
        noise: None,
        note: defect.into(),
    }];
    assert!(
        text::block(&results, None, true).contains(&format!(":\n- {defect}\n\n|setting")),
        "before the advice"
    );
    results.advice.clear();
    assert_eq!(text::block(&results, None, true), "");
}

#[test]
fn the_first_line_sets_apart_what_makes_no_difference() {
    let disk: fn(Setup) -> Truth = disk;
    let worlds = [(disk, 1), (all_the_same, 1), (loop_device, 2)];
    for (truth, seed) in worlds {
        let mut results = World::new(truth).quick().session(seed);
        results.advice = advise(&results);
        let text = text::block(&results, None, true);
        let headline = text.lines().next().expect("a line");
        let (better, equal) =
            headline.split_once("Without a difference beyond the noise: ").unwrap_or((headline, ""));
        let measured =
            [Setting::Direct, Setting::Route, Setting::Buffers, Setting::Depth, Setting::BlockSize];
        for advice in &results.advice {
            let place = if advice.sure == Sure::InsideNoise { equal } else { better };
            let is_there = place.contains(&format!("{} = {}", advice.name, advice.value));
            assert_eq!(is_there, measured.contains(&advice.name), "{advice:?} in {headline}");
        }
        assert_eq!(better.is_empty(), !headline.starts_with("Best here: "), "{headline}");
    }
}

#[test]
fn the_configuration_is_what_is_advised() {
    let mut results = World::new(disk).quick().session(1);
    results.advice = advise(&results);
    let text = text::config(&results);
    let config = ringfile::Config::parse(&text).expect("read by the library");
    let expected = ringfile::Config::new()
        .with_direct(true)
        .with_route(ringfile::Route::Ring)
        .with_depth(16)
        .with_block_size(128 << 10)
        .with_capacity(64 << 20)
        .with_huge_pages(ringfile::buf::HugePages::Auto);
    assert_eq!(expected.with_buffers(config.buffers().expect("set")), config);
    assert!(
        results.advice.iter().all(|advice| text.replace("\n# ", " ").contains(&advice.because)),
        "{text}"
    );
    assert!(
        text.starts_with("# Advice for /data/file.bin on ext4\n# Measured with: ringfile perf buffers\n\n"),
        "{text}"
    );
    let single = World::new(disk).quick().session(1);
    assert_eq!(text::config(&single).lines().count(), 3, "no advice, no settings");
}
