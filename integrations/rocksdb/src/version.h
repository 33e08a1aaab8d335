// The differences between the versions of RocksDB that this builds for (7.8 and later).
#pragma once

#include <cstdint>
#include <functional>
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

// What SubmitReadAsync calls when a read has ended.
using SubmittedCallback = std::function<void(rocksdb::FSReadRequest&)>;

// The type of Class::SubmitReadAsync, which RocksDB has from 11.8 on.
template <typename Class>
using SubmitType = bool (Class::*)(rocksdb::FSReadRequest&, const rocksdb::IOOptions&, SubmittedCallback,
                                   rocksdb::IODebugContext*);

template <typename Class, typename = void>
struct SubmitOf {
    using Type = SubmitType<Class>;
};

template <typename Class>
struct SubmitOf<Class, std::void_t<decltype(&Class::SubmitReadAsync)>> {
    using Type = decltype(&Class::SubmitReadAsync);
};

// Where the header has one of these methods, ringfile's method of this type overrides it.
static_assert(std::is_same_v<FileSizeOf<rocksdb::FSRandomAccessFile>::Type,
                             rocksdb::IOStatus (rocksdb::FSRandomAccessFile::*)(uint64_t*)>,
              "this RocksDB's FSRandomAccessFile::GetFileSize is not the one that ringfile has");
static_assert(std::is_same_v<SubmitOf<rocksdb::FSRandomAccessFile>::Type, SubmitType<rocksdb::FSRandomAccessFile>>,
              "this RocksDB's FSRandomAccessFile::SubmitReadAsync is not the one that ringfile has");

}  // namespace ringfile_rocksdb
