//! The number of operations and the blocks visited, counted for every engine of `perf file`, `perf batch` and `perf
//! multiread`.

use std::path::Path;

use serde_json::json;

use crate::support::{disk_folder, installed, measured, ringfile, run, runs, script};

/// The commands, with all engines except fio, whose runs take ten times as long.
const ALL: [&str; 3] = [
    "file --rw randread --iodepth 5 --buffers normal,fixed --against pread",
    "batch --batch 7 --inflight 3 --engines ringfile-blocking,ringfile-tokio,ringfile-queue",
    "multiread --bs 4k --batch 7,600 --engines ringfile,by-hand,pread",
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
        let arguments = format!("{command} --size 4004k --numjobs 1,3 --cache cold --duration 24h --file");
        let (finished, results) = measured(ringfile(&arguments).arg(folder.path().join("once.bin")));
        finished.says(&["|  ops|"]);
        for run in runs(&results) {
            assert_eq!((&run["ops"], &run["access"]), (&json!(1001), &json!("once")), "{run}");
            // There are as many reads as blocks, and each brought in a different page: each block was read once.
            assert!(run["cache_hits"].is_null() || run["cache_hits"] == 0.0, "{run}");
        }
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
        "batch --size 404k --numjobs 2 --batch 4 --inflight 2 --duration 20ms --engines ringfile-queue,fio",
    );
    for part in [
        " --rw=randread --bs=4096 --direct=0 --runtime=20ms --ioengine=io_uring --iodepth=8 ",
        " --name=ringfile-0 --numjobs=1 --size=208896 --offset=0 --offset_increment=208896 \
         --name=ringfile-1 --numjobs=1 --size=204800 --offset=208896 --offset_increment=204800 ",
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
        assert!(job.contains(" --runtime=20ms --time_based --norandommap "), "{job}");
        assert!(!job.contains("offset"), "{job}");
    }
}
