/*
 * The engine's options, in the form of fio's parser.
 */
#include "engine.h"

#define OF_ENGINE .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_IOURING

struct fio_option ringfile_options[] = {
	{
		.name = "route",
		.lname = "Route of operations",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct options, route),
		.help = "Route of operations: the cheapest for each file, or the same for all",
		.def = "auto",
		.posval = {
			{ .ival = "auto", .oval = RINGFILE_ROUTE_AUTO, .help = "The cheapest, found from each file's first operations" },
			{ .ival = "ring", .oval = RINGFILE_ROUTE_RING, .help = "io_uring" },
			{ .ival = "inline", .oval = RINGFILE_ROUTE_INLINE, .help = "A plain call on the job's thread" },
			{ .ival = "workers", .oval = RINGFILE_ROUTE_WORKERS, .help = "A plain call on a thread of a small pool" },
			{ .ival = "aio", .oval = RINGFILE_ROUTE_AIO, .help = "Linux AIO, with direct=1" },
		},
		OF_ENGINE,
	},
	{
		.name = "registered",
		.lname = "Registered buffers",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct options, registered),
		.help = "Register fio's buffers with the kernel",
		.def = "1",
		OF_ENGINE,
	},
	{
		.name = "counts",
		.lname = "Counts of operations",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct options, counts),
		.help = "Print the operations by route at the end of each job",
		.def = "0",
		OF_ENGINE,
	},
	{ .name = NULL },
};
