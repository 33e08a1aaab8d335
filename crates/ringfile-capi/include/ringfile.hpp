// ringfile for C++17: a header-only layer over the C interface. Its classes own handles ("owners").
//
// Everything that ringfile.h says about threads, memory and blocking holds here. Owners can be moved, not copied, and
// close what they own. Operations take pointers and lengths, as in C, of a buffer's memory, registered memory, or any
// other memory; since C++20 those of a file also take a std::span.
//
// An operation throws std::system_error with the library's text, unless a std::error_code is given as its last argument:
// then it sets that, and throws nothing. Functions that return a std::string throw std::bad_alloc if there is no memory.
// Compiled with -fno-exceptions, what would throw prints the text and aborts.
//
// Functions that cannot fail take no code: the members of every owner (`close` returns its std::error_code), options,
// texts (last_error, version, batch::error), and queries that return zero, false or null for a handle that is not open
// (buffer::data, capacity and size, memory::is_in_use, file::is_direct and is_adaptive).
#ifndef RINGFILE_HPP
#define RINGFILE_HPP

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#if __cplusplus >= 202002L
#include <span>
#endif

#include "ringfile.h"

namespace ringfile {

// The library's text for the last error of this thread.
inline std::string last_error() { return ringfile_last_error(); }

// The library's version, such as "0.2.0".
inline std::string version() { return ringfile_version(); }

inline std::error_code code_of(std::int64_t result) noexcept {
    return result < 0 ? std::error_code(static_cast<int>(-result), std::system_category()) : std::error_code();
}

namespace detail {

inline std::error_code thrown;  // never written

// Throws an error with the library's text.
[[noreturn]] inline void fail(std::error_code error) {
#if defined(__cpp_exceptions)
    throw std::system_error(error, ringfile_last_error());
#else
    std::fprintf(stderr, "%s (%d)\n", ringfile_last_error(), error.value());
    std::abort();
#endif
}

}  // namespace detail

// The last parameter of an operation, if it has to throw.
inline std::error_code& throws() noexcept { return detail::thrown; }

// Returns a result. If it is an error, throws, or returns 0 with the code set.
inline std::int64_t check(std::int64_t result, std::error_code& error = throws()) {
    if (&error != &throws()) {
        error = code_of(result);
    } else if (result < 0) {
        detail::fail(code_of(result));
    }
    return result < 0 ? 0 : result;
}

namespace detail {

inline std::size_t size(std::int64_t result, std::error_code& error) {
    return static_cast<std::size_t>(check(result, error));
}

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

    using handle_type = Handle;
    // The handle, for functions of ringfile.h; NULL if nothing is owned.
    Handle* get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // Releases the handle without closing it.
    Handle* release() noexcept { return std::exchange(handle_, nullptr); }
    // Closes the handle, if one is owned.
    void reset(Handle* handle = nullptr) noexcept {
        if (handle_ != nullptr) {
            Close(handle_);
        }
        handle_ = handle;
    }
    // Closes the handle, and returns an error if that failed. A handle that could not be closed (a queue of another
    // thread) stays owned.
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

// Returns the owner of the handle that `create` stores.
template <class Owner, class Create>
Owner own(Create create, std::error_code& error) {
    typename Owner::handle_type* handle = nullptr;
    check(create(&handle), error);
    return Owner(handle);
}

}  // namespace detail

// Returns options or counters with `size` set and 0, the default, in all other fields.
template <class Struct>
Struct sized() noexcept {
    Struct fields{};
    fields.size = sizeof fields;
    return fields;
}
inline ringfile_pool_options pool_options(std::size_t capacity) noexcept {
    auto options = sized<ringfile_pool_options>();
    options.capacity = capacity;
    return options;
}
inline ringfile_open_options open_options(std::uint32_t flags) noexcept {
    auto options = sized<ringfile_open_options>();
    options.flags = flags;
    return options;
}
inline ringfile_cache_options cache_options(std::size_t bytes) noexcept {
    auto options = sized<ringfile_cache_options>();
    options.bytes = bytes;
    return options;
}
inline ringfile_batch_options batch_options() noexcept { return sized<ringfile_batch_options>(); }
inline ringfile_appender_options appender_options() noexcept { return sized<ringfile_appender_options>(); }

// Carries out one operation, which a function of ringfile_ops.h has made. Returns its result: bytes, or 0.
inline std::uint64_t run(const ringfile_op& op, std::error_code& error = throws()) {
    return static_cast<std::uint64_t>(check(ringfile_run(op), error));
}

// A piece of a pool's memory.
class buffer : public detail::owner<ringfile_buffer, ringfile_buffer_release> {
public:
    using owner::owner;

