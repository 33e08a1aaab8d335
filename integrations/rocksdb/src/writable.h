// Files that are written from the beginning to the end: logs, tables, manifests.
#pragma once

#include <memory>

#include "file.h"
#include "rocksdb/file_system.h"

namespace ringfile_rocksdb {

class WritableFile : public rocksdb::FSWritableFile {
  public:
    // Appends start at `begin`, up to which the file's content is kept.
    WritableFile(std::unique_ptr<File> file, const rocksdb::FileOptions& options, uint64_t begin);
    ~WritableFile() override;

    using rocksdb::FSWritableFile::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset, const rocksdb::IOOptions& options,
                                       const rocksdb::DataVerificationInfo& info,
                                       rocksdb::IODebugContext* dbg) override;

    rocksdb::IOStatus Flush(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus RangeSync(uint64_t offset, uint64_t length, const rocksdb::IOOptions& options,
                                rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus Truncate(uint64_t size, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus Close(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;

    rocksdb::IOStatus Allocate(uint64_t offset, uint64_t length, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;
    void SetWriteLifeTimeHint(rocksdb::Env::WriteLifeTimeHint hint) override;

    uint64_t GetFileSize(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override;
    size_t GetUniqueId(char* id, size_t room) const override;
    bool IsSyncThreadSafe() const override { return true; }
    bool use_direct_io() const override { return file_->direct(); }
    size_t GetRequiredBufferAlignment() const override { return file_->Alignment(); }

  private:
    rocksdb::IOStatus Put(const rocksdb::Slice& data, uint64_t offset);
    rocksdb::IOStatus SyncWith(int (File::*sync)() const, const char* doing);
    void TrimAllocated();

    const std::unique_ptr<File> file_;
    const bool may_allocate_;
    const bool allocate_keeps_size_;
    // The offset of the next append; the data before it is valid.
    uint64_t size_;
    bool open_ = true;
};

}  // namespace ringfile_rocksdb
