// A file of a FUSE server in this process, which keeps chosen reads waiting.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checks.h"

namespace checks {

// One for a process, and never destroyed: threads keep files open that they have read often. The mount is visible to
// this process only, and goes with it.
class SlowFile {
  public:
    static constexpr uint64_t kBytes = 64 * kPage;

    static char ByteAt(uint64_t offset) { return static_cast<char>(offset / 7 + offset / kPage * 13); }

    // Returns null, and why, if this process may not mount. Call it before there are other threads.
    static SlowFile* Mount(const std::string& folder, std::string* why) {
        const auto failed = [why](const char* what) {
            *why = std::string(what) + ": " + std::strerror(errno);
            return nullptr;
        };
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
            return failed("a mount namespace");
        }
        const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
        if (device < 0) {
            return failed("/dev/fuse");
        }
        const std::string options =
            "fd=" + std::to_string(device) + ",rootmode=40000,user_id=0,group_id=0,max_read=" + std::to_string(kPage);
        EXPECT(mkdir(folder.c_str(), 0700) == 0);
        if (mount("slow", folder.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
            return failed("mounting FUSE");
        }
        auto* file = new SlowFile(folder, device);
        // A process that ends while a read waits would otherwise wait for its own server.
        mounted = file->folder_.c_str();
        EXPECT(std::atexit(Abort) == 0);
        std::thread([] {
            // A signal would not do: its handler runs only once the thread's read has ended.
            std::this_thread::sleep_for(std::chrono::minutes(1));
            std::cerr << "a read that should not wait for a slow one does, or has no end" << std::endl;
            Abort();
            _exit(1);
        }).detach();
        std::thread([file] { file->Serve(); }).detach();
        return file;
    }

    std::string path() const { return folder_ + "/file"; }

    // Reads at these offsets are not answered until Release. Counting begins anew.
    void Hold(std::set<uint64_t> offsets) {
        const std::lock_guard<std::mutex> lock(mutex_);
        held_ = std::move(offsets);
        received_ = answered_ = 0;
    }

    void Release() {
        const std::lock_guard<std::mutex> lock(mutex_);
        held_.clear();
        for (const Read& read : std::exchange(waiting_, {})) {
            AnswerRead(read);
        }
    }

    size_t received() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return received_;
    }

    void AwaitReceived(size_t count) { Await(&SlowFile::received_, count); }
    void AwaitAnswered(size_t count) { Await(&SlowFile::answered_, count); }

  private:
    struct Read {
        uint64_t unique;
        uint64_t offset;
        uint32_t size;
    };
    static constexpr uint64_t kNode = 2;

    SlowFile(std::string folder, int device) : folder_(std::move(folder)), device_(device) {}

    static void Abort() { umount2(mounted, MNT_FORCE); }

    void Await(size_t SlowFile::*counted, size_t count) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return this->*counted >= count; });
    }

    void Answer(uint64_t unique, int error, const void* data, size_t bytes) const {
        fuse_out_header head{static_cast<uint32_t>(sizeof head + bytes), -error, unique};
        const iovec parts[] = {{&head, sizeof head}, {const_cast<void*>(data), bytes}};
        // ENOENT: the kernel no longer waits for the answer.
        const ssize_t written = writev(device_, parts, 2);
        EXPECT(written == ssize_t(head.len) || errno == ENOENT);
    }

    void AnswerRead(const Read& read) {
        std::string bytes;
        for (uint64_t at = read.offset; at < std::min(kBytes, read.offset + read.size); ++at) {
            bytes += ByteAt(at);
        }
        Answer(read.unique, 0, bytes.data(), bytes.size());
        answered_ += 1;
        changed_.notify_all();
    }

    void Receive(const Read& read) {
        const std::lock_guard<std::mutex> lock(mutex_);
        received_ += 1;
        changed_.notify_all();
        if (held_.count(read.offset) != 0) {
            waiting_.push_back(read);
        } else {
            AnswerRead(read);
        }
    }

    static fuse_attr Attributes(uint64_t node) {
        fuse_attr about{};
        about.ino = node;
        about.size = node == kNode ? kBytes : 0;
        about.mode = node == kNode ? S_IFREG | 0600 : S_IFDIR | 0700;
        about.nlink = 1;
        about.blksize = kPage;
        return about;
    }

    void Serve() {
        std::vector<char> room(1 << 20);
        for (;;) {
            const ssize_t got = read(device_, room.data(), room.size());
            if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
                continue;
            }
            if (got < ssize_t(sizeof(fuse_in_header))) {
                return;
            }
            fuse_in_header head;
            std::memcpy(&head, room.data(), sizeof head);
            Request(head, room.data() + sizeof head);
        }
    }

    template <typename Body>
    void AnswerWith(const fuse_in_header& head, const Body& body) const {
        Answer(head.unique, 0, &body, sizeof body);
    }

    void Request(const fuse_in_header& head, const char* body) {
        switch (head.opcode) {
            case FUSE_INIT: {
                fuse_init_out out{};
                out.major = FUSE_KERNEL_VERSION;
                out.minor = FUSE_KERNEL_MINOR_VERSION;
                // Without it, io_uring_enter waits for the answer to each direct read.
                out.flags = FUSE_ASYNC_DIO;
                out.max_background = 64;
                out.max_write = kPage;
                return AnswerWith(head, out);
            }
            case FUSE_LOOKUP: {
                if (std::strcmp(body, "file") != 0) {
                    return Answer(head.unique, ENOENT, nullptr, 0);
                }
                fuse_entry_out out{};
                out.nodeid = kNode;
                out.attr = Attributes(kNode);
                return AnswerWith(head, out);
            }
            case FUSE_GETATTR: {
                fuse_attr_out out{};
                out.attr = Attributes(head.nodeid);
                return AnswerWith(head, out);
            }
            case FUSE_OPEN:
                return AnswerWith(head, fuse_open_out{});
            case FUSE_STATFS:
                return AnswerWith(head, fuse_statfs_out{});
            case FUSE_READ: {
                fuse_read_in in;
                std::memcpy(&in, body, sizeof in);
                return Receive({head.unique, in.offset, in.size});
            }
            case FUSE_FORGET:
            case FUSE_BATCH_FORGET:
            case FUSE_INTERRUPT:
                return;  // These have no answer; a read that is interrupted gets its own.
            case FUSE_RELEASE:
                return Answer(head.unique, 0, nullptr, 0);
            default:
                return Answer(head.unique, ENOSYS, nullptr, 0);
        }
    }

    static inline const char* mounted = nullptr;

    const std::string folder_;
    const int device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::set<uint64_t> held_;
    std::vector<Read> waiting_;
    // Reads since Hold.
    size_t received_ = 0;
    size_t answered_ = 0;
};

}  // namespace checks
