// Every operation of the C++ header that pages.cpp does not show: with an exception and with an error code, on open and
// on closed owners.
//
// Usage: control [FOLDER], where it makes and removes a file; the current folder by default.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "ringfile.hpp"

namespace {

constexpr std::size_t page_size = 4096;

void expect(bool truth, const char* what) {
    if (!truth) {
        throw std::logic_error(std::string("check failed: ") + what);
    }
}

// The result of an operation; 0 if it has none.
template <class Operation, class... Arguments>
auto value_of(const Operation& operation, Arguments&... arguments) {
    if constexpr (std::is_void_v<decltype(operation(arguments...))>) {
        operation(arguments...);
        return 0;
    } else {
        return operation(arguments...);
    }
}

// Carries out an operation in the form that throws and in the one with a code, which must agree; then on an owner of
// nothing, where both must fail.
template <class Owner, class Throws, class Codes>
auto twice(Owner& open, const char* what, const Throws& throws, const Codes& codes) {
    const auto first = value_of(throws, open);
    std::error_code error = std::make_error_code(std::errc::interrupted);
    const auto second = value_of(codes, open, error);
    expect(!error, what);
    if constexpr (std::is_integral_v<decltype(first)>) {
        expect(first == second, what);
    }
    std::remove_const_t<Owner> none;
    value_of(codes, none, error);
    expect(error == std::errc::bad_file_descriptor, what);
    try {
        throws(none);
    } catch (const std::system_error& thrown) {
        expect(thrown.code() == std::errc::bad_file_descriptor && *thrown.what() != 0, what);
        return second;
    }
    throw std::logic_error(std::string("nothing was thrown: ") + what);
}

// The two forms of an operation, as functions of the owner.
#define FORMS(operation, ...)                                                      \
    "" #operation, [&](auto& owner) { return owner.operation(__VA_ARGS__); },      \
        [&](auto& owner, std::error_code& error) { return owner.operation(__VA_ARGS__, error); }
#define FORMS_OF_NONE(operation)                                                   \
    "" #operation, [&](auto& owner) { return owner.operation(); },                 \
        [&](auto& owner, std::error_code& error) { return owner.operation(error); }

bool is_full_of(const std::vector<char>& data, char of) {
    return std::all_of(data.begin(), data.end(), [&](char byte) { return byte == of; });
}

void change_a_file(ringfile::file& file) {
    std::vector<char> first(page_size, 'a'), second(page_size, 'b');
    const struct iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
    twice(file, FORMS(writev, parts, 2, 0));
    std::fill(first.begin(), first.end(), '\0');
    std::fill(second.begin(), second.end(), '\0');
    expect(twice(file, FORMS(readv, parts, 2, 0)) == 2 * page_size, "two pages were read");
    expect(is_full_of(first, 'a') && is_full_of(second, 'b'), "the parts in their order");
    twice(file, FORMS(write, first.data(), page_size, 0));
    twice(file, FORMS(write_durable, first.data(), page_size, 0));
    expect(twice(file, FORMS(read, second.data(), page_size, 0)) == page_size && is_full_of(second, 'a'), "a page");
    // A buffered file does not support atomic writes.
    expect(file.atomic_limits().max == 0, "no atomic writes");
    std::error_code refused;
    file.write_atomic(first.data(), page_size, 0, refused);
    expect(refused == std::errc::operation_not_supported, "an atomic write is refused");
    ringfile_read_request request{0, second.data(), page_size, 0};
    expect(twice(file, FORMS(read_many, &request, 1)) == 0, "no read failed");
    ringfile_write_request written{0, first.data(), page_size, 0};
    expect(twice(file, FORMS(write_many, &written, 1)) == 0 && written.result == page_size, "no write failed");
    ringfile::run(ringfile_op_allocate(file.get(), RINGFILE_ALLOCATE_EXTEND, 0, 4 * page_size));
    expect(twice(file, FORMS_OF_NONE(size)) == 4 * page_size, "the size after allocating");
    twice(file, FORMS(truncate, 2 * page_size));
    expect(file.size() == 2 * page_size, "the size after cutting");
    twice(file, FORMS(sync_range, 0, 0, RINGFILE_SYNC_RANGE_WRITE | RINGFILE_SYNC_RANGE_WAIT_AFTER));
    twice(file, FORMS_OF_NONE(sync_data));
    twice(file, FORMS_OF_NONE(sync_all));
    expect(twice(file, FORMS_OF_NONE(alignment)).bytes == 1, "buffered I/O has no alignment");
    expect(!file.is_direct() && !file.is_adaptive() && file.alignment().memory == 1, "it is buffered");
    expect(twice(file, FORMS_OF_NONE(descriptor)) >= 0, "a descriptor");
    std::error_code error;
    expect(ringfile::file().descriptor(error) == -1, "the descriptor of nothing");
    const auto same = ringfile::file::of_descriptor(file.descriptor());
    const auto once_more = ringfile::file::of_descriptor(file.descriptor(), nullptr, error);
    expect(!error && same.size() == once_more.size(), "files of a descriptor");
}

void read_on_any_thread(const ringfile::file& file) {
    std::vector<char> data(page_size), other(page_size);
    auto queue = ringfile::queue::create(2, RINGFILE_QUEUE_SHARED);
    const auto first = queue.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 0);
    const auto second = queue.add(ringfile_op_read(file.get(), other.data(), page_size, page_size), 1);
    std::size_t got = 0;
    std::thread([&] { got = queue.wait_for(second); }).join();
    expect(got == page_size && is_full_of(other, 'b'), "a read that another thread waited for");
    while (!queue.is_done(first)) {
        queue.submit();
    }
    std::error_code error;
    std::thread([&] { got = queue.wait_for(first, error); }).join();
    expect(!error && got == page_size && is_full_of(data, 'a'), "a read that another thread has taken");
    queue.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 2);
    queue.submit();
    std::thread([&] { error = queue.close(); }).join();
    expect(!error && !queue, "a queue that another thread has closed");
}

