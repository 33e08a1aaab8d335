package ringfile

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Read is one read of a batch.
type Read struct {
	// Buffer receives the bytes, from Start on. Two reads in flight must not share bytes of it.
	Buffer *Buffer
	// Start is the position in the buffer, in bytes.
	Start int
	// Length is the number of bytes to read, at least 1.
	Length int
	// Offset is the position in the file, in bytes.
	Offset int64

	// N is set by ReadBatch: the bytes read, fewer than Length only at the end of the file.
	N int
	// Err is set by ReadBatch: nil, or an *Error. Its errno is ECANCELED for a read that was cancelled.
	Err error
}

// request converts a read to the C type. It fails if the read's fields are not valid.
func (r *Read) request(at int) (C.shim_read, error) {
	data, ok := r.Buffer.part(r.Start, r.Length)
	if !ok || r.Offset < 0 {
		return C.shim_read{}, &Error{Errno: syscall.EINVAL, Text: fmt.Sprintf(
			"read %d: its part of the buffer is empty or outside the buffer, or its offset is negative", at)}
	}
	return C.shim_read{data: C.uintptr_t(uintptr(data)), length: C.size_t(r.Length), offset: C.uint64_t(r.Offset)}, nil
}

// ReadBatch carries out all reads, together and in any order, and returns when all of them have finished. Meanwhile the
// goroutine is parked, and occupies no OS thread. Each read has its own N and Err; ReadBatch returns nil if none
// failed, otherwise the error of the first that did.
//
// If ctx is done first, reads that the disk has not started are cancelled, and the others run to their end. ReadBatch
// waits for that, so that the memory belongs to the caller again, and returns ctx.Err() if a read was cancelled.
//
// If it fails as a whole (a closed file, a part outside its buffer, ctx done before the start), nothing was read, and N
// and Err are not set.
func (f *File) ReadBatch(ctx context.Context, reads []Read) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(reads) == 0 {
		return nil
	}
	queues.once.Do(open)
	if queues.err != nil {
		return queues.err
	}
	shares, err := takeShares(ctx, len(reads))
	if err != nil {
		return err
	}
	defer giveBack(shares)
	flight, err := takeFlight()
	if err != nil {
		return err
	}
	defer flight.put()
	if err := flight.start(f, reads); err != nil {
		return err
	}
	select {
	case <-flight.ended:
	case <-ctx.Done():
		C.shim_cancel(flight.c, C.size_t(len(reads)))
		<-flight.ended
	}
	return flight.results(ctx, f, reads)
}

var maxReads int64 = 128

// SetMaxReads sets about how many reads of batches may be in flight at once in this process (default: 128); goroutines
// with further batches wait in Go, in order. A batch of more reads runs alone. More reads than the device takes at once
// only cost memory and processor time. SetMaxReads has no effect after the first ReadBatch.
func SetMaxReads(reads int) {
	if reads > 0 {
		atomic.StoreInt64(&maxReads, int64(reads))
	}
}

// share is the number of reads that are counted as one: counting costs as much as a tenth of a read.
const share = 8

