// The FileSystem: opens files for reading and writing with ringfile, and leaves everything else to another one.
#include "file_system.h"

#include "async.h"
#include "counters.h"
#include "random_access.h"
#include "sequential.h"
#include "writable.h"

namespace ringfile_rocksdb {

using rocksdb::FileOptions;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSSequentialFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOStatus;

namespace {

uint32_t Number(Route route) {
    switch (route) {
        case Route::kRing:
            return RINGFILE_ROUTE_RING;
        case Route::kInline:
            return RINGFILE_ROUTE_INLINE;
        case Route::kWorkers:
            return RINGFILE_ROUTE_WORKERS;
        case Route::kAio:
            return RINGFILE_ROUTE_AIO;
        case Route::kAuto:
        case Route::kAdaptive:
            break;
    }
    return RINGFILE_ROUTE_AUTO;
}

uint32_t ReadFlags(const FileOptions& options) {
    return RINGFILE_READ | (options.use_direct_reads ? RINGFILE_DIRECT : 0);
}

}  // namespace

FileSystem::FileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, Route route, uint32_t async_reads)
    : FileSystemWrapper(base),
      route_(Number(route)),
      table_flags_(route == Route::kAdaptive ? uint32_t{RINGFILE_ADAPTIVE} : 0),
      async_reads_(async_reads) {
    ReportAtExit();
}

// Files that RocksDB maps, for reading or for writing, go to the base file system.
IOStatus FileSystem::NewRandomAccessFile(const std::string& path, const FileOptions& options,
                                         std::unique_ptr<FSRandomAccessFile>* result, IODebugContext* dbg) {
    if (options.use_mmap_reads) {
        return target()->NewRandomAccessFile(path, options, result, dbg);
    }
    result->reset();
    std::unique_ptr<File> file;
    const Access access{ReadFlags(options) | (options.use_direct_reads ? 0 : table_flags_), route_};
    const IOStatus status = File::Open("While opening a file for random access", path, access, &file);
    if (status.ok()) {
        result->reset(new RandomAccessFile(std::move(file), async_reads_));
    }
    return status;
}

IOStatus FileSystem::NewSequentialFile(const std::string& path, const FileOptions& options,
                                       std::unique_ptr<FSSequentialFile>* result, IODebugContext*) {
    result->reset();
    std::unique_ptr<File> file;
    // RocksDB does not map sequential files. If it maps other files, it does not align its memory: these reads are buffered.
    const uint32_t flags = options.use_mmap_reads ? uint32_t{RINGFILE_READ} : ReadFlags(options);
    const IOStatus status = File::Open("While opening a file for reading in sequence", path, {flags, route_}, &file);
    if (status.ok()) {
        result->reset(new SequentialFile(std::move(file)));
    }
    return status;
}

IOStatus FileSystem::OpenWritable(const std::string& path, uint32_t flags, const FileOptions& options,
                                  Beginning beginning, std::unique_ptr<FSWritableFile>* result) const {
    result->reset();
    std::unique_ptr<File> file;
    const uint32_t direct = options.use_direct_writes ? RINGFILE_DIRECT : 0;
    const Access access{RINGFILE_WRITE | direct | flags, route_};
    IOStatus status = File::Open("While opening a file for writing", path, access, &file);
    if (!status.ok()) {
        return status;
    }
    const int64_t begin = beginning == Beginning::kAtEnd ? file->Size() : 0;
    if (begin < 0) {
        return file->Error("While looking for the end of a file", static_cast<int>(-begin));
    }
    result->reset(new WritableFile(std::move(file), options, static_cast<uint64_t>(begin)));
    return status;
}

IOStatus FileSystem::NewWritableFile(const std::string& path, const FileOptions& options,
                                     std::unique_ptr<FSWritableFile>* result, IODebugContext* dbg) {
    if (options.use_mmap_writes) {
        return target()->NewWritableFile(path, options, result, dbg);
    }
    return OpenWritable(path, RINGFILE_CREATE | RINGFILE_TRUNCATE, options, Beginning::kEmpty, result);
}

IOStatus FileSystem::ReopenWritableFile(const std::string& path, const FileOptions& options,
                                        std::unique_ptr<FSWritableFile>* result, IODebugContext* dbg) {
    if (options.use_mmap_writes) {
        return target()->ReopenWritableFile(path, options, result, dbg);
    }
    return OpenWritable(path, RINGFILE_CREATE, options, Beginning::kAtEnd, result);
}

// Keeps the old content until it is overwritten, because a recycled log already has its blocks allocated.
IOStatus FileSystem::ReuseWritableFile(const std::string& path, const std::string& old_path,
                                       const FileOptions& options, std::unique_ptr<FSWritableFile>* result,
                                       IODebugContext* dbg) {
    if (options.use_mmap_writes) {
        return target()->ReuseWritableFile(path, old_path, options, result, dbg);
    }
    result->reset();
    const IOStatus renamed = target()->RenameFile(old_path, path, options.io_options, dbg);
    return renamed.ok() ? OpenWritable(path, 0, options, Beginning::kEmpty, result) : renamed;
}

// Applies to all threads, as in RocksDB's own file system.
IOStatus FileSystem::Poll(std::vector<void*>& handles, size_t) {
    AsyncRead::Poll(handles);
    return IOStatus::OK();
}

IOStatus FileSystem::AbortIO(std::vector<void*>& handles) {
    AsyncRead::Abort(handles);
    return IOStatus::OK();
}

#if RINGFILE_ROCKSDB_AT_LEAST(8, 4)
void FileSystem::SupportedOps(int64_t& supported) {
    supported = int64_t{1} << rocksdb::FSSupportedOps::kAsyncIO;
#if RINGFILE_ROCKSDB_AT_LEAST(10, 8)
    // Without this bit, RocksDB reads ahead into its own memory instead.
    supported |= int64_t{1} << rocksdb::FSSupportedOps::kFSPrefetch;
#endif
}
#endif

std::shared_ptr<rocksdb::FileSystem> NewRingfileFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base,
                                                           Route route, uint32_t async_reads) {
    return std::make_shared<FileSystem>(base != nullptr ? base : rocksdb::FileSystem::Default(), route, async_reads);
}

}  // namespace ringfile_rocksdb