void read_by_token(const ringfile::file& file) {
    std::vector<char> data(page_size);
    std::error_code error;
    auto queue = ringfile::queue::create(1);
    expect(!queue.close() && !queue, "closed");
    queue = ringfile::queue::create(1, 0, error);
    expect(!error, "a queue with a code");
    const auto begin = [&] { return queue.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 1); };
    std::uint64_t token = begin();
    queue.wait(nullptr, 0, 0);
    while (!queue.is_done(token)) {
        queue.submit();
    }
    expect(queue.wait_for(token) == page_size, "taken");
    queue.wait_for(token, error);
    expect(error == std::errc::invalid_argument, "a result is taken once");
    token = queue.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 1, error);
    expect(!error && !queue.is_done(token), "it has not begun");
    expect(queue.wait_for(token, error) == page_size && !error, "waited for with a code");
    expect(queue.wait_for(begin()) == page_size, "waited for");
    ringfile_result result{};
    token = begin();
    expect(!queue.next(result) && !queue.next(result, error) && !error, "nothing has ended");
    expect(queue.wait(nullptr, 0, 0) == 0 && queue.wait_for(token) == page_size, "waited for again");
    for (const bool by_code : {false, true}) {
        begin();
        begin();
        by_code ? queue.cancel_all(error) : queue.cancel_all();
        queue.submit();
        expect(!error && queue.next(result) && result.result == -ECANCELED && result.user_data == 1, "all were cancelled");
        expect(queue.next(result, error) && !error && result.result == -ECANCELED, "all were cancelled, with a code");
    }
    token = begin();
    std::thread([&] { expect(queue.cancel(token), "asked for by another thread"); }).join();
    queue.wait_for(token, error);
    expect(error == std::errc::operation_canceled, "another thread was in time");
    token = begin();
    expect(queue.cancel(token), "asked for");
    queue.wait_for(token, error);
    expect(error == std::errc::operation_canceled, "in time");
    token = begin();
    expect(queue.cancel(token, error) && !error, "asked for with a code");
    queue.submit();
    expect(queue.is_done(token, error) && !error, "it was never begun");
    try {
        queue.wait_for(token);
        expect(false, "it was cancelled");
    } catch (const std::system_error& thrown) {
        expect(thrown.code() == std::errc::operation_canceled, "in words");
    }
    expect(!ringfile::queue().cancel(token, error) && error == std::errc::bad_file_descriptor, "no queue");
    const int waits = queue.descriptor(), also = queue.descriptor(error);
    expect(waits >= 0 && also >= 0 && !error && close(waits) == 0 && close(also) == 0, "descriptors");
    expect(ringfile::queue().descriptor(error) == -1 && error, "the descriptor of nothing");
}

