//! The only code that talks to io_uring.
//!
//! A [`Ring`] belongs to one thread. It knows submission and completion entries, registered buffers and files; it does
//! not know what an operation means, or what waits for it. Invariants:
//!
//! - entries between the kernel's head and our tail are the only ones that [`Ring::enter`] submits;
//! - an entry that was not submitted can be withdrawn; a submitted one belongs to the kernel until its completion;
//! - after a `fork` the child never touches the parent's ring ([`fork`]).

mod abi;
use ringfile_buffer::internal::fork;
mod refusal;
pub(crate) mod registry;
mod setup;
pub(crate) mod thread_end;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::Duration;

use linux_raw_sys::io_uring::{self as uapi, io_uring_register_op as register_op};

pub(crate) use abi::{CommandSqe, Cqe, NvmeCommand, Sqe, check};
pub(crate) use setup::RingOptions;
pub use setup::TaskRun;

use crate::descriptor;
pub use refusal::{RegistrationRefused, refused_registration};
use registry::ClonedBuffers;
pub(crate) use registry::{can_clone, register_now};

/// How many registered files a ring has room for; a file with a higher number uses its descriptor.
const FILE_SLOTS: u32 = 1024;

/// A submission and a completion queue shared with the kernel.
pub(crate) struct Ring {
    head: NonNull<AtomicU32>,
    tail: NonNull<AtomicU32>,
    kernel_flags: NonNull<AtomicU32>,
    entries: NonNull<Sqe>,
    mask: u32,
    /// Entry `i` of either queue begins at place `i << entry_shift`: a large entry takes two places.
    entry_shift: u32,
    /// The position of the next entry; the shared tail follows when entries are submitted.
    next: u32,
    /// The shared tail: with SQPOLL, entries below it may already belong to the kernel.
    published: u32,
    cq_head: NonNull<AtomicU32>,
    cq_tail: NonNull<AtomicU32>,
    cqes: NonNull<Cqe>,
    cq_mask: u32,
    cq_next: u32,
    enter_fd: i32,
    enter_flags: u32,
    sqpoll: bool,
    /// How often `io_uring_enter` was called.
    pub(crate) enters: u64,
    /// The number of entries that the last `enter` submitted.
    submitted: u32,
    /// The number of completions taken since the last call of `enter_sizes`.
    collected: u32,
    pub(crate) buffers: ClonedBuffers,
    file_table: bool,
    supported: [bool; 256],
    fork_mark: fork::Mark,
    completion_signal: Option<Arc<OwnedFd>>,
    /// The position of a linked entry whose predecessor the kernel has accepted without it.
    cut_off: Option<u32>,
    /// For tests: the next `enter` submits at most this many, like a kernel that runs out of memory.
    #[cfg(test)]
    pub(crate) hand_over_at_most: Option<u32>,
    mapping: setup::Mapping,
}

// SAFETY: the addresses lie in its own mapping, which it keeps, and every method that changes anything takes `&mut self`. The
// kernel refuses to enter a ring that was made for one thread from another.
unsafe impl Send for Ring {}

/// How long a wait with a limit pauses where the kernel has no such wait.
const NO_TIMEOUT_PAUSE: Duration = Duration::from_micros(200);

/// The flag of an entry for which the next one waits.
const LINK: u8 = 1 << uapi::io_uring_sqe_flags_bit::IOSQE_IO_LINK_BIT as u8;

/// What [`Ring::enter`] does after submitting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Submit entries and return.
    Submitted,
    /// Also collect the available completions.
    Collected,
    /// Also wait for at least this many completions.
    Completed(u32),
}

/// See [`Ring::sleeper`].
pub(crate) struct Sleeper {
    fd: Arc<OwnedFd>,
    flags: u32,
    has_timeout: bool,
}

impl Sleeper {
    /// Waits until the ring has a completion, or one was taken since this call began, but not longer than `at_most`.
    /// Before Linux 5.11 a wait with a limit returns soon.
    ///
    /// # Errors
    /// `ETIME`, `EINTR`, or another errno of the kernel.
    pub(crate) fn sleep(&self, at_most: Option<Duration>) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        let waited = match at_most {
            // SAFETY: nothing is submitted.
            None => unsafe { abi::enter(fd, 0, 1, self.flags) },
            // SAFETY: as above.
            Some(at_most) if self.has_timeout => unsafe { abi::enter_for(fd, 0, 1, self.flags, at_most) },
            Some(at_most) => {
                std::thread::sleep(at_most.min(NO_TIMEOUT_PAUSE));
                return Ok(());
            }
        };
        waited.map(drop)
    }
}

