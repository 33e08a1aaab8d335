/*
 * Operations: collected one by one, submitted together, and returned as they finish.
 */
#include <errno.h>

#include "engine.h"

static int add(struct job *job, struct io_u *io_u)
{
	struct fio_file *file = io_u->file;
	ringfile_op op;

	if (!file->engine_data) {
		int error = file_make_handle(job, file);

		if (error)
			return error;
	}
	switch (io_u->ddir) {
	case DDIR_READ:
		op = ringfile_op_read(file->engine_data, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
		break;
	case DDIR_WRITE:
		op = ringfile_op_write(file->engine_data, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
		break;
	case DDIR_SYNC:
		op = ringfile_op_sync_all(file->engine_data);
		break;
	case DDIR_DATASYNC:
		op = ringfile_op_sync_data(file->engine_data);
		break;
	default:
		return -EOPNOTSUPP;
	}
	return ringfile_queue_add(job->queue, op, (uintptr_t)io_u, NULL);
}

/* Prints an error once, because fio would only show its errno. */
static void tell(struct job *job, const struct io_u *io_u, int error)
{
	if (job->refused_before)
		return;
	job->refused_before = true;
	if (io_u->ddir == DDIR_TRIM)
		log_err("ringfile: trim is not among this engine's operations: use ioengine=io_uring for it\n");
	else if (error == -EOPNOTSUPP && io_u->ddir == DDIR_SYNC_FILE_RANGE)
		log_err("ringfile: sync_file_range is not among this engine's operations: use fsync= or fdatasync=\n");
	else
		log_err("ringfile: %s: %s\n", io_u->file->file_name, ringfile_last_error());
}

enum fio_q_status io_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = job_of(td);
	int error = add(job, io_u);

	if (error) {
		tell(job, io_u, error);
		io_u->error = (unsigned int)-error;
		return FIO_Q_COMPLETED;
	}
	job->collected[job->collected_count++] = io_u;
	return FIO_Q_QUEUED;
}

int io_commit(struct thread_data *td)
{
	struct job *job = job_of(td);
	unsigned int count = job->collected_count;
	struct timespec now;

	if (!count)
		return 0;
	/* Takes the time before submitting, because operations that are plain calls finish during the submission. */
	fio_gettime(&now, NULL);
	for (unsigned int i = 0; i < count; i++) {
		job->collected[i]->issue_time = now;
		io_u_queued(td, job->collected[i]);
	}
	if (job->replays)
		TD_FIELD(td, struct timespec, TD_LAST_ISSUE) = now;
	job->collected_count = 0;
	io_u_mark_submit(td, count);
	return ringfile_queue_submit(job->queue);
}

int io_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout)
{
	struct job *job = job_of(td);
	int64_t nanoseconds = min ? -1 : 0;
	/* Waiting submits what was added; fio must have counted it before. */
	int error = io_commit(td);

	if (error)
		return error;
	if (min && timeout)
		nanoseconds = timeout->tv_sec * INT64_C(1000000000) + timeout->tv_nsec;
	return (int)ringfile_queue_wait(job->queue, job->results, max < job->depth ? max : job->depth, min, nanoseconds);
}

struct io_u *io_event(struct thread_data *td, int event)
{
	const struct ringfile_result *result = &job_of(td)->results[event];
	struct io_u *io_u = (struct io_u *)(uintptr_t)result->user_data;

	if (result->result < 0) {
		io_u->error = (unsigned int)-result->result;
	} else {
		io_u->error = 0;
		if (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE)
			io_u->resid = io_u->xfer_buflen - (unsigned long long)result->result;
	}
	return io_u;
}
