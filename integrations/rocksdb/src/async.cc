// One read that was started by ReadAsync: the object behind RocksDB's handle.
#include "async.h"

#include "counters.h"
#include "status.h"

namespace ringfile_rocksdb {

using rocksdb::FSReadRequest;
using rocksdb::IOHandleDeleter;
using rocksdb::IOStatus;
using rocksdb::Slice;

AsyncRead::AsyncRead(const File& file, const FSReadRequest& request, ReadCallback callback, void* argument)
    : callback_(std::move(callback)), argument_(argument), path_(file.path()) {
    // RocksDB's own request may no longer exist when the read ends.
    request_.offset = request.offset;
    request_.len = request.len;
    request_.scratch = request.scratch;
}

AsyncRead::~AsyncRead() {
    if (read_ != nullptr) {
        Wait();
    }
    request_.status.PermitUncheckedError();
}

IOStatus AsyncRead::Start(const File& file, const FSReadRequest& request, ReadCallback callback, void* argument,
                          void** handle, IOHandleDeleter* deleter) {
    std::unique_ptr<AsyncRead> read(new AsyncRead(file, request, std::move(callback), argument));
    const int result =
        ringfile_async_read_start(file.handle(), request.scratch, request.len, request.offset, &read->read_);
    if (result < 0) {
        return ReadError(file.path(), request.offset, request.len, -result);
    }
    Count().async_reads.Add();
    *deleter = [](void* gone) { delete static_cast<AsyncRead*>(gone); };
    *handle = read.release();
    return IOStatus::OK();
}

int64_t AsyncRead::Wait() {
    const int64_t done = ringfile_async_read_wait(read_);
    read_ = nullptr;
    return done;
}

void AsyncRead::Finish(int64_t done, bool aborted) {
    request_.result = Slice(request_.scratch, aborted || done < 0 ? 0 : static_cast<size_t>(done));
    if (aborted) {
        request_.status = IOStatus::Aborted();
    } else if (done < 0) {
        request_.status = ReadError(path_, request_.offset, request_.len, static_cast<int>(-done));
    } else {
        request_.status = IOStatus::OK();
    }
    callback_(request_, argument_);
}

void AsyncRead::Poll(const std::vector<void*>& handles) {
    for (void* handle : handles) {
        auto* read = static_cast<AsyncRead*>(handle);
        // RocksDB also polls reads that have ended.
        if (read != nullptr && read->read_ != nullptr) {
            read->Finish(read->Wait(), false);
        }
    }
}

void AsyncRead::Abort(const std::vector<void*>& handles) {
    // Cancels all reads before waiting for any of them, the last one first, so that a read that has not started is dropped
    // before an earlier one ends and makes room for it.
    for (auto handle = handles.rbegin(); handle != handles.rend(); ++handle) {
        auto* read = static_cast<AsyncRead*>(*handle);
        if (read != nullptr && read->read_ != nullptr) {
            ringfile_async_read_cancel(read->read_);
        }
    }
    for (void* handle : handles) {
        auto* read = static_cast<AsyncRead*>(handle);
        if (read != nullptr && read->read_ != nullptr) {
            Count().async_reads_aborted.Add();
            read->Finish(read->Wait(), true);
        }
    }
}

}  // namespace ringfile_rocksdb
