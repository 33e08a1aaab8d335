//! `compare blocked`: runs a command that may not use io_uring, as in a container with Docker's default profile.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<std::ffi::OsString>,
}

const REFUSED: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Replaces this process by the command; returns only on failure.
pub fn run(options: &Options) -> io::Error {
    if let Err(error) = refuse() {
        return error;
    }
    Command::new(&options.command[0]).args(&options.command[1..]).exec()
}

/// Makes the kernel refuse the three calls with EPERM, in this process and in the command that replaces it.
fn refuse() -> io::Result<()> {
    let instruction =
        |code: u32, skip: u8, k: u32| libc::sock_filter { code: code as u16, jt: skip, jf: 0, k };
    // The call's number is the first field of `seccomp_data`.
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, call) in REFUSED.iter().enumerate() {
        // Jumps over the remaining comparisons and the instruction that allows the call.
        let skip = (REFUSED.len() - index) as u8;
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, *call as u32));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this process, and passes a filter program with its length; the kernel copies the program.
    let answers = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        ]
    };
    if answers.contains(&-1) { Err(io::Error::last_os_error()) } else { Ok(()) }
}
