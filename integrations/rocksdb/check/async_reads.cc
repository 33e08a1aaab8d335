// Tests MultiRead, ReadAsync, Poll and AbortIO together on one thread, as later releases of RocksDB use them, and measures
// how many reads AbortIO saves. Each test runs through the ring, the workers and the page cache, and with adaptive files.
//
//   async_reads FOLDER
//
// RINGFILE_ROCKSDB_STRESS_SECONDS   duration of the stress test under signals on each route (default: 3)
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "ringfile/rocksdb.h"
#include "rocksdb/file_system.h"

namespace {

using checks::Aligned;
using checks::kPage;
using checks::Memory;
using checks::OpenReadable;
using ringfile_rocksdb::Route;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::IOOptions;

using Random = std::mt19937_64;

constexpr size_t kFileBytes = size_t{64} << 20;
constexpr size_t kMiB = size_t{1} << 20;
// The number and size of reads in the report of a slow AbortIO: 62 MiB.
constexpr size_t kAborted = 1000;
constexpr size_t kAbortedBytes = 64 << 10;
// The most asynchronous reads that a thread has in flight.
constexpr size_t kInFlight = 128;
constexpr size_t kMostTogether = 600;
constexpr char kUntouched = '\x5a';

struct Way {
    const char* name;
    Route route;
    bool direct;
};

constexpr Way kWays[] = {
    {"ring", Route::kRing, true},
    {"workers", Route::kWorkers, true},
    {"page cache", Route::kAuto, false},
    {"adaptive", Route::kAdaptive, false},
};

// One read of ReadAsync, with its own memory.
struct AsyncRead {
    AsyncRead(uint64_t from, size_t bytes) : offset(from), length(bytes), memory(Aligned(bytes)) {
        std::memset(memory.get(), kUntouched, length);
    }
    AsyncRead(const AsyncRead&) = delete;
    AsyncRead& operator=(const AsyncRead&) = delete;
    ~AsyncRead() {
        if (handle != nullptr) {
            deleter(handle);
        }
    }

    bool IsUntouched() const {
        return std::all_of(memory.get(), memory.get() + length, [](char byte) { return byte == kUntouched; });
    }

    uint64_t offset;
    size_t length;
    Memory memory;
    void* handle = nullptr;
    rocksdb::IOHandleDeleter deleter;
    int called = 0;
    bool ok = false;
    bool aborted = false;
    size_t got = 0;
};

// The addresses must be stable, because RocksDB passes them to the callback.
using AsyncReads = std::vector<std::unique_ptr<AsyncRead>>;

// A file system with one file of known content.
class Scene {
  public:
    Scene(const Way& way, const std::string& folder, const std::string& bytes)
        : folder_(folder),
          bytes_(bytes),
          direct_(way.direct),
          files_(ringfile_rocksdb::NewRingfileFileSystem(nullptr, way.route)),
          file_(OpenReadable(files_.get(), folder + "/file", way.direct)) {
        // Prevents the kernel from reading ahead; RocksDB gives the same hint for tables.
        file_->Hint(FSRandomAccessFile::kRandom);
    }

    FileSystem& files() { return *files_; }
    const std::string& folder() const { return folder_; }

    void DropCache() { EXPECT_OK(file_->InvalidateCache(0, 0)); }

    void Start(AsyncReads* reads, uint64_t offset, size_t length) { StartOn(file_.get(), reads, offset, length); }

    void StartOn(FSRandomAccessFile* file, AsyncReads* reads, uint64_t offset, size_t length) {
        reads->push_back(std::make_unique<AsyncRead>(offset, length));
        Start(file, reads->back().get());
    }

    void Start(AsyncRead* read) { Start(file_.get(), read); }

    void Start(FSRandomAccessFile* file, AsyncRead* read) {
        FSReadRequest request;
        request.offset = read->offset;
        request.len = read->length;
        request.scratch = read->memory.get();
        // Converts to the callback types of both older and newer versions of RocksDB.
        auto done = [](const FSReadRequest& ended, void* argument) {
            auto* told = static_cast<AsyncRead*>(argument);
            told->called += 1;
            told->ok = ended.status.ok();
            told->aborted = ended.status.IsAborted();
            told->got = ended.result.size();
        };
        EXPECT_OK(file->ReadAsync(request, IOOptions(), done, read, &read->handle, &read->deleter, nullptr));
        EXPECT(read->called == 0);
    }

