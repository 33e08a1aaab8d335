// Shared by the programs of this folder: expectations that end the program, memory, and files to read.
#pragma once

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "rocksdb/file_system.h"

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            std::cerr << __FILE__ << ":" << __LINE__ << ": check failed: " << #condition << "\n"; \
            std::exit(1); \
        } \
    } while (false)

#define EXPECT_OK(expression) \
    do { \
        const rocksdb::Status outcome = (expression); \
        if (!outcome.ok()) { \
            std::cerr << __FILE__ << ":" << __LINE__ << ": " << #expression << ": " << outcome.ToString() << "\n"; \
            std::exit(1); \
        } \
    } while (false)

namespace checks {

constexpr size_t kPage = 4096;

struct Free {
    void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

inline Memory Aligned(size_t bytes) { return Memory(static_cast<char*>(std::aligned_alloc(kPage, bytes))); }

inline std::unique_ptr<rocksdb::FSRandomAccessFile> OpenReadable(rocksdb::FileSystem* files, const std::string& path,
                                                                 bool direct) {
    rocksdb::FileOptions options;
    options.use_direct_reads = direct;
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;
    EXPECT_OK(files->NewRandomAccessFile(path, options, &file, nullptr));
    return file;
}

}  // namespace checks
