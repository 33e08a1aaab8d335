//! The text below the options in the long help: examples to copy, and what the figures mean.

/// `ringfile`.
pub const ALL: &str = "\
Start with:
  Which settings are best for files on the disk of /var/tmp, in two minutes:
    ringfile perf buffers --quick --report report.html

  What the software costs, measured in memory without a disk:
    ringfile perf file

  Your own disk, compared with fio:
    ringfile perf file --file /data/test.bin --direct --against fio

Existing files are never written to without --overwrite, and no output file is replaced without
--force.";

/// `ringfile perf file`.
pub const FILE: &str = "\
Examples:
  The cost of the software alone, on 1 GiB in memory:
    ringfile perf file

  A disk without the page cache, compared with fio, and showing the noise:
    ringfile perf file --file /data/test.bin --direct --iodepth 1,128 --against fio --rounds 5

  An existing file through each route, only reading it:
    ringfile perf file --file /data/table.db --rw randread --route auto,ring,inline,workers

  Checking every byte that is read and written:
    ringfile perf file --file /data/test.bin --rw randrw --verify

Figures:
  IOPS, MiB/s and latencies are medians over the rounds; CPU µs is user and system time per
  operation, kernel workers included. Changes are computed within each round; the A/A row compares
  a run with itself, and smaller changes are noise.

Exit status: 0 success, 1 I/O failed while measuring, 2 the input cannot be carried out,
130 interrupted (what was measured until then is printed and saved).";

/// `ringfile perf batch`.
pub const BATCH: &str = "\
Examples:
  Batches of 64 random reads from a disk, compared with fio at the same depth:
    ringfile perf batch --file /data/test.bin --direct --rounds 5

  One large batch at a time compared with 16, all on one core:
    taskset -c 0 ringfile perf batch --file /data/test.bin --numjobs 1 --batch 256 --inflight 1,16

Exit status: 0 success, 1 I/O failed while measuring, 2 the input cannot be carried out,
130 interrupted.";

/// `ringfile perf multiread`.
pub const MULTIREAD: &str = "\
Examples:
  What a lookup of 250 blocks costs with each way to read them:
    ringfile perf multiread --file /data/test.bin --direct --batch 250 --rounds 5

  From the page cache, in blocks of 4 KiB, without fio:
    ringfile perf multiread --bs 4k --engines ringfile,by-hand,pread

Exit status: 0 success, 1 I/O failed while measuring, 2 the input cannot be carried out,
130 interrupted.";

/// `ringfile perf buffers`.
pub const BUFFERS: &str = "\
Examples:
  The best settings for files on the disk of /var/tmp, in two minutes, as a page and a file:
    ringfile perf buffers --quick --report report.html --emit-config ringfile.toml

  The same for an existing file, which is only read:
    ringfile perf buffers --quick --file /data/table.db

  The whole grid:
    ringfile perf buffers --file /data/test.bin --json grid.json

  What each of the newer ring flags is worth, compared with rings that have none of them:
    ringfile perf buffers --bs 4k --iodepth 16,128 --ring-flags none,coop,defer,sqpoll --by-hand

  What dividing a block into 32 parts costs, and where the CPU time goes:
    ringfile perf buffers --bs 128k --iodepth 16 --rounds 5 --profile --report parts.html

Figures:
  --tables prints them below the advice; --report and --json always have them. A gain is that of
  the value over the one that stands under `instead of`.
  IOPS, MiB/s and latencies are medians over the rounds, for all threads together. user and sys
  are CPU time in per cent of one core, kernel workers included; CPU µs is their sum per operation.
  A second table shows the CPU time of the whole machine, from /proc/stat.
  A difference is claimed only if all rounds agree on it, and it is larger than that between
  repetitions of the same run (A/A).

Exit status: 0 success, 1 I/O failed while measuring, 2 the input cannot be carried out,
130 interrupted (what was measured until then is printed and saved).";

/// `ringfile report`.
pub const REPORT: &str = "\
Examples:
  A page that shows saved results:
    ringfile report grid.json --out grid.html

  Two kernels, two machines, before and after a change:
    ringfile perf buffers --quick --file /data/test.bin --json before.json
    ringfile perf buffers --quick --file /data/test.bin --json after.json
    ringfile report before.json after.json

Figures:
  Medians over the rounds are compared, in cells that both files have: IOPS, CPU µs per operation,
  p50 and p99. A difference is outside the spread if all rounds and A/A runs of one file lie above
  those of the other, by more than the A/A runs of both vary; that needs 3 rounds in each file. The
  files were not measured in turn: whatever changed on the machine in between has an effect too.

Exit status: 0 success, whether or not there are differences, 1 a file could not be written,
2 wrong input.";

/// `ringfile perf pool`.
pub const POOL: &str = "\
Examples:
  Latency of messages at a fixed rate, and what the pool is worth at that rate:
    ringfile perf pool --rate-limit 200MiB --duration 30s --rounds 3

  Another disk, with small buffers in larger batches:
    ringfile perf pool --folder /data --bs 4k --batch 64 --rate-limit 100MiB

  A log of messages that are made durable in groups, with and without the page cache:
    ringfile perf pool --message-size 1000 --batch 100 --sync --rate-limit 100MiB

  As fast as possible, with more readers than writers, and only with the pool:
    ringfile perf pool --producers 2 --consumers 6 --memory pool --json pool.json

Figures:
  Latencies are in µs, for whole batches. A producer's latency counts from the time at which the
  batch was due by the rate, so that a stall shows in everything that was due meanwhile; without a
  rate it counts from the batch's start. A consumer's latency counts from the time at which the
  batch was written until it has been read and checked. late p99 is the part before the batch was
  started. p99.99 needs 10,000 operations or more. CPU µs is user and system time of the side's own
  threads per buffer. Figures are medians over the rounds; the A/A row compares the first kind of
  memory with itself, and smaller changes are noise. Below the tables are notes on whether the rate
  was kept, and on what the pool did.

Exit status: 0 success, 1 I/O failed or a block had wrong content, 2 the input cannot be carried
out, 130 interrupted (what was measured until then is printed and saved).";
