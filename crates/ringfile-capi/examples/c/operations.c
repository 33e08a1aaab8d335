/*
 * Every kind of operation, as the functions of ringfile_ops.h make them: carried out at once, in a queue and in a batch.
 * Each result is checked.
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

enum way { AT_ONCE, IN_A_QUEUE, IN_A_BATCH, WAYS };

/* How the operations are carried out, and by what. */
static enum way way;
static ringfile_batch *batch;
static ringfile_queue *queue;

/* Carries out an operation, and returns its result. */
static int64_t run(ringfile_op op)
{
    const ringfile_result *results;
    uint64_t token = 0;
    switch (way) {
    case IN_A_QUEUE:
        if (ringfile_queue_add(queue, op, 7, &token) < 0) {
            EXPECT(ringfile_queue_len(queue) == 0);
            return -EINVAL;
        }
        EXPECT(token != 0);
        return ringfile_queue_wait_for(queue, token);
    case IN_A_BATCH:
        if (ringfile_batch_add(batch, op, 7) < 0) {
            return -EINVAL;
        }
        CHECK(ringfile_batch_run(batch));
        EXPECT(CHECK(ringfile_batch_results(batch, &results)) == 1 && results[0].user_data == 7);
        return results[0].result;
    default:
        return ringfile_run(op);
    }
}

static unsigned char from[2][PAGE], into[2][PAGE];

static void on_a_file(const ringfile_file *file)
{
    struct iovec writes[] = {{from[0], PAGE}, {from[1], PAGE}}, reads[] = {{into[1], PAGE}, {into[0], PAGE}};
    int first = 2 * (int)way + 1, second = first + 1;
    memset(from[0], first, PAGE);
    memset(from[1], second, PAGE);
    EXPECT(run(ringfile_op_truncate(file, 0)) == 0);
    EXPECT(run(ringfile_op_allocate(file, RINGFILE_ALLOCATE_EXTEND, 0, PAGES * PAGE)) == 0);
    EXPECT(CHECK(ringfile_size(file)) == PAGES * PAGE);
    EXPECT(run(ringfile_op_write(file, from[0], PAGE, 0)) == PAGE);
    EXPECT(run(ringfile_op_write_durable(file, from[1], PAGE, PAGE)) == PAGE);
    EXPECT(run(ringfile_op_write_atomic(file, from[0], PAGE, 0)) == -EOPNOTSUPP); /* not direct */
    EXPECT(run(ringfile_op_writev(file, writes, 2, 2 * PAGE)) == 2 * PAGE);
    EXPECT(run(ringfile_op_sync_range(file, 0, PAGE, RINGFILE_SYNC_RANGE_WRITE)) == 0);
    EXPECT(run(ringfile_op_sync_data(file)) == 0);
    EXPECT(run(ringfile_op_sync_all(file)) == 0);
    EXPECT(run(ringfile_op_advise(file, 0, 0, RINGFILE_ADVICE_RANDOM)) == 0);
    EXPECT(run(ringfile_op_read(file, into[0], 2 * PAGE, PAGE)) == 2 * PAGE);
    EXPECT(is_filled(into[0], second) && is_filled(into[1], first));
    EXPECT(run(ringfile_op_readv(file, reads, 2, 2 * PAGE)) == 2 * PAGE);
    EXPECT(is_filled(into[1], first) && is_filled(into[0], second));
}

/* Copies a file, and checks what is refused. */
static void copy_a_file(const ringfile_file *file, const ringfile_file *copy)
{
    ringfile_op op = ringfile_op_copy_range(file, 0, copy, 0, PAGES * PAGE);
    EXPECT(run(op) == PAGES * PAGE);
    EXPECT(CHECK(ringfile_size(copy)) == PAGES * PAGE);
    EXPECT(run(ringfile_op_copy_range(file, PAGE, copy, PAGES * PAGE, PAGES * PAGE)) == (PAGES - 1) * PAGE); /* it ends */
    EXPECT(CHECK(ringfile_read(copy, into[0], 2 * PAGE, PAGES * PAGE)) == 2 * PAGE);
    EXPECT(is_filled(into[0], from[1][0]) && is_filled(into[1], from[0][0]));
    CHECK(ringfile_truncate(copy, 0));
    op.data = into[0];
    EXPECT(run(op) == -EINVAL);
    EXPECT(strstr(ringfile_last_error(), "`data`") != NULL);
}

static void on_paths(const char *data, const char *other, const char *folder)
{
    ringfile_open_options options = {.size = sizeof options, .flags = RINGFILE_READ};
    ringfile_metadata metadata = {.size = sizeof metadata}, same = metadata;
    ringfile_file *file = NULL;
    char deep[520];
    snprintf(deep, sizeof deep, "%s/deep", folder);
    EXPECT(run(ringfile_op_open(data, &options, &file)) == 0);
    EXPECT(CHECK(ringfile_size(file)) == PAGES * PAGE);
    EXPECT(run(ringfile_op_statx(data, &metadata)) == 0 && run(ringfile_op_stat(file, &same)) == 0);
    EXPECT(metadata.length == PAGES * PAGE && metadata.inode == same.inode);
    CHECK(ringfile_close(file));
    EXPECT(run(ringfile_op_rename(data, other, RINGFILE_RENAME_NO_REPLACE)) == 0);
    EXPECT(run(ringfile_op_link(other, data)) == 0);
    EXPECT(run(ringfile_op_path(RINGFILE_OP_UNLINK, other)) == 0);
    EXPECT(run(ringfile_op_symlink(other, data)) == 0 && run(ringfile_op_chmod(other, 0600)) == 0);
    EXPECT(run(ringfile_op_path(RINGFILE_OP_UNLINK, other)) == 0);
    EXPECT(run(ringfile_op_path(RINGFILE_OP_MKDIR, folder)) == 0);
    EXPECT(run(ringfile_op_path(RINGFILE_OP_MKDIR_ALL, deep)) == 0);
    EXPECT(run(ringfile_op_path(RINGFILE_OP_RMDIR, deep)) == 0);
    EXPECT(run(ringfile_op_path(RINGFILE_OP_RMDIR, folder)) == 0);
    EXPECT(access(data, F_OK) == 0 && access(other, F_OK) != 0 && access(folder, F_OK) != 0);
}

int main(int argc, char **argv)
{
    char data[500], other[500], moved[500], folder[500];
    const char *where = argc > 1 ? argv[1] : ".";
    ringfile_open_options options = {.size = sizeof options};
    ringfile_file *file, *copy;
    snprintf(data, sizeof data, "%s/operations-%d.data", where, (int)getpid());
    snprintf(other, sizeof other, "%s/operations-%d.other", where, (int)getpid());
    snprintf(moved, sizeof moved, "%s/operations-%d.moved", where, (int)getpid());
    snprintf(folder, sizeof folder, "%s/operations-%d", where, (int)getpid());
    options.flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE;
    CHECK(ringfile_open(data, &options, &file));
    CHECK(ringfile_open(other, &options, &copy));
    CHECK(ringfile_batch_create(NULL, &batch));
    CHECK(ringfile_queue_create(4, 0, &queue));
    for (way = AT_ONCE; way < WAYS; way++) {
        on_a_file(file);
        copy_a_file(file, copy);
        on_paths(data, moved, folder);
    }
    CHECK(ringfile_close(copy));
    CHECK(ringfile_close(file));
    CHECK(ringfile_queue_free(queue));
    CHECK(ringfile_batch_free(batch));
    EXPECT(unlink(data) == 0 && unlink(other) == 0);
    puts("ok");
    return 0;
}
