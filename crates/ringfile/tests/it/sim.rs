//! Simulated disks: that the same seed gives the same run, and that promises of the library hold whenever the power is cut.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use ringfile::buf::PoolError;
use ringfile::fs::{self, AllocateMode};
use ringfile::metrics::OperationKind;
use ringfile::sim::{Faults, Simulation, Strictness, for_each_seed, replay, sleep};
use ringfile::{Appender, Batch, Buffer, File, OpenOptions, Pool, Queue, WhenFull};

use crate::support::seeds::seeds;
use crate::support::{Random, again};

fn everything() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// Does a bit of everything, and survives each fault.
async fn program(disk: ringfile::sim::Disk) {
    let file = everything().open("data").await.unwrap();
    let tasks: Vec<_> = (0..4_u64)
        .map(|task| {
            let (file, disk) = (file.clone(), disk.clone());
            ringfile::spawn(async move {
                for _ in 0..20 {
                    let offset = disk.random_below(1 << 20);
                    let _ = file.write_at(vec![task as u8; disk.random_below(9000) as usize], offset).await;
                    let _ = file.read_at(Vec::with_capacity(5000), offset).await;
                    if disk.random_below(5) == 0 {
                        let _ = file.sync_data().await;
                    }
                    sleep(Duration::from_micros(disk.random_below(1000))).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let _ = fs::rename("data", "other").await;
    let _ = fs::remove_file("other").await;
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let cut_within = if seed % 2 == 0 { 2000 } else { 0 };
        let with_faults = Simulation::new(seed).faults(Faults::everything());
        let outcome = with_faults.power_cut_within(cut_within).run(program);
        (outcome.fingerprint(), outcome.events())
    };
    let all: Vec<_> = (0..50).map(run).collect();
    assert_eq!(all, (0..50).map(run).collect::<Vec<_>>());
    let mut traces: Vec<u64> = all.iter().map(|(trace, _)| *trace).collect();
    traces.sort_unstable();
    traces.dedup();
    assert!(traces.len() > 35, "different seeds are different runs");
}

#[test]
fn time_is_simulated() {
    let began = std::time::Instant::now();
    let elapsed = Simulation::new(1).run(|disk| async move {
        sleep(Duration::from_secs(3600)).await;
        disk.elapsed()
    });
    assert_eq!(elapsed.into_result(), Some(Duration::from_secs(3600)));
    assert!(began.elapsed() < Duration::from_secs(600));
}

#[test]
fn files_behave_as_real_ones() {
    for_each_seed(0..50, |seed| {
        let outcome = Simulation::new(seed).faults(Faults::none().short_transfers(0.3).interrupted(0.2)).run(
            |_| async {
                fs::create_dir("folder").await?;
                let file = everything().open("folder/x").await?;
                assert_eq!(fs::remove_dir("folder").await.unwrap_err().errno(), Some(libc::ENOTEMPTY));
                file.write_at(vec![1; 10_000], 5000).await?;
                assert_eq!(file.size()?, 15_000);
                let read = file.read_at(Vec::with_capacity(20_000), 4000).await?;
                assert_eq!(read, [[0; 1000].as_slice(), &[1; 10_000]].concat());
                file.set_len(6000).await?;
                file.set_len(7000).await?;
                assert_eq!(
                    file.read_at(Vec::with_capacity(3000), 5000).await?,
                    [[1; 1000], [0; 1000]].concat()
                );
                let seen = fs::metadata("folder/x").await?;
                assert_eq!((seen.size, seen.links, seen.file_type), (7000, 1, fs::FileType::File));
                fs::rename("folder/x", "y").await?;
                assert_eq!(File::open_blocking("folder/x").unwrap_err().errno(), Some(libc::ENOENT));
                let again = File::open_blocking("y")?;
                assert_eq!(again.write_at(vec![1], 0).await.unwrap_err().errno(), Some(libc::EBADF));
                fs::remove_file("y").await?;
                assert_eq!(fs::metadata_of(&again).await?.links, 0);
                assert_eq!(again.read_at(Vec::with_capacity(10), 5000).await?, [1; 10]);
                fs::remove_dir("folder").await?;
                std::io::Result::Ok(())
            },
        );
        outcome.into_result().unwrap().unwrap();
    });
}

#[test]
fn batches_and_queues_work() {
    for_each_seed(0..50, |seed| {
        Simulation::new(seed).faults(Faults::none().short_transfers(0.3)).run(|_| async {
            let file = everything().open("x").await.unwrap();
            let mut batch = Batch::new();
            for block in 0..20_u64 {
                batch.add(file.write_at(vec![block as u8; 4096], block * 4096));
            }
            for done in batch.await {
                assert_eq!(done.result.unwrap(), 4096);
            }
            let (pool, mut queue) = (ringfile::Pool::new(1 << 20), Queue::new());
            for block in 0..20_u64 {
                queue.add(file.read_at(pool.get(4096).unwrap(), block * 4096), block);
            }
            let mut left = 20;
            while left > 0 {
                queue.ready().await;
                while let Some(done) = queue.next() {
                    let block = done.user_data;
                    assert_eq!(done.take::<Buffer>().unwrap()[..], [block as u8; 4096]);
                    left -= 1;
                }
            }
        });
    });
}

#[test]
fn direct_files_take_memory_at_any_address() {
    let memory: Vec<Vec<u8>> = (0..100).map(|n| vec![0; 100 + 37 * n]).collect(); // so that addresses differ
    for kept in memory {
        Simulation::new(1).run(|_| async {
            let file = everything().direct(true).open("x").await.unwrap();
            assert_eq!(file.write_at(vec![1; 4096], 0).await.unwrap().len(), 4096);
        });
        drop(kept);
    }
}

#[test]
fn direct_files_refuse_what_is_not_aligned() {
    Simulation::new(1).run(|_| async {
        let file = everything().direct(true).open("x").await.unwrap();
        let pool = ringfile::Pool::new(1 << 20);
        let mut block = pool.get(4096).unwrap();
        block.resize(4096, 7);
        let block = file.write_at(block, 512).await.unwrap();
        assert_eq!(file.read_at(block, 512).await.unwrap()[..], [7; 4096]);
        assert!(file.write_at(vec![1; 100], 0).await.is_err());
    });
}

/// Writes records until the power is cut; `syncs`: whether it keeps its promise.
fn records_survive(seed: u64, syncs: bool, strictness: Strictness) -> bool {
    let promised = Rc::new(Cell::new(0));
    let told = Rc::clone(&promised);
    let outcome = Simulation::new(seed).power_cut_within(500).strictness(strictness).run(|_| async move {
        let file = everything().open("log").await.unwrap();
        fs::sync_dir("/").await.unwrap();
        for record in 0_u64.. {
            file.write_at(record.to_ne_bytes().repeat(100), record * 800).await.unwrap();
            if syncs {
                file.sync_data().await.unwrap();
            }
            told.set(record + 1);
        }
    });
    assert!(outcome.result().is_none());
    let promised = promised.get();
    let found = outcome.disk().run(|_| async move {
        let Ok(file) = File::open_blocking("log") else { return promised == 0 };
        for record in 0..promised {
            let read = file.read_at(Vec::with_capacity(800), record * 800).await.unwrap();
            if read != record.to_ne_bytes().repeat(100) {
                return false;
            }
        }
        true
    });
    found.into_result().unwrap()
}

#[test]
fn a_sync_that_is_left_out_is_found_and_one_that_is_there_holds() {
    for strictness in [Strictness::Journal, Strictness::Posix] {
        for_each_seed(0..300, |seed| assert!(records_survive(seed, true, strictness)));
        assert!((0..20).any(|seed| !records_survive(seed, false, strictness)));
    }
}

#[test]
fn an_acknowledged_append_survives_a_power_cut() {
    for_each_seed(0..300, |seed| {
        let acknowledged = Rc::new(Cell::new(0));
        let told = Rc::clone(&acknowledged);
        let outcome = Simulation::new(seed).power_cut_within(2000).run(|_| async move {
            let file = everything().open("log").await.unwrap();
            fs::sync_dir("/").await.unwrap();
            let log = Appender::open(&file, &ringfile::Pool::new(8 << 20), 0).await.unwrap();
            for record in 0_u64.. {
                log.append(&record.to_ne_bytes().repeat(20)).await.unwrap();
                if record % 3 == 2 {
                    log.sync().await.unwrap();
                    told.set(record + 1);
                }
            }
        });
        assert!(outcome.result().is_none());
        let acknowledged = acknowledged.get();
        outcome.disk().run(|_| async move {
            let Ok(file) = File::open_blocking("log") else {
                assert_eq!(acknowledged, 0);
                return;
            };
            let all = file.read_at(Vec::with_capacity(1 << 20), 0).await.unwrap();
            let expected: Vec<u8> =
                (0..acknowledged).flat_map(|record: u64| record.to_ne_bytes().repeat(20)).collect();
            assert!(
                all.starts_with(&expected),
                "{acknowledged} records of 160 bytes, found {} bytes",
                all.len()
            );
        });
    });
}

#[test]
fn a_program_that_waits_for_nothing_is_told_so() {
    let waits = std::panic::catch_unwind(|| Simulation::new(1).run(|_| std::future::pending::<()>()));
    let message = *waits.unwrap_err().downcast::<String>().unwrap_or_default();
    assert!(message.contains("never comes") || message.is_empty());
    // The thread is as before.
    ringfile::block_on(async { fs::metadata("/").await.unwrap() });
}

/// Waits until the power is cut.
async fn until_cut() {
    loop {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn content(path: &str) -> Option<Vec<u8>> {
    let file = File::open_blocking(path).ok()?;
    Some(file.read_at(Vec::with_capacity(1 << 16), 0).await.unwrap())
}

#[test]
fn the_power_is_cut_when_a_program_ends_before() {
    let sizes = |cut_within| {
        let run = |seed| {
            let outcome = Simulation::new(seed).power_cut_within(cut_within).run(|_| async {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 512], 0).await.unwrap();
            });
            outcome.result()?;
            Some(outcome.disk().run(|_| content("x")).into_result().unwrap())
        };
        (0..100).filter_map(run).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(sizes(0).into_iter().collect::<Vec<_>>(), [Some(vec![1; 512])], "the page cache is kept");
    assert!(sizes(1000).contains(&None) && sizes(1000).contains(&Some(vec![1; 512])));
}

#[test]
fn a_durable_write_makes_no_other_write_durable() {
    let found: Vec<_> = (0..100)
        .map(|seed| {
            let is_done = Rc::new(Cell::new(false));
            let done = Rc::clone(&is_done);
            let outcome = Simulation::new(seed).power_cut_within(100).run(|_| async move {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 4096], 0).await.unwrap();
                file.write_durable_at(vec![2; 4096], 8192).await.unwrap();
                done.set(true);
                until_cut().await;
            });
            let content = outcome.disk().run(|_| content("x")).into_result().unwrap();
            (is_done.get(), content.unwrap_or_default())
        })
        .collect();
    let acknowledged: Vec<_> = found.iter().filter(|(is_done, _)| *is_done).collect();
    assert!(acknowledged.iter().all(|(_, content)| content.get(8192..) == Some(&[2; 4096])));
    assert!(acknowledged.iter().any(|(_, content)| content[..4096] == [0; 4096]), "the other is lost");
    assert!(acknowledged.iter().any(|(_, content)| content[..4096] == [1; 4096]));
}

#[test]
fn a_durable_write_under_way_is_kept_in_any_part() {
    let found: std::collections::BTreeSet<_> = (0..4000)
        .map(|seed| {
            let outcome = Simulation::new(seed).power_cut_within(50).run(|_| async {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 1024], 0).await.unwrap();
                file.sync_all().await.unwrap();
                fs::sync_dir(".").await.unwrap();
                sleep(Duration::from_millis(1)).await;
                file.write_durable_at(vec![2; 1024], 0).await.unwrap();
            });
            let content = outcome.disk().run(|_| content("x")).into_result().unwrap();
            content.filter(|content| content.len() == 1024).map(|content| (content[0], content[1023]))
        })
        .collect();
    for part in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        assert!(found.contains(&Some(part)), "{found:?}");
    }
}

