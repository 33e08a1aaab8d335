//! What a run on a simulated disk says of itself: each operation, and what a power cut has left of it; and what a test says
//! when it fails.

use std::collections::BTreeSet;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ringfile::fs;
use ringfile::metrics::OperationKind;
use ringfile::sim::{Disk, Faults, Outcome, Simulation, Strictness, for_each_seed, replay, sleep};
use ringfile::{File, OpenOptions, Result};

use crate::sim::said_by;

fn everything() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// Replaces the numbers of events, which follow from the seed.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split("event ");
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        replaced += "event N";
        replaced += part.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    replaced
}

async fn cut(disk: Disk) {
    disk.cut_power();
    pending().await
}

/// Runs a program and cuts the power, with 100 seeds. Returns all different traces.
fn traces<F: Future<Output = ()>>(strictness: Strictness, program: impl Fn() -> F) -> BTreeSet<String> {
    let trace = |seed| {
        let outcome = Simulation::new(seed).strictness(strictness).run(|disk| async {
            program().await;
            cut(disk).await;
        });
        without_numbers(&outcome.trace().to_string())
    };
    (0..100).map(trace).collect()
}

/// Replaces a file; the bug: nothing makes the content of the new one durable.
async fn replace_without_sync() -> Result<()> {
    let file = everything().open("store.new").await?;
    file.write_at(vec![7; 100], 0).await?;
    fs::rename("store.new", "store").await?;
    fs::sync_dir(".").await
}

const LOST: &str = "\
event N: opening of store.new: durable
event N: write of 100 bytes at 0 of store.new: not durable, lost
event N: renaming of store.new to store: durable
event N: opening of .
event N: syncing of .
(the disk has Strictness::Journal; Strictness::Posix promises less)
";

#[test]
fn a_trace_has_each_operation_and_what_a_power_cut_has_left_of_it() {
    let traces = traces(Strictness::Journal, || async { replace_without_sync().await.unwrap() });
    let kept = LOST.replace("durable, lost", "durable, kept");
    assert_eq!(traces, [kept, LOST.to_owned()].into(), "a sector is whole");
}

#[test]
fn a_trace_says_which_changes_of_names_were_durable() {
    let program = || async {
        fs::create_dir("d").await.unwrap();
        let file = everything().open("d/a").await.unwrap();
        file.write_at(vec![7; 100], 0).await.unwrap();
        file.sync_all().await.unwrap();
        fs::symlink("a", "d/link").await.unwrap();
        fs::hard_link("d/a", "d/b").await.unwrap();
        fs::rename_exchange("d/a", "d/link").await.unwrap();
        file.set_len(50).await.unwrap();
        fs::remove_file("none").await.unwrap_err();
        assert_eq!(file.read_at(vec![0; 200], 0).await.unwrap().len(), 50);
    };
    let some = "\
event N: making the directory d: durable
event N: opening of d/a: durable
event N: write of 100 bytes at 0 of d/a: durable
event N: syncing of d/a
event N: making the symbolic link d/link to a: not durable, kept
event N: linking of d/a to d/b: not durable, kept
event N: exchanging of d/a with d/link: not durable, lost
event N: setting the size of d/a to 50 bytes: not durable, kept
event N: removing of none: No such file or directory (os error 2)
event N: read of 200 bytes at 0 of d/a: 50 bytes
(the disk has Strictness::Journal; Strictness::Posix promises less)
";
    let journal = traces(Strictness::Journal, program);
    assert!(journal.contains(some), "{journal:#?}");
    assert!(journal.iter().all(|trace| trace.contains("opening of d/a: durable\n")), "{journal:#?}");
    // The folder was never synced, so its names may be lost, and the file with them.
    let posix = traces(Strictness::Posix, program);
    let lost = posix.iter().find(|trace| trace.contains("making the directory d: not durable, lost\n"));
    let lost = lost.unwrap_or_else(|| panic!("{posix:#?}"));
    assert!(
        lost.contains("write of 100 bytes at 0 of d/a: lost, since no name leads to the file\n"),
        "{lost}"
    );
    assert!(lost.ends_with("(the disk has Strictness::Posix)\n"), "{lost}");
}

#[test]
fn a_trace_says_what_was_in_flight_when_the_program_returned() {
    let trace = |seed| {
        let outcome = Simulation::new(seed).run(|_| async {
            // A call that waits for nothing is told too.
            let file = everything().open_blocking("x").unwrap();
            file.write_at(vec![1; 5000], 0).await.unwrap();
            file.sync_data().await.unwrap();
            drop(ringfile::spawn(async move { file.write_at(vec![2; 10], 512).await }));
            sleep(Duration::from_nanos(1)).await;
        });
        assert!(format!("{outcome:?}").contains("strictness: Journal"), "{outcome:?}");
        without_numbers(&outcome.trace().to_string())
    };
    let [before, end] = [
        "event N: opening of x: durable\nevent N: write of 5000 bytes at 0 of x: durable\nevent N: syncing the data \
         of x\nin flight: write of 10 bytes at 512 of x: not ",
        "\n(the disk has Strictness::Journal; Strictness::Posix promises less)\n",
    ];
    let found: BTreeSet<String> = (0..100).map(trace).collect();
    assert_eq!(found, ["carried out", "durable"].map(|how| format!("{before}{how}{end}")).into());
}