    void StartRandomly(AsyncReads* reads, size_t count, Random* random) {
        for (size_t i = 0; i < count; ++i) {
            const size_t length = (1 + (*random)() % 16) * kPage;
            Start(reads, (*random)() % ((kFileBytes - length) / kPage) * kPage, length);
        }
    }

    void Poll(const AsyncReads& reads, const std::vector<size_t>& which) {
        std::vector<void*> handles = Handles(reads, which);
        EXPECT_OK(files_->Poll(handles, handles.size()));
    }

    void Abort(const AsyncReads& reads, const std::vector<size_t>& which) {
        std::vector<void*> handles = Handles(reads, which);
        EXPECT_OK(files_->AbortIO(handles));
    }

    // Reads 1 to 4 pages at a time, and checks each.
    void MultiRead(size_t count, Random* random) {
        std::vector<FSReadRequest> requests(count);
        const Memory memory = Aligned(count * 4 * kPage);
        for (size_t i = 0; i < count; ++i) {
            requests[i].len = (1 + (*random)() % 4) * kPage;
            requests[i].offset = (*random)() % ((kFileBytes - requests[i].len) / kPage) * kPage;
            requests[i].scratch = memory.get() + i * 4 * kPage;
        }
        EXPECT_OK(file_->MultiRead(requests.data(), count, IOOptions(), nullptr));
        for (const FSReadRequest& request : requests) {
            EXPECT_OK(request.status);
            EXPECT(request.result.size() == request.len);
            EXPECT(Holds(request.result.data(), request.offset, request.len));
        }
    }

    void ExpectRead(const AsyncRead& read) {
        EXPECT(read.called == 1 && read.ok && read.got == read.length);
        EXPECT(Holds(read.memory.get(), read.offset, read.length));
    }

    static void ExpectAborted(const AsyncRead& read) {
        EXPECT(read.called == 1 && read.aborted && !read.ok && read.got == 0);
    }

    bool direct() const { return direct_; }

  private:
    bool Holds(const char* data, uint64_t offset, size_t length) const {
        return std::memcmp(data, bytes_.data() + offset, length) == 0;
    }

    static std::vector<void*> Handles(const AsyncReads& reads, const std::vector<size_t>& which) {
        std::vector<void*> handles;
        for (const size_t index : which) {
            handles.push_back(reads[index]->handle);
        }
        return handles;
    }

    const std::string folder_;
    const std::string& bytes_;
    const bool direct_;
    std::shared_ptr<FileSystem> files_;
    std::unique_ptr<FSRandomAccessFile> file_;
};

std::vector<size_t> Shuffled(size_t count, Random* random) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), *random);
    return order;
}

// Returns the bytes that the process, with all its threads, has read from the device.
uint64_t DeviceBytes() {
    std::ifstream counts("/proc/self/io");
    std::string name;
    uint64_t value = 0;
    while (counts >> name >> value) {
        if (name == "read_bytes:") {
            return value;
        }
    }
    return 0;
}

// Reads of a FIFO into which nothing is written: they stay in flight as long as the test needs.
class Blockade {
  public:
    Blockade(Scene* scene, size_t reads) : path_(scene->folder() + "/fifo") {
        EXPECT(mkfifo(path_.c_str(), 0600) == 0);
        ends_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
        EXPECT(ends_ >= 0);
        file_ = OpenReadable(&scene->files(), path_, false);
        for (size_t i = 0; i < reads; ++i) {
            scene->StartOn(file_.get(), &reads_, 0, kPage);
        }
    }

    // Aborts its reads. Data written to the FIFO afterwards stays there, because no read is left.
    void End(Scene* scene) {
        std::vector<size_t> all(reads_.size());
        std::iota(all.begin(), all.end(), size_t{0});
        scene->Abort(reads_, all);
        for (const auto& read : reads_) {
            Scene::ExpectAborted(*read);
        }
        EXPECT(write(ends_, "written", 7) == 7);
        int bytes = 0;
        EXPECT(ioctl(ends_, FIONREAD, &bytes) == 0 && bytes == 7);
        for (const auto& read : reads_) {
            EXPECT(read->IsUntouched());
        }
        close(ends_);
        EXPECT(unlink(path_.c_str()) == 0);
    }

  private:
    const std::string path_;
    int ends_;
    std::unique_ptr<FSRandomAccessFile> file_;
    AsyncReads reads_;
};

