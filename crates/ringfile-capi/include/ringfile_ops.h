/*
 * Inline code of the program, not of the library; other languages fill in a ringfile_op, or pass the flags.
 * Each ringfile_op_... returns an operation as RINGFILE_OP_... in ringfile.h describes it, which these carry out:
 *
 *     ringfile_run(ringfile_op_read(file, data, length, offset))
 *     ringfile_batch_add(batch, ringfile_op_read(file, data, length, offset), user_data)
 *     ringfile_queue_add(queue, ringfile_op_read(file, data, length, offset), user_data, &token)
 */
#ifndef RINGFILE_OPS_H
#define RINGFILE_OPS_H
#include "ringfile.h"

static inline ringfile_op ringfile_op_on_file(uint32_t kind, uint32_t flags, const ringfile_file *file,
                                              const void *data, uint64_t length, uint64_t offset)
{
    ringfile_op op = {kind, flags, file, data, length, offset, NULL, 0, NULL};
    return op;
}
static inline ringfile_op ringfile_op_on_path(uint32_t kind, uint32_t flags, const char *path, const void *other, void *result)
{
    ringfile_op op = {kind, flags, NULL, path, 0, 0, other, 0, result};
    return op;
}

/* Reads and writes. Memory, and `parts` up to the call that takes the operation, stay until it has ended. */
static inline ringfile_op ringfile_op_read(const ringfile_file *file, void *data, size_t length, uint64_t offset)
{
    return ringfile_op_on_file(RINGFILE_OP_READ, 0, file, data, length, offset);
}
static inline ringfile_op ringfile_op_write(const ringfile_file *file, const void *data, size_t length, uint64_t offset)
{
    return ringfile_op_on_file(RINGFILE_OP_WRITE, 0, file, data, length, offset);
}
static inline ringfile_op ringfile_op_write_durable(const ringfile_file *file, const void *data, size_t length,
                                                    uint64_t offset)
{
    return ringfile_op_on_file(RINGFILE_OP_WRITE_DURABLE, 0, file, data, length, offset);
}
static inline ringfile_op ringfile_op_write_atomic(const ringfile_file *file, const void *data, size_t length,
                                                   uint64_t offset)
{
    return ringfile_op_on_file(RINGFILE_OP_WRITE_ATOMIC, 0, file, data, length, offset);
}
static inline ringfile_op ringfile_op_readv(const ringfile_file *file, const struct iovec *parts, size_t count,
                                            uint64_t offset)
{
    return ringfile_op_on_file(RINGFILE_OP_READV, 0, file, parts, count, offset);
}
static inline ringfile_op ringfile_op_writev(const ringfile_file *file, const struct iovec *parts, size_t count,
                                             uint64_t offset)
{
    return ringfile_op_on_file(RINGFILE_OP_WRITEV, 0, file, parts, count, offset);
}

/* Other operations on a file. */
static inline ringfile_op ringfile_op_sync_data(const ringfile_file *file)
{
    return ringfile_op_on_file(RINGFILE_OP_SYNC_DATA, 0, file, NULL, 0, 0);
}
static inline ringfile_op ringfile_op_sync_all(const ringfile_file *file)
{
    return ringfile_op_on_file(RINGFILE_OP_SYNC_ALL, 0, file, NULL, 0, 0);
}
static inline ringfile_op ringfile_op_sync_range(const ringfile_file *file, uint64_t offset, uint64_t length,
                                                 uint32_t flags)
{
    return ringfile_op_on_file(RINGFILE_OP_SYNC_RANGE, flags, file, NULL, length, offset);
}
static inline ringfile_op ringfile_op_allocate(const ringfile_file *file, uint32_t mode, uint64_t offset, uint64_t length)
{
    return ringfile_op_on_file(RINGFILE_OP_ALLOCATE, mode, file, NULL, length, offset);
}
static inline ringfile_op ringfile_op_truncate(const ringfile_file *file, uint64_t length)
{
    return ringfile_op_on_file(RINGFILE_OP_TRUNCATE, 0, file, NULL, length, 0);
}
static inline ringfile_op ringfile_op_advise(const ringfile_file *file, uint64_t offset, uint64_t length, uint32_t advice)
{
    return ringfile_op_on_file(RINGFILE_OP_ADVISE, advice, file, NULL, length, offset);
}
static inline ringfile_op ringfile_op_copy_range(const ringfile_file *file, uint64_t offset, const ringfile_file *to,
                                                 uint64_t to_offset, uint64_t length)
{
    ringfile_op op = {RINGFILE_OP_COPY_RANGE, 0, file, NULL, length, offset, to, to_offset, NULL};
    return op;
}
static inline ringfile_op ringfile_op_stat(const ringfile_file *file, ringfile_metadata *metadata)
{
    ringfile_op op = {RINGFILE_OP_STATX, 0, file, NULL, 0, 0, NULL, 0, metadata};
    return op;
}

