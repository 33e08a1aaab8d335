/*
 * A log that several threads append to: records with a length and a checksum, which are made durable in groups. Then
 * the program "crashes": the log is opened again, what is valid is found by the records, and the rest is cut off. At
 * last, what wrong calls and a full disk do.
 *
 * Usage: log [FOLDER], where it makes and removes a file; the current folder by default.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ringfile.h"

enum { THREADS = 4, EACH = 100, GROUP = 20, LONGEST = 1000 };

/* Ends the program with the library's error text if a call failed. */
#define CHECK(call) check((int64_t)(call), #call, __LINE__)

static int64_t check(int64_t result, const char *what, int line)
{
    if (result < 0) {
        fprintf(stderr, "log.c:%d: %s: %s (%" PRId64 ")\n", line, what, ringfile_last_error(), result);
        exit(1);
    }
    return result;
}

#define EXPECT(truth) expect(truth, #truth, __LINE__)

static void expect(int truth, const char *what, int line)
{
    if (!truth) {
        fprintf(stderr, "log.c:%d: check failed: %s (last error: %s)\n", line, what, ringfile_last_error());
        exit(1);
    }
}

/* What each record begins with. */
struct head {
    uint32_t length; /* of the text behind it, never 0 */
    uint32_t check;
};

static uint32_t checksum(const unsigned char *data, size_t length)
{
    uint32_t sum = 2166136261u;
    for (size_t at = 0; at < length; at++) {
        sum = (sum ^ data[at]) * 16777619u;
    }
    return sum;
}

/* Appends a record. Returns its offset. */
static int64_t append(const ringfile_appender *log, const void *text, uint32_t length, uint32_t flags)
{
    unsigned char record[sizeof(struct head) + LONGEST];
    struct head head = {length, checksum(text, length)};
    memcpy(record, &head, sizeof head);
    memcpy(record + sizeof head, text, length);
    return ringfile_appender_append(log, record, sizeof head + length, flags);
}

/* Reads the record at `at`. Returns its length in the file; 0 if there is no valid one. */
static int64_t read_record(const ringfile_file *file, int64_t at, unsigned char *text)
{
    struct head head;
    int64_t got = ringfile_read(file, &head, sizeof head, (uint64_t)at);
    if (got < (int64_t)sizeof head || head.length == 0 || head.length > LONGEST) {
        return got < 0 ? got : 0;
    }
    got = ringfile_read(file, text, head.length, (uint64_t)at + sizeof head);
    if (got < head.length || checksum(text, head.length) != head.check) {
        return got < 0 ? got : 0;
    }
    return (int64_t)sizeof head + head.length;
}

/* Opens the log of a file at the end of its last valid record, and cuts off what is behind it. `*records` gets their
 * number. */
static int open_log(const ringfile_file *file, ringfile_appender **log, uint64_t *records)
{
    unsigned char text[LONGEST];
    int64_t valid = 0, length;
    *records = 0;
    while ((length = read_record(file, valid, text)) > 0) {
        valid += length;
        ++*records;
    }
    return length < 0 ? (int)length : ringfile_appender_open(file, (uint64_t)valid, NULL, log);
}

struct writer {
    pthread_t thread;
    ringfile_appender *log;
    int number;
    int64_t offsets[EACH];
};

/* Writes the text of a record, and returns its length. */
static uint32_t text_of(unsigned char *text, int writer, int record)
{
    uint32_t length = 2 + (uint32_t)(writer * 7919 + record * 104729) % (LONGEST - 2);
    memset(text, record % 251 + 1, length);
    text[0] = (unsigned char)writer;
    return length;
}

static void *write_records(void *argument)
{
    struct writer *writer = argument;
    unsigned char text[LONGEST];
    for (int record = 0; record < EACH; record++) {
        uint32_t length = text_of(text, writer->number, record);
        uint32_t flags = record % GROUP == GROUP - 1 ? RINGFILE_APPEND_SYNC : 0;
        writer->offsets[record] = CHECK(append(writer->log, text, length, flags));
    }
    return NULL;
}

