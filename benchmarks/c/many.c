/*
 * Compares ringfile_read_many and a queue with a hand-written io_uring loop that submits a batch and waits for all of it.
 * All sides read 4 KiB at the same random offsets of a cached file, with registered memory and a registered file, and read
 * the clock once for a batch. Each round runs every side once, and the hand-written loop twice (A/A). The number in every
 * block is checked.
 *
 * Usage: many FILE [ROUNDS [SECONDS]]
 *
 * The file is created if it does not exist (64 MiB), and is kept.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "ringfile.h"

enum { BLOCK = 4096, BLOCKS = 16384, MOST = 256, SIDES = 4 };

static const char *const NAMES[SIDES] = {"hand-written", "ringfile_read_many", "queue", "A/A"};

static _Noreturn void fail(const char *what, int64_t result)
{
    fprintf(stderr, "many: %s: %s (%s)\n", what, strerror((int)-result), ringfile_last_error());
    exit(1);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % BLOCKS;
}

static void check(const unsigned char *block, uint64_t number)
{
    if (memcmp(block, &number, sizeof number) != 0) {
        fail("a block is not that of the file", -EIO);
    }
}

/* A ring set up as the library's rings are: SINGLE_ISSUER, DEFER_TASKRUN, registered ring, file and memory. */
struct ring {
    int fd;
    _Atomic unsigned *tail, *cq_head, *cq_tail;
    unsigned mask, cq_mask, *array;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
};

static void *map(int fd, size_t size, off_t offset)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    if (at == MAP_FAILED) {
        fail("mmap of the ring", -errno);
    }
    return at;
}

static void set_up(struct ring *ring, int file, void *memory)
{
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    int fd = (int)syscall(SYS_io_uring_setup, MOST, &params);
    if (fd < 0) {
        fail("io_uring_setup", -errno);
    }
    char *queues = map(fd, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe) + params.sq_off.array
                               + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    ring->entries = map(fd, params.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring->tail = (_Atomic unsigned *)(queues + params.sq_off.tail);
    ring->cq_head = (_Atomic unsigned *)(queues + params.cq_off.head);
    ring->cq_tail = (_Atomic unsigned *)(queues + params.cq_off.tail);
    ring->mask = params.sq_entries - 1;
    ring->cq_mask = params.cq_entries - 1;
    ring->array = (unsigned *)(queues + params.sq_off.array);
    ring->completions = (struct io_uring_cqe *)(queues + params.cq_off.cqes);
    for (unsigned at = 0; at < params.sq_entries; at++) {
        ring->array[at] = at;
    }
    struct iovec part = {memory, (size_t)MOST * BLOCK};
    if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, &part, 1) < 0
        || syscall(SYS_io_uring_register, fd, IORING_REGISTER_FILES, &file, 1) < 0) {
        fail("io_uring_register", -errno);
    }
    struct io_uring_rsrc_update update = {.offset = -1U, .data = (unsigned)fd};
    if (syscall(SYS_io_uring_register, fd, IORING_REGISTER_RING_FDS, &update, 1) != 1) {
        fail("registering the ring", -errno);
    }
    ring->fd = (int)update.offset;
}

static void by_hand(struct ring *ring, unsigned char *memory, size_t count, uint64_t *seed)
{
    uint64_t numbers[MOST];
    unsigned tail = atomic_load_explicit(ring->tail, memory_order_relaxed);
    for (size_t at = 0; at < count; at++, tail++) {
        numbers[at] = next(seed);
        ring->entries[tail & ring->mask] = (struct io_uring_sqe){
            .opcode = IORING_OP_READ_FIXED, .flags = IOSQE_FIXED_FILE, .fd = 0, .off = numbers[at] * BLOCK,
            .addr = (uintptr_t)(memory + at * BLOCK), .len = BLOCK, .user_data = at,
        };
    }
    atomic_store_explicit(ring->tail, tail, memory_order_release);
    long taken = syscall(SYS_io_uring_enter, ring->fd, count, count,
                         IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING, NULL, 0);
    if (taken != (long)count) {
        fail("io_uring_enter", taken < 0 ? -errno : -EIO);
    }
    unsigned head = atomic_load_explicit(ring->cq_head, memory_order_relaxed);
    unsigned end = atomic_load_explicit(ring->cq_tail, memory_order_acquire);
    if (end - head != count) {
        fail("completions are missing", -EIO);
    }
    for (; head != end; head++) {
        const struct io_uring_cqe *completion = &ring->completions[head & ring->cq_mask];
        if (completion->res != BLOCK) {
            fail("a read by hand", completion->res);
        }
        check(memory + completion->user_data * BLOCK, numbers[completion->user_data]);
    }
    atomic_store_explicit(ring->cq_head, head, memory_order_release);
}

static void by_read_many(const ringfile_file *file, unsigned char *memory, size_t count, uint64_t *seed)
{
    ringfile_read_request requests[MOST];
    for (size_t at = 0; at < count; at++) {
        requests[at] = (ringfile_read_request){next(seed) * BLOCK, memory + at * BLOCK, BLOCK, 0};
    }
    int failed = ringfile_read_many(file, requests, count);
    if (failed != 0) {
        fail("ringfile_read_many", failed);
    }
    for (size_t at = 0; at < count; at++) {
        if (requests[at].result != BLOCK) {
            fail("a read of many", requests[at].result);
        }
        check(memory + at * BLOCK, requests[at].offset / BLOCK);
    }
}

