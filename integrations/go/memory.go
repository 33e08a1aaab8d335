package ringfile

// #include "shim.h"
import "C"

import (
	"sync"
	"syscall"
	"unsafe"
)

// Memory is registered memory of the program's own, such as a page cache.
type Memory struct {
	handle *C.ringfile_memory
	buffer Buffer
	ending sync.Mutex // one Unregister at a time
}

// RegisterMemory registers memory that Go does not manage: a mapping (syscall.Mmap) or C memory (unsafe.Slice of what
// C.malloc returned). Never pass Go's own memory, which the garbage collector may give to something else while the
// kernel still writes to it; RegisterMemory cannot detect this.
//
// The memory still belongs to the program, which may use all parts that no operation uses, and must keep it until
// Unregister has succeeded. Direct writes need parts at aligned addresses (Alignment); a mapping begins at one.
//
// The first operation on each GiB pins its pages (RLIMIT_MEMLOCK). If the kernel refuses that, operations work, and
// cost more. EEXIST: some of the memory is registered already, or belongs to a Pool.
func RegisterMemory(data []byte) (*Memory, error) {
	if len(data) == 0 {
		return nil, &Error{Errno: syscall.EINVAL, Text: "there is no memory to register"}
	}
	memory := &Memory{buffer: Buffer{data: data[:len(data):len(data)]}}
	_, err := check(func() int64 {
		return int64(C.ringfile_memory_register(unsafe.Pointer(&data[0]), C.size_t(len(data)), &memory.handle))
	})
	if err != nil {
		return nil, err
	}
	return memory, nil
}

// Buffer returns all of the memory as a buffer for reads and writes, always the same one. Its Release does nothing.
func (m *Memory) Buffer() *Buffer { return &m.buffer }

// Unregister ends the registration. After success the memory may be unmapped or freed, the buffer is empty, and batches
// that still wait because of SetMaxInFlight fail with EINVAL. Unregister fails with EBUSY while an operation uses some
// of the memory (a batch that begins during this call may then fail with EINVAL), and with EBADF if it succeeded before.
func (m *Memory) Unregister() error {
	m.ending.Lock()
	defer m.ending.Unlock()
	free := m.buffer.uses.CompareAndSwap(0, released)
	if !free && m.buffer.uses.Load() >= 0 {
		return &Error{Errno: syscall.EBUSY, Text: "a batch uses the memory: wait until it has returned"}
	}
	_, err := check(func() int64 { return int64(C.ringfile_memory_unregister(m.handle)) })
	if err != nil && free {
		m.buffer.uses.Store(0)
	}
	return err
}
