package ringfile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ringfile"
)

const (
	block  = 4096
	blocks = 2048
	tail   = 777 // bytes after the last whole block
)

// content returns the file's bytes from an offset on: each 8 bytes are derived from their own offset.
func content(offset int64, length int) []byte {
	first := offset / 8
	words := make([]byte, 0, length+16)
	for word := first; len(words) < length+16; word++ {
		words = binary.LittleEndian.AppendUint64(words, (uint64(word)+1)*0x9E3779B97F4A7C15)
	}
	skip := int(offset - first*8)
	return words[skip : skip+length]
}

func makeFile(t testing.TB) *ringfile.File {
	t.Helper()
	folder, err := os.MkdirTemp(os.Getenv("RINGFILE_TEST_FOLDER"), "ringfile-go-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	path := filepath.Join(folder, "file")
	must(t, os.WriteFile(path, content(0, blocks*block+tail), 0o600))
	file, err := ringfile.Open(path, ringfile.Options{Direct: true})
	must(t, err)
	t.Cleanup(func() { must(t, file.Close()) })
	return file
}

func makePool(t testing.TB, capacity int) *ringfile.Pool {
	t.Helper()
	pool, err := ringfile.NewPool(capacity)
	must(t, err)
	t.Cleanup(func() { must(t, pool.Close()) })
	return pool
}

func get(t testing.TB, pool *ringfile.Pool, size int) *ringfile.Buffer {
	t.Helper()
	buffer, err := pool.Get(size)
	must(t, err)
	t.Cleanup(buffer.Release)
	return buffer
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check compares the result of a successful read with the file's content.
func check(read *ringfile.Read) error {
	want := content(read.Offset, read.Length)
	if size := int64(blocks*block + tail); read.Offset+int64(read.Length) > size {
		want = want[:size-read.Offset]
	}
	if read.Err != nil || read.N != len(want) {
		return fmt.Errorf("offset %d: %d bytes of %d, %v", read.Offset, read.N, len(want), read.Err)
	}
	if !bytes.Equal(read.Buffer.Bytes()[read.Start:read.Start+read.N], want) {
		return fmt.Errorf("offset %d: wrong bytes", read.Offset)
	}
	return nil
}

func TestReadBatch(t *testing.T) {
	file, pool := makeFile(t), makePool(t, 1<<20)
	buffer := get(t, pool, 8*block)
	size, err := file.Size()
	must(t, err)
	if size != blocks*block+tail {
		t.Fatalf("the size is %d", size)
	}
	reads := []ringfile.Read{
		{Buffer: buffer, Start: 0, Length: block, Offset: 5 * block},
		{Buffer: buffer, Start: block, Length: 2 * block, Offset: 1000 * block},
		{Buffer: buffer, Start: 3*block + 1, Length: 999, Offset: 12345},
		{Buffer: buffer, Start: 5 * block, Length: block, Offset: blocks * block},
		{Buffer: buffer, Start: 7 * block, Length: block, Offset: blocks*block + tail - 1},
	}
	for round := 0; round < 10; round++ {
		must(t, file.ReadBatch(context.Background(), reads))
		for at := range reads {
			must(t, check(&reads[at]))
		}
	}
	past := []ringfile.Read{{Buffer: buffer, Length: block, Offset: 2 * blocks * block}}
	must(t, file.ReadBatch(context.Background(), past))
	if past[0].N != 0 || past[0].Err != nil {
		t.Fatalf("past the end: %d, %v", past[0].N, past[0].Err)
	}
	must(t, file.ReadBatch(context.Background(), nil))
}

func TestErrors(t *testing.T) {
	file, pool := makeFile(t), makePool(t, 1<<20)
	ctx := context.Background()
	_, err := ringfile.Open("/does/not/exist", ringfile.Options{})
	var said *ringfile.Error
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &said) || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Fatalf("a missing file: %v", err)
	}
	if _, err := pool.Get(1 << 30); !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("more than the pool has: %v", err)
	}
	buffer := get(t, pool, block)
	for _, wrong := range []ringfile.Read{
		{Length: block},
		{Buffer: buffer},
		{Buffer: buffer, Length: block + 1},
		{Buffer: buffer, Start: 1, Length: block},
		{Buffer: buffer, Start: -1, Length: 1},
		{Buffer: buffer, Start: block + 1, Length: 1},
		{Buffer: buffer, Length: block, Offset: -1},
	} {
		reads := []ringfile.Read{{Buffer: buffer, Length: block, N: 7}, wrong}
		err := file.ReadBatch(ctx, reads)
		if !errors.Is(err, syscall.EINVAL) || reads[0].Err != err || reads[0].N != 0 {
			t.Fatalf("%+v: %v", wrong, err)
		}
	}
	released, err := pool.Get(block)
	must(t, err)
	released.Release()
	released.Release()
	err = file.ReadBatch(ctx, []ringfile.Read{{Buffer: released, Length: block}})
	if released.Bytes() != nil || !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a released buffer: %v", err)
	}
	// One read fails, and no other.
	folder, err := ringfile.Open(t.TempDir(), ringfile.Options{})
	must(t, err)
	reads := []ringfile.Read{{Buffer: buffer, Length: block}}
	err = folder.ReadBatch(ctx, reads)
	if !errors.Is(err, syscall.EISDIR) || !errors.Is(reads[0].Err, syscall.EISDIR) || reads[0].N != 0 {
		t.Fatalf("reading a folder: %v", err)
	}
	must(t, folder.Close())
	other := makeOpen(t)
	must(t, other.Close())
	if err := other.ReadBatch(ctx, []ringfile.Read{{Buffer: buffer, Length: block}}); !errors.Is(err, syscall.EBADF) {
		t.Fatalf("a closed file: %v", err)
	}
	if err := other.Close(); !errors.Is(err, syscall.EBADF) {
		t.Fatalf("closed twice: %v", err)
	}
}

