// One open file: ringfile's handle for reading, writing and syncing, and its descriptor for everything else.
#include "file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "counters.h"
#include "status.h"

namespace ringfile_rocksdb {

using rocksdb::IOStatus;

namespace {

constexpr uint32_t kMode = 0644;

// Returns whether the kernel accepts O_DIRECT here. tmpfs accepts but ignores it, which ringfile reports as
// an error; but RocksDB must work there as it does without ringfile.
bool KernelTakesDirect(const std::string& path, uint32_t flags) {
    const int access = (flags & RINGFILE_WRITE) != 0 ? O_WRONLY : O_RDONLY;
    const int create = (flags & RINGFILE_CREATE) != 0 ? O_CREAT : 0;
    const int fd = open(path.c_str(), access | create | O_DIRECT | O_CLOEXEC, kMode);
    if (fd < 0) {
        return false;
    }
    close(fd);
    return true;
}

int OpenHandle(const std::string& path, const Access& access, ringfile_file** handle) {
    ringfile_open_options options{};
    options.size = sizeof options;
    options.flags = access.flags;
    options.mode = kMode;
    // AIO is only for direct I/O.
    const bool buffered_aio = access.route == RINGFILE_ROUTE_AIO && (access.flags & RINGFILE_DIRECT) == 0;
    options.route = buffered_aio ? RINGFILE_ROUTE_AUTO : access.route;
    int result = ringfile_open(path.c_str(), &options, handle);
    if (result == -EOPNOTSUPP && (access.flags & RINGFILE_DIRECT) != 0 && KernelTakesDirect(path, access.flags)) {
        options.flags |= RINGFILE_BUFFERED_FALLBACK;
        options.route = access.route == RINGFILE_ROUTE_AIO ? RINGFILE_ROUTE_AUTO : access.route;
        result = ringfile_open(path.c_str(), &options, handle);
    }
    return result;
}

// Encodes numbers as RocksDB does in unique ids: seven bits per byte, the low ones first.
char* PutVarint(char* to, uint64_t number) {
    for (; number >= 0x80; number >>= 7) {
        *to++ = static_cast<char>(number | 0x80);
    }
    *to++ = static_cast<char>(number);
    return to;
}

}  // namespace

IOStatus File::Open(const std::string& doing, const std::string& path, const Access& access,
                    std::unique_ptr<File>* opened) {
    ringfile_file* handle = nullptr;
    const int result = OpenHandle(path, access, &handle);
    if (result < 0) {
        return ErrorStatus(doing, path, -result);
    }
    opened->reset(new File(path, handle, access));
    return IOStatus::OK();
}

File::File(std::string path, ringfile_file* handle, const Access& access)
    : path_(std::move(path)),
      handle_(handle),
      descriptor_(ringfile_fd(handle)),
      direct_((access.flags & RINGFILE_DIRECT) != 0),
      plain_reads_((access.route == RINGFILE_ROUTE_AUTO || access.route == RINGFILE_ROUTE_INLINE ||
                    (access.route == RINGFILE_ROUTE_AIO && !direct_)) &&
                   ringfile_is_adaptive(handle) == 0) {
    size_t bytes = 0;
    size_t memory = 0;
    if (direct_ && ringfile_alignment(handle, &bytes, &memory) == 0 && std::max(bytes, memory) > 1) {
        // RocksDB has one alignment for offsets, lengths and addresses. A kernel that requires less of addresses accepts
        // this one too.
        alignment_ = std::max({bytes, memory, size_t{512}});
    }
}

File::~File() { Close(); }

int File::Close() {
    if (handle_ == nullptr) {
        return 0;
    }
    const int result = ringfile_close(handle_);
    handle_ = nullptr;
    descriptor_ = -1;
    return result;
}

int64_t File::Read(uint64_t offset, size_t len, char* to) const {
    if (len == 0) {
        return 0;
    }
    const int64_t done = plain_reads_ ? PlainRead(offset, len, to) : -EINVAL;
    // EINVAL: the read is not aligned for direct I/O. ringfile reads it through an aligned buffer.
    return done == -EINVAL ? ringfile_read(handle_, to, len, offset) : done;
}

int64_t File::PlainRead(uint64_t offset, size_t len, char* to) const {
    Count().plain_reads.Add();
    size_t done = 0;
    while (done < len) {
        const ssize_t got = pread(descriptor_, to + done, len - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -errno;
        }
        done += static_cast<size_t>(got);
        // A direct read ends within a block only at the end of the file, and the next one cannot begin within a block.
        if (got == 0 || (direct_ && static_cast<size_t>(got) % alignment_ != 0)) {
            break;
        }
    }
    return static_cast<int64_t>(done);
}

int File::Write(uint64_t offset, const char* from, size_t len) const {
    if (len == 0) {
        return 0;
    }
    const int64_t done = ringfile_write(handle_, from, len, offset);
    return done < 0 ? static_cast<int>(done) : 0;
}

int File::SyncData() const { return ringfile_sync_data(handle_); }

int File::SyncAll() const { return ringfile_sync_all(handle_); }

int File::SyncRange(uint64_t offset, uint64_t length, uint32_t flags) const {
    return ringfile_sync_range(handle_, offset, length, flags);
}

int64_t File::Size() const { return ringfile_size(handle_); }

// The id consists of device, inode and generation. It is the same each time a file is opened, and different once the inode
// number is reused.
size_t File::UniqueId(char* id, size_t room) const {
    constexpr size_t kMost = 3 * 10;
    struct stat about {};
    // The kernel writes an int, although the request's name says long.
    int generation[2] = {0, 0};
    if (room < kMost || fstat(descriptor_, &about) != 0 ||
        ioctl(descriptor_, FS_IOC_GETVERSION, generation) != 0) {
        return 0;
    }
    char* end = PutVarint(id, about.st_dev);
    end = PutVarint(end, about.st_ino);
    end = PutVarint(end, static_cast<uint32_t>(generation[0]));
    return static_cast<size_t>(end - id);
}

IOStatus File::Invalidate(size_t offset, size_t length) const {
    if (direct_) {
        return IOStatus::OK();
    }
    const int result = ringfile_advise(handle_, offset, length, RINGFILE_ADVICE_DONT_NEED);
    return result < 0 ? Error("While dropping cached pages", -result) : IOStatus::OK();
}

IOStatus File::Error(const std::string& doing, int error) const { return ErrorStatus(doing, path_, error); }

}  // namespace ringfile_rocksdb
