package ringfile

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMaxInFlightIsBounded(t *testing.T) {
	defer func(before int64) { maxInFlight = before }(maxInFlight)
	for _, wanted := range []int{math.MaxInt, math.MaxInt - share, mostInFlight + 1} {
		SetMaxInFlight(wanted)
		if maxInFlight != mostInFlight {
			t.Fatalf("%d became %d", wanted, maxInFlight)
		}
	}
}

// While every queue is taken, a batch has its memory's address, and C does not know of it yet.
func TestMemoryOfABatchThatWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	file, err := Open(path, Options{})
	must(t, err)
	defer file.Close()
	mapped, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	must(t, err)
	defer syscall.Munmap(mapped)
	memory, err := RegisterMemory(mapped)
	must(t, err)
	const size = 1 << 20
	pool, err := NewPool(size)
	must(t, err)
	defer pool.Close()
	buffer, err := pool.Get(size)
	must(t, err)
	both := []Read{{Buffer: memory.Buffer(), Length: 1}, {Buffer: buffer, Length: 1}, {Buffer: memory.Buffer(), Length: 1}}
	must(t, file.ReadBatch(context.Background(), both))

	taken := cap(queues.free)
	for at := 0; at < taken; at++ {
		queue := <-queues.free
		defer func() { queues.free <- queue }()
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error)
	go func() { over <- file.ReadBatch(ctx, both) }()
	for memory.buffer.uses.Load() == 0 || buffer.uses.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := memory.Unregister(); !errors.Is(err, syscall.EBUSY) || len(memory.Buffer().Bytes()) != 4096 {
		t.Errorf("unregistering: %v", err)
	}
	buffer.Release()
	buffer.Release()
	if _, err := pool.Get(size); buffer.Bytes() != nil || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("the pool has memory: %v", err)
	}
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) || !errors.Is(both[0].Err, syscall.ECANCELED) {
		t.Errorf("cancelled: %v, %v", err, both[0].Err)
	}
	again, err := pool.Get(size)
	must(t, err)
	again.Release()
	must(t, memory.Unregister())
	if err := memory.Unregister(); !errors.Is(err, syscall.EBADF) {
		t.Errorf("twice: %v", err)
	}
}

func TestNilFile(t *testing.T) {
	var none *File
	reads := make([]Read, 1)
	err := none.ReadBatch(context.Background(), reads)
	if !errors.Is(err, syscall.EINVAL) || err != reads[0].Err {
		t.Fatalf("reading: %v, %v", err, reads[0].Err)
	}
	if err := none.Sync(context.Background()); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("syncing: %v", err)
	}
}
