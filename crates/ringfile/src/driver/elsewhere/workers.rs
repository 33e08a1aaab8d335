//! Threads that carry out remote requests by plain system calls, if io_uring is not available, if a file's route says
//! so, and for syncs that would go to an I/O thread.
//!
//! Threads start when there is more work than idle threads, up to a limit, and end after being idle for a while.
//! Requests that wait for a pipe, a socket or a terminal occupy at most half of the workers, and each only for 20 ms:
//! then one more thread, the poller, has them until they can be carried out. Invariants: a remote request that was
//! taken ends; if no thread can be started, the caller carries it out; the poller neither carries out nor ends a
//! request, since that may run anybody's code, unless no worker can be started.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use once_cell::race::OnceBox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::SocketType;

use super::own_threads::start_thread;
use super::rights::Rights;
use super::worker_queue::{FILES, PATHS, PROCESS, Pool, WorkerQueue, are_of_another_process};
use crate::caught::caught;
use crate::descriptor;
use crate::driver::mail::shared::RemoteRequest;
use crate::driver::op::OpResult;
use crate::driver::op::plain::{self, CallOutcome};
use crate::driver::slots::handler::Handler;
use crate::driver::target::FileKind;
use crate::driver::turn::counts::{add_to_counts, count};
use crate::ring::Ring;
use ringfile_buffer::internal::{event, fork};

const IDLE: Duration = Duration::from_secs(10);

/// The maximum number of threads; 0 for the default.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Sets how many [worker threads](crate::Route::Workers) there may be; 0 for the default, four per core and at least
/// 16. They also carry out the syncs of other executors' tasks, while at least two of them are free.
pub fn set_worker_threads(threads: usize) {
    MOST.store(threads, Ordering::Relaxed);
}

/// Returns the maximum number of threads. The default fills a disk's queue, with more threads than cores, since they
/// mostly wait.
fn most() -> usize {
    // Computed once: it reads files of the control group.
    static USUAL: OnceBox<usize> = OnceBox::new();
    let usual = || std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(16);
    match MOST.load(Ordering::Relaxed) {
        0 => *USUAL.get_or_init(|| Box::new(usual())),
        most => most,
    }
}

/// Returns whether more than one worker is free, or can be started: then a request does not delay others, and if it hangs,
/// one is left.
pub(crate) fn have_room() -> bool {
    let queue = FILES.queue.lock();
    queue.idle + most().saturating_sub(queue.working()) > queue.remotes.len() + 1
}

/// Gives a remote request to a worker. An operation on a path needs one with the rights of this thread, which otherwise
/// carries it out itself. Ends it in a forked child, which has none of its parent's threads.
pub(crate) fn send(remote: RemoteRequest) {
    if !remote.request.looks_up_paths(&remote.memory) {
        return send_to(&FILES, FILES.queue.lock(), remote);
    }
    let rights = Rights::of_this_thread();
    let mut queue = PATHS.queue.lock();
    if rights.is_some_and(|rights| queue.admits(rights)) {
        return send_to(&PATHS, queue, remote);
    }
    drop(queue);
    call_here(remote);
}

/// Carries out an operation on a path on this thread.
#[cold]
fn call_here(mut remote: RemoteRequest) {
    if let CallOutcome::Done(ended) = remote.carry_out() {
        count(|counts| &mut counts.inline_ops, &remote.request, ended);
        event::emit_deferred();
        remote.end(ended);
    }
}

fn send_to(pool: &'static Pool, mut queue: MutexGuard<'static, WorkerQueue>, remote: RemoteRequest) {
    if !PROCESS.get_or_init(fork::Mark::current).is_current() {
        drop(queue);
        return remote.refuse(libc::EOPNOTSUPP);
    }
    queue.remotes.push_back(remote);
    if queue.idle >= queue.remotes.len() {
        drop(queue);
        return pool.came.notify_one();
    }
    if queue.working() < most() {
        queue.threads += 1;
        let started = start_thread("ringfile-worker", || run(pool));
        if started.is_err() {
            queue.threads -= 1;
            if queue.working() == 0 {
                let mut left = queue.remotes.pop_back();
                drop(queue);
                while let Some(remote) = left {
                    left = carry_out(remote, event::emit_deferred);
                }
            }
        }
    }
}

