// A log through the C++ header: several threads append, the appender closes itself, and the log is continued later.
//
// Usage: log [FOLDER], where it makes and removes a file; the current folder by default.
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ringfile.hpp"

namespace {

constexpr std::size_t writers = 4;
constexpr std::size_t each = 200;
constexpr std::size_t length = 100;

void expect(bool truth, const char* what) {
    if (!truth) {
        throw std::logic_error(std::string("check failed: ") + what);
    }
}

void write_records(const ringfile::file& file) {
    auto opened = ringfile::appender::open(file, 0);
    const ringfile::appender log = std::move(opened);
    std::vector<std::thread> threads;
    for (std::size_t writer = 0; writer < writers; writer++) {
        threads.emplace_back([&log, writer] {
            const std::string record(length, static_cast<char>('a' + writer));
            for (std::size_t count = 0; count < each; count++) {
                log.append(record.data(), record.size(), count % 50 == 0 ? RINGFILE_APPEND_SYNC : 0);
            }
            log.flush();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    expect(!opened && log.end() == writers * each * length, "all was appended");
}  // made durable here

void check_records(const ringfile::file& file) {
    std::vector<std::size_t> found(writers);
    expect(file.stat().length == writers * each * length, "the file has all records, and nothing else");
    for (std::size_t at = 0; at < writers * each; at++) {
        std::string record(length, '\0');
        file.read(record.data(), record.size(), at * length);
        expect(record == std::string(length, record[0]), "a record is whole");
        found.at(static_cast<std::size_t>(record[0] - 'a'))++;
    }
    expect(found == std::vector<std::size_t>(writers, each), "each thread's records are there");
}

void go_on(const ringfile::file& file) {
    auto options = ringfile::appender_options();
    options.depth = 2;
    auto log = ringfile::appender::open(file, length, options);
    expect(log.append("more", 4) == length, "it goes on behind the first record");
    log.sync();
    expect(!log.close() && !log, "it is closed");

    std::error_code error;
    expect(log.append("x", 1, 0, error) == 0 && error == std::errc::bad_file_descriptor, "no appender, no record");
    log.flush(error);
    expect(error == std::errc::bad_file_descriptor, "nothing to flush");
    log.sync(error);
    expect(error == std::errc::bad_file_descriptor, "nothing to sync");
    expect(log.end(error) == 0 && error == std::errc::bad_file_descriptor, "no end");
    const auto none = ringfile::appender::open(file, 1 << 20, options, error);
    expect(!none && error == std::errc::invalid_argument, "the file is shorter");
    expect(file.stat(error).length == length + 4 && !error, "the rest was cut off");
    ringfile::file().stat(error);
    expect(static_cast<bool>(error), "no file, no metadata");
}

void use(const std::string& path) {
    const auto file = ringfile::file::open(
        path, ringfile::open_options(RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW));
    write_records(file);
    check_records(file);
    go_on(file);
}

}  // namespace

int main(int count, char** arguments) {
    const std::string path =
        (count > 1 ? arguments[1] : ".") + std::string("/ringfile-log-cpp-") + std::to_string(getpid());
    int status = EXIT_SUCCESS;
    try {
        use(path);
        std::cout << "ok\n";
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        status = EXIT_FAILURE;
    }
    unlink(path.c_str());
    return status;
}
