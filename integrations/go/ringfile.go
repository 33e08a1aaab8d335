// Package ringfile reads files over Linux io_uring: batches of reads from any number of goroutines, none of which
// occupies an OS thread while its reads are in flight.
//
// Memory for reads comes from a [Pool]. It is C memory, aligned for direct I/O and registered with the kernel; the
// kernel never gets Go's own memory.
//
// [File.ReadBatch] is what most programs need. A [Queue] keeps reads in flight on one OS thread, for programs that use
// whole threads for I/O.
package ringfile

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE
#cgo LDFLAGS: -lringfile
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Error describes a failure. It wraps its errno: errors.Is(err, fs.ErrNotExist) works as with package os.
type Error struct {
	// Errno is the kernel's error number.
	Errno syscall.Errno
	// Text says which operation on which file failed, and what to try.
	Text string
}

func (e *Error) Error() string {
	if e.Text == "" {
		return "ringfile: " + e.Errno.Error()
	}
	return "ringfile: " + e.Text
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

func errorOf(result int64, text string) error {
	return &Error{Errno: syscall.Errno(-result), Text: text}
}

// check makes a call of the C interface, and turns a negative result into an error. The library keeps its error text
// per thread.
func check(call func() int64) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	result := call()
	if result < 0 {
		return result, errorOf(result, C.GoString(C.ringfile_last_error()))
	}
	return result, nil
}

// Options says how to open a file. The zero value opens it for reading through the page cache.
type Options struct {
	// Direct requests direct I/O, which bypasses the page cache. If the file system has no direct I/O, reads are buffered.
	Direct bool
}

// File is a file that is open for reading. Any number of goroutines may use it at once.
type File struct {
	handle *C.ringfile_file
	path   string // for errors
}

// Open opens a file for reading. It may block, as open(2) may.
func Open(path string, options Options) (*File, error) {
	var how C.ringfile_open_options
	how.size = C.size_t(unsafe.Sizeof(how))
	how.flags = C.RINGFILE_READ
	if options.Direct {
		how.flags |= C.RINGFILE_DIRECT | C.RINGFILE_BUFFERED_FALLBACK
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

// IsDirect reports whether reads bypass the page cache.
func (f *File) IsDirect() bool { return C.ringfile_is_direct(f.handle) == 1 }

// Size returns the file's size in bytes.
func (f *File) Size() (int64, error) {
	return check(func() int64 { return int64(C.ringfile_size(f.handle)) })
}

// Close closes the file. Reads in flight run to their end; later ones fail with EBADF, as does a second Close.
func (f *File) Close() error {
	_, err := check(func() int64 { return int64(C.ringfile_close(f.handle)) })
	return err
}
