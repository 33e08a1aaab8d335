/* The C functions that Go calls. A batch needs one of these calls, or two, and C never calls Go. */
#ifndef SHIM_H
#define SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "ringfile.h"

/* An operation of a file, to add to a batch or a queue: the fields of ringfile_op that these operations need. `data` is
 * the address of memory that is not Go's, passed as a number, so that Go need not check whether it is Go memory. */
typedef struct shim_op {
    uint32_t kind;
    uint32_t flags;
    uintptr_t data;
    uint64_t length;
    uint64_t offset;
    uint64_t user_data;
} shim_op;

struct shim_flight;

/* One operation of a flight. Its address is the user_data of its operation. */
typedef struct shim_slot {
    struct shim_flight *flight;
    uint64_t token;
    int64_t result;
} shim_slot;

/* A batch in a queue that threads share. */
typedef struct shim_flight {
    uintptr_t owner; /* Go's */
    ringfile_queue *queue;
    struct shim_flight *next;
    shim_slot *slots;
    size_t room; /* the number of slots that there is memory for */
    size_t left; /* the operations that have not ended, and one more while shim_start runs; atomic */
    char text[256]; /* what went wrong where a start failed */
} shim_flight;

/* Creates a queue that threads share, and its descriptor (ringfile_queue_descriptor). Returns 0 or a negative errno. */
int shim_queue_create(ringfile_queue **queue, int *descriptor);
/* Returns NULL, with errno set, if there is no memory. */
shim_flight *shim_flight_new(uintptr_t owner);
/* Starts operations in a queue, and takes the results that are there. Returns 0, or a negative errno if nothing was
 * started; the flight then has the error text. `ended` gets the flights that have ended, linked by `next`; this one may
 * be among them. */
int shim_start(shim_flight *flight, ringfile_queue *queue, const ringfile_file *file, const shim_op *ops, size_t count,
               shim_flight **ended);
/* Takes the results that are there. Returns the flights that have ended, linked by `next`. */
shim_flight *shim_collect(ringfile_queue *queue);
/* Cancels the operations that have not begun; the flight still ends, once. */
void shim_cancel(shim_flight *flight, size_t count);
/* Adds operations to a queue. Returns how many were added. If one could not be added, stops there and stores its
 * negative errno in `error`; ringfile_last_error() has the text. */
size_t shim_queue_add(ringfile_queue *queue, const ringfile_file *file, const shim_op *ops, size_t count, int *error);
/* Writes as ringfile_write does, from memory of any address: if the file's direct I/O needs aligned memory, by a copy.
 * `done` gets the number of bytes that were written for certain, also after an error. */
int64_t shim_write_at(const ringfile_file *file, const void *data, size_t length, uint64_t offset, size_t *done);

#endif