#[test]
fn a_trace_says_what_a_failed_sync_has_left() {
    let faults = Faults::none().failing(OperationKind::Sync, 1).failing(OperationKind::Write, 2);
    let outcome = Simulation::new(1).faults(faults).run(|_| async {
        let file = everything().open("x").await.unwrap();
        file.write_at(vec![1; 600], 0).await.unwrap();
        file.sync_all().await.unwrap_err();
        file.write_at(vec![1; 600], 600).await.unwrap_err();
    });
    let trace = outcome.trace().to_string();
    assert!(
        trace.contains("write of 600 bytes at 0 of x: not durable, since its sync has failed\n"),
        "{trace}"
    );
    assert!(trace.contains("syncing of x: Input/output error (os error 5)\n"), "{trace}");
    assert!(trace.contains("write of 600 bytes at 600 of x: Input/output error (os error 5)"), "{trace}");
}

#[test]
fn a_trace_has_the_last_ten_thousand_operations() {
    let outcome = Simulation::new(1).run(|_| async {
        for _ in 0..10_007 {
            fs::metadata("/").await.unwrap();
        }
    });
    let trace = outcome.trace().to_string();
    assert!(trace.starts_with("(7 others)\nevent "), "{:?}", &trace[..100]);
    assert_eq!(trace.matches("reading the metadata of /\n").count(), 10_000);
}

/// Fails if a file is there without its content, or not there although the program has returned.
fn check(outcome: &Outcome<Result<()>>) {
    let is_done = matches!(outcome.result(), Some(Ok(())));
    outcome.disk().run(|_| async move {
        match File::open_blocking("store") {
            Ok(file) => assert!(file.read_at(vec![0; 200], 0).await.unwrap() == [7; 100], "it is damaged"),
            Err(_) => assert!(!is_done, "it is lost"),
        }
    });
}

fn test_replacement(seed: u64) {
    check(&Simulation::new(seed).power_cut_within(12).run(|_| replace_without_sync()));
}

const LOST_BELOW: &str = "\n        event N: write of 100 bytes at 0 of store.new: not durable, lost\n";

#[test]
fn a_failure_says_below_its_power_cut_which_operations_were_lost() {
    let name = "a_failure_says_below_its_power_cut_which_operations_were_lost";
    let Some(said) = said_by(name, || for_each_seed(0..2000, test_replacement)) else { return };
    println!("{said}");
    let said = without_numbers(&said);
    let (before, below) = said.split_once("the power is cut ").expect(&said);
    assert!(below.contains(LOST_BELOW) && !before.contains("store.new"), "once: {said}");
    assert!(
        below.contains("\n        (the disk has Strictness::Journal; Strictness::Posix promises less)\n"),
        "{said}"
    );
    assert!(below.contains("\n    run 2 fails in event N\n        event N: opening of store\n"), "{said}");
    assert!(said.lines().all(|line| !line.contains("event N") || line.len() <= 100), "{said}");
}

#[test]
fn a_replay_says_what_was_lost_too() {
    // Without a fault the power is cut at the end.
    let fails = |seed| replay(seed, "", test_replacement);
    let seed = (0..2000).find(|seed| catch_unwind(|| fails(*seed)).is_err()).unwrap();
    let Some(said) = said_by("a_replay_says_what_was_lost_too", || fails(seed)) else { return };
    let said = without_numbers(&said);
    assert!(
        said.contains(&format!("seed {seed} fails:\n    the power is cut at the end of run 1\n")),
        "{said}"
    );
    assert!(said.contains(LOST_BELOW), "{said}");
}

#[test]
fn a_failure_in_a_loop_says_what_was_lost_long_before_the_power_cut() {
    let name = "a_failure_in_a_loop_says_what_was_lost_long_before_the_power_cut";
    let said = said_by(name, || {
        for seed in 0..2000 {
            let outcome = Simulation::new(seed).run(|disk| async {
                let other = everything().open("other").await?;
                let file = everything().open("store").await?;
                file.write_at(vec![7; 100], 0).await?;
                fs::sync_dir(".").await?;
                for offset in 0..30 {
                    other.write_durable_at(vec![1], offset).await?;
                }
                cut(disk).await;
                Ok(())
            });
            check(&outcome);
        }
    });
    let Some(said) = said else { return };
    println!("{said}");
    let said = without_numbers(&said);
    let (own, before) =
        said.split_once("the power was cut before, in run 1 on its disk, after event N:\n").expect(&said);
    assert!(
        own.contains("a simulation failed: seed ") && own.contains("\n    event N: opening of store\n"),
        "{said}"
    );
    let lost =
        "    (2 others)\n    event N: write of 100 bytes at 0 of store: not durable, lost\n    (22 others)\n";
    assert!(before.starts_with(lost), "{said}");
    assert_eq!(before.matches("write of 1 bytes at ").count(), 10, "{said}");
}

