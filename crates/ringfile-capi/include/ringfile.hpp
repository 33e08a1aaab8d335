// ringfile for C++17: owners over the C interface, header-only.
//
// Everything that ringfile.h says of threads, memory and blocking holds here. Owners can be moved, not copied, and close
// what they own. Each operation comes twice: one that throws std::system_error, whose text is the library's own, and one
// with `std::error_code&` that throws nothing. Operations take pointers and lengths, as in C: memory of a buffer, memory
// that was registered, or any other.
#ifndef RINGFILE_HPP
#define RINGFILE_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

#include "ringfile.h"

namespace ringfile {

// The library's text of what went wrong last on this thread.
inline std::string last_error() { return ringfile_last_error(); }

inline std::error_code code_of(std::int64_t result) noexcept {
    return result < 0 ? std::error_code(static_cast<int>(-result), std::system_category()) : std::error_code();
}

// A result as it is, or an exception where it is an error.
inline std::int64_t check(std::int64_t result) {
    if (result < 0) {
        throw std::system_error(code_of(result), ringfile_last_error());
    }
    return result;
}

// A result, or 0 with the code set.
inline std::int64_t check(std::int64_t result, std::error_code& error) noexcept {
    error = code_of(result);
    return result < 0 ? 0 : result;
}

namespace detail {

// Owns a handle, and closes it.
template <class Handle, int (*Close)(Handle*)>
class owner {
public:
    owner() noexcept = default;
    explicit owner(Handle* handle) noexcept : handle_(handle) {}
    owner(owner&& other) noexcept : handle_(other.release()) {}
    owner& operator=(owner&& other) noexcept {
        if (this != &other) {
            reset(other.release());
        }
        return *this;
    }
    owner(const owner&) = delete;
    owner& operator=(const owner&) = delete;
    ~owner() { reset(); }

    // The handle, for functions of ringfile.h; NULL where nothing is owned.
    Handle* get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // Gives the handle away, open.
    Handle* release() noexcept { return std::exchange(handle_, nullptr); }
    // Closes what is owned.
    void reset(Handle* handle = nullptr) noexcept {
        if (handle_ != nullptr) {
            Close(handle_);
        }
        handle_ = handle;
    }
    // Closes what is owned, and tells whether that went well. What could not be closed (a queue of another thread) is
    // still owned.
    std::error_code close() noexcept {
        const std::error_code error = code_of(Close(handle_));
        if (!error) {
            handle_ = nullptr;
        }
        return error;
    }

private:
    Handle* handle_ = nullptr;
};

}  // namespace detail

// Options with their size set and all else at the default.
inline ringfile_pool_options pool_options(std::size_t capacity) noexcept {
    ringfile_pool_options options{};
    options.size = sizeof options;
    options.capacity = capacity;
    return options;
}

inline ringfile_open_options open_options(std::uint32_t flags) noexcept {
    ringfile_open_options options{};
    options.size = sizeof options;
    options.flags = flags;
    return options;
}

inline ringfile_batch_options batch_options() noexcept {
    ringfile_batch_options options{};
    options.size = sizeof options;
    return options;
}

// A piece of a pool's memory.
class buffer : public detail::owner<ringfile_buffer, ringfile_buffer_release> {
public:
    using owner::owner;

    std::byte* data() const noexcept { return static_cast<std::byte*>(ringfile_buffer_data(get())); }
    std::size_t capacity() const noexcept { return or_none(ringfile_buffer_capacity(get())); }
    std::size_t size() const noexcept { return or_none(ringfile_buffer_length(get())); }
    void resize(std::size_t length) { check(ringfile_buffer_set_length(get(), length)); }

private:
    static std::size_t or_none(std::int64_t length) noexcept {
        return length < 0 ? 0 : static_cast<std::size_t>(length);
    }
};

// Aligned memory for I/O, with a hard limit.
class pool : public detail::owner<ringfile_pool, ringfile_pool_free> {
public:
    using owner::owner;

