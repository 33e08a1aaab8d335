//! Commands to NVMe drives: their entries, and what a drive's answer means.

use super::entry::FIXED_FILE;
use super::entry::{begin, fixed_index};
use crate::driver::op::{PartsOf, command};
use crate::driver::slots::files::FileInUse;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::{Slot, State};
use crate::driver::target::Target;
use crate::ring::{CommandSqe, Ring};

/// Puts an operation's next command into the queue of its ring; returns false if the queue is full.
#[inline(never)]
pub(super) fn push(
    ring: &mut Ring,
    file: &mut FileInUse,
    key: Key,
    slot: &mut Slot,
    mut parts: PartsOf<'_>,
) -> bool {
    let began = slot.progress.began(&slot.request, &*file.target);
    let (fd, registered) = file.descriptor(slot.ring, ring);
    let Some(namespace) = file.target.namespace() else { return false };
    // Registered memory in several parts is accepted only since Linux 6.16; before, the kernel warns.
    let may_be_fixed = slot.request.kind.moves_data() && slot.memory.count() == 1 && namespace.takes_fixed();
    let index = if may_be_fixed { fixed_index(&slot.memory, ring) } else { None };
    let Some(sqe) = ring.vacant_command() else { return false };
    begin(file, &slot.request, slot.progress, &mut slot.marks, parts.reborrow());
    *sqe = CommandSqe {
        fd,
        flags: if registered { FIXED_FILE } else { 0 },
        user_data: key.to_user_data(),
        ..CommandSqe::default()
    };
    slot.fixed &= command::fill(&slot.request, &slot.memory, began, index, namespace, parts, sqe);
    // SAFETY: the entry was filled above, and names memory of the slot's, see the module `ports`.
    slot.position = unsafe { ring.commit() };
    slot.state = State::InFlight;
    true
}

/// Returns what a drive's answer means for the operation: the bytes that were done, or an errno. An answer of 0 says that
/// all of the command was done. `None` if the file takes no commands.
pub(crate) fn answer(slot: &Slot, target: &Target, result: i32) -> Option<Result<usize, i32>> {
    let began = slot.progress.began(&slot.request, target);
    Some(command::answer(&slot.request, &slot.memory, began, target.namespace()?, result))
}

#[cfg(test)]
mod tests {
    use crate::driver::ports::EnterArgs;
    use crate::driver::target::namespace::testing::{BOTH, LIMITS, namespace};
    use crate::driver::target::route;
    use crate::driver::turn::state::with;
    use crate::driver::{Access, PortKind};
    use crate::fs::AllocateMode;
    use crate::{Batch, File, OpenOptions, Pool, Queue, block_on, thread_metrics};

    /// Returns a namespace on `/dev/null`, which accepts all commands since Linux 6.1, answers them at once and does
    /// nothing. `None`, with a message, if it does not accept them.
    fn null(test: &str, access: Access) -> Option<File> {
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = OpenOptions::new().file_of_namespace(null, namespace(access), None).unwrap();
        let works = !route::workers_are_forced() && block_on(file.sync_data()).is_ok();
        if !works {
            crate::skip::skip(test, "/dev/null takes no commands here");
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
        let mut completions = Vec::new();
        assert_eq!(queue.wait(300..=300, None, &mut completions), 300);
        assert!(completions.into_iter().all(|done| done.result.unwrap() == 4096));
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
            let ports = driver.ports();
            (0..3).for_each(|_| ports.count(PortKind::Commands, true));
            let mut args = EnterArgs { wanted: 5, most: 1, deadline: None, in_flight: 5, has_waiting: false };
            let mut home = PortKind::Polled;
            ports.enter_extra(&mut args, &mut home);
            (0..3).for_each(|_| ports.count(PortKind::Commands, false));
            (home, args.wanted)
        });
        assert_eq!(entered, Some((PortKind::Main, 1)));
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
