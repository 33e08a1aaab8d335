// One read that was started by ReadAsync: the object behind RocksDB's handle.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "file.h"
#include "version.h"

namespace ringfile_rocksdb {

// Invariants: Poll or Abort calls the callback exactly once, and Start never does. When the callback runs, nothing else
// uses the read's memory.
// Any thread may poll and abort a read, because an iterator may end on another thread than the one where it began. Each
// thread starts reads on a queue of its own, which other threads may use; who waits for a read collects it.
class AsyncRead {
  public:
    // Adds the read to the thread's queue. Submits it if the thread then has at most `in_flight` reads whose results
    // were not taken: what a device has begun, Abort must wait for. The others start when one of them is polled.
    static rocksdb::IOStatus Start(const File& file, uint32_t in_flight, const rocksdb::FSReadRequest& request,
                                   ReadCallback callback, void* argument, void** handle,
                                   rocksdb::IOHandleDeleter* deleter);

    // Returns once the callbacks of all reads have run.
    static void Poll(const std::vector<void*>& handles);

    // Returns once no read uses its memory any more. The callbacks learn that the reads were aborted, which frees what
    // RocksDB keeps for them.
    static void Abort(const std::vector<void*>& handles);

    AsyncRead(const AsyncRead&) = delete;
    AsyncRead& operator=(const AsyncRead&) = delete;
    ~AsyncRead();

  private:
    AsyncRead(const File& file, const rocksdb::FSReadRequest& request, ReadCallback callback, void* argument);

    bool IsOpen() const { return token_ != 0; }
    // Waits for the read, and returns the result; the memory is free afterwards.
    int64_t Wait();
    void Finish(int64_t done, bool aborted);

    std::shared_ptr<ringfile_queue> queue_;
    // The read's number in its queue; 0 if it was not started, or was waited for.
    uint64_t token_ = 0;
    rocksdb::FSReadRequest request_;
    ReadCallback callback_;
    void* argument_;
    const std::string path_;
};

}  // namespace ringfile_rocksdb
