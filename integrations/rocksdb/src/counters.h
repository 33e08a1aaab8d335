// Counts of RocksDB's calls. Updated with relaxed ordering: they are sums, and do not synchronise anything.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringfile_rocksdb {

// Each counter has its own cache line, because reading threads and writing threads add to different counters.
struct alignas(64) Counter {
    std::atomic<uint64_t> value{0};

    void Add(uint64_t count = 1) { value.fetch_add(count, std::memory_order_relaxed); }
    uint64_t Get() const { return value.load(std::memory_order_relaxed); }
};

struct Counters {
    Counter reads;
    // Calls of pread, which ringfile does not count.
    Counter plain_reads;
    Counter multi_reads;
    Counter multi_read_requests;
    Counter multi_read_bytes;
    Counter multi_read_errors;
    Counter async_reads;
    Counter async_reads_aborted;
    Counter submitted_reads;
    Counter sequential_reads;
    Counter appends;
    Counter append_bytes;
    Counter syncs;
};

// Returns the counts of this process. They are never destroyed, because RocksDB's threads may read while the process exits.
Counters& Count();

// Writes the statistics when the process exits, if RINGFILE_ROCKSDB_STATISTICS names a file ("-": standard error).
void ReportAtExit();

}  // namespace ringfile_rocksdb