impl Ring {
    /// Creates a ring for the calling thread. `waker` makes the thread call [`ClonedBuffers::forget_released`] soon.
    ///
    /// # Errors
    /// Those of `io_uring_setup(2)`; nothing is left behind.
    pub(crate) fn new(options: &RingOptions, waker: Waker) -> io::Result<Self> {
        let mapping = setup::make(options)?;
        let params = mapping.params;
        let supported = setup::probe(&mapping.fd)?;
        let files = register_op::IORING_REGISTER_FILES2;
        let mut ring = Self {
            head: mapping.field(params.sq_off.head),
            tail: mapping.field(params.sq_off.tail),
            kernel_flags: mapping.field(params.sq_off.flags),
            entries: mapping.entries(),
            entry_shift: setup::entry_shift(&params),
            mask: params.sq_entries - 1,
            next: 0,
            published: 0,
            cq_head: mapping.field(params.cq_off.head),
            cq_tail: mapping.field(params.cq_off.tail),
            cqes: mapping.field(params.cq_off.cqes),
            cq_mask: params.cq_entries - 1,
            cq_next: 0,
            enter_fd: mapping.fd.as_raw_fd(),
            enter_flags: 0,
            sqpoll: params.flags & uapi::IORING_SETUP_SQPOLL != 0,
            enters: 0,
            submitted: 0,
            collected: 0,
            buffers: ClonedBuffers::prepare(&mapping.fd, waker),
            file_table: abi::register_table(&mapping.fd, files, FILE_SLOTS).is_ok(),
            cut_off: None,
            #[cfg(test)]
            hand_over_at_most: None,
            supported,
            fork_mark: fork::Mark::current(),
            completion_signal: None,
            mapping,
        };
        if options.no_iowait && params.features & uapi::IORING_FEAT_NO_IOWAIT != 0 {
            ring.enter_flags |= uapi::IORING_ENTER_NO_IOWAIT;
        }
        if !options.is_shared {
            ring.register_own_fd();
        }
        Ok(ring)
    }

    /// Registers the ring's own descriptor with the calling thread, which saves the kernel a look-up on each `enter`.
    fn register_own_fd(&mut self) {
        let (opcode, own) = (register_op::IORING_REGISTER_RING_FDS, self.enter_fd as u64);
        // SAFETY: the operation expects a descriptor.
        if let Ok(index) = unsafe { self.update(opcode, u32::MAX, own) } {
            self.enter_fd = index as i32;
            self.enter_flags |= uapi::IORING_ENTER_REGISTERED_RING;
        }
    }

    /// Unregisters the ring's descriptor, which would keep the ring alive until the thread ends, and of which a thread
    /// may have only 16.
    fn unregister_own_fd(&mut self) {
        if self.enter_flags & uapi::IORING_ENTER_REGISTERED_RING == 0 || !self.is_ours() {
            return;
        }
        // SAFETY: the operation expects no data.
        let _ = unsafe { self.update(register_op::IORING_UNREGISTER_RING_FDS, self.enter_fd as u32, 0) };
    }

    /// Changes one place of a table of descriptors, and returns its number, which the kernel may have chosen.
    ///
    /// # Safety
    /// `data` is what the operation expects: for some the address of memory that the kernel reads.
    unsafe fn update(&self, opcode: register_op, place: u32, data: u64) -> io::Result<u32> {
        let mut update = uapi::io_uring_rsrc_update { offset: place, resv: 0, data };
        // SAFETY: one valid record; the rest is this function's contract.
        match unsafe { abi::register(self.mapping.fd.as_fd(), opcode as u32, &mut update, 1) }? {
            1 => Ok(update.offset),
            _ => Err(io::ErrorKind::Other.into()),
        }
    }

    /// Returns whether this process created the ring; a forked child did not, and must not touch it.
    pub(crate) fn is_ours(&self) -> bool {
        self.fork_mark.is_current()
    }

