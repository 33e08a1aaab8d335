/*
 * Batches that report their end to a function, for a program whose threads belong to another runtime: each "fiber"
 * below has a batch, is parked while it is in flight, and is put into the run queue of the program's only thread by the
 * function. Then the same with an eventfd, a batch that starts the next one in its function, and one that is cancelled.
 *
 * Usage: callback [FOLDER], where it makes and removes a file; the current folder by default.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ringfile.h"

enum { BLOCK = 4096, BLOCKS = 128, FIBERS = 8, ROUNDS = 50, EACH = 4 };

#define EXPECT(truth) expect(truth, #truth, __LINE__)

static void expect(int truth, const char *what, int line)
{
    if (!truth) {
        fprintf(stderr, "callback.c:%d: check failed: %s (last error: %s)\n", line, what, ringfile_last_error());
        exit(1);
    }
}

static unsigned char byte_of(uint64_t number)
{
    return (unsigned char)(number * 13 + 1);
}

static int is_block(const unsigned char *block, uint64_t number)
{
    for (size_t at = 0; at < BLOCK; at++) {
        if (block[at] != byte_of(number)) {
            return 0;
        }
    }
    return 1;
}

/* A green thread, reduced to the data that it must keep. */
struct fiber {
    ringfile_batch *batch;
    unsigned char *blocks; /* EACH of them: the library's while the batch is under way */
    uint64_t first;        /* the number of the first */
    int rounds;
    int64_t failed;
    struct fiber *next; /* in the run queue */
};

/* The scheduler: fibers that are ready, and the thread that waits for one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t there_is_one = PTHREAD_COND_INITIALIZER;
static struct fiber *ready;

static void make_ready(struct fiber *fiber)
{
    pthread_mutex_lock(&lock);
    fiber->next = ready;
    ready = fiber;
    pthread_cond_signal(&there_is_one);
    pthread_mutex_unlock(&lock);
}

static struct fiber *next_ready(void)
{
    pthread_mutex_lock(&lock);
    while (ready == NULL) {
        pthread_cond_wait(&there_is_one, &lock);
    }
    struct fiber *fiber = ready;
    ready = fiber->next;
    pthread_mutex_unlock(&lock);
    return fiber;
}

/* Runs on a thread of the library: it is quick, and never waits for I/O. */
static void unpark(void *context, int64_t failed)
{
    struct fiber *fiber = context;
    fiber->failed = failed;
    make_ready(fiber);
}

static void add_reads(struct fiber *fiber, const ringfile_file *file)
{
    for (uint64_t at = 0; at < EACH; at++) {
        uint64_t number = (fiber->first + at) % BLOCKS;
        EXPECT(ringfile_batch_add(fiber->batch,
                                  ringfile_op_read(file, fiber->blocks + at * BLOCK, BLOCK, number * BLOCK),
                                  number) >= 0);
    }
}

static void are_right(const struct fiber *fiber)
{
    const ringfile_result *results;
    EXPECT(fiber->failed == 0 && ringfile_batch_results(fiber->batch, &results) == EACH);
    for (uint64_t at = 0; at < EACH; at++) {
        EXPECT(results[at].result == BLOCK && is_block(fiber->blocks + at * BLOCK, results[at].user_data));
    }
}

/* Many fibers on one thread, which sleeps only if all of them are parked. */
static void run_fibers(const ringfile_file *file, unsigned char *cache)
{
    struct fiber fibers[FIBERS];
    unsigned left = FIBERS;
    for (unsigned at = 0; at < FIBERS; at++) {
        fibers[at] = (struct fiber){.blocks = cache + at * EACH * BLOCK, .first = at * 17};
        EXPECT(ringfile_batch_create(NULL, &fibers[at].batch) == 0);
        make_ready(&fibers[at]);
    }
    while (left > 0) {
        struct fiber *fiber = next_ready();
        if (fiber->rounds > 0) {
            are_right(fiber);
        }
        if (fiber->rounds == ROUNDS) {
            EXPECT(ringfile_batch_free(fiber->batch) == 0);
            left--;
            continue;
        }
        fiber->rounds++;
        fiber->first += 5;
        add_reads(fiber, file);
        EXPECT(ringfile_batch_start(fiber->batch, unpark, fiber) == 0); /* parked: the function goes on with it */
    }
}

/* The function starts the batch again: a chain without any thread of the program. */
struct chain {
    struct fiber fiber;
    const ringfile_file *file;
};