void change_a_file_by_queue_and_batch(const ringfile::file& file) {
    std::vector<char> first(page_size, 'e'), second(page_size, 'f');
    const struct iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
    auto queue = ringfile::queue::create(1);
    auto batch = ringfile::batch::create();
    const auto begin = [&](auto& to, auto... code) {
        const std::uint64_t added[] = {
            to.add(ringfile_op_writev(file.get(), parts, 2, 0), 1, code...),
            to.add(ringfile_op_write_durable(file.get(), first.data(), page_size, 0), 2, code...),
            to.add(ringfile_op_allocate(file.get(), RINGFILE_ALLOCATE_KEEP_SIZE, 0, page_size), 3, code...),
            to.add(ringfile_op_truncate(file.get(), 2 * page_size), 4, code...),
            to.add(ringfile_op_advise(file.get(), 0, 0, RINGFILE_ADVICE_NORMAL), 5, code...),
            to.add(ringfile_op_sync_range(file.get(), 0, 0, RINGFILE_SYNC_RANGE_WRITE), 6, code...)};
        return std::vector<std::uint64_t>(std::begin(added), std::end(added));
    };
    std::error_code error;
    const auto with_code = [&](auto& to) { return begin(to, std::ref(error)); };
    for (const auto& tokens : {begin(queue), with_code(queue)}) {
        const std::size_t moved[] = {2 * page_size, page_size, 0, 0, 0, 0};
        for (std::size_t at = 0; at < tokens.size(); at++) {
            expect(queue.wait_for(tokens[at]) == moved[at], "an operation of the queue");
        }
    }
    expect(queue.wait_for(queue.add(ringfile_op_readv(file.get(), parts, 2, 0), 6)) == 2 * page_size, "two pages");
    expect(queue.wait_for(queue.add(ringfile_op_readv(file.get(), parts, 2, 0), 6, error)) == 2 * page_size && !error,
           "two pages");
    expect(is_full_of(first, 'e') && is_full_of(second, 'f'), "the parts in their order");
    expect(begin(batch).back() == 5 && with_code(batch).back() == 11 && !error, "indices");
    batch.barrier();
    expect(batch.add(ringfile_op_readv(file.get(), parts, 2, 0)) == 12
           && batch.add(ringfile_op_readv(file.get(), parts, 2, 0), 7, error) == 13, "more of them");
    expect(batch.run() == 0 && batch.results()[13].result == 2 * static_cast<int>(page_size), "it ran");
    expect(is_full_of(first, 'e') && is_full_of(second, 'f'), "the parts in their order");
}

// Copies the first page to the second one, in every way.
void copy_a_page(const ringfile::file& file) {
    ringfile_op op = ringfile_op_copy_range(file.get(), 0, file.get(), page_size, page_size);
    std::error_code error;
    expect(ringfile::run(op) == page_size && ringfile::run(op, error) == page_size && !error, "run");
    ringfile::batch batch = ringfile::batch::create();
    expect(batch.add(op) == 0 && batch.add(op, 7, error) == 1 && !error && batch.run() == 0, "in a batch");
    ringfile::queue queue = ringfile::queue::create(1);
    expect(queue.wait_for(queue.add(op, 7)) == page_size, "in a queue");
    expect(queue.wait_for(queue.add(op, 7, error)) == page_size && !error, "in a queue, with a code");
    std::vector<std::byte> pages(2 * page_size);
    file.read(pages.data(), pages.size(), 0);
    expect(std::equal(pages.begin(), pages.begin() + page_size, pages.begin() + page_size), "the page and its copy");
    op.kind = 99;
    queue.add(op, 7, error);
    expect(error == std::errc::invalid_argument && queue.len() == 0, "no such kind");
}

