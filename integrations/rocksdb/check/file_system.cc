// Checks behaviour that RocksDB relies on but its own tests do not reach: a status for each request, reads that end on
// other threads, and appends to existing content.
//
//   file_system FOLDER
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checks.h"
#include "ringfile/rocksdb.h"
#include "rocksdb/convenience.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace {

using ringfile_rocksdb::NewRingfileFileSystem;
using ringfile_rocksdb::Route;
using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::IOOptions;
using rocksdb::Slice;

using checks::Aligned;
using checks::kPage;
using checks::Memory;
using checks::OpenReadable;

constexpr size_t kPages = 256;

char ByteAt(uint64_t offset) { return static_cast<char>(offset / 7 + offset / kPage * 13); }

bool Holds(const Slice& data, uint64_t offset) {
    for (size_t i = 0; i < data.size(); ++i) {
        if (data[i] != ByteAt(offset + i)) {
            return false;
        }
    }
    return true;
}

void Append(rocksdb::FSWritableFile* file, uint64_t begin, uint64_t end) {
    std::string bytes;
    for (uint64_t offset = begin; offset < end; ++offset) {
        bytes += ByteAt(offset);
    }
    EXPECT_OK(file->Append(bytes, IOOptions(), nullptr));
}

void AppendsAddUp(FileSystem* files, const std::string& path) {
    FileOptions options;
    options.use_direct_writes = false;
    std::unique_ptr<rocksdb::FSWritableFile> file;
    EXPECT_OK(files->NewWritableFile(path, options, &file, nullptr));
    file->SetPreallocationBlockSize(1 << 20);
    file->PrepareWrite(0, 100, IOOptions(), nullptr);
    Append(file.get(), 0, 100);
    Append(file.get(), 100, kPages * kPage / 2);
    EXPECT(file->GetFileSize(IOOptions(), nullptr) == kPages * kPage / 2);
    EXPECT_OK(file->RangeSync(0, kPage, IOOptions(), nullptr));
    EXPECT_OK(file->Sync(IOOptions(), nullptr));
    EXPECT_OK(file->Close(IOOptions(), nullptr));
    uint64_t size = 0;
    EXPECT_OK(files->GetFileSize(path, IOOptions(), &size, nullptr));
    EXPECT(size == kPages * kPage / 2);

    EXPECT_OK(files->ReopenWritableFile(path, options, &file, nullptr));
    Append(file.get(), size, kPages * kPage);
    EXPECT_OK(file->Fsync(IOOptions(), nullptr));
    EXPECT_OK(file->Close(IOOptions(), nullptr));
    EXPECT_OK(files->GetFileSize(path, IOOptions(), &size, nullptr));
    EXPECT(size == kPages * kPage);
}

void SequenceSkipsAndEnds(FileSystem* files, const std::string& path) {
    std::unique_ptr<rocksdb::FSSequentialFile> file;
    EXPECT_OK(files->NewSequentialFile(path, FileOptions(), &file, nullptr));
    std::vector<char> memory(kPages * kPage);
    Slice got;
    EXPECT_OK(file->Read(10, IOOptions(), &got, memory.data(), nullptr));
    EXPECT(got.size() == 10 && Holds(got, 0));
    EXPECT_OK(file->Skip(5000));
    EXPECT_OK(file->Read(memory.size(), IOOptions(), &got, memory.data(), nullptr));
    EXPECT(got.size() == kPages * kPage - 5010 && Holds(got, 5010));
    EXPECT_OK(file->Read(10, IOOptions(), &got, memory.data(), nullptr));
    EXPECT(got.empty());
}

// One request of many fails, and one reaches the end of the file; the others must still return their data.
void EachRequestHasItsStatus(FSRandomAccessFile* file) {
    const Memory memory = Aligned(kPages * kPage);
    std::vector<FSReadRequest> requests(kPages);
    for (size_t i = 0; i < kPages; ++i) {
        requests[i].offset = (kPages - 1 - i) * kPage;
        requests[i].len = kPage;
        requests[i].scratch = memory.get() + i * kPage;
    }
    requests[7].scratch = nullptr;
    requests[9].offset = kPages * kPage;
    EXPECT_OK(file->MultiRead(requests.data(), requests.size(), IOOptions(), nullptr));
    for (size_t i = 0; i < kPages; ++i) {
        if (i == 7) {
            EXPECT(requests[i].status.IsIOError());
            EXPECT(requests[i].result.empty());
            continue;
        }
        EXPECT_OK(requests[i].status);
        EXPECT(requests[i].result.size() == (i == 9 ? 0 : kPage));
        EXPECT(Holds(requests[i].result, requests[i].offset));
    }
}

