// Turns errors of the kernel into RocksDB's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rocksdb/io_status.h"

namespace ringfile_rocksdb {

// Returns the IOStatus for an errno. RocksDB acts on its kind: it retries after "no space" later, and handles a missing
// file separately.
rocksdb::IOStatus ErrorStatus(const std::string& doing, const std::string& path, int error);

rocksdb::IOStatus ReadError(const std::string& path, uint64_t offset, size_t length, int error);

}  // namespace ringfile_rocksdb
