// Tests that a slow read holds up no other one: in a MultiRead, the others are carried out meanwhile; of asynchronous
// reads, the others are polled meanwhile. Also tests how many asynchronous reads are in flight, by what a server
// receives.
//
//   slow_reads FOLDER
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checks.h"
#include "ringfile/rocksdb.h"
#include "rocksdb/convenience.h"
#include "rocksdb/file_system.h"
#include "slow_file.h"

namespace {

using checks::Aligned;
using checks::kPage;
using checks::Memory;
using checks::OpenReadable;
using checks::SlowFile;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::IOOptions;
using rocksdb::Slice;

constexpr size_t kReads = 4;

bool Holds(const Slice& data, uint64_t offset) {
    for (size_t i = 0; i < data.size(); ++i) {
        if (data[i] != SlowFile::ByteAt(offset + i)) {
            return false;
        }
    }
    return data.size() == kPage;
}

std::shared_ptr<FileSystem> FileSystemOf(const std::string& uri) {
    std::shared_ptr<FileSystem> files;
    EXPECT_OK(FileSystem::CreateFromString({}, uri, &files));
    EXPECT(files != nullptr);
    return files;
}

// Returns whether this route is available here.
bool IsHere(FSRandomAccessFile* file) {
    const Memory memory = Aligned(kPage);
    Slice got;
    return file->Read(0, kPage, IOOptions(), &got, memory.get(), nullptr).ok();
}

// Drops what the kernel has cached of a file without direct I/O, so that each read is the server's.
void Forget(SlowFile* slow, FSRandomAccessFile* file, std::set<uint64_t> held) {
    EXPECT_OK(file->InvalidateCache(0, 0));
    slow->Hold(std::move(held));
}

// The slow read gets its answer only after all others have got theirs.
void MultiReadGoesOnBesideASlowRead(SlowFile* slow, FSRandomAccessFile* file) {
    for (size_t which = 0; which < kReads; ++which) {
        Forget(slow, file, {which * kPage});
        const Memory memory = Aligned(kReads * kPage);
        std::vector<FSReadRequest> requests(kReads);
        for (size_t i = 0; i < kReads; ++i) {
            requests[i].offset = i * kPage;
            requests[i].len = kPage;
            requests[i].scratch = memory.get() + i * kPage;
        }
        std::thread releases([slow] {
            slow->AwaitAnswered(kReads - 1);
            slow->Release();
        });
        EXPECT_OK(file->MultiRead(requests.data(), kReads, IOOptions(), nullptr));
        releases.join();
        for (const FSReadRequest& request : requests) {
            EXPECT_OK(request.status);
            EXPECT(Holds(request.result, request.offset));
        }
    }
}

struct AsyncRead {
    Memory memory = Aligned(kPage);
    void* handle = nullptr;
    rocksdb::IOHandleDeleter deleter;
    int called = 0;
    bool right = false;
    bool aborted = false;
};

// Page i of the file is read by read i.
class AsyncReads {
  public:
    AsyncReads(FSRandomAccessFile* file, size_t count) : reads_(count) {
        for (size_t i = 0; i < count; ++i) {
            FSReadRequest request;
            request.offset = i * kPage;
            request.len = kPage;
            request.scratch = reads_[i].memory.get();
            auto done = [](const FSReadRequest& ended, void* argument) {
                auto* told = static_cast<AsyncRead*>(argument);
                told->called += 1;
                told->right = ended.status.ok() && Holds(ended.result, ended.offset);
                told->aborted = ended.status.IsAborted();
            };
            AsyncRead& read = reads_[i];
            EXPECT_OK(file->ReadAsync(request, IOOptions(), done, &read, &read.handle, &read.deleter, nullptr));
        }
    }
    AsyncReads(const AsyncReads&) = delete;
    AsyncReads& operator=(const AsyncReads&) = delete;
    ~AsyncReads() {
        for (AsyncRead& read : reads_) {
            read.deleter(read.handle);
        }
    }

    AsyncRead& operator[](size_t index) { return reads_[index]; }

    std::vector<void*> Handles(size_t begin, size_t end) const {
        std::vector<void*> handles;
        for (size_t i = begin; i < end; ++i) {
            handles.push_back(reads_[i].handle);
        }
        return handles;
    }

  private:
    // Never resized: the callbacks have pointers to its elements.
    std::vector<AsyncRead> reads_;
};

void OthersArePolledBesideASlowRead(SlowFile* slow, FileSystem* files, FSRandomAccessFile* file) {
    Forget(slow, file, {0});
    AsyncReads reads(file, kReads);
    slow->AwaitReceived(1);
    std::vector<void*> others = reads.Handles(1, kReads);
    EXPECT_OK(files->Poll(others, others.size()));
    for (size_t i = 1; i < kReads; ++i) {
        EXPECT(reads[i].called == 1 && reads[i].right);
    }
    EXPECT(reads[0].called == 0);
    slow->Release();
    std::vector<void*> first = reads.Handles(0, 1);
    EXPECT_OK(files->Poll(first, 1));
    EXPECT(reads[0].called == 1 && reads[0].right);
}

// Starts more reads than may be in flight: the server receives no more than the option says, and not fewer.
void TheOptionSaysHowManyAreInFlight(SlowFile* slow, const std::string& route) {
    for (const size_t most : {size_t{1}, size_t{3}}) {
        const auto files = FileSystemOf(route + "?async_reads:" + std::to_string(most));
        const auto file = OpenReadable(files.get(), slow->path(), true);
        slow->Hold({0, kPage, 2 * kPage, 3 * kPage});
        AsyncReads reads(file.get(), kReads);
        slow->AwaitReceived(most);
        std::vector<void*> beyond = reads.Handles(most, kReads);
        EXPECT_OK(files->AbortIO(beyond));
        slow->Release();
        std::vector<void*> begun = reads.Handles(0, most);
        EXPECT_OK(files->Poll(begun, most));
        for (size_t i = 0; i < kReads; ++i) {
            EXPECT(reads[i].called == 1 && (i < most ? reads[i].right : reads[i].aborted));
        }
        EXPECT(slow->received() == most);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: slow_reads FOLDER\n";
        return 2;
    }
    std::string why;
    SlowFile* slow = SlowFile::Mount(std::string(argv[1]) + "/slow", &why);
    if (slow == nullptr) {
        std::cout << "SKIPPED slow_reads: " << why << "\n";
        return 0;
    }
    for (const std::string route : {"ringfile://", "ringfile://ring", "ringfile://workers", "ringfile://adaptive"}) {
        const auto files = FileSystemOf(route);
        const bool direct = route != "ringfile://adaptive";
        const auto file = OpenReadable(files.get(), slow->path(), direct);
        // As for tables. The kernel does not read ahead then, and each page is a read of its own.
        file->Hint(FSRandomAccessFile::kRandom);
        if (!IsHere(file.get())) {
            std::cout << "SKIPPED " << route << ": this process cannot use io_uring\n";
            continue;
        }
        MultiReadGoesOnBesideASlowRead(slow, file.get());
        OthersArePolledBesideASlowRead(slow, files.get(), file.get());
        TheOptionSaysHowManyAreInFlight(slow, route);
        std::cout << route << " passed" << std::endl;
    }
    // Also makes the program need ringfile's library.
    std::cout << ringfile_rocksdb::ToString(ringfile_rocksdb::GetStatistics());
}