/* Operations on paths, which are copied. `flags`: 0 or RINGFILE_RENAME_...; `mode`: permission bits. */
static inline ringfile_op ringfile_op_open(const char *path, const ringfile_open_options *options, ringfile_file **file)
{
    return ringfile_op_on_path(RINGFILE_OP_OPEN, 0, path, options, file);
}
static inline ringfile_op ringfile_op_statx(const char *path, ringfile_metadata *metadata)
{
    return ringfile_op_on_path(RINGFILE_OP_STATX, 0, path, NULL, metadata);
}
static inline ringfile_op ringfile_op_rename(const char *from, const char *to, uint32_t flags)
{
    return ringfile_op_on_path(RINGFILE_OP_RENAME, flags, from, to, NULL);
}
static inline ringfile_op ringfile_op_link(const char *path, const char *also)
{
    return ringfile_op_on_path(RINGFILE_OP_LINK, 0, path, also, NULL);
}
static inline ringfile_op ringfile_op_symlink(const char *path, const char *target)
{
    return ringfile_op_on_path(RINGFILE_OP_SYMLINK, 0, path, target, NULL);
}
static inline ringfile_op ringfile_op_chmod(const char *path, uint32_t mode)
{
    return ringfile_op_on_path(RINGFILE_OP_CHMOD, mode, path, NULL, NULL);
}
/* `kind`: RINGFILE_OP_UNLINK, RINGFILE_OP_RMDIR, RINGFILE_OP_MKDIR or RINGFILE_OP_MKDIR_ALL. */
static inline ringfile_op ringfile_op_path(uint32_t kind, const char *path)
{
    return ringfile_op_on_path(kind, 0, path, NULL, NULL);
}

/* Calls of ringfile_appender_append without data. Flush and sync return 0 or a negative errno, end an offset. */
static inline int64_t ringfile_appender_end(const ringfile_appender *appender)
{
    return ringfile_appender_append(appender, NULL, 0, 0);
}
static inline int ringfile_appender_wait(const ringfile_appender *appender, uint32_t flag)
{
    int64_t end = ringfile_appender_append(appender, NULL, 0, flag);
#ifdef __cplusplus
    return end < 0 ? static_cast<int>(end) : 0;
#else
    return end < 0 ? (int)end : 0;
#endif
}
static inline int ringfile_appender_flush(const ringfile_appender *appender)
{
    return ringfile_appender_wait(appender, RINGFILE_APPEND_FLUSH);
}
static inline int ringfile_appender_sync(const ringfile_appender *appender)
{
    return ringfile_appender_wait(appender, RINGFILE_APPEND_SYNC);
}

/* Gets one page, and reads it if it is not in memory. Returns 0, or a negative errno: see ringfile_cache_read_many. */
static inline int ringfile_cache_read(const ringfile_cached_file *cached, uint64_t number, ringfile_cached_page *page)
{
    int found = ringfile_cache_get(cached, number, page);
    return found > 0 ? 0 : found < 0 ? found : ringfile_cache_read_many(cached, &number, 1, page);
}
/* Begins to read those pages that are not in memory, and returns at once: see ringfile_cache_read_many. */
static inline int ringfile_cache_prefetch(const ringfile_cached_file *cached, const uint64_t *numbers, size_t count)
{
    return ringfile_cache_read_many(cached, numbers, count, NULL);
}

#endif /* RINGFILE_OPS_H */