    static pool create(const ringfile_pool_options& options) {
        ringfile_pool* handle = nullptr;
        check(ringfile_pool_create(&options, &handle));
        return pool(handle);
    }
    static pool create(const ringfile_pool_options& options, std::error_code& error) noexcept {
        ringfile_pool* handle = nullptr;
        check(ringfile_pool_create(&options, &handle), error);
        return pool(handle);
    }

    ringfile::buffer buffer(std::size_t capacity) const {
        ringfile_buffer* handle = nullptr;
        check(ringfile_buffer_get(get(), capacity, &handle));
        return ringfile::buffer(handle);
    }
    ringfile::buffer buffer(std::size_t capacity, std::error_code& error) const noexcept {
        ringfile_buffer* handle = nullptr;
        check(ringfile_buffer_get(get(), capacity, &handle), error);
        return ringfile::buffer(handle);
    }
    ringfile_pool_counts metrics() const {
        ringfile_pool_counts counts{};
        counts.size = sizeof counts;
        check(ringfile_pool_metrics(get(), &counts));
        return counts;
    }
};

// Memory of the program's own that is registered. Its operations must be over before this goes: where one is not, the
// memory stays registered, and must stay.
class memory : public detail::owner<ringfile_memory, ringfile_memory_unregister> {
public:
    using owner::owner;

    static memory add(void* data, std::size_t length) {
        ringfile_memory* handle = nullptr;
        check(ringfile_memory_register(data, length, &handle));
        return memory(handle);
    }
    static memory add(void* data, std::size_t length, std::error_code& error) noexcept {
        ringfile_memory* handle = nullptr;
        check(ringfile_memory_register(data, length, &handle), error);
        return memory(handle);
    }
};

// An open file. Reads give the bytes read, fewer than wanted only at the end of the file.
class file : public detail::owner<ringfile_file, ringfile_close> {
public:
    using owner::owner;

    static file open(const std::string& path, const ringfile_open_options& options) {
        ringfile_file* handle = nullptr;
        check(ringfile_open(path.c_str(), &options, &handle));
        return file(handle);
    }
    static file open(const char* path, const ringfile_open_options& options, std::error_code& error) noexcept {
        ringfile_file* handle = nullptr;
        check(ringfile_open(path, &options, &handle), error);
        return file(handle);
    }
    static file of_descriptor(int descriptor, const ringfile_open_options* options = nullptr) {
        ringfile_file* handle = nullptr;
        check(ringfile_open_fd(descriptor, options, &handle));
        return file(handle);
    }
    static file of_descriptor(int descriptor, const ringfile_open_options* options, std::error_code& error) noexcept {
        ringfile_file* handle = nullptr;
        check(ringfile_open_fd(descriptor, options, &handle), error);
        return file(handle);
    }

