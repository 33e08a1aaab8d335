/*
 * ringfile: disk I/O over Linux io_uring, for programs that keep their own data.
 *
 * What holds for every function, where its own description says nothing else:
 *
 * RESULTS. What returns a number returns 0 or more when it went well, else a negative errno. What went wrong, in
 * words, is in ringfile_last_error() of the same thread. -EBADF: the handle is NULL, was closed, or is none of that
 * kind. -EPERM: the handle belongs to another thread. -EFAULT: a pointer is NULL. -EINVAL: an argument makes no sense.
 * -EDEADLK: the call would block a thread that runs ringfile's Rust tasks, or is inside of another call on the same
 * handle. -EOPNOTSUPP: the file system, the kernel or a forked child (see FORK) has not what is asked for.
 * -ENOTRECOVERABLE: a defect of the library, which says so instead of ending the process.
 *
 * HANDLES. Pointers to pools, buffers, memory, files, batches and queues are numbers in disguise: they point to
 * nothing, and may be compared and copied. After a handle is closed, using it is an error and never another's handle.
 *
 * THREADS. Pools, buffers, memory, files and batches may be used by any thread, several at once (a batch by one at a
 * time, else -EBUSY). Queues belong to the thread that made them, and end with it.
 *
 * MEMORY FOR I/O. Operations take a pointer and a length. It may be memory of a ringfile_buffer, memory that
 * ringfile_memory_register has been told of, any part of either, or any other memory. The first two are found by
 * their address and use io_uring's fixed buffers; the third works as well, and costs more. The memory must stay, and
 * must not be touched (of a write: not be changed), until the operation is over: when the call returns, for the
 * blocking ones; when its result was taken, or the queue's free returns, for queues; when ringfile_batch_run returns, or
 * the end of a started batch was reported, for batches.
 *
 * DIRECT I/O. Reads of any offset, length and address work; what does not fit the file's alignment goes through
 * aligned memory of the library's own. Writes must fit it: -EINVAL, with the multiple that the file needs in words.
 *
 * FORK. Use the library only after the fork, or exec in the child. A child of a process that has used it before gets
 * the right bytes or -EOPNOTSUPP, and the parent's I/O goes on. Carried out is what needs no I/O (handles, sizes,
 * ringfile_sync_range) and what is a plain call on the calling thread: all reads, writes and syncs of files with
 * RINGFILE_ROUTE_INLINE; with RINGFILE_ROUTE_AUTO what is done so there, as reads of cached blocks, and reads and writes
 * on tmpfs. (With RINGFILE_BACKEND=workers in the environment, neither is.) Operations on paths of a queue that the
 * child has made are plain calls, which block. Refused, with -EOPNOTSUPP, is what needs a ring that the thread had at
 * the fork, or a thread of the library's that the parent had, or would have to wait in a queue that was used before the
 * fork. What was in flight at the fork ends in the child with -ECANCELED, or -EOPNOTSUPP for a ringfile_async_read that
 * another thread was looking at. A thread that the child starts has a ring of its own. No call waits for a lock that another
 * thread had at the fork, but for that of a pool which such a thread was just using: a child makes its own. A batch
 * that such a thread was using is -EBUSY for good. All of this holds for fork(), not for a bare clone() or vfork(),
 * after which there is exec and _exit alone.
 *
 * STRUCTS with a `size` field may grow in later versions: set it to sizeof, and all else that you do not use to 0,
 * which always stands for the default.
 */


#ifndef RINGFILE_H
#define RINGFILE_H

/* Made by cbindgen of crates/ringfile-capi/src: change it there. */

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <sys/uio.h>

// ringfile_allocate: blocks for the range; the file grows to hold it.
#define RINGFILE_ALLOCATE_EXTEND 0

// Blocks for the range; the file keeps its size.
#define RINGFILE_ALLOCATE_KEEP_SIZE 1

// Gives the range's blocks back: it reads as zeros from then on. The file keeps its size.
#define RINGFILE_ALLOCATE_PUNCH_HOLE 2

// The range reads as zeros from then on, and keeps its blocks. The file grows to hold it.
#define RINGFILE_ALLOCATE_ZERO_RANGE 3

// The range's content is of no use any more, and may read as anything: an NVMe namespace deallocates it; elsewhere as
// RINGFILE_ALLOCATE_PUNCH_HOLE.
#define RINGFILE_ALLOCATE_DISCARD 4

// ringfile_advise: nothing in particular.
#define RINGFILE_ADVICE_NORMAL 0

// It will be read from front to back.
#define RINGFILE_ADVICE_SEQUENTIAL 1

// It will be read here and there.
#define RINGFILE_ADVICE_RANDOM 2

// It will be wanted soon: start reading it in.
#define RINGFILE_ADVICE_WILL_NEED 3

// It will not be wanted: clean pages of it go.
#define RINGFILE_ADVICE_DONT_NEED 4

// ringfile_sync_range: wait for the range's pages that are being written.
#define RINGFILE_SYNC_RANGE_WAIT_BEFORE 1

// Start writing the range's dirty pages.
#define RINGFILE_SYNC_RANGE_WRITE 2

// Wait for those.
#define RINGFILE_SYNC_RANGE_WAIT_AFTER 4

// ringfile_open_options.flags: for reading.
#define RINGFILE_READ 1

// For writing.
#define RINGFILE_WRITE 2

// Made where it is not there. Needs RINGFILE_WRITE.
#define RINGFILE_CREATE 4

// Made; -EEXIST where it is there. Needs RINGFILE_WRITE.
#define RINGFILE_CREATE_NEW 8

// Cut to length 0. Needs RINGFILE_WRITE.
#define RINGFILE_TRUNCATE 16

// Direct I/O (O_DIRECT), past the page cache. -EOPNOTSUPP where the file system has none.
#define RINGFILE_DIRECT 32

// With RINGFILE_DIRECT: buffered I/O where direct I/O can't be had.
#define RINGFILE_BUFFERED_FALLBACK 64

// Completions are polled for (IOPOLL), on devices with poll queues. Needs RINGFILE_DIRECT.
#define RINGFILE_POLL 128

// Buffered I/O that leaves nothing in the page cache (RWF_DONTCACHE), where the file system has it.
#define RINGFILE_DONT_CACHE 256

// With RINGFILE_WRITE, on the character device of an NVMe namespace (/dev/ng0n1): writes go to the drive as its own
// commands, past every file system. Its block device is claimed until the file is closed; -EBUSY where it is in use.
// Reading needs no flag. -EOPNOTSUPP where commands can't be sent, or the namespace's format is not understood.
#define RINGFILE_NAMESPACE_WRITES 512

// Reads what is in the page cache from there, and the rest past it (O_DIRECT); what is read again gets cached. Simply
// buffered where that can't be had. Not with RINGFILE_DIRECT or RINGFILE_DONT_CACHE.
#define RINGFILE_ADAPTIVE 1024

// Which way operations go: what ringfile_set_default_route set, at first RINGFILE_ROUTE_AUTO.
#define RINGFILE_ROUTE_DEFAULT 0

// The cheapest, found from the file's own first operations, for reads and writes apart.
#define RINGFILE_ROUTE_AUTO 1