    std::byte* data() const noexcept { return static_cast<std::byte*>(ringfile_buffer_data(get())); }
    std::size_t capacity() const noexcept { return or_none(ringfile_buffer_capacity(get())); }
    std::size_t size() const noexcept { return or_none(ringfile_buffer_length(get())); }
    void resize(std::size_t length, std::error_code& error = throws()) {
        check(ringfile_buffer_set_length(get(), length), error);
    }

private:
    static std::size_t or_none(std::int64_t length) noexcept {
        return length < 0 ? 0 : static_cast<std::size_t>(length);
    }
};

// Aligned memory for I/O, with a hard limit.
class pool : public detail::owner<ringfile_pool, ringfile_pool_free> {
public:
    using owner::owner;

    static pool create(const ringfile_pool_options& options, std::error_code& error = throws()) {
        return detail::own<pool>([&](auto made) { return ringfile_pool_create(&options, made); }, error);
    }

    ringfile::buffer buffer(std::size_t capacity, std::error_code& error = throws()) const {
        return detail::own<ringfile::buffer>([&](auto made) { return ringfile_buffer_get(get(), capacity, made); },
                                             error);
    }
    ringfile_pool_counts metrics(std::error_code& error = throws()) const {
        auto counts = sized<ringfile_pool_counts>();
        check(ringfile_pool_metrics(get(), &counts), error);
        return counts;
    }
};

// Registered memory of the program. Operations on it must have finished before this is destroyed; otherwise the memory
// stays registered, and must stay valid.
class memory : public detail::owner<ringfile_memory, ringfile_memory_unregister> {
public:
    using owner::owner;

    // flags: 0, or RINGFILE_MEMORY_NOW to pin it before this returns.
    static memory add(void* data, std::size_t length, std::uint32_t flags = 0, std::error_code& error = throws()) {
        return detail::own<memory>([&](auto made) { return ringfile_memory_register_with(data, length, flags, made); },
                                   error);
    }

    // Returns whether an operation uses a part of it.
    bool is_in_use() const noexcept { return ringfile_memory_is_in_use(get()) == 1; }
};

// An open file. Reads return the number of bytes read, fewer than requested only at the end of the file.
class file : public detail::owner<ringfile_file, ringfile_close> {
public:
    using owner::owner;

    static file open(const std::string& path, const ringfile_open_options& options, std::error_code& error = throws()) {
        return detail::own<file>([&](auto made) { return ringfile_open(path.c_str(), &options, made); }, error);
    }
    static file of_descriptor(int descriptor, const ringfile_open_options* options = nullptr,
                              std::error_code& error = throws()) {
        return detail::own<file>([&](auto made) { return ringfile_open_fd(descriptor, options, made); }, error);
    }
    // Closes the file, and returns what close(2) says. The file is closed even if that is an error.
    std::error_code close() noexcept { return code_of(ringfile_close(release())); }

    std::size_t read(void* data, std::size_t length, std::uint64_t offset, std::error_code& error = throws()) const {
        return detail::size(ringfile_read(get(), data, length, offset), error);
    }
    void write(const void* data, std::size_t length, std::uint64_t offset, std::error_code& error = throws()) const {
        check(ringfile_write(get(), data, length, offset), error);
    }
    void write_durable(const void* data, std::size_t length, std::uint64_t offset,
                       std::error_code& error = throws()) const {
        check(ringfile_write_durable(get(), data, length, offset), error);
    }
    // Writes so that a power cut leaves all or nothing; atomic_limits() returns what the file accepts.
    void write_atomic(const void* data, std::size_t length, std::uint64_t offset,
                      std::error_code& error = throws()) const {
        check(ringfile_write_atomic(get(), data, length, offset), error);
    }
    // Reads into a buffer up to its capacity, and sets its size to the number of bytes read.
    std::size_t read(buffer& to, std::uint64_t offset, std::error_code& error = throws()) const {
        return detail::size(ringfile_buffer_read(get(), to.get(), offset), error);
    }
    void write(const buffer& from, std::uint64_t offset, std::error_code& error = throws()) const {
        check(ringfile_buffer_write(get(), from.get(), offset), error);
    }