#[test]
fn later_writes_are_kept_without_earlier_ones() {
    let found = (0..200).filter(|seed| {
        let outcome = Simulation::new(*seed).power_cut_within(100).run(|_| async {
            let file = everything().open("x").await.unwrap();
            file.write_durable_at(vec![1; 8 * 4096], 0).await.unwrap();
            for page in 0..8 {
                file.write_at(vec![2; 4096], page * 4096).await.unwrap();
            }
            until_cut().await;
        });
        let content = outcome.disk().run(|_| content("x")).into_result().unwrap().unwrap_or_default();
        let is = |page: usize, byte| content.get(page * 4096..(page + 1) * 4096) == Some(&[byte; 4096]);
        (1..8).any(|page| is(page - 1, 1) && is(page, 2))
    });
    assert!(found.count() > 5);
}

#[test]
fn a_file_is_where_it_was_moved_when_both_folders_were_synced() {
    for_each_seed(0..50, |seed| {
        let is_done = Rc::new(Cell::new(false));
        let done = Rc::clone(&is_done);
        let simulation = Simulation::new(seed).strictness(Strictness::Posix).power_cut_within(200);
        let outcome = simulation.run(|_| async move {
            fs::create_dir("folder").await.unwrap();
            fs::sync_dir(".").await.unwrap();
            let file = everything().open("new").await.unwrap();
            file.sync_all().await.unwrap();
            fs::rename("new", "folder/x").await.unwrap();
            fs::sync_dir("folder").await.unwrap();
            fs::sync_dir(".").await.unwrap();
            done.set(true);
            until_cut().await;
        });
        let found = outcome.disk().run(|_| content("folder/x")).into_result().unwrap();
        assert!(found.is_some() || !is_done.get());
    });
}

#[test]
fn a_renamed_file_is_not_lost_when_its_old_name_is_used_again() {
    for_each_seed(0..200, |seed| {
        let is_there = Rc::new(Cell::new(false));
        let there = Rc::clone(&is_there);
        let simulation = Simulation::new(seed).strictness(Strictness::Posix).power_cut_within(50);
        let outcome = simulation.run(|_| async move {
            let file = everything().open("log").await.unwrap();
            file.write_durable_at(vec![1], 0).await.unwrap();
            fs::sync_dir(".").await.unwrap();
            there.set(true);
            fs::rename("log", "log.old").await.unwrap();
            everything().open("log").await.unwrap();
            until_cut().await;
        });
        let found = outcome.disk().run(|_| async { (content("log").await, content("log.old").await) });
        let (new, old) = found.into_result().unwrap();
        assert!(!is_there.get() || new == Some(vec![1]) || old == Some(vec![1]), "{new:?} {old:?}");
    });
}

#[test]
fn each_open_file_reports_a_failed_sync_and_a_later_one_does_not() {
    let ends: Vec<_> = (0..50)
        .filter_map(|seed| {
            let outcome = Simulation::new(seed).faults(Faults::none().sync_errors(0.5)).run(|_| async {
                let first = everything().open("x").await.unwrap();
                let second = everything().open("x").await.unwrap();
                first.write_at(vec![1], 0).await.unwrap();
                first.sync_data().await.err()?;
                let later = everything().open("x").await.unwrap();
                Some((second.sync_data().await.is_err(), later.sync_data().await.is_err()))
            });
            outcome.into_result().unwrap()
        })
        .collect();
    assert!(ends.iter().all(|(second, _)| *second));
    assert!(ends.iter().any(|(_, later)| *later) && ends.iter().any(|(_, later)| !*later));
}

#[test]
fn a_durable_write_fails_as_a_sync_does() {
    Simulation::new(1).faults(Faults::none().sync_errors(1.0)).run(|_| async {
        let file = everything().open("x").await.unwrap();
        let failed = file.write_durable_at(vec![1; 10], 0).await.unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EIO));
        assert_eq!(file.size().unwrap(), 10, "the page cache has it");
    });
}

#[test]
fn any_part_of_a_durable_write_that_has_failed_may_be_found() {
    let found: BTreeSet<_> = (0..200)
        .map(|seed| {
            let faults = Faults::none().failing(OperationKind::Sync, 3);
            let outcome = Simulation::new(seed).faults(faults).run(|disk| async move {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 1024], 0).await.unwrap();
                file.sync_all().await.unwrap();
                fs::sync_dir("/").await.unwrap();
                file.write_durable_at(vec![2; 1024], 0).await.unwrap_err();
                disk.cut_power();
                until_cut().await;
            });
            let found = outcome.disk().run(|_| content("x")).into_result().unwrap().unwrap();
            (found[0], found[512])
        })
        .collect();
    assert_eq!(found, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
}

