// Package ringfile reads and writes files over Linux io_uring: batches from any number of goroutines, none of which
// occupies an OS thread while its operations are in flight.
//
// Memory comes from a [Pool]. It is C memory, aligned for direct I/O and registered with the kernel. [RegisterMemory]
// takes the program's own, such as a mapping. Operations in flight never use Go's own memory.
//
// [File.ReadBatch] and [File.WriteBatch] are what most programs need. [File.ReadAt] and [File.WriteAt] take any slice,
// and block. A [Queue] keeps operations in flight on one OS thread, for programs that use whole threads for I/O.
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
