package ringfile

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
)

// operation is a pointer to what a batch and a queue can carry out: a Read, a Write or a control.
type operation[T any] interface {
	*T
	// memory returns the buffer, nil if there is none.
	memory() *Buffer
	// request returns the operation for C, and nil or what is wrong with its fields.
	request() (C.shim_op, error)
	// finish stores the result of C, and returns its error.
	finish(f *File, result C.int64_t) error
	// refuse stores why the operation was not started.
	refuse(reason *Error)
}

// Read is one read of a batch.
type Read struct {
	// Buffer receives the bytes, from Start on. Two operations in flight must not share bytes of it.
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

func (r *Read) memory() *Buffer { return r.Buffer }

func (r *Read) request() (C.shim_op, error) {
	return transfer(C.RINGFILE_OP_READ, r.Buffer, r.Start, r.Length, r.Offset)
}

func (r *Read) finish(f *File, result C.int64_t) error {
	r.N, r.Err = transferred(result, "reading", f, r.Length, r.Offset)
	return r.Err
}

func (r *Read) refuse(reason *Error) { r.N, r.Err = 0, reason }

// WriteMode is what a write promises beyond having been carried out.
type WriteMode int

const (
	// Plain writes are durable after a later Sync or SyncData.
	Plain WriteMode = iota
	// Durable writes are on stable storage when they have finished.
	Durable
	// Atomic writes are in the file as a whole or not at all after a power cut. They are not durable by themselves.
	// They need direct I/O, a length that is a power of two within AtomicLimits, and an offset that is a multiple of
	// it. Otherwise nothing is written, and the errno is EINVAL, or EOPNOTSUPP if the file does not support them.
	Atomic
)

// Write is one write of a batch.
type Write struct {
	// Buffer has the bytes, from Start on, which must not change while the write is in flight.
	Buffer *Buffer
	// Start is the position in the buffer, in bytes.
	Start int
	// Length is the number of bytes to write, at least 1. If I/O is direct, it is a multiple of what Alignment says, as
	// is Offset.
	Length int
	// Offset is the position in the file, in bytes. The file grows to hold what is written. The order of writes that
	// overlap and are in flight together is not defined.
	Offset int64
	// Mode is Plain, Durable or Atomic.
	Mode WriteMode

	// N is set by WriteBatch: Length, or 0 after an error.
	N int
	// Err is set by WriteBatch: nil, or an *Error. Its errno is ECANCELED for a write that was cancelled. After an
	// error, none, some or all of the bytes may be in the file, unless the write was atomic.
	Err error
}

func (w *Write) memory() *Buffer { return w.Buffer }

func (w *Write) request() (C.shim_op, error) {
	var kind C.uint32_t
	switch w.Mode {
	case Plain:
		kind = C.RINGFILE_OP_WRITE
	case Durable:
		kind = C.RINGFILE_OP_WRITE_DURABLE
	case Atomic:
		kind = C.RINGFILE_OP_WRITE_ATOMIC
	default:
		return C.shim_op{}, fmt.Errorf("the mode %d does not exist", w.Mode)
	}
	return transfer(kind, w.Buffer, w.Start, w.Length, w.Offset)
}

func (w *Write) finish(f *File, result C.int64_t) error {
	w.N, w.Err = transferred(result, "writing", f, w.Length, w.Offset)
	if failed, is := w.Err.(*Error); is && failed.Errno == syscall.EINVAL && f.IsDirect() {
		bytes, memory := f.Alignment()
		failed.Text += fmt.Sprintf("; direct writes need an offset and a length that are multiples of %d, and an "+
			"address that is a multiple of %d", bytes, memory)
	}
	return w.Err
}

func (w *Write) refuse(reason *Error) { w.N, w.Err = 0, reason }

// transfer returns a read or a write for C.
func transfer(kind C.uint32_t, buffer *Buffer, start, length int, offset int64) (C.shim_op, error) {
	data, ok := buffer.part(start, length)
	if !ok || offset < 0 {
		return C.shim_op{}, errors.New("its part of the buffer is empty or outside it, or its offset is negative")
	}
	address := C.uintptr_t(uintptr(data))
	return C.shim_op{kind: kind, data: address, length: C.uint64_t(length), offset: C.uint64_t(offset)}, nil
}

// transferred returns the number of bytes of a read or a write, and its error.
func transferred(result C.int64_t, doing string, f *File, length int, offset int64) (int, error) {
	if result >= 0 {
		return int(result), nil
	}
	return 0, errorOf(int64(result), fmt.Sprintf("%s %d bytes at %d of %s: %s", doing, length, offset, f.path,
		syscall.Errno(-result)))
}

// control is an operation that moves no data.
type control struct {
	what           string // what is being done to the file, for errors
	kind, flags    C.uint32_t
	offset, length int64
}

func (c *control) memory() *Buffer { return nil }

func (c *control) request() (C.shim_op, error) {
	if c.offset < 0 || c.length < 0 {
		return C.shim_op{}, fmt.Errorf("%s the file: the offset or the length is negative", c.what)
	}
	return C.shim_op{kind: c.kind, flags: c.flags, offset: C.uint64_t(c.offset), length: C.uint64_t(c.length)}, nil
}

func (c *control) finish(f *File, result C.int64_t) error {
	if result >= 0 {
		return nil
	}
	return errorOf(int64(result), fmt.Sprintf("%s %s: %s", c.what, f.path, syscall.Errno(-result)))
}

func (c *control) refuse(*Error) {} // the caller gets the error
