//! Recorded sessions, and the advice that they must give.

use super::recorded::{World, all_the_same, disk, loop_device, overlay, tmpfs};
use super::*;

/// The settings, as the configuration file has them.
fn settings(results: &Results) -> Vec<String> {
    advise(results).into_iter().map(|advice| format!("{} = {}", advice.name, advice.value)).collect()
}

fn show(world: &World) {
    let mut results = world.session(1);
    results.advice = advise(&results);
    println!("{}", text::block(&results, Some(110)));
}

#[test]
fn shown() {
    show(&World::new(disk));
    show(&World::new(disk).quick());
    show(&World { filesystem: "tmpfs", direct: false, ..World::new(tmpfs) });
    show(&World { filesystem: "overlay", direct: false, ..World::new(overlay).quick() });
    show(&World::new(loop_device));
    show(&World { noise: (0.02, 0.2), outliers: 50, ..World::new(all_the_same) });
    show(&World { rounds: 1, ..World::new(disk) });
}

/// Pieces of advice that claim a difference, except of the block size: bandwidth grows with it however noisy it is.
fn claims(advice: &[Advice]) -> Vec<&Advice> {
    let claims = |advice: &&Advice| {
        let count = |word| advice.because.matches(word).count();
        advice.sure == Sure::OutsideNoise
            || count(" times ") != count("inside the noise") + count("rounds disagree")
    };
    advice.iter().filter(|advice| advice.name != Setting::BlockSize).filter(claims).collect()
}

#[test]
fn noise_alone_is_never_advice() {
    let whole = World { noise: (0.02, 0.2), outliers: 50, ..World::new(all_the_same) };
    let quick = World { noise: (0.02, 0.2), outliers: 50, ..World::new(all_the_same).quick() };
    for (name, world) in [
        ("whole", whole),
        ("quick", quick),
        ("even3", World { noise: (0.05, 0.05), rounds: 3, ..World::new(all_the_same).quick() }),
        ("even5", World { noise: (0.05, 0.05), ..World::new(all_the_same).quick() }),
        ("20", World { noise: (0.2, 0.2), outliers: 20, ..World::new(all_the_same).quick() }),
    ] {
        let mut wrong = 0;
        for seed in 0..1000 {
            let advice = advise(&world.session(seed));
            let claims = claims(&advice);
            if !claims.is_empty() {
                wrong += 1;
                println!("{name} {seed}: {claims:?}");
            }
        }
        println!("{name}: {wrong}");
    }
}
