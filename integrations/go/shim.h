/* The C functions that Go calls. A batch needs one of these calls, or two, and C never calls Go. */
#ifndef SHIM_H
#define SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "ringfile.h"

/* A read to add to a batch or a queue. `data` is the address of C memory, passed as a number, so that Go need not check
 * whether it is Go memory. */
typedef struct shim_read {
    uintptr_t data;
    size_t length;
    uint64_t offset;
    uint64_t user_data;
} shim_read;

struct shim_flight;

/* One read of a flight. Its address is the user_data of its operation. */
typedef struct shim_slot {
    struct shim_flight *flight;
    uint64_t token;
    int64_t result;
} shim_slot;

/* A batch of reads in a queue that threads share. */
typedef struct shim_flight {
    uintptr_t owner; /* Go's */
    ringfile_queue *queue;
    struct shim_flight *next;
    shim_slot *slots;
    size_t room; /* the number of slots that there is memory for */
    size_t left; /* the reads that have not ended, and one more while shim_start runs; atomic */
    char text[256]; /* what went wrong where a start failed */
} shim_flight;

/* Creates a queue that threads share, and its descriptor (ringfile_queue_descriptor). Returns 0, or a negative errno. */
int shim_queue_create(ringfile_queue **queue, int *descriptor);
/* Returns NULL, with errno set, if there is no memory. */
shim_flight *shim_flight_new(uintptr_t owner);
/* Starts reads in a queue, and takes the results that are there. Returns 0, or a negative errno if nothing was started; the
 * flight then has the error text. `ended` gets the flights that have ended, linked by `next`; this one may be among them. */
int shim_start(shim_flight *flight, ringfile_queue *queue, const ringfile_file *file, const shim_read *reads, size_t count,
               shim_flight **ended);
/* Takes the results that are there. Returns the flights that have ended, linked by `next`. */
shim_flight *shim_collect(ringfile_queue *queue);
/* Cancels the reads that have not begun; the flight still ends, once. */
void shim_cancel(shim_flight *flight, size_t count);
/* Adds reads to a queue. Returns how many were added. If one could not be added, stops there and stores its negative errno in
 * `error`; ringfile_last_error() has the text. */
size_t shim_queue_read(ringfile_queue *queue, const ringfile_file *file, const shim_read *reads, size_t count, int *error);

#endif
