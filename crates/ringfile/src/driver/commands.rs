//! The rings besides the main one: for commands to NVMe drives, and for polled completions.
//!
//! If a thread has only commands in flight, it sleeps in their ring, and one system call submits and waits, as on the
//! main ring. Otherwise it sleeps in the main ring, which polls a descriptor that the ring for commands signals. If a
//! queue's user waits for the main ring's descriptor, both rings signal that one: a descriptor that is signalled
//! through another is not signalled twice (`io_eventfd_do_signal` in Linux 6.12). Invariant: a completion of the main
//! ring or of the ring for commands wakes a thread that sleeps in either of them.

use std::os::fd::AsRawFd;

use linux_raw_sys::io_uring::io_uring_op as uop;

use super::deferred::Deferred;
use super::files::FileInUse;
use super::key::Key;
use super::marks::{COMMANDS, FIXED_FILE, SLICE};
use super::op::{PartsOf, command};
use super::ring_kind::RingKind;
use super::rings::{Rings, fixed_index};
use super::slot::{Slot, State};
use super::state::Driver;
use crate::ring::{CommandSqe, Cqe, Ring, Sqe, Until};

/// The result of entering the other rings.
pub(super) struct Entered {
    /// Where the thread may sleep.
    pub home: RingKind,
    /// The number of completions to wait for; 0 if the thread must not wait.
    pub wanted: u32,
    /// Whether the kernel refused the entries of one of the rings.
    pub refused: bool,
}

impl Driver {
    /// Enters all rings except the one in which the thread may sleep, and does not wait.
    #[cold]
    pub(super) fn enter_beside(&mut self, wanted: u32, deferred: &mut Deferred) -> Entered {
        let Some(rings) = self.rings.as_mut() else {
            return Entered { home: RingKind::Main, wanted: 0, refused: false };
        };
        let on_main = self.in_flight - rings.unannounced - rings.commands;
        let signal = rings.main.signal();
        let shares = rings.get(RingKind::Commands).map_or(Ok(false), |ring| ring.signal_as(signal));
        // If the signal has just changed, the main ring still polls the previous one.
        rings.commands_announced &= !matches!(shares, Ok(true));
        let only_commands = rings.commands > 0 && on_main == 0;
        let home = if only_commands { RingKind::Commands } else { RingKind::Main };
        let spins = rings.unannounced > 0;
        let mixed = rings.commands > 0 && !only_commands;
        if mixed && !rings.commands_announced {
            // Reset before completions are collected, so that one that arrives meanwhile signals again.
            rings.get(RingKind::Commands).into_iter().for_each(|ring| ring.reset_completion_signal());
        }
        let mut refused = false;
        for kind in home.others() {
            let ring = self.rings.as_mut().and_then(|rings| rings.get(kind));
            let answer = ring.map_or(Ok(()), |ring| {
                let polls = spins && !kind.announces();
                let collects = polls || ring.has_deferred() || ring.waiting() > 0;
                ring.enter(if collects { Until::Collected } else { Until::Submitted }, SLICE, None)
            });
            refused |= self.was_refused(kind, answer, deferred);
        }
        if only_commands {
            self.arm_wakeup(RingKind::Commands);
        }
        let is_told = shares.is_ok() && (!mixed || wanted == 0 || self.announce_commands());
        let Some(rings) = self.rings.as_mut() else { return Entered { home, wanted: 0, refused } };
        let has_some = |ring: &mut Ring| ring.has_completions() || ring.has_deferred();
        let is_some = home.others().any(|kind| rings.get(kind).is_some_and(has_some));
        // One completion on the main ring announces any number of commands.
        let wanted = if mixed { wanted.min(1) } else { wanted };
        // A refused entry has ended without a completion, or must be submitted again: the thread must not sleep.
        let wanted = if is_told && !spins && !is_some && !refused { wanted } else { 0 };
        Entered { home, wanted, refused }
    }

    /// Makes the main ring poll the signal of the ring for commands. Returns false if it cannot.
    fn announce_commands(&mut self) -> bool {
        let Some(rings) = self.rings.as_mut().filter(|rings| !rings.commands_announced) else { return true };
        let signal = rings.get(RingKind::Commands).and_then(|ring| ring.completion_signal().ok());
        let Some(signal) = signal else { return false };
        let sqe = Sqe {
            opcode: uop::IORING_OP_POLL_ADD as u8,
            fd: signal.as_raw_fd(),
            op_flags: libc::POLLIN as u32,
            user_data: COMMANDS,
            ..Sqe::default()
        };
        // SAFETY: the entry names no memory.
        rings.commands_announced = unsafe { rings.main.push(sqe) }.is_some();
        rings.commands_announced
    }

