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
