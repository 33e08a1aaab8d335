//! Children that tests fork.

/// Ends this process, a forked child, by a signal if it hangs. Does not use [`patience`], which takes a lock.
pub fn end_if_it_hangs() {
    // SAFETY: sets a timer of this process, and names no memory.
    unsafe { libc::alarm(180) };
}

/// Forks. The child runs `check` and ends, with an alarm against hanging. Returns the child's process ID.
pub fn fork(check: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child has only this thread, and the C library's allocator supports that; it ends with `_exit`, so
    // that no destructor of the parent runs twice.
    unsafe {
        match libc::fork() {
            0 => {
                end_if_it_hangs();
                let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok();
                libc::_exit(if passed { 0 } else { 1 });
            }
            child => {
                assert!(child > 0, "fork failed");
                child
            }
        }
    }
}

#[track_caller]
pub fn assert_passed(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: one valid number to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the forked child failed (1 << 8), or hung (14)");
}