#[test]
fn what_a_failed_sync_has_lost_of_a_sector_is_written_with_the_rest_of_it() {
    for seed in 0..50 {
        let faults = Faults::none().failing(OperationKind::Sync, 3);
        let outcome = Simulation::new(seed).faults(faults).run(|disk| async move {
            let file = everything().open("x").await.unwrap();
            file.write_at(vec![1; 1000], 0).await.unwrap();
            file.sync_all().await.unwrap();
            fs::sync_dir("/").await.unwrap();
            file.write_at(vec![2; 1000], 0).await.unwrap();
            file.sync_data().await.unwrap_err();
            let file = everything().open("x").await.unwrap();
            file.write_at(vec![3; 100], 600).await.unwrap();
            file.sync_data().await.unwrap();
            disk.cut_power();
            until_cut().await;
        });
        let found = outcome.disk().run(|_| content("x")).into_result().unwrap().unwrap();
        assert_eq!((found.len(), found[512], found[600], found[999]), (1000, 2, 3, 2), "{seed}");
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_removed_files_give_room_back() {
    Simulation::new(1).faults(Faults::none().full_after(16 << 10)).run(|_| async {
        for name in ["a", "b", "c"] {
            let file = everything().open(name).await.unwrap();
            let failed = file.write_at(vec![1; 20_000], 0).await.unwrap_err();
            assert_eq!((failed.errno(), file.size().unwrap()), (Some(libc::ENOSPC), 16 << 10));
            drop(file);
            if name == "a" {
                fs::remove_file(name).await.unwrap();
            } else {
                let empty = everything().open("new").await.unwrap();
                fs::rename("new", name).await.unwrap();
                assert_eq!(empty.size().unwrap(), 0);
            }
        }
    });
}

#[test]
fn what_a_program_does_when_a_power_cut_drops_it_has_no_effect() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            let _ = File::create_blocking("late");
        }
    }
    for seed in 0..100 {
        let outcome = Simulation::new(seed).power_cut_within(10).run(|_| async {
            let _late = Late;
            ringfile::spawn(async {
                let _late = Late;
                until_cut().await;
            });
            until_cut().await;
        });
        assert_eq!(outcome.disk().run(|_| content("late")).into_result().unwrap(), None);
    }
}

#[test]
fn each_run_on_a_disk_has_other_chances() {
    let mut simulation = Simulation::new(1);
    let mut drawn = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let outcome = simulation.run(|disk| async move { disk.random_below(u64::MAX) });
        drawn.insert(*outcome.result().unwrap());
        simulation = outcome.disk();
    }
    assert_eq!(drawn.len(), 4);
}

#[test]
fn a_file_that_outlives_its_simulation_is_no_file_of_the_next() {
    let first = Simulation::new(1).run(|_| async { everything().open("a").await.unwrap() });
    let disk = first.disk();
    let old = first.into_result().unwrap();
    disk.run(|_| async move {
        let new = everything().open("b").await.unwrap();
        new.write_at(vec![1; 10], 0).await.unwrap();
        assert_eq!(old.write_at(vec![2; 10], 0).await.unwrap_err().errno(), Some(libc::EBADF));
        drop(old);
        assert_eq!(new.read_at(Vec::with_capacity(10), 0).await.unwrap(), [1; 10]);
    });
}

#[test]
fn nothing_is_copied_to_a_file_that_has_outlived_its_simulation() {
    let kept = Simulation::new(1).run(|_| async { everything().open("x").await.unwrap() });
    let kept = kept.into_result().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("real"), [1; 100]).unwrap();
    let real = File::open_blocking(folder.path().join("real")).unwrap();
    let copied = ringfile::block_on(real.copy_range(0, &kept, 0, 100));
    assert_eq!(copied.unwrap_err().errno(), Some(libc::EPERM));
}

#[test]
fn a_file_that_was_opened_elsewhere_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real");
    std::fs::write(&path, "real").unwrap();
    let outside = OpenOptions::new().read(true).write(true).open_blocking(&path).unwrap();
    Simulation::new(1).run(|_| async {
        let adopted = File::from(std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap());
        for file in [outside, adopted] {
            let failed = file.read_at(vec![7; 4], 0).await.unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EOPNOTSUPP));
            assert!(failed.into_parts().1.is_empty(), "nothing was read");
            let failed = file.write_at(vec![7; 4], 0).await.unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EOPNOTSUPP));
            assert_eq!(file.set_len(0).await.unwrap_err().errno(), Some(libc::EOPNOTSUPP));
        }
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"real");
}

