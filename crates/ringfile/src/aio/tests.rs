#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::*;
use crate::patience::patience;

const WAKEUP: u64 = 2;
const LEN: usize = 512;

/// Returns a file whose piece `n` of [`LEN`] bytes is all `n`.
fn file() -> File {
    let mut file = tempfile::tempfile().unwrap();
    (0..=255_u8).for_each(|piece| file.write_all(&[piece; LEN]).unwrap());
    file
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

/// Returns a read of one piece, into memory that outlives it.
fn read(file: &File, piece: u64, memory: &mut [u8]) -> Sqe {
    Sqe {
        opcode: op::IORING_OP_READ as u8,
        fd: file.as_raw_fd(),
        offset: piece * LEN as u64,
        addr: memory.as_mut_ptr().expose_provenance() as u64,
        len: memory.len() as u32,
        user_data: 1 << 32 | piece,
        ..Sqe::default()
    }
}

fn push(aio: &mut Aio, sqe: &Sqe, signal: Option<i32>) -> Option<u32> {
    // SAFETY: each test keeps the memory until all operations have ended.
    unsafe { aio.push(sqe, signal) }
}

/// Waits until all operations have finished, and returns each one's piece and result.
fn all(aio: &mut Aio) -> Vec<(u64, i32)> {
    let began = Instant::now();
    let mut ended = Vec::new();
    loop {
        while let Some(cqe) = aio.complete() {
            if cqe.user_data != WAKEUP {
                ended.push((cqe.user_data & 0xffff_ffff, cqe.result));
            }
        }
        if aio.open() == 0 {
            ended.sort_unstable();
            return ended;
        }
        assert!(began.elapsed() < patience(), "a completion was lost");
        aio.wait(1, Some(Duration::from_millis(100))).unwrap();
    }
}

#[test]
fn f45_completions_are_the_same_read_in_memory_and_by_a_call() {
    let (file, wakeup) = (file(), eventfd());
    for in_memory in [true, false] {
        let mut aio = Aio::new(FEWEST, wakeup.as_raw_fd(), WAKEUP).unwrap();
        assert!(aio.ring.is_some(), "this kernel's ring is not known");
        if !in_memory {
            aio.ring = None;
        }
        let mut memory = vec![[0; LEN]; FEWEST as usize];
        // Several times around the ring.
        for round in 0..200_u64 {
            for (index, memory) in memory.iter_mut().enumerate() {
                let piece = (round + index as u64) % 256;
                push(&mut aio, &read(&file, piece, memory), None).unwrap();
            }
            assert!(!aio.has_room());
            assert!(push(&mut aio, &read(&file, 0, &mut []), None).is_none());
            assert!(aio.submit(u32::MAX).unwrap() && !aio.has_queued());
            let ended = all(&mut aio);
            assert_eq!(ended.len(), memory.len());
            assert!(ended.iter().all(|&(_, result)| result == LEN as i32), "{ended:?}");
            for (index, memory) in memory.iter().enumerate() {
                assert_eq!(*memory, [(round + index as u64) as u8; LEN]);
            }
        }
    }
}

#[test]
fn f45_a_submission_stops_at_a_refused_operation_and_the_next_returns_the_errno() {
    let (file, wakeup) = (file(), eventfd());
    let mut aio = Aio::new(64, wakeup.as_raw_fd(), WAKEUP).unwrap();
    let mut memory = [[0; LEN]; 5];
    for (piece, memory) in memory.iter_mut().enumerate() {
        let mut sqe = read(&file, piece as u64, memory);
        if piece == 2 {
            sqe.fd = -1;
        }
        push(&mut aio, &sqe, None).unwrap();
    }
    assert!(!aio.submit(u32::MAX).unwrap());
    assert_eq!(aio.submit(u32::MAX).unwrap_err().raw_os_error(), Some(libc::EBADF));
    assert_eq!(aio.take_back(), Some(1 << 32 | 2));
    assert_eq!(aio.open(), 4);
    // It submits no more than requested, and keeps what the kernel refuses for now.
    assert!(aio.submit(1).unwrap() && aio.has_queued());
    aio.next_submission = Some(Err(libc::EAGAIN));
    assert_eq!(aio.submit(u32::MAX).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    assert!(aio.submit(u32::MAX).unwrap());
    assert_eq!(all(&mut aio), [0, 1, 3, 4].map(|piece| (piece, LEN as i32)));
    assert_eq!((memory[2], memory[4]), ([0; LEN], [4; LEN]));
}

#[test]
fn f45_queued_operations_are_withdrawn_and_submitted_ones_are_not_cancelled() {
    let (file, wakeup) = (file(), eventfd());
    let mut aio = Aio::new(64, wakeup.as_raw_fd(), WAKEUP).unwrap();
    let mut memory = [[7; LEN]; 3];
    let positions: Vec<u32> = memory
        .iter_mut()
        .zip(1..)
        .map(|(memory, piece)| push(&mut aio, &read(&file, piece, memory), None).unwrap())
        .collect();
    assert!(aio.withdraw(positions[1]) && !aio.withdraw(positions[1]));
    assert!(aio.submit(u32::MAX).unwrap());
    assert!(!aio.withdraw(positions[0]), "the kernel has it");
    aio.cancel(positions[0]);
    aio.cancel(positions[2]);
    assert_eq!(aio.open(), 2, "the memory is the kernel's until the completions come");
    assert_eq!(all(&mut aio), [(1, LEN as i32), (3, LEN as i32)]);
    assert_eq!(memory, [[1; LEN], [7; LEN], [3; LEN]]);
}

#[test]
fn f45_a_wake_up_and_the_ends_of_operations_are_signalled() {
    let (file, wakeup, signal) = (file(), eventfd(), eventfd());
    let mut aio = Aio::new(64, wakeup.as_raw_fd(), WAKEUP).unwrap();
    let mut memory = [[0; LEN]; 8];
    for (piece, memory) in memory.iter_mut().enumerate() {
        let signal = (piece % 2 == 0).then_some(signal.as_raw_fd());
        push(&mut aio, &read(&file, piece as u64, memory), signal).unwrap();
    }
    assert_eq!((aio.open(), aio.silent()), (8, 4));
    assert!(aio.submit(u32::MAX).unwrap());
    assert_eq!(all(&mut aio).len(), 8);
    assert_eq!((aio.open(), aio.silent()), (0, 0));
    // The kernel puts the completion into the ring before it signals.
    let (mut told, began) = (0, Instant::now());
    while told < 4 {
        let mut count = [0; 8];
        match rustix::io::read(&signal, &mut count) {
            Ok(_) => told += u64::from_ne_bytes(count),
            Err(error) => assert_eq!(error, rustix::io::Errno::AGAIN),
        }
        assert!(began.elapsed() < patience(), "told of {told}");
    }
    assert_eq!(told, 4);

    for _ in 0..3 {
        aio.arm_wakeup();
        assert!(aio.submit(u32::MAX).unwrap() && aio.is_wakeup_armed());
        assert!(aio.complete().is_none());
        let other = wakeup.try_clone().unwrap();
        let waking = std::thread::spawn(move || {
            // Time for the other thread to sleep in the kernel, which is not simulated.
            std::thread::sleep(Duration::from_millis(5));
            rustix::io::write(&other, &1_u64.to_ne_bytes()).unwrap();
        });
        aio.wait(1, None).unwrap();
        waking.join().unwrap();
        assert_eq!(aio.complete().unwrap().user_data, WAKEUP);
        assert!(!aio.is_wakeup_armed() && aio.complete().is_none());
        rustix::io::read(&wakeup, &mut [0; 8]).unwrap();
    }
    file.write_at(b"the file outlives the reads", 0).unwrap();
}

#[test]
fn f45_a_completion_that_is_none_of_ours_frees_no_record() {
    let (file, wakeup) = (file(), eventfd());
    let mut aio = Aio::new(64, wakeup.as_raw_fd(), WAKEUP).unwrap();
    let mut memory = [0; LEN];
    let position = push(&mut aio, &read(&file, 5, &mut memory), None).unwrap();
    let iocb = aio.iocbs[position as usize].get().expose_provenance() as u64;
    for (data, iocb) in [(1 << 32 | 9, iocb), (1 << 32 | 5, 0), (1 << 32 | 5, u64::MAX)] {
        aio.events[0] = IoEvent { data, iocb, result: 1, result2: 0 };
        (aio.next, aio.fetched) = (0, 1);
        assert!(aio.complete().is_some());
        assert_eq!(aio.open(), 1);
    }
    assert!(aio.submit(u32::MAX).unwrap());
    assert_eq!(all(&mut aio), [(5, LEN as i32)]);
}
