package ringfile

// #include "shim.h"
import "C"

import (
	"context"
	"io"
	"io/fs"
	"syscall"
	"unsafe"
)

// Options says how to open a file. The zero value opens it for reading through the page cache. Nothing is created or
// cut that these options do not name.
type Options struct {
	// Direct requests direct I/O, which bypasses the page cache. If the file system has no direct I/O, reads and writes
	// are buffered.
	Direct bool
	// Write opens the file for writing, as well as for reading.
	Write bool
	// Create creates the file if it does not exist. Needs Write.
	Create bool
	// CreateNew creates the file, and fails with fs.ErrExist if it exists. Needs Write.
	CreateNew bool
	// Truncate cuts the file to length 0. Needs Write.
	Truncate bool
	// Permissions are those of a file that is created, before the umask; 0 stands for 0666.
	Permissions fs.FileMode
}

// File is an open file. Any number of goroutines may use it at once. Its methods with a context park the goroutine, and
// need no OS thread while they wait; ReadAt, WriteAt, Size and Close block it, as those of os.File do.
type File struct {
	handle *C.ringfile_file
	path   string // for errors
}

var (
	_ io.ReaderAt = (*File)(nil)
	_ io.WriterAt = (*File)(nil)
	_ io.Closer   = (*File)(nil)
)

// Open opens a file. It may block, as open(2) may. Options that need Write fail with EINVAL without it.
func Open(path string, options Options) (*File, error) {
	var how C.ringfile_open_options
	how.size = C.size_t(unsafe.Sizeof(how))
	how.flags = C.RINGFILE_READ
	how.mode = C.uint32_t(options.Permissions.Perm())
	for _, one := range []struct {
		wanted bool
		flags  C.uint32_t
	}{
		{options.Direct, C.RINGFILE_DIRECT | C.RINGFILE_BUFFERED_FALLBACK},
		{options.Write, C.RINGFILE_WRITE},
		{options.Create, C.RINGFILE_CREATE},
		{options.CreateNew, C.RINGFILE_CREATE_NEW},
		{options.Truncate, C.RINGFILE_TRUNCATE},
	} {
		if one.wanted {
			how.flags |= one.flags
		}
	}
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return nil, &Error{Errno: syscall.EINVAL, Text: "the path has a zero byte"}
	}
	file := &File{path: path}
	_, err = check(func() int64 {
		return int64(C.ringfile_open((*C.char)(unsafe.Pointer(name)), &how, &file.handle))
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Close closes the file, and syncs nothing. Operations in flight run to their end; later ones fail with EBADF, as does
// a second Close.
func (f *File) Close() error {
	_, err := check(func() int64 { return int64(C.ringfile_close(f.handle)) })
	return err
}

// ReadAt reads len(p) bytes from offset, or up to the end of the file, and then returns io.EOF. It implements
// io.ReaderAt.
//
// It blocks an OS thread until the bytes are in p, because the kernel must not use Go's memory after the call has
// returned. A batch of one read occupies none.
func (f *File) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, &Error{Errno: syscall.EINVAL, Text: "the offset is negative"}
	}
	if len(p) == 0 {
		return 0, nil
	}
	read, err := check(func() int64 {
		return int64(C.ringfile_read(f.handle, unsafe.Pointer(&p[0]), C.size_t(len(p)), C.uint64_t(offset)))
	})
	if err != nil {
		return 0, err
	}
	if int(read) < len(p) {
		return int(read), io.EOF
	}
	return len(p), nil
}

// WriteAt writes all of p at offset, or fails. It implements io.WriterAt. After an error, the bytes behind those that
// it counts may have been written in part.
//
// It blocks an OS thread, as ReadAt does. Direct writes need an offset and a length as Alignment says; p may be
// anywhere: if its address is not aligned, WriteAt copies it through C memory, 1 MiB at a time.
func (f *File) WriteAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, &Error{Errno: syscall.EINVAL, Text: "the offset is negative"}
	}
	if len(p) == 0 {
		return 0, nil
	}
	var done C.size_t
	_, err := check(func() int64 {
		return int64(C.shim_write_at(f.handle, unsafe.Pointer(&p[0]), C.size_t(len(p)), C.uint64_t(offset), &done))
	})
	return int(done), err
}

// Size returns the file's size in bytes.
func (f *File) Size() (int64, error) {
	return check(func() int64 { return int64(C.ringfile_size(f.handle)) })
}

// IsDirect reports whether reads and writes bypass the page cache.
func (f *File) IsDirect() bool { return C.ringfile_is_direct(f.handle) == 1 }

