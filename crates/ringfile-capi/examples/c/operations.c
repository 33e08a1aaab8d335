/*
 * Every kind of operation: added to a batch, to a queue, and carried out at once, by a record (ringfile_op) and by the
 * function for that kind in ringfile_ops.h. Each result is checked.
 *
 * Usage: operations [FOLDER], where it makes and removes files; the current folder by default.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ringfile.h"

enum { PAGE = 4096, PAGES = 4 };

/* Ends the program with the library's error text if a call failed. */
#define CHECK(call) check((int64_t)(call), #call, __LINE__)

static int64_t check(int64_t result, const char *what, int line)
{
    if (result < 0) {
        fprintf(stderr, "operations.c:%d: %s: %s (%" PRId64 ")\n", line, what, ringfile_last_error(), result);
        exit(1);
    }
    return result;
}

#define EXPECT(truth) expect(truth, #truth, __LINE__)

static void expect(int truth, const char *what, int line)
{
    if (!truth) {
        fprintf(stderr, "operations.c:%d: check failed: %s: %s\n", line, what, ringfile_last_error());
        exit(1);
    }
}

static int is_filled(const unsigned char *page, int byte)
{
    for (size_t at = 0; at < PAGE; at++) {
        if (page[at] != byte) {
            return 0;
        }
    }
    return 1;
}

/* Runs a batch of one operation, and returns its result. */
static int64_t run(ringfile_batch *batch, int64_t added)
{
    const ringfile_result *results;
    EXPECT(CHECK(added) == 0);
    CHECK(ringfile_batch_run(batch));
    EXPECT(CHECK(ringfile_batch_results(batch, &results)) == 1);
    EXPECT(results[0].user_data == 7);
    return results[0].result;
}

/* Waits for the operation that was added to the queue, and returns its result. */
static int64_t wait_for(ringfile_queue *queue, int added, uint64_t token)
{
    CHECK(added);
    EXPECT(token != 0);
    return ringfile_queue_wait_for(queue, token);
}

static unsigned char from[2][PAGE], into[2][PAGE];

static void in_a_batch(ringfile_batch *batch, const ringfile_file *file)
{
    struct iovec writes[] = {{from[0], PAGE}, {from[1], PAGE}}, reads[] = {{into[1], PAGE}, {into[0], PAGE}};
    memset(from[0], 1, PAGE);
    memset(from[1], 2, PAGE);
    EXPECT(run(batch, ringfile_batch_truncate(batch, file, 0, 7)) == 0);
    EXPECT(run(batch, ringfile_batch_allocate(batch, file, RINGFILE_ALLOCATE_EXTEND, 0, PAGES * PAGE, 7)) == 0);
    EXPECT(CHECK(ringfile_size(file)) == PAGES * PAGE);
    EXPECT(run(batch, ringfile_batch_write(batch, file, from[0], PAGE, 0, 7)) == PAGE);
    EXPECT(run(batch, ringfile_batch_write_durable(batch, file, from[1], PAGE, PAGE, 7)) == PAGE);
    EXPECT(run(batch, ringfile_batch_write_atomic(batch, file, from[0], PAGE, 0, 7)) == -EOPNOTSUPP); /* not direct */
    EXPECT(run(batch, ringfile_batch_writev(batch, file, writes, 2, 2 * PAGE, 7)) == 2 * PAGE);
    EXPECT(run(batch, ringfile_batch_sync_range(batch, file, 0, PAGE, RINGFILE_SYNC_RANGE_WRITE, 7)) == 0);
    EXPECT(run(batch, ringfile_batch_sync_data(batch, file, 7)) == 0);
    EXPECT(run(batch, ringfile_batch_sync_all(batch, file, 7)) == 0);
    EXPECT(run(batch, ringfile_batch_advise(batch, file, 0, 0, RINGFILE_ADVICE_RANDOM, 7)) == 0);
    EXPECT(run(batch, ringfile_batch_read(batch, file, into[0], 2 * PAGE, PAGE, 7)) == 2 * PAGE);
    EXPECT(is_filled(into[0], 2) && is_filled(into[1], 1));
    EXPECT(run(batch, ringfile_batch_readv(batch, file, reads, 2, 2 * PAGE, 7)) == 2 * PAGE);
    EXPECT(is_filled(into[1], 1) && is_filled(into[0], 2));
}

