//! The C interface with arbitrary handles, lengths, sizes of structs and orders of calls. Memory is what the header asks
//! for; everything else is whatever comes: each call must return, and must not break memory.
//!
//! The interface's own files are compiled here, since it is a library for C alone.

#![no_main]
#![allow(non_camel_case_types, dead_code, reason = "the interface's own")]

#[path = "../../crates/ringfile-capi/src/append.rs"]
mod append;
#[path = "../../crates/ringfile-capi/src/batch.rs"]
mod batch;
#[path = "../../crates/ringfile-capi/src/cache.rs"]
mod cache;
#[path = "../../crates/ringfile-capi/src/cancel.rs"]
mod cancel;
#[path = "../../crates/ringfile-capi/src/control.rs"]
mod control;
#[path = "../../crates/ringfile-capi/src/error.rs"]
mod error;
#[path = "../../crates/ringfile-capi/src/file.rs"]
mod file;
#[path = "../../crates/ringfile-capi/src/fork.rs"]
mod fork;
#[path = "../../crates/ringfile-capi/src/info.rs"]
mod info;
#[path = "../../crates/ringfile-capi/src/io.rs"]
mod io;
#[path = "../../crates/ringfile-capi/src/local.rs"]
mod local;
#[path = "../../crates/ringfile-capi/src/log.rs"]
mod log;
#[path = "../../crates/ringfile-capi/src/memory.rs"]
mod memory;
#[path = "../../crates/ringfile-capi/src/op.rs"]
mod op;
#[path = "../../crates/ringfile-capi/src/path.rs"]
mod path;
#[path = "../../crates/ringfile-capi/src/pool.rs"]
mod pool;
#[path = "../../crates/ringfile-capi/src/queue.rs"]
mod queue;
#[path = "../../crates/ringfile-capi/src/raw.rs"]
mod raw;
#[path = "../../crates/ringfile-capi/src/recent.rs"]
mod recent;
#[path = "../../crates/ringfile-capi/src/shared.rs"]
mod shared;
#[path = "../../crates/ringfile-capi/src/table.rs"]
mod table;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{from_mut, null, null_mut, without_provenance_mut};
use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const PLACE: usize = 64 << 10;
const PLACES: usize = 16;
/// Longer than any memory.
const ABSURD: usize = isize::MAX as usize + 1;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = TempDir::new_in("/dev/shm").expect("a folder");
    std::env::set_current_dir(folder.path()).expect("it exists");
    folder
});

/// The memory for I/O, which outlives every operation.
static MEMORY: LazyLock<usize> = LazyLock::new(|| {
    Box::leak(vec![0_u64; PLACES * PLACE / 8].into_boxed_slice()).as_mut_ptr().expose_provenance()
});

#[derive(Arbitrary, Debug)]
enum Call {
    Open { path: u8, flags: u32, custom: i32, route: u32, durability: u32, size: Option<u16> },
    Close(Handle),
    Facts(Handle),
    Read { file: Handle, at: Range, write: bool },
    Buffers { file: Handle, buffer: Handle, offset: u16, write: bool },
    Many { file: Handle, at: [Range; 3], count: u8, write: bool },
    Run(Op),
    Control { file: Handle, which: u8, at: Range, flags: u32 },
    QueueCreate { depth: u16, flags: u32 },
    QueueAdd(Handle, Op),
    QueueWait { queue: Handle, room: u8, at_least: u8 },
    QueueBy { queue: Handle, token: Token, which: u8 },
    QueueEnd { queue: Handle, which: u8 },
    BatchCreate { in_flight: u64, stop: bool, merge: bool, gap: u64, size: Option<u16> },
    BatchAdd(Handle, Op),
    BatchBarrier(Handle),
    BatchRun(Handle),
    BatchResults(Handle, u64),
    BatchReset(Handle),
    BatchFree(Handle),
    PoolCreate { capacity: u32, alignment: u64, huge: u32, full: u32, outside: u64, size: Option<u16> },
    PoolFree(Handle),
    PoolMetrics(Handle, u16),
    BufferGet(Handle, Length),
    BufferUse(Handle, u64),
    BufferRelease(Handle),
    Register { place: u8, length: u32, now: bool },
    Unregister(Handle),
    Metrics(u16, bool),
}

