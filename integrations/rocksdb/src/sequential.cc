// Files that are read once from the beginning: logs at recovery, manifests, tables that are copied.
#include "sequential.h"

#include "counters.h"
#include "status.h"

namespace ringfile_rocksdb {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Returns no data at the end of the file, and continues after more has been written, because RocksDB follows growing logs.
IOStatus SequentialFile::Read(size_t n, const IOOptions& options, Slice* result, char* scratch, IODebugContext* dbg) {
    const IOStatus status = PositionedRead(position_, n, options, result, scratch, dbg);
    position_ += result->size();
    return status;
}

IOStatus SequentialFile::PositionedRead(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                                        IODebugContext*) {
    Count().sequential_reads.Add();
    const int64_t done = file_->Read(offset, n, scratch);
    *result = Slice(scratch, done < 0 ? 0 : static_cast<size_t>(done));
    return done < 0 ? ReadError(file_->path(), offset, n, static_cast<int>(-done)) : IOStatus::OK();
}

IOStatus SequentialFile::Skip(uint64_t n) {
    position_ += n;
    return IOStatus::OK();
}

IOStatus SequentialFile::InvalidateCache(size_t offset, size_t length) { return file_->Invalidate(offset, length); }

}  // namespace ringfile_rocksdb