/// Ends a handler's requests, or the one with this index, that are no longer wanted and that no worker has begun.
/// Called with no lock held.
pub(crate) fn withdraw(handler: &dyn Handler, index: Option<u32>) {
    if are_of_another_process() {
        return;
    }
    let is_unwanted = |remote: &RemoteRequest| {
        let of = remote.handler.as_ref().map(|handler| handler.address());
        of == Some(handler.address())
            && index.is_none_or(|index| remote.index == index)
            && !remote.is_wanted()
    };
    let mut withdrawn = Vec::new();
    for pool in [&FILES, &PATHS] {
        let remotes = &mut pool.queue.lock().remotes;
        let mut from = 0;
        while let Some(at) = remotes.range(from..).position(is_unwanted) {
            from += at;
            withdrawn.extend(remotes.remove(from));
        }
    }
    withdrawn.into_iter().for_each(refuse_unwanted);
}

/// Ends requests that are no longer wanted.
fn refuse_unwanted(remote: RemoteRequest) {
    add_to_counts(|counts| counts.cancelled += 1);
    remote.refuse(libc::ECANCELED);
}

/// How long a worker waits for a pipe, and how often the poller checks whether requests are still wanted.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Carries out a remote request. If it would wait for another process or a person, it is returned, or given to the
/// poller, so that it does not delay other requests, and no data goes to a read that is no longer wanted. A copy is
/// returned after each of its calls. `emit` emits deferred events.
fn carry_out(mut remote: RemoteRequest, emit: impl FnOnce()) -> Option<RemoteRequest> {
    if !remote.is_wanted() {
        refuse_unwanted(remote);
        return None;
    }
    if remote.target.kind == FileKind::Other {
        match try_stream(&mut remote) {
            Some(CallOutcome::Done(ended)) => return end(remote, ended, emit),
            Some(_) => return wait_for(remote),
            None => {}
        }
    }
    // A copy may take hours: others that wait have their turn after each call.
    match remote.carry_out() {
        CallOutcome::Done(ended) => end(remote, ended, emit),
        CallOutcome::WouldWait | CallOutcome::NotOffered => Some(remote),
    }
}

fn end(remote: RemoteRequest, ended: OpResult, emit: impl FnOnce()) -> Option<RemoteRequest> {
    count(|counts| &mut counts.worker_ops, &remote.request, ended);
    if event::are_deferred() {
        emit();
    }
    remote.end(ended);
    None
}

/// Emits deferred events on a worker. A subscriber may wait for a request of its own: meanwhile, another worker may
/// take the place of this one.
#[cold]
fn emit_on_worker(pool: &Pool) {
    pool.queue.lock().emitting += 1;
    event::emit_deferred();
    pool.queue.lock().emitting -= 1;
}

/// Tries an operation on a pipe, a socket or a terminal, or the rest of it, without waiting; `None` if it needs a call
/// that may wait. Another reader may take the data, and another writer the room, that `poll` has reported, and a large
/// write has room only for a part, so the call must not wait either.
fn try_stream(remote: &mut RemoteRequest) -> Option<CallOutcome> {
    wanted(remote)?;
    if !is_ready(remote, Timespec::default()) {
        return Some(CallOutcome::WouldWait);
    }
    match plain::attempt_rest(&remote.target, &remote.request, &mut remote.memory, &mut remote.progress) {
        // Before Linux 6.4 and 6.5, pipes and sockets have no non-blocking writes.
        CallOutcome::NotOffered if remote.request.kind.is_write() && is_pipe_or_stream_socket(remote) => {
            Some(write_pages(remote))
        }
        CallOutcome::NotOffered => None,
        attempt => Some(attempt),
    }
}

/// Returns whether a write may go there in pieces: a terminal may have less room than a page, and elsewhere (datagrams,
/// devices) each write may be a message.
#[cold]
fn is_pipe_or_stream_socket(remote: &RemoteRequest) -> bool {
    let fd = remote.target.as_fd();
    match descriptor::status(fd).map(|status| FileType::from_raw_mode(status.st_mode)) {
        Ok(FileType::Fifo) => true,
        Ok(FileType::Socket) => rustix::net::sockopt::socket_type(fd) == Ok(SocketType::STREAM),
        _ => false,
    }
}

