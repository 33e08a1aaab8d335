//! Chooses how an operation is carried out: by the ring (or AIO in its place), by an inline call, or by a worker.

use linux_raw_sys::general::RWF_DSYNC;

use super::route::{Choice, FileSystem, Route, workers_are_forced};
use crate::driver::op::{Kind, Request, is_cached};
use crate::driver::{FileKind, Target};

impl Target {
    /// Returns whether an operation for the ring may be a plain call if its thread only waits for it: one direct read
    /// of 4 KiB took 17 to 18 µs of CPU time by the call, and 19 to 22 by the ring, which passes syncs and durable
    /// writes to a kernel thread. A pipe is never waited for in a plain call, which could not be cancelled.
    pub(crate) fn may_wait_inline(&self, request: &Request) -> bool {
        let plain = match request.kind {
            Kind::Sync | Kind::SyncRange => true,
            kind => kind.moves_data() && request.op_flags & !RWF_DSYNC == 0,
        };
        self.lanes.route == Route::Auto
            && plain
            && self.kind != FileKind::Other
            && self.ring.announces()
            && !workers_are_forced()
    }

    /// Returns whether the operation is a single plain call, to which nothing is added: it may be made without
    /// [choosing](Self::choose) while the lane is [settled](super::route::Lane::settle).
    pub(crate) fn is_simple(&self) -> bool {
        self.lanes.route == Route::Auto
            && self.cache_flags() == 0
            && !self.has_extra()
            && !self.lanes.file_system.has_a_server()
    }

    /// Chooses how an operation is carried out.
    pub(crate) fn choose(&self, request: &Request) -> Choice {
        if workers_are_forced() && !self.lanes.insists(request.kind) {
            return Choice::Workers;
        }
        match self.lanes.route {
            Route::Ring | Route::Aio => return Choice::Ring,
            Route::Inline => return Choice::Inline,
            Route::Workers => return Choice::Workers,
            Route::Auto => {}
        }
        // A read of a pipe may wait forever.
        let waits = self.kind == FileKind::Other || !self.ring.announces();
        if waits || !request.kind.moves_data() {
            return Choice::Ring;
        }
        // Flags of a single write make it wait until it is durable.
        if (request.op_flags != 0 || self.cache_flags() != 0) && self.lanes.file_system != FileSystem::Memory
        {
            return Choice::Ring;
        }
        // Bytes that an attempt appended before it would have had to wait would be appended again.
        if self.appends && request.kind.is_write() {
            return Choice::Ring;
        }
        match self.lanes.lane(request.kind).choose() {
            Choice::Inline if self.may_wait_for_a_server(request) => Choice::Ring,
            choice => choice,
        }
    }

    /// Returns whether the plain call of a read may wait for the answer of a server, for any length of time, and hold
    /// up the other reads of its batch and the thread's other tasks. It does not if the page cache holds the data. If the
    /// kernel does not report that, the answer is no, and such calls are timed.
    fn may_wait_for_a_server(&self, request: &Request) -> bool {
        self.lanes.file_system.has_a_server()
            && request.kind.is_read()
            && (self.direct().is_some()
                || is_cached(self, request.offset, request.want as u64).is_ok_and(|cached| !cached))
    }
}
