// ringfile for C++17: a header-only layer over the C interface. Its classes own handles ("owners").
//
// Everything that ringfile.h says about threads, memory and blocking holds here. Owners can be moved, not copied, and
// close what they own. Operations take pointers and lengths, as in C, of a buffer's memory, registered memory, or any
// other memory; since C++20 those of a file also take a std::span.
//
// Each operation has two forms: one throws std::system_error with the library's text, the other takes a last
// `std::error_code&` and does not throw. Functions that return a std::string throw std::bad_alloc in both forms if
// there is no memory.
//
// Functions that cannot fail have one form: the members of every owner (`close` returns its std::error_code), options,
// texts (last_error, version, batch::error), and queries that return zero, false or null for a handle that is not open
// (buffer::data, capacity and size, memory::is_in_use, file::is_direct and is_adaptive).
#ifndef RINGFILE_HPP
#define RINGFILE_HPP

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
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

// Returns a result, or throws if it is an error.
inline std::int64_t check(std::int64_t result) {
    if (result < 0) {
        throw std::system_error(code_of(result), ringfile_last_error());
    }
    return result;
}

// Returns a result, or 0 with the code set.
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

}  // namespace detail

// Returns options with `size` set and default values in all other fields.
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

inline ringfile_appender_options appender_options() noexcept {
    ringfile_appender_options options{};
    options.size = sizeof options;
    return options;
}

inline ringfile_cache_options cache_options(std::size_t bytes) noexcept {
    ringfile_cache_options options{};
    options.size = sizeof options;
    options.bytes = bytes;
    return options;
}

// Returns an operation of this kind, RINGFILE_OP_..., with all other fields 0.
inline ringfile_op operation(std::uint32_t kind) noexcept {
    ringfile_op op{};
    op.size = sizeof op;
    op.kind = kind;
    return op;
}

// Carries out one operation, and returns its result: bytes, or 0.
inline std::uint64_t run(const ringfile_op& op) { return static_cast<std::uint64_t>(check(ringfile_run(&op))); }
inline std::uint64_t run(const ringfile_op& op, std::error_code& error) noexcept {
    return static_cast<std::uint64_t>(check(ringfile_run(&op), error));
}

// A piece of a pool's memory.
class buffer : public detail::owner<ringfile_buffer, ringfile_buffer_release> {
public:
    using owner::owner;

    std::byte* data() const noexcept { return static_cast<std::byte*>(ringfile_buffer_data(get())); }
    std::size_t capacity() const noexcept { return or_none(ringfile_buffer_capacity(get())); }
    std::size_t size() const noexcept { return or_none(ringfile_buffer_length(get())); }
    void resize(std::size_t length) { check(ringfile_buffer_set_length(get(), length)); }
    void resize(std::size_t length, std::error_code& error) noexcept {
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
    ringfile_pool_counts metrics(std::error_code& error) const noexcept {
        ringfile_pool_counts counts{};
        counts.size = sizeof counts;
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
    static memory add(void* data, std::size_t length, std::uint32_t flags = 0) {
        ringfile_memory* handle = nullptr;
        check(ringfile_memory_register_with(data, length, flags, &handle));
        return memory(handle);
    }
    static memory add(void* data, std::size_t length, std::error_code& error) noexcept {
        return add(data, length, 0, error);
    }
    static memory add(void* data, std::size_t length, std::uint32_t flags, std::error_code& error) noexcept {
        ringfile_memory* handle = nullptr;
        check(ringfile_memory_register_with(data, length, flags, &handle), error);
        return memory(handle);
    }

    // Returns whether an operation uses a part of it.
    bool is_in_use() const noexcept { return ringfile_memory_is_in_use(get()) == 1; }
};

// An open file. Reads return the number of bytes read, fewer than requested only at the end of the file.
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
    // Writes so that a power cut leaves all or nothing; atomic_limits() returns what the file accepts.
    void write_atomic(const void* data, std::size_t length, std::uint64_t offset) const {
        check(ringfile_write_atomic(get(), data, length, offset));
    }
    void write_atomic(const void* data, std::size_t length, std::uint64_t offset,
                      std::error_code& error) const noexcept {
        check(ringfile_write_atomic(get(), data, length, offset), error);
    }
    // Reads into a buffer up to its capacity, and sets its size to the number of bytes read.
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

    // Like read and write, with several pieces of memory, one after another.
    std::size_t readv(const struct iovec* parts, std::size_t count, std::uint64_t offset) const {
        return static_cast<std::size_t>(check(ringfile_readv(get(), parts, count, offset)));
    }
    std::size_t readv(const struct iovec* parts, std::size_t count, std::uint64_t offset,
                      std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_readv(get(), parts, count, offset), error));
    }
    void writev(const struct iovec* parts, std::size_t count, std::uint64_t offset) const {
        check(ringfile_writev(get(), parts, count, offset));
    }
    void writev(const struct iovec* parts, std::size_t count, std::uint64_t offset,
                std::error_code& error) const noexcept {
        check(ringfile_writev(get(), parts, count, offset), error);
    }

    // Returns how many of the reads failed; each request has its result.
    std::size_t read_many(ringfile_read_request* requests, std::size_t count) const {
        return static_cast<std::size_t>(check(ringfile_read_many(get(), requests, count)));
    }
    std::size_t read_many(ringfile_read_request* requests, std::size_t count, std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_read_many(get(), requests, count), error));
    }

    // Returns how many of the writes failed; each request has its result.
    std::size_t write_many(ringfile_write_request* requests, std::size_t count) const {
        return static_cast<std::size_t>(check(ringfile_write_many(get(), requests, count)));
    }
    std::size_t write_many(ringfile_write_request* requests, std::size_t count, std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_write_many(get(), requests, count), error));
    }

