//! The number of operations and the blocks visited, counted for every engine of `perf file`, `perf batch` and `perf
//! multiread`.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    cells, disk_folder, installed, measured, ring_is_forbidden, ringfile, run, runs, script, skip,
};

/// The commands, with all engines except fio, whose runs take ten times as long.
const ALL: [&str; 3] = [
    "file --rw randread --iodepth 5 --buffers normal,fixed --against pread",
    "batch --batch 7 --inflight 3 --engines ringfile-blocking,ringfile-tokio,ringfile-queue",
    "multiread --bs 4k --batch 7,600 --engines ringfile,two-rings,submit-only,pread",
];

/// Returns the commands with all engines, including fio if it is installed.
fn all() -> [String; 3] {
    let has_fio = installed("fio");
    ALL.map(|command| match (has_fio, command.starts_with("file")) {
        (false, _) => format!("perf {command}"),
        (true, true) => format!("perf {command},fio,fio-batch,fio-psync"),
        (true, false) => format!("perf {command},fio"),
    })
}

#[test]
fn each_block_is_read_once_by_all_threads_together() {
    let folder = disk_folder();
    for command in all() {
        // 1001 blocks, which neither the threads nor the batches divide evenly.
        let arguments = format!("{command} --size 4004k --numjobs 1,3 --cache cold --io-size all --file");
        let (finished, results) = measured(ringfile(&arguments).arg(folder.path().join("once.bin")));
        finished.says(&["|  ops|"]);
        assert_eq!(results["params"]["io_size_bytes"], 1001 * 4096);
        for run in runs(&results) {
            assert_eq!((&run["ops"], &run["access"]), (&json!(1001), &json!("once")), "{run}");
            // There are as many reads as blocks, and each brought in a different page: each block was read once.
            assert!(run["cache_hits"].is_null() || run["cache_hits"] == 0.0, "{run}");
        }
    }
}

#[test]
fn an_amount_is_done_to_the_last_operation() {
    let without_fio = || ALL.map(|command| format!("perf {command}"));
    // 101 blocks, which neither the threads nor the batches divide evenly; more than a file of 400 KiB has.
    for (commands, work) in [
        (without_fio(), "--access any --size 8m"),
        (all(), "--access any --size 400k"),
        (without_fio(), "--access once --size 1m"),
    ] {
        for command in commands {
            let options = "--io-size 404k --numjobs 1,3 --warmup 1ms --cache warm";
            let (_, results) = measured(&mut ringfile(&format!("{command} {options} {work}")));
            let params = &results["params"];
            assert_eq!((&params["io_size_bytes"], &params["duration_s"]), (&json!(413_696), &json!(0.0)));
            for run in runs(&results) {
                assert_eq!((&run["ops"], &run["io_size_bytes"]), (&json!(101), &json!(413_696)), "{run}");
            }
        }
    }
}

#[test]
fn amounts_of_sequential_access_and_writes_are_exact_too() {
    for extra in ["", " --verify"] {
        let (_, results) = measured(&mut ringfile(&format!(
            "perf file --size 1m --io-size 3m --numjobs 3 --iodepth 4 --warmup 1ms \
             --rw read,write,randrw,randwrite --against pread{extra}"
        )));
        assert!(runs(&results).iter().all(|run| run["ops"] == 768), "{results}");
    }
}

#[test]
fn a_cold_run_ends_when_all_blocks_were_read() {
    let folder = disk_folder();
    for command in all() {
        let arguments = format!("{command} --size 1m --numjobs 2 --cache cold --duration 24h --file");
        let (finished, results) = measured(ringfile(&arguments).arg(folder.path().join("early.bin")));
        finished.says(&["access once: each thread visits"]);
        for run in runs(&results) {
            assert_eq!((&run["ops"], &run["io_size_bytes"]), (&json!(256), &Value::Null), "{run}");
        }
    }
}

