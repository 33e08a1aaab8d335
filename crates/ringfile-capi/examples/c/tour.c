/*
 * A tour of the C interface: a pool and a page, a batch with a barrier, registered memory of the program, many reads in
 * one call, reads by token, a queue, counts, errors. Each part checks its result.
 *
 * Usage: tour [FOLDER], where it makes and removes a file; the current folder by default.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ringfile.h"

enum { PAGE = 4096, PAGES = 64 };

/* Ends the program with the library's error text if a call failed. */
#define CHECK(call) check((int64_t)(call), #call, __LINE__)

static int64_t check(int64_t result, const char *what, int line)
{
    if (result < 0) {
        fprintf(stderr, "tour.c:%d: %s: %s (%" PRId64 ")\n", line, what, ringfile_last_error(), result);
        exit(1);
    }
    return result;
}

#define EXPECT(truth) expect(truth, #truth, __LINE__)

static void expect(int truth, const char *what, int line)
{
    if (!truth) {
        fprintf(stderr, "tour.c:%d: check failed: %s\n", line, what);
        exit(1);
    }
}

/* Returns the byte that fills page `number` of the file. */
static unsigned char mark(uint64_t number)
{
    return (unsigned char)(number * 7 + 1);
}

static int is_page(const void *data, uint64_t number)
{
    const unsigned char *bytes = data;
    for (size_t at = 0; at < PAGE; at++) {
        if (bytes[at] != mark(number)) {
            return 0;
        }
    }
    return 1;
}

/* Writes the file with a batch, and syncs it behind a barrier. */
static void write_pages(ringfile_pool *pool, ringfile_file *file)
{
    ringfile_batch *batch;
    ringfile_buffer *buffers[PAGES];
    const ringfile_result *results;
    CHECK(ringfile_batch_create(NULL, &batch));
    for (uint64_t page = 0; page < PAGES; page++) {
        CHECK(ringfile_buffer_get(pool, PAGE, &buffers[page]));
        void *data = ringfile_buffer_data(buffers[page]);
        memset(data, mark(page), PAGE);
        CHECK(ringfile_batch_add(batch, ringfile_op_write(file, data, PAGE, page * PAGE), page));
    }
    CHECK(ringfile_batch_barrier(batch));
    CHECK(ringfile_batch_add(batch, ringfile_op_sync_data(file), PAGES));
    EXPECT(CHECK(ringfile_batch_run(batch)) == 0);
    EXPECT(CHECK(ringfile_batch_results(batch, &results)) == PAGES + 1);
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(results[page].user_data == page && results[page].result == PAGE);
        CHECK(ringfile_buffer_release(buffers[page]));
    }
    EXPECT(results[PAGES].result == 0);
    CHECK(ringfile_batch_free(batch));
}

/* Reads one page, with the call that every program begins with. */
static void read_one(ringfile_pool *pool, ringfile_file *file)
{
    ringfile_buffer *buffer;
    CHECK(ringfile_buffer_get(pool, PAGE, &buffer));
    EXPECT(CHECK(ringfile_buffer_read(file, buffer, 9 * PAGE)) == PAGE);
    EXPECT(ringfile_buffer_length(buffer) == PAGE && is_page(ringfile_buffer_data(buffer), 9));
    CHECK(ringfile_buffer_release(buffer));
}

/* Memory that the program already has, such as a database's page cache: registered once, used freely. */
static void read_many(ringfile_file *file, unsigned char *cache)
{
    ringfile_read_request requests[PAGES];
    for (uint64_t page = 0; page < PAGES; page++) {
        uint64_t other = page * 37 % PAGES;
        requests[page] = (ringfile_read_request){other * PAGE, cache + page * PAGE, PAGE, 0};
    }
    EXPECT(CHECK(ringfile_read_many(file, requests, PAGES)) == 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(requests[page].result == PAGE && is_page(cache + page * PAGE, page * 37 % PAGES));
    }
}

/* Writes the pages again from the same memory, in any order, and waits for all. */
static void write_many(ringfile_file *file, const unsigned char *cache)
{
    ringfile_write_request requests[PAGES];
    for (uint64_t page = 0; page < PAGES; page++) {
        uint64_t other = page * 37 % PAGES;
        requests[page] = (ringfile_write_request){other * PAGE, cache + page * PAGE, PAGE, 0};
    }
    EXPECT(CHECK(ringfile_write_many(file, requests, PAGES)) == 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        EXPECT(requests[page].result == PAGE);
    }
    CHECK(ringfile_sync_data(file));
}

