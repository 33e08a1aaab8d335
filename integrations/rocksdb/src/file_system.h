// The FileSystem: opens files for reading and writing with ringfile, and leaves everything else to another one.
#pragma once

#include <memory>
#include <string>

#include "file.h"
#include "ringfile/rocksdb.h"
#include "rocksdb/file_system.h"
#include "version.h"

namespace ringfile_rocksdb {

class FileSystem : public rocksdb::FileSystemWrapper {
  public:
    FileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, Route route, uint32_t async_reads);

    static const char* kClassName() { return "RingfileFileSystem"; }
    const char* Name() const override { return kClassName(); }
    const char* NickName() const override { return "ringfile"; }

    rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                                          std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                          rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                        rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* result,
                                      rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                         std::unique_ptr<rocksdb::FSWritableFile>* result,
                                         rocksdb::IODebugContext* dbg) override;
    rocksdb::IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSWritableFile>* result,
                                        rocksdb::IODebugContext* dbg) override;

    rocksdb::IOStatus Poll(std::vector<void*>& handles, size_t at_least) override;
    rocksdb::IOStatus AbortIO(std::vector<void*>& handles) override;

#if RINGFILE_ROCKSDB_AT_LEAST(8, 4)
    void SupportedOps(int64_t& supported) override;
#elif RINGFILE_ROCKSDB_AT_LEAST(7, 9)
    // Some of these versions lack it, hence no `override`.
    virtual bool use_async_io() { return true; }
#endif

  private:
    enum class Beginning { kEmpty, kAtEnd };

    rocksdb::IOStatus OpenWritable(const std::string& path, uint32_t flags, const rocksdb::FileOptions& options,
                                   Beginning beginning, std::unique_ptr<rocksdb::FSWritableFile>* result) const;

    const uint32_t route_;
    // The flags of tables that are read without direct I/O: RINGFILE_ADAPTIVE or 0.
    const uint32_t table_flags_;
    const uint32_t async_reads_;
};

}  // namespace ringfile_rocksdb
