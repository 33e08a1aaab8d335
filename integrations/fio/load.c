/*
 * Gives fio the engine when it loads the library, or prints why not.
 *
 * Invariants: a fio of another version gets no engine, and its memory is not accessed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "engine.h"

struct ioengine_ops ringfile_engine = {
	.name = "ringfile",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_ASYNCIO_SETS_ISSUE_TIME | FIO_NO_OFFLOAD,
	.init = job_init,
	.io_u_init = job_io_u_init,
	.post_init = job_post_init,
	.queue = io_queue,
	.commit = io_commit,
	.getevents = io_getevents,
	.event = io_event,
	.io_u_free = job_io_u_free,
	.cleanup = job_cleanup,
	.open_file = file_open,
	.close_file = file_close,
	.get_file_size = generic_get_file_size,
	.option_struct_size = sizeof(struct options),
	.options = ringfile_options,
};

__attribute__((visibility("default"))) void get_ioengine(struct ioengine_ops **ops)
{
	const char *running = dlsym(RTLD_DEFAULT, "fio_version_string");

	if (running && strcmp(running, FIO_VERSION) == 0) {
		*ops = &ringfile_engine;
		return;
	}
	/* Calls no function of fio, since another version may have other functions. */
	fprintf(stderr, "ringfile: this engine is for %s, but %s has loaded it: run it with Debian 12's fio\n",
		FIO_VERSION, running ? running : "of an unknown version");
	*ops = NULL;
}