/// Writes to a pipe or a socket without non-blocking writes while it is ready.
fn write_pages(remote: &mut RemoteRequest) -> CallOutcome {
    loop {
        let RemoteRequest { target, request, memory, progress, .. } = &mut *remote;
        let attempt = plain::call_once(target, request, memory, progress, || true);
        if attempt != CallOutcome::WouldWait || !is_ready(remote, Timespec::default()) {
            return attempt;
        }
    }
}

/// Returns what a pipe, a socket or a terminal must be ready for. `None` for an operation that does not depend on it.
fn wanted(remote: &RemoteRequest) -> Option<PollFlags> {
    match remote.request.kind {
        kind if kind.is_read() => Some(PollFlags::IN),
        kind if kind.is_write() => Some(PollFlags::OUT),
        _ => None,
    }
}

/// Returns whether a pipe, a socket or a terminal is ready, or becomes ready in this time. If that is unknown, it
/// counts as ready.
fn is_ready(remote: &RemoteRequest, within: Timespec) -> bool {
    let Some(wanted) = wanted(remote) else { return true };
    let mut polled = [PollFd::from_borrowed_fd(remote.target.as_fd(), wanted)];
    !matches!(poll(&mut polled, Some(&within)), Ok(0) | Err(Errno::INTR))
}

/// Waits for a stream for a while, if enough workers are left for other requests: handing the request over takes about
/// 30 µs. Returns it if it is ready, and otherwise gives it to the poller.
fn wait_for(remote: RemoteRequest) -> Option<RemoteRequest> {
    let mut queue = FILES.queue.lock();
    if queue.on_streams < most() / 2 {
        queue.on_streams += 1;
        drop(queue);
        let is_ready = is_ready(&remote, LOOK);
        queue = FILES.queue.lock();
        queue.on_streams -= 1;
        if is_ready {
            return Some(remote);
        }
    }
    if queue.poller.is_none() {
        queue.poller = Ring::make_signal().ok().filter(|signal| {
            let signal = Arc::clone(signal);
            let run = move || poll_all(&signal);
            start_thread("ringfile-poller", run).is_ok()
        });
    }
    let Some(signal) = queue.poller.clone() else {
        drop(queue);
        is_ready(&remote, LOOK);
        return Some(remote);
    };
    queue.waiting.push(remote);
    drop(queue);
    let _ = rustix::io::write(&*signal, &1u64.to_ne_bytes());
    None
}

/// Runs the poller: returns requests to the workers when they can be carried out, or are no longer wanted.
fn poll_all(signal: &OwnedFd) {
    let mut waiting = Vec::new();
    loop {
        let timeout =
            if waiting.is_empty() { Timespec { tv_sec: IDLE.as_secs() as i64, tv_nsec: 0 } } else { LOOK };
        let ready = look(signal, &waiting, &timeout);
        // `ready` has the signal first, then the requests in their order.
        let mut at = 0;
        let (go, stay) = std::mem::take(&mut waiting).into_iter().partition(|remote: &RemoteRequest| {
            at += 1;
            ready.get(at).is_none_or(|&is_ready| is_ready) || !remote.is_wanted()
        });
        waiting = stay;
        for remote in go {
            // This calls user code if no worker can be started.
            caught("a waker or a buffer panicked on the thread that polls", || send(remote));
        }
        let mut queue = FILES.queue.lock();
        waiting.append(&mut queue.waiting);
        if waiting.is_empty() && ready.first() == Some(&false) {
            queue.poller = None;
            return;
        }
    }
}

/// Waits until one of these requests can be carried out, or the poller is woken. Returns whether it was woken, then
/// which requests are ready; nothing if that is unknown.
fn look(signal: &OwnedFd, waiting: &[RemoteRequest], timeout: &Timespec) -> Vec<bool> {
    let signal_fd = PollFd::from_borrowed_fd(signal.as_fd(), PollFlags::IN);
    let streams = waiting.iter().map(|remote| {
        let wanted = wanted(remote).unwrap_or(PollFlags::empty());
        PollFd::from_borrowed_fd(remote.target.as_fd(), wanted)
    });
    let mut polled: Vec<PollFd<'_>> = std::iter::once(signal_fd).chain(streams).collect();
    match poll(&mut polled, Some(timeout)) {
        Ok(_) => {
            let ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            if ready[0] {
                let _ = rustix::io::read(signal, &mut [0; 8]);
            }
            ready
        }
        Err(Errno::INTR) => (0..=waiting.len()).map(|at| at == 0).collect(),
        Err(_) => {
            // RLIMIT_NOFILE allows to poll fewer descriptors, or there is no memory: the workers try each request from
            // time to time.
            std::thread::sleep(Duration::from_nanos(LOOK.tv_nsec as u64));
            Vec::new()
        }
    }
}

