/*
 * What newer features of io_uring are worth, each against a ring without it, by hand-written loops without ringfile:
 * registered waits (Linux 6.13), mixed completions (6.18), resizing a ring (6.13), and a minimum wait (6.12).
 *
 * Usage: kernel_features [FILE [ROUNDS]]    cc -O2 kernel_features.c -o kernel_features
 *
 * The minimum wait is measured with direct random reads of FILE, which is not changed. What the kernel lacks is named.
 * Linux's own headers are often older than the kernel, so the newest constants stand here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SINGLE_ISSUER = 1 << 12, DEFER_TASKRUN = 1 << 13, NO_SQARRAY = 1 << 16, CQE_MIXED = 1 << 18,
    ENTER_EXT_ARG_REG = 1 << 6, REGISTER_RESIZE_RINGS = 33, REGISTER_MEM_REGION = 34,
    BASE = SINGLE_ISSUER | DEFER_TASKRUN | NO_SQARRAY, WINDOWS = 101, MOST_ROUNDS = 64, BLOCK = 4096, MOST_DEPTH = 128,
};

struct region { __u64 address, size; __u32 flags, id; __u64 offset, reserved[4]; };
struct region_registration { __u64 region, flags, reserved[2]; };
struct registered_wait {
    struct __kernel_timespec limit;
    __u32 min_wait_usec, flags;
    __u64 sigmask;
    __u32 sigmask_size, padding[3];
    __u64 reserved[2];
};
struct wait { __u64 sigmask; __u32 sigmask_size, min_wait_usec; __u64 limit; };

struct ring {
    int fd;
    struct io_uring_params params;
    char *queues;
    size_t queues_size;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
    _Atomic unsigned *tail, *head, *completed, *collected;
};

static struct __kernel_timespec LIMIT = {10, 0};

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static double cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static int enter(struct ring *ring, unsigned submit, unsigned wait_for, unsigned flags, void *argument, size_t size)
{
    return syscall(SYS_io_uring_enter, ring->fd, submit, wait_for, flags | IORING_ENTER_GETEVENTS, argument, size);
}

/* Makes a ring; returns 0 if the kernel does not know the flags. */
static int make(struct ring *ring, unsigned entries, unsigned flags)
{
    memset(ring, 0, sizeof *ring);
    ring->params.flags = flags;
    ring->fd = syscall(SYS_io_uring_setup, entries, &ring->params);
    if (ring->fd < 0)
        return 0;
    const struct io_uring_params *params = &ring->params;
    ring->queues_size = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    int access = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_POPULATE;
    ring->queues = mmap(NULL, ring->queues_size, access, kind, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, params->sq_entries * sizeof *ring->entries, access, kind, ring->fd, IORING_OFF_SQES);
    if (ring->queues == MAP_FAILED || ring->entries == MAP_FAILED)
        fail("mmap");
    ring->head = (void *)(ring->queues + params->sq_off.head);
    ring->tail = (void *)(ring->queues + params->sq_off.tail);
    ring->collected = (void *)(ring->queues + params->cq_off.head);
    ring->completed = (void *)(ring->queues + params->cq_off.tail);
    ring->completions = (void *)(ring->queues + params->cq_off.cqes);
    return 1;
}

static void drop(struct ring *ring)
{
    munmap(ring->queues, ring->queues_size);
    munmap(ring->entries, ring->params.sq_entries * sizeof *ring->entries);
    close(ring->fd);
}

static struct io_uring_sqe *push(struct ring *ring)
{
    unsigned tail = atomic_load_explicit(ring->tail, memory_order_relaxed);
    struct io_uring_sqe *entry = &ring->entries[tail & (ring->params.sq_entries - 1)];
    memset(entry, 0, sizeof *entry);
    atomic_store_explicit(ring->tail, tail + 1, memory_order_release);
    return entry;
}

