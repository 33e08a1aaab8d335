// Errors of the kernel as RocksDB knows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rocksdb/io_status.h"

namespace ringfile_rocksdb {

// The IOStatus for an errno. RocksDB acts on its kind: no space is tried again later, a missing file is told apart.
rocksdb::IOStatus ErrorStatus(const std::string& doing, const std::string& path, int error);

rocksdb::IOStatus ReadError(const std::string& path, uint64_t offset, size_t length, int error);

}  // namespace ringfile_rocksdb