#if __cplusplus >= 202002L
    std::size_t read(std::span<std::byte> data, std::uint64_t offset) const {
        return read(data.data(), data.size(), offset);
    }
    std::size_t read(std::span<std::byte> data, std::uint64_t offset, std::error_code& error) const noexcept {
        return read(data.data(), data.size(), offset, error);
    }
    void write(std::span<const std::byte> data, std::uint64_t offset) const { write(data.data(), data.size(), offset); }
    void write(std::span<const std::byte> data, std::uint64_t offset, std::error_code& error) const noexcept {
        write(data.data(), data.size(), offset, error);
    }
    void write_durable(std::span<const std::byte> data, std::uint64_t offset) const {
        write_durable(data.data(), data.size(), offset);
    }
    void write_durable(std::span<const std::byte> data, std::uint64_t offset, std::error_code& error) const noexcept {
        write_durable(data.data(), data.size(), offset, error);
    }
    void write_atomic(std::span<const std::byte> data, std::uint64_t offset) const {
        write_atomic(data.data(), data.size(), offset);
    }
    void write_atomic(std::span<const std::byte> data, std::uint64_t offset, std::error_code& error) const noexcept {
        write_atomic(data.data(), data.size(), offset, error);
    }
    std::size_t read_many(std::span<ringfile_read_request> requests) const {
        return read_many(requests.data(), requests.size());
    }
    std::size_t read_many(std::span<ringfile_read_request> requests, std::error_code& error) const noexcept {
        return read_many(requests.data(), requests.size(), error);
    }
    std::size_t write_many(std::span<ringfile_write_request> requests) const {
        return write_many(requests.data(), requests.size());
    }
    std::size_t write_many(std::span<ringfile_write_request> requests, std::error_code& error) const noexcept {
        return write_many(requests.data(), requests.size(), error);
    }
