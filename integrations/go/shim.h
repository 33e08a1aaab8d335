/* The C functions that Go calls: as few calls as a batch needs, and none from C back to Go. */
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

/* Returns the eventfd(2) that is readable when a flight has ended; a negative errno if there is none. One per process. */
int shim_bell(void);
/* Returns NULL, with errno set, if the batch cannot be created. */
shim_flight *shim_flight_new(uintptr_t owner);
/* Adds reads and starts them. Returns 0 or a negative errno with the flight's text; then nothing was started. */
int shim_start(shim_flight *flight, const ringfile_file *file, const shim_read *reads, size_t count);
/* Takes all flights that have ended, linked by `next`. Only one thread at a time. */
shim_flight *shim_ended(void);
/* Adds reads to a queue. Returns how many were added: fewer if one could not be, whose negative errno goes to `error`
 * (ringfile_last_error). */
size_t shim_queue_read(ringfile_queue *queue, const ringfile_file *file, const shim_read *reads, size_t count, int *error);

#endif