#[test]
fn a_full_pool_that_would_block_the_simulation_is_an_error() {
    let ended = std::thread::spawn(|| {
        Simulation::new(1)
            .run(|_| async {
                let pool = Pool::builder().capacity(1 << 20).when_full(WhenFull::Wait).build().unwrap();
                let mut kept = Vec::new();
                loop {
                    match pool.get(64 << 10) {
                        Ok(buffer) => kept.push(buffer),
                        Err(error) => return matches!(error, PoolError::WouldDeadlock { .. }),
                    }
                }
            })
            .into_result()
    });
    let began = std::time::Instant::now();
    while !ended.is_finished() {
        assert!(began.elapsed() < Duration::from_secs(60), "it waits for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(ended.join().unwrap(), Some(true));
}

#[test]
fn what_destructors_begin_at_the_end_stays_in_the_simulation() {
    struct Creates(std::path::PathBuf);
    impl Drop for Creates {
        fn drop(&mut self) {
            let _ = File::create_blocking(&self.0);
        }
    }
    struct Spawns(std::path::PathBuf);
    impl Drop for Spawns {
        fn drop(&mut self) {
            let creates = Creates(self.0.clone());
            drop(ringfile::spawn(async move {
                let _creates = creates;
                until_cut().await;
            }));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real");
    Simulation::new(1).run(|_| async {
        let spawns = Spawns(path.clone());
        drop(ringfile::spawn(async move {
            let _spawns = spawns;
            until_cut().await;
        }));
        sleep(Duration::from_millis(1)).await;
    });
    assert!(!path.exists(), "it was created on the real disk");
}

#[test]
fn a_sync_of_data_does_not_save_names_for_a_file_that_is_durable_already() {
    let is_lost = |changes: bool| {
        (0..500).any(|seed| {
            let outcome = Simulation::new(seed).power_cut_within(50).run(|_| async move {
                let log = everything().open("log").await.unwrap();
                everything().open("x").await.unwrap();
                fs::sync_dir(".").await.unwrap();
                fs::rename("x", "y").await.unwrap();
                if changes {
                    log.write_at(vec![1; 10], 0).await.unwrap();
                }
                log.sync_data().await.unwrap();
            });
            let found = outcome.disk().run(|_| fs::metadata("y")).into_result().unwrap();
            outcome.result().is_some() && found.is_err()
        })
    };
    assert!(is_lost(false), "nothing of the log has changed, so the sync writes no journal");
    assert!(!is_lost(true), "its new size is in the journal, after the rename");
}

#[test]
fn sizes_and_ranges_that_no_file_can_have_are_refused() {
    Simulation::new(1).run(|_| async {
        let file = everything().open("x").await.unwrap();
        let errno = |result: ringfile::Result<()>| result.unwrap_err().errno();
        assert_eq!(errno(file.set_len(u64::MAX).await), Some(libc::EINVAL));
        file.set_len(i64::MAX as u64).await.unwrap();
        file.set_len(1).await.unwrap();
        assert_eq!(errno(file.allocate(AllocateMode::Extend, 0, 1 << 63).await), Some(libc::EFBIG));
        assert_eq!(errno(file.allocate(AllocateMode::Extend, 0, 0).await), Some(libc::EINVAL));
        assert_eq!(file.size().unwrap(), 1);
        let read_only = File::open_blocking("x").unwrap();
        assert_eq!(errno(read_only.allocate(AllocateMode::PunchHole, 0, 1).await), Some(libc::EBADF));
    });
}

#[test]
fn further_flags_of_an_open_apply() {
    for_each_seed(0..100, |seed| {
        let outcome = Simulation::new(seed).power_cuts(true).run(|_| async {
            let file = everything().custom_flags(libc::O_DSYNC).open("x").await.unwrap();
            file.write_at(vec![1; 10], 0).await.unwrap();
        });
        let is_done = outcome.result().is_some();
        let disk = outcome.disk();
        let found = disk.clone().run(|_| content("x")).into_result().unwrap();
        assert!(!is_done || found == Some(vec![1; 10]), "{found:?}");
        disk.run(|_| async {
            let file = everything().custom_flags(libc::O_TRUNC).open("x").await.unwrap();
            assert_eq!(file.size().unwrap(), 0);
        });
    });
}

#[test]
fn a_cancelled_open_keeps_no_file_open() {
    for_each_seed(0..50, |seed| {
        Simulation::new(seed).faults(Faults::none().full_after(8192)).run(|_| async {
            let file = everything().open("a").await.unwrap();
            file.write_at(vec![1; 8192], 0).await.unwrap();
            let mut opening = Box::pin(everything().open("a"));
            let is_pending =
                std::future::poll_fn(|context| Poll::Ready(opening.as_mut().poll(context).is_pending()));
            assert!(is_pending.await);
            drop(opening);
            sleep(Duration::from_secs(1)).await;
            drop(file);
            fs::remove_file("a").await.unwrap();
            let file = everything().open("b").await.unwrap();
            file.write_at(vec![1; 8192], 0).await.expect("the removed file has given its room back");
        });
    });
}

#[test]
fn a_folder_has_its_names_in_an_order_that_the_seed_chooses() {
    let order = |seed| {
        let outcome = Simulation::new(seed).run(|_| async {
            for name in ["a", "b", "c"] {
                fs::create_dir(name).await.unwrap();
            }
            let (mut entries, mut names) = (fs::read_dir("."), Vec::new());
            while let Some(entry) = entries.next().await {
                names.push(entry.unwrap().name);
            }
            names
        });
        outcome.into_result().unwrap()
    };
    assert_eq!(order(1), order(1));
    let orders: std::collections::BTreeSet<_> = (0..100).map(order).collect();
    assert_eq!(orders.len(), 6);
}

#[test]
fn a_runtime_is_refused_in_a_simulation() {
    let made = Simulation::new(1).run(|_| async { ringfile::Runtime::new().map(drop) });
    assert_eq!(made.into_result().unwrap().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
}

/// Uses paths in ways that are wrong, and returns the errnos.
async fn wrong_paths(folder: String) -> Vec<(&'static str, &'static str, Option<i32>)> {
    let path = |name: &str| if name.is_empty() { String::new() } else { format!("{folder}/{name}") };
    fs::create_dir_all(path("d/e")).await.unwrap();
    everything().open(path("f")).await.unwrap();
    fs::create_dir(path("l")).await.unwrap();
    for (name, to) in
        [("f", "../f"), ("d", "../d"), ("l", "d"), ("n", "none"), ("loop", "loop"), ("slash", "../f/")]
    {
        fs::symlink(to, path(&format!("l/{name}"))).await.unwrap();
    }
    let mut errnos = Vec::new();
    let plain = [
        "",
        "f",
        "f/",
        "f/x",
        "f/x/",
        "f/x/y",
        "n/",
        "n/x",
        "n/.",
        "d",
        "d/",
        "d/.",
        "d/..",
        "d/e/../../f",
        "m/.",
        "m/./o/..",
    ];
    let links =
        ["l/f", "l/f/", "l/f/x", "l/d", "l/d/", "l/d/.", "l/d/../f", "l/l", "l/l/e/.", "l/n/", "l/n/x"];
    let wrong_links = ["l/loop", "l/loop/", "l/loop/x", "l/slash/x"];
    for name in plain.into_iter().chain(links).chain(wrong_links) {
        let path = path(name);
        let mut note = |what, done: ringfile::Result<()>| {
            errnos.push((what, name, done.err().and_then(|error| error.errno())));
        };
        note("read", OpenOptions::new().read(true).open(&path).await.map(drop));
        note("create", everything().open(&path).await.map(drop));
        note("create new", everything().create_new(true).open(&path).await.map(drop));
        note("metadata", fs::metadata(&path).await.map(drop));
        note("create a folder", fs::create_dir(&path).await);
        note("create all", fs::create_dir_all(&path).await);
        note("link", fs::hard_link(&path, format!("{folder}/f")).await);
        note("rename", fs::rename_no_replace(format!("{folder}/f"), &path).await);
        note("remove", fs::remove_file(format!("{path}/x")).await);
        note("remove a folder", fs::remove_dir(format!("{path}/x/y")).await);
        note("create a link", fs::symlink("f", &path).await);
        note("read a link", fs::read_link(&path).await.map(drop));
        note("metadata of a link", fs::symlink_metadata(&path).await.map(drop));
        note("set the mode", fs::set_permissions(&path, Permissions::from_mode(0o640)).await);
        let mut options = everything();
        note("follow not", options.custom_flags(libc::O_NOFOLLOW).open(&path).await.map(drop));
        options.write(false).create(false);
        let flags = libc::O_NOFOLLOW | libc::O_DIRECTORY;
        note("read a folder", options.custom_flags(flags).open(&path).await.map(drop));
        note("list", fs::read_dir(&path).next().await.transpose().map(drop));
        note("rename away", fs::rename_no_replace(&path, format!("{folder}/f")).await);
        note("exchange", fs::rename_exchange(&path, format!("{folder}/none")).await);
        note("link to", fs::hard_link(format!("{folder}/f"), format!("{path}/")).await);
        note("replace", fs::rename(format!("{folder}/d/e"), &path).await);
        note("replace by a file", fs::rename(format!("{folder}/f"), format!("{path}/")).await);
        note("rename to nothing", fs::rename(&path, "").await);
        note("exchange with nothing", fs::rename_exchange(&path, "").await);
        note("link to nothing", fs::hard_link(&path, "").await);
        note("link from nothing", fs::hard_link("", &path).await);
        note("create a link to nothing", fs::symlink("", &path).await);
    }
    let kinds = ["f", "d", "l/f", "l/l", "l/n", "l/loop"].map(|name| fs::symlink_metadata(path(name)));
    for (kind, name) in kinds.into_iter().zip(["f", "d", "l/f", "l/l", "l/n", "l/loop"]) {
        let kind = kind.await.map_or(0, |metadata| metadata.mode.cast_signed());
        errnos.push(("mode", name, Some(kind & libc::S_IFMT.cast_signed())));
    }
    errnos
}

#[test]
fn wrong_paths_have_the_errors_of_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let real = ringfile::block_on(wrong_paths(folder.path().to_str().unwrap().to_owned()));
    let simulated = Simulation::new(1).run(|_| wrong_paths(String::new())).into_result().unwrap();
    let differ: Vec<_> = real.iter().zip(&simulated).filter(|(real, simulated)| real != simulated).collect();
    assert!(differ.is_empty(), "{differ:?}");
}

/// Draws a path of few names, so that paths meet, or an empty one. It leads out of no folder.
fn random_path(random: &mut Random, folder: &str) -> String {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", ".", "", ".."];
    if random.chance(12) {
        return String::new();
    }
    let (mut path, mut most) = (format!("{folder}/{}", NAMES[random.index(5)]), NAMES.len());
    for _ in 0..random.below(3) {
        let name = random.index(most);
        // Once only.
        most -= usize::from(NAMES[name] == "..");
        path = format!("{path}/{}", NAMES[name]);
    }
    path
}

/// Does what a seed says with paths, and returns the errnos.
async fn random_paths(folder: String, seed: u64) -> Vec<(String, Option<i32>)> {
    let mut random = Random::from_seed(seed);
    let mut errnos = Vec::new();
    for _ in 0..30 {
        let chosen = random.below(13);
        let (one, other) = (random_path(&mut random, &folder), random_path(&mut random, &folder));
        let mut options = everything();
        let (what, done) = match chosen {
            0 | 1 => ("create all", fs::create_dir_all(&one).await),
            2 => ("create a folder", fs::create_dir(&one).await),
            3 => ("create", options.open(&one).await.map(drop)),
            4 => ("create new", options.create_new(true).open(&one).await.map(drop)),
            5 => ("remove", fs::remove_file(&one).await),
            6 => ("remove a folder", fs::remove_dir(&one).await),
            7 => ("rename", fs::rename(&one, &other).await),
            8 => ("rename to a new name", fs::rename_no_replace(&one, &other).await),
            9 => ("exchange", fs::rename_exchange(&one, &other).await),
            10 => ("link", fs::hard_link(&one, &other).await),
            11 => ("create a link", fs::symlink(["a", "b/c", "c", "./d", ""][random.index(5)], &one).await),
            _ => ("metadata", fs::metadata(&one).await.map(drop)),
        };
        let (one, other) = (one.replacen(&folder, "", 1), other.replacen(&folder, "", 1));
        errnos.push((format!("{what} {one:?} {other:?}"), done.err().and_then(|error| error.errno())));
    }
    errnos
}

#[test]
fn random_paths_have_the_errors_of_a_real_disk() {
    let mut differ = Vec::new();
    for seed in seeds() {
        let folder = tempfile::tempdir().unwrap();
        let real = ringfile::block_on(random_paths(folder.path().to_str().unwrap().to_owned(), seed));
        let simulated = Simulation::new(1).run(|_| random_paths(String::new(), seed)).into_result().unwrap();
        let first = real.into_iter().zip(simulated).find(|(real, simulated)| real != simulated);
        differ.extend(
            first.map(|((what, real), (_, errno))| format!("seed {seed}: {what}: {real:?}, {errno:?}")),
        );
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// Stores a number in a file, again and again; the bug: it does not look whether a sync has failed.
async fn counter_that_ignores_failed_syncs(acknowledged: Rc<Cell<u64>>) {
    let file = everything().open("counter").await.unwrap();
    file.sync_all().await.unwrap_or(());
    fs::sync_dir("/").await.unwrap_or(());
    for n in 1..100_u64 {
        let _ = file.write_at(n.to_ne_bytes().repeat(64), 0).await;
        let _ = file.sync_data().await;
        acknowledged.set(n);
    }
}

fn counter_test(seed: u64, error_rate: f64) {
    let acknowledged = Rc::new(Cell::new(0));
    let faults = Faults::none().short_transfers(0.3).interrupted(0.3).sync_errors(error_rate);
    let simulation = Simulation::new(seed).faults(faults).power_cut_within(1000);
    let outcome = simulation.run(|_| counter_that_ignores_failed_syncs(acknowledged.clone()));
    let found = outcome.disk().run(|_| content("counter")).into_result().unwrap();
    let found = found
        .filter(|bytes| bytes.len() >= 8)
        .map_or(0, |bytes| u64::from_ne_bytes(bytes[..8].try_into().unwrap()));
    assert!(found >= acknowledged.get(), "an acknowledged number is lost");
}

/// Runs this test as another process, where it calls `fails`. Returns what that has printed; `None` if it has not failed.
#[track_caller]
pub fn said_by(test: &str, fails: impl FnOnce()) -> Option<String> {
    if std::env::var_os("RINGFILE_TEST_SHRINKS").is_some() {
        fails();
        return None;
    }
    let output = again(test).env("RINGFILE_TEST_SHRINKS", "1").output().unwrap();
    assert!(!output.status.success());
    Some(String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_failure_that_needs_no_fault_is_reported_with_the_power_cut_at_its_end() {
    let said = said_by("a_failure_that_needs_no_fault_is_reported_with_the_power_cut_at_its_end", || {
        for_each_seed(0..10, |seed| {
            let simulation = Simulation::new(seed).power_cuts(true);
            let outcome = simulation.run(|_| async { drop(everything().open("x").await) });
            let found = outcome.disk().run(|_| content("x")).into_result().unwrap();
            assert!(outcome.result().is_none() || found.is_some());
        });
    });
    let Some(said) = said else { return };
    assert!(
        said.contains("it fails without any fault\n    the power is cut at the end of run 1\n"),
        "{said}"
    );
    assert!(!said.contains("end of run 2"), "{said}");
}

#[test]
fn an_error_of_what_a_simulation_lacks_says_what_to_call() {
    let outcome = Simulation::new(1).run(|_| async {
        let file = everything().open("x").await.unwrap();
        (file.metadata().unwrap_err().to_string(), fs::metadata_of(&file).await.unwrap().size)
    });
    let (error, size) = outcome.into_result().unwrap();
    assert!(error.contains("use fs::metadata_of"), "{error}");
    assert_eq!(size, 0);
}

#[test]
fn a_stuck_operation_is_reported_with_its_file() {
    let said = said_by("a_stuck_operation_is_reported_with_its_file", || {
        for_each_seed(0..10, |seed| {
            let stuck = Faults::none().stuck(0.5, Duration::from_secs(60));
            Simulation::new(seed).faults(stuck).run(|disk| async move {
                let file = everything().open("x").await.unwrap();
                let opened = disk.elapsed();
                file.write_at(vec![1; 10], 512).await.unwrap();
                assert!(opened.as_secs() < 60 || disk.elapsed() - opened < Duration::from_secs(60));
            });
        });
    });
    let Some(said) = said else { return };
    assert!(said.contains(": opening of x takes 60s longer in event"), "{said}");
    assert!(said.contains(": write of 10 bytes at 512 of x takes 60s longer in event"), "{said}");
}

#[test]
fn a_failure_is_shrunk_to_the_faults_that_cause_it_and_repeated_with_them() {
    let test = "a_failure_is_shrunk_to_the_faults_that_cause_it_and_repeated_with_them";
    let Some(said) = said_by(test, || for_each_seed(0..1000, |seed| counter_test(seed, 0.05))) else {
        return;
    };
    let line = said.lines().find(|line| line.starts_with("ringfile::sim::replay(")).expect(&said);
    let (seed, rest) = line["ringfile::sim::replay(".len()..].split_once(", \"").unwrap();
    let (seed, faults) = (seed.parse().unwrap(), rest.split_once('"').unwrap().0);
    let words: Vec<&str> = faults.split(' ').collect();
    assert!(words.len() < 10 && words.iter().any(|word| word.contains("sync")), "{said}");
    assert!(said.contains("the sync of counter fails with errno 5"), "{said}");

    let fails = |faults: &str| {
        let replayed = || replay(seed, faults, |seed| counter_test(seed, 0.05));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(replayed)).is_err()
    };
    assert!(fails(faults), "{said}");
    let others: Vec<&str> = words.iter().copied().filter(|word| !word.contains("sync")).collect();
    assert!(!fails(&others.join(" ")), "{said}");
}

#[test]
fn a_program_that_ends_only_by_a_power_cut_is_shrunk() {
    let said = said_by("a_program_that_ends_only_by_a_power_cut_is_shrunk", || {
        for_each_seed(0..100, |seed| {
            let written = Cell::new(0);
            let outcome = Simulation::new(seed).power_cut_within(300).run(|_| async {
                let file = everything().open("x").await.unwrap();
                loop {
                    file.write_at(vec![1], written.get()).await.unwrap();
                    written.set(written.get() + 1);
                }
            });
            let found = outcome.disk().run(|_| content("x")).into_result().unwrap();
            assert_eq!(found.map_or(0, |found| found.len() as u64), written.get(), "it is not durable");
        });
    });
    assert!(said.is_none_or(|said| said.contains("without any fault")), "the latest possible cut is none");
}

#[test]
fn two_tests_that_fail_at_the_same_time_are_both_shrunk() {
    let said = said_by("two_tests_that_fail_at_the_same_time_are_both_shrunk", || {
        static STEP: AtomicUsize = AtomicUsize::new(0);
        let until = |step| {
            while STEP.load(Relaxed) < step {
                std::thread::yield_now();
            }
        };
        // The second one begins to repeat while the first one does, and goes on when that has ended.
        let fails = |own: usize| {
            let runs = AtomicUsize::new(0);
            let test = |_| {
                if runs.fetch_add(1, Relaxed) == 1 {
                    STEP.store(own, Relaxed);
                    until(own + 1);
                }
                panic!("test {own} fails");
            };
            assert!(catch_unwind(AssertUnwindSafe(|| for_each_seed(0..1, test))).is_err());
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fails(1);
                STEP.store(3, Relaxed);
            });
            until(1);
            fails(2);
        });
        panic!("as it should");
    });
    let Some(said) = said else { return };
    assert_eq!([1, 2].map(|test| said.matches(&format!("test {test} fails")).count()), [1, 1], "{said}");
}

#[test]
fn a_test_that_runs_seeds_itself_is_shrunk() {
    let said = said_by("a_test_that_runs_seeds_itself_is_shrunk", || {
        for_each_seed(0..100, |seed| {
            let outcome = Simulation::new(seed)
                .faults(Faults::none().sync_errors(0.5))
                .run(|_| async { everything().open("x").await.unwrap().sync_all().await.is_err() });
            if outcome.into_result().unwrap() {
                for_each_seed(0..1, |_| panic!("it fails"));
            }
        });
    });
    assert!(said.is_none_or(|said| said.contains("    1:sync1: the sync of x fails")));
}

#[test]
fn a_test_whose_simulations_run_on_other_threads_is_not_said_to_fail_without_faults() {
    let said =
        said_by("a_test_whose_simulations_run_on_other_threads_is_not_said_to_fail_without_faults", || {
            for_each_seed(0..100, |seed| {
                let simulated = move || {
                    let outcome = Simulation::new(seed)
                        .faults(Faults::none().sync_errors(0.5))
                        .run(|_| async { everything().open("x").await.unwrap().sync_all().await.is_ok() });
                    outcome.into_result().unwrap()
                };
                assert!(std::thread::spawn(simulated).join().unwrap());
            });
        });
    assert!(said.is_none_or(|said| said.contains("its faults are not known")));
}

#[test]
fn a_call_that_is_to_fail_fails_and_no_other() {
    let faults = Faults::none().failing(OperationKind::Sync, 2).failing(OperationKind::Write, 3);
    let errors = Simulation::new(1).faults(faults).run(|_| async {
        let mut errors = Vec::new();
        for _ in 0..4 {
            let file = everything().open("x").await.unwrap();
            errors.push(file.write_at(b"x".to_vec(), 0).await.is_err());
            errors.push(file.sync_data().await.is_err());
        }
        errors
    });
    let expected = [false, false, false, true, true, false, false, false];
    assert_eq!(errors.into_result().unwrap(), expected);
}

#[test]
fn a_program_can_cut_the_power_itself() {
    let reached = Rc::new(Cell::new(0));
    let outcome = Simulation::new(1).run(|disk| async {
        let disk = disk;
        let file = everything().open("x").await.unwrap();
        reached.set(1);
        disk.cut_power();
        let _ = file.write_at(b"x".to_vec(), 0).await;
        reached.set(2);
    });
    assert!(outcome.result().is_none() && reached.get() == 1);
}

#[test]
fn symbolic_links_lead_to_files_and_folders() {
    Simulation::new(1).run(|_| async {
        fs::create_dir_all("a/b").await.unwrap();
        fs::symlink("/a/b", "folder").await.unwrap();
        fs::symlink("../../file", "a/b/link").await.unwrap();
        let created = everything().open("folder/link").await.unwrap();
        created.write_at(vec![1; 10], 0).await.unwrap();
        assert_eq!(content("file").await, Some(vec![1; 10]));
        assert_eq!(content("folder/../b/link").await, Some(vec![1; 10]));
        assert_eq!(fs::read_link("folder/link").await.unwrap().to_str(), Some("../../file"));
        let of_link = fs::symlink_metadata("a/b/link").await.unwrap();
        assert_eq!((of_link.file_type, of_link.mode & 0o777), (fs::FileType::Symlink, 0o777));
        assert_eq!((of_link.size, of_link.links), (10, 1));
        assert_eq!(fs::metadata("a/b/link").await.unwrap().file_type, fs::FileType::File);
        fs::hard_link("a/b/link", "a/again").await.unwrap();
        assert_eq!(fs::symlink_metadata("a/again").await.unwrap().links, 2);
        let mut entries = fs::read_dir("a/b/");
        assert_eq!(entries.next().await.unwrap().unwrap().file_type, fs::FileType::Symlink);
        fs::rename("a/b/link", "moved").await.unwrap();
        assert_eq!(fs::read_link("moved").await.unwrap().to_str(), Some("../../file"));
        fs::remove_file("moved").await.unwrap();
        assert_eq!(content("file").await, Some(vec![1; 10]), "the link was removed, not the file");
    });
}

#[test]
fn a_chain_of_more_than_forty_links_is_refused() {
    Simulation::new(1).run(|_| async {
        everything().open("0").await.unwrap();
        for link in 1..=41 {
            fs::symlink(format!("{}", link - 1), format!("{link}")).await.unwrap();
        }
        fs::metadata("40").await.unwrap();
        assert_eq!(fs::metadata("41").await.unwrap_err().errno(), Some(libc::ELOOP));
    });
}

#[test]
fn names_and_paths_that_are_too_long_for_the_kernel_are_refused() {
    Simulation::new(1).run(|_| async {
        let errno = |result: ringfile::Result<()>| result.unwrap_err().errno();
        let (longest, long) = ("n".repeat(255), "n".repeat(256));
        everything().open(&longest).await.unwrap();
        let refused = [
            everything().open(&long).await.map(drop),
            fs::metadata(&long).await.map(drop),
            fs::create_dir(&long).await,
            fs::create_dir_all(format!("{long}/a")).await,
            fs::remove_file(&long).await,
            fs::symlink("a", &long).await,
            fs::hard_link(&longest, &long).await,
            fs::rename(&longest, &long).await,
            fs::rename(&long, &longest).await,
            fs::metadata(format!("{long}/..")).await.map(drop),
        ];
        for (call, result) in refused.into_iter().enumerate() {
            assert_eq!(errno(result), Some(libc::ENAMETOOLONG), "call {call}");
        }
        // What comes before the name decides first.
        assert_eq!(errno(fs::create_dir(format!("{longest}/{long}")).await), Some(libc::ENOTDIR));
        assert_eq!(errno(fs::create_dir(format!("missing/{long}")).await), Some(libc::ENOENT));
        // The kernel's limit of 4096 includes the zero at the end.
        let path = |len: usize| format!("{}{longest}", "/".repeat(len - 255));
        fs::metadata(path(4095)).await.unwrap();
        assert_eq!(errno(fs::metadata(path(4096)).await.map(drop)), Some(libc::ENAMETOOLONG));
        fs::symlink(path(4095), "link").await.unwrap();
        fs::metadata("link").await.unwrap();
        assert_eq!(errno(fs::symlink(path(4096), "other").await), Some(libc::ENAMETOOLONG));
        fs::symlink(&long, "to_long").await.unwrap();
        assert_eq!(errno(fs::metadata("to_long").await.map(drop)), Some(libc::ENAMETOOLONG));
    });
}

#[test]
fn a_link_that_is_switched_leads_to_the_old_file_or_the_new_one() {
    for strictness in [Strictness::Journal, Strictness::Posix] {
        let found: std::collections::BTreeSet<_> = (0..100)
            .filter_map(|seed| {
                let simulation = Simulation::new(seed).strictness(strictness).power_cut_within(50);
                let (is_made, is_synced) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
                let (made, synced) = (is_made.clone(), is_synced.clone());
                let outcome = simulation.run(|_| async move {
                    fs::symlink("1", "current").await.unwrap();
                    fs::sync_dir(".").await.unwrap();
                    made.set(true);
                    fs::symlink("2", "new").await.unwrap();
                    fs::rename("new", "current").await.unwrap();
                    sleep(Duration::from_millis(5)).await;
                    fs::sync_dir(".").await.unwrap();
                    synced.set(true);
                    until_cut().await;
                });
                let found = outcome.disk().run(|_| fs::read_link("current")).into_result().unwrap();
                let found = is_made.get().then(|| found.unwrap().to_str().unwrap().to_owned())?;
                assert!(found == "2" || !is_synced.get());
                Some(found)
            })
            .collect();
        assert_eq!(Vec::from_iter(found), ["1", "2"]);
    }
}

async fn permissions(path: &str) -> Option<u32> {
    fs::metadata(path).await.ok().map(|metadata| metadata.mode & 0o7777)
}

#[test]
fn permissions_are_kept_and_enforced_for_nobody() {
    Simulation::new(1).run(|_| async {
        let file = everything().open("a").await.unwrap();
        OpenOptions::new().write(true).create(true).mode(0o4600).open_blocking("b").unwrap();
        fs::create_dir("c").await.unwrap();
        let modes = [permissions("a").await, permissions("b").await, permissions("c").await];
        assert_eq!(modes, [Some(0o666), Some(0o4600), Some(0o777)]);
        fs::symlink("a", "link").await.unwrap();
        fs::set_permissions("link", Permissions::from_mode(0o100_000)).await.unwrap();
        assert_eq!(fs::metadata_of(&file).await.unwrap().mode, libc::S_IFREG);
        everything().open("a").await.expect("the simulated user is root");
    });
}

#[test]
fn permissions_are_durable_after_a_sync_of_the_file() {
    let found = |strictness, syncs_file: bool| {
        let run = |seed| {
            let is_done = Rc::new(Cell::new(false));
            let done = is_done.clone();
            let simulation = Simulation::new(seed).strictness(strictness).power_cut_within(50);
            let outcome = simulation.run(|_| async move {
                let file = everything().open("x").await.unwrap();
                file.sync_all().await.unwrap();
                fs::sync_dir(".").await.unwrap();
                fs::set_permissions("x", Permissions::from_mode(0o600)).await.unwrap();
                file.sync_data().await.unwrap();
                if syncs_file {
                    file.sync_all().await.unwrap()
                } else {
                    fs::sync_dir(".").await.unwrap()
                }
                done.set(true);
                until_cut().await;
            });
            let found = outcome.disk().run(|_| permissions("x")).into_result().unwrap();
            is_done.get().then(|| found.unwrap())
        };
        Vec::from_iter((0..100).filter_map(run).collect::<std::collections::BTreeSet<_>>())
    };
    assert_eq!(found(Strictness::Journal, true), [0o600]);
    assert_eq!(found(Strictness::Journal, false), [0o600, 0o666], "the folder has no later change");
    assert_eq!(found(Strictness::Posix, true), [0o600]);
    assert_eq!(found(Strictness::Posix, false), [0o600, 0o666]);
}

#[test]
fn copies_are_as_on_a_real_disk() {
    for_each_seed(0..50, |seed| {
        let faults = Faults::none().short_transfers(0.3).interrupted(0.2);
        Simulation::new(seed).faults(faults).run(|disk| async move {
            let (from, to) = (everything().open("a").await.unwrap(), everything().open("b").await.unwrap());
            let pattern: Vec<u8> = (0..100_000).map(|_| disk.random_below(256) as u8).collect();
            from.write_at(pattern.clone(), 0).await.unwrap();
            assert_eq!(from.copy_range(777, &to, 5000, 200_000).await.unwrap(), 100_000 - 777);
            assert_eq!(content("b").await.unwrap()[..5000], [0; 5000]);
            let copied = to.read_at(Vec::with_capacity(200_000), 5000).await.unwrap();
            assert!(copied == pattern[777..]);
            assert_eq!(from.copy_range(100_000, &to, 0, 10).await.unwrap(), 0);
            let overlap = from.copy_range(0, &from, 99_999, 100_000).await.unwrap_err();
            assert_eq!(overlap.errno(), Some(libc::EINVAL));
            assert_eq!(from.copy_range(0, &from, 200_000, 200_000).await.unwrap(), 100_000);
            assert_eq!(from.size().unwrap(), 300_000);
            let copied = from.read_at(Vec::with_capacity(100_000), 200_000).await.unwrap();
            assert!(copied == pattern);
            let mut batch = Batch::new();
            batch.add(from.copy_range(0, &to, 0, 1000));
            assert_eq!(batch.await.remove(0).result.unwrap(), 1000);
            let wrong = [
                (File::open_blocking("a").unwrap(), File::open_blocking("b").unwrap()),
                (OpenOptions::new().write(true).open_blocking("a").unwrap(), to.clone()),
                (from.clone(), everything().custom_flags(libc::O_APPEND).open_blocking("b").unwrap()),
            ];
            for (from, to) in wrong {
                assert_eq!(from.copy_range(0, &to, 0, 10).await.unwrap_err().errno(), Some(libc::EBADF));
            }
        });
    });
}

#[test]
fn holes_stay_holes_in_a_copy() {
    Simulation::new(1).run(|_| async {
        let (from, to) = (everything().open("a").await.unwrap(), everything().open("b").await.unwrap());
        from.write_at(vec![1; 4096], 1 << 40).await.unwrap();
        from.set_len(1 << 41).await.unwrap();
        to.write_at(vec![2; 8192], 0).await.unwrap();
        assert_eq!(from.copy_range(0, &to, 0, 1 << 50).await.unwrap(), 1 << 41);
        let copied = fs::metadata("b").await.unwrap();
        assert_eq!(copied.size, 1 << 41);
        assert!(copied.allocated <= 8192, "{}", copied.allocated);
        assert_eq!(to.read_at(Vec::with_capacity(4), 4096).await.unwrap(), [0; 4]);
        assert_eq!(to.read_at(Vec::with_capacity(4), 1 << 40).await.unwrap(), [1; 4]);
    });
}

#[test]
fn a_copy_can_fail_as_a_write_does_and_fills_a_full_disk() {
    Simulation::new(1).faults(Faults::none().full_after(12 << 10)).run(|_| async {
        let (from, to) = (everything().open("a").await.unwrap(), everything().open("b").await.unwrap());
        from.write_at(vec![1; 8192], 0).await.unwrap();
        let failed = from.copy_range(0, &to, 0, 8192).await.unwrap_err();
        assert_eq!((failed.errno(), failed.done(), to.size().unwrap()), (Some(libc::ENOSPC), 4096, 4096));
    });
    let errors = (0..50).filter(|seed| {
        let outcome = Simulation::new(*seed).faults(Faults::none().write_errors(0.3)).run(|_| async {
            let (from, to) = (everything().open("a").await.unwrap(), File::create_blocking("b").unwrap());
            from.set_len(10_000).await.unwrap();
            let copied = from.copy_range(0, &to, 0, 10_000).await;
            copied.map_err(|error| error.errno())
        });
        match outcome.into_result().unwrap() {
            Ok(copied) => copied != 10_000,
            Err(errno) => errno == Some(libc::EIO),
        }
    });
    assert!((5..30).contains(&errors.count()));
}

#[test]
fn a_copy_is_volatile_until_the_other_file_is_synced() {
    let found: Vec<_> = (0..200)
        .map(|seed| {
            let synced = Rc::new(Cell::new(false));
            let told = synced.clone();
            let outcome = Simulation::new(seed).power_cut_within(50).run(|_| async move {
                let from = everything().open("a").await.unwrap();
                let to = everything().open("b").await.unwrap();
                from.write_durable_at(vec![1; 4096], 0).await.unwrap();
                from.copy_range(0, &to, 0, 4096).await.unwrap();
                sleep(Duration::from_millis(4)).await;
                to.sync_data().await.unwrap();
                told.set(true);
                until_cut().await;
            });
            let found = outcome.disk().run(|_| content("b")).into_result().unwrap();
            (synced.get(), found == Some(vec![1; 4096]))
        })
        .collect();
    assert!(found.iter().all(|(synced, is_there)| *is_there || !synced));
    assert!(found.contains(&(false, false)) && found.contains(&(false, true)));
}

#[test]
fn preallocated_room_is_taken_at_once_and_is_there_later() {
    Simulation::new(1).faults(Faults::none().full_after(16 << 10)).run(|_| async {
        let file = everything().open("a").await.unwrap();
        let allocated = || async { fs::metadata("a").await.unwrap().allocated };
        file.allocate(AllocateMode::KeepSize, 0, 8192).await.unwrap();
        assert_eq!((file.size().unwrap(), allocated().await), (0, 8192));
        file.allocate(AllocateMode::Extend, 4096, 8192).await.unwrap();
        assert_eq!((file.size().unwrap(), allocated().await), (12_288, 12_288));
        assert_eq!(file.read_at(Vec::with_capacity(20_000), 0).await.unwrap(), [0; 12_288]);
        let other = everything().open("b").await.unwrap();
        let full = other.write_at(vec![1; 8192], 0).await.unwrap_err();
        assert_eq!((full.errno(), other.size().unwrap()), (Some(libc::ENOSPC), 4096));
        let full = file.allocate(AllocateMode::Extend, 0, 16_384).await.unwrap_err();
        assert_eq!(full.errno(), Some(libc::ENOSPC));
        file.write_at(vec![2; 12_288], 0).await.expect("its room is there");
        file.allocate(AllocateMode::ZeroRange, 0, 4096).await.unwrap();
        assert_eq!((file.read_at(vec![1; 2], 4095).await.unwrap(), allocated().await), (vec![0, 2], 12_288));
        file.allocate(AllocateMode::Written, 4096, 4096).await.unwrap();
        assert_eq!(file.read_at(vec![1; 2], 8191).await.unwrap(), [0, 2]);
        file.allocate(AllocateMode::PunchHole, 0, 8192).await.unwrap();
        assert_eq!((file.size().unwrap(), allocated().await), (12_288, 4096));
        other.write_at(vec![1; 12_288], 0).await.expect("the hole has given its room back");
        file.set_len(0).await.unwrap();
        file.allocate(AllocateMode::KeepSize, 0, 4096).await.unwrap();
        file.set_len(0).await.unwrap();
        assert_eq!(allocated().await, 0, "what is behind the end is cut too");
        file.allocate(AllocateMode::KeepSize, 0, 1 << 45).await.unwrap_err();
    });
    Simulation::new(1).run(|_| async {
        let file = everything().open("a").await.unwrap();
        file.allocate(AllocateMode::Extend, 0, 1 << 45).await.unwrap();
        assert_eq!(fs::metadata("a").await.unwrap().allocated, 1 << 45);
    });
}

#[test]
fn a_file_whose_last_handle_is_dropped_on_another_thread_is_closed() {
    Simulation::new(1).faults(Faults::none().full_after(8192)).run(|_| async {
        for name in ["a", "b", "c"] {
            let file = everything().open(name).await.unwrap();
            file.write_at(vec![1; 8192], 0).await.expect("the file before has given its room back");
            fs::remove_file(name).await.unwrap();
            std::thread::spawn(move || drop(file)).join().unwrap();
        }
    });
}

#[test]
fn bad_sectors_fail_until_they_are_written_again() {
    for_each_seed(0..50, bad_sectors_of);
}

fn bad_sectors_of(seed: u64) {
    let written = Simulation::new(seed).run(|_| async {
        let file = everything().open("x").await.unwrap();
        file.write_at(vec![1; 4096], 0).await.unwrap();
        file.sync_all().await.unwrap();
    });
    let faults =
        Faults::none().bad_sectors("x", 1000..1030).bad_sectors("none", 0..1).bad_sectors("x", 3600..9000);
    let broken = written.disk().faults(faults).power_cut_within(100).run(|_| async {
        let file = everything().open("x").await.unwrap();
        let read = |offset| file.read_at(Vec::with_capacity(4096), offset);
        for (offset, done) in [(0, 512), (600, 0), (1023, 0), (1030, 0), (1536, 3584 - 1536)] {
            let failed = read(offset).await.unwrap_err();
            assert_eq!((failed.errno(), failed.done()), (Some(libc::EIO), done), "{offset}");
        }
        let failed = file.write_at(vec![2; 200], 400).await.unwrap_err();
        assert_eq!((failed.errno(), failed.done()), (Some(libc::EIO), 112));
        let failed = file.write_at(vec![2; 100], 1100).await.unwrap_err();
        assert_eq!((failed.errno(), failed.done()), (Some(libc::EIO), 0));
        let to = everything().open("y").await.unwrap();
        assert_eq!(file.copy_range(0, &to, 0, 4096).await.unwrap_err().done(), 512);
        file.write_at(vec![2; 1024], 512).await.unwrap();
        assert_eq!(read(0).await.unwrap_err().done(), 3584);
        file.write_at(vec![2; 512], 3584).await.unwrap();
        assert_eq!(read(0).await.unwrap().len(), 4096);
        file.sync_all().await.unwrap();
    });
    let is_written = broken.result().is_some();
    broken.disk().run(|_| async move {
        let file = everything().open("x").await.unwrap();
        let read = file.read_at(Vec::with_capacity(4096), 512).await;
        assert!(
            is_written == read.is_ok() || read.unwrap().starts_with(&[2; 1024]),
            "what was not written is broken still"
        );
    });
}

#[test]
fn what_was_written_before_a_sector_broke_does_not_mend_it() {
    for cuts in [false, true] {
        let written = Simulation::new(1).run(|_| async {
            everything().open("x").await.unwrap().write_at(vec![1; 1024], 0).await.unwrap();
        });
        let simulation = written.disk().faults(Faults::none().bad_sectors("x", 0..1));
        let outcome = simulation.run(|disk| async move {
            let file = everything().open("x").await.unwrap();
            file.sync_all().await.unwrap();
            fs::sync_dir("/").await.unwrap();
            if cuts {
                disk.cut_power();
                until_cut().await;
            }
        });
        let simulation = outcome.disk();
        let read = simulation
            .run(|_| async { File::open_blocking("x").unwrap().read_at(vec![0; 512], 0).await.is_err() });
        assert!(read.into_result().unwrap(), "{cuts}");
    }
}

#[test]
fn a_lying_drive_loses_writes_or_puts_them_elsewhere() {
    let outcomes = |faults: Faults| {
        let run = |seed| {
            let outcome = Simulation::new(seed).run(|_| async {
                for (name, byte) in [("a", 1), ("b", 2)] {
                    let file = everything().open(name).await.unwrap();
                    file.write_durable_at(vec![byte; 8192], 0).await.unwrap();
                }
            });
            let outcome = outcome.disk().faults(faults.clone()).power_cut_within(1000).run(|_| async {
                let file = everything().open("a").await.unwrap();
                file.write_durable_at(vec![3; 8192], 4096).await.unwrap();
            });
            outcome.result()?;
            let found =
                outcome.disk().run(|_| async { (content("a").await.unwrap(), content("b").await.unwrap()) });
            let (a, b) = found.into_result().unwrap();
            assert_eq!((a.len(), b.len()), (12_288, 8192));
            Some([a[0], a[4096], a[8192], b[0], b[4096]])
        };
        Vec::from_iter((0..100).filter_map(run).collect::<std::collections::BTreeSet<_>>())
    };
    assert_eq!(outcomes(Faults::none()), [[1, 3, 3, 2, 2]]);
    assert_eq!(outcomes(Faults::none().lost_writes(1.0)), [[1, 1, 0, 2, 2]]);
    let misdirected = outcomes(Faults::none().misdirected_writes(1.0));
    assert_eq!(misdirected, [[1, 1, 0, 2, 2], [1, 1, 0, 2, 3], [1, 1, 0, 3, 2], [3, 1, 0, 2, 2]]);
}

#[test]
fn the_kernel_may_lack_memory_and_may_ask_to_try_again() {
    let errnos: std::collections::BTreeSet<_> = (0..100)
        .map(|seed| {
            let faults = Faults::none().memory_errors(0.2).interrupted(0.3);
            let outcome = Simulation::new(seed).faults(faults).run(|_| async {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 10], 0).await.map_err(|error| (error.errno(), error.done())).err()
            });
            outcome.into_result().unwrap()
        })
        .collect();
    assert_eq!(Vec::from_iter(errnos), [None, Some((Some(libc::ENOMEM), 0))]);
    let gives_up = (0..30).map(|seed| {
        let outcome = Simulation::new(seed).faults(Faults::none().interrupted(1.0)).run(|_| async {
            let file = everything().open("x").await.unwrap();
            file.write_at(vec![1; 10], 0).await.unwrap_err().errno()
        });
        outcome.into_result().unwrap()
    });
    assert_eq!(
        Vec::from_iter(gives_up.collect::<std::collections::BTreeSet<_>>()),
        [Some(libc::EINTR), Some(libc::EAGAIN)]
    );
}

#[test]
fn a_long_tail_is_ten_times_as_long_for_a_tenth() {
    let ms = Duration::from_millis(1);
    let outcome = Simulation::new(1).faults(Faults::none().latency(ms..ms).long_tail(1000 * ms)).run(
        |disk| async move {
            let mut took = Vec::new();
            for _ in 0..10_000 {
                let began = disk.elapsed();
                fs::metadata("/").await.unwrap();
                took.push(disk.elapsed() - began);
            }
            took
        },
    );
    let took = outcome.into_result().unwrap();
    let longer = |than: u32| took.iter().filter(|took| **took >= ms * than).count();
    assert_eq!((longer(1), longer(1001)), (10_000, 0));
    assert!((900..1100).contains(&longer(10)), "{}", longer(10));
    assert!((70..130).contains(&longer(100)), "{}", longer(100));
    assert!(longer(1000) > 0);
}

#[test]
fn returned_memory_is_overwritten_in_a_simulation_only() {
    let first_byte_of_returned = || {
        let pool = Pool::new(4 << 20);
        let mut buffer = pool.get(4096).unwrap();
        buffer.extend_from_slice(&[1; 4096]);
        let address = buffer.as_ptr();
        drop(buffer);
        let again = pool.get(4096).unwrap();
        assert_eq!(again.as_ptr(), address);
        // SAFETY: the memory is the buffer's, and was initialised before.
        unsafe { *address }
    };
    assert_eq!(first_byte_of_returned(), 1);
    let in_simulation = Simulation::new(1).run(|_| async { first_byte_of_returned() });
    assert_eq!(in_simulation.into_result(), Some(0xdb));
    assert_eq!(first_byte_of_returned(), 1);
}

#[test]
fn a_panic_of_a_task_without_a_handle_fails_the_run() {
    let run = |is_kept: bool| {
        std::panic::catch_unwind(|| {
            Simulation::new(1).run(|_| async move {
                let handle = ringfile::spawn(async { panic!("on purpose") });
                let kept = is_kept.then_some(handle);
                sleep(Duration::from_secs(1)).await;
                assert!(kept.is_none_or(|handle| handle.is_finished()));
            });
        })
    };
    assert!(run(true).is_ok());
    assert_eq!(run(false).unwrap_err().downcast_ref(), Some(&"on purpose"));
}

#[test]
fn an_operation_that_is_stuck_for_ever_and_no_bad_sector_are_no_panic() {
    let faults = Faults::none().stuck(1.0, Duration::MAX).bad_sectors("x", 5..5);
    Simulation::new(1).faults(faults).run(|_| async {
        let file = everything().open("x").await.unwrap();
        file.write_at(vec![1; 1024], 0).await.unwrap();
        sleep(Duration::MAX).await;
        assert_eq!(file.read_at(Vec::with_capacity(1024), 0).await.unwrap(), [1; 1024]);
    });
}
