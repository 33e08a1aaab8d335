/*
 * Files: fio opens and closes them, and ringfile has a handle to each file that a job reads or writes.
 *
 * fio may open a file before the job's process is forked (pre_read), so the first operation makes the handle.
 */
#include "engine.h"

int file_open(struct thread_data *td, struct fio_file *file)
{
	file->engine_data = NULL;
	return generic_open_file(td, file);
}

int file_close(struct thread_data *td, struct fio_file *file)
{
	if (file->engine_data)
		ringfile_close(file->engine_data);
	file->engine_data = NULL;
	return generic_close_file(td, file);
}

/* Returns 0, or a negative errno whose message has been printed. */
int file_make_handle(const struct job *job, struct fio_file *file)
{
	const struct ringfile_open_options options = { .size = sizeof(options), .route = job->route };
	struct ringfile_file *handle;
	int error = ringfile_open_fd(file->fd, &options, &handle);

	if (error)
		log_err("ringfile: %s: %s\n", file->file_name, ringfile_last_error());
	else
		file->engine_data = handle;
	return error;
}
