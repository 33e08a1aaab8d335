// Reads and writes memory that is given as a std::span: C++20.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "ringfile.hpp"

namespace {

constexpr std::size_t page_size = 4096, pages = 64;

void expect(bool holds, const char* what) {
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

// A storage engine's own memory, of which its interfaces pass spans.
class frames {
public:
    std::span<std::byte> operator[](std::size_t at) {
        return std::span(memory_).subspan(at * page_size, page_size);
    }

private:
    std::vector<std::byte> memory_ = std::vector<std::byte>(pages * page_size);
};

bool is_full_of(std::span<const std::byte> page, std::size_t number) {
    for (const std::byte byte : page) {
        if (byte != std::byte(number)) {
            return false;
        }
    }
    return true;
}

void fill(std::span<std::byte> page, std::size_t number) {
    for (std::byte& byte : page) {
        byte = std::byte(number);
    }
}

void use(const ringfile::file& file) {
    frames frames;
    std::vector<ringfile_write_request> writes;
    for (std::size_t at = 0; at < pages; at++) {
        fill(frames[at], at);
        writes.push_back({at * page_size, frames[at].data(), page_size, 0});
    }
    expect(file.write_many(writes) == 0, "no write failed");
    std::vector<ringfile_read_request> reads;
    for (std::size_t at = 0; at < pages; at++) {
        fill(frames[at], 255);
        reads.push_back({(pages - 1 - at) * page_size, frames[at].data(), page_size, 0});
    }
    expect(file.read_many(reads) == 0, "no read failed");
    for (std::size_t at = 0; at < pages; at++) {
        expect(reads[at].result == page_size && is_full_of(frames[at], pages - 1 - at), "a page of many");
    }

    fill(frames[0], 100);
    file.write(frames[0], 3 * page_size);
    expect(file.read(frames[1], 3 * page_size) == page_size && is_full_of(frames[1], 100), "a page that was written");
    file.write_durable(frames[0].first(512), 0);
    std::error_code error;
    expect(file.read(frames[2], 0, error) == page_size && !error, "a read without an exception");
    expect(is_full_of(frames[2].first(512), 100) && is_full_of(frames[2].subspan(512), 0), "the part was written");
    file.write(frames[0], 5 * page_size, error);
    file.write_durable(frames[0], 6 * page_size, error);
    expect(!error && file.read_many(reads, error) == 0 && file.write_many(writes, error) == 0, "the other forms");
    file.write_atomic(frames[0], 0, error);
    expect(error == std::errc::operation_not_supported, "a buffered file takes no atomic writes");
    ringfile::file().read(frames[0], 0, error);
    expect(bool(error), "no file");
}

} // namespace

int main(int argc, char** argv) {
    const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/ringfile-spans-" + std::to_string(::getpid());
    try {
        const auto flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW;
        use(ringfile::file::open(path, ringfile::open_options(flags)));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "spans: %s\n", error.what());
        return EXIT_FAILURE;
    }
    ::unlink(path.c_str());
    std::puts("ok");
    return EXIT_SUCCESS;
}