// io_uring; an error where no ring can be had.
#define RINGFILE_ROUTE_RING 2

// A plain call on the calling thread.
#define RINGFILE_ROUTE_INLINE 3

// A plain call on a thread of a small pool.
#define RINGFILE_ROUTE_WORKERS 4

// Linux AIO, for files with RINGFILE_DIRECT: opening others fails with -EINVAL, and operations on those where it is the
// default. Writes that make the file longer, syncs and the like go other ways. An error where no AIO can be had;
// RINGFILE_ROUTE_AUTO takes it for direct I/O where no ring can be had.
#define RINGFILE_ROUTE_AIO 5

// ringfile_open_options.durability, for ringfile_write_durable: the cheaper of the two, found by the first such writes.
#define RINGFILE_DURABILITY_AUTO 0

// Each write is durable by itself (RWF_DSYNC).
#define RINGFILE_DURABILITY_DSYNC 1

// Each write is followed by an fdatasync that is submitted with it.
#define RINGFILE_DURABILITY_FSYNC 2

// The version of the interface that this header is of: major, minor, patch.
#define RINGFILE_VERSION_MAJOR 0

// See RINGFILE_VERSION_MAJOR.
#define RINGFILE_VERSION_MINOR 1

// See RINGFILE_VERSION_MAJOR.
#define RINGFILE_VERSION_PATCH 0

// The level of a message: a defect, or something that is lost.
#define RINGFILE_LOG_ERROR 1

// Something does not work as it should, and is done in another way: no io_uring, memory that can't be registered.
#define RINGFILE_LOG_WARNING 2

// Something that is worth knowing.
#define RINGFILE_LOG_INFO 3

// What the library found out and decided.
#define RINGFILE_LOG_DEBUG 4

// ringfile_pool_options.huge_pages: huge pages where the system makes them by itself.
#define RINGFILE_HUGE_PAGES_AUTO 0

// Ordinary pages only.
#define RINGFILE_HUGE_PAGES_NEVER 1

// Huge pages that the administrator has reserved (vm.nr_hugepages), or an error.
#define RINGFILE_HUGE_PAGES_REQUIRE 2

// ringfile_pool_options.when_full: ringfile_buffer_get fails at once with -ENOMEM.
#define RINGFILE_WHEN_FULL_ERROR 0

// ringfile_buffer_get blocks until its turn has come, first come, first served.
#define RINGFILE_WHEN_FULL_WAIT 1

// Memory is allocated outside the pool, up to `outside_limit` bytes at a time; it is never registered.
#define RINGFILE_WHEN_FULL_OUTSIDE 2

// A read that any thread may wait for.
typedef struct ringfile_async_read ringfile_async_read;

// Operations that are carried out together.
typedef struct ringfile_batch ringfile_batch;

// A piece of a pool's memory.
typedef struct ringfile_buffer ringfile_buffer;

// An open file.
typedef struct ringfile_file ringfile_file;

// Memory of the caller's own that is registered.
typedef struct ringfile_memory ringfile_memory;

// A pool of aligned memory for I/O, with a hard limit.
typedef struct ringfile_pool ringfile_pool;

// Operations that are added, submitted together, and collected as they end.
typedef struct ringfile_queue ringfile_queue;

// How a batch is to be carried out. All zeros but `size` are the defaults.
typedef struct ringfile_batch_options {
    // sizeof(ringfile_batch_options).
    size_t size;
    // Operations in flight at once, at most 4096; 0 for 128.
    size_t in_flight;
    // Not 0: the first error stops what is not begun by then, whose result is -ECANCELED.
    uint32_t stop_on_error;
    // Not 0: neighbouring reads of a file go as one where no more than `merge_gap` bytes lie between them.
    uint32_t merge_reads;
    // See there.
    size_t merge_gap;
} ringfile_batch_options;

// Is told that a batch has ended: what was given with it, and how many operations failed.
typedef void (*ringfile_batch_done)(void *context, int64_t failed);

// How one operation of a batch or a queue ended.
typedef struct ringfile_result {
    // What was given with the operation.
    uint64_t user_data;
    // Bytes read or written, 0 for a sync, or a negative errno. A read has fewer than wanted only at the end of the file;
    // a write has all.
    int64_t result;
} ringfile_result;

// How a file is to be opened. All zeros but `size` and `flags` are the defaults.
typedef struct ringfile_open_options {
    // sizeof(ringfile_open_options).
    size_t size;
    // RINGFILE_READ, RINGFILE_WRITE, ..., joined by |.
    uint32_t flags;
    // The mode of a file that is made, before the umask; 0 for 0666.
    uint32_t mode;
    // More flags of open(2), such as O_NOFOLLOW; of O_DIRECT see RINGFILE_DIRECT.
    int32_t custom_flags;
    // RINGFILE_ROUTE_...
    uint32_t route;
    // RINGFILE_DURABILITY_...
    uint32_t durability;
    // 0.
    uint32_t reserved;
} ringfile_open_options;

// Counts of operations, since the process or the thread began. Filled by ringfile_metrics and ringfile_thread_metrics.
typedef struct ringfile_counts {
    // sizeof(ringfile_counts), set by the caller.
    size_t size;
    // Operations that ended, well or not.
    uint64_t ops;
    // Operations of which every submission used a registered buffer.
    uint64_t fixed_ops;
    // Bytes read.
    uint64_t bytes_read;
    // Bytes written.
    uint64_t bytes_written;
    // Calls of io_uring_enter.
    uint64_t enters;
    // Submissions beyond the first of an operation: after a short count, EINTR or EAGAIN.
    uint64_t resubmitted;
    // Operations that were given up before they ended.
    uint64_t cancelled;
    // Operations that ended with an errno.
    uint64_t failed;
    // Completions that belonged to no operation. Anything but 0 is a defect worth a report.
    uint64_t stray;
    // Times that registering memory was refused (RLIMIT_MEMLOCK, an old kernel); I/O on that memory goes on without.
    uint64_t refused_registrations;
    // Operations that were plain calls on the thread itself.
    uint64_t inline_ops;
    // Operations that a worker carried out.
    uint64_t worker_ops;
    // Operations that Linux AIO carried out. What is neither these, nor a worker's, nor inline went through a ring.
    uint64_t aio_ops;
    // Calls of io_submit and io_getevents.
    uint64_t aio_calls;
    // Times that AIO was refused (fs.aio-max-nr used up, a seccomp filter); workers carry out direct I/O then.
    uint64_t refused_contexts;
    // Operations that went to an NVMe drive as its own commands.
    uint64_t passthrough_ops;
    // Reads of files with RINGFILE_ADAPTIVE whose data was in the page cache; in a row of hits one of 16 is looked at, and
    // counts for all of them.
    uint64_t cache_hits;
    // Reads of such files whose data, or a part of it, was not there.
    uint64_t cache_misses;
    // Of these, those whose beginning was taken from the cache, and only the rest read past it.
    uint64_t cache_partial;
    // Of the misses, those that were read through the cache, since they had been read before.
    uint64_t cache_admitted;
    // Bytes of such files that were read ahead, and then asked for.
    uint64_t ahead_used;
    // Bytes that were read ahead in vain.
    uint64_t ahead_unused;
} ringfile_counts;