// takeShares waits until that many more reads may be in flight, and returns what giveBack takes.
func takeShares(ctx context.Context, reads int) (int, error) {
	wanted := (reads + share - 1) / share
	if most := cap(queues.shares); wanted > most {
		wanted = most
	}
	// One goroutine at a time: two that had a part each could wait for each other.
	select {
	case queues.turn <- struct{}{}:
		defer func() { <-queues.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for taken := 0; taken < wanted; taken++ {
		select {
		case queues.shares <- struct{}{}:
		case <-ctx.Done():
			giveBack(taken)
			return 0, ctx.Err()
		}
	}
	return wanted, nil
}

func giveBack(shares int) {
	for ; shares > 0; shares-- {
		<-queues.shares
	}
}

// queues are the queues that all goroutines share, as many as there are processors: a start occupies a thread.
var queues struct {
	once   sync.Once
	err    error
	shares chan struct{}          // of the reads that SetMaxReads allows
	turn   chan struct{}          // that of the goroutine that takes shares
	free   chan *C.ringfile_queue // those in which no batch is being started
}

// open creates the queues, once.
func open() {
	count := runtime.GOMAXPROCS(0)
	queues.shares = make(chan struct{}, (atomic.LoadInt64(&maxReads)+share-1)/share)
	queues.turn = make(chan struct{}, 1)
	queues.free = make(chan *C.ringfile_queue, count)
	for len(queues.free) < count {
		var queue *C.ringfile_queue
		var descriptor C.int
		if result := C.shim_queue_create(&queue, &descriptor); result < 0 {
			if len(queues.free) == 0 {
				errno := syscall.Errno(-result)
				queues.err = errorOf(int64(result), "making a queue for batches: "+errno.Error())
			}
			return
		}
		// Non-blocking, so that the goroutine that waits for it is parked in Go's own epoll.
		syscall.SetNonblock(int(descriptor), true)
		signal, err := os.NewFile(uintptr(descriptor), "ringfile queue").SyscallConn()
		if err != nil {
			queues.err = err
			return
		}
		go collect(queue, signal)
		queues.free <- queue
	}
}

// collect wakes the goroutines whose batches have ended while no other batch was started in their queue.
func collect(queue *C.ringfile_queue, signal syscall.RawConn) {
	err := signal.Read(func(uintptr) bool {
		wake(C.shim_collect(queue))
		return false // wait for the next signal
	})
	panic("ringfile: waiting for a queue: " + err.Error())
}

func wake(ended *C.shim_flight) {
	for ended != nil {
		one := cgo.Handle(ended.owner).Value().(*flight)
		ended = ended.next // before the owner may start it again
		one.ended <- struct{}{}
	}
}

// flight is a batch in a queue, with the channel that reports its end. Flights are reused.
type flight struct {
	c        *C.shim_flight
	ended    chan struct{}
	requests []C.shim_read
}

var flights struct {
	lock sync.Mutex
	idle []*flight
}

func takeFlight() (*flight, error) {
	flights.lock.Lock()
	if last := len(flights.idle) - 1; last >= 0 {
		one := flights.idle[last]
		flights.idle = flights.idle[:last]
		flights.lock.Unlock()
		return one, nil
	}
	flights.lock.Unlock()
	one := &flight{ended: make(chan struct{}, 1)}
	handle := cgo.NewHandle(one)
	if one.c = C.shim_flight_new(C.uintptr_t(handle)); one.c == nil {
		handle.Delete()
		return nil, &Error{Errno: syscall.ENOMEM, Text: "no memory for a batch"}
	}
	return one, nil
}

func (one *flight) put() {
	flights.lock.Lock()
	flights.idle = append(flights.idle, one)
	flights.lock.Unlock()
}

func (one *flight) start(f *File, reads []Read) error {
	one.requests = one.requests[:0]
	for at := range reads {
		request, err := reads[at].request(at)
		if err != nil {
			return err
		}
		one.requests = append(one.requests, request)
	}
	queue := <-queues.free
	var ended *C.shim_flight
	result := C.shim_start(one.c, queue, f.handle, &one.requests[0], C.size_t(len(reads)), &ended)
	queues.free <- queue
	wake(ended)
	if result < 0 {
		return errorOf(int64(result), C.GoString(&one.c.text[0]))
	}
	return nil
}

// results gives each read its result, and returns what ReadBatch returns.
func (one *flight) results(ctx context.Context, f *File, reads []Read) error {
	var first error
	for at, slot := range unsafe.Slice(one.c.slots, len(reads)) {
		read := &reads[at]
		read.N, read.Err = int(slot.result), nil
		if slot.result >= 0 {
			continue
		}
		errno := syscall.Errno(-slot.result)
		read.N = 0
		read.Err = errorOf(int64(slot.result), fmt.Sprintf(
			"reading %d bytes at %d of %s: %s", read.Length, read.Offset, f.path, errno))
		if first == nil {
			first = read.Err
		}
		if errno == syscall.ECANCELED && ctx.Err() != nil {
			first = ctx.Err()
		}
	}
	return first
}