#endif

    void sync_data() const { check(ringfile_sync_data(get())); }
    void sync_data(std::error_code& error) const noexcept { check(ringfile_sync_data(get()), error); }
    void sync_all() const { check(ringfile_sync_all(get())); }
    void sync_all(std::error_code& error) const noexcept { check(ringfile_sync_all(get()), error); }
    // Starts or awaits writeback of a range; `flags` is RINGFILE_SYNC_RANGE_.... Makes nothing durable.
    void sync_range(std::uint64_t offset, std::uint64_t length, std::uint32_t flags) const {
        check(ringfile_sync_range(get(), offset, length, flags));
    }
    void sync_range(std::uint64_t offset, std::uint64_t length, std::uint32_t flags,
                    std::error_code& error) const noexcept {
        check(ringfile_sync_range(get(), offset, length, flags), error);
    }
    // Allocates or frees a range; the mode is RINGFILE_ALLOCATE_....
    void allocate(std::uint32_t mode, std::uint64_t offset, std::uint64_t length) const {
        check(ringfile_allocate(get(), mode, offset, length));
    }
    void allocate(std::uint32_t mode, std::uint64_t offset, std::uint64_t length,
                  std::error_code& error) const noexcept {
        check(ringfile_allocate(get(), mode, offset, length), error);
    }
    // Gives the page cache advice about a range: RINGFILE_ADVICE_....
    void advise(std::uint64_t offset, std::uint64_t length, std::uint32_t advice) const {
        check(ringfile_advise(get(), offset, length, advice));
    }
    void advise(std::uint64_t offset, std::uint64_t length, std::uint32_t advice,
                std::error_code& error) const noexcept {
        check(ringfile_advise(get(), offset, length, advice), error);
    }
    void truncate(std::uint64_t length) const { check(ringfile_truncate(get(), length)); }
    void truncate(std::uint64_t length, std::error_code& error) const noexcept {
        check(ringfile_truncate(get(), length), error);
    }
    // Copies from this file to another one, or to the same. Returns the bytes copied, fewer only if this file ends
    // earlier: see RINGFILE_OP_COPY_RANGE.
    std::uint64_t copy_range(std::uint64_t offset, const file& to, std::uint64_t to_offset,
                             std::uint64_t length) const {
        return run(copy(offset, to, to_offset, length));
    }
    std::uint64_t copy_range(std::uint64_t offset, const file& to, std::uint64_t to_offset, std::uint64_t length,
                             std::error_code& error) const noexcept {
        return run(copy(offset, to, to_offset, length), error);
    }
    std::uint64_t size() const { return static_cast<std::uint64_t>(check(ringfile_size(get()))); }
    std::uint64_t size(std::error_code& error) const noexcept {
        return static_cast<std::uint64_t>(check(ringfile_size(get()), error));
    }
    ringfile_metadata stat() const {
        ringfile_metadata metadata{};
        metadata.size = sizeof metadata;
        check(ringfile_stat(get(), &metadata));
        return metadata;
    }
    ringfile_metadata stat(std::error_code& error) const noexcept {
        ringfile_metadata metadata{};
        metadata.size = sizeof metadata;
        check(ringfile_stat(get(), &metadata), error);
        return metadata;
    }
    bool is_direct() const noexcept { return ringfile_is_direct(get()) == 1; }
    bool is_adaptive() const noexcept { return ringfile_is_adaptive(get()) == 1; }

    // The multiples that direct I/O requires of offsets and lengths, and of addresses. 1 for buffered I/O.
    struct multiples {
        std::size_t bytes = 1;
        std::size_t memory = 1;
    };
    multiples alignment() const {
        multiples of;
        check(ringfile_alignment(get(), &of.bytes, &of.memory));
        return of;
    }
    multiples alignment(std::error_code& error) const noexcept {
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
    limits atomic_limits() const {
        limits of;
        check(ringfile_atomic_limits(get(), &of.min, &of.max, &of.segments));
        return of;
    }
    limits atomic_limits(std::error_code& error) const noexcept {
        limits of;
        check(ringfile_atomic_limits(get(), &of.min, &of.max, &of.segments), error);
        return of;
    }
    // The library's descriptor: do not close or replace it.
    int descriptor() const { return static_cast<int>(check(ringfile_fd(get()))); }
    // Returns the descriptor, or -1 if there is none.
    int descriptor(std::error_code& error) const noexcept {
        const int number = ringfile_fd(get());
        error = code_of(number);
        return number < 0 ? -1 : number;
    }

private:
    ringfile_op copy(std::uint64_t offset, const file& to, std::uint64_t to_offset,
                     std::uint64_t length) const noexcept {
        ringfile_op op = operation(RINGFILE_OP_COPY_RANGE);
        op.file = get();
        op.offset = offset;
        op.to = to.get();
        op.to_offset = to_offset;
        op.length = length;
        return op;
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
    cached_page find(std::uint64_t number) const {
        cached_page found;
        check(ringfile_cache_get(get(), number, &found.page_));
        return found;
    }
    cached_page find(std::uint64_t number, std::error_code& error) const noexcept {
        cached_page found;
        check(ringfile_cache_get(get(), number, &found.page_), error);
        return found;
    }
    // Returns a page, and reads it if it is not in memory.
    cached_page read(std::uint64_t number) const {
        cached_page found;
        check(ringfile_cache_read(get(), number, &found.page_));
        return found;
    }
    cached_page read(std::uint64_t number, std::error_code& error) const noexcept {
        cached_page found;
        check(ringfile_cache_read(get(), number, &found.page_), error);
        return found;
    }
    // Fills in `count` pages, and reads those that are not in memory, together. Pages that were there are released first.
    void read_many(const std::uint64_t* numbers, std::size_t count, cached_page* pages) const {
        check(fill(numbers, count, pages));
    }
    void read_many(const std::uint64_t* numbers, std::size_t count, cached_page* pages,
                   std::error_code& error) const noexcept {
        check(fill(numbers, count, pages), error);
    }
    // Begins to read those pages that are not in memory, and returns at once.
    void prefetch(const std::uint64_t* numbers, std::size_t count) const {
        check(ringfile_cache_prefetch(get(), numbers, count));
    }
    void prefetch(const std::uint64_t* numbers, std::size_t count, std::error_code& error) const noexcept {
        check(ringfile_cache_prefetch(get(), numbers, count), error);
    }
    // Writes a whole page to the file and to the cache.
    void write(std::uint64_t number, const void* data, std::size_t length) const {
        check(ringfile_cache_write(get(), number, data, length));
    }
    void write(std::uint64_t number, const void* data, std::size_t length, std::error_code& error) const noexcept {
        check(ringfile_cache_write(get(), number, data, length), error);
    }
    // Takes pages out of the cache, after others have written to the file.
    void invalidate(std::uint64_t first = 0, std::uint64_t count = UINT64_MAX) const {
        check(ringfile_cache_invalidate(get(), first, count));
    }
    void invalidate(std::uint64_t first, std::uint64_t count, std::error_code& error) const noexcept {
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

    static cache create(const ringfile_cache_options& options) {
        ringfile_cache* handle = nullptr;
        check(ringfile_cache_create(&options, &handle));
        return cache(handle);
    }
    static cache create(const ringfile_cache_options& options, std::error_code& error) noexcept {
        ringfile_cache* handle = nullptr;
        check(ringfile_cache_create(&options, &handle), error);
        return cache(handle);
    }

    // Caches the pages of a file, which may be closed before.
    cached_file open(const file& of, std::size_t page_size) const {
        ringfile_cached_file* handle = nullptr;
        check(ringfile_cache_open(get(), of.get(), page_size, &handle));
        return cached_file(handle);
    }
    cached_file open(const file& of, std::size_t page_size, std::error_code& error) const noexcept {
        ringfile_cached_file* handle = nullptr;
        check(ringfile_cache_open(get(), of.get(), page_size, &handle), error);
        return cached_file(handle);
    }
    void set_budget(std::size_t bytes) const { check(ringfile_cache_set_budget(get(), bytes)); }
    void set_budget(std::size_t bytes, std::error_code& error) const noexcept {
        check(ringfile_cache_set_budget(get(), bytes), error);
    }
    // Returns the counters of one file, or of all.
    ringfile_cache_counts metrics(const cached_file& of = {}) const {
        ringfile_cache_counts counts{};
        counts.size = sizeof counts;
        check(ringfile_cache_metrics(get(), of.get(), &counts));
        return counts;
    }
    ringfile_cache_counts metrics(const cached_file& of, std::error_code& error) const noexcept {
        ringfile_cache_counts counts{};
        counts.size = sizeof counts;
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
                         const ringfile_appender_options& options = appender_options()) {
        ringfile_appender* handle = nullptr;
        check(ringfile_appender_open(to.get(), valid, &options, &handle));
        return appender(handle);
    }
    static appender open(const file& to, std::uint64_t valid, const ringfile_appender_options& options,
                         std::error_code& error) noexcept {
        ringfile_appender* handle = nullptr;
        check(ringfile_appender_open(to.get(), valid, &options, &handle), error);
        return appender(handle);
    }

    // Returns the record's offset. flags: 0, RINGFILE_APPEND_FLUSH or RINGFILE_APPEND_SYNC.
    std::uint64_t append(const void* data, std::size_t length, std::uint32_t flags = 0) const {
        return static_cast<std::uint64_t>(check(ringfile_appender_append(get(), data, length, flags)));
    }
    std::uint64_t append(const void* data, std::size_t length, std::uint32_t flags,
                         std::error_code& error) const noexcept {
        return static_cast<std::uint64_t>(check(ringfile_appender_append(get(), data, length, flags), error));
    }
    void flush() const { check(ringfile_appender_flush(get())); }
    void flush(std::error_code& error) const noexcept { check(ringfile_appender_flush(get()), error); }
    void sync() const { check(ringfile_appender_sync(get())); }
    void sync(std::error_code& error) const noexcept { check(ringfile_appender_sync(get()), error); }
    // The offset at which the next record will begin.
    std::uint64_t end() const { return static_cast<std::uint64_t>(check(ringfile_appender_end(get()))); }
    std::uint64_t end(std::error_code& error) const noexcept {
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

    // Each of these functions adds an operation, and returns the index of its result. `add` takes any kind.
    std::size_t add(const ringfile_op& op, std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_add(get(), &op, user_data)));
    }
    std::size_t add(const ringfile_op& op, std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_add(get(), &op, user_data), error));
    }
    std::size_t read(const file& from, void* data, std::size_t length, std::uint64_t offset,
                     std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_read(get(), from.get(), data, length, offset, user_data)));
    }
    std::size_t read(const file& from, void* data, std::size_t length, std::uint64_t offset, std::uint64_t user_data,
                     std::error_code& error) noexcept {
        return index(check(ringfile_batch_read(get(), from.get(), data, length, offset, user_data), error));
    }
    std::size_t write(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                      std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_write(get(), to.get(), data, length, offset, user_data)));
    }
    std::size_t write(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                      std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_write(get(), to.get(), data, length, offset, user_data), error));
    }
    std::size_t sync_data(const file& of, std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_sync_data(get(), of.get(), user_data)));
    }
    std::size_t sync_data(const file& of, std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_sync_data(get(), of.get(), user_data), error));
    }
    std::size_t sync_all(const file& of, std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_sync_all(get(), of.get(), user_data)));
    }
    std::size_t sync_all(const file& of, std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_sync_all(get(), of.get(), user_data), error));
    }
    std::size_t write_durable(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                              std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_write_durable(get(), to.get(), data, length, offset, user_data)));
    }
    std::size_t write_durable(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                              std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_write_durable(get(), to.get(), data, length, offset, user_data), error));
    }
    std::size_t write_atomic(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                             std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_write_atomic(get(), to.get(), data, length, offset, user_data)));
    }
    std::size_t write_atomic(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                             std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_write_atomic(get(), to.get(), data, length, offset, user_data), error));
    }
    std::size_t readv(const file& from, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                      std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_readv(get(), from.get(), parts, count, offset, user_data)));
    }
    std::size_t readv(const file& from, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                      std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_readv(get(), from.get(), parts, count, offset, user_data), error));
    }
    std::size_t writev(const file& to, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                       std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_writev(get(), to.get(), parts, count, offset, user_data)));
    }
    std::size_t writev(const file& to, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                       std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_writev(get(), to.get(), parts, count, offset, user_data), error));
    }
    std::size_t sync_range(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t flags,
                           std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_sync_range(get(), of.get(), offset, length, flags, user_data)));
    }
    std::size_t sync_range(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t flags,
                           std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_sync_range(get(), of.get(), offset, length, flags, user_data), error));
    }
    std::size_t allocate(const file& of, std::uint32_t mode, std::uint64_t offset, std::uint64_t length,
                         std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_allocate(get(), of.get(), mode, offset, length, user_data)));
    }
    std::size_t allocate(const file& of, std::uint32_t mode, std::uint64_t offset, std::uint64_t length,
                         std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_allocate(get(), of.get(), mode, offset, length, user_data), error));
    }
    std::size_t truncate(const file& of, std::uint64_t length, std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_truncate(get(), of.get(), length, user_data)));
    }
    std::size_t truncate(const file& of, std::uint64_t length, std::uint64_t user_data,
                         std::error_code& error) noexcept {
        return index(check(ringfile_batch_truncate(get(), of.get(), length, user_data), error));
    }
    std::size_t advise(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t advice,
                       std::uint64_t user_data = 0) {
        return index(check(ringfile_batch_advise(get(), of.get(), offset, length, advice, user_data)));
    }
    std::size_t advise(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t advice,
                       std::uint64_t user_data, std::error_code& error) noexcept {
        return index(check(ringfile_batch_advise(get(), of.get(), offset, length, advice, user_data), error));
    }
    void barrier() { check(ringfile_batch_barrier(get())); }
    void barrier(std::error_code& error) noexcept { check(ringfile_batch_barrier(get()), error); }
    void clear() { check(ringfile_batch_reset(get())); }
    void clear(std::error_code& error) noexcept { check(ringfile_batch_reset(get()), error); }

    // Runs the batch, and returns how many operations failed.
    std::size_t run() { return static_cast<std::size_t>(check(ringfile_batch_run(get()))); }
    std::size_t run(std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_batch_run(get()), error));
    }

    // Returns at once. When all operations have finished, one of the library's threads calls the function with the
    // context and the number of operations that failed. See ringfile_batch_start for what it may do; it must not throw.
    using done_function = void (*)(void* context, std::int64_t failed);
    void start(done_function done, void* context) { check(ringfile_batch_start(get(), done, context)); }
    void start(done_function done, void* context, std::error_code& error) noexcept {
        check(ringfile_batch_start(get(), done, context), error);
    }
    // Returns at once. When all operations have finished, 1 is added to the eventfd. The library duplicates the eventfd,
    // which still belongs to the caller.
    void start_eventfd(int eventfd) { check(ringfile_batch_start_eventfd(get(), eventfd)); }
    void start_eventfd(int eventfd, std::error_code& error) noexcept {
        check(ringfile_batch_start_eventfd(get(), eventfd), error);
    }
    // Cancels the batch; its end is still reported.
    void cancel() { check(ringfile_batch_cancel(get())); }
    void cancel(std::error_code& error) noexcept { check(ringfile_batch_cancel(get()), error); }

    // The results of the last run, in the order in which operations were added; they belong to the batch until it runs again.
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
    results_view results(std::error_code& error) const noexcept {
        results_view view;
        view.count = static_cast<std::size_t>(check(ringfile_batch_results(get(), &view.first), error));
        return view;
    }
    std::string error(std::size_t index) const { return ringfile_batch_error(get(), index); }