static ringfile_file *open_file(const char *path, uint32_t flags)
{
    ringfile_open_options options = {.size = sizeof options};
    options.flags = RINGFILE_READ | RINGFILE_WRITE | flags;
    ringfile_file *file;
    CHECK(ringfile_open(path, &options, &file));
    return file;
}

static int64_t length_of(const ringfile_file *file)
{
    ringfile_metadata metadata = {.size = sizeof metadata};
    CHECK(ringfile_run(ringfile_op_stat(file, &metadata)));
    return (int64_t)metadata.length;
}

/* Appends from several threads, and checks each record at the offset that its thread was told. */
static void write_log(ringfile_file *file)
{
    ringfile_appender *log;
    uint64_t records;
    CHECK(open_log(file, &log, &records));
    EXPECT(records == 0 && ringfile_appender_end(log) == 0);
    static struct writer writers[THREADS];
    for (int at = 0; at < THREADS; at++) {
        writers[at].log = log;
        writers[at].number = at;
        EXPECT(pthread_create(&writers[at].thread, NULL, write_records, &writers[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++) {
        EXPECT(pthread_join(writers[at].thread, NULL) == 0);
    }
    int64_t end = CHECK(ringfile_appender_end(log));
    CHECK(append(log, "not durable yet", 15, 0));
    CHECK(ringfile_appender_flush(log));
    EXPECT(length_of(file) >= end + 15);
    CHECK(ringfile_appender_sync(log));
    CHECK(ringfile_appender_close(log));
    EXPECT(length_of(file) == end + (int64_t)sizeof(struct head) + 15);
    unsigned char text[LONGEST], expected[LONGEST];
    for (int at = 0; at < THREADS; at++) {
        for (int record = 0; record < EACH; record++) {
            uint32_t length = text_of(expected, at, record);
            int64_t found = CHECK(read_record(file, writers[at].offsets[record], text));
            EXPECT(found == (int64_t)(sizeof(struct head) + length) && memcmp(text, expected, length) == 0);
            EXPECT(record == 0 || writers[at].offsets[record] > writers[at].offsets[record - 1]);
        }
    }
}

/* What a crash may leave behind the log: a part of a record, and zeros. */
static void reopen_log(ringfile_file *file, const char *path)
{
    int64_t end = length_of(file);
    struct head torn = {LONGEST, 0};
    FILE *other = fopen(path, "r+");
    EXPECT(other != NULL && fseek(other, (long)end, SEEK_SET) == 0 && fwrite(&torn, sizeof torn, 1, other) == 1);
    EXPECT(ftruncate(fileno(other), (off_t)end + 100000) == 0 && fclose(other) == 0);
    ringfile_appender *log;
    uint64_t records;
    CHECK(open_log(file, &log, &records));
    EXPECT(records == THREADS * EACH + 1 && CHECK(ringfile_appender_end(log)) == end);
    EXPECT(CHECK(append(log, "after the crash", 15, RINGFILE_APPEND_SYNC)) == end);
    CHECK(ringfile_appender_close(log));
    CHECK(open_log(file, &log, &records));
    EXPECT(records == THREADS * EACH + 2);
    CHECK(ringfile_appender_close(log));
}

static void misuse(ringfile_file *file, const char *path)
{
    uint64_t end = (uint64_t)length_of(file);
    ringfile_appender *log = NULL;
    ringfile_appender_options options = {.size = sizeof options};
    EXPECT(ringfile_appender_open(NULL, 0, NULL, &log) == -EBADF);
    EXPECT(ringfile_appender_open(file, 0, NULL, NULL) == -EFAULT);
    EXPECT(ringfile_appender_open(file, end + 1, NULL, &log) == -EINVAL);
    options.flags = 1u << 31;
    EXPECT(ringfile_appender_open(file, 0, &options, &log) == -EINVAL);
    options.flags = 0;
    options.pool = (ringfile_pool *)(void *)file;
    EXPECT(ringfile_appender_open(file, 0, &options, &log) == -EBADF);
    options.size = 0;
    EXPECT(ringfile_appender_open(file, 0, &options, &log) == -EINVAL);
    EXPECT(log == NULL && length_of(file) == (int64_t)end);

    CHECK(ringfile_appender_open(file, end, NULL, &log));
    EXPECT(ringfile_appender_append(log, NULL, 1, 0) == -EFAULT);
    EXPECT(ringfile_appender_append(log, "x", 1, 1u << 31) == -EINVAL);
    EXPECT(ringfile_appender_append((ringfile_appender *)(void *)file, "x", 1, 0) == -EBADF);
    EXPECT(ringfile_appender_end(log) == (int64_t)end);
    CHECK(ringfile_appender_close(log));
    EXPECT(ringfile_appender_append(log, "x", 1, 0) == -EBADF && ringfile_appender_close(log) == -EBADF);
    EXPECT(ringfile_appender_end(NULL) == -EBADF);

    ringfile_metadata metadata = {.size = sizeof metadata};
    struct stat expected;
    CHECK(ringfile_run(ringfile_op_stat(file, &metadata)));
    EXPECT(stat(path, &expected) == 0);
    EXPECT(metadata.length == end && metadata.inode == expected.st_ino && metadata.device == expected.st_dev);
    EXPECT(metadata.mode == expected.st_mode && metadata.allocated == (uint64_t)expected.st_blocks * 512);
    EXPECT(metadata.modified == expected.st_mtim.tv_sec * INT64_C(1000000000) + expected.st_mtim.tv_nsec);
    EXPECT(ringfile_run(ringfile_op_stat(NULL, &metadata)) == -EFAULT
           && ringfile_run(ringfile_op_stat(file, NULL)) == -EFAULT);
}

/* A file that cannot grow, as on a full disk: the failure is final, and what was durable is still there. */
static void full_disk(const char *path, uint32_t flags)
{
    ringfile_file *file = open_file(path, flags);
    ringfile_appender *log;
    uint64_t records, found;
    CHECK(open_log(file, &log, &records));
    CHECK(append(log, "durable", 7, RINGFILE_APPEND_SYNC));
    struct rlimit limit, before;
    EXPECT(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = (rlim_t)length_of(file) + (256 << 10);
    EXPECT(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0);
    unsigned char text[LONGEST];
    memset(text, 'x', sizeof text);
    int64_t result = 0;
    for (int count = 0; result >= 0 && count < 4000; count++) {
        result = append(log, text, LONGEST, count % 100 == 99 ? RINGFILE_APPEND_SYNC : 0);
    }
    EXPECT(result == -EFBIG);
    EXPECT(append(log, "x", 1, 0) == -EFBIG && ringfile_appender_sync(log) == -EFBIG);
    EXPECT(strstr(ringfile_last_error(), "this appender has failed") != NULL);
    EXPECT(ringfile_appender_close(log) == -EFBIG && ringfile_appender_close(log) == -EBADF);
    EXPECT(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(ringfile_close(file));
    file = open_file(path, flags);
    CHECK(open_log(file, &log, &found));
    EXPECT(found > records);
    CHECK(append(log, "there is room again", 19, RINGFILE_APPEND_SYNC));
    CHECK(ringfile_appender_close(log));
    CHECK(ringfile_close(file));
}

int main(int count, char **arguments)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ringfile-log-%d", count > 1 ? arguments[1] : ".", (int)getpid());
    uint32_t ways[] = {0, RINGFILE_DIRECT | RINGFILE_BUFFERED_FALLBACK};
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        ringfile_file *file = open_file(path, ways[way] | RINGFILE_CREATE_NEW);
        write_log(file);
        reopen_log(file, path);
        misuse(file, path);
        CHECK(ringfile_close(file));
        full_disk(path, ways[way]);
        EXPECT(unlink(path) == 0);
    }
    printf("ok\n");
    return 0;
}