// One read of ringfile_read_many.
typedef struct ringfile_read_request {
    // Bytes into the file.
    uint64_t offset;
    // Where the bytes are to go.
    void *data;
    // How many are wanted.
    size_t length;
    // Set by the call: the bytes read, fewer than `length` only at the end of the file, or a negative errno.
    int64_t result;
} ringfile_read_request;

// A function that is told what the library warns of: what was given with it, a level (RINGFILE_LOG_...), and one line,
// which is the library's and gone when the function returns.
typedef void (*ringfile_log)(void *context, int level, const char *message);

// What the file system knows of a file. Filled by ringfile_queue_statx. Times are nanoseconds since 1970, INT64_MIN where the
// file system does not tell.
typedef struct ringfile_metadata {
    // sizeof(ringfile_metadata), set by the caller.
    size_t size;
    // The size of the file in bytes.
    uint64_t length;
    // Storage that it takes, in bytes.
    uint64_t allocated;
    // Its number, unique within the file system.
    uint64_t inode;
    // The file system, as st_dev.
    uint64_t device;
    // What it is and its permissions, as st_mode.
    uint32_t mode;
    // How many paths the file has.
    uint32_t links;
    // Its owner.
    uint32_t uid;
    // Its group.
    uint32_t gid;
    // The last access.
    int64_t accessed;
    // The last change of its content.
    int64_t modified;
    // The last change of its content or metadata.
    int64_t changed;
    // When it was created.
    int64_t created;
    // What offsets and lengths of direct I/O are to be multiples of; 0 where the kernel or the file system does not tell, and
    // where the file can't do direct I/O.
    uint32_t direct_bytes;
    // What addresses of direct I/O are to be multiples of; 0 as above.
    uint32_t direct_memory;
} ringfile_metadata;

// How a pool is to be. All zeros but `size` and `capacity` are the defaults.
typedef struct ringfile_pool_options {
    // sizeof(ringfile_pool_options).
    size_t size;
    // Bytes that the pool may have at most: a hard limit. Memory is taken as it is needed.
    size_t capacity;
    // What addresses are to be multiples of, a power of two; 0 for 4096.
    size_t alignment;
    // RINGFILE_HUGE_PAGES_...
    uint32_t huge_pages;
    // RINGFILE_WHEN_FULL_...
    uint32_t when_full;
    // Bytes outside the pool at most, with RINGFILE_WHEN_FULL_OUTSIDE.
    size_t outside_limit;
    // Not 0: the memory is not registered with io_uring, and counts not against RLIMIT_MEMLOCK.
    uint32_t unregistered;
    // Not 0: the memory is not there in forked children (MADV_DONTFORK).
    uint32_t dont_fork;
} ringfile_pool_options;

// What a pool has in use. Filled by ringfile_pool_metrics.
typedef struct ringfile_pool_counts {
    // sizeof(ringfile_pool_counts), set by the caller.
    size_t size;
    // The hard limit, in bytes.
    uint64_t capacity;
    // Bytes of memory mapped for the pool, in use or not.
    uint64_t reserved;
    // The most that `reserved` ever was.
    uint64_t reserved_high_water;
    // Bytes in use, as whole blocks.
    uint64_t in_use;
    // Gets that found nothing cached and took the pool's lock.
    uint64_t misses;
    // Buffers that were allocated outside the pool, since it was made.
    uint64_t outside_allocations;
    // Bytes outside the pool, in use now.
    uint64_t outside_bytes;
    // Gets that had to wait for others to give memory back.
    uint64_t waits;
    // Gets that failed because the pool was full.
    uint64_t failures;
    // Regions that the pool's memory lies in.
    uint64_t regions;
    // Regions that are registered with io_uring.
    uint64_t registered_regions;
    // Bytes in registered regions.
    uint64_t registered_bytes;
    // Regions that could not be registered (RLIMIT_MEMLOCK, an old kernel), since the pool was made.
    uint64_t refused_registrations;
} ringfile_pool_counts;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Starts a read of `length` bytes from `offset` into `data`, that any thread may wait for. `*read` gets its handle, to be
// closed with ringfile_async_read_wait. The memory is the library's until that returns.
//
// Any thread. Does not wait for a disk: what is not in the page cache is carried out by a thread of the library's
// (ringfile_set_io_threads), or, where the file's route is a plain call, here. A ringfile_queue costs less, where one
// thread does all. What is wrong with the read itself is its result.
//
// At most 128 of these reads are in flight at once in a process. The others start, in order, as those end, or when
// ringfile_async_read_is_done or ringfile_async_read_wait is called for them.
//
// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file; `read` points to where the
// handle is to go.
int ringfile_async_read_start(const struct ringfile_file *file,
                              void *data,
                              size_t length,
                              uint64_t offset,
                              struct ringfile_async_read **read);

// Whether a read has ended: 1 or 0. Starts a read that has not started yet. Any thread; does not block.
int ringfile_async_read_is_done(const struct ringfile_async_read *read);

// Asks for the cancellation of a read. Its result still comes, to ringfile_async_read_wait: the bytes read, or -ECANCELED.
// Until that returns, the memory is the library's.
//
// A read that has not started never does, and one that waits for a pipe or a socket is cancelled; a read that a disk
// has begun runs to its end. To give up many reads, cancel all of them, the last first, before waiting for any: the
// last start last.
//
// Any thread. Does not block.
int ringfile_async_read_cancel(const struct ringfile_async_read *read);

// Waits for a read, takes its result, and closes the handle: the bytes read, fewer than wanted only at the end of the
// file, or a negative errno. The memory is the caller's again.
//
// Any thread. Blocks.
int64_t ringfile_async_read_wait(struct ringfile_async_read *read);

// Makes a batch. `*batch` gets the handle, to be closed with ringfile_batch_free. `options` may be NULL.
//
// Any thread. Does not block.
//
// Pointers: `options` points to one whose size is set, or is NULL; `batch` points to where the handle is to go.
int ringfile_batch_create(const struct ringfile_batch_options *options,
                          struct ringfile_batch **batch);

// Adds a read of `length` bytes from `offset` into `data`. The index of its result.
//
// Any thread. Does not block; does no I/O. The memory is used when the batch is run, and must be there then.
//
// Pointers: `length` bytes at `data` while the batch is run, or from ringfile_batch_start until the end was reported, as at
// the top of this file.
int64_t ringfile_batch_read(struct ringfile_batch *batch,
                            const struct ringfile_file *file,
                            void *data,
                            size_t length,
                            uint64_t offset,
                            uint64_t user_data);

// Adds a write of `length` bytes from `data` at `offset`; in all else as ringfile_batch_read.
//
// Pointers: as ringfile_batch_read.
int64_t ringfile_batch_write(struct ringfile_batch *batch,
                             const struct ringfile_file *file,
                             const void *data,
                             size_t length,
                             uint64_t offset,
                             uint64_t user_data);

// Adds a write that is durable when it ends (RWF_DSYNC); in all else as ringfile_batch_write. A failure is remembered, see
// ringfile_sync_data.
//
// Pointers: as ringfile_batch_read.
int64_t ringfile_batch_write_durable(struct ringfile_batch *batch,
                                     const struct ringfile_file *file,
                                     const void *data,
                                     size_t length,
                                     uint64_t offset,
                                     uint64_t user_data);

