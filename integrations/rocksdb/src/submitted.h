// One read that was started by SubmitReadAsync, which RocksDB 11.8 calls for coroutines.
#pragma once

#include <memory>

#include "file.h"
#include "version.h"

namespace ringfile_rocksdb {

// Unlike the reads of async.h, nobody polls it. It is a batch of one read, which one of ringfile's I/O threads carries
// out. Invariant: if Start returns true, the callback is called exactly once, never inside Start, and after that nothing uses
// the request or its memory.
class SubmittedRead {
  public:
    // Returns false if the read was not started; then the callback is still the caller's. The file and the request must
    // live until the callback is called.
    static bool Start(const File& file, rocksdb::FSReadRequest& request, SubmittedCallback& callback);

  private:
    SubmittedRead(const File& file, rocksdb::FSReadRequest& request) : file_(file), request_(request) {}

    static void Ended(void* context, int64_t failed);

    const File& file_;
    rocksdb::FSReadRequest& request_;
    SubmittedCallback callback_;
    std::unique_ptr<ringfile_batch, int (*)(ringfile_batch*)> batch_{nullptr, ringfile_batch_free};
};

}  // namespace ringfile_rocksdb