    /// Collects the completions of all rings except the main one.
    #[cold]
    pub(super) fn collect_beside(&mut self, deferred: &mut Deferred) {
        for kind in RingKind::Main.others() {
            while let Some(cqe) =
                self.rings.as_mut().and_then(|rings| rings.get(kind)).and_then(Ring::complete)
            {
                if kind.takes_commands() {
                    self.command_completed(kind, cqe, deferred);
                } else {
                    self.completed_beside(cqe, deferred);
                }
            }
        }
    }

    /// Handles the completion of a command, whose answer 0 means that all of it was done.
    #[inline(never)]
    fn command_completed(&mut self, kind: RingKind, cqe: Cqe, deferred: &mut Deferred) {
        let key = Key::from_user_data(cqe.user_data);
        let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) else {
            return self.not_an_operation(kind, cqe);
        };
        let Some(target) = self.files.target(slot.file) else { return };
        let Some(namespace) = target.namespace() else { return };
        let began = slot.progress.began(&slot.request, target);
        let answer = command::answer(&slot.request, &slot.held, began, namespace, cqe.result);
        if self.is_over(key, answer) {
            self.counts.passthrough_ops += 1;
            self.end(key, deferred);
        }
    }
}

/// Puts an operation's next command into the queue of its ring; returns false if the queue is full.
#[inline(never)]
pub(super) fn push(
    rings: &mut Rings,
    file: &mut FileInUse,
    key: Key,
    slot: &mut Slot,
    mut parts: PartsOf<'_>,
) -> bool {
    let kind = slot.ring;
    let Some(ring) = rings.get(kind) else { return false };
    let began = slot.progress.began(&slot.request, &*file.target);
    let (fd, registered) = file.descriptor(kind, ring);
    let Some(namespace) = file.target.namespace() else { return false };
    // Registered memory in several parts is accepted only since Linux 6.16; before, the kernel warns.
    let may_be_fixed = slot.request.kind.moves_data() && slot.held.count() == 1 && namespace.takes_fixed();
    let index = if may_be_fixed { fixed_index(&slot.held, ring) } else { None };
    let Some(sqe) = ring.vacant_command() else { return false };
    super::submit::begin(file, &slot.request, slot.progress, &mut slot.marks, parts.reborrow());
    *sqe = CommandSqe {
        fd,
        flags: if registered { FIXED_FILE } else { 0 },
        user_data: key.to_user_data(),
        ..CommandSqe::default()
    };
    slot.fixed &= command::fill(&slot.request, &slot.held, began, index, namespace, parts, sqe);
    // SAFETY: the entry was filled above, and names memory of the slot's, see `submit`.
    slot.position = unsafe { ring.commit() };
    slot.state = State::InFlight;
    true
}

#[cfg(test)]
mod tests {
    use crate::driver::namespace::testing::{BOTH, LIMITS, namespace};
    use crate::driver::state::with;
    use crate::driver::{Access, Deferred, RingKind, route};
    use crate::{AllocateMode, Batch, File, OpenOptions, Pool, Queue, block_on, thread_metrics};

