// The differences between the versions of RocksDB that this builds for (7.8 and later).
#pragma once

#include <cstdint>
#include <type_traits>

#include "rocksdb/file_system.h"
#include "rocksdb/version.h"

#define RINGFILE_ROCKSDB_AT_LEAST(major, minor) \
    (ROCKSDB_MAJOR > (major) || (ROCKSDB_MAJOR == (major) && ROCKSDB_MINOR >= (minor)))

#if !RINGFILE_ROCKSDB_AT_LEAST(7, 8)
#error "ringfile's file system needs RocksDB 7.8 or later"
#endif

namespace ringfile_rocksdb {

template <typename Method>
struct CallbackOf;

template <typename Class, typename Callback>
struct CallbackOf<rocksdb::IOStatus (Class::*)(rocksdb::FSReadRequest&, const rocksdb::IOOptions&, Callback, void*,
                                               void**, rocksdb::IOHandleDeleter*, rocksdb::IODebugContext*)> {
    using Type = Callback;
};

// The function that ReadAsync calls when a read has ended. Since 8.4 it may change the request; before, it may only read
// it. The type is taken from the header, since patched builds have the change earlier.
using ReadCallback = CallbackOf<decltype(&rocksdb::FSRandomAccessFile::ReadAsync)>::Type;

// The type of Class::GetFileSize, which RocksDB has from 10.5 on.
template <typename Class, typename = void>
struct FileSizeOf {
    using Type = rocksdb::IOStatus (Class::*)(uint64_t*);
};

template <typename Class>
struct FileSizeOf<Class, std::void_t<decltype(&Class::GetFileSize)>> {
    using Type = decltype(&Class::GetFileSize);
};

// Where the header has the method, ringfile's method of this type overrides it.
static_assert(std::is_same_v<FileSizeOf<rocksdb::FSRandomAccessFile>::Type,
                             rocksdb::IOStatus (rocksdb::FSRandomAccessFile::*)(uint64_t*)>,
              "this RocksDB's FSRandomAccessFile::GetFileSize is not the one that ringfile has");

}  // namespace ringfile_rocksdb
