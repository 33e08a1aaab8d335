// A RocksDB FileSystem that reads and writes data files with ringfile.
//
// Programs that name it by a URI do not need this header: preload or link libringfile_rocksdb.so and pass `ringfile://`
// where RocksDB accepts a file system (--fs_uri, FileSystem::CreateFromString, Env::CreateFromUri).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rocksdb/file_system.h"

#pragma GCC visibility push(default)

namespace ringfile_rocksdb {

// The route of reads and writes. kAuto learns the cheapest route of each file; start with it. kAio is Linux AIO for
// direct I/O, and kAuto for buffered files.
enum class Route { kAuto, kRing, kInline, kWorkers, kAio };

// Makes a file system over `base` (FileSystem::Default() if it is null). ringfile carries out random access, sequential
// and writable files; mmapped files, directories, locks, loggers, renames and everything else are left to `base`, which
// must keep its files under their own names in the kernel's file systems.
//
// Safe for concurrent use, as RocksDB requires of every FileSystem. For an Env: rocksdb::NewCompositeEnv(fs).
std::shared_ptr<rocksdb::FileSystem> NewRingfileFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base = nullptr,
                                                           Route route = Route::kAuto);

// Counts of all file systems of this kind in this process, from its start.
struct Statistics {
    // Calls from RocksDB.
    uint64_t reads = 0;
    uint64_t multi_reads = 0;
    uint64_t multi_read_requests = 0;
    uint64_t multi_read_bytes = 0;
    uint64_t multi_read_errors = 0;
    uint64_t async_reads = 0;
    uint64_t async_reads_aborted = 0;
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
};

Statistics GetStatistics();

// Returns a line for each count, `name value`.
std::string ToString(const Statistics& statistics);

}  // namespace ringfile_rocksdb

#pragma GCC visibility pop