    // Like read and write, with several pieces of memory, one after another.
    std::size_t readv(const struct iovec* parts, std::size_t count, std::uint64_t offset,
                      std::error_code& error = throws()) const {
        return detail::size(ringfile_readv(get(), parts, count, offset), error);
    }
    void writev(const struct iovec* parts, std::size_t count, std::uint64_t offset,
                std::error_code& error = throws()) const {
        check(ringfile_writev(get(), parts, count, offset), error);
    }

    // These return how many operations failed; each request has its result.
    std::size_t read_many(ringfile_read_request* requests, std::size_t count, std::error_code& error = throws()) const {
        return detail::size(ringfile_read_many(get(), requests, count), error);
    }
    std::size_t write_many(ringfile_write_request* requests, std::size_t count,
                           std::error_code& error = throws()) const {
        return detail::size(ringfile_write_many(get(), requests, count), error);
    }

#if __cplusplus >= 202002L
    std::size_t read(std::span<std::byte> data, std::uint64_t offset, std::error_code& error = throws()) const {
        return read(data.data(), data.size(), offset, error);
    }
    void write(std::span<const std::byte> data, std::uint64_t offset, std::error_code& error = throws()) const {
        write(data.data(), data.size(), offset, error);
    }
    void write_durable(std::span<const std::byte> data, std::uint64_t offset, std::error_code& error = throws()) const {
        write_durable(data.data(), data.size(), offset, error);
    }
    void write_atomic(std::span<const std::byte> data, std::uint64_t offset, std::error_code& error = throws()) const {
        write_atomic(data.data(), data.size(), offset, error);
    }
    std::size_t read_many(std::span<ringfile_read_request> requests, std::error_code& error = throws()) const {
        return read_many(requests.data(), requests.size(), error);
    }
    std::size_t write_many(std::span<ringfile_write_request> requests, std::error_code& error = throws()) const {
        return write_many(requests.data(), requests.size(), error);
    }
#endif

    void sync_data(std::error_code& error = throws()) const { check(ringfile_sync_data(get()), error); }
    void sync_all(std::error_code& error = throws()) const { check(ringfile_sync_all(get()), error); }
    // Starts or awaits writeback of a range; `flags` is RINGFILE_SYNC_RANGE_.... Makes nothing durable.
    void sync_range(std::uint64_t offset, std::uint64_t length, std::uint32_t flags,
                    std::error_code& error = throws()) const {
        check(ringfile_sync_range(get(), offset, length, flags), error);
    }
    void truncate(std::uint64_t length, std::error_code& error = throws()) const {
        check(ringfile_truncate(get(), length), error);
    }
    std::uint64_t size(std::error_code& error = throws()) const {
        return static_cast<std::uint64_t>(check(ringfile_size(get()), error));
    }
    ringfile_metadata stat(std::error_code& error = throws()) const {
        auto metadata = sized<ringfile_metadata>();
        run(ringfile_op_stat(get(), &metadata), error);
        return metadata;
    }
    bool is_direct() const noexcept { return ringfile_is_direct(get()) == 1; }
    bool is_adaptive() const noexcept { return ringfile_is_adaptive(get()) == 1; }

    // The multiples that direct I/O requires of offsets and lengths, and of addresses. 1 for buffered I/O.
    struct multiples {
        std::size_t bytes = 1;
        std::size_t memory = 1;
    };
    multiples alignment(std::error_code& error = throws()) const {
        multiples of;
        check(ringfile_alignment(get(), &of.bytes, &of.memory), error);
        return of;
    }

    // The limits of atomic writes, in bytes and in pieces of memory; all 0 if the file does not support them.
    struct limits {
        std::size_t min = 0;
        std::size_t max = 0;
        std::size_t segments = 0;
    };
    limits atomic_limits(std::error_code& error = throws()) const {
        limits of;
        check(ringfile_atomic_limits(get(), &of.min, &of.max, &of.segments), error);
        return of;
    }
    // The library's descriptor, -1 on error: do not close or replace it.
    int descriptor(std::error_code& error = throws()) const {
        const int number = static_cast<int>(check(ringfile_fd(get()), error));
        return error ? -1 : number;
    }
};

// A page in use: its bytes do not change, and stay where they are, until this is destroyed, by any thread. Empty if it has
// no page, and for a page behind the end of a file.
class cached_page {
public:
    cached_page() noexcept = default;
    cached_page(cached_page&& other) noexcept : page_(std::exchange(other.page_, ringfile_cached_page{})) {}
    cached_page& operator=(cached_page&& other) noexcept {
        if (this != &other) {
            ringfile_cache_release(&page_);
            page_ = std::exchange(other.page_, ringfile_cached_page{});
        }
        return *this;
    }
    cached_page(const cached_page&) = delete;
    cached_page& operator=(const cached_page&) = delete;
    ~cached_page() { ringfile_cache_release(&page_); }

