// Benchmark reads random blocks of a file through both interfaces of the package and through fio's io_uring, in turn,
// or writes them. It prints the table of the package's README: the operations per second of each, the processor time
// for one, and the rate compared with fio's.
//
//	go run ./benchmark
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ringfile"
)

const block = 4096

var (
	path     = flag.String("file", "/var/tmp/ringfile-go.bin", "file to read; created if it does not exist")
	size     = flag.Int64("size", 512<<20, "size of a created file, in bytes")
	write    = flag.Bool("write", false, "write instead of reading; overwrites the file's content")
	length   = flag.Duration("time", time.Second, "time of each measurement")
	rounds   = flag.Int("rounds", 5, "measurements of each kind, after one that is not counted")
	shapes   = flag.String("batches", "1000x32,64x8", "numbers of goroutines, each with the size of their batches")
	inFlight = flag.Int("in-flight", 128, "operations of batches in flight at once")
	depth    = flag.Int("depth", 128, "operations in flight of each queue and each of fio's jobs")
	jobs     = flag.Int("jobs", 1, "queues (OS threads) of the low-level interface, and fio's jobs")
)

var pool *ringfile.Pool

// kind is what is measured: a line of the table.
type kind struct {
	name    string
	measure func() (figure, error)
}

// figure is one measurement: operations per second, and microseconds of processor time per operation.
type figure struct{ iops, cpu float64 }