private:
    static std::size_t index(std::int64_t result) noexcept { return static_cast<std::size_t>(result); }
};

// A queue of one thread, or, with RINGFILE_QUEUE_SHARED, of all: submission and completion as separate steps.
class queue : public detail::owner<ringfile_queue, ringfile_queue_free> {
public:
    using owner::owner;

    static queue create(std::size_t depth, std::uint32_t flags = 0) {
        ringfile_queue* handle = nullptr;
        check(ringfile_queue_create(depth, flags, &handle));
        return queue(handle);
    }
    static queue create(std::size_t depth, std::uint32_t flags, std::error_code& error) noexcept {
        ringfile_queue* handle = nullptr;
        check(ringfile_queue_create(depth, flags, &handle), error);
        return queue(handle);
    }
    static queue create(std::size_t depth, std::error_code& error) noexcept { return create(depth, 0, error); }

    // Each of these functions adds an operation, and returns its token, which identifies the operation in this queue until
    // its result has been taken. `add` takes any kind.
    std::uint64_t add(const ringfile_op& op, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_add(get(), &op, user_data, &token));
        return token;
    }
    std::uint64_t add(const ringfile_op& op, std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_add(get(), &op, user_data, &token), error);
        return token;
    }
    std::uint64_t read(const file& from, void* data, std::size_t length, std::uint64_t offset,
                       std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_read(get(), from.get(), data, length, offset, user_data, &token));
        return token;
    }
    std::uint64_t read(const file& from, void* data, std::size_t length, std::uint64_t offset,
                       std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_read(get(), from.get(), data, length, offset, user_data, &token), error);
        return token;
    }
    std::uint64_t write(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                        std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_write(get(), to.get(), data, length, offset, user_data, &token));
        return token;
    }
    std::uint64_t write(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                        std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_write(get(), to.get(), data, length, offset, user_data, &token), error);
        return token;
    }
    std::uint64_t write_durable(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                                std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_write_durable(get(), to.get(), data, length, offset, user_data, &token));
        return token;
    }
    std::uint64_t write_durable(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                                std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_write_durable(get(), to.get(), data, length, offset, user_data, &token), error);
        return token;
    }
    std::uint64_t write_atomic(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                               std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_write_atomic(get(), to.get(), data, length, offset, user_data, &token));
        return token;
    }
    std::uint64_t write_atomic(const file& to, const void* data, std::size_t length, std::uint64_t offset,
                               std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_write_atomic(get(), to.get(), data, length, offset, user_data, &token), error);
        return token;
    }
    std::uint64_t readv(const file& from, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                        std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_readv(get(), from.get(), parts, count, offset, user_data, &token));
        return token;
    }
    std::uint64_t readv(const file& from, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                        std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_readv(get(), from.get(), parts, count, offset, user_data, &token), error);
        return token;
    }
    std::uint64_t writev(const file& to, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                         std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_writev(get(), to.get(), parts, count, offset, user_data, &token));
        return token;
    }
    std::uint64_t writev(const file& to, const struct iovec* parts, std::size_t count, std::uint64_t offset,
                         std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_writev(get(), to.get(), parts, count, offset, user_data, &token), error);
        return token;
    }
    std::uint64_t sync_data(const file& of, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_sync_data(get(), of.get(), user_data, &token));
        return token;
    }
    std::uint64_t sync_data(const file& of, std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_sync_data(get(), of.get(), user_data, &token), error);
        return token;
    }
    std::uint64_t sync_all(const file& of, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_sync_all(get(), of.get(), user_data, &token));
        return token;
    }
    std::uint64_t sync_all(const file& of, std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_sync_all(get(), of.get(), user_data, &token), error);
        return token;
    }
    std::uint64_t sync_range(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t flags,
                             std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_sync_range(get(), of.get(), offset, length, flags, user_data, &token));
        return token;
    }
    std::uint64_t sync_range(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t flags,
                             std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_sync_range(get(), of.get(), offset, length, flags, user_data, &token), error);
        return token;
    }
    std::uint64_t allocate(const file& of, std::uint32_t mode, std::uint64_t offset, std::uint64_t length,
                           std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_allocate(get(), of.get(), mode, offset, length, user_data, &token));
        return token;
    }
    std::uint64_t allocate(const file& of, std::uint32_t mode, std::uint64_t offset, std::uint64_t length,
                           std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_allocate(get(), of.get(), mode, offset, length, user_data, &token), error);
        return token;
    }
    std::uint64_t truncate(const file& of, std::uint64_t length, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_truncate(get(), of.get(), length, user_data, &token));
        return token;
    }
    std::uint64_t truncate(const file& of, std::uint64_t length, std::uint64_t user_data,
                           std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_truncate(get(), of.get(), length, user_data, &token), error);
        return token;
    }
    std::uint64_t advise(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t advice,
                         std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_advise(get(), of.get(), offset, length, advice, user_data, &token));
        return token;
    }
    std::uint64_t advise(const file& of, std::uint64_t offset, std::uint64_t length, std::uint32_t advice,
                         std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_advise(get(), of.get(), offset, length, advice, user_data, &token), error);
        return token;
    }
    // When the result is taken, `*opened` gets the handle, and `*to` the metadata: see the C header.
    std::uint64_t open_file(const char* path, const ringfile_open_options& options, ringfile_file** opened,
                            std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_open_file(get(), path, &options, opened, user_data, &token));
        return token;
    }
    std::uint64_t open_file(const char* path, const ringfile_open_options& options, ringfile_file** opened,
                            std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_open_file(get(), path, &options, opened, user_data, &token), error);
        return token;
    }
    std::uint64_t statx(const char* path, ringfile_metadata* to, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_statx(get(), path, to, user_data, &token));
        return token;
    }
    std::uint64_t statx(const char* path, ringfile_metadata* to, std::uint64_t user_data,
                        std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_statx(get(), path, to, user_data, &token), error);
        return token;
    }
    std::uint64_t rename(const char* from, const char* to, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_rename(get(), from, to, user_data, &token));
        return token;
    }
    std::uint64_t rename(const char* from, const char* to, std::uint64_t user_data,
                         std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_rename(get(), from, to, user_data, &token), error);
        return token;
    }
    std::uint64_t unlink(const char* path, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_unlink(get(), path, user_data, &token));
        return token;
    }
    std::uint64_t unlink(const char* path, std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_unlink(get(), path, user_data, &token), error);
        return token;
    }
    std::uint64_t rmdir(const char* path, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_rmdir(get(), path, user_data, &token));
        return token;
    }
    std::uint64_t rmdir(const char* path, std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_rmdir(get(), path, user_data, &token), error);
        return token;
    }
    std::uint64_t mkdir(const char* path, std::uint64_t user_data) {
        std::uint64_t token = 0;
        check(ringfile_queue_mkdir(get(), path, user_data, &token));
        return token;
    }
    std::uint64_t mkdir(const char* path, std::uint64_t user_data, std::error_code& error) noexcept {
        std::uint64_t token = 0;
        check(ringfile_queue_mkdir(get(), path, user_data, &token), error);
        return token;
    }
    void submit() { check(ringfile_queue_submit(get())); }
    void submit(std::error_code& error) noexcept { check(ringfile_queue_submit(get()), error); }
    // Takes up to `room` results, after waiting for at least `at_least`. Returns how many were taken.
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least = 1) {
        return static_cast<std::size_t>(check(ringfile_queue_wait(get(), results, room, at_least, -1)));
    }
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least,
                     std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_queue_wait(get(), results, room, at_least, -1), error));
    }
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least,
                     std::chrono::nanoseconds timeout) {
        return static_cast<std::size_t>(check(ringfile_queue_wait(get(), results, room, at_least, limit(timeout))));
    }
    std::size_t wait(ringfile_result* results, std::size_t room, std::size_t at_least,
                     std::chrono::nanoseconds timeout, std::error_code& error) noexcept {
        const std::int64_t taken = ringfile_queue_wait(get(), results, room, at_least, limit(timeout));
        return static_cast<std::size_t>(check(taken, error));
    }
    // These take a token. The memory of an operation is free again once its result has been taken, even if that throws.
    std::size_t wait_for(std::uint64_t token) {
        return static_cast<std::size_t>(check(ringfile_queue_wait_for(get(), token)));
    }
    std::size_t wait_for(std::uint64_t token, std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_queue_wait_for(get(), token), error));
    }
    // The result of a finished operation; std::errc::resource_unavailable_try_again if it has not finished.
    std::size_t take(std::uint64_t token) { return static_cast<std::size_t>(check(ringfile_queue_take(get(), token))); }
    std::size_t take(std::uint64_t token, std::error_code& error) noexcept {
        return static_cast<std::size_t>(check(ringfile_queue_take(get(), token), error));
    }
    bool is_done(std::uint64_t token) { return check(ringfile_queue_is_done(get(), token)) == 1; }
    bool is_done(std::uint64_t token, std::error_code& error) noexcept {
        return check(ringfile_queue_is_done(get(), token), error) == 1;
    }
    // Cancels an operation. Returns false if it has finished. Its result still arrives: std::errc::operation_canceled if
    // this was in time.
    bool cancel(std::uint64_t token) { return check(ringfile_queue_cancel(get(), token)) == 1; }
    bool cancel(std::uint64_t token, std::error_code& error) noexcept {
        return check(ringfile_queue_cancel(get(), token), error) == 1;
    }
    // A descriptor for epoll, which the caller closes with close(2). -1 on error.
    int descriptor() { return check(ringfile_queue_descriptor(get())); }
    int descriptor(std::error_code& error) noexcept {
        const int result = check(ringfile_queue_descriptor(get()), error);
        return error ? -1 : result;
    }
    std::size_t open() const { return static_cast<std::size_t>(check(ringfile_queue_open(get()))); }
    std::size_t open(std::error_code& error) const noexcept {
        return static_cast<std::size_t>(check(ringfile_queue_open(get()), error));
    }

