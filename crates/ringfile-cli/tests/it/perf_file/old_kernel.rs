//! A kernel without sparse tables of registered memory, like Linux 5.10 to 5.18: a seccomp filter answers as it would.

use crate::support::{filtered, folder, json, ring_is_forbidden, ringfile, run, runs, skip};

/// `IORING_REGISTER_BUFFERS2`.
const REGISTER_BUFFERS2: u32 = 15;

#[test]
fn the_note_names_the_kernel_and_not_a_limit() {
    if ring_is_forbidden() {
        return skip("RINGFILE_DISABLE=io_uring,aio forbids rings");
    }
    let folder = folder();
    let timing = "--size 1m --duration 20ms --warmup 5ms --rounds 1 --rw randread --iodepth 2 --force --json";
    let out = folder.path().join("out.json");
    for arguments in
        ["file --numjobs 1 --route ring", "buffers --explain --numjobs 1 --bs 4k --buffers normal,fixed"]
    {
        let mut command = ringfile(&format!("perf {arguments} {timing}"));
        command.arg(&out).arg("--file").arg(folder.path().join("data.bin"));
        let invalid = libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32;
        let register = libc::SYS_io_uring_register;
        let finished = run(filtered(&mut command, register, Some(REGISTER_BUFFERS2), invalid)).ok();
        finished.says(&["this kernel has no sparse tables"]);
        let text = format!("{}{}", finished.stdout, finished.stderr);
        assert!(!text.contains("RLIMIT_MEMLOCK"), "{arguments}: {text}");
        for run in runs(&json(&out)).iter().filter(|run| run["buffers"] == "fixed") {
            assert_eq!(run["fixed_ops"], 0, "{arguments}: {run}");
            assert!(run["refused"].as_str().is_some_and(|why| why.contains("sparse")), "{arguments}: {run}");
        }
    }
}
