/*
 * Functions that add one kind of operation to a batch or a queue: they fill in a ringfile_op and call ringfile_batch_add
 * or ringfile_queue_add, whose rules hold for them too. What each kind does, and what its result is, is said at its
 * RINGFILE_OP_... in ringfile.h, which includes this file. The last ones carry out one operation on a file, an appender or
 * a cached file.
 *
 * They are part of the program, and not of the library: other languages fill in a ringfile_op, or pass the flags.
 */
#ifndef RINGFILE_OPS_H
#define RINGFILE_OPS_H

#include "ringfile.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Sets the fields of operations that need no more than these. `size` says that the later ones are not there. */
static inline void ringfile_op_short(ringfile_op *op, uint32_t kind, uint32_t flags, const ringfile_file *file,
                                     const void *data, uint64_t length, uint64_t offset)
{
    op->size = offsetof(ringfile_op, parts);
    op->kind = kind;
    op->flags = flags;
    op->file = file;
    op->data = (void *)data; /* only reads write to it */
    op->length = length;
    op->offset = offset;
}

/* Sets the fields of vectored operations. */
static inline void ringfile_op_vectored(ringfile_op *op, uint32_t kind, const ringfile_file *file,
                                        const struct iovec *parts, size_t count, uint64_t offset)
{
    ringfile_op_short(op, kind, 0, file, NULL, 0, offset);
    op->size = offsetof(ringfile_op, to);
    op->parts = parts;
    op->count = count;
}

/* Sets all fields of an operation to 0, except for its kind. */
static inline void ringfile_op_init(ringfile_op *op, uint32_t kind)
{
    memset(op, 0, sizeof *op);
    op->size = sizeof *op;
    op->kind = kind;
}

/* Operations of a batch. Each function returns the index of the operation's result, or a negative errno. */

