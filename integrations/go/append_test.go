package ringfile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfile"
)

// record returns a record with its length, a checksum, its writer and its number.
func record(writer, number, length int) []byte {
	one := make([]byte, 16, 16+length)
	for at := 0; at < length; at++ {
		one = append(one, byte(writer+number+at))
	}
	binary.LittleEndian.PutUint32(one, uint32(len(one)))
	binary.LittleEndian.PutUint32(one[8:], uint32(writer))
	binary.LittleEndian.PutUint32(one[12:], uint32(number))
	binary.LittleEndian.PutUint32(one[4:], crc32.ChecksumIEEE(one[8:]))
	return one
}

// validRecords returns the records at the beginning of a log, up to the first one that is not whole.
func validRecords(log []byte) (records [][]byte, valid int64) {
	for len(log) >= 16 {
		length := binary.LittleEndian.Uint32(log)
		if length < 16 || uint64(length) > uint64(len(log)) ||
			binary.LittleEndian.Uint32(log[4:]) != crc32.ChecksumIEEE(log[8:length]) {
			break
		}
		records, valid, log = append(records, log[:length]), valid+int64(length), log[length:]
	}
	return records, valid
}

func openAppender(t testing.TB, file *ringfile.File, valid int64, options ringfile.AppenderOptions) *ringfile.Appender {
	t.Helper()
	log, err := ringfile.OpenAppender(file, valid, options)
	must(t, err)
	return log
}

// Goroutines append and sync at once; then the log has a torn end, and is opened again.
func TestAppender(t *testing.T) {
	const writers, each = 500, 20
	for _, options := range []ringfile.AppenderOptions{
		{}, {Block: 16 << 10, Depth: 2, SyncInterval: time.Millisecond, NoZeros: true, Pool: makePool(t, 1<<20)},
	} {
		for _, direct := range []bool{true, false} {
			file, path := makeWritable(t, ringfile.Options{Direct: direct})
			log := openAppender(t, file, 0, options)
			seed := time.Now().UnixNano()
			t.Logf("seed %d", seed)
			before, most := threads(t), 0
			inWorkers(t, writers, seed, func(writer int, random *rand.Rand) error {
				for number := 0; number < each; number++ {
					length := random.Intn(200)
					if writer == 0 {
						length = random.Intn(100_000) // longer than a block
					}
					if _, err := log.Append(record(writer, number, length)); err != nil {
						return err
					}
					var err error
					switch number % 5 {
					case 2:
						err = log.Flush(background)
					case 4:
						err = log.Sync(background)
					}
					if err != nil {
						return err
					}
					if writer == 1 {
						if now := threads(t); now > most {
							most = now
						}
					}
				}
				return nil
			})
			t.Logf("%d threads before, at most %d meanwhile", before, most)
			if most > before+50 {
				t.Errorf("%d goroutines needed %d threads more", writers, most-before)
			}
			end, err := log.End()
			must(t, err)
			must(t, log.Close())
			got, err := os.ReadFile(path)
			must(t, err)
			records, valid := validRecords(got)
			if valid != end || int64(len(got)) != end || len(records) != writers*each {
				t.Fatalf("%d records in %d of %d bytes; the end was %d", len(records), valid, len(got), end)
			}
			var next [writers]uint32
			for _, one := range records {
				writer, number := binary.LittleEndian.Uint32(one[8:]), binary.LittleEndian.Uint32(one[12:])
				if next[writer] != number {
					t.Fatalf("record %d of writer %d came after %d", number, writer, next[writer])
				}
				next[writer]++
			}

			torn := record(7, 7, 1000)
			must(t, os.WriteFile(path, append(got, append(torn[:700:700], make([]byte, 5000)...)...), 0o600))
			got, err = os.ReadFile(path)
			must(t, err)
			_, valid = validRecords(got)
			log = openAppender(t, file, valid, options)
			if at, err := log.Append(torn); at != end || err != nil {
				t.Fatalf("appended at %d instead of %d, %v", at, end, err)
			}
			must(t, log.Close())
			got, err = os.ReadFile(path)
			must(t, err)
			if records, _ = validRecords(got); len(records) != writers*each+1 || !bytes.Equal(records[writers*each], torn) {
				t.Fatalf("%d records", len(records))
			}
		}
	}
}

