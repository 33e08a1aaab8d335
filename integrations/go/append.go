package ringfile

// #include "shim.h"
import "C"

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// AppenderOptions says how an Appender works. The zero value suits most logs.
type AppenderOptions struct {
	// Pool is for records that are not written yet. It needs two blocks for each appender that shares it, and may be
	// closed before the appender. With nil, the appender has a pool of its own.
	Pool *Pool
	// Block is the largest write in bytes, at most 1 GiB; 0 stands for 256 KiB.
	Block int
	// Depth is the most operations in flight, at most 1024; 0 stands for 4.
	Depth int
	// WriteBehind is how many bytes may be appended and not yet written, before Append waits: at least Depth + 1 blocks,
	// the default.
	WriteBehind int64
	// SyncInterval is the least time from the start of one sync to the start of the next, at most one hour. Goroutines
	// that wait meanwhile share the next one.
	SyncInterval time.Duration
	// Recycle keeps the file's content behind the valid length, and overwrites it; the file is not cut. Syncs of a
	// log in a file that was used before, or written with zeros, need not wait for the file system's journal. No record may
	// consist of zeros, and those of an earlier use of the file must differ.
	Recycle bool
	// NoZeros keeps the library from writing up to 4 MiB of zeros behind the log and the file's end, which it does with
	// direct I/O on ext4 and XFS to make small syncs cheaper. Close cuts what is left of them, unless Recycle is set.
	NoZeros bool
}

// Appender appends records of any length to a file, also with direct I/O. Any number of goroutines may use it at once,
// which share syncs. All that wait for it together occupy three OS threads at most: one appends, one flushes, one
// syncs, and the others are parked.
//
// A failed write or sync is final: that call and each later one fail with the same errno, since data may be lost
// although a later sync would succeed. Close the appender and the file, open both again, and check what the file has.
type Appender struct {
	handle         *C.ringfile_appender
	appending      sync.Mutex
	flushes, syncs group
}

var _ io.Closer = (*Appender)(nil)

// OpenAppender opens an appender that continues at valid, the length in bytes that the program knows to be valid: 0 for
// a new file. It cuts the file there and syncs it, and fails with EINVAL if the file is shorter, or not a regular one.
// It blocks an OS thread.
//
// After a crash the file holds at least what a Sync has made durable, and behind that there may be parts of later
// records, and zeros: find the valid length by lengths and checksums in the records. SyncDirectory makes the entry of a
// new file durable. Nothing else may write to the file at or behind valid while the appender is open; the File may be
// closed before.
func OpenAppender(file *File, valid int64, options AppenderOptions) (*Appender, error) {
	if file == nil {
		return nil, &Error{Errno: syscall.EINVAL, Text: "the file is nil"}
	}
	if valid < 0 || options.Block < 0 || options.Depth < 0 || options.WriteBehind < 0 || options.SyncInterval < 0 {
		return nil, &Error{Errno: syscall.EINVAL, Text: "the valid length, or an option of the appender, is negative"}
	}
	var how C.ringfile_appender_options
	how.size = C.size_t(unsafe.Sizeof(how))
	if options.Pool != nil {
		how.pool = options.Pool.handle
	}
	depth := options.Depth
	if depth > 1024 { // what the library would take it for
		depth = 1024
	}
	how.block = C.size_t(options.Block)
	how.write_behind = C.uint64_t(options.WriteBehind)
	how.sync_interval = C.uint64_t(options.SyncInterval.Nanoseconds())
	how.depth = C.uint32_t(depth)
	if options.Recycle {
		how.flags |= C.RINGFILE_APPENDER_RECYCLE
	}
	if options.NoZeros {
		how.flags |= C.RINGFILE_APPENDER_NO_ZEROS
	}
	appender := new(Appender)
	_, err := check(func() int64 {
		return int64(C.ringfile_appender_open(file.handle, C.uint64_t(valid), &how, &appender.handle))
	})
	if err != nil {
		return nil, err
	}
	return appender, nil
}

// Append appends a record, and returns its offset in the file. The record is copied: its memory, which may be Go's,
// belongs to the caller again. The bytes may be in the process only, and are lost if it ends before a Flush, Sync or
// Close that starts later has returned. An empty record appends nothing.
//
// It waits only while too much is appended and not yet written, or while the pool is full.
func (a *Appender) Append(record []byte) (int64, error) {
	// A call that waits would occupy a thread.
	a.appending.Lock()
	defer a.appending.Unlock()
	return a.append(record, 0)
}

// Flush waits until all that was appended before is in the file, where others can read it. The goroutine is parked
// meanwhile. If ctx is done first, Flush returns ctx.Err(), and the writes go on.
func (a *Appender) Flush(ctx context.Context) error {
	return a.flushes.wait(ctx, func() error { return a.settle(C.RINGFILE_APPEND_FLUSH) })
}

// Sync waits until all that was appended before is durable. The goroutine is parked meanwhile; those that wait at the
// same time share one sync. If ctx is done first, Sync returns ctx.Err(), and the sync goes on.
func (a *Appender) Sync(ctx context.Context) error {
	return a.syncs.wait(ctx, func() error { return a.settle(C.RINGFILE_APPEND_SYNC) })
}

// End returns the offset at which the next record will begin.
func (a *Appender) End() (int64, error) { return a.append(nil, 0) }

// Close waits until all that was appended is durable and the file has its exact length, and closes the appender, also
// after an error. It blocks an OS thread. Later calls fail with EBADF.
func (a *Appender) Close() error {
	_, err := check(func() int64 { return int64(C.ringfile_appender_close(a.handle)) })
	return err
}

func (a *Appender) settle(flags C.uint32_t) error {
	_, err := a.append(nil, flags)
	return err
}

func (a *Appender) append(record []byte, flags C.uint32_t) (int64, error) {
	var data unsafe.Pointer
	if len(record) > 0 {
		data = unsafe.Pointer(&record[0])
	}
	return check(func() int64 {
		return int64(C.ringfile_appender_append(a.handle, data, C.size_t(len(record)), flags))
	})
}

// group makes goroutines that wait for the same thing share one call, and so one OS thread.
type group struct {
	lock  sync.Mutex
	calls bool       // whether a goroutine makes the calls
	next  *groupCall // that of the goroutines that came since the last call began; nil if none has
}

type groupCall struct {
	over chan struct{}
	err  error // valid when over is closed
}

// wait waits for a call that begins after wait was called, and returns its error.
func (g *group) wait(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.lock.Lock()
	if g.next == nil {
		g.next = &groupCall{over: make(chan struct{})}
	}
	mine := g.next
	if !g.calls {
		g.calls = true
		go g.call(call)
	}
	g.lock.Unlock()
	select {
	case <-mine.over:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call makes calls until no goroutine waits for one.
func (g *group) call(call func() error) {
	for {
		g.lock.Lock()
		now := g.next
		g.next = nil
		g.calls = now != nil
		g.lock.Unlock()
		if now == nil {
			return
		}
		now.err = call()
		close(now.over)
	}
}