// While the maximum number of reads is in flight, other reads do not start, so aborting those reads no data at all.
void WhatWasNotBegunIsNeverRead(Scene* scene, Random* random) {
    Blockade blockade(scene, kInFlight);
    scene->DropCache();
    AsyncReads reads;
    const uint64_t before = DeviceBytes();
    for (size_t i = 0; i < kAborted; ++i) {
        scene->Start(&reads, i * kAbortedBytes, kAbortedBytes);
    }
    // A read that is polled starts even then.
    const std::vector<size_t> order = Shuffled(kAborted, random);
    const std::vector<size_t> polled(order.begin(), order.begin() + 10);
    const std::vector<size_t> aborted(order.begin() + 10, order.end());
    scene->Abort(reads, aborted);
    for (const size_t index : aborted) {
        Scene::ExpectAborted(*reads[index]);
        EXPECT(reads[index]->IsUntouched());
    }
    // Some of these bytes may be pages of the program itself.
    EXPECT(DeviceBytes() - before < kMiB);
    scene->Poll(reads, polled);
    for (const size_t index : polled) {
        scene->ExpectRead(*reads[index]);
    }
    blockade.End(scene);
}

// Even if nothing else runs, most reads of a long series have not started when the series is aborted.
void AbortingALongRowSavesMostOfIt(Scene* scene, Random*) {
    std::vector<size_t> all(kAborted);
    std::iota(all.begin(), all.end(), size_t{0});
    uint64_t least = UINT64_MAX;
    // A thread that does not get to run leaves the device more time, so there are several tries.
    for (int attempt = 0; attempt < 10; ++attempt) {
        scene->DropCache();
        AsyncReads reads;
        for (const size_t index : all) {
            reads.push_back(std::make_unique<AsyncRead>(index * kAbortedBytes, kAbortedBytes));
        }
        const uint64_t before = DeviceBytes();
        for (const auto& read : reads) {
            scene->Start(read.get());
        }
        scene->Abort(reads, all);
        for (const auto& read : reads) {
            Scene::ExpectAborted(*read);
        }
        least = std::min(least, DeviceBytes() - before);
    }
    std::cout << "  aborting " << kAborted * kAbortedBytes / kMiB << " MiB of reads at once read " << least / 1024
              << " KiB\n";
    EXPECT(least < kAborted * kAbortedBytes / 2);
}

void MultiReadGoesOnBesideAsyncReads(Scene* scene, Random* random) {
    for (const size_t together : {size_t{1}, size_t{2}, size_t{33}, size_t{256}, size_t{257}, kMostTogether}) {
        for (const size_t open : {size_t{1}, size_t{40}, size_t{300}}) {
            scene->DropCache();
            AsyncReads reads;
            scene->StartRandomly(&reads, open, random);
            scene->MultiRead(together, random);
            scene->Poll(reads, Shuffled(open, random));
            scene->MultiRead(together, random);
            for (const auto& read : reads) {
                scene->ExpectRead(*read);
            }
        }
    }
}

// Aborts some handles in any order, then polls and aborts them again: no callback may run twice. After the abort, their
// memory belongs to the caller again.
void AbortAPart(Scene* scene, size_t count, Random* random) {
    AsyncReads reads;
    scene->StartRandomly(&reads, count, random);
    const std::vector<size_t> order = Shuffled(count, random);
    const auto border = order.begin() + static_cast<std::ptrdiff_t>((*random)() % (count + 1));
    const std::vector<size_t> aborted(order.begin(), border);
    std::vector<size_t> others(border, order.end());
    if ((*random)() % 2 == 0) {
        scene->MultiRead(1 + (*random)() % kMostTogether, random);
    }
    scene->Abort(reads, aborted);
    for (const size_t index : aborted) {
        Scene::ExpectAborted(*reads[index]);
        std::memset(reads[index]->memory.get(), kUntouched, reads[index]->length);
    }
    scene->MultiRead(1 + (*random)() % kMostTogether, random);
    std::shuffle(others.begin(), others.end(), *random);
    if ((*random)() % 8 == 0) {
        std::thread([&] { scene->Poll(reads, others); }).join();
    } else {
        scene->Poll(reads, others);
    }
    // All of them are polled again, in another order.
    scene->Poll(reads, Shuffled(count, random));
    scene->Abort(reads, Shuffled(count, random));
    for (const size_t index : aborted) {
        Scene::ExpectAborted(*reads[index]);
        EXPECT(reads[index]->IsUntouched());
    }
    for (const size_t index : others) {
        scene->ExpectRead(*reads[index]);
    }
}