func TestAppenderMisuse(t *testing.T) {
	file, path := makeWritable(t, ringfile.Options{})
	negative := []ringfile.AppenderOptions{{Block: -1}, {Depth: -1}, {WriteBehind: -1}, {SyncInterval: -1}}
	for _, options := range negative {
		if _, err := ringfile.OpenAppender(file, 0, options); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("%+v: %v", options, err)
		}
	}
	if _, err := ringfile.OpenAppender(nil, 0, ringfile.AppenderOptions{}); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("no file: %v", err)
	}
	for _, valid := range []int64{-1, 1} {
		if _, err := ringfile.OpenAppender(file, valid, ringfile.AppenderOptions{}); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("valid %d: %v", valid, err)
		}
	}
	readable, err := ringfile.Open(path, ringfile.Options{})
	must(t, err)
	defer readable.Close()
	if _, err := ringfile.OpenAppender(readable, 0, ringfile.AppenderOptions{}); err == nil {
		t.Fatal("a file that is open for reading only")
	}

	log := openAppender(t, file, 0, ringfile.AppenderOptions{Depth: 1 << 40})
	over, cancel := context.WithCancel(background)
	cancel()
	if err := log.Sync(over); !errors.Is(err, context.Canceled) {
		t.Fatalf("a context that is done: %v", err)
	}
	for _, empty := range [][]byte{nil, {}} {
		if at, err := log.Append(empty); at != 0 || err != nil {
			t.Fatalf("nothing: %d, %v", at, err)
		}
	}
	_, err = log.Append([]byte("record"))
	must(t, err)
	must(t, log.Flush(background))
	expectContent(t, path, []byte("record"))
	must(t, log.Close())
	_, err = log.Append([]byte("x"))
	_, ended := log.End()
	for at, err := range []error{err, ended, log.Flush(background), log.Sync(background), log.Close()} {
		if !errors.Is(err, syscall.EBADF) {
			t.Fatalf("call %d after Close: %v", at, err)
		}
	}
}

// A Sync that waits for its turn ends with its context; the others go on.
func TestAppenderContext(t *testing.T) {
	file, _ := makeWritable(t, ringfile.Options{})
	log := openAppender(t, file, 0, ringfile.AppenderOptions{SyncInterval: time.Hour})
	_, err := log.Append([]byte("first"))
	must(t, err)
	must(t, log.Sync(background))
	_, err = log.Append([]byte("second"))
	must(t, err)
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	if err := log.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("an hour has passed: %v", err)
	}
	must(t, log.Flush(background))
	must(t, log.Close()) // does not wait for the hour
}

// A file that cannot grow, as on a full disk. The limit holds for a whole process, so this runs in one of its own.
func TestAppenderOnAFullDisk(t *testing.T) {
	if os.Getenv("RINGFILE_TEST_FULL_DISK") == "" {
		again := exec.Command(os.Args[0], "-test.run", "^TestAppenderOnAFullDisk$", "-test.v")
		again.Env = append(os.Environ(), "RINGFILE_TEST_FULL_DISK=1")
		said, err := again.CombinedOutput()
		if err != nil || !strings.Contains(string(said), "PASS") {
			t.Fatalf("%v\n%s", err, said)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	file, path := makeWritable(t, ringfile.Options{})
	log := openAppender(t, file, 0, ringfile.AppenderOptions{})
	_, err := log.Append([]byte("durable"))
	must(t, err)
	must(t, log.Sync(background))
	limit := syscall.Rlimit{Cur: 1 << 20, Max: 1 << 40}
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	limit.Cur = 1 << 20
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	for count := 0; err == nil && count < 100; count++ {
		_, err = log.Append(make([]byte, 100_000))
	}
	if err == nil {
		err = log.Sync(background)
	}
	_, appended := log.Append([]byte("x"))
	for at, err := range []error{err, appended, log.Sync(background), log.Flush(background), log.Close()} {
		if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), path) {
			t.Fatalf("call %d: %v", at, err)
		}
	}
	got, err := os.ReadFile(path)
	must(t, err)
	if !bytes.HasPrefix(got, []byte("durable")) {
		t.Fatal("what was durable is gone")
	}
}

func TestStat(t *testing.T) {
	file, path := makeWritable(t, ringfile.Options{Permissions: 0o640})
	_, err := file.WriteAt(content(0, 5*block), 0)
	must(t, err)
	got, err := file.Stat()
	must(t, err)
	want, err := os.Stat(path)
	must(t, err)
	system := want.Sys().(*syscall.Stat_t)
	if got.Name() != want.Name() || got.Size() != want.Size() || got.Mode() != want.Mode() ||
		!got.ModTime().Equal(want.ModTime()) || got.IsDir() || got.Allocated != system.Blocks*512 ||
		got.Inode != system.Ino || got.Device != uint64(system.Dev) || got.Links != 1 ||
		got.UID != system.Uid || got.GID != system.Gid ||
		!got.Changed.Equal(time.Unix(system.Ctim.Sec, system.Ctim.Nsec)) {
		t.Fatalf("%+v instead of %+v", got, system)
	}
	for _, other := range []string{makePipe(t), "/dev/null"} {
		special, err := ringfile.Open(other, ringfile.Options{Write: true})
		must(t, err)
		got, err := special.Stat()
		must(t, err)
		want, err := os.Stat(other)
		must(t, err)
		if got.Mode() != want.Mode() || got.Mode()&fs.ModeType == 0 {
			t.Fatalf("%s: %s instead of %s", other, got.Mode(), want.Mode())
		}
		must(t, special.Close())
	}
	must(t, os.Remove(path))
	got, err = file.Stat()
	must(t, err)
	if got.Links != 0 || got.Size() != 5*block {
		t.Fatalf("of a removed file: %+v", got)
	}
	closed, err := ringfile.Open("/dev/null", ringfile.Options{})
	must(t, err)
	must(t, closed.Close())
	if _, err := closed.Stat(); !errors.Is(err, syscall.EBADF) {
		t.Fatalf("of a closed file: %v", err)
	}
}