#[test]
fn a_run_that_found_data_cached_is_not_compared_with_cold_ones() {
    let folder = disk_folder();
    for (access, compared) in [("any", false), ("once", true)] {
        let options = "--size 1m --bs 4k --numjobs 1 --batch 8 --cache cold --io-size 1m";
        let arguments = format!("perf multiread {options} --engines ringfile,pread --access {access} --file");
        let (finished, results) = measured(ringfile(&arguments).arg(folder.path().join("hits.bin")));
        if runs(&results).iter().any(|run| run["cache_hits"].is_null()) {
            return skip("this kernel does not report what is cached");
        }
        // Of 256 random blocks out of 256, more than a third repeat another one.
        let hits = |run: &Value| run["cache_hits"].as_f64().expect("checked above") > 0.2;
        assert!(runs(&results).iter().all(|run| hits(run) != compared), "{results}");
        assert_eq!(finished.stdout.contains("|ringfile/pread"), compared, "{}", finished.stdout);
        assert_eq!(finished.stdout.contains("operations picked blocks again; use --access once"), !compared);
        let cells = cells(&finished.stdout, "|ringfile");
        let per_cent = cells.iter().find(|(title, _)| *title == "% of pread").expect("a column");
        assert_eq!(per_cent.1 == "-", !compared, "{cells:?}");
    }
}

/// Runs a command with a fio that only records its arguments, and returns them, one line per job.
fn asked_of_fio(folder: &Path, command: &str) -> Vec<String> {
    let asked = folder.join("asked");
    let to = asked.display();
    script(
        &folder.join("fio"),
        &format!("[ \"$1\" = --version ] && echo fio-3 && exit\nprintf '%s ' \"$@\" >> {to}\necho >> {to}"),
    );
    std::fs::write(&asked, "").expect("write");
    let search = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut program = ringfile(&format!("perf {command} --file"));
    // A fio that prints nothing is left out.
    run(program.env("PATH", search).arg(folder.join("data.bin"))).ok();
    std::fs::read_to_string(&asked).expect("read").lines().map(str::to_string).collect()
}

#[test]
fn fio_is_asked_to_do_the_same() {
    let folder = disk_folder();
    let asked = |command| asked_of_fio(folder.path(), command);
    let batch = asked(
        "batch --size 404k --numjobs 2 --batch 4 --inflight 2 --io-size all --engines ringfile-queue,fio",
    );
    for part in [
        " --rw=randread --bs=4096 --direct=0 --ioengine=io_uring --iodepth=8 ",
        " --name=ringfile-0 --numjobs=1 --size=208896 --offset=0 --offset_increment=208896 --io_size=208896 \
         --name=ringfile-1 --numjobs=1 --size=204800 --offset=208896 --offset_increment=204800 --io_size=204800 ",
    ] {
        assert!(batch[0].contains(part), "{part} in {batch:?}");
    }
    let cold = asked(
        "file --size 1m --numjobs 1 --iodepth 4 --rw randread --cache cold --duration 20ms --against fio",
    );
    assert!(cold[0].contains(" --runtime=20ms ") && cold[0].contains(" --offset=0 "), "{cold:?}");
    assert!(!cold[0].contains("norandommap") && !cold[0].contains("time_based"), "{cold:?}");
    let warm =
        asked("file --size 1m --numjobs 1 --iodepth 4 --rw randread --duration 20ms --against fio,fio-psync");
    for job in &warm {
        assert!(job.contains(" --time_based --runtime=20ms --norandommap "), "{job}");
        assert!(!job.contains("offset"), "{job}");
    }
}

#[test]
fn each_call_of_a_queue_and_of_batches_is_counted() {
    if ring_is_forbidden() {
        return skip("there is no ring");
    }
    let folder = disk_folder();
    let mut program = ringfile(
        "perf batch --size 2m --numjobs 1 --batch 8 --inflight 4 --route ring --io-size all \
         --engines ringfile-queue,ringfile-blocking --file",
    );
    let (finished, results) = measured(program.arg(folder.path().join("queue.bin")));
    finished.says(&["|io_uring_enter"]);
    for run in runs(&results) {
        let sum = |what: &str| {
            let counts = run["enter_sizes"][what].as_array().expect("a list");
            counts.iter().filter_map(Value::as_u64).sum::<u64>()
        };
        let enters = run["enters"].as_u64().expect("a count");
        assert_eq!((sum("submitted"), sum("collected")), (enters, enters), "{run}");
    }
}

#[test]
fn work_that_does_not_fit_is_refused() {
    for (command, options, part) in [
        ("file", "--io-size 10000", "no whole number of blocks"),
        ("file", "--io-size 4k --numjobs 2", "not a block for each of 2 threads"),
        ("batch", "--io-size 2m", "add --access any"),
        ("file", "--io-size 2m --access once", "add --access any"),
        ("file", "--verify --access once", "leave out --access once"),
        ("file", "--io-size 1m --duration 1s", "cannot be used with"),
        ("batch", "--io-size none", "not a size"),
    ] {
        run(&mut ringfile(&format!("perf {command} --size 1m --rounds 1 {options}"))).fails_with(2, &[part]);
    }
}