    pub(crate) fn supports(&self, opcode: u8) -> bool {
        self.supported[opcode as usize]
    }

    /// Returns how many entries the last `enter` submitted, and how many completions were taken since the last call.
    pub(crate) fn enter_sizes(&mut self) -> (u32, u32) {
        (self.submitted, std::mem::take(&mut self.collected))
    }

    /// Returns the features of this ring, in words.
    pub(crate) fn features(&self) -> Vec<String> {
        let more = [
            (self.enter_flags & uapi::IORING_ENTER_REGISTERED_RING != 0, "registered_ring_fd"),
            (self.file_table, "registered_files"),
            (self.buffers.has_table(), "registered_buffers"),
            (registry::can_clone(), "clone_buffers"),
            (self.supports(uapi::io_uring_op::IORING_OP_READV_FIXED as u8), "readv_fixed"),
            (self.enter_flags & uapi::IORING_ENTER_NO_IOWAIT != 0, "no_iowait"),
        ];
        let more = more.into_iter().filter(|(has, _)| *has).map(|(_, name)| name);
        let names = setup::flag_names(self.mapping.params.flags).chain(more).map(str::to_owned);
        names.chain([format!("entries={}", self.mapping.params.sq_entries)]).collect()
    }

    /// Returns how many more entries fit.
    pub(crate) fn space(&self) -> u32 {
        // SAFETY: the field lies in the mapping, which lives as long as `self`; the kernel writes it atomically.
        let head = unsafe { self.head.as_ref() }.load(Ordering::Acquire);
        self.mask + 1 - self.next.wrapping_sub(head)
    }

    /// Puts an entry into the queue and returns its position, or `None` if the queue is full.
    ///
    /// # Safety
    /// Memory that the entry names must stay valid, and, if the kernel writes to it, must not be accessed otherwise,
    /// until the entry was withdrawn or its completion was seen.
    #[inline]
    pub(crate) unsafe fn push(&mut self, sqe: Sqe) -> Option<u32> {
        *self.vacant()? = sqe;
        // SAFETY: by this function's contract.
        Some(unsafe { self.commit() })
    }

    /// Returns the next entry of the queue, to be filled in place; `None` if the queue is full. Its content has no
    /// effect before [`commit`](Self::commit).
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<&mut Sqe> {
        if self.space() == 0 {
            return None;
        }
        // SAFETY: an entry at or above the shared tail is ours to write.
        Some(unsafe { self.entry(self.next).as_mut() })
    }

    /// As [`vacant`](Self::vacant), for a command; `None` also if the ring's entries have no room for one.
    #[inline]
    pub(crate) fn vacant_command(&mut self) -> Option<&mut CommandSqe> {
        if self.space() == 0 || self.entry_shift == 0 {
            return None;
        }
        // SAFETY: an entry at or above the shared tail belongs to us, and is as large as two of the others.
        Some(unsafe { self.entry(self.next).cast().as_mut() })
    }

    #[inline]
    fn entry(&self, position: u32) -> NonNull<Sqe> {
        // SAFETY: the masked position is inside the array, which has room for this many entries of that size.
        unsafe { self.entries.add(((position & self.mask) << self.entry_shift) as usize) }
    }

    /// Puts the entry that was filled in place into the queue, and returns its position.
    ///
    /// # Safety
    /// [`vacant`](Self::vacant) gave an entry, it was filled, and it obeys the contract of [`push`](Self::push).
    #[inline]
    pub(crate) unsafe fn commit(&mut self) -> u32 {
        let position = self.next;
        self.next = position.wrapping_add(1);
        position
    }

    /// Withdraws the entry at `position` with the user data `own`, unless the kernel may already have it: it becomes a
    /// no-op whose completion carries `user_data`.
    pub(crate) fn withdraw(&mut self, position: u32, own: u64, user_data: u64) -> bool {
        if self.next.wrapping_sub(position).wrapping_sub(1) >= self.waiting() {
            return false;
        }
        let entry = self.entry(position);
        // After 2^32 entries another entry has this position, while a read of a pipe may still be in flight.
        // SAFETY: the position is one that the kernel has not been given, and was written by `push`.
        if unsafe { entry.as_ref() }.user_data != own {
            return false;
        }
        let nop = Sqe { opcode: uapi::io_uring_op::IORING_OP_NOP as u8, user_data, ..Sqe::default() };
        // SAFETY: as above.
        unsafe { entry.write(nop) };
        true
    }