/// One of the handles so far, closed or not, of whatever kind, or any number.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Handle {
    Known(u8),
    Last,
    Number(usize),
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Token {
    Known(u8),
    Number(u64),
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Length {
    Small(u16),
    Absurd(u16),
}

/// Where in a file, and which memory.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Range {
    place: u8,
    length: Length,
    offset: Length,
    is_null: bool,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
struct Op {
    kind: u8,
    flags: u32,
    file: Handle,
    to: Handle,
    at: Range,
    to_offset: u16,
    parts: [Range; 2],
    count: u8,
    paths: [u8; 2],
    /// Which of the fields are given; the others are 0.
    given: u16,
}

impl Length {
    fn value(self) -> usize {
        match self {
            Self::Small(length) => usize::from(length),
            Self::Absurd(less) => ABSURD + usize::from(less),
        }
    }
}

impl Range {
    fn data(self) -> *mut c_void {
        if self.is_null {
            return null_mut();
        }
        std::ptr::with_exposed_provenance_mut(*MEMORY + usize::from(self.place) % PLACES * PLACE)
    }

    fn offset(self) -> u64 {
        self.offset.value() as u64
    }
}

/// A struct that begins with its size, in memory as large as any size that is accepted.
#[repr(C, align(16))]
struct Roomy<T> {
    value: T,
    more: [u8; 4096],
}

impl<T> Roomy<T> {
    /// All zeros but for the size.
    fn new(size: Option<u16>) -> Box<Self> {
        // SAFETY: all of these structs consist of integers and raw pointers.
        let mut new: Box<Self> = Box::new(unsafe { std::mem::zeroed() });
        let size = size.map_or(size_of::<T>(), usize::from);
        // SAFETY: they begin with their size.
        unsafe { from_mut(&mut new.value).cast::<usize>().write(size) };
        new
    }
}

fn path(index: u8) -> *const c_char {
    const PATHS: [&CStr; 7] = [c"a", c"b", c"folder", c"folder/c", c"missing/d", c"", c"."];
    PATHS.get(usize::from(index)).map_or(PATHS[usize::from(index) % 2].as_ptr(), |path| path.as_ptr())
}

#[derive(Default)]
struct Known {
    handles: Vec<usize>,
    tokens: Vec<u64>,
    /// What operations fill when they end.
    opened: Vec<Box<*mut file::ringfile_file>>,
    metadata: Vec<Box<Roomy<path::ringfile_metadata>>>,
}

impl Known {
    fn get<T>(&self, handle: Handle) -> *mut T {
        without_provenance_mut(match handle {
            Handle::Known(index) => {
                let count = self.handles.len().max(1);
                self.handles.get(usize::from(index) % count).copied().unwrap_or(0)
            }
            Handle::Last => self.handles.last().copied().unwrap_or(0),
            Handle::Number(number) => number,
        })
    }

    fn keep<T>(&mut self, status: i32, handle: *mut T) {
        assert_eq!(status == 0, !handle.is_null(), "{status}");
        if status == 0 {
            self.handles.push(handle.addr());
        }
    }

    fn token(&self, token: Token) -> u64 {
        match token {
            Token::Known(index) => {
                self.tokens.get(usize::from(index) % self.tokens.len().max(1)).copied().unwrap_or(0)
            }
            Token::Number(number) => number,
        }
    }

    /// Calls `with` with a record of the interface.
    fn with_op<R>(&mut self, from: Op, with: impl FnOnce(op::ringfile_op) -> R) -> R {
        let given = |bit: u32| from.given & 1 << bit != 0;
        let mut parts = Vec::new();
        for part in &from.parts[..usize::from(from.count % 3)] {
            parts.push(libc::iovec { iov_base: part.data(), iov_len: part.length.value() });
        }
        let mut options = Roomy::<file::ringfile_open_options>::new(None);
        (options.value.flags, options.value.route) = (from.flags, u32::from(from.count) % 8);
        let kind = u32::from(from.kind % 26);
        // What is allocated, copied or kept when a file is cut stays small.
        let mut flags = if given(0) { from.flags } else { 0 };
        if kind == op::RINGFILE_OP_CHMOD {
            // The folder can be emptied at the end.
            flags |= 0o700;
        }
        let mut length = if given(3) { from.at.length.value() as u64 } else { 0 };
        // What a pointer points to is what its kind expects there.
        let data: *const c_void = match kind {
            _ if !given(2) => null(),
            op::RINGFILE_OP_READV | op::RINGFILE_OP_WRITEV => {
                length = parts.len() as u64;
                parts.as_ptr().cast()
            }
            op::RINGFILE_OP_OPEN.. => path(from.paths[0]).cast(),
            _ => from.at.data(),
        };
        let other: *const c_void = match kind {
            _ if !given(5) => null(),
            op::RINGFILE_OP_OPEN => (&raw const options.value).cast(),
            op::RINGFILE_OP_RENAME.. => path(from.paths[1]).cast(),
            _ => self.get::<c_void>(from.to),
        };
        let result: *mut c_void = match kind {
            _ if !given(7) => null_mut(),
            op::RINGFILE_OP_OPEN => {
                self.opened.push(Box::new(null_mut()));
                from_mut(self.opened.last_mut().expect("pushed").as_mut()).cast()
            }
            _ => {
                self.metadata.push(Roomy::new(None));
                (&raw mut self.metadata.last_mut().expect("pushed").value).cast()
            }
        };
        with(op::ringfile_op {
            kind,
            flags,
            file: if given(1) { self.get(from.file) } else { null() },
            data,
            length,
            offset: if given(4) { from.at.offset() } else { 0 },
            other,
            to_offset: if given(6) { u64::from(from.to_offset) } else { 0 },
            result,
        })
    }
}

fuzz_target!(|calls: Vec<Call>| {
    LazyLock::force(&FOLDER);
    let mut known = Known::default();
    for call in calls.iter().take(64) {
        // SAFETY: the memory is as the header asks: it outlives all operations, which end below, and has the lengths given,
        // except for those that no memory has; structs have room for every size that is accepted.
        unsafe { carry_out(call, &mut known) };
        let text = error::ringfile_last_error();
        // SAFETY: it is never null, and valid until this thread's next call.
        assert!(unsafe { CStr::from_ptr(text) }.to_bytes().len() < 4096);
    }
    // Queues first, whose operations use what the others are, and fill what was given for results.
    for &handle in known.handles.iter().rev() {
        queue::ringfile_queue_free(without_provenance_mut(handle));
        batch::ringfile_batch_free(without_provenance_mut(handle));
    }
    let opened = known.opened.into_iter().map(|handle| handle.addr());
    for handle in known.handles.into_iter().chain(opened) {
        memory::ringfile_memory_unregister(without_provenance_mut(handle));
        pool::ringfile_buffer_release(without_provenance_mut(handle));
        pool::ringfile_pool_free(without_provenance_mut(handle));
        file::ringfile_close(without_provenance_mut(handle));
    }
    for entry in std::fs::read_dir(FOLDER.path()).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
            .expect("removed");
    }
});

