// One read that was started by SubmitReadAsync, which RocksDB 11.8 calls for coroutines.
#include "submitted.h"

#include <cerrno>
#include <utility>

#include "counters.h"
#include "status.h"

namespace ringfile_rocksdb {

using rocksdb::FSReadRequest;
using rocksdb::IOStatus;
using rocksdb::Slice;

bool SubmittedRead::Start(const File& file, FSReadRequest& request, SubmittedCallback& callback) {
    std::unique_ptr<SubmittedRead> read(new SubmittedRead(file, request));
    ringfile_batch* batch = nullptr;
    if (ringfile_batch_create(nullptr, &batch) != 0) {
        return false;
    }
    read->batch_.reset(batch);
    if (ringfile_batch_add(batch, ringfile_op_read(file.handle(), request.scratch, request.len, request.offset),
                           0) < 0) {
        return false;
    }
    // The read may end, and free itself, before the call that starts it returns.
    SubmittedRead* const started = read.release();
    started->callback_ = std::move(callback);
    if (ringfile_batch_start(batch, Ended, started) != 0) {
        callback = std::move(started->callback_);
        delete started;
        return false;
    }
    Count().submitted_reads.Add();
    return true;
}

void SubmittedRead::Ended(void* context, int64_t) {
    const std::unique_ptr<SubmittedRead> read(static_cast<SubmittedRead*>(context));
    const ringfile_result* results = nullptr;
    const bool has_result = ringfile_batch_results(read->batch_.get(), &results) == 1;
    const int64_t done = has_result ? results[0].result : -EIO;
    FSReadRequest& request = read->request_;
    request.result = Slice(request.scratch, done < 0 ? 0 : static_cast<size_t>(done));
    request.status = done < 0 ? ReadError(read->file_.path(), request.offset, request.len, static_cast<int>(-done))
                              : IOStatus::OK();
    read->callback_(request);
}

}  // namespace ringfile_rocksdb