// Alignment returns what direct writes must be multiples of: bytes for offsets and lengths, memory for addresses. Both
// are 1 if I/O is buffered. Reads may have any offset, length and address, and buffers of a Pool are aligned.
func (f *File) Alignment() (bytes, memory int) {
	both := [2]C.size_t{1, 1} // of a closed file
	C.ringfile_alignment(f.handle, &both[0], &both[1])
	return int(both[0]), int(both[1])
}

// AtomicLimits returns the shortest and the longest length of an atomic write, in bytes; both are 0 if the file does
// not support atomic writes.
func (f *File) AtomicLimits() (shortest, longest int) {
	var both [2]C.size_t
	C.ringfile_atomic_limits(f.handle, &both[0], &both[1], nil)
	return int(both[0]), int(both[1])
}

// Sync makes durable what has been written by writes that have finished, and all metadata (fsync). The goroutine is
// parked meanwhile. If ctx is done before the sync has begun, it is cancelled, and Sync returns ctx.Err(); otherwise
// Sync waits for its end.
//
// A failed sync is final: data may be lost, although the kernel would let the next sync succeed. So each later sync and
// durable write of this File fails with the same errno. Open the file again, and check or rewrite what was written
// since the last sync that succeeded.
func (f *File) Sync(ctx context.Context) error {
	return f.control(ctx, control{what: "syncing", kind: C.RINGFILE_OP_SYNC_ALL})
}

// SyncData is Sync without the metadata that reading the data does not need (fdatasync).
func (f *File) SyncData(ctx context.Context) error {
	return f.control(ctx, control{what: "syncing the data of", kind: C.RINGFILE_OP_SYNC_DATA})
}

// SyncRange starts writing the dirty pages of a range to the disk, and waits for that if wait is set. A length of 0
// means to the end of the file. It makes nothing durable: that needs Sync or SyncData, which then have less to do.
func (f *File) SyncRange(ctx context.Context, offset, length int64, wait bool) error {
	flags := C.uint32_t(C.RINGFILE_SYNC_RANGE_WRITE)
	if wait {
		flags |= C.RINGFILE_SYNC_RANGE_WAIT_BEFORE | C.RINGFILE_SYNC_RANGE_WAIT_AFTER
	}
	return f.control(ctx, control{what: "syncing a range of", kind: C.RINGFILE_OP_SYNC_RANGE, flags: flags,
		offset: offset, length: length})
}

// Truncate sets the file's size: it cuts the file, or extends it with zeros.
func (f *File) Truncate(ctx context.Context, size int64) error {
	return f.control(ctx, control{what: "truncating", kind: C.RINGFILE_OP_TRUNCATE, length: size})
}

// AllocateMode says what Allocate does with a range.
type AllocateMode uint32

const (
	// AllocateExtend allocates blocks. The file grows to hold the range.
	AllocateExtend AllocateMode = C.RINGFILE_ALLOCATE_EXTEND
	// AllocateKeepSize allocates blocks. The file keeps its size.
	AllocateKeepSize AllocateMode = C.RINGFILE_ALLOCATE_KEEP_SIZE
	// AllocatePunchHole frees blocks, so that the range reads as zeros. The file keeps its size.
	AllocatePunchHole AllocateMode = C.RINGFILE_ALLOCATE_PUNCH_HOLE
	// AllocateZeroRange fills the range with zeros, and keeps its blocks. The file grows to hold it.
	AllocateZeroRange AllocateMode = C.RINGFILE_ALLOCATE_ZERO_RANGE
	// AllocateDiscard discards the range's content, which may read as anything afterwards.
	AllocateDiscard AllocateMode = C.RINGFILE_ALLOCATE_DISCARD
)

// Allocate allocates or frees the blocks of a range of bytes. Errors are those of fallocate(2): ENOSPC, or EOPNOTSUPP
// if the file system does not support the mode.
func (f *File) Allocate(ctx context.Context, mode AllocateMode, offset, length int64) error {
	return f.control(ctx, control{what: "allocating blocks of", kind: C.RINGFILE_OP_ALLOCATE, flags: C.uint32_t(mode),
		offset: offset, length: length})
}

func (f *File) control(ctx context.Context, one control) error {
	return run(ctx, f, []control{one})
}

// SyncDirectory makes durable that files were created, renamed or removed in a directory. It blocks an OS thread.
func SyncDirectory(path string) error {
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return &Error{Errno: syscall.EINVAL, Text: "the path has a zero byte"}
	}
	_, err = check(func() int64 { return int64(C.ringfile_sync_directory((*C.char)(unsafe.Pointer(name)))) })
	return err
}