    /// Returns the oldest entry that the kernel cannot have seen.
    fn first_ours(&self) -> u32 {
        if self.sqpoll {
            return self.published;
        }
        // SAFETY: as in `space`.
        unsafe { self.head.as_ref() }.load(Ordering::Acquire)
    }

    /// Returns the number of entries that were pushed but not submitted.
    pub(crate) fn waiting(&self) -> u32 {
        self.next.wrapping_sub(self.first_ours())
    }

    /// Withdraws every entry that was not submitted, oldest first.
    pub(crate) fn take_back(&mut self, mut each: impl FnMut(u64)) {
        let first = self.first_ours();
        for position in 0..self.next.wrapping_sub(first) {
            // SAFETY: positions between the kernel's head and `next` were written by `push`.
            each(unsafe { self.entry(first.wrapping_add(position)).read() }.user_data);
        }
        self.next = first;
        self.publish();
    }

    fn publish(&mut self) {
        if self.published != self.next {
            self.published = self.next;
            // SAFETY: as in `space`; release makes the entries below the tail visible before it.
            unsafe { self.tail.as_ref() }.store(self.next, Ordering::Release);
        }
    }

    fn has_flag(&self, flag: u32) -> bool {
        // SAFETY: as in `space`.
        unsafe { self.kernel_flags.as_ref() }.load(Ordering::Acquire) & flag != 0
    }

    /// Returns whether the kernel holds back completions that only an `enter` delivers.
    pub(crate) fn has_deferred(&self) -> bool {
        self.has_flag(uapi::IORING_SQ_TASKRUN | uapi::IORING_SQ_CQ_OVERFLOW)
    }

