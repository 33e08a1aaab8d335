//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use crate::support::{end, file_with, folder, json, ringfile, run, start, truncate, wait_for_thread};

/// Arguments that all three commands refuse, and a word that the error must contain.
const REFUSED_BY_ALL: [(&[&str], &str); 13] = [
    (&["--numjobs", "0"], "1 to"),
    (&["--bs", "0"], "at least 1"),
    (&["--bs", "64k", "--size", "4k"], "smaller blocks"),
    (&["--direct"], "--file on a disk"),
    (&["--cache", "hot"], "warm"),
    (&["--buffers", "registered"], "fixed"),
    (&["--route", "path"], "inline"),
    (&["--duration", "99999999999y"], "at most 24h"),
    (&["--warmup", "25h"], "at most 24h"),
    (&["--size", "15e", "--file", "/var/tmp/ringfile-too-large.bin"], "has room for"),
    (&["--size", "1000000g"], "use a smaller --size"),
    (&["--json", "-"], "name a file"),
    (&["--size", "4k", "--bs", "4097"], "4097 bytes"),
];

/// The same for the commands that read batches.
const REFUSED: [(&[&str], &str); 9] = [
    (&["--cache", "mixed"], "choose from warm, cold, keep"),
    (&["--batch", "0"], "1 to"),
    (&["--batch", ""], "empty"),
    (&["--batch", "64,,10"], "between the commas"),
    (&["--engines", "dd"], "fio"),
    (&["--engines", "fio"], "add ringfile"),
    (&["--engines", "ringfile,ringfile-blocking"], "choose from"),
    (&["--numjobs", "1024", "--batch", "32768", "--bs", "1m"], "use fewer"),
    (&["--verify"], "--help"),
];

#[test]
fn every_refusal_is_one_line_that_says_what_to_do() {
    for (command, own) in [("perf batch", &REFUSED[..]), ("perf multiread", &REFUSED), ("perf file", &[])] {
        for &(arguments, advice) in REFUSED_BY_ALL.iter().chain(own) {
            let finished = run(ringfile(command).args(arguments));
            assert_eq!(finished.stdout, "", "{command} {arguments:?}");
            finished.fails_with(2, &[advice]);
        }
    }
    for inflight in ["0", "65", "", "-1"] {
        run(ringfile("perf batch").arg(format!("--inflight={inflight}"))).fails(2);
    }
    run(&mut ringfile("perf multiread --inflight 4")).fails(2);
    run(&mut ringfile("perf batch --numjobs 1 --inflight 64 --batch 1000 --bs 512"))
        .fails_with(2, &["64000 reads", "leave fio out"]);
}

#[test]
fn an_existing_file_is_read_and_kept_and_results_are_not_replaced() {
    let folder = folder();
    let contents: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
    let path = file_with(&folder, &contents);
    for command in [
        "batch --batch 4 --engines ringfile-blocking",
        "multiread --batch 4 --engines ringfile",
        "file --iodepth 2 --rw randread",
    ] {
        let out = folder.path().join(command);
        let short = |force: &str| {
            let options = "--duration 30ms --warmup 0s --numjobs 1";
            let mut program = ringfile(&format!("perf {command} {options}{force} --file"));
            run(program.arg(&path).arg("--json").arg(&out))
        };
        let finished = short("").ok();
        assert!(finished.stderr.contains("1 MiB"), "says that it is smaller than asked: {}", finished.stderr);
        let results = json(&out);
        assert_eq!((&results["schema"], &results["params"]["size_bytes"]), (&1.into(), &(1 << 20).into()));
        assert_eq!(results["params"]["file_created"], false);
        let saved = std::fs::read(&out).expect("still there");
        short("").fails_with(2, &["--force"]);
        // The permission to write to the measured file permits nothing else.
        short(" --overwrite").fails(2);
        assert!(std::fs::read(&out).expect("still there") == saved);
        short(" --force").ok();
        assert!(std::fs::read(&path).expect("still there") == contents);
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_that_names_it() {
    let folder = folder();
    let path = file_with(&folder, b"");
    for (arguments, thread) in [
        ("batch --engines ringfile-blocking", "ringfile-0"),
        ("batch --engines ringfile-tokio", "tokio-0"),
        ("multiread --engines ringfile", "ringfile-0"),
        ("file --size 1m --iodepth 4 --rw randread", "ringfile-0"),
        // While it is warming up.
        ("file --size 1m --iodepth 4 --rw randread --warmup 1s", "ringfile-0"),
    ] {
        std::fs::write(&path, vec![7; 1 << 20]).expect("write");
        let batch = if arguments.starts_with("file") { "" } else { "--batch 8 " };
        let warmup = if arguments.contains("--warmup") { "" } else { "--warmup 0s " };
        let options = format!("--duration 1m --numjobs 1 {warmup}{batch}--file");
        let child = start(ringfile(&format!("perf {arguments} {options}")).arg(&path));
        wait_for_thread(child.id(), thread);
        truncate(&path, 8192);
        let finished = end(child);
        assert_eq!(finished.code, Some(1), "{finished:#?}");
        let error = finished.stderr.lines().last().expect("an error");
        assert!(error.starts_with("error: read at offset ") && error.contains("truncated"), "{error}");
        assert!(error.contains(&*path.to_string_lossy()), "{error}");
    }
}
