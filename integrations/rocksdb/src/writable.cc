// Files that are written from the beginning to the end: logs, tables, manifests.
#include "writable.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "counters.h"

#ifndef F_SET_RW_HINT
#define F_SET_RW_HINT (1024 + 12)
#endif

namespace ringfile_rocksdb {

using rocksdb::DataVerificationInfo;
using rocksdb::Env;
using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

WritableFile::WritableFile(std::unique_ptr<File> file, const FileOptions& options, uint64_t begin)
    : FSWritableFile(options),
      file_(std::move(file)),
      may_allocate_(options.allow_fallocate),
      allocate_keeps_size_(options.fallocate_with_keep_size),
      size_(begin) {}

WritableFile::~WritableFile() {
    if (open_) {
        WritableFile::Close(IOOptions(), nullptr).PermitUncheckedError();
    }
}

IOStatus WritableFile::Put(const Slice& data, uint64_t offset) {
    const int error = -file_->Write(offset, data.data(), data.size());
    if (error != 0) {
        return file_->Error("While writing " + std::to_string(data.size()) + " bytes at " + std::to_string(offset),
                            error);
    }
    size_ = offset + data.size();
    Count().appends.Add();
    Count().append_bytes.Add(data.size());
    return IOStatus::OK();
}

IOStatus WritableFile::Append(const Slice& data, const IOOptions&, IODebugContext*) { return Put(data, size_); }

IOStatus WritableFile::PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&, IODebugContext*) {
    return Put(data, offset);
}

IOStatus WritableFile::PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&,
                                        const DataVerificationInfo&, IODebugContext*) {
    return Put(data, offset);
}

// Nothing is buffered here.
IOStatus WritableFile::Flush(const IOOptions&, IODebugContext*) { return IOStatus::OK(); }

IOStatus WritableFile::SyncWith(int (File::*sync)() const, const char* doing) {
    Count().syncs.Add();
    const int error = -(file_.get()->*sync)();
    return error == 0 ? IOStatus::OK() : file_->Error(doing, error);
}

IOStatus WritableFile::Sync(const IOOptions&, IODebugContext*) {
    return SyncWith(&File::SyncData, "While syncing data");
}

IOStatus WritableFile::Fsync(const IOOptions&, IODebugContext*) {
    return SyncWith(&File::SyncAll, "While syncing data and metadata");
}

// Starts writeback, to spread it over time. With strict_bytes_per_sync, first waits for earlier writeback.
IOStatus WritableFile::RangeSync(uint64_t offset, uint64_t length, const IOOptions& options, IODebugContext* dbg) {
    const bool strict = strict_bytes_per_sync_;
    const uint64_t from = strict ? 0 : offset;
    const uint64_t bytes = strict ? offset + length : length;
    const uint32_t flags = RINGFILE_SYNC_RANGE_WRITE | (strict ? RINGFILE_SYNC_RANGE_WAIT_BEFORE : 0);
    const int error = -file_->SyncRange(from, bytes, flags);
    // Some kernels and file systems do not support it.
    if (error == ENOSYS || error == EOPNOTSUPP) {
        return FSWritableFile::RangeSync(offset, length, options, dbg);
    }
    return error == 0 ? IOStatus::OK() : file_->Error("While beginning to write back", error);
}

IOStatus WritableFile::Truncate(uint64_t size, const IOOptions&, IODebugContext*) {
    if (ftruncate(file_->descriptor(), static_cast<off_t>(size)) != 0) {
        return file_->Error("While truncating to " + std::to_string(size) + " bytes", errno);
    }
    size_ = size;
    return IOStatus::OK();
}

IOStatus WritableFile::Close(const IOOptions&, IODebugContext*) {
    if (!open_) {
        return IOStatus::OK();
    }
    open_ = false;
    TrimAllocated();
    const int error = -file_->Close();
    return error == 0 ? IOStatus::OK() : file_->Error("While closing after writing", error);
}

// Frees allocated blocks beyond the data. If this fails, the blocks only stay unused.
void WritableFile::TrimAllocated() {
    size_t block = 0;
    size_t allocated = 0;
    GetPreallocationStatus(&block, &allocated);
    if (allocated == 0) {
        return;
    }
    const int fd = file_->descriptor();
    if (ftruncate(fd, static_cast<off_t>(size_)) != 0) {
        return;
    }
    // Some file systems keep blocks beyond an unchanged size until a hole is punched.
    const uint64_t end = uint64_t{block} * allocated;
    struct stat now {};
    if (may_allocate_ && end > size_ && fstat(fd, &now) == 0 &&
        uint64_t(now.st_blocks) * 512 > size_ + uint64_t(now.st_blksize)) {
        (void)fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, static_cast<off_t>(size_),
                        static_cast<off_t>(end - size_));
    }
}

IOStatus WritableFile::Allocate(uint64_t offset, uint64_t length, const IOOptions&, IODebugContext*) {
    if (!may_allocate_) {
        return IOStatus::OK();
    }
    const int mode = allocate_keeps_size_ ? FALLOC_FL_KEEP_SIZE : 0;
    if (fallocate(file_->descriptor(), mode, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0) {
        return file_->Error("While allocating " + std::to_string(length) + " bytes at " + std::to_string(offset),
                            errno);
    }
    return IOStatus::OK();
}

IOStatus WritableFile::InvalidateCache(size_t offset, size_t length) { return file_->Invalidate(offset, length); }

void WritableFile::SetWriteLifeTimeHint(Env::WriteLifeTimeHint hint) {
    if (hint == write_hint_) {
        return;
    }
    uint64_t number = hint;
    if (fcntl(file_->descriptor(), F_SET_RW_HINT, &number) == 0) {
        write_hint_ = hint;
    }
}

uint64_t WritableFile::GetFileSize(const IOOptions&, IODebugContext*) { return size_; }

size_t WritableFile::GetUniqueId(char* id, size_t room) const { return file_->UniqueId(id, room); }

}  // namespace ringfile_rocksdb