private:
    // A negative timeout would mean no limit.
    static std::int64_t limit(std::chrono::nanoseconds timeout) noexcept {
        return timeout.count() < 0 ? 0 : timeout.count();
    }
};

// Counters of the whole process, and of the calling thread.
inline ringfile_counts metrics() {
    ringfile_counts counts{};
    counts.size = sizeof counts;
    check(ringfile_metrics(&counts));
    return counts;
}
inline ringfile_counts metrics(std::error_code& error) noexcept {
    ringfile_counts counts{};
    counts.size = sizeof counts;
    check(ringfile_metrics(&counts), error);
    return counts;
}
inline ringfile_counts thread_metrics() {
    ringfile_counts counts{};
    counts.size = sizeof counts;
    check(ringfile_thread_metrics(&counts));
    return counts;
}
inline ringfile_counts thread_metrics(std::error_code& error) noexcept {
    ringfile_counts counts{};
    counts.size = sizeof counts;
    check(ringfile_thread_metrics(&counts), error);
    return counts;
}

// The features of io_uring that work here, as words separated by spaces; an error if no ring can be created.
inline std::string ring_features(std::error_code& error) {
    std::string text(4096, '\0');
    const auto length = static_cast<std::size_t>(check(ringfile_ring_features(text.data(), text.size()), error));
    text.resize(length < text.size() ? length : text.size() - 1);
    return text;
}
inline std::string ring_features() {
    std::error_code error;
    std::string text = ring_features(error);
    if (error) {
        throw std::system_error(error, ringfile_last_error());
    }
    return text;
}

