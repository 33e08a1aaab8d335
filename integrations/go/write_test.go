package ringfile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"ringfile"
)

var background = context.Background()

// makeWritable opens a new file with these options as well, and returns its path.
func makeWritable(t testing.TB, options ringfile.Options) (*ringfile.File, string) {
	t.Helper()
	folder, err := os.MkdirTemp(os.Getenv("RINGFILE_TEST_FOLDER"), "ringfile-go-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	path := filepath.Join(folder, "file")
	options.Write, options.CreateNew = true, true
	file, err := ringfile.Open(path, options)
	must(t, err)
	t.Cleanup(func() { must(t, file.Close()) })
	return file, path
}

func expectContent(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if len(got) != len(want) {
		t.Fatalf("%d bytes instead of %d", len(got), len(want))
	}
	for at := range got {
		if got[at] != want[at] {
			t.Fatalf("the first wrong byte is at %d", at)
		}
	}
}

func TestWriteBatch(t *testing.T) {
	for _, direct := range []bool{true, false} {
		file, path := makeWritable(t, ringfile.Options{Direct: direct})
		buffer := get(t, makePool(t, 1<<20), 8*block)
		copy(buffer.Bytes(), content(0, 8*block))
		// The file grows, out of order, with a hole at 2 * block.
		must(t, file.WriteBatch(background, nil))
		writes := []ringfile.Write{
			{Buffer: buffer, Start: 4 * block, Length: 4 * block, Offset: 4 * block},
			{Buffer: buffer, Start: 0, Length: block, Offset: 0, Mode: ringfile.Durable},
			{Buffer: buffer, Start: block, Length: block, Offset: block},
			{Buffer: buffer, Start: 3 * block, Length: block, Offset: 3 * block},
		}
		for round := 0; round < 10; round++ {
			must(t, file.WriteBatch(background, writes))
			for at := range writes {
				if one := &writes[at]; one.N != one.Length || one.Err != nil {
					t.Fatalf("write %d: %d bytes, %v", at, one.N, one.Err)
				}
			}
		}
		want := content(0, 8*block)
		copy(want[2*block:], make([]byte, block))
		expectContent(t, path, want)
		must(t, file.SyncData(background))
		// One batch after another: the later write wins.
		copy(buffer.Bytes(), content(777, block))
		must(t, file.WriteBatch(background, writes[1:2]))
		expectContent(t, path, append(content(777, block), want[block:]...))
		if !direct { // any offset and length
			copy(buffer.Bytes(), content(5, 1001))
			odd := []ringfile.Write{{Buffer: buffer, Start: 2, Length: 999, Offset: 12345}}
			must(t, file.WriteBatch(background, odd))
			copy(want, content(777, block))
			copy(want[12345:], content(7, 999))
			expectContent(t, path, want)
		}
	}
}

func TestReadAtAndWriteAt(t *testing.T) {
	for _, direct := range []bool{true, false} {
		file, path := makeWritable(t, ringfile.Options{Direct: direct})
		// At every address, and in more than one piece of 1 MiB.
		want := content(0, 3<<20+block)
		for _, shift := range []int{0, 1, 8, 4095} {
			memory := append(make([]byte, shift), want...)
			must(t, file.Truncate(background, 0))
			if n, err := file.WriteAt(memory[shift:], 0); n != len(want) || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
			expectContent(t, path, want)
			for at := range memory {
				memory[at] = 0
			}
			n, err := file.ReadAt(memory[shift:], 0)
			if n != len(want) || err != nil || !bytes.Equal(memory[shift:], want) {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		size := int64(len(want))
		must(t, iotest.TestReader(io.NewSectionReader(file, 4095, 5000), want[4095:4095+5000]))
		piece := make([]byte, block)
		if n, err := file.ReadAt(piece, size-9); n != 9 || err != io.EOF || !bytes.Equal(piece[:9], want[size-9:]) {
			t.Fatalf("at the end: %d, %v", n, err)
		}
		if n, err := file.ReadAt(piece, size); n != 0 || err != io.EOF {
			t.Fatalf("past the end: %d, %v", n, err)
		}
		for _, call := range []func([]byte, int64) (int, error){file.ReadAt, file.WriteAt} {
			if n, err := call(piece, -1); n != 0 || !errors.Is(err, syscall.EINVAL) {
				t.Fatalf("a negative offset: %d, %v", n, err)
			}
			if n, err := call(nil, 0); n != 0 || err != nil {
				t.Fatalf("nothing: %d, %v", n, err)
			}
		}
		if !file.IsDirect() {
			continue
		}
		// Nothing is written, not even whole pieces.
		must(t, file.Truncate(background, 0))
		multiple, _ := file.Alignment()
		for _, wrong := range []struct{ length, offset int64 }{{2<<20 + 1, 0}, {block, 1}} {
			n, err := file.WriteAt(append([]byte{0}, want[:wrong.length]...)[1:], wrong.offset)
			if n != 0 || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), fmt.Sprint(multiple)) {
				t.Fatalf("%+v: %d, %v", wrong, n, err)
			}
		}
		expectContent(t, path, nil)
	}
}

func TestOpenOptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	defer syscall.Umask(syscall.Umask(0o027))
	for _, wrong := range []ringfile.Options{{Create: true}, {CreateNew: true}, {Truncate: true}} {
		if _, err := ringfile.Open(path, wrong); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("%+v: %v", wrong, err)
		}
	}
	if _, err := ringfile.Open(path, ringfile.Options{Write: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a missing file: %v", err)
	}
	open := func(options ringfile.Options, size int64, mode fs.FileMode) {
		t.Helper()
		file, err := ringfile.Open(path, options)
		must(t, err)
		defer file.Close()
		info, err := os.Stat(path)
		must(t, err)
		if info.Size() != size || info.Mode() != mode {
			t.Fatalf("%+v: %d bytes, %v", options, info.Size(), info.Mode())
		}
		_, err = file.WriteAt([]byte("content"), 0)
		must(t, err)
	}
	open(ringfile.Options{Write: true, Create: true}, 0, 0o640)
	open(ringfile.Options{Write: true}, 7, 0o640)
	open(ringfile.Options{Write: true, Create: true, Permissions: 0o777}, 7, 0o640)
	open(ringfile.Options{Write: true, Truncate: true}, 0, 0o640)
	if _, err := ringfile.Open(path, ringfile.Options{Write: true, CreateNew: true}); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("an existing file: %v", err)
	}
	if _, err := ringfile.Open(path, ringfile.Options{Truncate: true}); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("cut without Write: %v", err)
	}
	expectContent(t, path, []byte("content"))
	must(t, os.Remove(path))
	open(ringfile.Options{Write: true, CreateNew: true, Permissions: 0o777}, 0, 0o750)
}