// Adds a write that a power cut leaves wholly there or not at all (RWF_ATOMIC), see ringfile_write_atomic; in all else as
// ringfile_batch_write.
//
// Pointers: as ringfile_batch_read.
int64_t ringfile_batch_write_atomic(struct ringfile_batch *batch,
                                    const struct ringfile_file *file,
                                    const void *data,
                                    size_t length,
                                    uint64_t offset,
                                    uint64_t user_data);

// Adds a read from `offset` into several parts, one after another; in all else as ringfile_batch_read. The array of parts is
// read here, and may go when this returns.
//
// Pointers: `count` parts at `parts`, and memory for each as ringfile_batch_read.
int64_t ringfile_batch_readv(struct ringfile_batch *batch,
                             const struct ringfile_file *file,
                             const struct iovec *parts,
                             size_t count,
                             uint64_t offset,
                             uint64_t user_data);

// Adds a write of several parts, one after another, at `offset`; in all else as ringfile_batch_readv.
//
// Pointers: as ringfile_batch_readv.
int64_t ringfile_batch_writev(struct ringfile_batch *batch,
                              const struct ringfile_file *file,
                              const struct iovec *parts,
                              size_t count,
                              uint64_t offset,
                              uint64_t user_data);

// Adds an fdatasync. It covers what has ended when it starts: put a ringfile_batch_barrier before it to have it cover the
// batch's writes. The index of its result. Any thread; does not block.
int64_t ringfile_batch_sync_data(struct ringfile_batch *batch,
                                 const struct ringfile_file *file,
                                 uint64_t user_data);

// Adds an fsync; in all else as ringfile_batch_sync_data.
int64_t ringfile_batch_sync_all(struct ringfile_batch *batch,
                                const struct ringfile_file *file,
                                uint64_t user_data);

// Adds the writing of a range's dirty pages, as ringfile_queue_sync_range. The index of its result. Any thread; does not
// block.
int64_t ringfile_batch_sync_range(struct ringfile_batch *batch,
                                  const struct ringfile_file *file,
                                  uint64_t offset,
                                  uint64_t length,
                                  uint32_t flags,
                                  uint64_t user_data);

// Adds an allocation of a range's blocks, or a hole, as ringfile_allocate, by `mode` (RINGFILE_ALLOCATE_...). The index of
// its result. Any thread; does not block.
int64_t ringfile_batch_allocate(struct ringfile_batch *batch,
                                const struct ringfile_file *file,
                                uint32_t mode,
                                uint64_t offset,
                                uint64_t length,
                                uint64_t user_data);

// Adds a change of the file's size, as ringfile_truncate. The index of its result. Any thread; does not block.
int64_t ringfile_batch_truncate(struct ringfile_batch *batch,
                                const struct ringfile_file *file,
                                uint64_t length,
                                uint64_t user_data);

// Adds advice for the page cache, as ringfile_advise (RINGFILE_ADVICE_...). The index of its result. Any thread; does not
// block.
int64_t ringfile_batch_advise(struct ringfile_batch *batch,
                              const struct ringfile_file *file,
                              uint64_t offset,
                              uint64_t length,
                              uint32_t advice,
                              uint64_t user_data);

// Has what is added from now on wait until all that was added before has ended. Where one of those failed, what comes
// after is not begun: its result is -ECANCELED. Any thread; does not block.
int ringfile_batch_barrier(struct ringfile_batch *batch);

// Carries out what was added and waits for all of it, on the calling thread. How many operations failed; each has its
// result (ringfile_batch_results). The batch is empty then, to be filled and run again. Results of a run before are gone.
//
// Any thread, one at a time. Blocks. -EBUSY: another thread uses the batch.
int64_t ringfile_batch_run(struct ringfile_batch *batch);

// Starts what was added, and returns. When all of it has ended, one of the library's threads calls `done` with `context`
// and the number of operations that failed: exactly once, never inside of this call, and when the memory of all operations
// is the caller's again. The results are there then (ringfile_batch_results), until the batch is used again.
//
// `done` may use this batch and others, add to them and start them; it must be quick, must return (no longjmp, no C++
// exception), and must not block: calls of this library that would wait give -EDEADLK there. ringfile_last_error() has words
// for the operation that failed last.
//
// Until the end is reported, memory and `context` must stay, and the batch is in use: all calls on it give -EBUSY, but for
// ringfile_batch_cancel and ringfile_batch_free. A batch that is freed then goes on: its end is reported all the same, and
// its results are lost. Where the process ends before, or in a forked child, no end is reported; in the child the batch is
// -EBUSY for good.
//
// Any thread. Does not block. Where this fails, nothing was begun, `done` is not called, and the batch is empty:
// -EOPNOTSUPP in a child of a process that has used the library's threads, -EAGAIN where no thread can be started.
//
// Pointers: `done` is a function; the memory of each operation is there until the end is reported, as at the top of this
// file.
int ringfile_batch_start(struct ringfile_batch *batch,
                         ringfile_batch_done done,
                         void *context);

// As ringfile_batch_start, with an eventfd(2) in the place of the function: at the end 1 is added to it, which makes it
// readable. The descriptor is duplicated: it may be closed at any time. How many operations failed, the results tell.
//
// Any thread. Does not block. -EBADF, and nothing is begun: `eventfd` is no descriptor.
int ringfile_batch_start_eventfd(struct ringfile_batch *batch,
                                 int eventfd);

// Asks for the cancellation of a batch that was started. Its end is reported in any case: operations that were not begun, or
// wait for a pipe or a socket, have -ECANCELED as their result; what a disk has begun runs to its end. Nothing where the
// batch has ended, or was not started.
//
// Any thread. Does not block. -EBUSY: another thread uses the batch, as where its end is just being reported.
int ringfile_batch_cancel(struct ringfile_batch *batch);

// The results of the last run, in the order in which the operations were added. `*results` gets where they are: the
// batch's, until it is run again, reset or closed. How many.
//
// Any thread. Does not block.
//
// Pointers: `results` points to where the address is to go.
int64_t ringfile_batch_results(const struct ringfile_batch *batch,
                               const struct ringfile_result **results);

// What went wrong with one operation of the last run, by the index of its result; an empty text where nothing has. Never
// NULL. The batch's, until it is run again, reset or closed. Any thread; does not block.
const char *ringfile_batch_error(const struct ringfile_batch *batch,
                                 size_t index);

// Takes out what was added and not run, and the results of the last run. Its memory stays, for the next use. Any thread;
// does not block.
int ringfile_batch_reset(struct ringfile_batch *batch);

// Closes a batch. What was added and not run is not carried out; a batch that was started goes on, see
// ringfile_batch_start. Any thread; does not block.
int ringfile_batch_free(struct ringfile_batch *batch);