    std::size_t read(void* data, std::size_t length, std::uint64_t offset) const {
        return static_cast<std::size_t>(check(ringfile_read(get(), data, length, offset)));
    }
    std::size_t read(void* data, std::size_t length, std::uint64_t offset, std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_read(get(), data, length, offset), error));
    }
    void write(const void* data, std::size_t length, std::uint64_t offset) const {
        check(ringfile_write(get(), data, length, offset));
    }
    void write(const void* data, std::size_t length, std::uint64_t offset, std::error_code& error) const noexcept {
        check(ringfile_write(get(), data, length, offset), error);
    }
    void write_durable(const void* data, std::size_t length, std::uint64_t offset) const {
        check(ringfile_write_durable(get(), data, length, offset));
    }
    void write_durable(const void* data, std::size_t length, std::uint64_t offset,
                       std::error_code& error) const noexcept {
        check(ringfile_write_durable(get(), data, length, offset), error);
    }
    // Into a buffer up to its capacity, whose size is then what was read.
    std::size_t read(buffer& to, std::uint64_t offset) const {
        return static_cast<std::size_t>(check(ringfile_buffer_read(get(), to.get(), offset)));
    }
    std::size_t read(buffer& to, std::uint64_t offset, std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_buffer_read(get(), to.get(), offset), error));
    }
    void write(const buffer& from, std::uint64_t offset) const {
        check(ringfile_buffer_write(get(), from.get(), offset));
    }
    void write(const buffer& from, std::uint64_t offset, std::error_code& error) const noexcept {
        check(ringfile_buffer_write(get(), from.get(), offset), error);
    }

    // How many of the reads failed; each request tells of its own.
    std::size_t read_many(ringfile_read_request* requests, std::size_t count) const {
        return static_cast<std::size_t>(check(ringfile_read_many(get(), requests, count)));
    }
    std::size_t read_many(ringfile_read_request* requests, std::size_t count, std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_read_many(get(), requests, count), error));
    }

    void sync_data() const { check(ringfile_sync_data(get())); }
    void sync_data(std::error_code& error) const noexcept { check(ringfile_sync_data(get()), error); }
    void sync_all() const { check(ringfile_sync_all(get())); }
    void sync_all(std::error_code& error) const noexcept { check(ringfile_sync_all(get()), error); }
    void truncate(std::uint64_t length) const { check(ringfile_truncate(get(), length)); }
    void truncate(std::uint64_t length, std::error_code& error) const noexcept {
        check(ringfile_truncate(get(), length), error);
    }
    std::uint64_t size() const { return static_cast<std::uint64_t>(check(ringfile_size(get()))); }
    std::uint64_t size(std::error_code& error) const noexcept {
        return static_cast<std::uint64_t>(check(ringfile_size(get()), error));
    }
    bool is_direct() const noexcept { return ringfile_is_direct(get()) == 1; }
};

// Operations that are carried out together.
class batch : public detail::owner<ringfile_batch, ringfile_batch_free> {
public:
    using owner::owner;

    static batch create(const ringfile_batch_options& options = batch_options()) {
        ringfile_batch* handle = nullptr;
        check(ringfile_batch_create(&options, &handle));
        return batch(handle);
    }
    static batch create(const ringfile_batch_options& options, std::error_code& error) noexcept {
        ringfile_batch* handle = nullptr;
        check(ringfile_batch_create(&options, &handle), error);
        return batch(handle);
    }

    void read(const file& from, void* data, std::size_t length, std::uint64_t offset, std::uint64_t user_data = 0) {
        check(ringfile_batch_read(get(), from.get(), data, length, offset, user_data));
    }
    void write(const file& to, const void* data, std::size_t length, std::uint64_t offset,
               std::uint64_t user_data = 0) {
        check(ringfile_batch_write(get(), to.get(), data, length, offset, user_data));
    }
    void sync_data(const file& of, std::uint64_t user_data = 0) {
        check(ringfile_batch_sync_data(get(), of.get(), user_data));
    }
    void sync_all(const file& of, std::uint64_t user_data = 0) {
        check(ringfile_batch_sync_all(get(), of.get(), user_data));
    }
    void barrier() { check(ringfile_batch_barrier(get())); }
    void clear() { check(ringfile_batch_reset(get())); }

    // How many operations failed.
    std::size_t run() { return static_cast<std::size_t>(check(ringfile_batch_run(get()))); }
    std::size_t run(std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_batch_run(get()), error));
    }

    // The results of the last run, in the order in which operations were added; the batch's until it runs again.
    struct results_view {
        const ringfile_result* first = nullptr;
        std::size_t count = 0;
        const ringfile_result* begin() const noexcept { return first; }
        const ringfile_result* end() const noexcept { return first + count; }
        std::size_t size() const noexcept { return count; }
        const ringfile_result& operator[](std::size_t at) const noexcept { return first[at]; }
    };
    results_view results() const {
        results_view view;
        view.count = static_cast<std::size_t>(check(ringfile_batch_results(get(), &view.first)));
        return view;
    }
    std::string error(std::size_t index) const { return ringfile_batch_error(get(), index); }
};