void start_a_batch(const ringfile::file& file) {
    std::vector<char> data(page_size);
    auto batch = ringfile::batch::create();
    const int ended = eventfd(0, EFD_CLOEXEC);
    std::uint64_t times = 0;
    std::error_code error;
    const auto tell = [](void* context, std::int64_t failed) {
        const std::uint64_t once = failed == 0 ? 1 : 1000;
        static_cast<void>(!write(*static_cast<int*>(context), &once, sizeof once));
    };
    int reports = ended;
    const auto wait = [&] { return read(ended, &times, sizeof times) == sizeof times && times == 1; };
    for (int form = 0; form < 4; form++) {
        batch.add(ringfile_op_read(file.get(), data.data(), page_size, 0));
        switch (form) {
            case 0: batch.start(tell, &reports); break;
            case 1: batch.start(tell, &reports, error); break;
            case 2: batch.start_eventfd(ended); break;
            default: batch.start_eventfd(ended, error); break;
        }
        expect(!error && wait() && batch.results()[0].result == static_cast<int>(page_size), "the end was told");
    }
    twice(batch, FORMS_OF_NONE(cancel));
    ringfile::batch().start(tell, &reports, error);
    expect(error == std::errc::bad_file_descriptor, "no batch");
    batch.start_eventfd(-1, error);
    expect(error == std::errc::bad_file_descriptor && close(ended) == 0, "no eventfd");
}

// The function of a started batch must not wait.
void wait_in_the_function(const ringfile::file& file) {
    struct shared {
        ringfile::queue queue;
        std::uint64_t token;
        std::error_code waited, closed;
        std::promise<void> ended;
    } shared;
    std::vector<char> data(page_size);
    shared.queue = ringfile::queue::create(1, RINGFILE_QUEUE_SHARED);
    shared.token = shared.queue.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 0);
    auto batch = ringfile::batch::create();
    const auto wait = [](void* context, std::int64_t) {
        auto& of = *static_cast<struct shared*>(context);
        of.queue.wait_for(of.token, of.waited);
        of.closed = of.queue.close();
        of.ended.set_value();
    };
    batch.start(wait, &shared);
    shared.ended.get_future().wait();
    expect(shared.waited == std::errc::resource_deadlock_would_occur && shared.closed == shared.waited, "refused");
    expect(shared.queue && shared.queue.wait_for(shared.token) == page_size && is_full_of(data, 'a'), "it was not lost");
}

void run_a_batch(const ringfile::file& file) {
    std::vector<char> data(page_size), page(page_size, 'c');
    auto batch = ringfile::batch::create();
    std::error_code error;
    const auto operations = [&](auto& to) {
        to.add(ringfile_op_write(file.get(), page.data(), page_size, 0));
        to.barrier();
        to.add(ringfile_op_sync_data(file.get()));
        to.add(ringfile_op_sync_all(file.get()));
        return to.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 7);
    };
    const auto with_code = [&](auto& to, std::error_code& code) {
        to.add(ringfile_op_write(file.get(), page.data(), page_size, 0), 0, code);
        to.barrier(code);
        to.add(ringfile_op_sync_data(file.get()), 0, code);
        to.add(ringfile_op_sync_all(file.get()), 0, code);
        to.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 7, code);
    };
    expect(operations(batch) == 3, "the index of a result");
    expect(batch.run() == 0 && is_full_of(data, 'c'), "it ran");
    with_code(batch, error);
    expect(!error && batch.run(error) == 0 && !error, "it ran with a code");
    expect(twice(batch, "results", [](auto& of) { return of.results().size(); },
                 [](auto& of, std::error_code& code) { return of.results(code).size(); }) == 4, "four results");
    expect(batch.results()[3].user_data == 7 && batch.error(3).empty(), "the read's");
    twice(batch, FORMS_OF_NONE(clear));
    twice(batch, FORMS_OF_NONE(barrier));
    expect(batch.results(error).size() == 0 && !error, "none are left");
    ringfile::batch none;
    with_code(none, error);
    expect(error == std::errc::bad_file_descriptor, "no batch");
    const auto second = ringfile::batch::create(ringfile::batch_options(), error);
    expect(second && !error, "a batch with a code");
}

