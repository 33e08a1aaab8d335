//! The number of operations and the blocks visited, counted for every engine of `perf file`, `perf batch` and `perf
//! multiread`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::perf;
use crate::support::{disk_folder, folder, installed, json as read, ring_is_forbidden, run, runs, skip};

/// The commands, with all engines except fio.
const ALL: [(&str, &str); 3] = [
    ("file", "--rw randread --iodepth 5 --buffers normal,fixed --executor ringfile,tokio --against pread"),
    ("batch", "--batch 7 --inflight 3 --engines ringfile-blocking,ringfile-tokio,ringfile-queue"),
    ("multiread", "--bs 4k --batch 7,600 --engines ringfile,two-rings,submit-only,pread"),
];

/// Returns the commands with all engines, including fio if it is installed.
fn all() -> Vec<(&'static str, Vec<String>)> {
    let fio = if installed("fio") { "" } else { "no" };
    let with_fio = |(command, options): (&'static str, &str)| {
        let fio = match (command, fio) {
            (_, "no") => "",
            ("file", _) => ",fio,fio-batch,fio-psync",
            (_, _) => ",fio",
        };
        (command, format!("{options}{fio}").split(' ').map(String::from).collect())
    };
    ALL.map(with_fio).into()
}

#[test]
fn each_block_is_read_once_by_all_threads_together() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("once.bin"), folder.path().join("out.json"));
    for (command, options) in all() {
        // 1001 blocks, which neither the threads nor the batches divide evenly.
        let mut program = perf(command);
        program
            .args("--size 4004k --numjobs 1,3 --cache cold --io-size all --force".split(' '))
            .args(options);
        let finished = run(program.arg("--file").arg(&path).arg("--json").arg(&out)).ok();
        assert!(finished.stdout.contains("|  ops|"), "{}", finished.stdout);
        let results = read(&out);
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
    let folder = folder();
    let out = folder.path().join("out.json");
    for (command, options) in all() {
        for (access, size) in [("any", "8m"), ("any", "400k"), ("once", "1m")] {
            let mut program = perf(command);
            // 101 blocks, which neither the threads nor the batches divide evenly; more than a file of 400 KiB has.
            program.args("--io-size 404k --numjobs 1,3 --warmup 1ms --cache warm --force".split(' '));
            program.args(["--size", size, "--access", access]).args(&options);
            run(program.arg("--json").arg(&out)).ok();
            let results = read(&out);
            assert_eq!(
                (&results["params"]["io_size_bytes"], &results["params"]["duration_s"]),
                (&json!(413_696), &json!(0.0))
            );
            for run in runs(&results) {
                assert_eq!((&run["ops"], &run["io_size_bytes"]), (&json!(101), &json!(413_696)), "{run}");
            }
        }
    }
}

#[test]
fn amounts_of_sequential_access_and_writes_are_exact_too() {
    let folder = folder();
    let out = folder.path().join("out.json");
    for extra in [&[][..], &["--verify"]] {
        let mut program = perf("file");
        program
            .args("--size 1m --io-size 3m --numjobs 3 --iodepth 4 --warmup 1ms --force".split(' '))
            .args(extra);
        program.args("--rw read,write,randrw,randwrite --against pread --json".split(' '));
        run(program.arg(&out)).ok();
        assert!(runs(&read(&out)).iter().all(|run| run["ops"] == 768), "{:?}", runs(&read(&out)));
    }
}

#[test]
fn a_cold_run_ends_when_all_blocks_were_read() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("early.bin"), folder.path().join("out.json"));
    for (command, options) in all() {
        let mut program = perf(command);
        program.args("--size 1m --numjobs 2 --cache cold --duration 24h --force".split(' ')).args(options);
        let finished = run(program.arg("--file").arg(&path).arg("--json").arg(&out)).ok();
        assert!(finished.stdout.contains("access once: each thread visits"), "{}", finished.stdout);
        for run in runs(&read(&out)) {
            assert_eq!((&run["ops"], &run["io_size_bytes"]), (&json!(256), &Value::Null), "{run}");
        }
    }
}

#[test]
fn what_was_not_cold_is_not_set_in_per_cent_of_others() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("hits.bin"), folder.path().join("out.json"));
    for (access, compared) in [("any", false), ("once", true)] {
        let mut program = perf("multiread");
        program.args("--size 1m --bs 4k --numjobs 1 --batch 8 --cache cold --io-size 1m --force".split(' '));
        program.args(["--engines", "ringfile,pread", "--access", access, "--file"]).arg(&path);
        let finished = run(program.arg("--json").arg(&out)).ok();
        let results = read(&out);
        if runs(&results).iter().any(|run| run["cache_hits"].is_null()) {
            skip(
                "what_was_not_cold_is_not_set_in_per_cent_of_others",
                "this kernel does not report what is cached",
            );
            return;
        }
        // Of 256 random blocks out of 256, more than a third repeat another one.
        let hits = |run: &Value| run["cache_hits"].as_f64().expect("checked above") > 0.2;
        assert!(runs(&results).iter().all(|run| hits(run) != compared), "{results}");
        assert_eq!(finished.stdout.contains("|ringfile/pread"), compared, "{}", finished.stdout);
        assert_eq!(finished.stdout.contains("operations picked blocks again; use --access once"), !compared);
        let row = finished.stdout.lines().find(|line| line.starts_with("|ringfile")).expect("a row");
        let titles = finished.stdout.lines().next().expect("titles").split('|').map(str::trim);
        let cells: Vec<(&str, &str)> = titles.zip(row.split('|').map(str::trim)).collect();
        let per_cent = cells.iter().find(|(title, _)| *title == "% of pread").expect("a column");
        assert_eq!(per_cent.1 == "-", !compared, "{cells:?}");
    }
}

