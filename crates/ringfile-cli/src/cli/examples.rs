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
--force.

Exit status: 0 success, 1 I/O failed or a block had wrong content, 2 the input cannot be carried
out, 130 interrupted (what was measured until then is printed and saved).";

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
    ringfile perf file --file /data/test.bin --rw randrw --verify";

/// `ringfile perf batch`.
pub const BATCH: &str = "\
Examples:
  Batches of 64 random reads from a disk, compared with fio at the same depth:
    ringfile perf batch --file /data/test.bin --direct --rounds 5

  One large batch at a time compared with 16, all on one core:
    taskset -c 0 ringfile perf batch --file /data/test.bin --numjobs 1 --batch 256 --inflight 1,16";

/// `ringfile perf multiread`.
pub const MULTIREAD: &str = "\
Examples:
  What a lookup of 250 blocks costs with each way to read them:
    ringfile perf multiread --file /data/test.bin --direct --batch 250 --rounds 5

  From the page cache, in blocks of 4 KiB, without fio:
    ringfile perf multiread --bs 4k --engines ringfile,by-hand,pread";

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
    ringfile perf buffers --bs 128k --iodepth 16 --rounds 5 --profile --report parts.html";

/// `ringfile report`.
pub const REPORT: &str = "\
Examples:
  A page that shows saved results:
    ringfile report grid.json --out grid.html

  Two kernels, two machines, before and after a change:
    ringfile perf buffers --quick --file /data/test.bin --json before.json
    ringfile perf buffers --quick --file /data/test.bin --json after.json
    ringfile report before.json after.json";

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
    ringfile perf pool --producers 2 --consumers 6 --memory pool --json pool.json";
