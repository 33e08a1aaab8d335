//! What stands below the options in the long help: examples to copy, and what the figures mean.

/// `ringfile`.
pub const ALL: &str = "\
Begin with:
  What to set for files on the disk of /var/tmp, in two minutes:
    ringfile perf buffers --quick --report report.html

  What the software costs, without a disk:
    ringfile perf file

  A disk of yours, beside fio:
    ringfile perf file --file /data/test.bin --direct --against fio

Existing files are never written to without --overwrite, and no output file is replaced without
--force.";

/// `ringfile perf file`.
pub const FILE: &str = "\
Examples:
  The cost of the software alone, on 1 GiB in memory:
    ringfile perf file

  A disk past its page cache, beside fio, with the noise shown:
    ringfile perf file --file /data/test.bin --direct --iodepth 1,128 --against fio --rounds 5

  An existing file through each route, without writing to it:
    ringfile perf file --file /data/table.db --rw randread --route auto,ring,inline,workers

  Whether every byte arrives where it should:
    ringfile perf file --file /data/test.bin --rw randrw --verify

Figures:
  IOPS, MiB/s and latencies are medians of the rounds; CPU µs is user and system time for one
  operation, kernel workers included. Changes are paired within each round; the A/A row is a run
  against itself, and smaller changes are noise.

Exit status: 0 done, 1 I/O failed while measuring, 2 the input cannot be carried out, 130 interrupted
(what was measured is printed and saved).";

/// `ringfile perf batch`.
pub const BATCH: &str = "\
Examples:
  Batches of 64 random reads from a disk, beside fio at the same depth:
    ringfile perf batch --file /data/test.bin --direct --rounds 5

  Each block of 1 GiB once, with nothing in the page cache:
    ringfile perf batch --file /data/test.bin --io-size all --rounds 5

  The queue and fio, both submitting and reaping in groups of 16:
    ringfile perf batch --file /data/test.bin --direct --engines ringfile-queue,fio \\
      --iodepth-batch-submit 16 --iodepth-batch-complete 16

  Few large batches against many small ones, all on one core:
    taskset -c 0 ringfile perf batch --file /data/test.bin --numjobs 1 --batch 256 --inflight 1,16

Exit status: 0 done, 1 I/O failed while measuring, 2 the input cannot be carried out,
130 interrupted.";

/// `ringfile perf multiread`.
pub const MULTIREAD: &str = "\
Examples:
  What a lookup of 250 blocks costs, by each way to read them:
    ringfile perf multiread --file /data/test.bin --direct --batch 250 --rounds 5

  From the page cache, in blocks of 4 KiB, without fio:
    ringfile perf multiread --bs 4k --engines ringfile,two-rings,submit-only,pread

Exit status: 0 done, 1 I/O failed while measuring, 2 the input cannot be carried out,
130 interrupted.";

/// `ringfile perf buffers`.
pub const BUFFERS: &str = "\
Examples:
  What to set for files on the disk of /var/tmp, in two minutes, as a page and as a configuration:
    ringfile perf buffers --quick --report report.html --emit-config ringfile.toml

  The same for an existing file, which is only read:
    ringfile perf buffers --quick --file /data/table.db

  The whole grid; after Ctrl-C it can be resumed:
    ringfile perf buffers --file /data/test.bin --json grid.json
    ringfile perf buffers --resume grid.json

  The baseline of earlier studies, rings without any of the newer flags, and what each flag is worth:
    ringfile perf buffers --bs 4k --iodepth 16,128 --ring-flags none,coop,defer,sqpoll --by-hand

  What 32 parts cost, and where the CPU time goes:
    ringfile perf buffers --bs 128k --iodepth 16 --rounds 5 --profile --report parts.html

Figures:
  IOPS, MiB/s and latencies are medians of the rounds, of all processes together. user and sys are
  CPU time in per cent of one core, kernel workers included; CPU µs is their sum for one operation.
  Beside it stand the CPU time of the whole machine, from /proc/stat, and the bytes that memory moved, if
  the machine counts them (perf's uncore_imc_*, resctrl).
  A difference is claimed only if all rounds agree on it and it is larger than the difference of the
  same measurement from itself (A/A).

Exit status: 0 done, 1 I/O failed while measuring, 2 the input cannot be carried out, 130 interrupted
(what was measured is printed and saved).";

/// `ringfile report`.
pub const REPORT: &str = "\
Examples:
  A page of saved results:
    ringfile report grid.json --out grid.html

  Two kernels, two machines, before and after a change; also on the terminal:
    ringfile perf buffers --quick --file /data/test.bin --json before.json
    ringfile perf buffers --quick --file /data/test.bin --json after.json
    ringfile report before.json after.json --out change.html

  A plot for a README, for light and dark pages:
    ringfile report grid.json --svg iops.svg --plot iops

Figures:
  Medians of the rounds are compared, in cells that both have: IOPS, CPU µs for one operation,
  p50 and p99. A difference is outside the spread if all rounds and A/A runs of one lie above those
  of the other, by more than the A/A runs of both vary; that takes 3 rounds on each side. Sessions
  are not measured in turn: whatever changed on the machine in between has an effect too.

Exit status: 0 done, whatever differs; 1 a file could not be written, 2 wrong input.";

/// `ringfile perf pool`.
pub const POOL: &str = "\
Examples:
  Latency of messages at a rate that the disk can keep, and what the pool is worth there:
    ringfile perf pool --rate-limit 100MB --duration 30s --rounds 3

  Another disk, with small buffers in larger batches:
    ringfile perf pool --folder /data --bs 4k --batch 64 --rate-limit 50MB

  A log of messages, durable in groups, past the page cache and through it:
    ringfile perf pool --message-size 1000 --batch 100 --sync --rate-limit 50MB

  As fast as possible, with more readers than writers, only the pool:
    ringfile perf pool --producers 2 --consumers 6 --memory pool --json pool.json

Figures:
  Latencies are in µs, for whole batches. A producer's latency counts from the time at which the batch
  was due by the rate, so that a stall shows in everything that was due meanwhile; without a rate, from
  its start. A consumer's latency counts from when the batch was written until it is read and checked.
  late p99 is the part of it before the batch was started. p99.99 needs 10,000 operations or more. CPU
  µs is user and system time of the side's own threads for one buffer. Figures are medians of the
  rounds; the A/A row is the first kind of memory against itself, and smaller changes are noise. Below
  the tables: whether the rate was kept, and what the pool did.

Exit status: 0 done, 1 I/O failed or a block was not what had been written, 2 the input cannot be
carried out, 130 interrupted (what was measured is printed and saved).";