// Reads with handles, of one thread.
class reads : public detail::owner<ringfile_reads, ringfile_reads_free> {
public:
    using owner::owner;

    static reads create() {
        ringfile_reads* handle = nullptr;
        check(ringfile_reads_create(&handle));
        return reads(handle);
    }
    static reads create(std::error_code& error) noexcept {
        ringfile_reads* handle = nullptr;
        check(ringfile_reads_create(&handle), error);
        return reads(handle);
    }

    // The number of the read.
    std::uint64_t start(const file& from, void* data, std::size_t length, std::uint64_t offset) {
        std::uint64_t read = 0;
        check(ringfile_reads_start(get(), from.get(), data, length, offset, &read));
        return read;
    }
    std::uint64_t start(const file& from, void* data, std::size_t length, std::uint64_t offset,
                        std::error_code& error) noexcept {
        std::uint64_t read = 0;
        check(ringfile_reads_start(get(), from.get(), data, length, offset, &read), error);
        return read;
    }
    std::size_t poll(std::size_t at_least = 0, bool wait = false) {
        return static_cast<std::size_t>(check(ringfile_reads_poll(get(), at_least, wait)));
    }
    bool is_done(std::uint64_t read) const noexcept { return ringfile_reads_is_done(get(), read) == 1; }
    std::size_t wait(std::uint64_t read) { return static_cast<std::size_t>(check(ringfile_reads_wait(get(), read))); }
    std::size_t wait(std::uint64_t read, std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_reads_wait(get(), read), error));
    }
    // The memory is free again when this returns. The bytes read, or none where the read was cancelled.
    std::size_t abort(std::uint64_t read, std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_reads_abort(get(), read), error));
    }
};

// Submissions and completions apart, of one thread.
class queue : public detail::owner<ringfile_queue, ringfile_queue_free> {
public:
    using owner::owner;

    static queue create(std::size_t depth) {
        ringfile_queue* handle = nullptr;
        check(ringfile_queue_create(depth, &handle));
        return queue(handle);
    }
    static queue create(std::size_t depth, std::error_code& error) noexcept {
        ringfile_queue* handle = nullptr;
        check(ringfile_queue_create(depth, &handle), error);
        return queue(handle);
    }

    void read(const file& from, void* data, std::size_t length, std::uint64_t offset, std::uint64_t user_data) {
        check(ringfile_queue_read(get(), from.get(), data, length, offset, user_data));
    }
    void write(const file& to, const void* data, std::size_t length, std::uint64_t offset, std::uint64_t user_data) {
        check(ringfile_queue_write(get(), to.get(), data, length, offset, user_data));
    }
    void sync_data(const file& of, std::uint64_t user_data) {
        check(ringfile_queue_sync_data(get(), of.get(), user_data));
    }
    void sync_all(const file& of, std::uint64_t user_data) {
        check(ringfile_queue_sync_all(get(), of.get(), user_data));
    }
    void submit() { check(ringfile_queue_submit(get())); }
    // Takes up to `room` results, and waits for `at_least` so many. How many were taken.
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least = 1) {
        return static_cast<std::size_t>(check(ringfile_queue_wait(get(), results, room, at_least, -1)));
    }
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least,
                     std::chrono::nanoseconds timeout) {
        const std::int64_t time = timeout.count() < 0 ? 0 : timeout.count();
        return static_cast<std::size_t>(check(ringfile_queue_wait(get(), results, room, at_least, time)));
    }
    std::size_t open() const { return static_cast<std::size_t>(check(ringfile_queue_open(get()))); }
};

inline ringfile_counts metrics() {
    ringfile_counts counts{};
    counts.size = sizeof counts;
    check(ringfile_metrics(&counts));
    return counts;
}

}  // namespace ringfile

#endif  // RINGFILE_HPP
