//! A ring without a thread of its own: tokio's threads submit its operations and collect its completions.
//!
//! Submission entries are collected under a lock. In one variant a single task, the driver, submits them together: it
//! runs when an entry was queued, or when the ring's eventfd signals a completion. In the other, each read submits its own
//! entry and collects the completions that have arrived. Invariants: a task's buffer is in flight at most once, and its
//! task owns it and ends only after its read has completed.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use io_uring::{IoUring, opcode, types};
use ringfile::Buffer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Flavor;

const GETEVENTS: u32 = 1;

/// The ring and what its tasks share; see the module.
pub struct Ring {
    inner: Mutex<Inner>,
    eventfd: AsyncFd<OwnedFd>,
    flavor: Flavor,
    at_once: bool,
}

struct Inner {
    ring: IoUring,
    slots: Vec<Slot>,
    driver: Option<Waker>,
    /// Whether the driver has been woken, and will submit everything that is queued when it runs.
    driver_is_due: bool,
    /// Whether the driver has let earlier tasks run first.
    driver_has_waited: bool,
    stopped: bool,
    completed: u64,
    /// Kept open, because the ring needs this file as long as it lives.
    _file: std::fs::File,
}

enum Slot {
    Idle,
    Queued(Option<Waker>),
    Done(i32),
}

impl Ring {
    /// Makes a ring on which the file and the memory of each buffer are registered; slot n reads into buffer n.
    pub fn new(
        file: std::fs::File,
        buffers: &mut [Buffer],
        flavor: Flavor,
        at_once: bool,
    ) -> io::Result<Arc<Ring>> {
        let mut builder = IoUring::builder();
        match flavor {
            Flavor::Current => builder.setup_single_issuer().setup_defer_taskrun(),
            Flavor::Multi | Flavor::Threads => builder.setup_coop_taskrun(),
        };
        let ring = builder.setup_submit_all().build(buffers.len().next_power_of_two() as u32)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let vectors: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.capacity() })
            .collect();
        // SAFETY: the kernel keeps references to the pages, and no read is queued into memory that has been freed.
        unsafe { ring.submitter().register_buffers(&vectors)? };
        // SAFETY: a system call that takes no pointers.
        let eventfd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if eventfd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        let eventfd = unsafe { OwnedFd::from_raw_fd(eventfd) };
        ring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        let inner = Inner {
            ring,
            slots: buffers.iter().map(|_| Slot::Idle).collect(),
            driver: None,
            driver_is_due: false,
            driver_has_waited: false,
            stopped: false,
            completed: 0,
            _file: file,
        };
        // SAFETY: the `AsyncFd` owns the descriptor, whose number does not change, until both are dropped.
        let eventfd = unsafe { AsyncFd::register_with_interest(eventfd, Interest::READABLE)? };
        Ok(Arc::new(Ring { inner: Mutex::new(inner), eventfd, flavor, at_once }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of completions so far.
    pub fn completed(&self) -> u64 {
        self.lock().completed
    }

    /// Makes the driver end.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopped = true;
        let driver = inner.driver.take();
        drop(inner);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Reads into the slot's buffer. The future must be polled until it completes.
    pub async fn read(&self, slot: usize, mut buffer: Buffer, offset: u64) -> (io::Result<usize>, Buffer) {
        let (start, len) = (buffer.as_mut_ptr(), buffer.capacity() as u32);
        let entry = opcode::ReadFixed::new(types::Fixed(0), start, len, slot as u16)
            .offset(offset)
            .build()
            .user_data(slot as u64);
        let mut entry = Some(entry);
        let result = poll_fn(|context| self.poll_read(slot, &mut entry, context)).await;
        let result = match result {
            0.. => Ok(result as usize),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        };
        (result, buffer)
    }

    fn poll_read(
        &self,
        slot: usize,
        entry: &mut Option<io_uring::squeue::Entry>,
        context: &mut Context<'_>,
    ) -> Poll<i32> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Slot::Done(result) = inner.slots[slot] {
            inner.slots[slot] = Slot::Idle;
            return Poll::Ready(result);
        }
        let Some(entry) = entry.take() else {
            inner.slots[slot] = Slot::Queued(Some(context.waker().clone()));
            return Poll::Pending;
        };
        // SAFETY: the future that polls this owns the buffer, and is polled until it completes.
        unsafe { inner.ring.submission().push(&entry) }.expect("as many entries as slots");
        if self.at_once {
            return self.submit_now(guard, slot, context);
        }
        inner.slots[slot] = Slot::Queued(Some(context.waker().clone()));
        let driver = if inner.driver_is_due { None } else { inner.driver.clone() };
        inner.driver_is_due = true;
        drop(guard);
        driver.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    fn submit_now(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        slot: usize,
        context: &mut Context<'_>,
    ) -> Poll<i32> {
        let mut woken = Vec::new();
        inner.slots[slot] = Slot::Queued(None);
        inner.turn(self.flavor, &mut woken);
        let result = match inner.slots[slot] {
            Slot::Done(result) => {
                inner.slots[slot] = Slot::Idle;
                Poll::Ready(result)
            }
            _ => {
                inner.slots[slot] = Slot::Queued(Some(context.waker().clone()));
                Poll::Pending
            }
        };
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    /// The driver: submits and collects until [`stop`](Self::stop).
    pub async fn drive(self: Arc<Self>) -> io::Result<()> {
        let mut woken = Vec::new();
        poll_fn(|context| self.poll_drive(&mut woken, context)).await
    }

    fn poll_drive(&self, woken: &mut Vec<Waker>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut inner = self.lock();
            if inner.stopped {
                return Poll::Ready(Ok(()));
            }
            if inner.driver.as_ref().is_none_or(|driver| !driver.will_wake(context.waker())) {
                inner.driver = Some(context.waker().clone());
            }
            // The multi-thread runtime runs a task that another task has woken next, so the driver would run after every
            // read.
            if self.flavor == Flavor::Multi && inner.driver_is_due && !inner.driver_has_waited {
                inner.driver_has_waited = true;
                drop(inner);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            inner.driver_is_due = false;
            inner.driver_has_waited = false;
            inner.turn(self.flavor, woken);
            drop(inner);
            woken.drain(..).for_each(Waker::wake);
            match self.eventfd.poll_read_ready(context)? {
                // Edge-triggered: each completion causes a new edge, so the counter need not be read.
                Poll::Ready(mut guard) => guard.clear_ready(),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Inner {
    /// Submits what is queued and collects what has completed.
    fn turn(&mut self, flavor: Flavor, woken: &mut Vec<Waker>) {
        let queued = self.ring.submission().len() as u32;
        // With DEFER_TASKRUN, the kernel posts completions only when the thread asks for them.
        if queued > 0 || flavor == Flavor::Current {
            self.enter(queued);
        }
        for completion in self.ring.completion() {
            let slot = &mut self.slots[completion.user_data() as usize];
            self.completed += 1;
            if let Slot::Queued(Some(waker)) = std::mem::replace(slot, Slot::Done(completion.result())) {
                woken.push(waker);
            }
        }
    }

    fn enter(&self, queued: u32) {
        loop {
            // SAFETY: the call takes no argument, and each queued entry was valid when it was pushed.
            match unsafe { self.ring.submitter().enter::<()>(queued, 0, GETEVENTS, None) } {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Returning the error would free memory that reads in flight write to.
                    eprintln!("compare: submitting: {error}");
                    std::process::exit(1);
                }
            }
        }
    }
}
