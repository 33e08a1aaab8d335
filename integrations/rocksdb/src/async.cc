// One read that was started by ReadAsync: the object behind RocksDB's handle.
#include "async.h"

#include "counters.h"
#include "status.h"

namespace ringfile_rocksdb {

using rocksdb::FSReadRequest;
using rocksdb::IOHandleDeleter;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

// Returns the queue of the calling thread, or null after an error, which `error` gets. It lives as long as the thread or a
// read in it.
std::shared_ptr<ringfile_queue> Queue(int* error) {
    thread_local std::shared_ptr<ringfile_queue> queue;
    if (queue == nullptr) {
        ringfile_queue* made = nullptr;
        *error = ringfile_queue_create(0, RINGFILE_QUEUE_SHARED, &made);
        if (*error == 0) {
            queue = std::shared_ptr<ringfile_queue>(made, ringfile_queue_free);
        }
    }
    return queue;
}

}  // namespace

AsyncRead::AsyncRead(const File& file, const FSReadRequest& request, ReadCallback callback, void* argument)
    : callback_(std::move(callback)), argument_(argument), path_(file.path()) {
    // RocksDB's own request may no longer exist when the read ends.
    request_.offset = request.offset;
    request_.len = request.len;
    request_.scratch = request.scratch;
}

AsyncRead::~AsyncRead() {
    if (IsOpen()) {
        Wait();
    }
    request_.status.PermitUncheckedError();
}

IOStatus AsyncRead::Start(const File& file, uint32_t in_flight, const FSReadRequest& request, ReadCallback callback,
                          void* argument, void** handle, IOHandleDeleter* deleter) {
    std::unique_ptr<AsyncRead> read(new AsyncRead(file, request, std::move(callback), argument));
    int result = 0;
    read->queue_ = Queue(&result);
    if (read->queue_ != nullptr) {
        result = ringfile_queue_add(read->queue_.get(),
                                    ringfile_op_read(file.handle(), request.scratch, request.len, request.offset), 0,
                                    &read->token_);
    }
    if (result != 0) {
        return ReadError(file.path(), request.offset, request.len, -result);
    }
    if (ringfile_queue_len(read->queue_.get()) <= int64_t{in_flight}) {
        // Its only errors would be those of the handle.
        ringfile_queue_submit(read->queue_.get());
    }
    Count().async_reads.Add();
    *deleter = [](void* gone) { delete static_cast<AsyncRead*>(gone); };
    *handle = read.release();
    return IOStatus::OK();
}

int64_t AsyncRead::Wait() {
    const int64_t done = ringfile_queue_wait_for(queue_.get(), token_);
    token_ = 0;
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
        if (read != nullptr && read->IsOpen()) {
            read->Finish(read->Wait(), false);
        }
    }
}

void AsyncRead::Abort(const std::vector<void*>& handles) {
    // Cancels all reads before waiting for any of them, since a wait starts those that have not started.
    for (auto handle = handles.rbegin(); handle != handles.rend(); ++handle) {
        auto* read = static_cast<AsyncRead*>(*handle);
        if (read != nullptr && read->IsOpen()) {
            ringfile_queue_cancel(read->queue_.get(), read->token_);
        }
    }
    for (void* handle : handles) {
        auto* read = static_cast<AsyncRead*>(handle);
        if (read != nullptr && read->IsOpen()) {
            Count().async_reads_aborted.Add();
            read->Finish(read->Wait(), true);
        }
    }
}

}  // namespace ringfile_rocksdb