// Sets the route, RINGFILE_ROUTE_..., of files that are opened from now on.
inline void set_default_route(std::uint32_t route) { check(ringfile_set_default_route(route)); }
inline void set_default_route(std::uint32_t route, std::error_code& error) noexcept {
    check(ringfile_set_default_route(route), error);
}
inline void set_io_threads(std::size_t threads) { check(ringfile_set_io_threads(threads)); }
inline void set_io_threads(std::size_t threads, std::error_code& error) noexcept {
    check(ringfile_set_io_threads(threads), error);
}
inline void set_worker_threads(std::size_t threads) { check(ringfile_set_worker_threads(threads)); }
inline void set_worker_threads(std::size_t threads, std::error_code& error) noexcept {
    check(ringfile_set_worker_threads(threads), error);
}
// Releases this thread's ring. For a thread that will do no I/O for a long time.
inline void thread_release() { check(ringfile_thread_release()); }
inline void thread_release(std::error_code& error) noexcept { check(ringfile_thread_release(), error); }

inline void sync_directory(const std::string& path) { check(ringfile_sync_directory(path.c_str())); }
inline void sync_directory(const char* path, std::error_code& error) noexcept {
    check(ringfile_sync_directory(path), error);
}

// Receives the library's messages: RINGFILE_LOG_..., and one line. See ringfile_set_log for what it may do; its
// exceptions are caught here. It is a function without state, because state might be invalid in a forked child, or
// freed too early.
using log_function = void (*)(int level, const char* message);

// Sets the function for the whole process; nullptr removes it. When this returns, the previous function is not running.
inline void set_log(log_function function, std::error_code& error) noexcept {
    const auto tell = [](void* context, int level, const char* message) noexcept {
        try {
            reinterpret_cast<log_function>(context)(level, message);
        } catch (...) {
        }
    };
    check(ringfile_set_log(function != nullptr ? static_cast<ringfile_log>(tell) : nullptr,
                           reinterpret_cast<void*>(function)),
          error);
}
inline void set_log(log_function function) {
    std::error_code error;
    set_log(function, error);
    if (error) {
        throw std::system_error(error, ringfile_last_error());
    }
}

}  // namespace ringfile

#endif  // RINGFILE_HPP