    // Returns whether it has a page.
    explicit operator bool() const noexcept { return page_.data != nullptr; }
    const std::byte* data() const noexcept { return static_cast<const std::byte*>(page_.data); }
    std::size_t size() const noexcept { return page_.length; }
#if __cplusplus >= 202002L
    std::span<const std::byte> bytes() const noexcept { return {data(), size()}; }
#endif

private:
    friend class cached_file;
    ringfile_cached_page page_{};
};

// A file whose pages are cached.
class cached_file : public detail::owner<ringfile_cached_file, ringfile_cache_close> {
public:
    using owner::owner;

    // Returns a page that is in memory, or no page. Does not block, and takes no lock.
    cached_page find(std::uint64_t number, std::error_code& error = throws()) const {
        cached_page found;
        check(ringfile_cache_get(get(), number, &found.page_), error);
        return found;
    }
    // Returns a page, and reads it if it is not in memory.
    cached_page read(std::uint64_t number, std::error_code& error = throws()) const {
        cached_page found;
        check(ringfile_cache_read(get(), number, &found.page_), error);
        return found;
    }
    // Fills in `count` pages, and reads those that are not in memory, together. Pages that were there are released first.
    void read_many(const std::uint64_t* numbers, std::size_t count, cached_page* pages,
                   std::error_code& error = throws()) const {
        check(fill(numbers, count, pages), error);
    }
    // Begins to read those pages that are not in memory, and returns at once.
    void prefetch(const std::uint64_t* numbers, std::size_t count, std::error_code& error = throws()) const {
        check(ringfile_cache_prefetch(get(), numbers, count), error);
    }
    // Writes a whole page to the file and to the cache.
    void write(std::uint64_t number, const void* data, std::size_t length, std::error_code& error = throws()) const {
        check(ringfile_cache_write(get(), number, data, length), error);
    }
    // Takes pages out of the cache, after others have written to the file.
    void invalidate(std::uint64_t first = 0, std::uint64_t count = UINT64_MAX,
                    std::error_code& error = throws()) const {
        check(ringfile_cache_invalidate(get(), first, count), error);
    }

private:
    int fill(const std::uint64_t* numbers, std::size_t count, cached_page* pages) const noexcept {
        static_assert(sizeof(cached_page) == sizeof(ringfile_cached_page), "an array of one is an array of the other");
        for (std::size_t at = 0; at < count; at++) {
            ringfile_cache_release(&pages[at].page_);
        }
        return ringfile_cache_read_many(get(), numbers, count, count == 0 ? nullptr : &pages->page_);
    }
};

// A budget of memory for pages of files.
class cache : public detail::owner<ringfile_cache, ringfile_cache_free> {
public:
    using owner::owner;

    static cache create(const ringfile_cache_options& options, std::error_code& error = throws()) {
        return detail::own<cache>([&](auto made) { return ringfile_cache_create(&options, made); }, error);
    }

    // Caches the pages of a file, which may be closed before.
    cached_file open(const file& of, std::size_t page_size, std::error_code& error = throws()) const {
        return detail::own<cached_file>([&](auto made) { return ringfile_cache_open(get(), of.get(), page_size,
                                                                                    made); }, error);
    }
    void set_budget(std::size_t bytes, std::error_code& error = throws()) const {
        check(ringfile_cache_set_budget(get(), bytes), error);
    }
    // Returns the counters of one file, or of all.
    ringfile_cache_counts metrics(const cached_file& of = {}, std::error_code& error = throws()) const {
        auto counts = sized<ringfile_cache_counts>();
        check(ringfile_cache_metrics(get(), of.get(), &counts), error);
        return counts;
    }
};

// Appends records to a file, from any number of threads. Its destructor makes durable what was appended, as `close` does,
// which also tells whether that succeeded.
class appender : public detail::owner<ringfile_appender, ringfile_appender_close> {
public:
    using owner::owner;

    // Continues at `valid`, the length in bytes that the program knows to be valid.
    static appender open(const file& to, std::uint64_t valid,
                         const ringfile_appender_options& options = appender_options(),
                         std::error_code& error = throws()) {
        return detail::own<appender>(
            [&](auto made) { return ringfile_appender_open(to.get(), valid, &options, made); }, error);
    }

