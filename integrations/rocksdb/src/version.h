// The differences between the versions of RocksDB that this builds for (7.8 and later).
#pragma once

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

}  // namespace ringfile_rocksdb
