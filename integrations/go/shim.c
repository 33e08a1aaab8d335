/* Collects finished batches in C, so that the library's threads never run Go code, which would turn each into a thread of
 * Go's runtime. */
#include "shim.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int bell = -1;
static _Atomic(shim_flight *) ended;

int shim_bell(void)
{
    bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return bell < 0 ? -errno : bell;
}

shim_flight *shim_flight_new(uintptr_t owner)
{
    shim_flight *flight = calloc(1, sizeof *flight);
    if (flight != NULL && ringfile_batch_create(NULL, &flight->batch) < 0) {
        free(flight);
        flight = NULL;
    }
    if (flight != NULL) {
        flight->owner = owner;
    }
    return flight;
}

/* Runs on a thread of the library. */
static void report(void *context, int64_t failed)
{
    (void)failed;
    shim_flight *flight = context;
    flight->count = ringfile_batch_results(flight->batch, &flight->results);
    shim_flight *first = atomic_load_explicit(&ended, memory_order_relaxed);
    do {
        flight->next = first;
    } while (!atomic_compare_exchange_weak_explicit(&ended, &first, flight, memory_order_release,
                                                    memory_order_relaxed));
    if (first == NULL) { /* else whoever put the first there rings, and it is still to be taken */
        uint64_t one = 1;
        ssize_t written = write(bell, &one, sizeof one);
        (void)written; /* fails only where the count is at its limit, and the bell rings anyway */
    }
}

shim_flight *shim_ended(void)
{
    return atomic_exchange_explicit(&ended, NULL, memory_order_acquire);
}

int shim_start(shim_flight *flight, const ringfile_file *file, const shim_read *reads, size_t count)
{
    int64_t done = 0;
    for (size_t at = 0; at < count && done >= 0; at++) {
        done = ringfile_batch_read(flight->batch, file, (void *)reads[at].data, reads[at].length, reads[at].offset, 0);
    }
    if (done >= 0) {
        done = ringfile_batch_start(flight->batch, report, flight);
        if (done == 0) {
            return 0; /* the flight may have ended by now */
        }
    }
    strncpy(flight->text, ringfile_last_error(), sizeof flight->text - 1);
    ringfile_batch_reset(flight->batch);
    return (int)done;
}

size_t shim_queue_read(ringfile_queue *queue, const ringfile_file *file, const shim_read *reads, size_t count, int *error)
{
    for (size_t added = 0; added < count; added++) {
        const shim_read *one = &reads[added];
        *error = ringfile_queue_read(queue, file, (void *)one->data, one->length, one->offset, one->user_data, NULL);
        if (*error < 0) {
            return added;
        }
    }
    return count;
}