static void by_queue(ringfile_queue *queue, const ringfile_file *file, unsigned char *memory, size_t count,
                     uint64_t *seed)
{
    uint64_t numbers[MOST];
    ringfile_result results[MOST];
    for (size_t at = 0; at < count; at++) {
        numbers[at] = next(seed);
        int added = ringfile_queue_add(queue, ringfile_op_read(file, memory + at * BLOCK, BLOCK, numbers[at] * BLOCK),
                                       at, NULL);
        if (added != 0) {
            fail("ringfile_queue_read", added);
        }
    }
    int64_t ended = ringfile_queue_wait(queue, results, MOST, count, -1);
    if (ended != (int64_t)count) {
        fail("ringfile_queue_wait", ended < 0 ? ended : -EIO);
    }
    for (size_t at = 0; at < count; at++) {
        if (results[at].result != BLOCK) {
            fail("a read of the queue", results[at].result);
        }
        check(memory + results[at].user_data * BLOCK, numbers[results[at].user_data]);
    }
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void make(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) {
        return;
    }
    if (fd < 0) {
        fail(path, -errno);
    }
    static unsigned char block[BLOCK];
    for (uint64_t number = 0; number < BLOCKS; number++) {
        memcpy(block, &number, sizeof number);
        if (write(fd, block, BLOCK) != BLOCK) {
            fail(path, -errno);
        }
    }
    close(fd);
}

/* Reads all of the file once, so that it is cached. */
static void read_in(int fd)
{
    static unsigned char block[1 << 16];
    for (off_t at = 0; pread(fd, block, sizeof block, at) > 0; at += (off_t)sizeof block) {
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: many FILE [ROUNDS [SECONDS]]\n");
        return 2;
    }
    int rounds = argc > 2 ? atoi(argv[2]) : 5;
    double seconds = argc > 3 ? atof(argv[3]) : 0.5;
    if (rounds < 1 || rounds > 100 || !(seconds > 0)) {
        fprintf(stderr, "many: 1 to 100 rounds, and more than 0 seconds\n");
        return 2;
    }
    make(argv[1]);
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fail(argv[1], -errno);
    }
    /* Each side has its own memory. The library's side registers its memory with the library, on huge pages as in pools. */
    size_t size = (size_t)4 << 20;
    unsigned char *memory[2];
    for (int at = 0; at < 2; at++) {
        if (posix_memalign((void **)&memory[at], (size_t)2 << 20, size) != 0) {
            fail("memory", -ENOMEM);
        }
        madvise(memory[at], size, MADV_HUGEPAGE);
        memset(memory[at], 1, size);
    }
    ringfile_memory *handle;
    int registered = ringfile_memory_register(memory[1], size, &handle);
    if (registered != 0) {
        fail("ringfile_memory_register", registered);
    }
    struct ring ring;
    set_up(&ring, fd, memory[0]);
    ringfile_open_options options = {.size = sizeof options, .flags = RINGFILE_READ, .route = RINGFILE_ROUTE_RING};
    ringfile_file *file;
    ringfile_queue *queue;
    int made = ringfile_open(argv[1], &options, &file);
    if (made == 0) {
        made = ringfile_queue_create(MOST, 0, &queue);
    }
    if (made != 0) {
        fail("ringfile_open", made);
    }
    printf("| reads together | side | thousand reads a second, median [min..max] | over hand-written, median [min..max] |\n");
    printf("|--:|---|--:|--:|\n");
    for (size_t count = 32; count <= MOST; count *= 8) {
        static double rates[SIDES][100], ratios[SIDES][100];
        for (int round = 0; round < rounds; round++) {
            for (int side = 0; side < SIDES; side++) {
                read_in(fd);
                uint64_t seed = 88172645463325252u + (uint64_t)round, reads = 0, began = now(), ended;
                do {
                    switch (side) {
                    case 1:
                        by_read_many(file, memory[1], count, &seed);
                        break;
                    case 2:
                        by_queue(queue, file, memory[1], count, &seed);
                        break;
                    default:
                        by_hand(&ring, memory[0], count, &seed);
                    }
                    reads += count;
                    ended = now();
                } while ((double)(ended - began) < seconds * 1e9);
                rates[side][round] = (double)reads * 1e6 / (double)(ended - began);
                ratios[side][round] = rates[side][round] / rates[0][round];
            }
        }
        for (int side = 0; side < SIDES; side++) {
            qsort(rates[side], (size_t)rounds, sizeof(double), compare);
            qsort(ratios[side], (size_t)rounds, sizeof(double), compare);
            printf("| %zu | %s | %.1f [%.1f..%.1f] | %.3f [%.3f..%.3f] |\n", count, NAMES[side], rates[side][rounds / 2],
                   rates[side][0], rates[side][rounds - 1], ratios[side][rounds / 2], ratios[side][0],
                   ratios[side][rounds - 1]);
        }
    }
    ringfile_counts counts = {.size = sizeof counts};
    if (ringfile_thread_metrics(&counts) == 0) {
        printf("\nringfile counted %llu reads, %llu of them fixed, %llu plain calls\n", (unsigned long long)counts.ops,
               (unsigned long long)counts.fixed_ops, (unsigned long long)counts.inline_ops);
    }
    ringfile_queue_free(queue);
    ringfile_close(file);
    ringfile_memory_unregister(handle);
    return 0;
}