/* Collects completions, each of which must be a success, and returns their number. */
static unsigned collect(struct ring *ring, int result)
{
    unsigned first = atomic_load_explicit(ring->collected, memory_order_relaxed);
    unsigned end = atomic_load_explicit(ring->completed, memory_order_acquire);
    for (unsigned at = first; at != end; at++) {
        if (ring->completions[at & (ring->params.cq_entries - 1)].res != result) {
            fprintf(stderr, "result %d\n", ring->completions[at & (ring->params.cq_entries - 1)].res);
            exit(1);
        }
    }
    atomic_store_explicit(ring->collected, end, memory_order_release);
    return end - first;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void show(const char *name, double *figures, int count)
{
    qsort(figures, count, sizeof *figures, compare);
    printf("%-36s median %8.2f [%.2f..%.2f]\n", name, figures[count / 2], figures[0], figures[count - 1]);
}

enum limit { NONE, GIVEN, REGISTERED };

/* Returns the ns of a call that submits this many NOPs and waits for them. */
static double nops(struct ring *ring, enum limit limit, unsigned at_once, int calls)
{
    struct wait wait = {.limit = (unsigned long)&LIMIT};
    double began = now();
    for (int call = 0; call < calls; call++) {
        for (unsigned n = 0; n < at_once; n++)
            push(ring)->opcode = IORING_OP_NOP;
        unsigned flags = limit == NONE ? 0 : IORING_ENTER_EXT_ARG | (limit == REGISTERED ? ENTER_EXT_ARG_REG : 0);
        size_t size = limit == REGISTERED ? sizeof(struct registered_wait) : limit == GIVEN ? sizeof wait : 0;
        if (enter(ring, at_once, at_once, flags, limit == GIVEN ? &wait : NULL, size) != (int)at_once)
            fail("io_uring_enter");
        if (collect(ring, 0) != at_once) {
            fputs("not every NOP completed\n", stderr);
            exit(1);
        }
    }
    return (now() - began) / calls;
}

static void registered_waits(void)
{
    static double figures[4][WINDOWS];
    struct ring plain, registered;
    if (!make(&plain, 64, BASE) || !make(&registered, 64, BASE | IORING_SETUP_R_DISABLED))
        fail("io_uring_setup");
    struct registered_wait *wait = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    wait->limit = LIMIT;
    wait->flags = 1;
    struct region region = {.address = (unsigned long)wait, .size = BLOCK, .flags = 1};
    struct region_registration registration = {.region = (unsigned long)&region, .flags = 1};
    int answer = syscall(SYS_io_uring_register, registered.fd, REGISTER_MEM_REGION, &registration, 1);
    if (answer || syscall(SYS_io_uring_register, registered.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0)) {
        perror("registered waits");
        return;
    }
    for (int window = 0; window < WINDOWS; window++) {
        figures[0][window] = nops(&plain, NONE, 1, 2000);
        figures[1][window] = nops(&plain, GIVEN, 1, 2000);
        figures[2][window] = nops(&registered, REGISTERED, 1, 2000);
        figures[3][window] = nops(&plain, NONE, 1, 2000);
    }
    puts("ns of a call that submits a NOP and waits for it");
    const char *names[] = {"without a time limit", "a time limit", "a time limit, registered", "without, A/A"};
    for (int side = 0; side < 4; side++)
        show(names[side], figures[side], WINDOWS);
    drop(&plain);
    drop(&registered);
}

static void mixed_completions(void)
{
    static double figures[3][WINDOWS];
    struct ring plain, mixed;
    if (!make(&plain, 64, BASE))
        fail("io_uring_setup");
    if (!make(&mixed, 64, BASE | CQE_MIXED)) {
        perror("mixed completions");
        return;
    }
    for (int window = 0; window < WINDOWS; window++) {
        figures[0][window] = nops(&plain, NONE, 32, 200) / 32;
        figures[1][window] = nops(&mixed, NONE, 32, 200) / 32;
        figures[2][window] = nops(&plain, NONE, 32, 200) / 32;
    }
    puts("ns for a NOP, 32 at a time");
    show("completions of 16 bytes", figures[0], WINDOWS);
    show("mixed completions", figures[1], WINDOWS);
    show("completions of 16 bytes, A/A", figures[2], WINDOWS);
    drop(&plain);
    drop(&mixed);
}

static void resizing(void)
{
    static double figures[3][WINDOWS];
    struct ring ring;
    for (unsigned entries = 64; entries <= 4096; entries *= 4) {
        if (!make(&ring, entries, BASE))
            fail("io_uring_setup");
        printf("%u entries: %zu bytes\n", entries, ring.queues_size + entries * sizeof *ring.entries);
        drop(&ring);
    }
    for (int window = 0; window < WINDOWS; window++) {
        double began = now();
        make(&ring, 64, BASE);
        figures[0][window] = (now() - began) / 1e3;
        struct io_uring_params larger = {.sq_entries = 4096, .cq_entries = 8192, .flags = IORING_SETUP_CQSIZE};
        began = now();
        if (syscall(SYS_io_uring_register, ring.fd, REGISTER_RESIZE_RINGS, &larger, 1)) {
            perror("resizing");
            return;
        }
        figures[1][window] = (now() - began) / 1e3;
        drop(&ring);
        began = now();
        make(&ring, 4096, BASE);
        figures[2][window] = (now() - began) / 1e3;
        drop(&ring);
    }
    puts("µs");
    show("to make a ring of 64 entries", figures[0], WINDOWS);
    show("to resize it to 4096", figures[1], WINDOWS);
    show("to make one of 4096", figures[2], WINDOWS);
}

/* Reads for a second, and adds a round's figures: reads a second, CPU µs of one, completions of a call. */
static void read_for(int file, unsigned depth, unsigned wait_for, unsigned min_wait, unsigned seed, double out[3])
{
    static char memory[MOST_DEPTH * BLOCK] __attribute__((aligned(BLOCK)));
    long blocks = lseek(file, 0, SEEK_END) / BLOCK, reads = 0, calls = 0, submitted = 0;
    struct wait wait = {.min_wait_usec = min_wait, .limit = (unsigned long)&LIMIT};
    struct ring ring;
    if (!make(&ring, 256, BASE) || blocks == 0)
        fail("a ring and a file of a block");
    double cpu_before = cpu(), began = now();
    unsigned in_flight = 0;
    while (now() < began + 1e9) {
        for (; in_flight < depth; in_flight++, submitted++) {
            struct io_uring_sqe *entry = push(&ring);
            entry->opcode = IORING_OP_READ;
            entry->fd = file;
            entry->off = (rand_r(&seed) % blocks) * BLOCK;
            entry->addr = (unsigned long)memory + submitted % depth * BLOCK;
            entry->len = BLOCK;
        }
        unsigned pending = atomic_load(ring.tail) - atomic_load(ring.head);
        enter(&ring, pending, wait_for, IORING_ENTER_EXT_ARG, &wait, sizeof wait);
        unsigned done = collect(&ring, BLOCK);
        in_flight -= done;
        reads += done;
        calls++;
    }
    out[0] = reads / (now() - began) * 1e9;
    out[1] = (cpu() - cpu_before) / reads;
    out[2] = (double)reads / calls;
    while (in_flight) {
        enter(&ring, 0, 1, 0, NULL, 0);
        in_flight -= collect(&ring, BLOCK);
    }
    drop(&ring);
}

static void minimum_waits(const char *path, int rounds)
{
    static const struct { const char *name; unsigned wait_for, min_wait; } SIDES[] = {
        {"wait for 1", 1, 0}, {"for 8, or for 50 µs", 8, 50}, {"for 16, or for 100 µs", 16, 100}, {"wait for 1, A/A", 1, 0}};
    int file = open(path, O_RDONLY | O_DIRECT);
    if (file < 0)
        fail(path);
    for (unsigned depth = 32; depth <= MOST_DEPTH; depth *= 4) {
        static double figures[4][MOST_ROUNDS][3];
        for (int round = 0; round < rounds; round++)
            for (int turn = 0; turn < 4; turn++) {
                int side = (turn + round) % 4;
                read_for(file, depth, SIDES[side].wait_for, SIDES[side].min_wait, round + 1, figures[side][round]);
            }
        for (int side = 0; side < 4; side++) {
            static const char *names[] = {"  rate, over the first", "  CPU time, over the first", "  completions of a call"};
            printf("direct reads of 4 KiB, %u in flight, %s\n", depth, SIDES[side].name);
            for (int figure = 0; figure < 3; figure++) {
                double shown[MOST_ROUNDS];
                for (int round = 0; round < rounds; round++)
                    shown[round] = figures[side][round][figure] / (figure < 2 ? figures[0][round][figure] : 1);
                show(names[figure], shown, rounds);
            }
        }
    }
}

int main(int count, char **arguments)
{
    int rounds = count > 2 ? atoi(arguments[2]) : 5;
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: kernel_features [FILE [ROUNDS]], ROUNDS from 1 to %d\n", MOST_ROUNDS);
        return 2;
    }
    registered_waits();
    mixed_completions();
    resizing();
    if (count > 1)
        minimum_waits(arguments[1], rounds);
}
