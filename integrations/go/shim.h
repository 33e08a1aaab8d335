/* The C functions that Go calls. A batch needs few of these calls, and C never calls Go. */
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

/* A batch, and the state of its last run. */
typedef struct shim_flight {
    ringfile_batch *batch;
    uintptr_t owner; /* Go's */
    struct shim_flight *next;
    const ringfile_result *results;
    int64_t count;
    char text[256]; /* what went wrong where a start failed */
} shim_flight;

/* Returns the process's eventfd(2), which is readable when a flight has ended, or a negative errno. */
int shim_bell(void);
/* Returns NULL, with errno set, if the batch cannot be created. */
shim_flight *shim_flight_new(uintptr_t owner);
/* Adds reads and starts them. Returns 0, or a negative errno if nothing was started; the flight then has the error text. */
int shim_start(shim_flight *flight, const ringfile_file *file, const shim_read *reads, size_t count);
/* Takes all flights that have ended, linked by `next`. Only one thread may call it at a time. */
shim_flight *shim_ended(void);
/* Adds reads to a queue. Returns how many were added. If one could not be added, stops there and stores its negative errno in
 * `error`; ringfile_last_error() has the text. */
size_t shim_queue_read(ringfile_queue *queue, const ringfile_file *file, const shim_read *reads, size_t count, int *error);

#endif
