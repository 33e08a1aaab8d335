//! What happens where io_uring is not to be had: a seccomp filter, as in a container, that the test installs for real.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use std::time::{Duration, Instant};

use ringfile::{File, Pool, Runtime, WhenFull, block_on, ring_features, spawn, thread_metrics};
use support::{Folder, assert_content, content, in_child, open_descriptors, open_on_ring};

const PAGE: usize = 4096;

/// Has the kernel answer `call` with `errno` on this thread, and on those that it starts from now on.
fn deny(call: libc::c_long, errno: i32) {
    let instruction =
        |code: u32, k: u32, otherwise: u8| libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k };
    // The number of the call is the first field of `seccomp_data`.
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of this thread, and hands over a valid program that the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// What must hold for every operation, and for all that is no file operation, while there is no ring.
fn everything_but_io(file: &File, errno: i32, cause: &str) {
    let pool = Pool::builder().capacity(PAGE).when_full(WhenFull::Wait).build().unwrap();
    block_on(async {
        let failed = file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap_err();
        assert_eq!(failed.kind(), std::io::ErrorKind::Unsupported, "{failed}");
        assert_eq!(failed.errno(), Some(errno), "{failed}");
        assert!(failed.to_string().contains(cause), "{failed}");
        let held = failed.into_buffer();
        assert_eq!(file.sync_data().await.unwrap_err().kind(), std::io::ErrorKind::Unsupported);
        assert_eq!(file.write_at(&b"x"[..], 0).await.unwrap_err().errno(), Some(errno));
        let vectored = file.read_vectored_at(vec![vec![1, 2], vec![3]], 0).await.unwrap_err();
        let nothing: Vec<u8> = Vec::new();
        assert_eq!(vectored.into_buffer(), [nothing.clone(), nothing], "both come back, with what was read");
        // Tasks, memory and other threads go on.
        let waiting = pool.clone();
        let task = spawn(async move { waiting.get_async(PAGE).await.unwrap().capacity() });
        let elsewhere = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        assert_eq!(task.await.unwrap(), PAGE);
        elsewhere.join().unwrap();
        let mut reader = file.reader(&pool).block(PAGE);
        assert_eq!(reader.next().await.unwrap().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
        assert!(reader.next().await.is_none());
    });
    assert_eq!(pool.metrics().in_use, 0);
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let own = file.clone();
    let read = runtime.spawn(async move { own.read_at(Vec::with_capacity(PAGE), 0).await });
    assert_eq!(read.join().unwrap().unwrap_err().errno(), Some(errno));
    assert_eq!(runtime.spawn(async { 42 }).join().unwrap(), 42);
    runtime.shutdown();
    assert_eq!(ring_features().unwrap_err().kind(), std::io::ErrorKind::Unsupported);
}

fn no_ring(errno: i32, cause: &'static str) {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    // On a thread of its own, so that the descriptors of its driver are gone at the end.
    std::thread::spawn(move || {
        let before = open_descriptors();
        deny(libc::SYS_io_uring_setup, errno);
        let thread = std::thread::spawn(move || {
            everything_but_io(&file, errno, cause);
            // A second later a ring is tried again, to the same end.
            std::thread::sleep(Duration::from_millis(1100));
            everything_but_io(&file, errno, cause);
            file
        });
        let _file = thread.join().unwrap();
        assert_eq!(open_descriptors(), before);
    })
    .join()
    .unwrap();
}

#[test]
fn f23_a_filter_that_forbids_io_uring_is_named_and_all_else_works() {
    if in_child("f23_a_filter_that_forbids_io_uring_is_named_and_all_else_works") {
        no_ring(libc::EPERM, "seccomp");
    }
}

#[test]
fn f23_a_filter_that_hides_io_uring_is_named_and_all_else_works() {
    if in_child("f23_a_filter_that_hides_io_uring_is_named_and_all_else_works") {
        no_ring(libc::ENOSYS, "seccomp");
    }
}

/// A program that locks itself in after its first I/O.
#[test]
fn f23_a_ring_that_may_not_be_entered_any_more_fails_operations_and_does_not_spin() {
    if !in_child("f23_a_ring_that_may_not_be_entered_any_more_fails_operations_and_does_not_spin") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, PAGE)));
    block_on(async {
        assert_content(&file.read_at(Vec::with_capacity(PAGE), 0).await.unwrap(), 0);
        deny(libc::SYS_io_uring_enter, libc::EPERM);
        for _ in 0..3 {
            let failed = file.read_at(vec![7; 10], 0).await.unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EPERM), "{failed}");
        }
        let began = Instant::now();
        let before = thread_metrics().enters;
        let (send, receive) = signal();
        let elsewhere = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            send();
        });
        receive.await;
        assert!(began.elapsed() >= Duration::from_millis(300));
        let enters = thread_metrics().enters - before;
        assert!(enters < 10, "{enters} system calls while there was nothing to do");
        elsewhere.join().unwrap();
    });
}

/// Something to wait for that another thread lets happen.
fn signal() -> (impl FnOnce() + Send, impl Future<Output = ()>) {
    use std::sync::{Arc, Mutex};
    use std::task::{Poll, Waker};
    let state: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
    let theirs = Arc::clone(&state);
    let send = move || {
        let mut state = theirs.lock().unwrap();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    };
    let receive = std::future::poll_fn(move |context| {
        let mut state = state.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(context.waker().clone());
        Poll::Pending
    });
    (send, receive)
}
