package ringfile

// #include "shim.h"
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// Queue keeps reads and writes in flight on one OS thread. It is the low-level interface: the goroutine itself submits
// to the ring. The goroutine that creates a queue is locked to its OS thread until Close, and only that goroutine may
// use the queue. Wait blocks the thread.
type Queue struct {
	handle   *C.ringfile_queue
	requests requests
	refused  C.int // the negative errno of an operation that could not be added
}

// Result is the result of one operation of a queue.
type Result struct {
	// ID identifies the operation: Add and AddWrites number theirs from firstID on.
	ID uint64
	// Result is the number of bytes, or a negative errno.
	Result int64
}

// Err returns nil, or the operation's errno.
func (r Result) Err() error {
	if r.Result < 0 {
		return syscall.Errno(-r.Result)
	}
	return nil
}

// NewQueue creates a queue with room for depth operations; the queue grows if there are more.
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
// Wait. The buffers must not be touched or released until their results have been taken. N and Err of the reads are not
// set. Add returns how many were added: all, or fewer and an error.
func (q *Queue) Add(f *File, reads []Read, firstID uint64) (int, error) {
	return add(q, f, reads, firstID)
}

// AddWrites adds writes of a file, as Add does reads. The buffers must not be changed or released until their results
// have been taken.
func (q *Queue) AddWrites(f *File, writes []Write, firstID uint64) (int, error) {
	return add(q, f, writes, firstID)
}

func add[T any, P operation[T]](q *Queue, f *File, operations []T, firstID uint64) (int, error) {
	defer q.requests.letGo() // C knows of the operations then
	if err := convert[T, P](&q.requests, operations); err != nil || len(operations) == 0 {
		return 0, err
	}
	requests := q.requests.ops
	for at := range requests {
		requests[at].user_data = C.uint64_t(firstID + uint64(at))
	}
	added := C.shim_queue_add(q.handle, f.handle, &requests[0], C.size_t(len(requests)), &q.refused)
	if int(added) < len(requests) {
		return int(added), errorOf(int64(q.refused), C.GoString(C.ringfile_last_error()))
	}
	return len(requests), nil
}

// Wait submits what was added, waits until atLeast of the queue's operations (or all, if there are fewer) have
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

// Close cancels operations that the disk has not started, waits for the rest, and unlocks the goroutine from its OS
// thread.
func (q *Queue) Close() error {
	_, err := check(func() int64 { return int64(C.ringfile_queue_free(q.handle)) })
	if err == nil {
		runtime.UnlockOSThread()
	}
	return err
}
