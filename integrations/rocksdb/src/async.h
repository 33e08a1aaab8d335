// One read that was started by ReadAsync: what RocksDB's handle points to.
#pragma once

#include <vector>

#include "file.h"
#include "version.h"

namespace ringfile_rocksdb {

rocksdb::IOStatus ReadError(const File& file, uint64_t offset, size_t length, int error);

// What always holds: the callback is called once, by Poll or Abort and never inside Start; when it is called, nobody else
// has the memory of the read any more.
class AsyncRead {
  public:
    static rocksdb::IOStatus Start(const File& file, const rocksdb::FSReadRequest& request, ReadCallback callback,
                                   void* argument, void** handle, rocksdb::IOHandleDeleter* deleter);

    // Returns when at least `at_least` of the reads, and all that end meanwhile, have had their callbacks called.
    static void Poll(const std::vector<void*>& handles, size_t at_least);

    // Returns when none of the reads has its memory any more. Their callbacks are told that they were aborted, which frees
    // what RocksDB keeps for them.
    static void Abort(const std::vector<void*>& handles);
};

}  // namespace ringfile_rocksdb