func TestSyncsAndSizes(t *testing.T) {
	file, path := makeWritable(t, ringfile.Options{})
	_, err := file.WriteAt(content(0, 4*block), 0)
	must(t, err)
	must(t, file.SyncRange(background, block, block, false))
	must(t, file.SyncRange(background, 0, 0, true))
	must(t, file.Sync(background))
	must(t, file.SyncData(background))
	must(t, ringfile.SyncDirectory(filepath.Dir(path)))
	if err := ringfile.SyncDirectory(path + "/none"); !errors.Is(err, syscall.ENOTDIR) {
		t.Fatalf("no directory: %v", err)
	}
	expectSize := func(want int64) {
		t.Helper()
		if size, err := file.Size(); size != want || err != nil {
			t.Fatalf("%d bytes instead of %d, %v", size, want, err)
		}
	}
	must(t, file.Truncate(background, 3*block))
	expectSize(3 * block)
	expectContent(t, path, content(0, 3*block))
	switch err := file.Allocate(background, ringfile.AllocateExtend, 0, 5*block); {
	case errors.Is(err, syscall.EOPNOTSUPP):
		t.Log("no fallocate here")
	default:
		must(t, err)
		expectSize(5 * block)
		must(t, file.Allocate(background, ringfile.AllocateKeepSize, 0, 9*block))
		expectSize(5 * block)
		must(t, file.Allocate(background, ringfile.AllocatePunchHole, block, block))
		expectContent(t, path, append(append(content(0, block), make([]byte, block)...), append(content(2*block, block),
			make([]byte, 2*block)...)...))
		if err := file.Allocate(background, 99, 0, block); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("an unknown mode: %v", err)
		}
	}
	if bytes, memory := file.Alignment(); bytes != 1 || memory != 1 {
		t.Fatalf("buffered: %d, %d", bytes, memory)
	}
	if shortest, longest := file.AtomicLimits(); shortest != 0 || longest != 0 {
		t.Fatalf("buffered: %d, %d", shortest, longest)
	}
	for _, wrong := range []error{
		file.Truncate(background, -1), file.SyncRange(background, -1, 0, true), file.SyncRange(background, 0, -1, true),
		file.Allocate(background, ringfile.AllocateExtend, -1, 1),
	} {
		if !errors.Is(wrong, syscall.EINVAL) {
			t.Fatalf("a negative number: %v", wrong)
		}
	}
	before, err := file.Size()
	must(t, err)
	ended, cancel := context.WithCancel(background)
	cancel()
	for _, err := range []error{
		file.Sync(ended), file.SyncData(ended), file.SyncRange(ended, 0, 0, true), file.Truncate(ended, 0),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("after the context: %v", err)
		}
	}
	expectSize(before)

	// The errors of a pipe show that these reach the kernel.
	pipe, err := ringfile.Open(makePipe(t), ringfile.Options{Write: true})
	must(t, err)
	defer pipe.Close()
	for _, err := range []error{
		pipe.Sync(background), pipe.SyncData(background), pipe.Truncate(background, 1),
		pipe.SyncRange(background, 0, 0, false),
	} {
		refused := errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ESPIPE) // a pipe has no ranges
		if !refused || !strings.Contains(err.Error(), "/pipe: ") {
			t.Fatalf("a pipe: %v", err)
		}
	}
}

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}