// Waits until all data of the file that were written, and what is needed to read them back, are on stable storage
// (fdatasync).
//
// Any thread. Blocks. Writes that are still in flight are not waited for. Errors are those of fdatasync(2). A failure is
// remembered: what was not synced may be lost, and the kernel would let the next sync succeed all the same. So each later
// sync and ringfile_write_durable of this file, by whatever function or thread, fails with the same errno, and nothing is
// tried; other reads and writes go on. Close the file and open it again to sync again, and check or write again what was
// written since the last good sync.
int ringfile_sync_data(const struct ringfile_file *file);

// As ringfile_sync_data, with all metadata (fsync).
int ringfile_sync_all(const struct ringfile_file *file);

// Starts writing a range's dirty pages to the disk, or waits for them, by `flags` (RINGFILE_SYNC_RANGE_...); `length` 0
// means to the end (sync_file_range). Makes nothing durable: it has no metadata written, and no disk's cache.
//
// Any thread. Blocks as sync_file_range(2), whose errors it has. A failure is remembered, see ringfile_sync_data.
int ringfile_sync_range(const struct ringfile_file *file,
                        uint64_t offset,
                        uint64_t length,
                        uint32_t flags);

// Allocates the blocks of a range of bytes, or gives them back, by `mode` (RINGFILE_ALLOCATE_...).
//
// Any thread. Blocks. Errors are those of fallocate(2): -ENOSPC, or -EOPNOTSUPP where the file system has no such mode.
int ringfile_allocate(const struct ringfile_file *file,
                      uint32_t mode,
                      uint64_t offset,
                      uint64_t length);

// Sets the file's size in bytes: cuts it, or extends it with zeros.
//
// Any thread. Blocks. Errors are those of ftruncate(2).
int ringfile_truncate(const struct ringfile_file *file, uint64_t length);

// Tells the page cache what to expect of a range of bytes (RINGFILE_ADVICE_...); `length` 0 means to the end.
//
// Any thread. Blocks as posix_fadvise(2), whose errors it has.
int ringfile_advise(const struct ringfile_file *file, uint64_t offset, uint64_t length, uint32_t advice);

// Syncs a directory, so that files made, renamed or removed in it stay so after a crash.
//
// Any thread. Blocks. Errors are those of open(2) and fsync(2).
//
// Pointers: `path` is a text that ends with 0.
int ringfile_sync_directory(const char *path);

// What went wrong last on this thread: what was being done, to which file, why it failed, and what to try. An empty text
// where nothing has. Never NULL. Belongs to the library: valid until the next call of the same thread that fails.
//
// Where one operation of many has failed (batches, queues, ringfile_read_many), the text is that of the last
// failed one whose result was taken. While a thread ends, in destructors of its locals and of pthread keys, there may be no
// text but one that says so. Never blocks, never fails.
const char *ringfile_last_error(void);

// Opens a file. `*file` gets the handle, to be closed with ringfile_close.
//
// A process's record locks (fcntl(F_SETLK), not F_OFD_SETLK) on the file end with ringfile_close, see there.
//
// Any thread. Blocks as open(2). Errors are those of open(2); -EOPNOTSUPP: direct I/O can't be had, and nothing was made
// or cut for it; -EINVAL: options that make no sense together.
//
// Pointers: `path` is a text that ends with 0; `options` points to one whose size is set, and `file` to where the handle is to go.
int ringfile_open(const char *path,
                  const struct ringfile_open_options *options,
                  struct ringfile_file **file);

// Makes a file of a descriptor, which stays the caller's: the library has a duplicate of its own, until ringfile_close.
// What may be done with it is what it was opened for; of the options count RINGFILE_DIRECT (which switches direct I/O on
// for the descriptor and all that share it; where it is on it stays on), RINGFILE_BUFFERED_FALLBACK, RINGFILE_POLL,
// RINGFILE_DONT_CACHE, RINGFILE_NAMESPACE_WRITES, RINGFILE_ADAPTIVE, route and durability. `options` may be NULL.
//
// Record locks that the process has on the file (fcntl(F_SETLK), not F_OFD_SETLK), by the caller's descriptor too, end with
// ringfile_close, which closes the duplicate.
//
// Any thread. Does not block. -EBADF: no descriptor; -EMFILE: no room for the duplicate.
//
// Pointers: `options` points to one whose size is set, or is NULL; `file` points to where the handle is to go.
int ringfile_open_fd(int fd,
                     const struct ringfile_open_options *options,
                     struct ringfile_file **file);

// Closes a file. Operations on it that are not over go on, and keep it open until they are.
//
// Any thread. Does not block. Syncs nothing. A thread's ring that used the file gives it up with the thread's next
// operation, with ringfile_thread_release, or when the thread ends: until then a deleted file's blocks stay taken.
//
// As with any close(2) of a descriptor of the file, all record locks go that the process has on it (fcntl(F_SETLK), lockf),
// whichever descriptor they were taken by: at once, or with the thread that is the last to give the file up. Locks of
// F_OFD_SETLK and flock stay with the caller's descriptors.
int ringfile_close(struct ringfile_file *file);

// The size in bytes. Any thread. Blocks as fstat(2).
int64_t ringfile_size(const struct ringfile_file *file);

// Whether I/O on the file is direct: 1 or 0. May turn from 1 to 0 with RINGFILE_BUFFERED_FALLBACK. Any thread; does not
// block.
int ringfile_is_direct(const struct ringfile_file *file);

// Whether reads pass the page cache by where it does not have their data: 1 or 0. 1 with RINGFILE_ADAPTIVE, where that could be
// had; may turn to 0. Any thread; does not block.
int ringfile_is_adaptive(const struct ringfile_file *file);

// What offsets and lengths (`*bytes`) and addresses (`*memory`) of direct I/O are to be multiples of; 1 for buffered I/O.
// Either pointer may be NULL. Any thread; does not block.
//
// Pointers: pointers that are not NULL may be written to.
int ringfile_alignment(const struct ringfile_file *file,
                       size_t *bytes,
                       size_t *memory);

// Which writes the file takes as atomic ones (ringfile_write_atomic): the shortest and the longest in bytes, both powers of
// two, and how many pieces of memory the kernel takes for one; all 0 where it takes none. Each pointer may be NULL. Any
// thread; does not block.
//
// Pointers: pointers that are not NULL may be written to.
int ringfile_atomic_limits(const struct ringfile_file *file,
                           size_t *min,
                           size_t *max,
                           size_t *segments);

// The file's descriptor, for calls that the library does not have. It stays the library's, which does its I/O with it:
// neither close it nor put another file in its place. It is closed with the file. Any thread; does not block.
int ringfile_fd(const struct ringfile_file *file);

// Counts of the whole process. Those of a thread that runs are as of its last wait.
//
// Any thread. Takes a lock for a moment.
//
// Pointers: `counts` points to a struct whose size is set.
int ringfile_metrics(struct ringfile_counts *counts);

// Counts of the calling thread, exact at this moment. Does not block.
//
// Pointers: `counts` points to a struct whose size is set.
int ringfile_thread_metrics(struct ringfile_counts *counts);

// What io_uring offers here, in words with spaces between them, of the calling thread's ring, or of one made to look at.
// Writes as much as there is room for, and a 0 behind it. How many bytes all of it has, without the 0.
//
// Any thread. May make a ring. Fails where none can be made: the error text says what is in the way.
//
// Pointers: `text` has room for `room` bytes.
int64_t ringfile_ring_features(char *text,
                               size_t room);