func main() {
	flag.Parse()
	ringfile.SetMaxInFlight(*inFlight)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

func run() error {
	if err := makeFile(); err != nil {
		return err
	}
	file, err := ringfile.Open(*path, ringfile.Options{Direct: true, Write: *write})
	if err != nil {
		return err
	}
	defer file.Close()
	// Its memory is mapped as it is needed.
	if pool, err = ringfile.NewPool(1 << 30); err != nil {
		return err
	}
	defer pool.Close()
	lines, err := kinds(file)
	if err != nil {
		return err
	}
	if !file.IsDirect() {
		fmt.Println("no direct I/O here: blocks are in the page cache")
	}
	figures := make([][]figure, len(lines))
	for round := 0; round <= *rounds; round++ {
		for at, kind := range lines {
			one, err := kind.measure()
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			if round == 0 {
				continue // it maps and registers memory
			}
			figures[at] = append(figures[at], one)
		}
	}
	fmt.Print("| | IOPS | CPU for an operation | of fio |\n|---|---|---|---|\n")
	for at, kind := range lines {
		iops := int(median(figures[at], func(i int) float64 { return figures[at][i].iops }))
		cpu := median(figures[at], func(i int) float64 { return figures[at][i].cpu })
		ofFio := ""
		if at > 0 {
			share := median(figures[at], func(i int) float64 { return 100 * figures[at][i].iops / figures[0][i].iops })
			ofFio = fmt.Sprintf("%.0f %% ", share)
		}
		fmt.Printf("| %s | %d,%03d | %.2f µs | %s|\n", kind.name, iops/1000, iops%1000, cpu, ofFio)
	}
	return nil
}

// kinds returns what is to be measured, fio first.
func kinds(file *ringfile.File) ([]kind, error) {
	of := func(number int) string {
		if number == 1 {
			return ""
		}
		return fmt.Sprintf("%d × ", number)
	}
	call := "ReadBatch"
	if *write {
		call = "WriteBatch"
	}
	all := []kind{
		{fmt.Sprintf("%sfio, io_uring, depth %d, fixed buffers", of(*jobs), *depth), fio},
		{fmt.Sprintf("%s`Queue` of depth %d", of(*jobs), *depth), func() (figure, error) {
			return together(file, *jobs, func(w *worker) error { return w.queue(*depth) })
		}},
	}
	for _, shape := range strings.Split(*shapes, ",") {
		var goroutines, batch int
		if _, err := fmt.Sscanf(shape, "%dx%d", &goroutines, &batch); err != nil || goroutines < 1 || batch < 1 {
			return nil, fmt.Errorf("-batches %s: write it as 1000x32,64x8", *shapes)
		}
		name := fmt.Sprintf("`%s`, %d goroutines, batches of %d", call, goroutines, batch)
		all = append(all, kind{name, func() (figure, error) {
			return together(file, goroutines, func(w *worker) error { return w.batches(batch) })
		}})
	}
	return all, nil
}

func median(of []figure, value func(int) float64) float64 {
	values := make([]float64, len(of))
	for at := range of {
		values[at] = value(at)
	}
	sort.Float64s(values)
	return values[len(values)/2]
}

func makeFile() error {
	if _, err := os.Stat(*path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.Create(*path)
	if err != nil {
		return err
	}
	piece := make([]byte, 1<<20)
	for done := int64(0); done < *size; done += int64(len(piece)) {
		rand.Read(piece)
		if _, err := file.Write(piece); err != nil {
			return err
		}
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return file.Close()
}

// together runs workers at once until the time is over, and returns their common figure.
func together(file *ringfile.File, workers int, work func(*worker) error) (figure, error) {
	size, err := file.Size()
	if err != nil {
		return figure{}, err
	}
	var over atomic.Bool
	var all sync.WaitGroup
	ran := make([]worker, workers)
	began, used := time.Now(), processorTime()
	for at := range ran {
		ran[at] = worker{file: file, blocks: size / block, over: &over, random: rand.New(rand.NewSource(int64(at)))}
		all.Add(1)
		go func(one *worker) {
			defer all.Done()
			one.err = work(one)
		}(&ran[at])
	}
	time.Sleep(*length)
	over.Store(true)
	all.Wait()
	var done float64
	for at := range ran {
		if ran[at].err != nil {
			return figure{}, ran[at].err
		}
		done += float64(ran[at].done)
	}
	return figure{done / time.Since(began).Seconds(), float64((processorTime() - used).Microseconds()) / done}, nil
}

type worker struct {
	file   *ringfile.File
	blocks int64
	over   *atomic.Bool
	random *rand.Rand
	done   int
	err    error
}

func (w *worker) offset() int64 { return w.random.Int63n(w.blocks) * block }

// batches carries out one batch after another; many goroutines run it at once.
func (w *worker) batches(size int) error {
	buffer, err := pool.Get(size * block)
	if err != nil {
		return err
	}
	defer buffer.Release()
	reads, writes := make([]ringfile.Read, size), make([]ringfile.Write, size)
	for !w.over.Load() {
		for at := 0; at < size; at++ {
			if *write {
				writes[at] = ringfile.Write{Buffer: buffer, Start: at * block, Length: block, Offset: w.offset()}
			} else {
				reads[at] = ringfile.Read{Buffer: buffer, Start: at * block, Length: block, Offset: w.offset()}
			}
		}
		if *write {
			err = w.file.WriteBatch(context.Background(), writes)
		} else {
			err = w.file.ReadBatch(context.Background(), reads)
		}
		if err != nil {
			return err
		}
		w.done += size
	}
	return nil
}

// queue keeps operations in flight on its own OS thread.
func (w *worker) queue(depth int) error {
	buffer, err := pool.Get(depth * block)
	if err != nil {
		return err
	}
	defer buffer.Release()
	queue, err := ringfile.NewQueue(depth)
	if err != nil {
		return err
	}
	defer queue.Close()
	var reads [1]ringfile.Read
	var writes [1]ringfile.Write
	add := func(slot uint64) (err error) {
		if *write {
			writes[0] = ringfile.Write{Buffer: buffer, Start: int(slot) * block, Length: block, Offset: w.offset()}
			_, err = queue.AddWrites(w.file, writes[:], slot)
		} else {
			reads[0] = ringfile.Read{Buffer: buffer, Start: int(slot) * block, Length: block, Offset: w.offset()}
			_, err = queue.Add(w.file, reads[:], slot)
		}
		return err
	}
	for slot := 0; slot < depth; slot++ {
		if err := add(uint64(slot)); err != nil {
			return err
		}
	}
	results := make([]ringfile.Result, depth)
	for !w.over.Load() {
		taken, err := queue.Wait(results, 1)
		if err != nil {
			return err
		}
		for _, result := range results[:taken] {
			if result.Result != block {
				return fmt.Errorf("an operation ended with %d", result.Result)
			}
			if err := add(result.ID); err != nil {
				return err
			}
		}
		w.done += taken
	}
	return nil
}

func processorTime() time.Duration {
	var used syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func fio() (figure, error) {
	pattern := "--rw=randread"
	if *write {
		pattern = "--rw=randwrite"
	}
	command := exec.Command("fio", "--name=job", "--filename="+*path, pattern, "--bs=4k", "--direct=1",
		"--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1", fmt.Sprint("--iodepth=", *depth),
		"--iodepth_batch_submit=32", fmt.Sprint("--iodepth_batch_complete_max=", *depth),
		fmt.Sprint("--numjobs=", *jobs), "--group_reporting", "--time_based",
		fmt.Sprintf("--runtime=%dms", length.Milliseconds()), "--norandommap", "--output-format=json")
	var out strings.Builder
	command.Stdout, command.Stderr = &out, os.Stderr
	if err := command.Run(); err != nil {
		return figure{}, err
	}
	type rate struct {
		Iops float64 `json:"iops"`
	}
	var said struct {
		Jobs []struct {
			UsrCPU float64 `json:"usr_cpu"`
			SysCPU float64 `json:"sys_cpu"`
			Read   rate    `json:"read"`
			Write  rate    `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(out.String()), &said); err != nil || len(said.Jobs) != 1 {
		return figure{}, fmt.Errorf("fio said %q: %w", out.String(), err)
	}
	job := said.Jobs[0]
	iops := job.Read.Iops + job.Write.Iops // one of them is 0
	// fio's percentages relate to the time of one job.
	return figure{iops, (job.UsrCPU + job.SysCPU) / 100 * float64(*jobs) * 1e6 / iops}, nil
}
