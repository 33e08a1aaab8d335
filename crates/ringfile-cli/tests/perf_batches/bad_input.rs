//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use crate::perf;
use crate::support::{file_with, folder, json, run};

/// Arguments that both commands refuse, and a word that the error must contain.
const REFUSED: [(&[&str], &str); 20] = [
    (&["--batch", "0"], "1 to"),
    (&["--batch", ""], "empty"),
    (&["--batch", "64,,10"], "between the commas"),
    (&["--numjobs", "0"], "1 to"),
    (&["--bs", "0"], "at least 1"),
    (&["--bs", "3000", "--direct"], "--bs 4k"),
    (&["--bs", "64k", "--size", "4k"], "smaller blocks"),
    (&["--direct"], "--file on a disk"),
    (&["--cache", "hot"], "warm"),
    (&["--buffers", "registered"], "fixed"),
    (&["--route", "path"], "inline"),
    (&["--engines", "dd"], "fio"),
    (&["--engines", "fio"], "add ringfile"),
    (&["--engines", "ringfile,ringfile-blocking"], "choose from"),
    (&["--numjobs", "1024", "--batch", "32768", "--bs", "1m"], "use fewer"),
    (&["--verify"], "--help"),
    (&["--duration", "99999999999y"], "at most 24h"),
    (&["--warmup", "25h"], "at most 24h"),
    (&["--size", "15e", "--file", "/var/tmp/ringfile-too-large.bin"], "has room for"),
    (&["--size", "4k", "--bs", "4097"], "4097 bytes"),
];

#[test]
fn every_refusal_is_one_line_that_says_what_to_do() {
    for command in ["batch", "multiread"] {
        for (arguments, advice) in REFUSED {
            let finished = run(perf(command).args(arguments));
            assert_eq!(finished.stdout, "", "{command} {arguments:?}");
            let error = finished.fails(2);
            assert!(error.contains(advice), "{command} {arguments:?}: {error}");
        }
    }
    for inflight in ["0", "65", "", "-1"] {
        run(perf("batch").arg(format!("--inflight={inflight}"))).fails(2);
    }
    run(perf("multiread").args(["--inflight", "4"])).fails(2);
    let error =
        run(perf("batch").args("--numjobs 1 --inflight 64 --batch 1000 --bs 512".split(' '))).fails(2);
    assert!(error.contains("64000 reads") && error.contains("leave fio out"), "{error}");
}

#[test]
fn an_existing_file_is_read_and_kept_and_results_are_not_replaced() {
    let folder = folder();
    let contents: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
    let path = file_with(&folder, &contents);
    let out = folder.path().join("out.json");
    for (command, engine) in [("batch", "ringfile-blocking"), ("multiread", "ringfile")] {
        let short = || {
            let mut program = perf(command);
            program.args("--duration 30ms --warmup 0s --numjobs 1 --batch 4".split(' '));
            program.args(["--engines", engine, "--file"]).arg(&path).arg("--json").arg(&out);
            program
        };
        run(&mut short()).ok();
        assert_eq!(json(&out)["params"]["file_created"], false);
        let error = run(&mut short()).fails(2);
        assert!(error.contains("--force"), "{error}");
        run(short().arg("--force")).ok();
        assert!(std::fs::read(&path).expect("still there") == contents);
        std::fs::remove_file(&out).expect("remove");
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_that_names_it() {
    let folder = folder();
    let path = file_with(&folder, &vec![7; 1 << 20]);
    for (command, engines, thread) in [
        ("batch", "ringfile-blocking", "ringfile-0"),
        ("batch", "ringfile-tokio", "tokio-0"),
        ("multiread", "ringfile", "ringfile-0"),
    ] {
        std::fs::write(&path, vec![7; 1 << 20]).expect("write");
        let mut program = perf(command);
        program.args("--duration 1m --warmup 0s --numjobs 1 --batch 8".split(' '));
        program.args(["--engines", engines, "--file"]).arg(&path);
        program.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let child = program.spawn().expect("the program starts");
        crate::support::wait_for_thread(child.id(), thread);
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(8192).expect("truncate");
        let output = child.wait_with_output().expect("the program ends");
        let finished = crate::support::Finished::from(output);
        assert_eq!(finished.code, Some(1), "{finished:#?}");
        let error = finished.stderr.lines().last().expect("an error");
        assert!(
            error.starts_with("error: read at offset ")
                && error.contains(&*path.to_string_lossy())
                && error.contains("truncated"),
            "{error}"
        );
    }
}
