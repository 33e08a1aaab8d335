// Pages of a database through the C++ header: a pool, a batch, many reads in one call, reads by token, a queue, and
// both ways to handle an error. Each part checks its result.
//
// Usage: pages [FOLDER], where it makes and removes a file; the current folder by default.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ringfile.hpp"

namespace {

constexpr std::size_t page_size = 4096;
constexpr std::uint64_t pages = 64;

void expect(bool truth, const char* what) {
    if (!truth) {
        throw std::logic_error(std::string("check failed: ") + what);
    }
}

std::byte mark(std::uint64_t page) { return static_cast<std::byte>(page * 7 + 1); }

bool is_page(const std::byte* data, std::uint64_t page) {
    return std::all_of(data, data + page_size, [&](std::byte byte) { return byte == mark(page); });
}

void write_pages(const ringfile::pool& pool, const ringfile::file& file) {
    auto batch = ringfile::batch::create();
    std::vector<ringfile::buffer> buffers;
    for (std::uint64_t page = 0; page < pages; page++) {
        buffers.push_back(pool.buffer(page_size));
        std::fill_n(buffers.back().data(), page_size, mark(page));
        batch.add(ringfile_op_write(file.get(), buffers.back().data(), page_size, page * page_size), page);
    }
    batch.barrier();
    batch.add(ringfile_op_sync_data(file.get()), pages);
    expect(batch.run() == 0, "all was written and synced");
    for (const ringfile_result& result : batch.results()) {
        expect(result.result == (result.user_data == pages ? 0 : static_cast<std::int64_t>(page_size)), "a result");
    }
}

void read_one(const ringfile::pool& pool, const ringfile::file& file) {
    ringfile::buffer page = pool.buffer(page_size);
    expect(file.read(page, 9 * page_size) == page_size && page.size() == page_size, "a page was read");
    expect(is_page(page.data(), 9), "it is that page");
}

void read_many(const ringfile::file& file, std::vector<std::byte>& cache) {
    std::vector<ringfile_read_request> requests;
    for (std::uint64_t page = 0; page < pages; page++) {
        requests.push_back({page * page_size, cache.data() + page * page_size, page_size, 0});
    }
    expect(file.read_many(requests.data(), requests.size()) == 0, "no read failed");
    for (std::uint64_t page = 0; page < pages; page++) {
        expect(is_page(cache.data() + page * page_size, page), "a page of many");
    }
}

void read_by_token(const ringfile::file& file, std::vector<std::byte>& cache) {
    auto queue = ringfile::queue::create(2);
    const std::uint64_t first = queue.add(ringfile_op_read(file.get(), cache.data(), page_size, 3 * page_size), 3);
    const std::uint64_t second = queue.add(ringfile_op_read(file.get(), cache.data() + page_size, page_size,
                                                            4 * page_size), 4);
    queue.submit();
    expect(queue.wait_for(first) == page_size && is_page(cache.data(), 3), "the first read");
    queue.cancel(second);
    std::error_code error;
    const std::size_t bytes = queue.wait_for(second, error);
    expect(error ? error == std::errc::operation_canceled : bytes == page_size, "read or cancelled");
}

void run_queue(const ringfile::file& file, std::vector<std::byte>& cache) {
    constexpr std::uint64_t depth = 8, total = 500;
    auto queue = ringfile::queue::create(depth);
    ringfile_result results[depth];
    for (std::uint64_t begun = 0, ended = 0; ended < total;) {
        for (; begun < total && begun - ended < depth; begun++) {
            const std::uint64_t page = begun * 13 % pages;
            queue.add(ringfile_op_read(file.get(), cache.data() + page * page_size, page_size, page * page_size), page);
        }
        const std::size_t taken = queue.wait(results, depth);
        for (std::size_t at = 0; at < taken; at++) {
            const std::uint64_t page = results[at].user_data;
            expect(is_page(cache.data() + page * page_size, page), "a page of the queue");
        }
        ended += taken;
    }
}

void hear_of_errors(const ringfile::pool& pool) {
    const auto options = ringfile::open_options(RINGFILE_READ);
    try {
        ringfile::file::open("/does/not/exist", options);
        expect(false, "that can't be opened");
    } catch (const std::system_error& error) {
        expect(error.code() == std::errc::no_such_file_or_directory, "the code of the exception");
        std::cout << "an exception: " << error.what() << '\n';
    }
    std::error_code error;
    const ringfile::buffer none = pool.buffer(std::size_t{1} << 40, error);
    expect(!none && error == std::errc::not_enough_memory, "the error code");
    std::cout << "an error code: " << error.message() << ": " << ringfile::last_error() << '\n';
}

void run(const std::string& path) {
    const auto pool = ringfile::pool::create(ringfile::pool_options(4 << 20));
    auto file = ringfile::file::open(path, ringfile::open_options(RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW |
                                                                  RINGFILE_DIRECT | RINGFILE_BUFFERED_FALLBACK));
    ::unlink(path.c_str());
    std::vector<std::byte> cache(pages * page_size);
    const auto registered = ringfile::memory::add(cache.data(), cache.size());
    write_pages(pool, file);
    expect(file.size() == pages * page_size, "the size");
    read_one(pool, file);
    read_many(file, cache);
    read_by_token(file, cache);
    run_queue(file, cache);
    hear_of_errors(pool);
    const ringfile::file moved = std::move(file);
    expect(moved && !file, "what was moved");
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(std::string(argc > 1 ? argv[1] : ".") + "/ringfile-pages-" + std::to_string(::getpid()));
    } catch (const std::exception& error) {
        std::cerr << "pages: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
    std::cout << ringfile::metrics().ops << " operations\nok\n";
    return EXIT_SUCCESS;
}