void run_a_queue(const ringfile::file& file) {
    using namespace std::chrono_literals;
    std::vector<char> data(page_size), page(page_size, 'd');
    std::error_code error;
    auto queue = ringfile::queue::create(4, 0, error);
    ringfile_result results[4];
    queue.add(ringfile_op_write(file.get(), page.data(), page_size, 0), 1);
    queue.submit();
    expect(queue.wait(results, 4) == 1 && results[0].result == page_size, "a write");
    queue.add(ringfile_op_write(file.get(), page.data(), page_size, 0), 1, error);
    queue.submit(error);
    expect(!error && queue.wait(results, 4, 1, error) == 1 && !error, "a write with a code");
    queue.add(ringfile_op_sync_data(file.get()), 2);
    queue.add(ringfile_op_sync_all(file.get()), 3, error);
    expect(queue.len() == 2 && queue.len(error) == 2 && queue.wait(results, 4, 2, 60s) == 2, "two syncs");
    queue.add(ringfile_op_sync_data(file.get()), 2, error);
    queue.add(ringfile_op_sync_all(file.get()), 3);
    queue.add(ringfile_op_read(file.get(), data.data(), page_size, 0), 4, error);
    expect(queue.wait(results, 4, 3, 60s, error) == 3 && !error && is_full_of(data, 'd'), "two syncs and a read");
    twice(queue, FORMS_OF_NONE(submit));
    expect(twice(queue, FORMS_OF_NONE(len)) == 0, "nothing is open");
    expect(twice(queue, FORMS(wait, results, 4, 1, 0ns)) == 0, "nothing comes");
}

void use_memory(ringfile::file& file) {
    std::error_code error;
    auto pool = ringfile::pool::create(ringfile::pool_options(1 << 20));
    auto buffer = pool.buffer(page_size);
    std::fill_n(buffer.data(), page_size, std::byte{'e'});
    buffer.resize(page_size);
    twice(file, FORMS(write, buffer, 0));
    expect(twice(file, FORMS(read, buffer, 10)) == page_size && buffer.data()[0] == std::byte{'e'}, "by a buffer");
    twice(buffer, FORMS(resize, 100));
    expect(buffer.size() == 100 && buffer.capacity() == page_size, "its length");
    expect(ringfile::buffer().data() == nullptr, "the memory of nothing");
    buffer.resize(page_size + 1, error);
    expect(error == std::errc::invalid_argument, "above its capacity");
    expect(twice(pool, FORMS_OF_NONE(metrics)).in_use >= page_size, "what is in use");
    const auto second = ringfile::pool::create(ringfile::pool_options(1 << 20), error);
    expect(!error && second.buffer(page_size, error) && !error, "a pool and a buffer with codes");
    std::vector<char> own(page_size);
    auto memory = ringfile::memory::add(own.data(), own.size());
    expect(!memory.is_in_use() && !ringfile::memory().is_in_use(), "nothing uses it");
    ringfile::memory::add(own.data(), own.size(), 0, error);
    expect(error == std::errc::file_exists && !memory.close() && !memory, "registered once, and given up");
}

// An operation of the whole process or thread, in both forms.
template <class Throws, class Codes>
auto of_all(const char* what, const Throws& throws, const Codes& codes) {
    std::error_code error = std::make_error_code(std::errc::interrupted);
    value_of(throws);
    const auto value = value_of(codes, error);
    expect(!error, what);
    return value;
}
#define OF_ALL(operation, ...)                                                     \
    "" #operation, [&] { return ringfile::operation(__VA_ARGS__); },               \
        [&](std::error_code& error) { return ringfile::operation(__VA_ARGS__, error); }
#define OF_ALL_WITH_NONE(operation)                                                \
    "" #operation, [&] { return ringfile::operation(); },                          \
        [&](std::error_code& error) { return ringfile::operation(error); }

void set_and_count(const std::string& folder) {
    std::error_code error;
    of_all(OF_ALL(set_default_route, RINGFILE_ROUTE_AUTO));
    of_all(OF_ALL(set_io_threads, std::size_t{1}));
    of_all(OF_ALL(set_worker_threads, std::size_t{0}));
    of_all(OF_ALL_WITH_NONE(thread_release));
    of_all(OF_ALL(sync_directory, folder));
    ringfile::sync_directory("/does/not/exist", error);
    expect(error == std::errc::no_such_file_or_directory, "no directory");
    ringfile::set_default_route(99, error);
    expect(error == std::errc::invalid_argument, "no route");
    expect(of_all(OF_ALL_WITH_NONE(metrics)).ops >= of_all(OF_ALL_WITH_NONE(thread_metrics)).ops, "counts");
    const std::string features = ringfile::ring_features(error);
    expect(features.empty() == static_cast<bool>(error), "features, or why there are none");
    try {
        expect(ringfile::ring_features() == features, "the same again");
    } catch (const std::system_error& thrown) {
        expect(thrown.code() == error, "the same error again");
    }
    expect(ringfile::version() == ringfile_version() && !ringfile::version().empty(), "the version");
}

