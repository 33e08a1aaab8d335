#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Returns 1 if both descriptors are the same open file (Linux 6.10). */
#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY 1027
#endif

int shim_queue_create(shim_queue *queue, size_t depth, int shared)
{
    int failed = ringfile_queue_create(depth, shared ? RINGFILE_QUEUE_SHARED : 0, &queue->queue);
    if (failed < 0) {
        return failed;
    }
    queue->is_idle = 1;
    pthread_mutex_init(&queue->lock, NULL);
    return 0;
}

void shim_queue_free(shim_queue *queue)
{
    ringfile_queue *handle = __atomic_exchange_n(&queue->queue, NULL, __ATOMIC_ACQ_REL);
    if (handle == NULL) {
        return;
    }
    ringfile_queue_free(handle);
    for (size_t at = 0; at < SHIM_FILES; at++) {
        ringfile_close(queue->files[at].file); /* NULL is refused */
        queue->files[at].file = NULL;
    }
}

/* Returns whether the library's duplicate is still the file that the program's descriptor names. Without F_DUPFD_QUERY
 * nobody knows, and the answer is no. */
static int is_same(ringfile_file *file, int fd)
{
    return fcntl(ringfile_fd(file), F_DUPFD_QUERY, fd) == 1;
}

void shim_queue_forget(shim_queue *queue)
{
    ringfile_file *closed[SHIM_FILES];
    size_t count = 0;
    pthread_mutex_lock(&queue->lock);
    for (size_t at = 0; at < SHIM_FILES; at++) {
        if (queue->files[at].file != NULL && !is_same(queue->files[at].file, queue->files[at].fd)) {
            closed[count++] = queue->files[at].file;
            queue->files[at].file = NULL;
        }
    }
    pthread_mutex_unlock(&queue->lock);
    /* Not under the lock: closing may wait for the file system. */
    for (size_t at = 0; at < count; at++) {
        ringfile_close(closed[at]);
    }
}

/* Finds the library's file for a descriptor. Opening one costs as much as a read, so the queue keeps those that it has
 * used. `replaced` gets the file that lost its place, or NULL.
 *
 * Gives up the lock while it opens a file: that may wait for the file system, and other threads may wait for the lock in
 * calls during which no garbage collection starts. */
static int find_file(shim_queue *queue, int fd, ringfile_file **file, ringfile_file **replaced)
{
    if (fd < 0) {
        return -EBADF;
    }
    size_t at = (size_t)fd % SHIM_FILES;
    ringfile_file *kept = queue->files[at].file;
    if (kept != NULL && queue->files[at].fd == fd && is_same(kept, fd)) {
        *file = kept;
        return 0;
    }
    pthread_mutex_unlock(&queue->lock);
    int failed = ringfile_open_fd(fd, NULL, file);
    pthread_mutex_lock(&queue->lock);
    if (failed < 0) {
        return failed;
    }
    *replaced = queue->files[at].file;
    queue->files[at].fd = fd;
    queue->files[at].file = *file;
    return 0;
}

/* Adds operations, under the lock; close_replaced follows it. Returns how many were refused: those that are wrong, and
 * those that come after shim_close. */
static size_t add(shim_queue *queue, shim_op *ops, size_t count)
{
    size_t refused = 0;
    int fd = -1;
    ringfile_file *file = NULL;
    for (size_t at = 0; at < count; at++) {
        shim_op *op = &ops[at];
        int failed = 0;
        op->replaced = NULL;
        if (op->fd != fd || file == NULL) {
            file = NULL;
            fd = op->fd;
            failed = find_file(queue, fd, &file, &op->replaced);
        }
        if (failed == 0 && queue->closed) {
            failed = -ECANCELED;
        }
        if (failed == 0) {
            const void *data = (const void *)(uintptr_t)op->data;
            ringfile_op request = ringfile_op_on_file(op->kind, 0, file, data, op->length, op->offset);
            uint64_t user_data = op->flight != NULL ? (uintptr_t)op : op->user_data;
            failed = ringfile_queue_add(queue->queue, request, user_data, &op->token);
        }
        if (failed < 0) {
            op->token = 0;
            op->result = failed;
            refused++;
        }
    }
    return refused;
}

/* Closes the files that lost their places to those of these operations; their operations in flight continue. Not under
 * the lock: closing may wait for the file system. */
static void close_replaced(const shim_op *ops, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        if (ops[at].replaced != NULL) {
            ringfile_close(ops[at].replaced);
        }
    }
}

void shim_add(shim_queue *queue, shim_op *ops, size_t count)
{
    pthread_mutex_lock(&queue->lock);
    add(queue, ops, count);
    pthread_mutex_unlock(&queue->lock);
    close_replaced(ops, count);
}