static void in_a_queue(ringfile_queue *queue, const ringfile_file *file)
{
    struct iovec writes[] = {{from[0], PAGE}, {from[1], PAGE}}, reads[] = {{into[1], PAGE}, {into[0], PAGE}};
    uint64_t token = 0, size = PAGES * PAGE;
    int added;
    memset(from[0], 3, PAGE);
    memset(from[1], 4, PAGE);
    added = ringfile_queue_truncate(queue, file, 0, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_allocate(queue, file, RINGFILE_ALLOCATE_EXTEND, 0, size, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    EXPECT(CHECK(ringfile_size(file)) == PAGES * PAGE);
    added = ringfile_queue_write(queue, file, from[0], PAGE, 0, 7, &token);
    EXPECT(wait_for(queue, added, token) == PAGE);
    added = ringfile_queue_write_durable(queue, file, from[1], PAGE, PAGE, 7, &token);
    EXPECT(wait_for(queue, added, token) == PAGE);
    added = ringfile_queue_write_atomic(queue, file, from[0], PAGE, 0, 7, &token);
    EXPECT(wait_for(queue, added, token) == -EOPNOTSUPP);
    added = ringfile_queue_writev(queue, file, writes, 2, 2 * PAGE, 7, &token);
    EXPECT(wait_for(queue, added, token) == 2 * PAGE);
    added = ringfile_queue_sync_range(queue, file, 0, PAGE, RINGFILE_SYNC_RANGE_WRITE, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_sync_data(queue, file, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_sync_all(queue, file, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_advise(queue, file, 0, 0, RINGFILE_ADVICE_RANDOM, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_read(queue, file, into[0], 2 * PAGE, PAGE, 7, &token);
    EXPECT(wait_for(queue, added, token) == 2 * PAGE);
    EXPECT(is_filled(into[0], 4) && is_filled(into[1], 3));
    added = ringfile_queue_readv(queue, file, reads, 2, 2 * PAGE, 7, &token);
    EXPECT(wait_for(queue, added, token) == 2 * PAGE);
    EXPECT(is_filled(into[1], 3) && is_filled(into[0], 4));
}

static void on_paths(ringfile_queue *queue, const char *data, const char *moved, const char *folder)
{
    ringfile_open_options options = {.size = sizeof options, .flags = RINGFILE_READ};
    ringfile_metadata metadata = {.size = sizeof metadata};
    ringfile_file *file = NULL;
    uint64_t token = 0;
    int added = ringfile_queue_open_file(queue, data, &options, &file, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    EXPECT(CHECK(ringfile_size(file)) == PAGES * PAGE);
    CHECK(ringfile_close(file));
    added = ringfile_queue_statx(queue, data, &metadata, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    EXPECT(metadata.length == PAGES * PAGE);
    added = ringfile_queue_rename(queue, data, moved, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_mkdir(queue, folder, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_rmdir(queue, folder, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    added = ringfile_queue_unlink(queue, moved, 7, &token);
    EXPECT(wait_for(queue, added, token) == 0);
    EXPECT(access(data, F_OK) != 0 && access(moved, F_OK) != 0 && access(folder, F_OK) != 0);
}

/* Copies a file by one record, in each of the three ways, and checks what is refused. */
static void by_record(ringfile_batch *batch, ringfile_queue *queue, const ringfile_file *file, const ringfile_file *copy)
{
    ringfile_op op = {.size = sizeof op, .kind = RINGFILE_OP_COPY_RANGE, .file = file, .length = PAGES * PAGE, .to = copy};
    uint64_t token = 0;
    EXPECT(ringfile_run(&op) == PAGES * PAGE);
    EXPECT(CHECK(ringfile_size(copy)) == PAGES * PAGE);
    op.to_offset = PAGES * PAGE;
    EXPECT(run(batch, ringfile_batch_add(batch, &op, 7)) == PAGES * PAGE);
    op.offset = PAGE;
    op.to_offset = 2 * PAGES * PAGE;
    int added = ringfile_queue_add(queue, &op, 7, &token);
    EXPECT(wait_for(queue, added, token) == (PAGES - 1) * PAGE); /* the file ends */
    EXPECT(CHECK(ringfile_read(copy, into[0], 2 * PAGE, PAGES * PAGE)) == 2 * PAGE);
    EXPECT(is_filled(into[0], 3) && is_filled(into[1], 4));
    op.data = into[0];
    EXPECT(ringfile_run(&op) == -EINVAL);
    EXPECT(strstr(ringfile_last_error(), "`data`") != NULL);
    EXPECT(ringfile_queue_add(queue, &op, 7, &token) == -EINVAL && ringfile_queue_open(queue) == 0);
    EXPECT(ringfile_batch_add(batch, &op, 7) == -EINVAL);
}

int main(int argc, char **argv)
{
    char data[512], other[512], folder[512];
    const char *where = argc > 1 ? argv[1] : ".";
    ringfile_open_options options = {.size = sizeof options};
    ringfile_file *file, *copy;
    ringfile_batch *batch;
    ringfile_queue *queue;
    snprintf(data, sizeof data, "%s/operations-%d.data", where, (int)getpid());
    snprintf(other, sizeof other, "%s/operations-%d.other", where, (int)getpid());
    snprintf(folder, sizeof folder, "%s/operations-%d", where, (int)getpid());
    options.flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE;
    CHECK(ringfile_open(data, &options, &file));
    CHECK(ringfile_open(other, &options, &copy));
    CHECK(ringfile_batch_create(NULL, &batch));
    CHECK(ringfile_queue_create(4, 0, &queue));
    in_a_batch(batch, file);
    in_a_queue(queue, file);
    by_record(batch, queue, file, copy);
    CHECK(ringfile_close(copy));
    CHECK(ringfile_close(file));
    on_paths(queue, data, other, folder);
    CHECK(ringfile_queue_free(queue));
    CHECK(ringfile_batch_free(batch));
    puts("ok");
    return 0;
}