func makePipe(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(path, 0o600))
	return path
}

func TestWriteErrors(t *testing.T) {
	file, path := makeWritable(t, ringfile.Options{Direct: true})
	buffer := get(t, makePool(t, 1<<20), 2*block)
	good := ringfile.Write{Buffer: buffer, Length: block, N: 7}
	for _, wrong := range []ringfile.Write{
		{Length: block},
		{Buffer: buffer},
		{Buffer: buffer, Length: 2*block + 1},
		{Buffer: buffer, Start: -1, Length: 1},
		{Buffer: buffer, Length: block, Offset: -1},
		{Buffer: buffer, Length: block, Mode: 3},
	} {
		writes := []ringfile.Write{good, wrong}
		err := file.WriteBatch(background, writes)
		if !errors.Is(err, syscall.EINVAL) || writes[0].Err != err || writes[0].N != 0 {
			t.Fatalf("%+v: %v", wrong, err)
		}
	}
	released, err := makePool(t, 1<<20).Get(block)
	must(t, err)
	released.Release()
	if err := file.WriteBatch(background, blockWrites(released, 1, 0)); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a released buffer: %v", err)
	}
	expectContent(t, path, nil)

	// One write of a batch fails, and no other.
	if file.IsDirect() {
		multiple, _ := file.Alignment()
		writes := []ringfile.Write{good, {Buffer: buffer, Start: block, Length: block - 1, Offset: block, N: 7}}
		err := file.WriteBatch(background, writes)
		says := fmt.Sprint("multiples of ", multiple)
		if !errors.Is(err, syscall.EINVAL) || err != writes[1].Err || !strings.Contains(err.Error(), says) {
			t.Fatalf("a length that is not aligned: %v", err)
		}
		if writes[0].N != block || writes[0].Err != nil || writes[1].N != 0 || fileSize(t, path) != block {
			t.Fatalf("%+v", writes)
		}
	}
	// No file system accepts 3 blocks as an atomic write.
	three := get(t, makePool(t, 1<<20), 3*block)
	err = file.WriteBatch(background, []ringfile.Write{
		{Buffer: three, Length: 3 * block, Offset: 3 << 20, Mode: ringfile.Atomic},
	})
	if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP) || fileSize(t, path) >= 3<<20 {
		t.Fatalf("an atomic write: %v", err)
	}
	if least, most := file.AtomicLimits(); least <= block && block <= most {
		must(t, file.WriteBatch(background, []ringfile.Write{{Buffer: buffer, Length: block, Mode: ringfile.Atomic}}))
	}

	full, err := ringfile.Open("/dev/full", ringfile.Options{Write: true})
	must(t, err)
	writes := []ringfile.Write{good, {Buffer: buffer, Start: block, Length: 1}}
	err = full.WriteBatch(background, writes)
	if !errors.Is(err, syscall.ENOSPC) || !errors.Is(writes[1].Err, syscall.ENOSPC) || writes[0].N != 0 {
		t.Fatalf("a full device: %v", err)
	}
	if n, err := full.WriteAt(make([]byte, 9), 0); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a full device: %d, %v", n, err)
	}
	must(t, full.Close())

	other := makeOpen(t)
	err = other.WriteBatch(background, blockWrites(buffer, 1, 0))
	if !errors.Is(err, syscall.EBADF) {
		t.Fatalf("a file that is open for reading: %v", err)
	}
	if n, err := other.WriteAt([]byte("x"), 0); n != 0 || !errors.Is(err, syscall.EBADF) {
		t.Fatalf("a file that is open for reading: %d, %v", n, err)
	}
	if err := other.Truncate(background, 0); err == nil {
		t.Fatal("a file that is open for reading was cut")
	}
	if size, err := other.Size(); size != int64(len("content")) || err != nil {
		t.Fatalf("%d bytes, %v", size, err)
	}
	must(t, other.Close())
	_, atErr := other.WriteAt([]byte("x"), 0)
	_, readErr := other.ReadAt(make([]byte, 1), 0)
	for _, err := range []error{
		other.WriteBatch(background, blockWrites(buffer, 1, 0)), atErr, readErr,
		other.Sync(background), other.SyncRange(background, 0, 0, false), other.Truncate(background, 0),
	} {
		if !errors.Is(err, syscall.EBADF) {
			t.Fatalf("a closed file: %v", err)
		}
	}
	if bytes, memory := other.Alignment(); bytes != 1 || memory != 1 {
		t.Fatalf("a closed file: %d, %d", bytes, memory)
	}
}

