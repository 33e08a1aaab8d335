//! Seccomp filters like those of containers, for threads of tests.

/// Makes the kernel answer `call` with `errno` on this thread, and on threads that it starts from now on.
pub fn deny(call: libc::c_long, errno: i32) {
    // The number of the call is the first field of `seccomp_data`.
    filter(&[(0, call as u32)], errno);
}

/// Does the same for one operation of `io_uring_register`, as a kernel that does not know it.
pub fn deny_registering(operation: u32, errno: i32) {
    // The operation is the second argument, which is 8 bytes long and starts at byte 24, the low half first.
    filter(&[(0, libc::SYS_io_uring_register as u32), (24, operation)], errno);
}

/// Answers calls with `errno` if all of these numbers are at these offsets of `seccomp_data`.
pub fn filter(numbers: &[(u32, u32)], errno: i32) {
    let mut program = Vec::new();
    for (index, &(place, number)) in numbers.iter().enumerate() {
        // Jumps to the last instruction, past the remaining comparisons, two instructions each, and the refusal.
        let rest = (2 * (numbers.len() - index) - 1) as u8;
        program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, place, 0));
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, rest));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    install(&mut program);
}

/// Ends this process, by SIGSYS, at the first call of this thread, or of one that it starts from now on, which is none of these.
pub fn allow_only(calls: impl Iterator<Item = libc::c_long>) {
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for call in calls {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0));
    install(&mut program);
}

/// Returns an instruction; a comparison skips `otherwise` of the next ones if it fails.
fn instruction(code: u32, k: u32, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k }
}

fn install(program: &mut [libc::sock_filter]) {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this thread, and hands over a valid program that the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}