// Many threads read one file, as RocksDB does with large tables.
void ManyThreadsReadOneFile(FSRandomAccessFile* file) {
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([file, thread] {
            constexpr size_t kRequests = 300;
            const Memory memory = Aligned(kRequests * kPage);
            for (size_t round = 0; round < 20; ++round) {
                std::vector<FSReadRequest> requests(kRequests);
                for (size_t i = 0; i < kRequests; ++i) {
                    requests[i].offset = (i * 31 + round * 17 + thread * 5) % kPages * kPage;
                    requests[i].len = kPage;
                    requests[i].scratch = memory.get() + i * kPage;
                }
                EXPECT_OK(file->MultiRead(requests.data(), kRequests, IOOptions(), nullptr));
                for (const FSReadRequest& request : requests) {
                    EXPECT_OK(request.status);
                    EXPECT(request.result.size() == kPage && Holds(request.result, request.offset));
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

struct Under {
    Memory memory = Aligned(64 * kPage);
    void* handle = nullptr;
    rocksdb::IOHandleDeleter deleter;
    std::atomic<int> called{0};
    bool ok = false;
    bool aborted = false;
    size_t bytes = 0;
};

void Start(FSRandomAccessFile* file, Under* under, uint64_t offset) {
    FSReadRequest request;
    request.offset = offset;
    request.len = 64 * kPage;
    request.scratch = under->memory.get();
    // For older and newer versions of RocksDB, whose callbacks have different types.
    auto done = [](const FSReadRequest& ended, void* argument) {
        auto* told = static_cast<Under*>(argument);
        told->called += 1;
        told->ok = ended.status.ok() && Holds(ended.result, ended.offset);
        told->aborted = ended.status.IsAborted();
        told->bytes = ended.result.size();
    };
    EXPECT_OK(file->ReadAsync(request, IOOptions(), done, under, &under->handle, &under->deleter, nullptr));
    EXPECT(under->handle != nullptr);
    EXPECT(under->called == 0);
}

void AsyncReadsEndOnAnyThread(FileSystem* files, FSRandomAccessFile* file) {
    Under here, there, aborted, beyond;
    Start(file, &here, 0);
    Start(file, &there, 64 * kPage);
    Start(file, &aborted, 128 * kPage);
    Start(file, &beyond, (kPages - 1) * kPage);
    std::vector<void*> handles{here.handle, beyond.handle};
    EXPECT_OK(files->Poll(handles, 1));
    EXPECT_OK(files->Poll(handles, 2));
    EXPECT(here.called == 1 && here.ok && here.bytes == 64 * kPage);
    EXPECT(beyond.called == 1 && beyond.ok && beyond.bytes == kPage);
    std::thread([&] {
        std::vector<void*> other{there.handle};
        EXPECT_OK(files->Poll(other, 1));
        std::vector<void*> given_up{aborted.handle};
        EXPECT_OK(files->AbortIO(given_up));
        // The kernel no longer uses the memory.
        aborted.memory.reset();
    }).join();
    EXPECT(there.called == 1 && there.ok && there.bytes == 64 * kPage);
    EXPECT(aborted.called == 1 && aborted.aborted && aborted.bytes == 0);
    for (Under* under : {&here, &there, &aborted, &beyond}) {
        under->deleter(under->handle);
    }
}

void UniqueIdsAreTheFiles(FileSystem* files, const std::string& path, FSRandomAccessFile* file) {
    char first[64];
    char second[64];
    const size_t length = file->GetUniqueId(first, sizeof first);
    const auto again = OpenReadable(files, path, false);
    EXPECT(again->GetUniqueId(second, sizeof second) == length);
    EXPECT(std::memcmp(first, second, length) == 0);
    EXPECT(file->GetUniqueId(first, 1) == 0);
}

// Asks an open file for its size. Returns false if this version of RocksDB never does so.
template <typename File>
auto OpenSize(File* file, uint64_t* size) -> decltype(file->GetFileSize(size).ok()) {
    EXPECT_OK(file->GetFileSize(size));
    return true;
}
[[maybe_unused]] bool OpenSize(...) { return false; }

// The size is that of the open file, whatever is under its name, and whatever was written since it was opened.
void OpenFilesHaveTheirSize(FileSystem* files, const std::string& path) {
    std::unique_ptr<rocksdb::FSWritableFile> writer;
    EXPECT_OK(files->NewWritableFile(path, FileOptions(), &writer, nullptr));
    Append(writer.get(), 0, 100);
    const auto file = OpenReadable(files, path, false);
    uint64_t size = 0;
    if (!OpenSize(file.get(), &size)) {
        std::cout << "SKIPPED the size of open files: this version of RocksDB does not ask for it\n";
        return;
    }
    EXPECT(size == 100);
    Append(writer.get(), 100, 5000);
    EXPECT_OK(writer->Close(IOOptions(), nullptr));
    EXPECT_OK(files->DeleteFile(path, IOOptions(), nullptr));
    EXPECT(OpenSize(file.get(), &size) && size == 5000);
}

std::string WhyNot(const std::string& uri) {
    std::shared_ptr<FileSystem> files;
    const rocksdb::Status status = FileSystem::CreateFromString({}, uri, &files);
    EXPECT(!status.ok() && files == nullptr);
    return status.ToString();
}

void BadOptionsAreErrors() {
    for (const std::string option :
         {"", "async_reads", "async_reads:", "async_reads:0", "async_reads:-1", "async_reads:8x",
          "async_reads:4294967296", "async_reads=8", "async_writes:8", "async_reads:8?"}) {
        for (const std::string route : {"", "adaptive"}) {
            const std::string uri = "ringfile://" + route + "?" + option;
            const std::string why = WhyNot(uri);
            EXPECT(why.find(uri + ": ") != std::string::npos);
            EXPECT(why.find("?async_reads:NUMBER, at least 1") != std::string::npos);
        }
    }
    EXPECT(WhyNot("ringfile://sideways?async_reads:8").find("ringfile://workers") != std::string::npos);
    // The same URI as an Env, for programs that have no other setting.
    rocksdb::Env* env = rocksdb::Env::Default();
    std::shared_ptr<rocksdb::Env> guard;
    EXPECT_OK(rocksdb::Env::CreateFromString({}, "ringfile://ring?async_reads:8", &env, &guard));
    EXPECT(std::string(env->GetFileSystem()->Name()) == "RingfileFileSystem");
    env = rocksdb::Env::Default();
    EXPECT(!rocksdb::Env::CreateFromString({}, "ringfile://ring?async_reads:no", &env, &guard).ok());
}

void ErrorsSayWhich(FileSystem* files, const std::string& path) {
    std::unique_ptr<FSRandomAccessFile> file;
    const rocksdb::IOStatus status = files->NewRandomAccessFile(path + ".no", FileOptions(), &file, nullptr);
    EXPECT(status.IsPathNotFound());
    EXPECT(status.ToString().find(path + ".no") != std::string::npos);
    std::shared_ptr<FileSystem> other;
    const rocksdb::Status unknown = FileSystem::CreateFromString({}, "ringfile://sideways", &other);
    EXPECT(!unknown.ok());
    EXPECT(unknown.ToString().find("ringfile://workers") != std::string::npos);
    EXPECT(FileSystem::CreateFromString({}, "ringfile://aio", &other).ok());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: file_system FOLDER\n";
        return 2;
    }
    const std::string path = std::string(argv[1]) + "/file";
    const std::shared_ptr<FileSystem> files = NewRingfileFileSystem();
    AppendsAddUp(files.get(), path);
    SequenceSkipsAndEnds(files.get(), path);
    const std::shared_ptr<FileSystem> adaptive = NewRingfileFileSystem(nullptr, Route::kAdaptive);
    const std::pair<FileSystem*, bool> ways[] = {{files.get(), false}, {files.get(), true}, {adaptive.get(), false}};
    for (const auto& [opener, direct] : ways) {
        const auto file = OpenReadable(opener, path, direct);
        EachRequestHasItsStatus(file.get());
        ManyThreadsReadOneFile(file.get());
        AsyncReadsEndOnAnyThread(files.get(), file.get());
        EXPECT_OK(file->Prefetch(0, kPage, IOOptions(), nullptr));
        EXPECT_OK(file->InvalidateCache(0, 0));
        // Nothing is cached now.
        AsyncReadsEndOnAnyThread(files.get(), file.get());
        UniqueIdsAreTheFiles(files.get(), path, file.get());
    }
    OpenFilesHaveTheirSize(files.get(), path + "-open");
    ErrorsSayWhich(files.get(), path);
    BadOptionsAreErrors();
    EXPECT_OK(files->DeleteFile(path, IOOptions(), nullptr));
    std::cout << ringfile_rocksdb::ToString(ringfile_rocksdb::GetStatistics());
}
