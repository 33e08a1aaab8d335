/*
 * The parts of fio 3.33's memory that an engine uses, declared by hand: fio's sources are neither included nor needed.
 *
 * Names are fio's, so that its own documents help; fields that the engine does not use are unnamed padding. Invariants:
 * every offset is asserted below from the lists in fio_places.h, which `layout` compares with fio's own headers, and
 * version.c checks the running fio before anything else is used.
 */
#ifndef RINGFILE_FIO_ABI_H
#define RINGFILE_FIO_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "fio_places.h"

#if !defined(__linux__) || !defined(__x86_64__)
#error "the places of fio's fields are known for Linux on x86-64 only: find them with ./layout and add them here"
#endif

#ifndef FIO_VERSION /* `test` builds an engine for another. */
#define FIO_VERSION "fio-3.33"
#endif
#define FIO_IOOPS_VERSION 31

enum { FIO_NO_OFFLOAD = 1 << 15, FIO_ASYNCIO_SETS_ISSUE_TIME = 1 << 16 };

enum fio_q_status { FIO_Q_COMPLETED = 0, FIO_Q_QUEUED = 1, FIO_Q_BUSY = 2 };

enum fio_ddir { DDIR_READ, DDIR_WRITE, DDIR_TRIM, DDIR_SYNC, DDIR_DATASYNC, DDIR_SYNC_FILE_RANGE, DDIR_WAIT };

enum { FIO_OPT_STR = 1, FIO_OPT_BOOL = 10 };
#define FIO_OPT_C_ENGINE (UINT64_C(1) << 6)
#define FIO_OPT_G_IOURING (UINT64_C(1) << 38)

struct thread_data;

struct fio_file {
	char room1[20];
	int fd;
	char room2[16];
	char *file_name;
	char room3[128];
	void *engine_data;
};

struct io_u {
	char room1[16];
	struct timespec issue_time;
	struct fio_file *file;
	char room2[4];
	int ddir;
	char room3[24];
	unsigned long long offset;
	char room4[8];
	void *buf;
	char room5[8];
	void *xfer_buf;
	unsigned long long xfer_buflen;
	char room6[16];
	unsigned long long resid;
	unsigned int error;
};

struct value_pair {
	const char *ival;
	unsigned long long oval;
	const char *help;
	char room[16];
};

struct fio_option {
	const char *name;
	const char *lname;
	const char *alias;
	int type;
	unsigned int off1;
	char room1[80];
	const char *help;
	const char *def;
	struct value_pair posval[32];
	char room2[56];
	uint64_t category;
	uint64_t group;
	char room3[32];
};

struct ioengine_ops {
	void *list[2];
	const char *name;
	int version;
	int flags;
	void *dlhandle;
	int (*setup)(struct thread_data *);
	int (*init)(struct thread_data *);
	int (*post_init)(struct thread_data *);
	int (*prep)(struct thread_data *, struct io_u *);
	enum fio_q_status (*queue)(struct thread_data *, struct io_u *);
	int (*commit)(struct thread_data *);
	int (*getevents)(struct thread_data *, unsigned int, unsigned int, const struct timespec *);
	struct io_u *(*event)(struct thread_data *, int);
	char *(*errdetails)(struct io_u *);
	int (*cancel)(struct thread_data *, struct io_u *);
	void (*cleanup)(struct thread_data *);
	int (*open_file)(struct thread_data *, struct fio_file *);
	int (*close_file)(struct thread_data *, struct fio_file *);
	int (*invalidate)(struct thread_data *, struct fio_file *);
	int (*unlink_file)(struct thread_data *, struct fio_file *);
	int (*get_file_size)(struct thread_data *, struct fio_file *);
	int (*prepopulate_file)(struct thread_data *, struct fio_file *);
	void (*terminate)(struct thread_data *);
	int (*iomem_alloc)(struct thread_data *, size_t);
	void (*iomem_free)(struct thread_data *);
	int (*io_u_init)(struct thread_data *, struct io_u *);
	void (*io_u_free)(struct thread_data *, struct io_u *);
	void (*zoned[4])(void);
	int option_struct_size;
	struct fio_option *options;
};

#define RINGFILE_ASSERT_AT(type, field, place) _Static_assert(offsetof(struct type, field) == (place), #type "." #field);
#define RINGFILE_ASSERT_OF(type, size) _Static_assert(sizeof(struct type) == (size), #type);
#define RINGFILE_ASSERT_IS(name, value) _Static_assert((name) == (value), #name);
FIO_OFFSETS(RINGFILE_ASSERT_AT)
FIO_SIZES(RINGFILE_ASSERT_OF)
FIO_VALUES(RINGFILE_ASSERT_IS)

/* fio's own functions, bound at their first call. */
ssize_t log_err(const char *format, ...) __attribute__((format(printf, 1, 2)));
ssize_t log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
int generic_open_file(struct thread_data *, struct fio_file *);
int generic_close_file(struct thread_data *, struct fio_file *);
int generic_get_file_size(struct thread_data *, struct fio_file *);
void fio_gettime(struct timespec *, void *);
void io_u_queued(struct thread_data *, struct io_u *);
void io_u_mark_submit(struct thread_data *, unsigned int);

#endif