    // Returns the record's offset. flags: 0, RINGFILE_APPEND_FLUSH or RINGFILE_APPEND_SYNC.
    std::uint64_t append(const void* data, std::size_t length, std::uint32_t flags = 0,
                         std::error_code& error = throws()) const {
        return static_cast<std::uint64_t>(check(ringfile_appender_append(get(), data, length, flags), error));
    }
    void flush(std::error_code& error = throws()) const { check(ringfile_appender_flush(get()), error); }
    void sync(std::error_code& error = throws()) const { check(ringfile_appender_sync(get()), error); }
    // The offset at which the next record will begin.
    std::uint64_t end(std::error_code& error = throws()) const {
        return static_cast<std::uint64_t>(check(ringfile_appender_end(get()), error));
    }
    // An appender that has failed is closed too; one that cannot be closed here, inside another call, stays owned.
    std::error_code close() noexcept {
        const std::error_code error = owner::close();
        if (error && error != std::errc::resource_deadlock_would_occur) {
            release();
        }
        return error;
    }
};

// Operations that are carried out together.
class batch : public detail::owner<ringfile_batch, ringfile_batch_free> {
public:
    using owner::owner;

    static batch create(const ringfile_batch_options& options = batch_options(), std::error_code& error = throws()) {
        return detail::own<batch>([&](auto made) { return ringfile_batch_create(&options, made); }, error);
    }

    // Adds an operation of ringfile_ops.h. Returns the index of its result.
    std::size_t add(const ringfile_op& op, std::uint64_t user_data = 0, std::error_code& error = throws()) {
        return detail::size(ringfile_batch_add(get(), op, user_data), error);
    }
    void barrier(std::error_code& error = throws()) { check(ringfile_batch_barrier(get()), error); }
    void clear(std::error_code& error = throws()) { check(ringfile_batch_reset(get()), error); }
    // Runs the batch, and returns how many operations failed.
    std::size_t run(std::error_code& error = throws()) { return detail::size(ringfile_batch_run(get()), error); }

    // Returns at once. When all operations have finished, one of the library's threads calls the function with the
    // context and the number of operations that failed. See ringfile_batch_start for what it may do; it must not throw.
    using done_function = void (*)(void* context, std::int64_t failed);
    void start(done_function done, void* context, std::error_code& error = throws()) {
        check(ringfile_batch_start(get(), done, context), error);
    }
    // Returns at once. When all operations have finished, 1 is added to the eventfd. The library duplicates the eventfd,
    // which still belongs to the caller.
    void start_eventfd(int eventfd, std::error_code& error = throws()) {
        check(ringfile_batch_start_eventfd(get(), eventfd), error);
    }
    // Cancels the batch; its end is still reported.
    void cancel(std::error_code& error = throws()) { check(ringfile_batch_cancel(get()), error); }

    // The results of the last run, in the order in which operations were added; they belong to the batch until it runs again.
    struct results_view {
        const ringfile_result* first = nullptr;
        std::size_t count = 0;
        const ringfile_result* begin() const noexcept { return first; }
        const ringfile_result* end() const noexcept { return first + count; }
        std::size_t size() const noexcept { return count; }
        const ringfile_result& operator[](std::size_t at) const noexcept { return first[at]; }
    };
    results_view results(std::error_code& error = throws()) const {
        results_view view;
        view.count = detail::size(ringfile_batch_results(get(), &view.first), error);
        return view;
    }
    std::string error(std::size_t index) const { return ringfile_batch_error(get(), index); }
};

// A queue of one thread, or, with RINGFILE_QUEUE_SHARED, of all: submission and completion as separate steps.
class queue : public detail::owner<ringfile_queue, ringfile_queue_free> {
public:
    using owner::owner;

    static queue create(std::size_t depth, std::uint32_t flags = 0, std::error_code& error = throws()) {
        return detail::own<queue>([&](auto made) { return ringfile_queue_create(depth, flags, made); }, error);
    }

