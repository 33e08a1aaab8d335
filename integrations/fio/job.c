/*
 * A job's queue and its registered memory, from its first call to its last.
 *
 * Invariants: registered memory is unregistered before fio frees it, and the kernel has finished with it by then.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine.h"

static const struct options *options_of(struct thread_data *td)
{
	return TD_FIELD(td, const struct options *, TD_EO);
}

/* The process that has used ringfile first: this one, or the parent that forked it afterwards. */
static _Atomic(pid_t) first_user;

int job_init(struct thread_data *td)
{
	struct job *job;
	pid_t first = atomic_load(&first_user);

	/* A fio of the same version that was built differently has its fields at other offsets. */
	if (TD_FIELD(td, struct ioengine_ops *, TD_IO_OPS) != &ringfile_engine) {
		log_err("ringfile: this engine is for Debian's %s, but another build of it is running: use /usr/bin/fio\n", FIO_VERSION);
		return ENOEXEC;
	}
	if (first && first != getpid()) {
		log_err("ringfile: this job is a process, and was started after a job with thread=1 had used ringfile: use thread=1 for all jobs or for none\n");
		return EOPNOTSUPP;
	}
	job = calloc(1, sizeof(*job));
	if (!job)
		return ENOMEM;
	job->route = options_of(td)->route;
	job->replays = TD_FIELD(td, char *, TD_READ_IOLOG_FILE) != NULL;
	TD_FIELD(td, struct job *, TD_IO_OPS_DATA) = job;
	return 0;
}

/* Called for each io_u; there are as many as the depth. */
int job_io_u_init(struct thread_data *td, struct io_u *io_u)
{
	(void)io_u;
	job_of(td)->depth++;
	return 0;
}

/* If registration is refused, the I/O is unregistered. */
static void register_memory(struct thread_data *td, struct job *job)
{
	void *start = TD_FIELD(td, void *, TD_ORIG_BUFFER);
	size_t length = TD_FIELD(td, size_t, TD_ORIG_BUFFER_SIZE);

	/* A replay in chunks reallocates its buffers without telling the engine. */
	if (!options_of(td)->registered || job->replays || !start || !length)
		return;
	if (ringfile_memory_register(start, length, &job->memory))
		log_err("ringfile: fio's buffers are not registered: %s\n", ringfile_last_error());
}

int job_post_init(struct thread_data *td)
{
	struct job *job = job_of(td);
	int error;

	job->collected = calloc(job->depth, sizeof(struct io_u *));
	job->results = calloc(job->depth, sizeof(struct ringfile_result));
	if (!job->collected || !job->results)
		return ENOMEM;
	atomic_store(&first_user, getpid());
	error = ringfile_queue_create(job->depth, 0, &job->queue);
	if (error) {
		log_err("ringfile: %s\n", ringfile_last_error());
		return -error;
	}
	register_memory(td, job);
	return 0;
}

/* Drains the queue, which is full if an error ended the job. */
static void end_io(struct job *job)
{
	if (job->queue)
		ringfile_queue_free(job->queue);
	job->queue = NULL;
	if (job->memory && ringfile_memory_unregister(job->memory))
		log_err("ringfile: %s\n", ringfile_last_error());
	job->memory = NULL;
}

void job_io_u_free(struct thread_data *td, struct io_u *io_u)
{
	(void)io_u;
	if (job_of(td))
		end_io(job_of(td));
}

/* If the job is a process, all threads of the process work for it. If it is a thread, only that thread's counts are the
 * job's. */
static void show_counts(void)
{
	struct ringfile_counts counts = { .size = sizeof(counts) };
	int error = gettid() == getpid() ? ringfile_metrics(&counts) : ringfile_thread_metrics(&counts);

	if (!error)
		log_info("ringfile: %llu operations, %llu inline, %llu by workers, %llu by AIO, %llu registered, %llu system calls\n",
			 (unsigned long long)counts.ops, (unsigned long long)counts.inline_ops,
			 (unsigned long long)counts.worker_ops, (unsigned long long)counts.aio_ops,
			 (unsigned long long)counts.fixed_ops, (unsigned long long)(counts.enters + counts.aio_calls));
}

void job_cleanup(struct thread_data *td)
{
	struct job *job = job_of(td);

	if (!job)
		return;
	end_io(job);
	if (options_of(td)->counts)
		show_counts();
	free(job->collected);
	free(job->results);
	free(job);
}