/// Runs a command with a fio that only records its arguments, and returns them, one line per job.
fn asked_of_fio(folder: &Path, command: &str, options: &str) -> Vec<String> {
    let (fio, asked) = (folder.join("fio"), folder.join("asked"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo fio-3 && exit\nprintf '%s ' \"$@\" >> {0}\necho >> {0}\n",
        asked.display()
    );
    std::fs::write(&fio, script).expect("write");
    std::fs::set_permissions(&fio, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    std::fs::write(&asked, "").expect("write");
    let search = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut program = perf(command);
    program.env("PATH", search).args(options.split(' ')).arg("--file").arg(folder.join("data.bin"));
    // A fio that prints nothing is left out.
    run(&mut program).ok();
    std::fs::read_to_string(&asked).expect("read").lines().map(str::to_string).collect()
}

#[test]
fn fio_is_asked_to_do_the_same() {
    let folder = disk_folder();
    let asked = |command, options| asked_of_fio(folder.path(), command, options);
    let batch = asked(
        "batch",
        "--size 404k --numjobs 2 --batch 4 --inflight 2 --io-size all --engines ringfile-queue,fio \
         --iodepth-batch-submit 4 --iodepth_batch_complete 3 --iodepth-low 5",
    );
    for part in [
        " --rw=randread --bs=4096 --direct=0 --ioengine=io_uring --iodepth=8 --iodepth_batch_submit=4 \
         --iodepth_batch_complete_min=3 --iodepth_low=5 ",
        " --name=ringfile-0 --numjobs=1 --size=208896 --offset=0 --offset_increment=208896 --io_size=208896 \
         --name=ringfile-1 --numjobs=1 --size=204800 --offset=208896 --offset_increment=204800 --io_size=204800 ",
    ] {
        assert!(batch[0].contains(part), "{part} in {batch:?}");
    }
    let cold = asked(
        "file",
        "--size 1m --numjobs 1 --iodepth 4 --rw randread --cache cold --duration 20ms --against fio",
    );
    assert!(cold[0].contains(" --runtime=20ms ") && cold[0].contains(" --offset=0 "), "{cold:?}");
    assert!(!cold[0].contains("norandommap") && !cold[0].contains("time_based"), "{cold:?}");
    let warm = asked(
        "file",
        "--size 1m --numjobs 1 --iodepth 4 --rw randread --duration 20ms --against fio,fio-psync",
    );
    for job in &warm {
        assert!(job.contains(" --time_based --runtime=20ms --norandommap "), "{job}");
        assert!(!job.contains("offset"), "{job}");
    }
}

#[test]
fn settings_of_the_queue_are_kept_and_each_call_is_counted() {
    if ring_is_forbidden() {
        skip("settings_of_the_queue_are_kept_and_each_call_is_counted", "there is no ring");
        return;
    }
    let folder = disk_folder();
    let (path, out) = (folder.path().join("queue.bin"), folder.path().join("out.json"));
    let mut program = perf("batch");
    program
        .args("--size 2m --numjobs 1 --batch 8 --inflight 4 --route ring --io-size all --force".split(' '));
    program.args("--iodepth-batch-submit 4 --iodepth-batch-complete 2 --iodepth-low 16".split(' '));
    program.args("--engines ringfile-queue,ringfile-blocking --file".split(' ')).arg(&path);
    let finished = run(program.arg("--json").arg(&out)).ok();
    assert!(finished.stdout.contains("|io_uring_enter"), "{}", finished.stdout);
    let results = read(&out);
    let params = &results["params"];
    for (setting, figure) in [("submit", 4), ("complete", 2)] {
        assert_eq!(params[format!("iodepth_batch_{setting}")], figure);
    }
    assert_eq!(params["iodepth_low"], 16);
    for run in runs(&results) {
        let sum = |what: &str| {
            let counts = run["enter_sizes"][what].as_array().expect("a list");
            (counts.iter().filter_map(Value::as_u64).sum::<u64>(), counts.clone())
        };
        let enters = run["enters"].as_u64().expect("a count");
        assert_eq!((sum("submitted").0, sum("collected").0), (enters, enters), "{run}");
        if run["engine"] == "ringfile-queue" {
            // Four together, and the operation that wakes the ring, but never eight.
            assert!(sum("submitted").1[4..].iter().all(|count| *count == 0), "{run}");
            assert!(sum("submitted").1[3].as_u64() > Some(512 / 4 / 2), "{run}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (command, options, part) in [
        ("file", "--io-size 10000", "no whole number of blocks"),
        ("file", "--io-size 4k --numjobs 2", "not a block for each of 2 threads"),
        ("batch", "--io-size 2m", "add --access any"),
        ("file", "--io-size 2m --access once", "add --access any"),
        ("file", "--verify --access once", "leave out --access once"),
        ("file", "--io-size 1m --duration 1s", "cannot be used with"),
        ("batch", "--io-size none", "not a size"),
        ("batch", "--iodepth-low 0", "1 to 32768"),
    ] {
        let mut program = perf(command);
        program.args("--size 1m --rounds 1".split(' ')).args(options.split(' '));
        let said = run(&mut program).fails(2);
        assert!(said.contains(part), "{command} {options}: {said}");
    }
}
