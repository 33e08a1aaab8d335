//! The descriptors that are readable when a thread may have completions to take.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use linux_raw_sys::io_uring::io_uring_op::IORING_OP_MSG_RING;

use super::set::Ports;
use crate::ring::Ring;

/// See the module.
#[derive(Default)]
pub(crate) struct CompletionSignals {
    /// The ring's descriptor. If the thread has no ring yet, its first one will signal it.
    ring: Option<Arc<OwnedFd>>,
    /// The wake-up descriptor, which AIO signals.
    wakeup: Option<Arc<OwnedFd>>,
}

impl CompletionSignals {
    pub(crate) fn each(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ring.iter().chain(&self.wakeup).map(AsFd::as_fd)
    }
}

impl Ports {
    /// Returns the descriptors of a thread with so many operations `in_flight`, created on first use.
    ///
    /// # Errors
    /// Those of `eventfd(2)`, and of registering the descriptor with the ring.
    pub(crate) fn completion_signals(&mut self, in_flight: usize) -> std::io::Result<CompletionSignals> {
        if self.main.is_none() {
            let _ = self.make_main();
        }
        if let Some(main) = self.main.as_ref().filter(|_| self.options.is_shared) {
            // Without an eventfd, which costs a system call for each turn.
            let ring = Some(main.ring.descriptor());
            return Ok(CompletionSignals { ring, wakeup: self.signal_ends()? });
        }
        // Before Linux 5.18 registering an eventfd waits until nothing is in flight on the ring
        // (`io_register_op_must_quiesce`), and the poll of the wake-up descriptor stays in flight. That release brought
        // MSG_RING.
        let on_rings = in_flight - self.aio.open() as usize;
        if let Some(main) = &self.main
            && main.ring.signal().is_none()
            && !main.ring.supports(IORING_OP_MSG_RING as u8)
            && (on_rings > 0 || main.wakeup_armed)
        {
            return Err(rustix::io::Errno::BUSY.into());
        }
        let ring = match (&mut self.main, &self.signal) {
            (Some(main), _) => main.ring.completion_signal()?,
            (None, Some(signal)) => Arc::clone(signal),
            (None, None) => Arc::clone(self.signal.insert(Ring::make_signal()?)),
        };
        Ok(CompletionSignals { ring: Some(ring), wakeup: self.signal_ends()? })
    }

    /// Makes operations that end in AIO signal the wake-up descriptor, for code that waits for it outside the driver, and
    /// makes it readable now if operations have already ended.
    pub(crate) fn signal_ends(&mut self) -> std::io::Result<Option<Arc<OwnedFd>>> {
        self.shared.eventfd(&mut self.wakeup)?;
        self.aio.signals = true;
        match self.aio.context {
            Some(_) => self.shared.ring_wakeup(),
            // Until now the descriptor has announced only messages of other threads, which have been read.
            None => self.shared.reset_wakeup(),
        }
        Ok(self.wakeup.clone())
    }

    /// Resets the wake-up descriptor. Leaves it readable if code outside the driver waits for it, and an operation is
    /// in flight that will not signal it.
    #[cold]
    pub(super) fn reset_wakeup(&self) {
        let is_silent = self.aio.context.as_ref().is_some_and(|aio| aio.silent() > 0);
        if !(self.aio.signals && is_silent) {
            self.shared.reset_wakeup();
        }
    }
}
