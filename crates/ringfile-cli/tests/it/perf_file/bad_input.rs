//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::{file_with, folder, ringfile, run, short, skip};

/// Arguments that are refused, beside those that all commands refuse, and a word that the error must contain.
const REFUSED: [(&[&str], &str); 26] = [
    (&["--size", "0"], "at least 1"),
    (&["--size", "big"], "powers of 1024"),
    (&["--rw", ""], "empty"),
    (&["--rw", "randread,,read"], "between the commas"),
    (&["--rw", "sideways"], "randwrite"),
    (&["--against", "dd"], "fio-psync"),
    (&["--cache", "mixed,cold"], "stands alone"),
    (&["--cache", "mixed", "--against", "pread"], "leave out --against"),
    (&["--cache", "mixed", "--open", "direct"], "leave out --open"),
    (&["--cache", "mixed", "--size", "1m"], "256m"),
    (&["--cache", "mixed", "--numjobs", "1"], "leave out --numjobs"),
    (&["--cache", "mixed", "--rw", "randread,randwrite"], "leave out --rw"),
    (&["--cache", "mixed", "--buffers", "normal"], "leave out --buffers"),
    (&["--cache", "mixed", "--verify"], "leave out --verify"),
    (&["--route", ""], "empty"),
    (&["--route", "auto,aio"], "--direct"),
    (&["--numjobs", ""], "empty"),
    (&["--iodepth", "0"], "1 to"),
    (&["--iodepth=-1"], "1 to"),
    (&["--rounds", "0"], "1 to"),
    (&["--duration", "0s"], "at least 1ms"),
    (&["--duration", "2"], "unit"),
    (&["--verify", "--against", "fio"], "leave fio out"),
    (&["--verify", "--bs", "16"], "raise --bs"),
    (&["--numjobs", "1024", "--iodepth", "32768", "--bs", "1m"], "use fewer"),
    (&["--nonsense"], "--help"),
];

#[test]
fn every_refusal_is_one_line_that_says_what_to_do() {
    for (arguments, advice) in REFUSED {
        let finished = run(ringfile("perf file").args(arguments));
        assert_eq!(finished.stdout, "", "{arguments:?}");
        finished.fails_with(2, &[advice]);
    }
}

#[test]
fn a_command_that_does_not_exist_is_refused() {
    for arguments in ["perf nonsense", "nonsense"] {
        run(&mut ringfile(arguments)).fails(2);
    }
}

#[test]
fn a_new_file_that_can_not_be_measured_is_not_left() {
    let folder = folder();
    let path = folder.path().join("new.bin");
    // Larger than the disk; more threads than blocks.
    for arguments in [
        "--size 1000000g",
        "--size 16k --numjobs 8 --iodepth 1 --rw read",
        "--size 16k --numjobs 8 --iodepth 1 --verify",
    ] {
        let error = run(ringfile(&format!("perf file {arguments} --file")).arg(&path)).fails(2);
        let advice = if arguments.contains("16k") { "raise --size" } else { "--size" };
        assert!(error.contains(advice), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn an_existing_file_is_not_written_to() {
    let folder = folder();
    let contents: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
    let path = file_with(&folder, &contents);
    let writing =
        ["--rw randwrite", "--rw randread,randrw", "--rw write", "--rw randread --verify", "--rounds 1"];
    // The permission to replace output files permits nothing else.
    for (arguments, force) in
        writing.into_iter().flat_map(|arguments| [(arguments, ""), (arguments, " --force")])
    {
        run(ringfile(&format!("perf file {arguments}{force} --file")).arg(&path))
            .fails_with(2, &["--overwrite"]);
        assert!(std::fs::read(&path).expect("still there") == contents, "{arguments} changed the file");
    }
}

/// A quarter of a smaller file would be too little memory for the program.
#[test]
fn mixed_reads_need_a_large_file() {
    let folder = folder();
    for length in [1 << 20, 20 << 20] {
        let path = file_with(&folder, &vec![7; length]);
        run(ringfile("perf file --cache mixed --duration 300ms --file").arg(&path))
            .fails_with(2, &["data.bin", "256 MiB"]);
    }
}

#[test]
fn overwrite_writes() {
    let folder = folder();
    let path = file_with(&folder, &vec![7; 1 << 20]);
    let arguments = "--duration 100ms --warmup 10ms --numjobs 1 --iodepth 1 --rw write --overwrite";
    run(ringfile(&format!("perf file {arguments} --file")).arg(&path)).ok();
    let contents = std::fs::read(&path).expect("still there");
    assert_eq!(contents.len(), 1 << 20);
    assert!(contents.iter().any(|&byte| byte != 7));
}

#[test]
fn results_never_take_the_place_of_what_is_measured() {
    let folder = folder();
    let path = file_with(&folder, b"mine");
    let (link, new) = (folder.path().join("link.bin"), folder.path().join("new.bin"));
    symlink(&path, &link).expect("link");
    for (measured, out) in [(&path, &path), (&link, &path), (&new, &new)] {
        for option in ["--json", "--report"] {
            let mut command = short("--force --overwrite --file");
            run(command.arg(measured).arg(option).arg(out))
                .fails_with(2, &["file that is measured", "name another"]);
        }
    }
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "mine");
    assert!(!new.exists());
}

#[test]
fn direct_on_memory_is_refused() {
    let path = Path::new("/dev/shm").join(format!("ringfile-test-direct-{}", std::process::id()));
    if !path.parent().is_some_and(Path::is_dir) {
        return skip("there is no /dev/shm");
    }
    run(ringfile("perf file --size 1m --direct --file").arg(&path)).fails_with(2, &["--direct"]);
    assert!(!path.exists());
}
