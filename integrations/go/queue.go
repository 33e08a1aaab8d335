package ringfile

// #include "shim.h"
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Queue keeps reads in flight on one OS thread. It is the low-level interface: the goroutine itself submits to the ring.
// The goroutine that creates a queue is locked to its OS thread until Close, and only that goroutine may use the queue.
// Wait blocks the thread.
type Queue struct {
	handle   *C.ringfile_queue
	requests []C.shim_read
	refused  C.int // the negative errno of a read that could not be added
}

// Result is the result of one read of a queue.
type Result struct {
	// ID identifies the read: Add numbers its reads from firstID on.
	ID uint64
	// Result is the number of bytes read, or a negative errno.
	Result int64
}

// Err returns nil, or the read's errno.
func (r Result) Err() error {
	if r.Result < 0 {
		return syscall.Errno(-r.Result)
	}
	return nil
}

// NewQueue creates a queue with room for depth reads; the queue grows if there are more.
func NewQueue(depth int) (*Queue, error) {
	if depth <= 0 {
		return nil, &Error{Errno: syscall.EINVAL, Text: "the queue's depth must be above 0"}
	}
	runtime.LockOSThread()
	queue := new(Queue)
	_, err := check(func() int64 { return int64(C.ringfile_queue_create(C.size_t(depth), 0, &queue.handle)) })
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return queue, nil
}

// Add adds reads of a file; the ID of the first result is firstID, the next firstID+1, and so on. Nothing starts before
// Wait. The buffers must not be touched or released until their results have been taken. N and Err of the reads are not set.
// Add returns how many were added: all, or fewer and an error.
func (q *Queue) Add(f *File, reads []Read, firstID uint64) (int, error) {
	q.requests = q.requests[:0]
	for at := range reads {
		request, err := reads[at].request(at)
		if err != nil {
			return 0, err
		}
		request.user_data = C.uint64_t(firstID + uint64(at))
		q.requests = append(q.requests, request)
	}
	if len(reads) == 0 {
		return 0, nil
	}
	added := C.shim_queue_read(q.handle, f.handle, &q.requests[0], C.size_t(len(reads)), &q.refused)
	if int(added) < len(reads) {
		return int(added), errorOf(int64(q.refused), C.GoString(C.ringfile_last_error()))
	}
	return len(reads), nil
}

// Wait submits the reads that were added, waits until atLeast of the queue's reads (or all, if there are fewer) have
// finished, and takes up to len(results) results. It returns how many it took. It blocks the OS thread.
func (q *Queue) Wait(results []Result, atLeast int) (int, error) {
	if len(results) == 0 || atLeast < 0 {
		return 0, &Error{Errno: syscall.EINVAL, Text: "there is no room for results, or atLeast is negative"}
	}
	taken := C.ringfile_queue_wait(q.handle, (*C.ringfile_result)(unsafe.Pointer(&results[0])),
		C.size_t(len(results)), C.size_t(atLeast), -1)
	if taken < 0 {
		return 0, errorOf(int64(taken), C.GoString(C.ringfile_last_error()))
	}
	return int(taken), nil
}

// Close cancels reads that the disk has not started, waits for the rest, and unlocks the goroutine from its OS thread.
func (q *Queue) Close() error {
	_, err := check(func() int64 { return int64(C.ringfile_queue_free(q.handle)) })
	if err == nil {
		runtime.UnlockOSThread()
	}
	return err
}
