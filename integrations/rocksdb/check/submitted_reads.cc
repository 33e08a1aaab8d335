// Tests RandomAccessFile::SubmitReadAsync directly: RocksDB calls it from 11.8 on, and only if it was built with folly's
// coroutines. Each read calls back once, with its own result, and none waits for a slow one.
//
//   submitted_reads FOLDER
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checks.h"
#include "random_access.h"
#include "slow_file.h"

namespace {

using checks::Aligned;
using checks::kPage;
using checks::Memory;
using checks::SlowFile;
using ringfile_rocksdb::Access;
using ringfile_rocksdb::File;
using ringfile_rocksdb::RandomAccessFile;
using rocksdb::FSReadRequest;
using rocksdb::IOOptions;

constexpr size_t kReads = 4;

std::unique_ptr<RandomAccessFile> Open(const std::string& path, const Access& access) {
    std::unique_ptr<File> file;
    EXPECT_OK(File::Open("opening", path, access, &file));
    return std::make_unique<RandomAccessFile>(std::move(file), 1);
}

// Reads that were submitted together, one for each page from the file's beginning on.
class Reads {
  public:
    explicit Reads(RandomAccessFile* file) : memory_(Aligned(kReads * kPage)), called_(kReads), requests_(kReads) {
        for (size_t i = 0; i < kReads; ++i) {
            requests_[i].offset = i * kPage;
            requests_[i].len = kPage;
            requests_[i].scratch = memory_.get() + i * kPage;
            EXPECT(file->SubmitReadAsync(
                requests_[i], IOOptions(), [this, i](FSReadRequest& ended) { Ended(i, &ended); }, nullptr));
        }
    }
    Reads(const Reads&) = delete;
    Reads& operator=(const Reads&) = delete;

    // Waits until this many reads have ended. Returns how often each has called back.
    std::vector<int> Await(int count) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return ended_ >= count; });
        return called_;
    }

    const FSReadRequest& operator[](size_t index) const { return requests_[index]; }

    // Returns whether the read has this many bytes of the file.
    bool Has(size_t index, size_t bytes) const {
        const FSReadRequest& read = requests_[index];
        EXPECT_OK(read.status);
        for (size_t i = 0; i < read.result.size(); ++i) {
            if (read.result[i] != SlowFile::ByteAt(read.offset + i)) {
                return false;
            }
        }
        return read.result.size() == bytes;
    }

  private:
    void Ended(size_t index, FSReadRequest* request) {
        EXPECT(request == &requests_[index]);
        const std::lock_guard<std::mutex> lock(mutex_);
        called_[index] += 1;
        ended_ += 1;
        changed_.notify_all();
    }

    const Memory memory_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<int> called_;
    int ended_ = 0;
    std::vector<FSReadRequest> requests_;
};

void NoneWaitsForASlowOne(SlowFile* slow, RandomAccessFile* file) {
    for (size_t which = 0; which < kReads; ++which) {
        slow->Hold({which * kPage});
        Reads reads(file);
        std::vector<int> called(kReads, 1);
        called[which] = 0;
        EXPECT(reads.Await(kReads - 1) == called);
        slow->Release();
        EXPECT(reads.Await(kReads) == std::vector<int>(kReads, 1));
        for (size_t i = 0; i < kReads; ++i) {
            EXPECT(reads.Has(i, kPage));
        }
    }
}

// The third page of the file is short, and the fourth one is missing.
void EachHasItsResult(const std::string& path, const Access& access) {
    const auto file = Open(path, access);
    Reads reads(file.get());
    EXPECT(reads.Await(kReads) == std::vector<int>(kReads, 1));
    EXPECT(reads.Has(0, kPage) && reads.Has(1, kPage) && reads.Has(2, 100) && reads.Has(3, 0));
}

void AnErrorIsThatOfItsRead(const std::string& path) {
    const auto file = Open(path, {RINGFILE_WRITE, RINGFILE_ROUTE_AUTO});
    Reads reads(file.get());
    EXPECT(reads.Await(kReads) == std::vector<int>(kReads, 1));
    for (size_t i = 0; i < kReads; ++i) {
        EXPECT(reads[i].status.IsIOError() && reads[i].result.empty());
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: submitted_reads FOLDER\n";
        return 2;
    }
    const std::string path = std::string(argv[1]) + "/submitted";
    std::string content(2 * kPage + 100, '\0');
    for (size_t i = 0; i < content.size(); ++i) {
        content[i] = SlowFile::ByteAt(i);
    }
    EXPECT(std::ofstream(path).write(content.data(), static_cast<std::streamsize>(content.size())).flush());
    std::string why;
    SlowFile* slow = SlowFile::Mount(std::string(argv[1]) + "/slow-submitted", &why);
    if (slow == nullptr) {
        std::cout << "SKIPPED submitted reads beside a slow one: " << why << "\n";
    }
    for (const uint32_t route : {RINGFILE_ROUTE_AUTO, RINGFILE_ROUTE_WORKERS}) {
        for (const uint32_t direct : {uint32_t{0}, uint32_t{RINGFILE_DIRECT}}) {
            const Access access{RINGFILE_READ | direct, route};
            EachHasItsResult(path, access);
            if (slow != nullptr && direct != 0) {
                NoneWaitsForASlowOne(slow, Open(slow->path(), access).get());
            }
        }
    }
    AnErrorIsThatOfItsRead(path);
    EXPECT(unlink(path.c_str()) == 0);
    std::cout << "submitted reads passed" << std::endl;
}