    // Adds an operation of ringfile_ops.h. Returns its token, which identifies it in this queue until its result was taken.
    std::uint64_t add(const ringfile_op& op, std::uint64_t user_data, std::error_code& error = throws()) {
        std::uint64_t token = 0;
        check(ringfile_queue_add(get(), op, user_data, &token), error);
        return token;
    }
    void submit(std::error_code& error = throws()) { check(ringfile_queue_submit(get()), error); }
    // Takes the result of the operation that finished first. Returns false if there is none.
    bool next(ringfile_result& result, std::error_code& error = throws()) {
        return check(ringfile_queue_next(get(), &result), error) == 1;
    }
    // Takes up to `room` results, after waiting for at least `at_least`. Returns how many were taken.
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least = 1,
                     std::error_code& error = throws()) {
        return detail::size(ringfile_queue_wait(get(), results, room, at_least, -1), error);
    }
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least,
                     std::chrono::nanoseconds timeout, std::error_code& error = throws()) {
        return detail::size(ringfile_queue_wait(get(), results, room, at_least, limit(timeout)), error);
    }
    // These take a token. The memory of an operation is free again once its result has been taken, even if that throws.
    std::size_t wait_for(std::uint64_t token, std::error_code& error = throws()) {
        return detail::size(ringfile_queue_wait_for(get(), token), error);
    }
    bool is_done(std::uint64_t token, std::error_code& error = throws()) {
        return check(ringfile_queue_is_done(get(), token), error) == 1;
    }
    // Cancels an operation, from any thread. Returns false if it has finished. Its result still arrives:
    // std::errc::operation_canceled if this was in time.
    bool cancel(std::uint64_t token, std::error_code& error = throws()) {
        return check(ringfile_queue_cancel(get(), token), error) == 1;
    }
    // Cancels all operations. Each still gives its result.
    void cancel_all(std::error_code& error = throws()) { check(ringfile_queue_cancel_all(get()), error); }
    // A descriptor for epoll, which the caller closes with close(2). -1 on error.
    int descriptor(std::error_code& error = throws()) {
        const std::int64_t result = check(ringfile_queue_descriptor(get()), error);
        return error ? -1 : static_cast<int>(result);
    }
    std::size_t len(std::error_code& error = throws()) const { return detail::size(ringfile_queue_len(get()), error); }

private:
    // A negative timeout would mean no limit.
    static std::int64_t limit(std::chrono::nanoseconds timeout) noexcept {
        return timeout.count() < 0 ? 0 : timeout.count();
    }
};

// Counters of the whole process, and of the calling thread.
inline ringfile_counts metrics(std::error_code& error = throws()) {
    auto counts = sized<ringfile_counts>();
    check(ringfile_metrics(&counts), error);
    return counts;
}
inline ringfile_counts thread_metrics(std::error_code& error = throws()) {
    auto counts = sized<ringfile_counts>();
    check(ringfile_thread_metrics(&counts), error);
    return counts;
}

// The features of io_uring that work here, as words separated by spaces; an error if no ring can be created.
inline std::string ring_features(std::error_code& error = throws()) {
    std::string text(4096, '\0');
    const auto length = detail::size(ringfile_ring_features(text.data(), text.size()), error);
    text.resize(length < text.size() ? length : text.size() - 1);
    return text;
}

// Sets the route, RINGFILE_ROUTE_..., of files that are opened from now on.
inline void set_default_route(std::uint32_t route, std::error_code& error = throws()) {
    check(ringfile_set_default_route(route), error);
}
inline void set_io_threads(std::size_t threads, std::error_code& error = throws()) {
    check(ringfile_set_io_threads(threads), error);
}
inline void set_worker_threads(std::size_t threads, std::error_code& error = throws()) {
    check(ringfile_set_worker_threads(threads), error);
}
// Releases this thread's ring. For a thread that will do no I/O for a long time.
inline void thread_release(std::error_code& error = throws()) { check(ringfile_thread_release(), error); }

inline void sync_directory(const std::string& path, std::error_code& error = throws()) {
    check(ringfile_sync_directory(path.c_str()), error);
}

// Receives the library's messages: RINGFILE_LOG_..., and one line. See ringfile_set_log for what it may do; its
// exceptions are caught here. It is a function without state, because state might be invalid in a forked child, or
// freed too early.
using log_function = void (*)(int level, const char* message);

// Sets the function for the whole process; nullptr removes it. When this returns, the previous function is not running.
inline void set_log(log_function function, std::error_code& error = throws()) {
    const auto tell = [](void* context, int level, const char* message) noexcept {
        const auto write = reinterpret_cast<log_function>(context);
#if defined(__cpp_exceptions)
        try {
            write(level, message);
        } catch (...) {
        }
#else
        write(level, message);
#endif
    };
    check(ringfile_set_log(function != nullptr ? static_cast<ringfile_log>(tell) : nullptr,
                           reinterpret_cast<void*>(function)),
          error);
}

}  // namespace ringfile

#endif  // RINGFILE_HPP
