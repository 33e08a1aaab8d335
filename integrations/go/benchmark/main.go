// Benchmark reads random blocks of a file through both interfaces of the package and through fio's io_uring, in turn. It
// prints the operations per second of each, and compares them with fio's, in per cent.
//
//	go run ./benchmark -file /var/tmp/f.bin
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
	path       = flag.String("file", "/var/tmp/ringfile-go.bin", "file to read; created if it does not exist")
	size       = flag.Int64("size", 1<<30, "size of a created file, in bytes")
	length     = flag.Duration("time", 3*time.Second, "time of each measurement")
	rounds     = flag.Int("rounds", 5, "measurements of each kind, after one that is not counted")
	goroutines = flag.Int("goroutines", 1000, "goroutines of the high-level interface")
	batch      = flag.Int("batch", 32, "reads of each batch")
	inFlight   = flag.Int("in-flight", 128, "reads of batches in flight at once")
	depth      = flag.Int("depth", 128, "reads in flight of each queue and each of fio's jobs")
	jobs       = flag.Int("jobs", 1, "queues (OS threads) of the low-level interface, and fio's jobs")
)

// figure is one measurement: operations per second, and microseconds of processor time per operation.
type figure struct{ iops, cpu float64 }

func main() {
	flag.Parse()
	ringfile.SetMaxReads(*inFlight)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

func run() error {
	if err := makeFile(); err != nil {
		return err
	}
	file, err := ringfile.Open(*path, ringfile.Options{Direct: true})
	if err != nil {
		return err
	}
	defer file.Close()
	pool, err := ringfile.NewPool((*goroutines**batch + *jobs**depth) * 2 * block)
	if err != nil {
		return err
	}
	defer pool.Close()
	if !file.IsDirect() {
		fmt.Println("no direct I/O here: blocks come from the page cache")
	}
	kinds := []struct {
		name    string
		measure func() (figure, error)
	}{
		{"fio", func() (figure, error) { return fio() }},
		{"Queue", func() (figure, error) { return both(file, pool, *jobs, queue) }},
		{"ReadBatch", func() (figure, error) { return both(file, pool, *goroutines, batches) }},
	}
	figures := make([][]figure, len(kinds))
	for round := 0; round <= *rounds; round++ {
		for at, kind := range kinds {
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
	what := []string{
		fmt.Sprintf("fio, io_uring, %d job(s) of depth %d", *jobs, *depth),
		fmt.Sprintf("Queue, %d of depth %d", *jobs, *depth),
		fmt.Sprintf("ReadBatch, %d goroutines, batches of %d", *goroutines, *batch),
	}
	fmt.Printf("%-45s %10s %10s %8s\n", "median of "+fmt.Sprint(*rounds), "IOPS", "CPU us/op", "of fio")
	for at := range kinds {
		fmt.Printf("%-45s %10.0f %10.2f %7.0f%%\n", what[at], median(figures[at], func(i int) float64 { return figures[at][i].iops }),
			median(figures[at], func(i int) float64 { return figures[at][i].cpu }),
			median(figures[at], func(i int) float64 { return 100 * figures[at][i].iops / figures[0][i].iops }))
	}
	return nil
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

// both runs workers at once until the time is over, and returns their common figure.
func both(file *ringfile.File, pool *ringfile.Pool, workers int, work func(*worker) error) (figure, error) {
	blocks, err := file.Size()
	if err != nil {
		return figure{}, err
	}
	var over atomic.Bool
	var all sync.WaitGroup
	ran := make([]worker, workers)
	began, used := time.Now(), processorTime()
	for at := range ran {
		ran[at] = worker{file: file, pool: pool, blocks: blocks / block, over: &over, random: rand.New(rand.NewSource(int64(at)))}
		all.Add(1)
		go func(one *worker) {
			defer all.Done()
			one.err = work(one)
		}(&ran[at])
	}
	time.Sleep(*length)
	over.Store(true)
	all.Wait()
	var reads float64
	for at := range ran {
		if ran[at].err != nil {
			return figure{}, ran[at].err
		}
		reads += float64(ran[at].reads)
	}
	return figure{reads / time.Since(began).Seconds(), float64((processorTime() - used).Microseconds()) / reads}, nil
}

type worker struct {
	file   *ringfile.File
	pool   *ringfile.Pool
	blocks int64
	over   *atomic.Bool
	random *rand.Rand
	reads  int
	err    error
}

func (w *worker) offset() int64 { return w.random.Int63n(w.blocks) * block }

// batches reads one batch after another; many goroutines run it at once.
func batches(w *worker) error {
	buffer, err := w.pool.Get(*batch * block)
	if err != nil {
		return err
	}
	defer buffer.Release()
	reads := make([]ringfile.Read, *batch)
	for !w.over.Load() {
		for at := range reads {
			reads[at] = ringfile.Read{Buffer: buffer, Start: at * block, Length: block, Offset: w.offset()}
		}
		if err := w.file.ReadBatch(context.Background(), reads); err != nil {
			return err
		}
		w.reads += len(reads)
	}
	return nil
}

// queue keeps reads in flight on its own OS thread.
func queue(w *worker) error {
	buffer, err := w.pool.Get(*depth * block)
	if err != nil {
		return err
	}
	defer buffer.Release()
	queue, err := ringfile.NewQueue(*depth)
	if err != nil {
		return err
	}
	defer queue.Close()
	var reads [1]ringfile.Read
	add := func(slot uint64) error {
		reads[0] = ringfile.Read{Buffer: buffer, Start: int(slot) * block, Length: block, Offset: w.offset()}
		_, err := queue.Add(w.file, reads[:], slot)
		return err
	}
	for slot := 0; slot < *depth; slot++ {
		if err := add(uint64(slot)); err != nil {
			return err
		}
	}
	results := make([]ringfile.Result, *depth)
	for !w.over.Load() {
		taken, err := queue.Wait(results, 1)
		if err != nil {
			return err
		}
		for _, result := range results[:taken] {
			if result.Result != block {
				return fmt.Errorf("a read ended with %d", result.Result)
			}
			if err := add(result.ID); err != nil {
				return err
			}
		}
		w.reads += taken
	}
	return nil
}

func processorTime() time.Duration {
	var used syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func fio() (figure, error) {
	command := exec.Command("fio", "--name=job", "--filename="+*path, "--rw=randread", "--bs=4k", "--direct=1",
		"--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1", fmt.Sprint("--iodepth=", *depth),
		fmt.Sprint("--iodepth_batch_submit=", *batch), fmt.Sprint("--iodepth_batch_complete_max=", *depth),
		fmt.Sprint("--numjobs=", *jobs), "--group_reporting", "--time_based",
		fmt.Sprintf("--runtime=%dms", length.Milliseconds()), "--norandommap", "--output-format=json")
	var out strings.Builder
	command.Stdout, command.Stderr = &out, os.Stderr
	if err := command.Run(); err != nil {
		return figure{}, err
	}
	var said struct {
		Jobs []struct {
			UsrCPU float64 `json:"usr_cpu"`
			SysCPU float64 `json:"sys_cpu"`
			Read   struct {
				Iops float64 `json:"iops"`
			} `json:"read"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(out.String()), &said); err != nil || len(said.Jobs) != 1 {
		return figure{}, fmt.Errorf("fio said %q: %w", out.String(), err)
	}
	job := said.Jobs[0]
	// fio's percentages relate to the time of one job.
	return figure{job.Read.Iops, (job.UsrCPU + job.SysCPU) / 100 * float64(*jobs) * 1e6 / job.Read.Iops}, nil
}