/* Starts a read, does something else, then waits for the read or cancels it. */
static void read_by_token(ringfile_file *file, unsigned char *cache)
{
    ringfile_queue *queue;
    uint64_t first, second;
    CHECK(ringfile_queue_create(2, 0, &queue));
    CHECK(ringfile_queue_add(queue, ringfile_op_read(file, cache, PAGE, 3 * PAGE), 3, &first));
    CHECK(ringfile_queue_add(queue, ringfile_op_read(file, cache + PAGE, PAGE, 4 * PAGE), 4, &second));
    CHECK(ringfile_queue_submit(queue));
    EXPECT(CHECK(ringfile_queue_wait_for(queue, first)) == PAGE && is_page(cache, 3));
    /* The read may have finished by then. After waiting for it, the memory is free again, whatever the result. */
    CHECK(ringfile_queue_cancel(queue, second));
    int64_t cancelled = ringfile_queue_wait_for(queue, second);
    EXPECT(cancelled == PAGE || cancelled == -ECANCELED);
    EXPECT(ringfile_queue_wait_for(queue, second) == -EINVAL);
    /* Two pages in one operation, the second first. */
    struct iovec parts[] = {{cache + PAGE, PAGE}, {cache, PAGE}};
    CHECK(ringfile_queue_add(queue, ringfile_op_readv(file, parts, 2, 5 * PAGE), 5, &first));
    EXPECT(CHECK(ringfile_queue_wait_for(queue, first)) == 2 * PAGE);
    EXPECT(is_page(cache + PAGE, 5) && is_page(cache, 6));
    CHECK(ringfile_queue_free(queue));
}

/* The loop of a program that keeps a number of operations in flight. */
static void queue(ringfile_file *file, unsigned char *cache)
{
    enum { DEPTH = 8, TOTAL = 500 };
    ringfile_queue *queue;
    ringfile_result results[DEPTH];
    uint64_t begun = 0, ended = 0;
    CHECK(ringfile_queue_create(DEPTH, 0, &queue));
    while (ended < TOTAL) {
        for (; begun < TOTAL && begun - ended < DEPTH; begun++) {
            uint64_t page = begun * 13 % PAGES;
            CHECK(ringfile_queue_add(queue, ringfile_op_read(file, cache + page * PAGE, PAGE, page * PAGE), page,
                                     NULL));
        }
        int64_t taken = CHECK(ringfile_queue_wait(queue, results, DEPTH, 1, -1));
        for (int64_t at = 0; at < taken; at++) {
            uint64_t page = results[at].user_data;
            EXPECT(results[at].result == PAGE && is_page(cache + page * PAGE, page));
        }
        ended += (uint64_t)taken;
    }
    CHECK(ringfile_queue_add(queue, ringfile_op_sync_all(file), 7, NULL));
    EXPECT(CHECK(ringfile_queue_wait(queue, results, DEPTH, 1, 10000000000)) == 1);
    EXPECT(results[0].user_data == 7 && results[0].result == 0);
    EXPECT(CHECK(ringfile_queue_wait(queue, results, DEPTH, 1, -1)) == 0);
    CHECK(ringfile_queue_free(queue));
}

static void errors(ringfile_file *file)
{
    unsigned char page[PAGE];
    EXPECT(ringfile_read(NULL, page, PAGE, 0) == -EBADF);
    EXPECT(ringfile_read(file, NULL, PAGE, 0) == -EFAULT);
    EXPECT(ringfile_read((ringfile_file *)(void *)page, page, PAGE, 0) == -EBADF);
    EXPECT(ringfile_read(file, page, PAGE, UINT64_MAX) == -EINVAL);
    printf("an error in words: %s\n", ringfile_last_error());
    EXPECT(ringfile_read(file, page, PAGE, PAGES * PAGE) == 0);
}

static void tell(void)
{
    ringfile_counts counts = {.size = sizeof counts};
    char features[512];
    CHECK(ringfile_metrics(&counts));
    EXPECT(counts.stray == 0 && counts.ops > 0);
    printf("%" PRIu64 " operations: %" PRIu64 " plain calls, %" PRIu64 " registered\n", counts.ops,
           counts.inline_ops, counts.fixed_ops);
    if (ringfile_ring_features(features, sizeof features) < 0) {
        printf("no ring: %s\n", ringfile_last_error());
    } else {
        printf("io_uring here: %s\n", features);
    }
}

int main(int argc, char **argv)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ringfile-tour-%ld", argc > 1 ? argv[1] : ".", (long)getpid());
    printf("ringfile %s\n", ringfile_version());

    ringfile_pool_options pool_options = {.size = sizeof pool_options, .capacity = 4 << 20};
    ringfile_pool *pool;
    CHECK(ringfile_pool_create(&pool_options, &pool));

    ringfile_open_options options = {.size = sizeof options};
    options.flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW | RINGFILE_DIRECT | RINGFILE_BUFFERED_FALLBACK;
    ringfile_file *file;
    CHECK(ringfile_open(path, &options, &file));

    unsigned char *cache = aligned_alloc(PAGE, PAGES * PAGE);
    ringfile_memory *memory;
    EXPECT(cache != NULL);
    memset(cache, 0, PAGES * PAGE);
    CHECK(ringfile_memory_register(cache, PAGES * PAGE, &memory));

    write_pages(pool, file);
    EXPECT(CHECK(ringfile_size(file)) == PAGES * PAGE);
    read_one(pool, file);
    read_many(file, cache);
    write_many(file, cache);
    read_by_token(file, cache);
    queue(file, cache);
    errors(file);
    tell();

    CHECK(ringfile_memory_unregister(memory));
    free(cache);
    CHECK(ringfile_close(file));
    EXPECT(ringfile_close(file) == -EBADF);
    CHECK(ringfile_pool_free(pool));
    EXPECT(unlink(path) == 0);
    puts("ok");
    return 0;
}