    /// Returns a namespace on `/dev/null`, which accepts all commands since Linux 6.1, answers them at once and does
    /// nothing. `None`, with a message, if it does not accept them.
    fn null(test: &str, access: Access) -> Option<File> {
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = OpenOptions::new().file_of_namespace(null, namespace(access), None).unwrap();
        let works = !route::workers_are_forced() && block_on(file.sync_data()).is_ok();
        if !works {
            let text = format!("skipped {test}: /dev/null takes no commands here\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        }
        works.then_some(file)
    }

    #[test]
    fn f48_commands_go_through_futures_batches_and_queues() {
        let Some(file) = null("f48_commands_go_through_futures_batches_and_queues", BOTH) else { return };
        let pool = Pool::new(4 << 20);
        block_on(async {
            let before = thread_metrics();
            let read = file.read_at(pool.get(3 * LIMITS.most).unwrap(), 0).await.unwrap();
            assert_eq!(read.len(), 3 * LIMITS.most);
            let write = file.write_at(read, 4096).await.unwrap();
            file.write_durable_at(write, 0).await.unwrap();
            file.allocate(AllocateMode::Discard, 0, 3 << 20).await.unwrap();
            let counts = thread_metrics() - before;
            assert_eq!((counts.ops, counts.passthrough_ops, counts.failed), (4, 4, 0));
            assert_eq!(
                (counts.resubmitted, counts.fixed_ops),
                (2 + 2 + 2 + 2, 3),
                "one command takes 64 KiB, or 1 MiB"
            );
            let end = file.read_at(pool.get(8 << 12).unwrap(), 998 << 12).await.unwrap();
            assert_eq!(end.len(), 2 << 12);
            assert_eq!(file.size().unwrap(), 1000 << 12);
        });
        let mut batch = Batch::new();
        for i in 0..300 {
            batch.add(file.read_at(vec![0; 4096], i << 12));
        }
        batch.add(file.sync_data());
        assert!(batch.run().into_iter().all(|done| done.result.is_ok()));
        let mut queue = Queue::new();
        for i in 0..300 {
            queue.add(file.read_at(vec![0; 4096], i << 12), i);
        }
        assert_eq!(queue.wait(300, None), 300);
        let mut taken = 0;
        while let Some((_, done)) = queue.take() {
            assert_eq!(done.result.unwrap(), 4096);
            taken += 1;
        }
        assert_eq!(taken, 300);
    }

    #[test]
    fn f48_commands_beside_operations_of_the_main_ring() {
        let Some(drive) = null("f48_commands_beside_operations_of_the_main_ring", BOTH) else { return };
        let (reader, mut writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(reader)));
        block_on(async {
            // The thread waits for the pipe, on the main ring, while commands come and go.
            let waiting = crate::spawn(async move { pipe.read_at(vec![0; 4], 0).await });
            for i in 0..100_u64 {
                drive.read_at(Vec::with_capacity(4096), i << 12).await.unwrap();
            }
            let writes = std::thread::spawn(move || std::io::Write::write_all(&mut writer, b"word"));
            assert_eq!(waiting.await.unwrap().unwrap(), b"word");
            writes.join().unwrap().unwrap();
            for i in 0..100_u64 {
                drive.write_at(vec![0; 4096], i << 12).await.unwrap();
            }
        });
    }

    #[test]
    fn f48_a_wait_for_commands_beside_others_ends_with_the_first_completion() {
        let name = "f48_a_wait_for_commands_beside_others_ends_with_the_first_completion";
        let Some(_ring) = null(name, BOTH) else { return };
        // The driver counts three commands and two operations of the main ring. The main ring gets three completions at
        // most, one of which announces all commands.
        let entered = with(|driver| {
            driver.in_flight = 5;
            driver.rings.iter_mut().for_each(|rings| rings.commands = 3);
            let entered = driver.enter_beside(5, &mut Deferred::default());
            driver.in_flight = 0;
            driver.rings.iter_mut().for_each(|rings| rings.commands = 0);
            (entered.home, entered.wanted)
        });
        assert_eq!(entered, Some((RingKind::Main, 1)));
    }

    #[test]
    fn f48_a_thread_that_has_only_commands_is_woken_by_others() {
        let Some(drive) = null("f48_a_thread_that_has_only_commands_is_woken_by_others", BOTH) else {
            return;
        };
        block_on(async {
            drive.read_at(Vec::with_capacity(4096), 0).await.unwrap();
            let (sender, word) = futures::channel::oneshot::channel();
            let sends = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                sender.send(())
            });
            assert_eq!(word.await, Ok(()));
            assert_eq!(sends.join().unwrap(), Ok(()));
            drive.read_at(Vec::with_capacity(4096), 0).await.unwrap();
        });
    }

    #[test]
    fn f48_operations_that_a_namespace_lacks_fail_with_a_reason() {
        let access = Access { read: true, write: false };
        let Some(file) = null("f48_operations_that_a_namespace_lacks_fail_with_a_reason", access) else {
            return;
        };
        block_on(async {
            let error = file.set_len(4096).await.unwrap_err();
            assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
            assert!(error.to_string().contains("NVMe namespace"), "{error}");
            let error = file.write_at(vec![0; 4096], 0).await.unwrap_err();
            assert_eq!(error.errno(), Some(libc::EBADF));
            assert!(error.to_string().contains("not opened for writing"), "{error}");
            let error = file.allocate(AllocateMode::Discard, 100, 4096).await.unwrap_err();
            assert_eq!(error.errno(), Some(libc::EBADF));
            let read = file.read_at(Vec::with_capacity(100), 77).await.unwrap();
            assert_eq!(read.len(), 100, "whole blocks are read, of which only a part was requested");
            let error = file.write_at(vec![0; 100], 0).await.unwrap_err();
            assert!(error.to_string().contains("multiples of 4096"), "{error}");
        });
    }
}