#[test]
fn seeds_that_pass_with_the_usual_strictness_alone_are_told_of_the_other() {
    let name = "seeds_that_pass_with_the_usual_strictness_alone_are_told_of_the_other";
    // The bug: the folder is not synced.
    let test = |seed, strictness| {
        let simulation = Simulation::new(seed).power_cut_within(30).strictness(strictness);
        let outcome = simulation.run(|_| async {
            let file = everything().open("store").await?;
            file.write_at(vec![7; 100], 0).await?;
            file.sync_all().await
        });
        let is_done = matches!(outcome.result(), Some(Ok(())));
        let found =
            outcome.disk().run(|_| async { File::open_blocking("store").is_ok() }).into_result().unwrap();
        assert!(found || !is_done, "it is lost");
    };
    let Some(said) = said_by(name, || {
        for_each_seed(0..500, |seed| test(seed, Strictness::Journal));
        for_each_seed(0..500, |seed| test(seed, Strictness::Posix));
    }) else {
        return;
    };
    let hint = ", all disks with Strictness::Journal; Strictness::Posix promises less";
    let ends = said.lines().filter(|line| line.contains(" seeds, "));
    assert_eq!(ends.map(|line| line.ends_with(hint)).collect::<Vec<_>>(), [true, false], "{said}");
    assert!(said.contains(": opening of store: not durable, lost\n"), "{said}");
    assert!(
        said.contains(": write of 100 bytes at 0 of store: lost, since no name leads to the file\n"),
        "{said}"
    );
}

#[cfg(feature = "tokio")]
mod in_tokio {
    use std::io::ErrorKind;

    use super::*;
    use crate::support::must_end;
    use ringfile::Batch;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn operations_in_a_runtime_inside_the_program_fail() {
        must_end("the simulated program", || {
            Simulation::new(1).run(|_| async {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 10], 0).await.unwrap();
                let errors = runtime().block_on(async {
                    let written = file.write_at(vec![2; 10], 0).await.unwrap_err();
                    let opened = everything().open("y").await.unwrap_err();
                    let mut batch = Batch::new();
                    batch.add(file.read_at(Vec::with_capacity(10), 0));
                    let read = batch.await.remove(0).result.unwrap_err();
                    [written.into_parts().0, opened, read]
                });
                for error in errors {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(
                        error.to_string().contains("a tokio runtime runs inside the simulated"),
                        "{error}"
                    );
                }
                let found = file.read_at(vec![0; 20], 0).await.unwrap();
                assert_eq!(found, [1; 10], "the program goes on");
            });
        });
    }

    #[test]
    fn tasks_and_times_cannot_be_awaited_in_a_runtime_inside_the_program() {
        must_end("the simulated program", || {
            Simulation::new(1).run(|_| async {
                let mut task = ringfile::spawn(async { 7 });
                let error = runtime().block_on(&mut task).unwrap_err();
                assert!(matches!(error, ringfile::runtime::JoinError::WouldBlock), "{error}");
                assert_eq!(task.await.unwrap(), 7, "the program goes on");
                let sleeps = || runtime().block_on(sleep(Duration::from_millis(1)));
                let panic = catch_unwind(AssertUnwindSafe(sleeps)).unwrap_err();
                let message = panic.downcast_ref::<&str>().unwrap();
                assert!(message.contains("a tokio runtime inside the simulated"), "{message}");
            });
        });
    }

    #[test]
    fn operations_fail_while_the_program_has_entered_a_runtime() {
        Simulation::new(1).run(|_| async {
            let runtime = runtime();
            let entered = runtime.enter();
            let error = everything().open("x").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            drop(entered);
            everything().open("x").await.unwrap();
        });
    }

    #[test]
    fn a_simulation_may_run_inside_a_runtime() {
        let found = runtime().block_on(async {
            let outcome = Simulation::new(1).run(|_| async {
                let file = everything().open("x").await.unwrap();
                file.write_at(vec![1; 10], 0).await.unwrap();
                file.read_at(vec![0; 20], 0).await.unwrap()
            });
            outcome.into_result()
        });
        assert_eq!(found.unwrap(), [1; 10]);
    }
}
