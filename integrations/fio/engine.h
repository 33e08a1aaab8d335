/*
 * The parts of the engine, and the interfaces between them.
 *
 * Invariants: the engine does not use ringfile before a job's own thread or process calls `init`, because rings do not
 * survive a fork; a process that is forked after the thread of another job has used ringfile is refused. A job closes
 * everything that it has opened before fio frees the job's memory.
 */
#ifndef RINGFILE_FIO_ENGINE_H
#define RINGFILE_FIO_ENGINE_H

#include <stdbool.h>

#include "fio_abi.h"
#include "ringfile.h"

/* fio fills this from the job's options; the first word belongs to fio. */
struct options {
	void *room;
	unsigned int route;
	unsigned int registered;
	unsigned int counts;
};

/* One job, in the thread or process that runs it. */
struct job {
	struct ringfile_queue *queue;
	struct ringfile_memory *memory;
	/* The job's depth: the number of fio's io_us (operations). */
	unsigned int depth;
	struct io_u **collected;
	unsigned int collected_count;
	struct ringfile_result *results;
	uint32_t route;
	bool replays;
	bool refused_before;
};

static inline struct job *job_of(struct thread_data *td)
{
	return TD_FIELD(td, struct job *, TD_IO_OPS_DATA);
}

/* load.c */
extern struct ioengine_ops ringfile_engine;

/* options.c */
extern struct fio_option ringfile_options[];

/* job.c */
int job_init(struct thread_data *td);
int job_io_u_init(struct thread_data *td, struct io_u *io_u);
int job_post_init(struct thread_data *td);
void job_io_u_free(struct thread_data *td, struct io_u *io_u);
void job_cleanup(struct thread_data *td);

/* file.c */
int file_open(struct thread_data *td, struct fio_file *file);
int file_close(struct thread_data *td, struct fio_file *file);
int file_make_handle(const struct job *job, struct fio_file *file);

/* io.c */
enum fio_q_status io_queue(struct thread_data *td, struct io_u *io_u);
int io_commit(struct thread_data *td);
int io_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout);
struct io_u *io_event(struct thread_data *td, int event);

#endif