unsafe fn carry_out(call: &Call, known: &mut Known) {
    // SAFETY, for all of it: by the caller's promise.
    unsafe {
        match *call {
            Call::Open { path: name, flags, custom, route, durability, size } => {
                let mut options = Roomy::<file::ringfile_open_options>::new(size);
                let value = &mut options.value;
                (value.flags, value.route, value.durability) = (flags, route % 8, durability % 4);
                // Neither a terminal that becomes the process's nor signals.
                value.custom_flags =
                    custom & (libc::O_NOFOLLOW | libc::O_DIRECTORY | libc::O_SYNC | libc::O_APPEND);
                let mut opened = null_mut();
                let status = file::ringfile_open(path(name), &raw const *value, &raw mut opened);
                known.keep(status, opened);
            }
            Call::Close(handle) => _ = file::ringfile_close(known.get(handle)),
            Call::Facts(handle) => {
                let (mut one, mut two, mut three) = (0, 0, 0);
                let file = known.get(handle);
                file::ringfile_size(file);
                file::ringfile_is_direct(file);
                file::ringfile_is_adaptive(file);
                file::ringfile_alignment(file, &raw mut one, null_mut());
                file::ringfile_atomic_limits(file, &raw mut one, &raw mut two, &raw mut three);
                file::ringfile_fd(file);
            }
            Call::Read { file, at, write } => {
                let (file, length) = (known.get(file), at.length.value());
                let done = if write {
                    io::ringfile_write(file, at.data(), length, at.offset())
                } else {
                    io::ringfile_read(file, at.data(), length, at.offset())
                };
                assert!(done <= length.min(PLACE) as i64, "{done} of {length}");
            }
            Call::Buffers { file, buffer, offset, write } => {
                let (file, buffer) = (known.get(file), known.get(buffer));
                if write {
                    io::ringfile_buffer_write(file, buffer, u64::from(offset));
                } else {
                    io::ringfile_buffer_read(file, buffer, u64::from(offset));
                }
            }
            Call::Many { file, at, count, write } => {
                let (file, count) = (known.get(file), usize::from(count) % 4);
                if write {
                    let mut requests = at.map(|at| io::ringfile_write_request {
                        offset: at.offset(),
                        data: at.data(),
                        length: at.length.value(),
                        result: 0,
                    });
                    io::ringfile_write_many(file, requests.as_mut_ptr(), count);
                } else {
                    let mut requests = at.map(|at| io::ringfile_read_request {
                        offset: at.offset(),
                        data: at.data(),
                        length: at.length.value(),
                        result: 0,
                    });
                    io::ringfile_read_many(file, requests.as_mut_ptr(), count);
                }
            }
            Call::Run(op) => _ = known.with_op(op, |op| op::ringfile_run(op)),
            Call::Control { file, which, at, flags } => {
                let (file, length) = (known.get(file), at.length.value() as u64);
                let _ = match which % 6 {
                    0 => control::ringfile_sync_data(file),
                    1 => control::ringfile_sync_all(file),
                    2 => control::ringfile_sync_range(file, at.offset(), length, flags),
                    3 => control::ringfile_allocate(file, flags, at.offset(), length),
                    4 => control::ringfile_truncate(file, length),
                    _ => control::ringfile_advise(file, at.offset(), length, flags),
                };
            }
            Call::QueueCreate { depth, flags } => {
                let mut queue = null_mut();
                let status = queue::ringfile_queue_create(usize::from(depth), flags, &raw mut queue);
                known.keep(status, queue);
            }
            Call::QueueAdd(queue, op) => {
                let (queue, mut token) = (known.get(queue), 0);
                let status = known.with_op(op, |op| queue::ringfile_queue_add(queue, op, 7, &raw mut token));
                if status == 0 {
                    known.tokens.push(token);
                }
            }
            Call::QueueWait { queue, room, at_least } => {
                let mut results = [op::ringfile_result { user_data: 0, result: 0 }; 8];
                let room = usize::from(room) % 9;
                let taken = queue::ringfile_queue_wait(
                    known.get(queue),
                    results.as_mut_ptr(),
                    room,
                    usize::from(at_least),
                    1_000_000,
                );
                assert!(taken <= room as i64);
                let taken = &results[..usize::try_from(taken).unwrap_or(0)];
                assert!(taken.iter().all(|result| result.user_data == 7));
            }
            Call::QueueBy { queue, token, which } => {
                let (queue, token) = (known.get(queue), known.token(token));
                match which % 3 {
                    0 => _ = queue::ringfile_queue_wait_for(queue, token),
                    1 => _ = queue::ringfile_queue_is_done(queue, token),
                    _ => _ = queue::ringfile_queue_cancel(queue, token),
                }
            }
            Call::QueueEnd { queue, which } => {
                let queue = known.get(queue);
                match which % 6 {
                    0 => _ = queue::ringfile_queue_free(queue),
                    1 => _ = queue::ringfile_queue_descriptor(queue),
                    2 => _ = queue::ringfile_queue_len(queue),
                    3 => _ = queue::ringfile_queue_cancel_all(queue),
                    4 => {
                        let mut result = op::ringfile_result { user_data: 7, result: 0 };
                        let taken = queue::ringfile_queue_next(queue, &mut result);
                        assert!(taken <= 1 && result.user_data == 7);
                    }
                    _ => _ = queue::ringfile_queue_submit(queue),
                }
            }
            Call::BatchCreate { in_flight, stop, merge, gap, size } => {
                let mut options = Roomy::<batch::ringfile_batch_options>::new(size);
                let value = &mut options.value;
                (value.depth, value.merge_gap) = (in_flight as usize, gap as usize);
                (value.stop_on_error, value.merge_reads) = (u32::from(stop), u32::from(merge));
                let mut batch = null_mut();
                let status = batch::ringfile_batch_create(&raw const *value, &raw mut batch);
                known.keep(status, batch);
            }
            Call::BatchAdd(batch, op) => {
                let batch = known.get(batch);
                known.with_op(op, |op| batch::ringfile_batch_add(batch, op, 7));
            }
            Call::BatchBarrier(batch) => _ = batch::ringfile_batch_barrier(known.get(batch)),
            Call::BatchRun(batch) => _ = batch::ringfile_batch_run(known.get(batch)),
            Call::BatchResults(batch, index) => {
                let (batch, mut results) = (known.get(batch), null());
                let count = batch::ringfile_batch_results(batch, &raw mut results);
                if count > 0 {
                    assert!((0..count as usize).all(|index| (*results.add(index)).user_data == 7));
                }
                assert!(!batch::ringfile_batch_error(batch, index as usize).is_null());
            }
            Call::BatchReset(batch) => _ = batch::ringfile_batch_reset(known.get(batch)),
            Call::BatchFree(batch) => _ = batch::ringfile_batch_free(known.get(batch)),
            Call::PoolCreate { capacity, alignment, huge, full, outside, size } => {
                let mut options = Roomy::<pool::ringfile_pool_options>::new(size);
                let value = &mut options.value;
                (value.capacity, value.alignment) = (capacity as usize, alignment as usize);
                value.huge_pages = huge;
                // A pool that waits for memory would wait for ever.
                value.when_full = if full == pool::RINGFILE_WHEN_FULL_WAIT { 0 } else { full };
                value.outside_limit = outside as usize;
                let mut pool = null_mut();
                let status = pool::ringfile_pool_create(&raw const *value, &raw mut pool);
                known.keep(status, pool);
            }
            Call::PoolFree(pool) => _ = pool::ringfile_pool_free(known.get(pool)),
            Call::PoolMetrics(pool, size) => {
                let mut counts = Roomy::<pool::ringfile_pool_counts>::new(Some(size));
                pool::ringfile_pool_metrics(known.get(pool), &raw mut counts.value);
            }
            Call::BufferGet(pool, capacity) => {
                let mut buffer = null_mut();
                let status = pool::ringfile_buffer_get(known.get(pool), capacity.value(), &raw mut buffer);
                known.keep(status, buffer);
            }
            Call::BufferUse(buffer, length) => {
                let buffer = known.get(buffer);
                let data: *mut u8 = pool::ringfile_buffer_data(buffer).cast();
                let capacity = pool::ringfile_buffer_capacity(buffer);
                if !data.is_null() {
                    // The first and the last byte of what it says is there.
                    data.write(1);
                    data.add(capacity as usize - 1).write(2);
                }
                let status = pool::ringfile_buffer_set_length(buffer, length as usize);
                assert!(status != 0 || length as i64 <= capacity);
                pool::ringfile_buffer_length(buffer);
            }
            Call::BufferRelease(buffer) => _ = pool::ringfile_buffer_release(known.get(buffer)),
            Call::Register { place, length, now } => {
                let start = usize::from(place) % PLACES * PLACE;
                let length = (length as usize).min(PLACES * PLACE - start);
                let mut memory = null_mut();
                let status = memory::ringfile_memory_register_with(
                    std::ptr::with_exposed_provenance_mut(*MEMORY + start),
                    length,
                    if now { memory::RINGFILE_MEMORY_NOW } else { 0 },
                    &raw mut memory,
                );
                known.keep(status, memory);
            }
            Call::Unregister(memory) => {
                let memory = known.get(memory);
                memory::ringfile_memory_is_in_use(memory);
                memory::ringfile_memory_unregister(memory);
            }
            Call::Metrics(size, of_thread) => {
                let mut counts = Roomy::<info::ringfile_counts>::new(Some(size));
                let counts = &raw mut counts.value;
                let _ = if of_thread {
                    info::ringfile_thread_metrics(counts)
                } else {
                    info::ringfile_metrics(counts)
                };
            }
        }
    }
}