// The library's version, such as "0.1.0". Never NULL. Any thread; does not block.
const char *ringfile_version(void);

// Sets the route (RINGFILE_ROUTE_...) of files that are opened from now on without one of their own. Any thread; does not
// block.
int ringfile_set_default_route(uint32_t default_route);

// Sets how many threads carry out what threads without a ring of their own wait for; the functions of this header need
// none. No effect once they were made. Any thread; does not block.
int ringfile_set_io_threads(size_t threads);

// Sets how many workers there may be at most (RINGFILE_ROUTE_WORKERS); 0 for the usual number. Any thread; does not block.
int ringfile_set_worker_threads(size_t threads);

// Has the calling thread give up what its ring keeps between blocking calls: files that were closed, shares of registered
// memory. For a thread that will do no I/O for long; the next call takes a little longer. Does not block.
int ringfile_thread_release(void);

// Reads up to `length` bytes from `offset` into `data`: fewer only at the end of the file. How many.
//
// Any thread. Blocks. Errors are those of pread(2).
//
// Pointers: `length` bytes at `data`, as at the top of this file.
int64_t ringfile_read(const struct ringfile_file *file, void *data, size_t length, uint64_t offset);

// Writes all of `length` bytes from `data` at `offset`, or fails. How many: `length`.
//
// Any thread. Blocks. Errors are those of pwrite(2); after one, some of the bytes may be written.
//
// Pointers: `length` bytes at `data`, as at the top of this file.
int64_t ringfile_write(const struct ringfile_file *file, const void *data, size_t length, uint64_t offset);

// Reads from `offset` into a buffer up to its capacity, and sets its length to what was read. How many bytes.
//
// Any thread. Blocks. As ringfile_read; the buffer is not to be used or released meanwhile.
int64_t ringfile_buffer_read(const struct ringfile_file *file,
                             struct ringfile_buffer *buffer,
                             uint64_t offset);

// Writes a buffer's length of bytes at `offset`. How many.
//
// Any thread. Blocks. As ringfile_write; the buffer is not to be changed or released meanwhile.
int64_t ringfile_buffer_write(const struct ringfile_file *file,
                              const struct ringfile_buffer *buffer,
                              uint64_t offset);

// Writes all of `length` bytes from `data` at `offset`, and makes them durable (see RINGFILE_DURABILITY_AUTO). How many.
//
// Any thread. Blocks. Errors are those of pwrite(2) and fdatasync(2). A failure is remembered, see ringfile_sync_data.
//
// Pointers: `length` bytes at `data`, as at the top of this file.
int64_t ringfile_write_durable(const struct ringfile_file *file,
                               const void *data,
                               size_t length,
                               uint64_t offset);

// Writes all of `length` bytes from `data` at `offset` so that after a power cut all of it is there or none (RWF_ATOMIC,
// Linux 6.11). Not durable by itself: ringfile_sync_data follows. `length` is a power of two within what
// ringfile_atomic_limits says, `offset` a multiple of it, and the file direct. How many.
//
// Any thread. Blocks. Errors are those of pwritev2(2), EOPNOTSUPP where the file takes no atomic writes and EINVAL for one
// that it does not take: ringfile_last_error says what it takes. Nothing was written then. Never written in part.
//
// Pointers: `length` bytes at `data`, as at the top of this file.
int64_t ringfile_write_atomic(const struct ringfile_file *file,
                              const void *data,
                              size_t length,
                              uint64_t offset);

// As ringfile_read, into several parts, one after another.
//
// Any thread. Blocks. Allocates.
//
// Pointers: `count` parts at `parts`, and memory for each, as at the top of this file.
int64_t ringfile_readv(const struct ringfile_file *file,
                       const struct iovec *parts,
                       size_t count,
                       uint64_t offset);

// As ringfile_write, from several parts, one after another.
//
// Any thread. Blocks. Allocates.
//
// Pointers: `count` parts at `parts`, and memory for each, as at the top of this file.
int64_t ringfile_writev(const struct ringfile_file *file,
                        const struct iovec *parts,
                        size_t count,
                        uint64_t offset);

// Carries out many reads of one file together, and waits for all. Each request's `result` tells of that read. How many of
// them failed; negative where none was begun.
//
// ringfile_last_error() has words for one that failed, the last. For the others strerror(-result) says what the errno
// means; a batch keeps words for each (ringfile_batch_error).
//
// Any thread. Blocks. Allocates nothing once the thread has done as many together.
//
// Pointers: `count` requests at `requests`, and memory for each, as at the top of this file.
int ringfile_read_many(const struct ringfile_file *file,
                       struct ringfile_read_request *requests,
                       size_t count);

// Has the library tell what it warns of: that it goes on without io_uring, that memory could not be registered, defects.
// Each message is told to `callback`, with `context`; NULL switches that off, as it is at first. For the whole process:
// the last call counts. When it returns, the function that was set before is not running and is not called again.
//
// The function may be called by any thread, by several at once, from inside of any function of this header, and from
// threads of the library's own. It must be quick, must return (no longjmp, no C++ exception), and must call no function of
// this header: ringfile_set_log is -EDEADLK there, others may fail or wait for themselves. What it would be told meanwhile
// on the same thread is lost, and so is what another thread tells at the moment of a fork or of this call.
//
// Any thread. Waits for the function that was set before. -EBUSY: something else in this program takes the messages.
int ringfile_set_log(ringfile_log callback,
                     void *context);

// Registers memory of the caller's own (a buffer pool, a page cache), so that operations on any part of it use
// io_uring's fixed buffers, whatever call they come by. `*memory` gets the handle.
//
// The `length` bytes at `data` stay the caller's: to be kept until ringfile_memory_unregister has succeeded, and used
// freely in between, but for the parts that operations have. The kernel is told with the first operation on each GiB,
// and pins the pages then (RLIMIT_MEMLOCK); where it refuses, operations work unregistered. An operation over a multiple
// of 1 GiB from `data` goes unregistered.
//
// Any thread. Does not block. -EEXIST: some of it is registered already, or belongs to a ringfile_buffer.
//
// Pointers: as above.
int ringfile_memory_register(void *data,
                             size_t length,
                             struct ringfile_memory **memory);

// Gives registered memory up: when it has succeeded, the memory may be freed. Closes the handle then.
//
// Any thread. Does not block. -EBUSY, and nothing is changed, while an operation on some of it is not over: take its
// result, or abort it, and call again.
int ringfile_memory_unregister(struct ringfile_memory *memory);

// Whether an operation on some of the registered memory is not over: 1 or 0. Any thread; does not block.
int ringfile_memory_is_in_use(const struct ringfile_memory *memory);

