// Files that many threads read at once, at any offset: tables, blob files.
#pragma once

#include <memory>

#include "file.h"
#include "rocksdb/file_system.h"
#include "version.h"

namespace ringfile_rocksdb {

class RandomAccessFile : public rocksdb::FSRandomAccessFile {
  public:
    RandomAccessFile(std::unique_ptr<File> file, uint32_t async_reads)
        : file_(std::move(file)), async_reads_(async_reads) {}

    rocksdb::IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options, rocksdb::Slice* result,
                           char* scratch, rocksdb::IODebugContext* dbg) const override;

    // Reads all requests at once; each gets its own status.
    rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const rocksdb::IOOptions& options,
                                rocksdb::IODebugContext* dbg) override;

    rocksdb::IOStatus ReadAsync(rocksdb::FSReadRequest& request, const rocksdb::IOOptions& options,
                                ReadCallback callback, void* argument, void** handle,
                                rocksdb::IOHandleDeleter* deleter, rocksdb::IODebugContext* dbg) override;

    // Starts a read, and returns true. One of ringfile's threads calls the callback, and does not wait in it; RocksDB's
    // own callback only wakes the coroutine. If the read cannot be started, reads it now, and returns false. Older versions
    // of RocksDB lack it, as they lack GetFileSize.
    virtual bool SubmitReadAsync(rocksdb::FSReadRequest& request, const rocksdb::IOOptions& options,
                                 SubmittedCallback callback, rocksdb::IODebugContext* dbg);

    rocksdb::IOStatus Prefetch(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;
    void Hint(AccessPattern pattern) override;
    size_t GetUniqueId(char* id, size_t room) const override;

    // Returns the open file's size, even if the file has been renamed or deleted. Older versions of
    // RocksDB lack it, hence no `override`; version.h checks its type.
    virtual rocksdb::IOStatus GetFileSize(uint64_t* result);

    bool use_direct_io() const override { return file_->direct(); }
    size_t GetRequiredBufferAlignment() const override { return file_->Alignment(); }

  private:
    const std::unique_ptr<File> file_;
    const uint32_t async_reads_;
};

}  // namespace ringfile_rocksdb