void APartIsAbortedInAnyOrder(Scene* scene, Random* random) {
    for (const size_t count : {size_t{1}, size_t{2}, size_t{50}, size_t{200}, size_t{400}}) {
        scene->DropCache();
        AbortAPart(scene, count, random);
    }
}

// Interrupts the process every 200 µs, and interrupted system calls are not restarted.
class Signals {
  public:
    Signals() {
        count = 0;
        struct sigaction action {};
        action.sa_handler = [](int) { count.fetch_add(1, std::memory_order_relaxed); };
        EXPECT(sigaction(SIGALRM, &action, &before_) == 0);
        Set(200);
    }
    ~Signals() {
        Set(0);
        sigaction(SIGALRM, &before_, nullptr);
    }

    static std::atomic<uint64_t> count;

  private:
    static void Set(suseconds_t every) {
        const itimerval timer{{0, every}, {0, every}};
        EXPECT(setitimer(ITIMER_REAL, &timer, nullptr) == 0);
    }

    struct sigaction before_ {};
};

std::atomic<uint64_t> Signals::count{0};

void StressUnderSignals(Scene* scene, Random* random, std::chrono::seconds length) {
    const auto end = std::chrono::steady_clock::now() + length;
    uint64_t rounds = 0;
    {
        const Signals signals;
        for (; std::chrono::steady_clock::now() < end; ++rounds) {
            if (rounds % 4 == 0) {
                scene->DropCache();
            }
            // Usually as many reads as RocksDB keeps open, sometimes more than may be in flight.
            AbortAPart(scene, 1 + (*random)() % (rounds % 8 == 0 ? 300 : 40), random);
        }
    }
    std::cout << "  " << rounds << " rounds, " << Signals::count << " signals\n";
    EXPECT(rounds > 0 && Signals::count > 0);
}

void WriteFile(const std::string& path, const std::string& bytes) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT(file >= 0);
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t written = write(file, bytes.data() + done, bytes.size() - done);
        EXPECT(written > 0);
        done += static_cast<size_t>(written);
    }
    EXPECT(fsync(file) == 0);
    EXPECT(close(file) == 0);
}

std::string RandomBytes(Random* random) {
    std::string bytes(kFileBytes, '\0');
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
        const uint64_t number = (*random)();
        std::memcpy(&bytes[at], &number, sizeof number);
    }
    return bytes;
}

// Returns whether this route is available here.
bool IsHere(Scene* scene) {
    AsyncReads reads;
    scene->Start(&reads, 0, kMiB);
    scene->Poll(reads, {0});
    return reads[0]->ok;
}

// Returns whether reads reach a device that counts them.
bool DeviceCounts(Scene* scene) {
    scene->DropCache();
    AsyncReads reads;
    const uint64_t before = DeviceBytes();
    scene->Start(&reads, 0, kMiB);
    scene->Poll(reads, {0});
    return DeviceBytes() - before >= kMiB;
}

void Run(const Way& way, const std::string& folder, const std::string& bytes, std::chrono::seconds length,
         Random* random) {
    Scene scene(way, folder, bytes);
    if (!IsHere(&scene)) {
        std::cout << "  SKIPPED: this process cannot use io_uring\n";
        return;
    }
    if (DeviceCounts(&scene)) {
        WhatWasNotBegunIsNeverRead(&scene, random);
        AbortingALongRowSavesMostOfIt(&scene, random);
    } else {
        std::cout << "  SKIPPED counting bytes: no device reads this folder\n";
    }
    MultiReadGoesOnBesideAsyncReads(&scene, random);
    APartIsAbortedInAnyOrder(&scene, random);
    StressUnderSignals(&scene, random, length);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: async_reads FOLDER\n";
        return 2;
    }
    const std::string folder = argv[1];
    const char* seconds = std::getenv("RINGFILE_ROCKSDB_STRESS_SECONDS");
    const std::chrono::seconds length(seconds != nullptr ? std::atoi(seconds) : 3);
    const uint64_t seed = std::random_device()();
    std::cout << "seed " << seed << std::endl;
    Random random(seed);
    const std::string bytes = RandomBytes(&random);
    WriteFile(folder + "/file", bytes);
    for (const Way& way : kWays) {
        std::cout << way.name << std::endl;
        Run(way, folder, bytes, length, &random);
    }
    EXPECT(unlink((folder + "/file").c_str()) == 0);
}
