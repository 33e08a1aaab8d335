// A RocksDB FileSystem that reads and writes data files with ringfile.
//
// Programs that use its URI do not need this header: preload or link libringfile_rocksdb.so, and pass `ringfile://`
// where RocksDB accepts a file system (--fs_uri, FileSystem::CreateFromString, Env::CreateFromUri).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rocksdb/file_system.h"

#pragma GCC visibility push(default)

namespace ringfile_rocksdb {

// The route of reads and writes. kAuto, the one to start with, learns the cheapest route for each file. kAio uses Linux AIO
// for direct I/O, and is like kAuto for buffered files. kAdaptive is like kAuto, except that tables that RocksDB reads
// without direct I/O are adaptive: cached data comes from the page cache, other data is read past it, and data that is read
// again gets cached.
enum class Route { kAuto, kRing, kInline, kWorkers, kAio, kAdaptive };

// The number of asynchronous reads (ReadAsync) that a thread has in flight unless told otherwise.
constexpr uint32_t kDefaultAsyncReads = 128;

// Creates a file system on top of `base` (FileSystem::Default() if it is null). ringfile carries out random access, sequential
// and writable files; mmapped files, directories, locks, loggers, renames and everything else are left to `base`, which
// must store its files under the same names in file systems of the kernel.
//
// While a thread has `async_reads` reads of ReadAsync in flight, further ones wait until one of the thread's reads is
// polled. It must be at least 1.
//
// Safe for concurrent use, as RocksDB requires of every FileSystem. For an Env: rocksdb::NewCompositeEnv(fs).
std::shared_ptr<rocksdb::FileSystem> NewRingfileFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base = nullptr,
                                                           Route route = Route::kAuto,
                                                           uint32_t async_reads = kDefaultAsyncReads);

// Counts of all ringfile file systems in this process, since it started.
struct Statistics {
    // Calls from RocksDB.
    uint64_t reads = 0;
    uint64_t multi_reads = 0;
    uint64_t multi_read_requests = 0;
    uint64_t multi_read_bytes = 0;
    uint64_t multi_read_errors = 0;
    uint64_t async_reads = 0;
    uint64_t async_reads_aborted = 0;
    uint64_t submitted_reads = 0;
    uint64_t sequential_reads = 0;
    uint64_t appends = 0;
    uint64_t append_bytes = 0;
    uint64_t syncs = 0;
    // Operations of ringfile by route, and those that used registered memory.
    uint64_t through_ring = 0;
    uint64_t inline_calls = 0;
    uint64_t by_workers = 0;
    uint64_t by_aio = 0;
    uint64_t registered = 0;
    // Reads with kAdaptive whose data was in the page cache, and those whose data, or a part of it, was not.
    uint64_t cache_hits = 0;
    uint64_t cache_misses = 0;
};

Statistics GetStatistics();

// Returns a line for each count, `name value`.
std::string ToString(const Statistics& statistics);

}  // namespace ringfile_rocksdb

#pragma GCC visibility pop