// The file's few reads are cached, so there may be no message; a message has a level and one line.
void hear_warnings() {
    std::error_code error;
    ringfile::set_log([](int level, const char* message) {
        std::cout << "level " << level << ": " << message << '\n';
        throw std::logic_error("goes no further");
    });
    ringfile::set_log([](int level, const char* message) { std::cout << "level " << level << ": " << message << '\n'; },
                      error);
    expect(!error, "a log was set");
}

// Each operation on a path throws or sets a code, and both forms do the same.
void use_paths(const std::string& folder) {
    const std::string name = folder + "/ringfile-paths-" + std::to_string(::getpid()), other = name + "-other";
    const char *path = name.c_str(), *moved = other.c_str();
    const auto options = ringfile::open_options(RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE);
    std::error_code error;
    auto queue = ringfile::queue::create(4);
    const auto done = [&](std::uint64_t token) { return queue.wait_for(token) == 0; };
    ringfile_file *first = nullptr, *second = nullptr;
    expect(done(queue.add(ringfile_op_open(path, &options, &first), 1)) && first, "opened");
    expect(done(queue.add(ringfile_op_open(path, &options, &second), 1, error)) && second && !error,
           "opened with a code");
    ringfile::file file(first), again(second);
    file.write("content", 7, 0);
    ringfile_metadata metadata{};
    metadata.size = sizeof metadata;
    expect(done(queue.add(ringfile_op_statx(path, &metadata), 2)) && metadata.length == 7, "looked at");
    metadata.length = 0;
    expect(done(queue.add(ringfile_op_statx(path, &metadata), 2, error)) && metadata.length == 7,
           "looked at with a code");
    expect(done(queue.add(ringfile_op_rename(path, moved, 0), 3))
           && done(queue.add(ringfile_op_rename(moved, path, 0), 3, error)), "renamed there and back");
    expect(done(queue.add(ringfile_op_path(RINGFILE_OP_MKDIR, moved), 4))
           && done(queue.add(ringfile_op_path(RINGFILE_OP_RMDIR, moved), 4, error)), "a directory made and removed");
    expect(done(queue.add(ringfile_op_path(RINGFILE_OP_MKDIR, moved), 4, error))
           && done(queue.add(ringfile_op_path(RINGFILE_OP_RMDIR, moved), 4)), "the same the other way round");
    expect(done(queue.add(ringfile_op_path(RINGFILE_OP_UNLINK, path), 5)), "removed");
    const auto token = queue.add(ringfile_op_path(RINGFILE_OP_UNLINK, path), 5, error);
    expect(queue.wait_for(token, error) == 0 && error == std::errc::no_such_file_or_directory, "it was removed before");
    ringfile::queue().add(ringfile_op_path(RINGFILE_OP_UNLINK, path), 5, error);
    expect(error == std::errc::bad_file_descriptor, "no queue");
}

void run(const std::string& folder) {
    hear_warnings();
    std::error_code error;
    expect(ringfile::file::open(folder, ringfile::open_options(RINGFILE_READ), error) && !error, "a folder");
    const std::string path = folder + "/ringfile-control-" + std::to_string(::getpid());
    const std::uint32_t flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE_NEW;
    auto file = ringfile::file::open(path, ringfile::open_options(flags));
    ::unlink(path.c_str());
    change_a_file(file);
    std::vector<char> pages(2 * page_size, 'a');
    std::fill_n(pages.begin() + page_size, page_size, 'b');
    file.write(pages.data(), pages.size(), 0);
    read_on_any_thread(file);
    wait_in_the_function(file);
    read_by_token(file);
    change_a_file_by_queue_and_batch(file);
    run_a_batch(file);
    start_a_batch(file);
    run_a_queue(file);
    use_paths(folder);
    use_memory(file);
    file.write(pages.data(), pages.size(), 0);
    copy_a_page(file);
    set_and_count(folder);
    ringfile::set_log(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(argc > 1 ? argv[1] : ".");
    } catch (const std::exception& error) {
        std::cerr << "control: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
    std::cout << "ok\n";
    return EXIT_SUCCESS;
}