static inline int64_t ringfile_batch_read(ringfile_batch *batch, const ringfile_file *file, void *data, size_t length,
                                          uint64_t offset, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_READ, 0, file, data, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_write(ringfile_batch *batch, const ringfile_file *file, const void *data,
                                           size_t length, uint64_t offset, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_WRITE, 0, file, data, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_write_durable(ringfile_batch *batch, const ringfile_file *file, const void *data,
                                                   size_t length, uint64_t offset, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_WRITE_DURABLE, 0, file, data, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_write_atomic(ringfile_batch *batch, const ringfile_file *file, const void *data,
                                                  size_t length, uint64_t offset, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_WRITE_ATOMIC, 0, file, data, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_readv(ringfile_batch *batch, const ringfile_file *file,
                                           const struct iovec *parts, size_t count, uint64_t offset,
                                           uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_vectored(&op, RINGFILE_OP_READV, file, parts, count, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_writev(ringfile_batch *batch, const ringfile_file *file,
                                            const struct iovec *parts, size_t count, uint64_t offset,
                                            uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_vectored(&op, RINGFILE_OP_WRITEV, file, parts, count, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_sync_data(ringfile_batch *batch, const ringfile_file *file, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_SYNC_DATA, 0, file, NULL, 0, 0);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_sync_all(ringfile_batch *batch, const ringfile_file *file, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_SYNC_ALL, 0, file, NULL, 0, 0);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_sync_range(ringfile_batch *batch, const ringfile_file *file, uint64_t offset,
                                                uint64_t length, uint32_t flags, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_SYNC_RANGE, flags, file, NULL, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_allocate(ringfile_batch *batch, const ringfile_file *file, uint32_t mode,
                                              uint64_t offset, uint64_t length, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_ALLOCATE, mode, file, NULL, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_truncate(ringfile_batch *batch, const ringfile_file *file, uint64_t length,
                                              uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_TRUNCATE, 0, file, NULL, length, 0);
    return ringfile_batch_add(batch, &op, user_data);
}

static inline int64_t ringfile_batch_advise(ringfile_batch *batch, const ringfile_file *file, uint64_t offset,
                                            uint64_t length, uint32_t advice, uint64_t user_data)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_ADVISE, advice, file, NULL, length, offset);
    return ringfile_batch_add(batch, &op, user_data);
}

/* Operations of a queue. Each function returns 0, or a negative errno. */

static inline int ringfile_queue_read(ringfile_queue *queue, const ringfile_file *file, void *data, size_t length,
                                      uint64_t offset, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_READ, 0, file, data, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_write(ringfile_queue *queue, const ringfile_file *file, const void *data,
                                       size_t length, uint64_t offset, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_WRITE, 0, file, data, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_write_durable(ringfile_queue *queue, const ringfile_file *file, const void *data,
                                               size_t length, uint64_t offset, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_WRITE_DURABLE, 0, file, data, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_write_atomic(ringfile_queue *queue, const ringfile_file *file, const void *data,
                                              size_t length, uint64_t offset, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_WRITE_ATOMIC, 0, file, data, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_readv(ringfile_queue *queue, const ringfile_file *file, const struct iovec *parts,
                                       size_t count, uint64_t offset, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_vectored(&op, RINGFILE_OP_READV, file, parts, count, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_writev(ringfile_queue *queue, const ringfile_file *file, const struct iovec *parts,
                                        size_t count, uint64_t offset, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_vectored(&op, RINGFILE_OP_WRITEV, file, parts, count, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_sync_data(ringfile_queue *queue, const ringfile_file *file, uint64_t user_data,
                                           uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_SYNC_DATA, 0, file, NULL, 0, 0);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_sync_all(ringfile_queue *queue, const ringfile_file *file, uint64_t user_data,
                                          uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_SYNC_ALL, 0, file, NULL, 0, 0);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_sync_range(ringfile_queue *queue, const ringfile_file *file, uint64_t offset,
                                            uint64_t length, uint32_t flags, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_SYNC_RANGE, flags, file, NULL, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_allocate(ringfile_queue *queue, const ringfile_file *file, uint32_t mode,
                                          uint64_t offset, uint64_t length, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_ALLOCATE, mode, file, NULL, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_truncate(ringfile_queue *queue, const ringfile_file *file, uint64_t length,
                                          uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_TRUNCATE, 0, file, NULL, length, 0);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_advise(ringfile_queue *queue, const ringfile_file *file, uint64_t offset,
                                        uint64_t length, uint32_t advice, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_short(&op, RINGFILE_OP_ADVISE, advice, file, NULL, length, offset);
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_open_file(ringfile_queue *queue, const char *path,
                                           const ringfile_open_options *options, ringfile_file **file,
                                           uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_OPEN);
    op.path = path;
    op.options = options;
    op.opened = file;
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_rename(ringfile_queue *queue, const char *from, const char *to, uint64_t user_data,
                                        uint64_t *token)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_RENAME);
    op.path = from;
    op.to_path = to;
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_unlink(ringfile_queue *queue, const char *path, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_UNLINK);
    op.path = path;
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_rmdir(ringfile_queue *queue, const char *path, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_RMDIR);
    op.path = path;
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_mkdir(ringfile_queue *queue, const char *path, uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_MKDIR);
    op.path = path;
    return ringfile_queue_add(queue, &op, user_data, token);
}

static inline int ringfile_queue_statx(ringfile_queue *queue, const char *path, ringfile_metadata *metadata,
                                       uint64_t user_data, uint64_t *token)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_STATX);
    op.path = path;
    op.metadata = metadata;
    return ringfile_queue_add(queue, &op, user_data, token);
}

/* Reads the metadata of an open file into a struct whose `size` is set. Any thread. Blocks. */
static inline int ringfile_stat(const ringfile_file *file, ringfile_metadata *metadata)
{
    ringfile_op op;
    ringfile_op_init(&op, RINGFILE_OP_STATX);
    op.file = file;
    op.metadata = metadata;
    return (int)ringfile_run(&op);
}

/* Waits until all that was appended before is in the file, where others can read it. */
static inline int ringfile_appender_flush(const ringfile_appender *appender)
{
    int64_t end = ringfile_appender_append(appender, NULL, 0, RINGFILE_APPEND_FLUSH);
    return end < 0 ? (int)end : 0;
}

/* Waits until all that was appended before is durable. Threads that wait at the same time share one sync. */
static inline int ringfile_appender_sync(const ringfile_appender *appender)
{
    int64_t end = ringfile_appender_append(appender, NULL, 0, RINGFILE_APPEND_SYNC);
    return end < 0 ? (int)end : 0;
}

/* Returns the offset at which the next record will begin. Does not block. */
static inline int64_t ringfile_appender_end(const ringfile_appender *appender)
{
    return ringfile_appender_append(appender, NULL, 0, 0);
}

/* Gets one page, and reads it if it is not in memory. Returns 0, or a negative errno: see ringfile_cache_read_many. */
static inline int ringfile_cache_read(const ringfile_cached_file *cached, uint64_t number, ringfile_cached_page *page)
{
    int found = ringfile_cache_get(cached, number, page);
    if (found != 0)
        return found < 0 ? found : 0;
    return ringfile_cache_read_many(cached, &number, 1, page);
}

/* Begins to read those pages that are not in memory, and returns at once: see ringfile_cache_read_many. */
static inline int ringfile_cache_prefetch(const ringfile_cached_file *cached, const uint64_t *numbers, size_t count)
{
    return ringfile_cache_read_many(cached, numbers, count, NULL);
}

#endif /* RINGFILE_OPS_H */
