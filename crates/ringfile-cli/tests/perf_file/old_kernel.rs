//! A kernel without sparse tables of registered memory, like Linux 5.10 to 5.18: a seccomp filter answers as it would.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::support::{folder, json, ring_is_forbidden, run, runs, skip};

/// `IORING_REGISTER_BUFFERS2`.
const REGISTER_BUFFERS2: u32 = 15;

/// Makes the kernel answer EINVAL to [`REGISTER_BUFFERS2`] in that process and its children.
fn without_sparse_tables(command: &mut Command) -> &mut Command {
    let deny = || {
        let instruction = |code: u32, k: u32, otherwise: u8| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: otherwise,
            k,
        };
        let (load, compare) =
            (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
        // The call's number, and its second argument.
        let mut program = [
            instruction(load, 0, 0),
            instruction(compare, libc::SYS_io_uring_register as u32, 3),
            instruction(load, 24, 0),
            instruction(compare, REGISTER_BUFFERS2, 1),
            instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32, 0),
            instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: sets a flag of this process, and hands over a valid program that the kernel copies.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        };
        if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(deny) }
}

#[test]
fn the_note_names_the_kernel_and_not_a_limit() {
    if ring_is_forbidden() {
        skip("the_note_names_the_kernel_and_not_a_limit", "RINGFILE_BACKEND=workers forbids rings");
        return;
    }
    let folder = folder();
    let timing = "--size 1m --duration 20ms --warmup 5ms --rounds 1 --rw randread";
    for (name, arguments) in [
        ("file", format!("perf file {timing} --numjobs 1 --iodepth 2 --route ring")),
        (
            "buffers",
            format!("perf buffers {timing} --processes 1 --bs 4k --iodepth 2 --buffers normal,fixed"),
        ),
    ] {
        let out = folder.path().join(format!("{name}.json"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfile"));
        command.args(arguments.split(' ')).env("XDG_STATE_HOME", folder.path());
        command.arg("--file").arg(folder.path().join("data.bin")).arg("--json").arg(&out);
        let finished = run(without_sparse_tables(&mut command)).ok();
        let told = format!("{}{}", finished.stdout, finished.stderr);
        assert!(finished.stdout.contains("this kernel has no sparse tables"), "{name}: {told}");
        assert!(!told.contains("RLIMIT_MEMLOCK"), "{name}: {told}");
        for run in runs(&json(&out)).iter().filter(|run| run["buffers"] == "fixed") {
            assert_eq!(run["fixed_ops"], 0, "{name}: {run}");
            assert!(run["refused"].as_str().is_some_and(|why| why.contains("sparse")), "{name}: {run}");
        }
    }
}
