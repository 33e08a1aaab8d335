/* The C functions that Haskell calls: many calls of the library for each call from Haskell. C never calls Haskell. */
#ifndef SHIM_H
#define SHIM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "ringfile.h"

/* An operation. Haskell fills the first fields. The address of an operation of a flight is its user_data. */
typedef struct shim_op {
    uint64_t data; /* the address of pinned memory */
    uint64_t length;
    uint64_t offset;
    int32_t fd;
    uint32_t kind;      /* RINGFILE_OP_READ or RINGFILE_OP_WRITE */
    uint64_t user_data; /* of an operation that belongs to no flight */
    struct shim_flight *flight;
    uint64_t token; /* 0: the operation was refused, and `result` says why */
    int64_t result;
    ringfile_file *replaced; /* C's, while the operation is added */
} shim_op;

/* A batch of operations in a queue that threads share. Haskell allocates it, and frees it after its end was reported. */
typedef struct shim_flight {
    void *owner; /* Haskell's */
    struct shim_flight *previous, *following; /* in the queue's list */
    struct shim_flight *next; /* in a list of flights that have ended */
    struct shim_flight *ended; /* those that shim_start found */
    int ends_idleness; /* whether shim_wait_ended must be called, now that this flight has started */
    int is_last; /* whether this flight has ended as the last one of a closed queue */
    size_t left; /* operations that have not ended, and one more while shim_start runs; atomic */
    size_t count;
    shim_op ops[];
} shim_flight;

enum { SHIM_FILES = 64 };

/* A queue with the files that it has used. Its memory is Haskell's, and is zero before shim_queue_create. */
typedef struct shim_queue {
    ringfile_queue *queue; /* NULL: freed */
    int closed;
    shim_flight *flights; /* those that have not ended */
    int is_idle; /* whether shim_wait_ended has found nothing in flight, and shim_start must say when to call it again */
    struct {
        int fd;
        ringfile_file *file; /* NULL: the place is free */
    } files[SHIM_FILES];
    pthread_mutex_t lock; /* of everything except `queue` */
} shim_queue;

/* Creates a queue with room for `depth` operations. `shared`: 0 for a queue of the calling thread, 1 for one that
 * threads share. Returns 0, or a negative errno. */
int shim_queue_create(shim_queue *queue, size_t depth, int shared);
/* Frees the queue and closes the files that it has used; waits until the kernel has finished. Does nothing to a freed
 * queue. */
void shim_queue_free(shim_queue *queue);
/* Releases the files whose descriptors the program has closed. */
void shim_queue_forget(shim_queue *queue);

/* Starts a flight, and takes the results that are there; `flight->ended` gets the flights that have ended, linked by
 * `next`; this one may be among them. Returns 0, or -ESHUTDOWN after shim_close. */
int shim_start(shim_queue *queue, shim_flight *flight);
/* Waits until flights have ended, and returns them, linked by `next`. Returns NULL if nothing is in flight; a flight that
 * starts later has `ends_idleness`. One thread at a time may call it. */
shim_flight *shim_wait_ended(shim_queue *queue);
/* Cancels the operations that the kernel still can cancel; the flight still ends, once. */
void shim_cancel(shim_queue *queue, shim_flight *flight);
/* Refuses further flights and cancels those in the queue. Returns 1 if there are some. */
int shim_close(shim_queue *queue);

/* Adds operations that belong to no flight. Those with token 0 were refused. */
void shim_add(shim_queue *queue, shim_op *ops, size_t count);
/* Waits until `at_least` results are there, or all, and takes up to `room` results. Returns how many, or a negative
 * errno. */
int64_t shim_wait(shim_queue *queue, ringfile_result *results, size_t room, size_t at_least);

/* Opens a file for direct I/O. Returns a descriptor, or a negative errno. */
int shim_open_direct(const char *path, int flags, unsigned mode);
int shim_counts(ringfile_counts *counts);

#endif