// Adds the opening of a file, as ringfile_open, which does not block this thread: the kernel or a worker looks the path up, and
// cuts the file where RINGFILE_TRUNCATE says so. Where the result is 0, `*file` gets the handle at the moment at which the
// result is taken; it is not touched before, nor where the queue is freed, which closes the file.
//
// `user_data` and `token` as ringfile_queue_read. A relative path begins at the working directory of the moment at which the
// operation is carried out. The path and the options are read here, and may go when this returns. Allocates a few hundred
// bytes. The queue's own thread; does not block. Errors of open(2) are the operation's result.
//
// Pointers: `path` is a text that ends with 0; `options` points to one whose size is set; `file` points to where the handle is
// to go, until the result was taken; `token` is NULL or points to where the token is to go.
int ringfile_queue_open_file(struct ringfile_queue *queue,
                             const char *path,
                             const struct ringfile_open_options *options,
                             struct ringfile_file **file,
                             uint64_t user_data,
                             uint64_t *token);

// Adds giving a file or a directory another path (rename(2)), which replaces a file that is there. In all else as
// ringfile_queue_unlink.
//
// Pointers: `from` and `to` are texts that end with 0; `token` as ringfile_queue_unlink.
int ringfile_queue_rename(struct ringfile_queue *queue,
                          const char *from,
                          const char *to,
                          uint64_t user_data,
                          uint64_t *token);

// Adds the removal of a file (unlink(2)). The result is 0, or a negative errno. Another thread carries it out, so that the blocks
// of a large file are given back without blocking this one; those of a file that is open somewhere, by whoever closes it last.
//
// `user_data` and `token` as ringfile_queue_read. A relative path begins at the working directory of the moment at which the
// operation is carried out. The path is read here, and may go when this returns. Allocates a few hundred bytes. The
// queue's own thread; does not block.
//
// Pointers: `path` is a text that ends with 0; `token` is NULL or points to where the token is to go.
int ringfile_queue_unlink(struct ringfile_queue *queue,
                          const char *path,
                          uint64_t user_data,
                          uint64_t *token);

// Adds the removal of an empty directory (rmdir(2)); in all else as ringfile_queue_unlink.
//
// Pointers: as ringfile_queue_unlink.
int ringfile_queue_rmdir(struct ringfile_queue *queue, const char *path, uint64_t user_data, uint64_t *token);

// Adds the creation of a directory (mkdir(2), with mode 0777 less the umask); in all else as ringfile_queue_unlink.
//
// Pointers: as ringfile_queue_unlink.
int ringfile_queue_mkdir(struct ringfile_queue *queue,
                         const char *path,
                         uint64_t user_data,
                         uint64_t *token);

// Adds the reading of what the file system knows of a path (statx(2)), following symbolic links. Where the result is 0,
// `*metadata` is filled at the moment at which the result is taken; it is not touched before, nor where the queue is freed.
// In all else as ringfile_queue_unlink.
//
// Pointers: `metadata` points to one whose size is set, until the result was taken; all else as ringfile_queue_unlink.
int ringfile_queue_statx(struct ringfile_queue *queue,
                         const char *path,
                         struct ringfile_metadata *metadata,
                         uint64_t user_data,
                         uint64_t *token);

// Makes a pool. `*pool` gets the handle, to be closed with ringfile_pool_free.
//
// Any thread. Does not block. -EINVAL: options that make no sense; -ENOMEM: the system has no memory, or no huge pages.
//
// Pointers: `options` points to one whose size is set, and `pool` to where the handle is to go.
int ringfile_pool_create(const struct ringfile_pool_options *options,
                         struct ringfile_pool **pool);

// Closes a pool. Buffers of it stay good until they are released; then the memory goes back to the system.
//
// Any thread. Does not block.
int ringfile_pool_free(struct ringfile_pool *pool);

// Tells what a pool has in use.
//
// Any thread. Takes the pool's lock for a moment.
//
// Pointers: `counts` points to a struct whose size is set.
int ringfile_pool_metrics(const struct ringfile_pool *pool, struct ringfile_pool_counts *counts);

// Gets memory of a pool, of that capacity and length 0. `*buffer` gets the handle, to be closed with
// ringfile_buffer_release.
//
// Any thread. Blocks only where the pool is full and set to wait. -ENOMEM: the pool is full, or has never so much.
//
// Pointers: `buffer` points to where the handle is to go.
int ringfile_buffer_get(const struct ringfile_pool *pool,
                        size_t capacity,
                        struct ringfile_buffer **buffer);

// Where a buffer's memory is: the same for its whole life. NULL where the handle is no open buffer.
//
// Any thread. Does not block. The memory holds what this process wrote there before, or zeros.
void *ringfile_buffer_data(const struct ringfile_buffer *buffer);

// Bytes that a buffer has room for: what was asked for. Any thread; does not block.
int64_t ringfile_buffer_capacity(const struct ringfile_buffer *buffer);

// Bytes that hold data, by what ringfile_buffer_set_length or ringfile_buffer_read said last. Any thread; does not block.
int64_t ringfile_buffer_length(const struct ringfile_buffer *buffer);

// Notes how many bytes of a buffer hold data: what ringfile_buffer_write takes. Any thread; does not block. -EINVAL where
// that is above the capacity.
int ringfile_buffer_set_length(struct ringfile_buffer *buffer,
                               size_t length);

// Closes a buffer: its memory goes back to the pool, at once, or when the operations on it are over.
//
// Any thread. Does not block. The memory must not be touched any more.
int ringfile_buffer_release(struct ringfile_buffer *buffer);

// Makes a queue for the calling thread, with room for `depth` open operations; more make it grow. `*queue` gets the
// handle, to be closed with ringfile_queue_free, or with the thread.
//
// The thread alone may use it, beside other queues, batches and blocking calls of its own. Operations go through that
// thread's ring, and through no other thread. None allocates once as many were open together as ever are. Does not block.
//
// Pointers: `queue` points to where the handle is to go.
int ringfile_queue_create(size_t depth,
                          struct ringfile_queue **queue);

// Adds a read of `length` bytes from `offset` into `data`. Nothing is begun before ringfile_queue_submit or a wait. The
// memory is the library's until the result was taken.
//
// `user_data` comes back with the result. `*token`, where `token` is not NULL, gets the number that names the operation in
// this queue until its result was taken; it is never 0.
//
// The queue's own thread. Does not block.
//
// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file; `token` is NULL or points to
// where the token is to go.
int ringfile_queue_read(struct ringfile_queue *queue,
                        const struct ringfile_file *file,
                        void *data,
                        size_t length,
                        uint64_t offset,
                        uint64_t user_data,
                        uint64_t *token);

// Adds a write of `length` bytes from `data` at `offset`; in all else as ringfile_queue_read.
//
// Pointers: as ringfile_queue_read.
int ringfile_queue_write(struct ringfile_queue *queue,
                         const struct ringfile_file *file,
                         const void *data,
                         size_t length,
                         uint64_t offset,
                         uint64_t user_data,
                         uint64_t *token);

// Adds a write that is durable when it ends (RWF_DSYNC); in all else as ringfile_queue_write. A failure is remembered, see
// ringfile_sync_data.
//
// Pointers: as ringfile_queue_read.
int ringfile_queue_write_durable(struct ringfile_queue *queue,
                                 const struct ringfile_file *file,
                                 const void *data,
                                 size_t length,
                                 uint64_t offset,
                                 uint64_t user_data,
                                 uint64_t *token);