// Writes to a full pipe end only when they are cancelled, or when the pipe is read. A cancelled write that had begun
// leaves a part of its bytes.
func TestCancelWrites(t *testing.T) {
	path := makePipe(t)
	other, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	must(t, err)
	defer other.Close()
	pipe, err := ringfile.Open(path, ringfile.Options{Write: true})
	must(t, err)
	defer pipe.Close()
	filler := make([]byte, block)
	filled := 0
	must(t, other.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil {
		var n int
		n, err = other.Write(filler)
		filled += n
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || filled < 2*block {
		t.Fatalf("%d bytes, %v", filled, err)
	}
	buffer := get(t, makePool(t, 1<<20), 8*block)
	for at := range buffer.Bytes() {
		buffer.Bytes()[at] = 'x'
	}
	cancelled := func(writes []ringfile.Write) {
		t.Helper()
		ctx, cancel := context.WithCancel(background)
		go func() {
			// Time for the writes to be in flight.
			time.Sleep(20 * time.Millisecond)
			cancel()
		}()
		if err := pipe.WriteBatch(ctx, writes); !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
		for at := range writes {
			if writes[at].N != 0 || !errors.Is(writes[at].Err, syscall.ECANCELED) {
				t.Fatalf("write %d: %d, %v", at, writes[at].N, writes[at].Err)
			}
		}
	}
	drain := func(want int) []byte {
		t.Helper()
		got := make([]byte, want)
		must(t, other.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadFull(other, got)
		must(t, err)
		return got
	}
	cancelled([]ringfile.Write{{Buffer: buffer, Length: block}, {Buffer: buffer, Start: block, Length: block}})
	drain(2 * block)
	cancelled([]ringfile.Write{{Buffer: buffer, Length: 8 * block}})
	// Nothing of the first two, two blocks of the last, and nothing of it later.
	for at := range buffer.Bytes() {
		buffer.Bytes()[at] = 'y'
	}
	got := drain(filled)
	if !bytes.Equal(got[:filled-2*block], make([]byte, filled-2*block)) ||
		!bytes.Equal(got[filled-2*block:], bytes.Repeat([]byte{'x'}, 2*block)) {
		t.Fatal("wrong bytes in the pipe")
	}
	must(t, pipe.WriteBatch(background, []ringfile.Write{{Buffer: buffer, Length: 3}}))
	if got := drain(3); string(got) != "yyy" {
		t.Fatalf("%q", got)
	}
}

// The contexts of these batches end at random times, and the memory is overwritten as soon as WriteBatch returns: the
// file must have what was in it at the start of each write that succeeded, and either that or the earlier bytes
// otherwise.
func TestCancelWritesAtAnyTime(t *testing.T) {
	const workers, batch, rounds = 32, 32, 20
	file, path := makeWritable(t, ringfile.Options{Direct: true})
	pool := makePool(t, 32<<20)
	must(t, file.Truncate(background, workers*batch*block))
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	var written [workers * batch][]byte // the numbers that each block may have; the first is that of the last success
	var lock sync.Mutex
	cancelled := 0
	inWorkers(t, workers, seed, func(worker int, random *rand.Rand) error {
		buffer, err := pool.Get(batch * block)
		if err != nil {
			return err
		}
		defer buffer.Release()
		for at := 0; at < batch; at++ {
			written[worker*batch+at] = []byte{0}
		}
		for round := byte(1); round <= rounds; round++ {
			fill(buffer.Bytes(), round)
			writes := blockWrites(buffer, batch, int64(worker*batch)*block)
			ctx, cancel := context.WithTimeout(background, time.Duration(random.Intn(2000))*time.Microsecond)
			err := file.WriteBatch(ctx, writes)
			cancel()
			fill(buffer.Bytes(), 255)
			for at := range writes {
				may := &written[worker*batch+at]
				switch one := &writes[at]; {
				case one.Err == nil && one.N == block:
					*may = []byte{round}
				case !errors.Is(err, context.DeadlineExceeded):
					return fmt.Errorf("%d bytes, %v, and the batch said %v", one.N, one.Err, err)
				case errors.Is(one.Err, syscall.ECANCELED) && one.N == 0:
					*may = append(*may, round)
					lock.Lock()
					cancelled++
					lock.Unlock()
				default:
					return fmt.Errorf("%d bytes, %v", one.N, one.Err)
				}
			}
		}
		return nil
	})
	t.Logf("%d writes were cancelled", cancelled)
	got, err := os.ReadFile(path)
	must(t, err)
	for at, may := range written {
		for _, one := range got[at*block : (at+1)*block] {
			if bytes.IndexByte(may, one) < 0 {
				t.Fatalf("block %d has %d, and may have %d", at, one, may)
			}
		}
	}
}

// blockWrites returns writes of that many blocks of a buffer to a file, from offset on.
func blockWrites(buffer *ringfile.Buffer, count int, offset int64) []ringfile.Write {
	writes := make([]ringfile.Write, count)
	for at := range writes {
		writes[at] = ringfile.Write{Buffer: buffer, Start: at * block, Length: block, Offset: offset + int64(at)*block}
	}
	return writes
}

func fill(data []byte, with byte) {
	for at := range data {
		data[at] = with
	}
}

// inWorkers calls work in that many goroutines at once, each with a random source of its own.
func inWorkers(t testing.TB, workers int, seed int64, work func(worker int, random *rand.Rand) error) {
	t.Helper()
	var all sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		all.Add(1)
		go func(worker int) {
			defer all.Done()
			if err := work(worker, rand.New(rand.NewSource(seed+int64(worker)))); err != nil {
				t.Errorf("worker %d: %v", worker, err)
			}
		}(worker)
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// Goroutines write, read back and sync the same file at once, each in blocks of its own.
func TestManyWriters(t *testing.T) {
	const workers, rounds, batch = 300, 4, 16
	file, _ := makeWritable(t, ringfile.Options{Direct: true})
	pool := makePool(t, workers*batch*block*2)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	inWorkers(t, workers, seed, func(worker int, random *rand.Rand) error {
		buffer, err := pool.Get(batch * block)
		if err != nil {
			return err
		}
		defer buffer.Release()
		for round := 0; round < rounds; round++ {
			want := make([]byte, batch*block)
			random.Read(want)
			copy(buffer.Bytes(), want)
			writes, reads := make([]ringfile.Write, batch), make([]ringfile.Read, batch)
			for at, place := range random.Perm(batch) {
				start, offset := place*block, int64(place*workers+worker)*block
				writes[at] = ringfile.Write{Buffer: buffer, Start: start, Length: block, Offset: offset}
				reads[at] = ringfile.Read{Buffer: buffer, Start: start, Length: block, Offset: offset}
			}
			if err := file.WriteBatch(background, writes); err != nil {
				return err
			}
			if worker%100 == 0 {
				if err := file.SyncData(background); err != nil {
					return err
				}
			}
			fill(buffer.Bytes(), 0)
			if err := file.ReadBatch(background, reads); err != nil {
				return err
			}
			if !bytes.Equal(buffer.Bytes(), want) {
				return fmt.Errorf("other bytes than were written")
			}
		}
		return nil
	})
}

// Batches that overlap: each write is carried out as a whole, in some order.
func TestOverlappingBatches(t *testing.T) {
	const workers, batch = 16, 32
	file, path := makeWritable(t, ringfile.Options{})
	pool := makePool(t, workers*batch*block*2)
	for round := 0; round < 5; round++ {
		inWorkers(t, workers, 0, func(worker int, _ *rand.Rand) error {
			buffer, err := pool.Get(batch * block)
			if err != nil {
				return err
			}
			defer buffer.Release()
			fill(buffer.Bytes(), byte(round*workers+worker+1))
			return file.WriteBatch(background, blockWrites(buffer, batch, 0))
		})
		got, err := os.ReadFile(path)
		must(t, err)
		if len(got) != batch*block {
			t.Fatalf("%d bytes", len(got))
		}
		for at := 0; at < batch; at++ {
			first := got[at*block]
			if int(first) <= round*workers || int(first) > (round+1)*workers ||
				!bytes.Equal(got[at*block:(at+1)*block], bytes.Repeat([]byte{first}, block)) {
				t.Fatalf("block %d is mixed, or not of this round", at)
			}
		}
	}
}

// A file that is closed while goroutines write to it: each write succeeds, or fails with EBADF.
func TestCloseWhileWriting(t *testing.T) {
	_, path := makeWritable(t, ringfile.Options{})
	pool := makePool(t, 16<<20)
	for round := 0; round < 20; round++ {
		file, err := ringfile.Open(path, ringfile.Options{Direct: true, Write: true})
		must(t, err)
		inWorkers(t, 8, 0, func(worker int, _ *rand.Rand) error {
			buffer, err := pool.Get(8 * block)
			if err != nil {
				return err
			}
			defer buffer.Release()
			for count := 0; worker != 0 || count < 3; count++ {
				err := file.WriteBatch(background, blockWrites(buffer, 8, int64(worker)*8*block))
				if errors.Is(err, syscall.EBADF) {
					return nil
				}
				if err != nil {
					return err
				}
			}
			return file.Close()
		})
	}
}

func TestRegisterMemory(t *testing.T) {
	file, path := makeWritable(t, ringfile.Options{Direct: true})
	mapped, err := syscall.Mmap(-1, 0, 64*block, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	must(t, err)
	memory, err := ringfile.RegisterMemory(mapped)
	must(t, err)
	copy(mapped, content(0, 32*block))
	writes, reads := blockWrites(memory.Buffer(), 32, 0), make([]ringfile.Read, 32)
	for at := range reads {
		start := (63 - at) * block
		reads[at] = ringfile.Read{Buffer: memory.Buffer(), Start: start, Length: block, Offset: writes[at].Offset}
	}
	must(t, file.WriteBatch(background, writes))
	expectContent(t, path, content(0, 32*block))
	must(t, file.ReadBatch(background, reads))
	for at := range reads {
		must(t, check(&reads[at]))
	}
	if _, err := ringfile.RegisterMemory(mapped[block : 2*block]); !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("registered already: %v", err)
	}
	if _, err := ringfile.RegisterMemory(nil); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("no memory: %v", err)
	}
	outside := []ringfile.Read{{Buffer: memory.Buffer(), Start: 63 * block, Length: block + 1}}
	if err := file.ReadBatch(background, outside); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("outside of the memory: %v", err)
	}
	memory.Buffer().Release() // does nothing

	// Of two reads of a pipe, one gets what is there. So the other has begun, and uses the memory.
	pipe, err := ringfile.Open(makePipe(t), ringfile.Options{Write: true})
	must(t, err)
	defer pipe.Close()
	_, err = pipe.WriteAt([]byte("content"), 0)
	must(t, err)
	fill(mapped, 0)
	ctx, cancel := context.WithCancel(background)
	over := make(chan error)
	go func() {
		over <- pipe.ReadBatch(ctx, []ringfile.Read{
			{Buffer: memory.Buffer(), Length: 7}, {Buffer: memory.Buffer(), Start: block, Length: 7},
		})
	}()
	for mapped[0] == 0 && mapped[block] == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := memory.Unregister(); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("while a read uses it: %v", err)
	}
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, memory.Unregister())
	if err := memory.Unregister(); !errors.Is(err, syscall.EBADF) {
		t.Fatalf("twice: %v", err)
	}
	must(t, syscall.Munmap(mapped))
	if err := file.WriteBatch(background, writes[:1]); err == nil || len(memory.Buffer().Bytes()) != 0 {
		t.Fatalf("after the end: %v", err)
	}
}

func TestQueueWrites(t *testing.T) {
	const depth = 16
	file, path := makeWritable(t, ringfile.Options{Direct: true})
	buffer := get(t, makePool(t, 1<<20), depth*block)
	copy(buffer.Bytes(), content(0, depth*block))
	queue, err := ringfile.NewQueue(depth)
	must(t, err)
	added, err := queue.AddWrites(file, blockWrites(buffer, depth, 0), 100)
	must(t, err)
	results := make([]ringfile.Result, depth)
	taken, err := queue.Wait(results, depth)
	must(t, err)
	if added != depth || taken != depth {
		t.Fatalf("%d added, %d taken", added, taken)
	}
	seen := map[uint64]bool{}
	for _, result := range results {
		must(t, result.Err())
		if result.Result != block || result.ID < 100 || result.ID >= 100+depth || seen[result.ID] {
			t.Fatalf("%+v", result)
		}
		seen[result.ID] = true
	}
	expectContent(t, path, content(0, depth*block))
	if n, err := queue.AddWrites(file, []ringfile.Write{{}}, 0); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a write of nothing: %v", err)
	}
	must(t, queue.Close())
}
