/* Many calls of the library for each call from Go, which costs as much as several of them. */
#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int shim_queue_create(ringfile_queue **queue, int *descriptor)
{
    int failed = ringfile_queue_create(256, RINGFILE_QUEUE_SHARED, queue);
    if (failed < 0) {
        return failed;
    }
    *descriptor = ringfile_queue_descriptor(*queue);
    if (*descriptor < 0) {
        ringfile_queue_free(*queue);
        return *descriptor;
    }
    return 0;
}

shim_flight *shim_flight_new(uintptr_t owner)
{
    shim_flight *flight = calloc(1, sizeof *flight);
    if (flight != NULL) {
        flight->owner = owner;
    }
    return flight;
}

/* Notes that an operation has ended. Whoever notes the last one puts the flight into the list. */
static void end_one(shim_flight *flight, shim_flight **ended)
{
    if (__atomic_sub_fetch(&flight->left, 1, __ATOMIC_ACQ_REL) == 0) {
        flight->next = *ended;
        *ended = flight;
    }
}

shim_flight *shim_collect(ringfile_queue *queue)
{
    enum { ROOM = 128 };
    ringfile_result results[ROOM];
    shim_flight *ended = NULL;
    int64_t taken;
    do {
        taken = ringfile_queue_wait(queue, results, ROOM, 0, 0);
        for (int64_t at = 0; at < taken; at++) {
            shim_slot *slot = (shim_slot *)(uintptr_t)results[at].user_data;
            slot->result = results[at].result;
            end_one(slot->flight, &ended);
        }
    } while (taken == ROOM);
    return ended;
}

static int refuse(shim_flight *flight, int error, const char *text)
{
    strncpy(flight->text, text, sizeof flight->text - 1);
    return error;
}

static int add(ringfile_queue *queue, const ringfile_file *file, const shim_op *op, uint64_t user_data, uint64_t *token)
{
    ringfile_op full = ringfile_op_on_file(op->kind, op->flags, file, (const void *)op->data, op->length, op->offset);
    return ringfile_queue_add(queue, full, user_data, token);
}

int shim_start(shim_flight *flight, ringfile_queue *queue, const ringfile_file *file, const shim_op *ops, size_t count,
               shim_flight **ended)
{
    if (count > flight->room) {
        shim_slot *slots = calloc(count, sizeof *slots);
        if (slots == NULL) {
            return refuse(flight, -ENOMEM, "no memory for a batch");
        }
        free(flight->slots);
        flight->slots = slots;
        flight->room = count;
    }
    flight->queue = queue;
    flight->left = count + 1;
    size_t failed = 0;
    for (size_t at = 0; at < count; at++) {
        shim_slot *slot = &flight->slots[at];
        slot->flight = flight;
        int error = add(queue, file, &ops[at], (uintptr_t)slot, &slot->token);
        if (error < 0 && at == 0) {
            return refuse(flight, error, ringfile_last_error());
        }
        if (error < 0) { /* the file was closed meanwhile; what was added may have begun, in another thread's call */
            slot->result = error;
            slot->token = 0;
            failed++;
        }
    }
    *ended = shim_collect(queue);
    for (size_t over = 0; over <= failed; over++) {
        end_one(flight, ended);
    }
    return 0;
}

void shim_cancel(shim_flight *flight, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        ringfile_queue_cancel(flight->queue, flight->slots[at].token); /* does nothing if it has ended */
    }
}

size_t shim_queue_add(ringfile_queue *queue, const ringfile_file *file, const shim_op *ops, size_t count, int *error)
{
    for (size_t added = 0; added < count; added++) {
        *error = add(queue, file, &ops[added], ops[added].user_data, NULL);
        if (*error < 0) {
            return added;
        }
    }
    return count;
}

int64_t shim_write_at(const ringfile_file *file, const void *data, size_t length, uint64_t offset, size_t *done)
{
    enum { PIECE = 1 << 20 };
    size_t bytes = 1, memory = 1;
    void *copy = NULL;
    ringfile_alignment(file, &bytes, &memory);
    bool by_copy = (uintptr_t)data % memory != 0 && length % bytes == 0 && offset % bytes == 0;
    if (!by_copy || posix_memalign(&copy, memory < 4096 ? 4096 : memory, PIECE) != 0) {
        int64_t result = ringfile_write(file, data, length, offset);
        *done = result < 0 ? 0 : (size_t)result;
        return result;
    }
    int64_t result = 0;
    for (*done = 0; *done < length && result >= 0; *done += result < 0 ? 0 : (size_t)result) {
        size_t piece = length - *done < PIECE ? length - *done : PIECE;
        memcpy(copy, (const char *)data + *done, piece);
        result = ringfile_write(file, copy, piece, offset + *done);
    }
    free(copy);
    return result;
}
