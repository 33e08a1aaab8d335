// Files that many threads read at once, at any offset: tables, blob files.
#include "random_access.h"

#include <fcntl.h>

#include <cerrno>
#include <vector>

#include "async.h"
#include "counters.h"
#include "status.h"
#include "submitted.h"

namespace ringfile_rocksdb {

using rocksdb::FSReadRequest;
using rocksdb::IODebugContext;
using rocksdb::IOHandleDeleter;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

IOStatus RandomAccessFile::Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                                IODebugContext*) const {
    Count().reads.Add();
    const int64_t done = file_->Read(offset, n, scratch);
    *result = Slice(scratch, done < 0 ? 0 : static_cast<size_t>(done));
    return done < 0 ? ReadError(file_->path(), offset, n, static_cast<int>(-done)) : IOStatus::OK();
}

IOStatus RandomAccessFile::MultiRead(FSReadRequest* requests, size_t count, const IOOptions&, IODebugContext*) {
    // Each thread has one list, so a call allocates nothing if the thread has made a call of that size before.
    static thread_local std::vector<ringfile_read_request> reads;
    reads.resize(count);
    for (size_t i = 0; i < count; ++i) {
        reads[i] = {requests[i].offset, requests[i].scratch, requests[i].len, 0};
    }
    int failed = 0;
    if (count == 1) {
        reads[0].result = file_->Read(requests[0].offset, requests[0].len, requests[0].scratch);
    } else {
        failed = ringfile_read_many(file_->handle(), reads.data(), count);
    }
    // If no read was started, each read gets this result, because RocksDB would apply the call's own status to all of them.
    uint64_t bytes = 0;
    uint64_t errors = 0;
    for (size_t i = 0; i < count; ++i) {
        const int64_t done = failed < 0 ? failed : reads[i].result;
        FSReadRequest& request = requests[i];
        request.result = Slice(request.scratch, done < 0 ? 0 : static_cast<size_t>(done));
        request.status = done < 0 ? ReadError(file_->path(), request.offset, request.len, static_cast<int>(-done))
                                  : IOStatus::OK();
        bytes += request.result.size();
        errors += done < 0 ? 1 : 0;
    }
    Count().multi_reads.Add();
    Count().multi_read_requests.Add(count);
    Count().multi_read_bytes.Add(bytes);
    if (errors != 0) {
        Count().multi_read_errors.Add(errors);
    }
    return IOStatus::OK();
}

IOStatus RandomAccessFile::ReadAsync(FSReadRequest& request, const IOOptions&, ReadCallback callback, void* argument,
                                     void** handle, IOHandleDeleter* deleter, IODebugContext*) {
    return AsyncRead::Start(*file_, async_reads_, request, std::move(callback), argument, handle, deleter);
}

bool RandomAccessFile::SubmitReadAsync(FSReadRequest& request, const IOOptions& options, SubmittedCallback callback,
                                       IODebugContext* dbg) {
    if (SubmittedRead::Start(*file_, request, callback)) {
        return true;
    }
    request.status = Read(request.offset, request.len, options, &request.result, request.scratch, dbg);
    callback(request);
    return false;
}

// Direct files have no cache to read into, so RocksDB keeps the data that it prefetches.
IOStatus RandomAccessFile::Prefetch(uint64_t offset, size_t n, const IOOptions&, IODebugContext*) {
    if (file_->direct() || readahead(file_->descriptor(), static_cast<off64_t>(offset), n) == 0) {
        return IOStatus::OK();
    }
    return file_->Error("While prefetching " + std::to_string(n) + " bytes at " + std::to_string(offset), errno);
}

IOStatus RandomAccessFile::InvalidateCache(size_t offset, size_t length) { return file_->Invalidate(offset, length); }

void RandomAccessFile::Hint(AccessPattern pattern) {
    if (file_->direct()) {
        return;
    }
    uint32_t advice = RINGFILE_ADVICE_NORMAL;
    switch (pattern) {
        case kNormal:
            break;
        case kRandom:
            advice = RINGFILE_ADVICE_RANDOM;
            break;
        case kSequential:
            advice = RINGFILE_ADVICE_SEQUENTIAL;
            break;
        case kWillNeed:
            advice = RINGFILE_ADVICE_WILL_NEED;
            break;
        case kWontNeed:
            advice = RINGFILE_ADVICE_DONT_NEED;
            break;
    }
    (void)ringfile_advise(file_->handle(), 0, 0, advice);
}

IOStatus RandomAccessFile::GetFileSize(uint64_t* result) {
    const int64_t size = file_->Size();
    *result = size < 0 ? 0 : static_cast<uint64_t>(size);
    return size < 0 ? file_->Error("While looking up the size", static_cast<int>(-size)) : IOStatus::OK();
}

size_t RandomAccessFile::GetUniqueId(char* id, size_t room) const { return file_->UniqueId(id, room); }

}  // namespace ringfile_rocksdb
