// One read that was started by ReadAsync: what RocksDB's handle points to.
#pragma once

#include <string>
#include <vector>

#include "file.h"
#include "version.h"

namespace ringfile_rocksdb {

// Invariants: the callback is called once, by Poll or Abort and never inside Start; when it is called, nobody else
// has the memory of the read any more. Any thread may poll and abort: an iterator may end on another than it began on.
class AsyncRead {
  public:
    static rocksdb::IOStatus Start(const File& file, const rocksdb::FSReadRequest& request, ReadCallback callback,
                                   void* argument, void** handle, rocksdb::IOHandleDeleter* deleter);

    // Returns when all of the reads have had their callbacks called.
    static void Poll(const std::vector<void*>& handles);

    // Returns when none of the reads has its memory any more. Their callbacks are told that they were aborted, which frees
    // what RocksDB keeps for them.
    static void Abort(const std::vector<void*>& handles);

    AsyncRead(const AsyncRead&) = delete;
    AsyncRead& operator=(const AsyncRead&) = delete;
    ~AsyncRead();

  private:
    AsyncRead(const File& file, const rocksdb::FSReadRequest& request, ReadCallback callback, void* argument);

    // The result, when the memory is free again.
    int64_t Wait();
    void Finish(int64_t done, bool aborted);

    // Null once it was waited for.
    ringfile_async_read* read_ = nullptr;
    rocksdb::FSReadRequest request_;
    ReadCallback callback_;
    void* argument_;
    const std::string path_;
};

}  // namespace ringfile_rocksdb
