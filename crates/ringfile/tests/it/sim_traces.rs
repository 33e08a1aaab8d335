//! That a seed gives the same run on each machine: with each toolchain, each kernel, and under sanitizers.

use std::time::Duration;

use ringfile::sim::{Disk, Faults, Simulation, Strictness, sleep};
use ringfile::{Appender, Batch, OpenOptions, Pool, Queue, fs};

/// The fingerprints of the runs of 100 seeds. A change of the library that changes what a run does changes this number:
/// what the test prints is then the new one.
const TRACES: u64 = 0x8d4b_1de1_7942_654d;

async fn program(disk: Disk) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    fs::create_dir_all("a/b").await.unwrap();
    let file = options.open("a/b/data").await.unwrap();
    let tasks: Vec<_> = (0..4_u64)
        .map(|task| {
            let (file, disk) = (file.clone(), disk.clone());
            ringfile::spawn(async move {
                for step in 0..20 {
                    let (offset, len) = (disk.random_below(1 << 20), disk.random_below(9000) as usize);
                    let bytes = vec![(task + step) as u8; len];
                    match disk.random_below(5) {
                        0 => drop(file.sync_data().await),
                        1 => drop(file.write_durable_at(bytes, offset).await),
                        2 => {
                            let mut batch = Batch::new();
                            batch.add(file.write_at(bytes, offset));
                            batch.add(file.read_at(Vec::with_capacity(5000), offset));
                            drop(batch.await);
                        }
                        3 => {
                            let mut queue = Queue::new();
                            queue.add(file.read_at(Vec::with_capacity(5000), offset), step);
                            while queue.ready().await == 0 {}
                        }
                        _ => drop(file.write_at(bytes, offset).await),
                    }
                    sleep(Duration::from_micros(disk.random_below(1000))).await;
                }
            })
        })
        .collect();
    let log = options.open("log").await.unwrap();
    if let Ok(log) = Appender::open(&log, &Pool::new(8 << 20), 0).await {
        for number in 0..20 {
            let _ = log.append(&[number; 1000]).await;
        }
        let _ = log.sync().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let _ = fs::rename("a/b/data", "other").await;
    let _ = fs::sync_dir("/").await;
    let mut names = fs::read_dir("/");
    while let Some(Ok(_)) = names.next().await {}
}

#[test]
fn a_hundred_seeds_have_the_same_traces_on_each_machine() {
    let mut all = 0_u64;
    for seed in 0..100_u64 {
        let strictness = if seed.is_multiple_of(2) { Strictness::Journal } else { Strictness::Posix };
        let simulation = Simulation::new(seed).faults(Faults::everything()).strictness(strictness);
        let outcome = simulation.power_cut_within(2000).run(program);
        let again = outcome.disk().run(program);
        for trace in [outcome.fingerprint(), outcome.events(), again.fingerprint(), again.events()] {
            all = all.wrapping_mul(0x0100_0000_01b3) ^ trace;
        }
    }
    println!("all fingerprints: {all:#x}");
    assert_eq!(all, TRACES, "a seed gives another run than it did when this number was written");
}