func makeOpen(t *testing.T) *ringfile.File {
	path := filepath.Join(t.TempDir(), "other")
	must(t, os.WriteFile(path, []byte("content"), 0o600))
	file, err := ringfile.Open(path, ringfile.Options{})
	must(t, err)
	return file
}

// A read of an empty pipe ends only when it is cancelled, or when data is written to the pipe.
func TestCancel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(path, 0o600))
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer writer.Close()
	pipe, err := ringfile.Open(path, ringfile.Options{})
	must(t, err)
	pool := makePool(t, 1<<20)
	buffer := get(t, pool, 2*block)
	reads := []ringfile.Read{
		{Buffer: buffer, Length: 7},
		{Buffer: buffer, Start: block, Length: 7},
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		// Time for the reads to be in flight.
		time.Sleep(20 * time.Millisecond)
		cancel()
	}()
	if err := pipe.ReadBatch(ctx, reads); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	for at := range reads {
		if reads[at].N != 0 || !errors.Is(reads[at].Err, syscall.ECANCELED) {
			t.Fatalf("read %d: %d, %v", at, reads[at].N, reads[at].Err)
		}
	}
	reads[0].N = 5
	reads[0].Err = nil
	err = pipe.ReadBatch(ctx, reads)
	if !errors.Is(err, context.Canceled) || !errors.Is(reads[0].Err, syscall.ECANCELED) || reads[0].N != 0 {
		t.Fatalf("cancelled before: %v, %v", err, reads[0].Err)
	}
	// The memory is free again, and no cancelled read takes data that arrives now.
	_, err = writer.WriteString("content")
	must(t, err)
	must(t, pipe.ReadBatch(context.Background(), reads[:1]))
	if reads[0].N != 7 || string(buffer.Bytes()[:7]) != "content" {
		t.Fatalf("%d bytes: %q", reads[0].N, buffer.Bytes()[:7])
	}
	must(t, pipe.Close())
}

// The contexts of these batches end at random times: each read must be complete and right, or cancelled.
func TestCancelAtAnyTime(t *testing.T) {
	file, pool := makeFile(t), makePool(t, 32<<20)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	for worker := int64(0); worker < 64; worker++ {
		all.Add(1)
		go func(random *rand.Rand) {
			defer all.Done()
			buffer, err := pool.Get(32 * block)
			if err != nil {
				t.Error(err)
				return
			}
			defer buffer.Release()
			for round := 0; round < 20; round++ {
				reads := randomReads(random, buffer, 32)
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.Intn(2000))*time.Microsecond)
				err := file.ReadBatch(ctx, reads)
				cancel()
				for at := range reads {
					if wrong := check(&reads[at]); wrong != nil && !errors.Is(reads[at].Err, syscall.ECANCELED) {
						t.Error(wrong)
					} else if wrong != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v, and the batch said %v", wrong, err)
					}
				}
			}
		}(rand.New(rand.NewSource(seed + worker)))
	}
	all.Wait()
}

