package ringfile

// #include <errno.h>
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

// ReadBatch carries out all reads, together and in any order, and returns when all of them have finished. Meanwhile the
// goroutine is parked, and occupies no OS thread. Each read has its own N and Err; ReadBatch returns nil if none
// failed, otherwise the error of the first that did.
//
// If ctx is done first, reads that the disk has not started are cancelled, and the others run to their end. ReadBatch
// waits for that, so that the memory belongs to the caller again, and returns ctx.Err() if a read was cancelled.
//
// If it fails as a whole (a closed file, a part outside its buffer, ctx done before the start), nothing was read, and
// each Err says why.
func (f *File) ReadBatch(ctx context.Context, reads []Read) error { return run(ctx, f, reads) }

// WriteBatch carries out all writes, together and in any order, as ReadBatch does reads. Each write has its own N and
// Err; WriteBatch returns nil if none failed, otherwise the error of the first that did.
//
// What was written is durable after a Sync or SyncData that starts after WriteBatch has returned; Durable writes need
// none.
//
// If ctx is done first, writes that the disk has not started are cancelled, and the others run to their end. WriteBatch
// waits for that, and returns ctx.Err() if a write was cancelled. Then the file has all bytes of the writes with a nil
// Err, and none, some or all bytes of the others: write those ranges again, or treat their content as undefined. The
// same holds for writes that failed. If WriteBatch fails as a whole, nothing was written, and each Err says why.
func (f *File) WriteBatch(ctx context.Context, writes []Write) error { return run(ctx, f, writes) }

// run carries out operations of one kind, and parks the goroutine until all have finished.
func run[T any, P operation[T]](ctx context.Context, f *File, operations []T) error {
	started, err := try[T, P](ctx, f, operations)
	if !started {
		reason, is := err.(*Error)
		if !is { // that of ctx
			reason = &Error{Errno: syscall.ECANCELED, Text: "not started: " + err.Error()}
		}
		for at := range operations {
			P(&operations[at]).refuse(reason)
		}
	}
	return err
}

// try is run, but sets no result if it returns false: nothing was started then.
func try[T any, P operation[T]](ctx context.Context, f *File, operations []T) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if len(operations) == 0 {
		return true, nil
	}
	if f == nil {
		return false, &Error{Errno: syscall.EINVAL, Text: "the file is nil"}
	}
	queues.once.Do(open)
	if queues.err != nil {
		return false, queues.err
	}
	shares, err := takeShares(ctx, len(operations))
	if err != nil {
		return false, err
	}
	defer giveBack(shares)
	flight, err := takeFlight()
	if err != nil {
		return false, err
	}
	defer flight.put()
	defer flight.requests.letGo()
	if err = convert[T, P](&flight.requests, operations); err != nil {
		return false, err
	}
	slots, err := flight.fly(ctx, f)
	if err != nil {
		return false, err
	}
	var first error
	for at := range slots {
		err := P(&operations[at]).finish(f, slots[at].result)
		if first == nil {
			first = err
		}
		if slots[at].result == -C.ECANCELED && ctx.Err() != nil {
			first = ctx.Err()
		}
	}
	return true, first
}

// requests are operations for C, with the buffers whose memory they use. They are reused.
type requests struct {
	ops  []C.shim_op
	held []*Buffer // until letGo
}

func (r *requests) letGo() {
	for at, buffer := range r.held {
		buffer.letGo()
		r.held[at] = nil
	}
	r.held = r.held[:0]
}

// convert converts operations for C. It fails if the fields of one are not valid. letGo must follow it in any case.
func convert[T any, P operation[T]](into *requests, operations []T) error {
	into.ops = into.ops[:0]
	var last *Buffer
	for at := range operations {
		wrong := func(why any) error {
			return &Error{Errno: syscall.EINVAL, Text: fmt.Sprintf("operation %d: %s", at, why)}
		}
		if buffer := P(&operations[at]).memory(); buffer != nil && buffer != last {
			if !buffer.hold() {
				return wrong("its buffer was released")
			}
			into.held = append(into.held, buffer)
			last = buffer
		}
		request, err := P(&operations[at]).request()
		if err != nil {
			return wrong(err)
		}
		into.ops = append(into.ops, request)
	}
	return nil
}

var maxInFlight int64 = 128

const mostInFlight = 1 << 20

// SetMaxInFlight sets about how many operations of batches may be in flight at once in this process (default: 128);
// goroutines with further batches wait in Go, in order. A batch of more operations runs alone. More than the device
// takes at once only cost memory and processor time; above 1048576, the number is taken as 1048576. SetMaxInFlight has
// no effect after the first batch, sync or other operation with a context.
func SetMaxInFlight(operations int) {
	if operations > mostInFlight {
		operations = mostInFlight
	}
	if operations > 0 {
		atomic.StoreInt64(&maxInFlight, int64(operations))
	}
}

// share is the number of operations that are counted as one: counting costs as much as a tenth of a read.
const share = 8

// takeShares waits until that many more operations may be in flight, and returns what giveBack takes.
func takeShares(ctx context.Context, operations int) (int, error) {
	wanted := (operations + share - 1) / share
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
	shares chan struct{}          // of the operations that SetMaxInFlight allows
	turn   chan struct{}          // that of the goroutine that takes shares
	free   chan *C.ringfile_queue // those in which no batch is being started
}

// open creates the queues, once.
func open() {
	count := runtime.GOMAXPROCS(0)
	queues.shares = make(chan struct{}, (atomic.LoadInt64(&maxInFlight)+share-1)/share)
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
	requests requests
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

// fly starts the requests, waits until all have finished, and returns their slots, which are valid until put. If ctx is
// done first, it cancels those that have not begun. An error means that nothing was started.
func (one *flight) fly(ctx context.Context, f *File) ([]C.shim_slot, error) {
	count := C.size_t(len(one.requests.ops))
	var queue *C.ringfile_queue
	select {
	case queue = <-queues.free:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var ended *C.shim_flight
	result := C.shim_start(one.c, queue, f.handle, &one.requests.ops[0], count, &ended)
	queues.free <- queue
	wake(ended)
	if result < 0 {
		return nil, errorOf(int64(result), C.GoString(&one.c.text[0]))
	}
	select {
	case <-one.ended:
	case <-ctx.Done():
		C.shim_cancel(one.c, count)
		<-one.ended
	}
	return unsafe.Slice(one.c.slots, count), nil
}
