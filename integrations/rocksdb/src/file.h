// One open file: ringfile's handle for reading, writing and syncing, and its descriptor for everything else.
//
// No other code reads or writes through the C interface, except for asynchronous reads in async.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ringfile.h"
#include "rocksdb/file_system.h"

namespace ringfile_rocksdb {

// How a file is opened: flags such as RINGFILE_READ, and a route, RINGFILE_ROUTE_... .
struct Access {
    uint32_t flags = 0;
    uint32_t route = RINGFILE_ROUTE_DEFAULT;
};

class File {
  public:
    static rocksdb::IOStatus Open(const std::string& doing, const std::string& path, const Access& access,
                                  std::unique_ptr<File>* opened);
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File();

    // Returns the number of bytes read, fewer than `len` only at the end of the file, or a negative errno. Any thread may
    // call it. It makes a plain call unless the route excludes that, or the file is adaptive: a ring only adds 2 to 3 µs to a
    // single read that the thread waits for.
    int64_t Read(uint64_t offset, size_t len, char* to) const;

    // Writes all of it; returns 0 or a negative errno.
    int Write(uint64_t offset, const char* from, size_t len) const;

    int SyncData() const;
    int SyncAll() const;

    // Starts or awaits writeback of a range (flags: RINGFILE_SYNC_RANGE_...), which makes nothing durable. If it fails,
    // later syncs fail too, because the kernel reports the failure only once.
    int SyncRange(uint64_t offset, uint64_t length, uint32_t flags) const;

    // Closes the file. Operations in flight continue, and keep the file open until they finish.
    int Close();

    const std::string& path() const { return path_; }
    ringfile_file* handle() const { return handle_; }
    int descriptor() const { return descriptor_; }

    // Returns whether RocksDB must use aligned memory, offsets and lengths.
    bool direct() const { return direct_; }

    // Returns what memory, offsets and lengths must be multiples of; a page for buffered files.
    size_t Alignment() const { return alignment_; }

    // Returns the size, or a negative errno.
    int64_t Size() const;
    size_t UniqueId(char* id, size_t room) const;

    // Drops cached pages. Does nothing for direct files.
    rocksdb::IOStatus Invalidate(size_t offset, size_t length) const;

    rocksdb::IOStatus Error(const std::string& doing, int error) const;

  private:
    File(std::string path, ringfile_file* handle, const Access& access);

    int64_t PlainRead(uint64_t offset, size_t len, char* to) const;

    std::string path_;
    ringfile_file* handle_;
    int descriptor_;
    const bool direct_;
    const bool plain_reads_;
    size_t alignment_ = rocksdb::kDefaultPageSize;
};

}  // namespace ringfile_rocksdb
