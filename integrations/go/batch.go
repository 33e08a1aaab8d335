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
	flights.once.Do(open)
	if flights.err != nil {
		return flights.err
	}
	select {
	case flights.running <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-flights.running }()
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
		C.ringfile_batch_cancel(flight.c.batch)
		<-flight.ended
	}
	return flight.results(ctx, reads)
}

var maxBatches int64 = 64

// SetMaxBatches sets how many batches may be in flight at once in this process (default: 64); goroutines with further
// batches wait in Go. Once the disk is busy, more batches only use more memory. SetMaxBatches has no effect after the
// first ReadBatch.
func SetMaxBatches(batches int) {
	if batches > 0 {
		atomic.StoreInt64(&maxBatches, int64(batches))
	}
}

// flight is a batch of the C interface, with the channel that reports its end. Flights are reused.
type flight struct {
	c        *C.shim_flight
	ended    chan struct{}
	requests []C.shim_read
}

var flights struct {
	once    sync.Once
	err     error
	running chan struct{} // as many concurrent batches as SetMaxBatches allows
	starts  chan struct{} // as many concurrent starts as there are processors, since each occupies a thread

	lock sync.Mutex
	idle []*flight
}

// open creates what all flights share, once.
func open() {
	bell := C.shim_bell()
	if bell < 0 {
		flights.err = errorOf(int64(bell), "making an eventfd for the ends of batches: "+syscall.Errno(-bell).Error())
		return
	}
	flights.running = make(chan struct{}, atomic.LoadInt64(&maxBatches))
	flights.starts = make(chan struct{}, runtime.GOMAXPROCS(0))
	// Non-blocking, so that the goroutine that reads it is parked in Go's own epoll.
	go collect(os.NewFile(uintptr(bell), "eventfd"))
}

// collect wakes the goroutines whose batches have finished.
func collect(bell *os.File) {
	var rings [8]byte
	for {
		if _, err := bell.Read(rings[:]); err != nil {
			panic("ringfile: reading an eventfd: " + err.Error())
		}
		for c := C.shim_ended(); c != nil; {
			one := cgo.Handle(c.owner).Value().(*flight)
			c = c.next // before the owner may start it again
			one.ended <- struct{}{}
		}
	}
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
	flights.starts <- struct{}{}
	result := C.shim_start(one.c, f.handle, &one.requests[0], C.size_t(len(reads)))
	<-flights.starts
	if result < 0 {
		return errorOf(int64(result), C.GoString(&one.c.text[0]))
	}
	return nil
}

// results gives each read its result, and returns what ReadBatch returns.
func (one *flight) results(ctx context.Context, reads []Read) error {
	if int(one.c.count) != len(reads) {
		return &Error{Errno: syscall.EIO, Text: "the batch has lost results: a defect of the library"}
	}
	var first error
	for at, result := range unsafe.Slice(one.c.results, len(reads)) {
		read := &reads[at]
		read.N, read.Err = int(result.result), nil
		if result.result >= 0 {
			continue
		}
		read.N = 0
		read.Err = errorOf(int64(result.result), C.GoString(C.ringfile_batch_error(one.c.batch, C.size_t(at))))
		if first == nil {
			first = read.Err
		}
		if syscall.Errno(-result.result) == syscall.ECANCELED && ctx.Err() != nil {
			first = ctx.Err()
		}
	}
	return first
}
