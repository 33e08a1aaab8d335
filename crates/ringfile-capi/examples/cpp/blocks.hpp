// A file of blocks whose every byte is known, and what fibers.cpp and fibers_threads.cpp check and measure with.
#ifndef BLOCKS_HPP
#define BLOCKS_HPP

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ringfile.hpp"

constexpr std::size_t block_size = 4096, words = block_size / sizeof(std::uint64_t);
using monotonic = std::chrono::steady_clock;

#define EXPECT(truth) expect(truth, #truth, __FILE__, __LINE__)

inline void expect(bool truth, const char* what, const char* file, int line) {
    if (!truth) {
        std::fprintf(stderr, "%s:%d: check failed: %s (errno %d, last error: %s)\n", file, line, what, errno,
                     ringfile_last_error());
        std::_Exit(EXIT_FAILURE);
    }
}

// Returns what a block has at a place.
inline std::uint64_t word(std::uint64_t block, std::size_t at) { return (block * words + at + 1) * 0x9E3779B97F4A7C15; }

// Makes a file of blocks, without a name. Direct, if the file system supports it.
inline int make_file(const std::string& folder, std::uint64_t blocks) {
    const std::string path = folder + "/ringfile-fibers-" + std::to_string(getpid());
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT(file >= 0 && unlink(path.c_str()) == 0);
    std::array<std::uint64_t, words> block;
    for (std::uint64_t number = 0; number < blocks; number++) {
        for (std::size_t at = 0; at < words; at++) {
            block[at] = word(number, at);
        }
        EXPECT(pwrite(file, block.data(), block_size, static_cast<off_t>(number * block_size)) == block_size);
    }
    EXPECT(fdatasync(file) == 0);
    if (fcntl(file, F_SETFL, O_DIRECT) != 0) {
        std::puts("no direct I/O here: blocks come from the page cache");
    }
    return file;
}

// Returns this process's CPU time, user and system.
inline std::chrono::microseconds processor_time() {
    rusage used{};
    EXPECT(getrusage(RUSAGE_SELF, &used) == 0);
    return std::chrono::seconds(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           std::chrono::microseconds(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

#endif