/* Notes that an operation has ended. Whoever notes the last one puts the flight into the list. */
static void end_one(shim_flight *flight, shim_flight **ended)
{
    if (__atomic_sub_fetch(&flight->left, 1, __ATOMIC_ACQ_REL) == 0) {
        flight->next = *ended;
        *ended = flight;
    }
}

/* Takes results once there are `at_least`, or no operation is open. Returns how many it took. */
static int64_t collect(shim_queue *queue, size_t at_least, shim_flight **ended)
{
    enum { ROOM = 128 };
    ringfile_result results[ROOM];
    ringfile_queue *handle = __atomic_load_n(&queue->queue, __ATOMIC_ACQUIRE);
    int64_t taken, all = 0;
    do {
        taken = ringfile_queue_wait(handle, results, ROOM, at_least, at_least > 0 ? -1 : 0);
        for (int64_t at = 0; at < taken; at++) {
            shim_op *op = (shim_op *)(uintptr_t)results[at].user_data;
            op->result = results[at].result;
            end_one(op->flight, ended);
        }
        all += taken > 0 ? taken : 0;
        at_least = 0;
    } while (taken == ROOM);
    return all;
}

/* Removes flights that have ended from the queue, under the lock. */
static void let_go(shim_queue *queue, shim_flight *ended)
{
    for (; ended != NULL; ended = ended->next) {
        if (ended->previous != NULL) {
            ended->previous->following = ended->following;
        } else {
            queue->flights = ended->following;
        }
        if (ended->following != NULL) {
            ended->following->previous = ended->previous;
        }
        ended->is_last = queue->closed && queue->flights == NULL;
    }
}

shim_flight *shim_wait_ended(shim_queue *queue)
{
    shim_flight *ended = NULL;
    int is_idle = 0;
    while (ended == NULL && !is_idle) {
        int64_t taken = collect(queue, 1, &ended);
        if (taken > 0 && ended == NULL) {
            continue;
        }
        pthread_mutex_lock(&queue->lock);
        let_go(queue, ended);
        is_idle = queue->is_idle = taken == 0 && ringfile_queue_len(queue->queue) <= 0;
        pthread_mutex_unlock(&queue->lock);
    }
    return ended;
}

int shim_start(shim_queue *queue, shim_flight *flight)
{
    flight->left = flight->count + 1;
    for (size_t at = 0; at < flight->count; at++) {
        flight->ops[at].flight = flight;
        flight->ops[at].token = 0;
    }
    pthread_mutex_lock(&queue->lock);
    if (queue->closed) {
        pthread_mutex_unlock(&queue->lock);
        return -ESHUTDOWN;
    }
    flight->previous = NULL;
    flight->following = queue->flights;
    if (queue->flights != NULL) {
        queue->flights->previous = flight;
    }
    queue->flights = flight;
    size_t over = 1 + add(queue, flight->ops, flight->count);
    pthread_mutex_unlock(&queue->lock);
    shim_flight *ended = NULL;
    collect(queue, 0, &ended); /* submits */
    close_replaced(flight->ops, flight->count);
    for (; over > 0; over--) {
        end_one(flight, &ended);
    }
    pthread_mutex_lock(&queue->lock);
    let_go(queue, ended);
    flight->ends_idleness = queue->is_idle && ringfile_queue_len(queue->queue) > 0;
    queue->is_idle &= !flight->ends_idleness;
    pthread_mutex_unlock(&queue->lock);
    flight->ended = ended;
    return 0;
}

/* Cancelling an operation that has ended does nothing. */
static void cancel(shim_queue *queue, shim_flight *flight)
{
    for (size_t at = 0; at < flight->count; at++) {
        if (flight->ops[at].token != 0) {
            ringfile_queue_cancel(queue->queue, flight->ops[at].token);
        }
    }
}

void shim_cancel(shim_queue *queue, shim_flight *flight)
{
    pthread_mutex_lock(&queue->lock);
    cancel(queue, flight);
    pthread_mutex_unlock(&queue->lock);
}

int shim_close(shim_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->closed = 1;
    for (shim_flight *flight = queue->flights; flight != NULL; flight = flight->following) {
        cancel(queue, flight);
    }
    int is_busy = queue->flights != NULL;
    pthread_mutex_unlock(&queue->lock);
    return is_busy;
}

int64_t shim_wait(shim_queue *queue, ringfile_result *results, size_t room, size_t at_least)
{
    return ringfile_queue_wait(queue->queue, results, room, at_least, at_least > 0 ? -1 : 0);
}

int shim_open_direct(const char *path, int flags, unsigned mode)
{
    int fd = open(path, flags | O_DIRECT | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

int shim_counts(ringfile_counts *counts)
{
    counts->size = sizeof *counts;
    return ringfile_metrics(counts);
}