/// Puts a request that was carried out in part behind the others that wait. Returns the queue, still locked: another
/// thread that adds a request must not take this one for one that waits for a worker.
fn give_back(pool: &Pool, rest: RemoteRequest) -> MutexGuard<'_, WorkerQueue> {
    let mut queue = pool.queue.lock();
    // Looked at under the lock: a withdrawal has either come before, or finds it in the queue.
    if rest.is_wanted() {
        queue.remotes.push_back(rest);
        return queue;
    }
    drop(queue);
    caught(PANICKED, || refuse_unwanted(rest));
    pool.queue.lock()
}

/// Ends a request that was sent with other rights than this worker has: `seteuid` and its like in the C library change those of
/// all threads, and the caller may have changed its own again. Ends all that were sent with these rights, and notes the others.
#[cold]
fn refuse_stale(pool: &Pool, remote: RemoteRequest, sent_with: &Arc<Rights>) {
    let own = Rights::of_this_thread().map(Arc::new);
    let mut queue = pool.queue.lock();
    let are_noted = queue.rights.as_ref().is_some_and(|noted| Arc::ptr_eq(noted, sent_with));
    let others = if are_noted {
        queue.rights = own;
        std::mem::take(&mut queue.remotes)
    } else {
        VecDeque::new()
    };
    drop(queue);
    for stale in std::iter::once(remote).chain(others) {
        caught(PANICKED, || stale.refuse(libc::EAGAIN));
    }
}

const PANICKED: &str = "a waker or a buffer panicked on a worker thread";

fn run(pool: &Pool) {
    let mut queue = pool.queue.lock();
    loop {
        if let Some(remote) = queue.remotes.pop_front() {
            let sent_with = queue.rights.clone();
            drop(queue);
            if let Some(rights) = sent_with.filter(|rights| !rights.are_of_this_thread()) {
                refuse_stale(pool, remote, &rights);
                queue = pool.queue.lock();
                continue;
            }
            queue = match caught(PANICKED, || carry_out(remote, || emit_on_worker(pool))).flatten() {
                Some(rest) => give_back(pool, rest),
                None => pool.queue.lock(),
            };
            continue;
        }
        queue.idle += 1;
        let (woken, waited) = pool.came.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        queue.idle -= 1;
        if waited.timed_out() && queue.remotes.is_empty() {
            queue.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::File;
    use crate::driver::op::{Kind, Request};
    use crate::driver::slots::handler::Finished;
    use crate::memory::IoMemory;

    #[derive(Default)]
    struct Receiver {
        is_unwanted: AtomicBool,
        ended: Mutex<Option<OpResult>>,
    }

    impl Handler for Receiver {
        fn done(self: Arc<Self>, _: u32, finished: Finished) {
            *self.ended.lock().unwrap() = Some(finished.ended);
        }

        fn is_wanted(&self, _: u32) -> bool {
            !self.is_unwanted.load(Ordering::SeqCst)
        }

        fn address(&self) -> *const () {
            std::ptr::from_ref(self).cast()
        }
    }

    #[test]
    fn a_copy_that_is_withdrawn_between_two_calls_does_not_wait_for_a_worker() {
        let file = File::open_blocking("/proc/self/exe").unwrap();
        let receiver = Arc::new(Receiver::default());
        let handler = Arc::clone(&receiver) as Arc<dyn Handler>;
        let request = Request { want: 1, ..Request::of(Kind::Copy) };
        let rest = RemoteRequest::new(file.target(), &request, IoMemory::None, handler, 0);
        receiver.is_unwanted.store(true, Ordering::SeqCst);
        withdraw(&*receiver, None);
        assert!(receiver.ended.lock().unwrap().is_none(), "it is in no queue");
        drop(give_back(&FILES, rest));
        let ended = receiver.ended.lock().unwrap().take();
        assert_eq!(ended, Some(OpResult { done: 0, errno: libc::ECANCELED }), "no worker was asked");
    }
}