    /// Returns whether the completion queue had no room for completions that the next `enter` delivers.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.has_flag(uapi::IORING_SQ_CQ_OVERFLOW)
    }

    /// Returns how many entries the next `enter` submits: at most `most`, but never a part of a chain of links, which
    /// the kernel would cut there.
    fn slice(&self, most: u32) -> u32 {
        let waiting = self.waiting();
        let mut slice = waiting.min(most);
        while slice < waiting {
            let last = self.next.wrapping_sub(waiting).wrapping_add(slice - 1);
            // SAFETY: the position is one that the kernel has not been given, and was written by `push`.
            let flags = unsafe { self.entry(last).as_ref() }.flags;
            if flags & LINK == 0 {
                break;
            }
            slice += 1;
        }
        slice
    }

    /// Submits pushed entries, at most `most`, and waits as `until` says, but not longer than `at_most`, and not at all if more
    /// entries remain to be submitted. Makes one system call, or none if there is nothing to do.
    ///
    /// # Errors
    /// `ETIME` (the time has passed), `EINTR` (a signal; nothing is lost, call again), `EBUSY`, `EAGAIN`, `ENOMEM`
    /// (collect completions first), or another errno of the kernel; entries that were not taken stay in the queue.
    pub(crate) fn enter(&mut self, until: Until, most: u32, at_most: Option<Duration>) -> io::Result<()> {
        let mut submit = self.slice(most);
        let all = submit == self.waiting();
        self.publish();
        let mut flags = self.enter_flags;
        if self.sqpoll {
            // The kernel's thread reads the tail after it set the flag, so the flag must be read after the tail.
            std::sync::atomic::fence(Ordering::SeqCst);
            submit = 0;
            if self.has_flag(uapi::IORING_SQ_NEED_WAKEUP) {
                flags |= uapi::IORING_ENTER_SQ_WAKEUP;
            } else if until == Until::Submitted || (until == Until::Collected && !self.has_deferred()) {
                return Ok(());
            }
        }
        let wait = match until {
            Until::Completed(wanted) if all || self.sqpoll => wanted,
            _ => 0,
        };
        if until != Until::Submitted {
            flags |= uapi::IORING_ENTER_GETEVENTS;
        } else if submit == 0 && flags & uapi::IORING_ENTER_SQ_WAKEUP == 0 {
            return Ok(());
        }
        self.enters += 1;
        let asked = submit;
        // The kernel does not wait if it took fewer entries than it was given.
        #[cfg(test)]
        let (submit, wait) =
            self.hand_over_at_most.take().map_or((submit, wait), |most| (submit.min(most), 0));
        let taken = match at_most.filter(|_| wait > 0) {
            // SAFETY: the entries were put there by `push`, whose contract is the one required here.
            None => unsafe { abi::enter(self.enter_fd, submit, wait, flags) },
            Some(at_most) => self.enter_for(at_most, submit, wait, flags),
        };
        self.submitted = *taken.as_ref().unwrap_or(&0);
        if taken? < asked {
            self.look_for_a_cut();
        }
        Ok(())
    }

    /// Called when the kernel accepted only some entries. If it stopped inside a chain of links, it has begun the entries that
    /// it accepted, and would later begin the next one independently, at the same time (`io_submit_state_end`).
    #[cold]
    fn look_for_a_cut(&mut self) {
        let first = self.first_ours();
        // SAFETY: the position is inside the array, whose entries the kernel only reads.
        let flags = unsafe { self.entry(first.wrapping_sub(1)).as_ref() }.flags;
        if first != self.next && flags & LINK != 0 {
            self.cut_off = Some(first);
        }
    }

    /// Withdraws a linked entry whose predecessor the kernel took alone: it becomes a no-op with `user_data`. Returns
    /// the entry's own `user_data`.
    #[inline]
    pub(crate) fn take_cut_off(&mut self, user_data: u64) -> Option<u64> {
        let position = self.cut_off.take()?;
        // SAFETY: the position is one that the kernel has not been given, and was written by `push`.
        let cut_off = unsafe { self.entry(position).as_ref() }.user_data;
        self.withdraw(position, cut_off, user_data).then_some(cut_off)
    }

    /// Makes the system call of [`enter`](Self::enter), and waits for completions, but not longer than `at_most`.
    #[cold]
    fn enter_for(&mut self, at_most: Duration, submit: u32, wait: u32, flags: u32) -> io::Result<u32> {
        if self.mapping.params.features & uapi::IORING_FEAT_EXT_ARG == 0 {
            // Before Linux 5.11 a wait has no timeout: check, and pause a little if there is nothing. SAFETY: as in
            // `enter`.
            let taken = unsafe { abi::enter(self.enter_fd, submit, 0, flags) }?;
            if !self.has_completions() {
                std::thread::sleep(at_most.min(NO_TIMEOUT_PAUSE));
            }
            return Ok(taken);
        }
        // SAFETY: as in `enter`.
        unsafe { abi::enter_for(self.enter_fd, submit, wait, flags, at_most) }
    }

    /// Returns what a thread needs to wait for this ring's completions while another thread uses the ring.
    pub(crate) fn sleeper(&self) -> Sleeper {
        let has_timeout = self.mapping.params.features & uapi::IORING_FEAT_EXT_ARG != 0;
        let flags = self.enter_flags & !uapi::IORING_ENTER_REGISTERED_RING | uapi::IORING_ENTER_GETEVENTS;
        Sleeper { fd: Arc::clone(&self.mapping.fd), flags, has_timeout }
    }

    /// Returns whether a kernel thread takes entries. It may stop anywhere, even inside a chain of links, without
    /// saying where.
    pub(crate) fn is_sqpoll(&self) -> bool {
        self.sqpoll
    }

    /// Returns whether a completion is available, without asking the kernel.
    pub(crate) fn has_completions(&self) -> bool {
        // SAFETY: as in `space`.
        self.cq_next != unsafe { self.cq_tail.as_ref() }.load(Ordering::Acquire)
    }

    /// Takes the next completion, oldest first.
    #[inline]
    pub(crate) fn complete(&mut self) -> Option<Cqe> {
        if !self.has_completions() {
            return None;
        }
        let place = (self.cq_next & self.cq_mask) << self.entry_shift;
        // SAFETY: the masked position is inside the array; the kernel wrote this entry before it moved the tail past it, and
        // will not reuse it until our head has passed it.
        let Cqe { user_data, result, flags } = unsafe { *self.cqes.add(place as usize).as_ref() };
        self.cq_next = self.cq_next.wrapping_add(1);
        self.collected = self.collected.wrapping_add(1);
        // SAFETY: as in `space`; release: the entry was read before the kernel may overwrite it.
        unsafe { self.cq_head.as_ref() }.store(self.cq_next, Ordering::Release);
        Some(Cqe { user_data, result, flags })
    }

    /// Returns the ring's own descriptor. Without `DEFER_TASKRUN` it is readable while there are completions.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.mapping.fd)
    }

    /// Returns the descriptor that the kernel makes readable when it posts a completion, or has work that the next
    /// `enter` turns into one. Created and registered on first use. Reset by
    /// [`reset_completion_signal`](Self::reset_completion_signal).
    pub(crate) fn completion_signal(&mut self) -> io::Result<Arc<OwnedFd>> {
        match self.signal() {
            Some(signal) => Ok(signal),
            None => self.set_completion_signal(Self::make_signal()?),
        }
    }

    /// Creates a descriptor that is readable once it was written to, such as for [`signal_as`](Self::signal_as) of a
    /// ring that is made later.
    pub(crate) fn make_signal() -> io::Result<Arc<OwnedFd>> {
        Ok(Arc::new(descriptor::eventfd()?))
    }

    fn set_completion_signal(&mut self, signal: Arc<OwnedFd>) -> io::Result<Arc<OwnedFd>> {
        self.signal_through(&signal)?;
        // Completions posted before have no signal, so signal now.
        rustix::io::write(&*signal, &1_u64.to_ne_bytes())?;
        Ok(Arc::clone(self.completion_signal.insert(signal)))
    }

    /// Makes this ring's completions signal another descriptor, such as that of another ring, if there is one. Returns
    /// whether they did not do so before.
    pub(crate) fn signal_as(&mut self, other: Option<Arc<OwnedFd>>) -> io::Result<bool> {
        let Some(other) = other.filter(|other| {
            self.completion_signal.as_ref().is_none_or(|own| own.as_raw_fd() != other.as_raw_fd())
        }) else {
            return Ok(false);
        };
        if self.completion_signal.is_some() {
            let opcode = register_op::IORING_UNREGISTER_EVENTFD as u32;
            // SAFETY: this operation takes no argument.
            unsafe { abi::register::<()>(self.mapping.fd.as_fd(), opcode, std::ptr::null_mut(), 0) }?;
            self.completion_signal = None;
        }
        self.set_completion_signal(other).map(|_| true)
    }

    /// Makes this ring's completions signal a descriptor that nobody resets.
    pub(crate) fn signal_through(&self, signal: &OwnedFd) -> io::Result<()> {
        let mut fd = signal.as_raw_fd();
        let opcode = register_op::IORING_REGISTER_EVENTFD as u32;
        // SAFETY: one descriptor, read during the call.
        unsafe { abi::register(self.mapping.fd.as_fd(), opcode, &mut fd, 1) }.map(drop)
    }

    /// Returns whether completions are posted when the thread that has submitted the operation next enters the kernel.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_cooperative(&self) -> bool {
        self.mapping.params.flags & uapi::IORING_SETUP_COOP_TASKRUN != 0
    }

    /// Returns the descriptor of [`completion_signal`](Self::completion_signal), if it was created.
    pub(crate) fn signal(&self) -> Option<Arc<OwnedFd>> {
        self.completion_signal.clone()
    }

    /// Resets the descriptor of [`completion_signal`](Self::completion_signal), if there is one. Called before
    /// completions are collected, so that one that arrives meanwhile signals again.
    #[inline]
    pub(crate) fn reset_completion_signal(&self) {
        if let Some(signal) = &self.completion_signal {
            let _ = rustix::io::read(&**signal, &mut [0; 8]);
        }
    }

    /// Registers a file at `slot`, or empties the slot with `None`.
    pub(crate) fn set_file(&mut self, slot: u32, fd: Option<i32>) -> bool {
        if !self.file_table || slot >= FILE_SLOTS {
            return false;
        }
        let fd = fd.unwrap_or(-1);
        let address = (&raw const fd).expose_provenance() as u64;
        // SAFETY: the operation expects the address of a descriptor.
        unsafe { self.update(register_op::IORING_REGISTER_FILES_UPDATE, slot, address) }.is_ok()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.unregister_own_fd();
    }
}