static void go_on(void *context, int64_t failed)
{
    struct chain *chain = context;
    chain->fiber.failed = failed;
    are_right(&chain->fiber);
    if (++chain->fiber.rounds == ROUNDS) {
        make_ready(&chain->fiber);
        return;
    }
    /* A call that would block is refused here. */
    EXPECT(ringfile_read(chain->file, chain->fiber.blocks, BLOCK, 0) == -EDEADLK);
    chain->fiber.first += 3;
    add_reads(&chain->fiber, chain->file);
    EXPECT(ringfile_batch_start(chain->fiber.batch, go_on, chain) == 0);
}

static void run_chain(const ringfile_file *file, unsigned char *cache)
{
    struct chain chain = {.fiber = {.blocks = cache}, .file = file};
    EXPECT(ringfile_batch_create(NULL, &chain.fiber.batch) == 0);
    add_reads(&chain.fiber, file);
    EXPECT(ringfile_batch_start(chain.fiber.batch, go_on, &chain) == 0);
    EXPECT(next_ready() == &chain.fiber && chain.fiber.rounds == ROUNDS);
    EXPECT(ringfile_batch_free(chain.fiber.batch) == 0);
}

/* For a runtime that waits for descriptors. */
static void wait_by_eventfd(const ringfile_file *file, unsigned char *cache)
{
    struct fiber fiber = {.blocks = cache, .first = 60};
    int ended = eventfd(0, EFD_CLOEXEC);
    uint64_t times;
    EXPECT(ended >= 0 && ringfile_batch_create(NULL, &fiber.batch) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        add_reads(&fiber, file);
        EXPECT(ringfile_batch_start_eventfd(fiber.batch, ended) == 0);
        EXPECT(read(ended, &times, sizeof times) == sizeof times && times == 1);
        are_right(&fiber);
        fiber.first += 7;
    }
    EXPECT(close(ended) == 0 && ringfile_batch_free(fiber.batch) == 0);
}

/* Reads of an empty pipe would wait forever: they are cancelled, and their memory is free once the end was reported. */
static void give_up(unsigned char *cache)
{
    struct fiber fiber = {.blocks = cache};
    const ringfile_result *results;
    ringfile_file *pipe_file;
    int ends[2];
    EXPECT(pipe(ends) == 0 && ringfile_open_fd(ends[0], NULL, &pipe_file) == 0);
    EXPECT(ringfile_batch_create(NULL, &fiber.batch) == 0);
    EXPECT(ringfile_batch_add(fiber.batch, ringfile_op_read(pipe_file, cache, BLOCK, 0), 0) == 0);
    EXPECT(ringfile_batch_start(fiber.batch, unpark, &fiber) == 0);
    EXPECT(ringfile_batch_barrier(fiber.batch) == -EBUSY);
    EXPECT(ringfile_batch_cancel(fiber.batch) == 0);
    EXPECT(next_ready() == &fiber && fiber.failed == 1);
    EXPECT(ringfile_batch_results(fiber.batch, &results) == 1 && results[0].result == -ECANCELED);
    EXPECT(ringfile_batch_free(fiber.batch) == 0 && ringfile_close(pipe_file) == 0);
    EXPECT(close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(int argc, char **argv)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ringfile-callback-%ld", argc > 1 ? argv[1] : ".", (long)getpid());
    ringfile_open_options options = {.size = sizeof options};
    options.flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW;
    ringfile_file *file;
    unsigned char *cache = aligned_alloc(BLOCK, FIBERS * EACH * BLOCK);
    EXPECT(cache != NULL && ringfile_open(path, &options, &file) == 0);
    for (uint64_t number = 0; number < BLOCKS; number++) {
        memset(cache, byte_of(number), BLOCK);
        EXPECT(ringfile_write(file, cache, BLOCK, number * BLOCK) == BLOCK);
    }
    memset(cache, 0, FIBERS * EACH * BLOCK); /* valgrind does not see what a ring writes */

    run_fibers(file, cache);
    run_chain(file, cache);
    wait_by_eventfd(file, cache);
    give_up(cache);

    EXPECT(ringfile_close(file) == 0 && unlink(path) == 0);
    free(cache);
    printf("%d batches by fibers, %d by a chain, %d by an eventfd\n", FIBERS * ROUNDS, ROUNDS, ROUNDS);
    puts("ok");
    return 0;
}
