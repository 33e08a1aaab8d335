/*
 * Offsets in fio 3.33 of the fields that an engine uses, and values of fio's constants: numbers only.
 *
 * They are lists, so that the same numbers can be asserted of the structures in fio_abi.h and, by `layout`, of fio's own
 * headers.
 */
#ifndef RINGFILE_FIO_PLACES_H
#define RINGFILE_FIO_PLACES_H

/*
 * A job has 192,056 bytes, of which the engine needs only these fields. It accesses them by offset, since a structure
 * would consist almost entirely of padding.
 */
enum {
	TD_READ_IOLOG_FILE = 3136,
	TD_EO = 4216,
	TD_ORIG_BUFFER = 189056,
	TD_ORIG_BUFFER_SIZE = 189064,
	TD_IO_OPS = 189952,
	TD_IO_OPS_DATA = 189968,
	TD_LAST_ISSUE = 191160,
};

#define TD_FIELD(td, type, place) (*(type *)(void *)((char *)(td) + (place)))

/* One list, used by the assertions here and by `layout`, which checks it against fio's headers. */
#define FIO_OFFSETS(AT)                                                                                                     \
	AT(fio_file, fd, 20)                                                                                                \
	AT(fio_file, file_name, 40)                                                                                         \
	AT(fio_file, engine_data, 176)                                                                                      \
	AT(io_u, issue_time, 16)                                                                                            \
	AT(io_u, file, 32)                                                                                                  \
	AT(io_u, ddir, 44)                                                                                                  \
	AT(io_u, offset, 72)                                                                                                \
	AT(io_u, buf, 88)                                                                                                   \
	AT(io_u, xfer_buf, 104)                                                                                             \
	AT(io_u, xfer_buflen, 112)                                                                                          \
	AT(io_u, resid, 136)                                                                                                \
	AT(io_u, error, 144)                                                                                                \
	AT(value_pair, oval, 8)                                                                                             \
	AT(value_pair, help, 16)                                                                                            \
	AT(fio_option, type, 24)                                                                                            \
	AT(fio_option, off1, 28)                                                                                            \
	AT(fio_option, help, 112)                                                                                           \
	AT(fio_option, def, 120)                                                                                            \
	AT(fio_option, posval, 128)                                                                                         \
	AT(fio_option, category, 1464)                                                                                      \
	AT(fio_option, group, 1472)                                                                                         \
	AT(ioengine_ops, version, 24)                                                                                       \
	AT(ioengine_ops, dlhandle, 32)                                                                                      \
	AT(ioengine_ops, init, 48)                                                                                          \
	AT(ioengine_ops, queue, 72)                                                                                         \
	AT(ioengine_ops, event, 96)                                                                                         \
	AT(ioengine_ops, cleanup, 120)                                                                                      \
	AT(ioengine_ops, open_file, 128)                                                                                    \
	AT(ioengine_ops, get_file_size, 160)                                                                                \
	AT(ioengine_ops, io_u_init, 200)                                                                                    \
	AT(ioengine_ops, option_struct_size, 248)                                                                           \
	AT(ioengine_ops, options, 256)

#define FIO_SIZES(OF)                                                                                                       \
	OF(value_pair, 40)                                                                                                  \
	OF(fio_option, 1512)                                                                                                \
	OF(ioengine_ops, 264)

#define FIO_JOB_OFFSETS(AT)                                                                                                 \
	AT(thread_data, o.read_iolog_file, TD_READ_IOLOG_FILE)                                                              \
	AT(thread_data, eo, TD_EO)                                                                                          \
	AT(thread_data, orig_buffer, TD_ORIG_BUFFER)                                                                        \
	AT(thread_data, orig_buffer_size, TD_ORIG_BUFFER_SIZE)                                                              \
	AT(thread_data, io_ops, TD_IO_OPS)                                                                                  \
	AT(thread_data, io_ops_data, TD_IO_OPS_DATA)                                                                        \
	AT(thread_data, last_issue, TD_LAST_ISSUE)

#define FIO_VALUES(IS)                                                                                                      \
	IS(FIO_IOOPS_VERSION, 31)                                                                                           \
	IS(FIO_NO_OFFLOAD, 1 << 15)                                                                                         \
	IS(FIO_ASYNCIO_SETS_ISSUE_TIME, 1 << 16)                                                                            \
	IS(FIO_Q_COMPLETED, 0)                                                                                              \
	IS(FIO_Q_QUEUED, 1)                                                                                                 \
	IS(FIO_Q_BUSY, 2)                                                                                                   \
	IS(DDIR_READ, 0)                                                                                                    \
	IS(DDIR_WRITE, 1)                                                                                                   \
	IS(DDIR_TRIM, 2)                                                                                                    \
	IS(DDIR_SYNC, 3)                                                                                                    \
	IS(DDIR_DATASYNC, 4)                                                                                                \
	IS(DDIR_SYNC_FILE_RANGE, 5)                                                                                         \
	IS(FIO_OPT_STR, 1)                                                                                                  \
	IS(FIO_OPT_BOOL, 10)                                                                                                \
	IS(FIO_OPT_C_ENGINE, UINT64_C(1) << 6)                                                                              \
	IS(FIO_OPT_G_IOURING, UINT64_C(1) << 38)

#endif