// Adds a write that a power cut leaves wholly there or not at all (RWF_ATOMIC), see ringfile_write_atomic; in all else as
// ringfile_queue_write.
//
// Pointers: as ringfile_queue_read.
int ringfile_queue_write_atomic(struct ringfile_queue *queue,
                                const struct ringfile_file *file,
                                const void *data,
                                size_t length,
                                uint64_t offset,
                                uint64_t user_data,
                                uint64_t *token);

// Adds a read from `offset` into several parts, one after another; in all else as ringfile_queue_read. The array of parts
// is read here, and may go when this returns. Allocates.
//
// Pointers: `count` parts at `parts`, and memory for each until the result was taken, as at the top of this file; `token` as
// ringfile_queue_read.
int ringfile_queue_readv(struct ringfile_queue *queue,
                         const struct ringfile_file *file,
                         const struct iovec *parts,
                         size_t count,
                         uint64_t offset,
                         uint64_t user_data,
                         uint64_t *token);

// Adds a write of several parts, one after another, at `offset`; in all else as ringfile_queue_readv.
//
// Pointers: as ringfile_queue_readv.
int ringfile_queue_writev(struct ringfile_queue *queue,
                          const struct ringfile_file *file,
                          const struct iovec *parts,
                          size_t count,
                          uint64_t offset,
                          uint64_t user_data,
                          uint64_t *token);

// Adds an fdatasync, which covers the writes that have ended when it is submitted. `token` as ringfile_queue_read. The
// queue's own thread; does not block.
//
// Pointers: `token` is NULL or points to where the token is to go.
int ringfile_queue_sync_data(struct ringfile_queue *queue,
                             const struct ringfile_file *file,
                             uint64_t user_data,
                             uint64_t *token);

// Adds an fsync; in all else as ringfile_queue_sync_data.
//
// Pointers: as ringfile_queue_sync_data.
int ringfile_queue_sync_all(struct ringfile_queue *queue,
                            const struct ringfile_file *file,
                            uint64_t user_data,
                            uint64_t *token);

// Adds the writing of a range's dirty pages, as ringfile_sync_range. `flags`: RINGFILE_SYNC_RANGE_WRITE starts it, all three
// RINGFILE_SYNC_RANGE_... wait until the pages are written, and others are -EINVAL. In all else as ringfile_queue_sync_data.
//
// Pointers: as ringfile_queue_sync_data.
int ringfile_queue_sync_range(struct ringfile_queue *queue,
                              const struct ringfile_file *file,
                              uint64_t offset,
                              uint64_t length,
                              uint32_t flags,
                              uint64_t user_data,
                              uint64_t *token);

// Adds an allocation of a range's blocks, or a hole, as ringfile_allocate, by `mode` (RINGFILE_ALLOCATE_...); in all else as
// ringfile_queue_sync_data.
//
// Pointers: as ringfile_queue_sync_data.
int ringfile_queue_allocate(struct ringfile_queue *queue,
                            const struct ringfile_file *file,
                            uint32_t mode,
                            uint64_t offset,
                            uint64_t length,
                            uint64_t user_data,
                            uint64_t *token);

// Adds a change of the file's size, as ringfile_truncate; in all else as ringfile_queue_sync_data.
//
// Pointers: as ringfile_queue_sync_data.
int ringfile_queue_truncate(struct ringfile_queue *queue,
                            const struct ringfile_file *file,
                            uint64_t length,
                            uint64_t user_data,
                            uint64_t *token);

// Adds advice for the page cache, as ringfile_advise (RINGFILE_ADVICE_...); in all else as ringfile_queue_sync_data.
//
// Pointers: as ringfile_queue_sync_data.
int ringfile_queue_advise(struct ringfile_queue *queue,
                          const struct ringfile_file *file,
                          uint64_t offset,
                          uint64_t length,
                          uint32_t advice,
                          uint64_t user_data,
                          uint64_t *token);

// Begins what was added, in one system call where that is many, and takes in what has ended. What is wrong with an
// operation is its result.
//
// The queue's own thread. Does not wait; files whose route is a plain call are read and written here.
int ringfile_queue_submit(struct ringfile_queue *queue);

// Begins what was added, and waits until `at_least` operations have ended, or all, or `timeout_ns` nanoseconds are over
// (negative: without end; 0: not at all). Takes up to `room` results to `results`, in the order in which they ended. How
// many were taken: 0 where none has ended in time, or none is open.
//
// The queue's own thread. Blocks as said. `at_least` above `room` counts as `room`.
//
// Pointers: `results` has room for so many.
int64_t ringfile_queue_wait(struct ringfile_queue *queue,
                            struct ringfile_result *results,
                            size_t room,
                            size_t at_least,
                            int64_t timeout_ns);

// Begins what was added, waits for one operation, and takes its result: the number or the negative errno that
// ringfile_result has. The memory is the caller's again, and the token names nothing any more.
//
// The queue's own thread. Blocks. -EINVAL, and an error text that says so: the token names no operation of this queue, or
// its result was taken.
int64_t ringfile_queue_wait_for(struct ringfile_queue *queue,
                                uint64_t token);

// Takes the result of one operation that has ended, as ringfile_queue_wait_for. -EAGAIN, and nothing is taken, where it has
// not ended.
//
// The queue's own thread. Does not block, and begins nothing: see ringfile_queue_submit.
int64_t ringfile_queue_take(struct ringfile_queue *queue,
                            uint64_t token);

// Whether an operation has ended: 1 or 0. -EINVAL as ringfile_queue_wait_for. The queue's own thread; does not block.
int ringfile_queue_is_done(struct ringfile_queue *queue,
                           uint64_t token);

// Asks for the cancellation of an operation: 1, or 0 where it has ended. Its result still comes, exactly once: what was
// done by then, or -ECANCELED. Until it was taken, the memory is the library's.
//
// What was not submitted is never carried out. What waits for a pipe or a socket, or has not begun, is cancelled; what a
// disk has begun runs to its end.
//
// The queue's own thread. Does not block; ringfile_queue_wait_for waits. -EINVAL as there.
int ringfile_queue_cancel(struct ringfile_queue *queue,
                          uint64_t token);

// A descriptor that is readable whenever a result can be taken without waiting, or the kernel has one: a source for
// epoll(7), poll(2) or another io_uring, beside sockets and timers. When it is readable, call ringfile_queue_wait with a
// timeout of 0, or ringfile_queue_submit and ringfile_queue_take.
//
// It is level-triggered. It may be readable for nothing, never the other way round, whatever else of the thread collects the
// completion. It tells of operations that were submitted. There is nothing to read from it. Each call makes one of its own,
// the caller's, with FD_CLOEXEC: close(2) it, before or after the queue is closed. Beside a closed queue it tells nothing.
//
// The queue's own thread. Does not block. Errors are those of epoll_create1(2) and eventfd(2).
int ringfile_queue_descriptor(struct ringfile_queue *queue);

// How many operations were added whose results were not taken. The queue's own thread; does not block.
int64_t ringfile_queue_open(const struct ringfile_queue *queue);

// Cancels what the kernel still can, waits until it is done with all memory, and closes the handle. Results that were not
// taken are lost.
//
// The queue's own thread. Blocks.
int ringfile_queue_free(struct ringfile_queue *queue);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGFILE_H */
