// Reads pages through a page cache, as std::span: C++20.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <thread>
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

bool is_full_of(std::span<const std::byte> page, std::size_t number) {
    for (const std::byte byte : page) {
        if (byte != std::byte(number)) {
            return false;
        }
    }
    return page.size() == page_size;
}

void use(const ringfile::file& file) {
    std::vector<std::byte> content(page_size);
    for (std::size_t at = 0; at < pages; at++) {
        content.assign(page_size, std::byte(at));
        file.write(content, at * page_size);
    }
    ringfile::cache cache = ringfile::cache::create(ringfile::cache_options(pages / 2 * page_size));
    ringfile::cached_file cached = cache.open(file, page_size);

    expect(!cached.find(7), "no page is in memory");
    ringfile::cached_page page = cached.read(7);
    expect(is_full_of(page.bytes(), 7), "the page was read");
    expect(cached.find(7).data() == page.data(), "it is found again");
    expect(cached.read(pages).bytes().empty(), "behind the end");

    const std::array<std::uint64_t, 3> numbers{9, 7, 10};
    std::array<ringfile::cached_page, 3> several;
    cached.prefetch(numbers.data(), numbers.size());
    cached.read_many(numbers.data(), numbers.size(), several.data());
    for (std::size_t at = 0; at < several.size(); at++) {
        expect(is_full_of(several[at].bytes(), numbers[at]), "a page of several");
    }
    several = {};

    content.assign(page_size, std::byte(100));
    cached.write(7, content.data(), content.size());
    expect(is_full_of(page.bytes(), 7) && is_full_of(cached.find(7).bytes(), 100), "the old page and the new one");
    content.assign(page_size, std::byte(101));
    file.write(content, 7 * page_size);
    cached.invalidate(7, 1);
    expect(is_full_of(cached.read(7).bytes(), 101), "what another has written");

    std::thread([moved = std::move(page)] { expect(is_full_of(moved.bytes(), 7), "on another thread"); }).join();
    expect(cache.metrics(cached).pinned == 0 && cache.metrics().misses >= 4, "all are released");
    cache.set_budget(4 * page_size);
    expect(cache.metrics().bytes <= 4 * page_size, "the budget was lowered");

    std::error_code error;
    expect(is_full_of(cached.read(8, error).bytes(), 8) && !error, "a read without an exception");
    cached.write(0, content.data(), 1, error);
    expect(error == std::errc::invalid_argument, "a page is written as a whole");
    expect(!ringfile::cached_file().find(0, error) && error == std::errc::bad_file_descriptor, "no file");
    page = cached.read(8);
    expect(!cached.close() && !cache.close() && is_full_of(page.bytes(), 8), "a page stays when its file is closed");
}

} // namespace

int main(int argc, char** argv) {
    const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/ringfile-cached-" + std::to_string(::getpid());
    try {
        const auto flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW;
        use(ringfile::file::open(path, ringfile::open_options(flags)));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cached_pages: %s\n", error.what());
        return EXIT_FAILURE;
    }
    ::unlink(path.c_str());
    std::puts("ok");
    return EXIT_SUCCESS;
}
