/*
 * A storage engine's block reader, before and after: pread(2) first, then the same blocks through ringfile, one at a
 * time, many at once, ahead of a scan, in the engine's own loop, into its own cache, and written back. docs/guide/c.md
 * explains it step by step. Each step checks the bytes of every block.
 *
 * Usage: block_reader [FOLDER], where it makes and removes a file; the current folder by default.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ringfile.h"

enum { BLOCK = 4096, BLOCKS = 256, FRAMES = 32 };

/* The engine's reader before the change: one block at a time, with pread(2). */
static int pread_block(int fd, void *block, uint64_t number)
{
    char *to = block;
    size_t done = 0;
    while (done < BLOCK) {
        ssize_t got = pread(fd, to + done, BLOCK - done, (off_t)(number * BLOCK + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -errno;
        }
        if (got == 0) {
            return -EIO; /* the file ends inside the block */
        }
        done += (size_t)got;
    }
    return 0;
}

/* Step 1: the same function over ringfile. */
static int read_block(const ringfile_file *file, void *block, uint64_t number)
{
    int64_t got = ringfile_read(file, block, BLOCK, number * BLOCK);
    if (got < 0) {
        return (int)got;
    }
    return got == BLOCK ? 0 : -EIO; /* fewer only at the end of the file */
}

/* Step 2: all blocks that are needed soon, in one call. Returns how many could not be read. */
static int read_blocks(const ringfile_file *file, unsigned char *const frames[], const uint64_t numbers[], size_t count)
{
    ringfile_read_request requests[FRAMES];
    if (count > FRAMES) {
        return -EINVAL;
    }
    for (size_t at = 0; at < count; at++) {
        requests[at] = (ringfile_read_request){numbers[at] * BLOCK, frames[at], BLOCK, 0};
    }
    int failed = ringfile_read_many(file, requests, count);
    for (size_t at = 0; failed >= 0 && at < count; at++) {
        failed += requests[at].result >= 0 && requests[at].result < BLOCK;
    }
    return failed;
}

/* Uses a block that was read. Here, it checks it. */
static int use_block(const void *block, uint64_t number);

/* Step 3: a scan that lets the next blocks be read while it uses this one. */
static int scan(const ringfile_file *file, unsigned char *const frames[], size_t ahead)
{
    ringfile_queue *queue;
    uint64_t tokens[FRAMES];
    int result = ringfile_queue_create(ahead, 0, &queue);
    if (result < 0) {
        return result;
    }
    for (uint64_t next = 0, number = 0; result == 0 && number < BLOCKS; number++) {
        for (; result == 0 && next < BLOCKS && next < number + ahead; next++) {
            uint64_t at = next % ahead;
            result = ringfile_queue_add(queue, ringfile_op_read(file, frames[at], BLOCK, next * BLOCK), next,
                                        &tokens[at]);
        }
        if (result == 0) {
            int64_t got = ringfile_queue_wait_for(queue, tokens[number % ahead]); /* submits what was added */
            result = got < 0 ? (int)got : got < BLOCK ? -EIO : use_block(frames[number % ahead], number);
        }
    }
    ringfile_queue_free(queue); /* waits for reads in flight: the frames belong to the engine again */
    return result;
}

/* Step 4: the engine's own loop, which keeps a read in flight for each of `depth` frames. */
static int serve(const ringfile_file *file, unsigned char *const frames[], size_t depth, uint64_t total)
{
    ringfile_queue *queue;
    ringfile_result results[FRAMES];
    uint64_t numbers[FRAMES], begun = 0, ended = 0;
    int result = ringfile_queue_create(depth, 0, &queue);
    if (result < 0) {
        return result;
    }
    for (; result == 0 && begun < depth; begun++) {
        numbers[begun] = begun * 7 % BLOCKS;
        result = ringfile_queue_add(queue, ringfile_op_read(file, frames[begun], BLOCK, numbers[begun] * BLOCK), begun,
                                    NULL);
    }
    while (result == 0 && ended < total) {
        /* Waits at most a millisecond, so that the loop gets to its other work; 0 would only check. */
        int64_t taken = ringfile_queue_wait(queue, results, FRAMES, 1, 1000000);
        result = taken < 0 ? (int)taken : 0;
        for (int64_t at = 0; result == 0 && at < taken; at++, ended++) {
            uint64_t frame = results[at].user_data;
            result = results[at].result == BLOCK ? use_block(frames[frame], numbers[frame]) : -EIO;
            if (result == 0 && begun < total) {
                numbers[frame] = begun++ * 7 % BLOCKS;
                result = ringfile_queue_add(queue, ringfile_op_read(file, frames[frame], BLOCK, numbers[frame] * BLOCK),
                                            frame, NULL);
            }
        }
    }
    ringfile_queue_free(queue); /* waits for reads in flight */
    return result;
}

/* Step 5: bypasses the page cache if the file supports that, and checks what its blocks must be multiples of. */
static int open_direct(const char *path, ringfile_file **file)
{
    ringfile_open_options options = {.size = sizeof options};
    options.flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_DIRECT | RINGFILE_BUFFERED_FALLBACK;
    int result = ringfile_open(path, &options, file);
    if (result < 0) {
        return result;
    }
    size_t bytes, memory;
    result = ringfile_alignment(*file, &bytes, &memory);
    if (result == 0 && (BLOCK % bytes != 0 || BLOCK % memory != 0)) {
        result = -EINVAL; /* reads would work, with a copy; writes would not */
    }
    if (result < 0) {
        ringfile_close(*file);
    }
    return result;
}

/* Step 6: dirty blocks, and then one fdatasync for all of them. */
static int write_blocks(const ringfile_file *file, unsigned char *const frames[], const uint64_t numbers[], size_t count)
{
    ringfile_batch *batch;
    int result = ringfile_batch_create(NULL, &batch);
    if (result < 0) {
        return result;
    }
    int64_t added = 0, failed = -ENOMEM;
    for (size_t at = 0; added >= 0 && at < count; at++) {
        added = ringfile_batch_add(batch, ringfile_op_write(file, frames[at], BLOCK, numbers[at] * BLOCK), at);
    }
    if (added >= 0 && ringfile_batch_barrier(batch) == 0
        && ringfile_batch_add(batch, ringfile_op_sync_data(file), count) >= 0) {
        failed = ringfile_batch_run(batch);
    }
    if (failed > 0) {
        fprintf(stderr, "%s\n", ringfile_last_error());
    }
    ringfile_batch_free(batch);
    return failed == 0 ? 0 : -EIO;
}

/* Step 6, for a log: the data is on stable storage when it returns. */
static int append_record(const ringfile_file *log, const void *block, uint64_t end)
{
    int64_t written = ringfile_write_durable(log, block, BLOCK, end);
    return written < 0 ? (int)written : 0;
}

/* Step 6, for overwriting a block in place: after a power cut there is either the old block or the new one. Returns 0
 * if the file does not support it. */
static int64_t replace_block(const ringfile_file *file, const void *block, uint64_t number)
{
    size_t least, most;
    int64_t written = ringfile_atomic_limits(file, &least, &most, NULL);
    if (written == 0 && least <= BLOCK && BLOCK <= most) {
        written = ringfile_write_atomic(file, block, BLOCK, number * BLOCK);
    }
    return written;
}

/* The rest makes the file, calls the steps and checks them. */

#define EXPECT(truth) expect(truth, #truth, __LINE__)

static void expect(int truth, const char *what, int line)
{
    if (!truth) {
        fprintf(stderr, "block_reader.c:%d: check failed: %s (last error: %s)\n", line, what, ringfile_last_error());
        exit(1);
    }
}

static unsigned char version = 0;

/* Returns a byte that differs from those of other blocks, and other versions of this block, at the same place. */
static unsigned char mark(uint64_t number, size_t at)
{
    return (unsigned char)(number * 31 + at / 16 + version);
}

static void fill(unsigned char *block, uint64_t number)
{
    for (size_t at = 0; at < BLOCK; at++) {
        block[at] = mark(number, at);
    }
}

static int use_block(const void *block, uint64_t number)
{
    const unsigned char *bytes = block;
    for (size_t at = 0; at < BLOCK; at++) {
        if (bytes[at] != mark(number, at)) {
            return -EILSEQ;
        }
    }
    return 0;
}

static void reads_are_right(int fd, const ringfile_file *file, unsigned char *const frames[])
{
    uint64_t numbers[FRAMES];
    for (uint64_t number = 0; number < BLOCKS; number += 17) {
        EXPECT(pread_block(fd, frames[0], number) == 0 && use_block(frames[0], number) == 0);
        memset(frames[0], 0, BLOCK);
        EXPECT(read_block(file, frames[0], number) == 0 && use_block(frames[0], number) == 0);
    }
    EXPECT(pread_block(fd, frames[0], BLOCKS) == -EIO && read_block(file, frames[0], BLOCKS) == -EIO);
    for (size_t at = 0; at < FRAMES; at++) {
        numbers[at] = at * 37 % BLOCKS;
    }
    EXPECT(read_blocks(file, frames, numbers, FRAMES) == 0);
    for (size_t at = 0; at < FRAMES; at++) {
        EXPECT(use_block(frames[at], numbers[at]) == 0);
    }
    numbers[3] = BLOCKS;
    EXPECT(read_blocks(file, frames, numbers, FRAMES) == 1);
    EXPECT(scan(file, frames, 8) == 0);
    EXPECT(serve(file, frames, FRAMES, 1000) == 0);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : ".";
    char path[4096];
    snprintf(path, sizeof path, "%s/ringfile-blocks-%ld", folder, (long)getpid());
    unsigned char *cache = aligned_alloc(BLOCK, FRAMES * BLOCK);
    unsigned char *frames[FRAMES];
    EXPECT(cache != NULL);
    memset(cache, 0, FRAMES * BLOCK); /* valgrind does not see what a ring writes */
    for (size_t at = 0; at < FRAMES; at++) {
        frames[at] = cache + at * BLOCK;
    }

    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT(fd >= 0);
    for (uint64_t number = 0; number < BLOCKS; number++) {
        fill(cache, number);
        EXPECT(pwrite(fd, cache, BLOCK, (off_t)(number * BLOCK)) == BLOCK);
    }
    EXPECT(fsync(fd) == 0);

    /* The engine opens files as before, and lends the descriptor to the library. */
    ringfile_file *file, *direct;
    EXPECT(ringfile_open_fd(fd, NULL, &file) == 0);
    reads_are_right(fd, file, frames);

    ringfile_memory *memory;
    int result = ringfile_memory_register(cache, FRAMES * BLOCK, &memory);
    EXPECT(result == 0);
    EXPECT(open_direct(path, &direct) == 0);
    reads_are_right(fd, direct, frames);

    uint64_t numbers[FRAMES];
    version = 1;
    for (uint64_t first = 0; first < BLOCKS; first += FRAMES) {
        for (size_t at = 0; at < FRAMES; at++) {
            numbers[at] = first + at;
            fill(frames[at], numbers[at]);
        }
        EXPECT(write_blocks(direct, frames, numbers, FRAMES) == 0);
    }
    reads_are_right(fd, direct, frames);
    fill(cache, BLOCKS);
    EXPECT(append_record(direct, cache, (uint64_t)BLOCKS * BLOCK) == 0);
    int64_t replaced = replace_block(direct, cache, BLOCKS);
    EXPECT(replaced == 0 || replaced == BLOCK);
    EXPECT(ringfile_sync_directory(folder) == 0);
    EXPECT(read_block(file, cache, BLOCKS) == 0 && use_block(cache, BLOCKS) == 0);

    ringfile_counts counts = {.size = sizeof counts};
    EXPECT(ringfile_metrics(&counts) == 0);
    EXPECT(counts.stray == 0);
    printf("%" PRIu64 " operations: %" PRIu64 " by plain calls, %" PRIu64 " by workers, %" PRIu64 " on registered memory; ",
           counts.ops, counts.inline_ops, counts.worker_ops, counts.fixed_ops);
    printf("%" PRIu64 " system calls for the ring\n", counts.enters);

    EXPECT(ringfile_memory_unregister(memory) == 0);
    EXPECT(ringfile_close(direct) == 0 && ringfile_close(file) == 0);
    EXPECT(close(fd) == 0 && unlink(path) == 0);
    free(cache);
    puts("ok");
    return 0;
}