func randomReads(random *rand.Rand, buffer *ringfile.Buffer, count int) []ringfile.Read {
	reads := make([]ringfile.Read, count)
	for at := range reads {
		reads[at] = ringfile.Read{Buffer: buffer, Start: at * block, Length: block, Offset: random.Int63n(blocks) * block}
	}
	return reads
}

// 1000 goroutines have a batch each, and the process needs no more threads than for a few goroutines.
func TestManyGoroutines(t *testing.T) {
	const goroutines, rounds, batch = 1000, 8, 32
	file, pool := makeFile(t), makePool(t, goroutines*batch*block*2)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	begin := make(chan struct{})
	for worker := int64(0); worker < goroutines; worker++ {
		all.Add(1)
		go func(random *rand.Rand) {
			defer all.Done()
			buffer, err := pool.Get(batch * block)
			if err != nil {
				t.Error(err)
				return
			}
			defer buffer.Release()
			<-begin
			for round := 0; round < rounds; round++ {
				reads := randomReads(random, buffer, batch)
				if err := file.ReadBatch(context.Background(), reads); err != nil {
					t.Error(err)
					return
				}
				for at := range reads {
					if err := check(&reads[at]); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}(rand.New(rand.NewSource(seed + worker)))
	}
	over := make(chan struct{})
	go func() {
		all.Wait()
		close(over)
	}()
	close(begin)
	most := 0
	for running := true; running; {
		select {
		case <-over:
			running = false
		case <-time.After(time.Millisecond):
			if now := threads(t); now > most {
				most = now
			}
		}
	}
	// There are Go's own threads, ringfile's, and its workers if there is no io_uring, but none for each batch. While a
	// thread is in a C call and is preempted, Go starts another one, which happens often on a busy machine.
	limit := 8*runtime.GOMAXPROCS(0) + goroutines/4
	t.Logf("at most %d threads, allowed %d", most, limit)
	if most > limit {
		t.Errorf("%d threads", most)
	}
}

// A batch of more reads than may be in flight at once runs alone.
func TestLargeBatch(t *testing.T) {
	const reads = 1000
	file, pool := makeFile(t), makePool(t, 2*reads*block)
	large := randomReads(rand.New(rand.NewSource(2)), get(t, pool, reads*block), reads)
	must(t, file.ReadBatch(context.Background(), large))
	for at := range large {
		must(t, check(&large[at]))
	}
}

func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	must(t, err)
	return len(entries)
}

func TestQueue(t *testing.T) {
	const depth, total = 16, 2000
	file, pool := makeFile(t), makePool(t, 1<<20)
	buffer := get(t, pool, depth*block)
	queue, err := ringfile.NewQueue(depth)
	must(t, err)
	random := rand.New(rand.NewSource(1))
	reads := randomReads(random, buffer, depth)
	added, err := queue.Add(file, reads, 0)
	must(t, err)
	results := make([]ringfile.Result, depth)
	for ended := 0; ended < total; {
		taken, err := queue.Wait(results, 1)
		must(t, err)
		for _, result := range results[:taken] {
			must(t, result.Err())
			read := &reads[result.ID]
			read.N = int(result.Result)
			must(t, check(read))
			ended++
			if added < total {
				read.Offset = random.Int63n(blocks) * block
				one, err := queue.Add(file, reads[result.ID:result.ID+1], result.ID)
				must(t, err)
				added += one
			}
		}
	}
	if added != total {
		t.Fatalf("%d were added", added)
	}
	if taken, err := queue.Wait(results, 1); taken != 0 || err != nil {
		t.Fatalf("an empty queue: %d, %v", taken, err)
	}
	if _, err := queue.Wait(nil, 1); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("no room: %v", err)
	}
	if n, err := queue.Add(file, []ringfile.Read{{}}, 0); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a read of nothing: %v", err)
	}
	elsewhere := make(chan error)
	go func() {
		_, err := queue.Add(file, reads[:1], 0)
		elsewhere <- err
	}()
	if err := <-elsewhere; !errors.Is(err, syscall.EPERM) {
		t.Fatalf("another thread: %v", err)
	}
	must(t, queue.Close())
	if _, err := ringfile.NewQueue(0); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("no depth: %v", err)
	}
}
