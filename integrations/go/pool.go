package ringfile

// #include "shim.h"
import "C"

import (
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Pool is aligned C memory for reads and writes, with a hard limit. Any number of goroutines may use it at once.
type Pool struct {
	handle *C.ringfile_pool
}

// NewPool creates a pool of at most capacity bytes. It takes memory from the system as needed.
func NewPool(capacity int) (*Pool, error) {
	if capacity <= 0 {
		return nil, &Error{Errno: syscall.EINVAL, Text: "the pool's capacity must be above 0"}
	}
	var how C.ringfile_pool_options
	how.size = C.size_t(unsafe.Sizeof(how))
	how.capacity = C.size_t(capacity)
	pool := new(Pool)
	if _, err := check(func() int64 { return int64(C.ringfile_pool_create(&how, &pool.handle)) }); err != nil {
		return nil, err
	}
	return pool, nil
}

// Close closes the pool. Its buffers stay valid until each is released.
func (p *Pool) Close() error {
	_, err := check(func() int64 { return int64(C.ringfile_pool_free(p.handle)) })
	return err
}

// Get returns a buffer of size bytes, which contains zeros or what this process wrote there before. It never blocks; if
// the pool is full, it fails with ENOMEM.
func (p *Pool) Get(size int) (*Buffer, error) {
	if size <= 0 {
		return nil, &Error{Errno: syscall.EINVAL, Text: "the buffer's size must be above 0"}
	}
	buffer := new(Buffer)
	_, err := check(func() int64 {
		return int64(C.ringfile_buffer_get(p.handle, C.size_t(size), &buffer.handle))
	})
	if err != nil {
		return nil, err
	}
	buffer.data = unsafe.Slice((*byte)(C.ringfile_buffer_data(buffer.handle)), size)
	return buffer, nil
}

// Buffer is a piece of a pool's memory, or memory that was registered. The garbage collector does not see it: call
// Release.
type Buffer struct {
	handle *C.ringfile_buffer // nil for registered memory
	data   []byte
	// uses is the number of batches that have the memory's address, which C does not know before they start; released is
	// added when the program gives the memory up.
	uses atomic.Int32
}

const released = math.MinInt32

// Bytes returns the buffer's memory: nil after Release. The slice, and every slice of it, must not be used after
// Release, nor while a read into it is in flight. While a write of it is, its bytes must not change.
func (b *Buffer) Bytes() []byte {
	if b.uses.Load() < 0 {
		return nil
	}
	return b.data
}

// Release returns the memory to the pool: at once, or when the operations on it have finished. A second call does
// nothing, nor does one for registered memory (see Memory.Unregister).
func (b *Buffer) Release() {
	for b.handle != nil {
		uses := b.uses.Load()
		if uses < 0 {
			return
		}
		if b.uses.CompareAndSwap(uses, uses+released) {
			if uses == 0 {
				C.ringfile_buffer_release(b.handle)
			}
			return
		}
	}
}

// hold keeps the memory until letGo. It returns false if the program has given it up.
func (b *Buffer) hold() bool {
	for {
		uses := b.uses.Load()
		if uses < 0 {
			return false
		}
		if b.uses.CompareAndSwap(uses, uses+1) {
			return true
		}
	}
}

func (b *Buffer) letGo() {
	if b.uses.Add(-1) == released { // only a Pool's buffer is released while there are uses
		C.ringfile_buffer_release(b.handle)
	}
}

// part returns the address of a part of the buffer, and false if it does not lie inside the buffer.
func (b *Buffer) part(start, length int) (unsafe.Pointer, bool) {
	if b == nil || start < 0 || length <= 0 || start > len(b.data) || length > len(b.data)-start {
		return nil, false
	}
	return unsafe.Pointer(&b.data[start]), true
}
