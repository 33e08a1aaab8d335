// Files that are read once from the beginning: logs at recovery, manifests, tables that are copied.
#pragma once

#include <memory>

#include "file.h"
#include "rocksdb/file_system.h"

namespace ringfile_rocksdb {

class SequentialFile : public rocksdb::FSSequentialFile {
  public:
    explicit SequentialFile(std::unique_ptr<File> file) : file_(std::move(file)) {}

    rocksdb::IOStatus Read(size_t n, const rocksdb::IOOptions& options, rocksdb::Slice* result, char* scratch,
                           rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus PositionedRead(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                                     rocksdb::Slice* result, char* scratch, rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus Skip(uint64_t n) override;
    rocksdb::IOStatus InvalidateCache(size_t offset, size_t length) override;
    bool use_direct_io() const override { return file_->direct(); }
    size_t GetRequiredBufferAlignment() const override { return file_->Alignment(); }

  private:
    const std::unique_ptr<File> file_;
    uint64_t position_ = 0;
};

}  // namespace ringfile_rocksdb
