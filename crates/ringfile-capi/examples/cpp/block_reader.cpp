// A storage engine's block reader in C++, before and after: pread(2) first, then the same class over ringfile.hpp, with
// the engine's own cache registered, many blocks in one call, a prefetch that may be cancelled, a loop with a queue,
// and writes. docs/guide/c.md explains it. Each step checks the bytes of every block.
//
// Usage: block_reader [FOLDER], where it makes and removes a file; the current folder by default.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ringfile.hpp"

namespace {

constexpr std::size_t block_size = 4096;
constexpr std::uint64_t blocks = 256;

// The engine's reader before the change.
class pread_reader {
public:
    explicit pread_reader(int descriptor) : descriptor_(descriptor) {}

    void read(std::uint64_t number, std::byte* block) const {
        for (std::size_t done = 0; done < block_size;) {
            const auto at = static_cast<off_t>(number * block_size + done);
            const ssize_t got = ::pread(descriptor_, block + done, block_size - done, at);
            if (got < 0 && errno != EINTR) {
                throw std::system_error(errno, std::system_category(), "pread");
            }
            if (got == 0) {
                throw std::runtime_error("the file ends inside of block " + std::to_string(number));
            }
            done += got < 0 ? 0 : static_cast<std::size_t>(got);
        }
    }

private:
    int descriptor_;
};

// The engine's reader over ringfile. Any thread may call its reads.
class ring_reader {
public:
    // The descriptor and the cache still belong to the engine; the cache must outlive this object.
    ring_reader(int descriptor, std::byte* cache, std::size_t length)
        : file_(ringfile::file::of_descriptor(descriptor)), cache_(ringfile::memory::add(cache, length)) {}

    void read(std::uint64_t number, std::byte* block) const {
        check(number, file_.read(block, block_size, number * block_size));
    }

    // For callers without exceptions; ringfile::last_error() returns the error text.
    std::error_code try_read(std::uint64_t number, std::byte* block) const noexcept {
        std::error_code error;
        const std::size_t bytes = file_.read(block, block_size, number * block_size, error);
        return error || bytes == block_size ? error : std::make_error_code(std::errc::io_error);
    }

    // Reads all together: block `numbers[at]` goes to `frames[at]`.
    void read(const std::vector<std::uint64_t>& numbers, const std::vector<std::byte*>& frames) const {
        std::vector<ringfile_read_request> requests;
        for (std::size_t at = 0; at < numbers.size(); at++) {
            requests.push_back({numbers[at] * block_size, frames[at], block_size, 0});
        }
        file_.read_many(requests.data(), requests.size());
        for (std::size_t at = 0; at < numbers.size(); at++) {
            check(numbers[at], static_cast<std::size_t>(ringfile::check(requests[at].result)));
        }
    }

    const ringfile::file& file() const noexcept { return file_; }

    static void check(std::uint64_t number, std::size_t bytes) {
        if (bytes < block_size) {
            throw std::runtime_error("the file ends inside of block " + std::to_string(number));
        }
    }

private:
    ringfile::file file_;
    ringfile::memory cache_;
};

// The block that an iterator will need next is read meanwhile. Belongs to one thread.
class prefetch {
public:
    void start(const ring_reader& reader, std::uint64_t number, std::byte* frame) {
        number_ = number;
        token_ = queue_.add(ringfile_op_read(reader.file().get(), frame, block_size, number * block_size), number);
        queue_.submit();
    }
    void wait() { ring_reader::check(number_, queue_.wait_for(token_)); }
    // When it returns, the frame is free, whether or not the read succeeded.
    void give_up() {
        std::error_code cancelled;
        queue_.cancel(token_);
        queue_.wait_for(token_, cancelled);
    }

private:
    ringfile::queue queue_ = ringfile::queue::create(1);
    std::uint64_t number_ = 0, token_ = 0;
};

// A loop that keeps as many reads in flight as there are frames, and calls `use` with each block that was read.
template <class Use>
void serve(const ring_reader& reader, const std::vector<std::byte*>& frames, std::uint64_t total, Use use) {
    std::vector<std::uint64_t> numbers(frames.size());
    std::vector<ringfile_result> results(frames.size());
    auto queue = ringfile::queue::create(frames.size());
    std::uint64_t begun = 0;
    const auto begin = [&](std::uint64_t frame) {
        numbers[frame] = begun++ * 7 % blocks;
        queue.add(ringfile_op_read(reader.file().get(), frames[frame], block_size, numbers[frame] * block_size), frame);
    };
    while (begun < frames.size()) {
        begin(begun);
    }
    for (std::uint64_t ended = 0; ended < total;) {
        const std::size_t taken = queue.wait(results.data(), results.size());
        for (std::size_t at = 0; at < taken; at++, ended++) {
            const std::uint64_t frame = results[at].user_data;
            ring_reader::check(numbers[frame], static_cast<std::size_t>(ringfile::check(results[at].result)));
            use(numbers[frame], frames[frame]);
            if (begun < total) {
                begin(frame);
            }
        }
    }
}

// Writes dirty blocks, with one fdatasync for all of them.
void write(const ringfile::file& file, const std::vector<std::uint64_t>& numbers, const std::vector<std::byte*>& frames) {
    auto batch = ringfile::batch::create();
    for (std::size_t at = 0; at < numbers.size(); at++) {
        batch.add(ringfile_op_write(file.get(), frames[at], block_size, numbers[at] * block_size));
    }
    batch.barrier();
    batch.add(ringfile_op_sync_data(file.get()));
    if (batch.run() > 0) {
        throw std::runtime_error(ringfile::last_error());
    }
}

// The rest makes the file, calls the steps and checks them.

void expect(bool truth, const char* what) {
    if (!truth) {
        throw std::logic_error(std::string("check failed: ") + what);
    }
}

int version = 0;

// Returns a byte that differs from that of every other block, and of other versions of this block, at the same place.
std::byte mark(std::uint64_t number, std::size_t at) {
    return static_cast<std::byte>(number * 31 + at / 16 + static_cast<std::size_t>(version));
}

void fill(std::byte* block, std::uint64_t number) {
    for (std::size_t at = 0; at < block_size; at++) {
        block[at] = mark(number, at);
    }
}

void expect_block(const std::byte* block, std::uint64_t number) {
    for (std::size_t at = 0; at < block_size; at++) {
        expect(block[at] == mark(number, at), "the bytes are those of the block");
    }
}

void reads_are_right(int descriptor, const ring_reader& reader, const std::vector<std::byte*>& frames) {
    const pread_reader before(descriptor);
    std::vector<std::uint64_t> numbers;
    for (std::size_t at = 0; at < frames.size(); at++) {
        numbers.push_back(at * 37 % blocks);
    }
    for (const std::uint64_t number : numbers) {
        before.read(number, frames[0]);
        expect_block(frames[0], number);
        reader.read(number, frames[1]);
        expect_block(frames[1], number);
    }
    expect(!reader.try_read(5, frames[2]), "a block without exceptions");
    expect_block(frames[2], 5);
    expect(reader.try_read(blocks, frames[2]) == std::errc::io_error, "the end of the file");
    reader.read(numbers, frames);
    for (std::size_t at = 0; at < frames.size(); at++) {
        expect_block(frames[at], numbers[at]);
    }
    prefetch next;
    next.start(reader, 11, frames[3]);
    next.wait();
    expect_block(frames[3], 11);
    next.start(reader, 12, frames[3]);
    next.give_up();
    serve(reader, frames, 1000, [](std::uint64_t number, const std::byte* block) { expect_block(block, number); });
}

void run(const std::string& path) {
    constexpr std::size_t count = 32;
    std::vector<std::byte> memory((count + 1) * block_size);
    // Frames begin at a multiple of the block, which direct I/O reads and writes in place.
    void* aligned = memory.data();
    std::size_t room = memory.size();
    auto* const cache = static_cast<std::byte*>(std::align(block_size, count * block_size, aligned, room));
    std::vector<std::byte*> frames;
    for (std::size_t at = 0; at < count; at++) {
        frames.push_back(cache + at * block_size);
    }

    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    expect(descriptor >= 0, "the file is made");
    ::unlink(path.c_str());
    for (std::uint64_t number = 0; number < blocks; number++) {
        fill(cache, number);
        const auto at = static_cast<off_t>(number * block_size);
        expect(::pwrite(descriptor, cache, block_size, at) == static_cast<ssize_t>(block_size), "a block is written");
    }

    {
        const ring_reader reader(descriptor, cache, count * block_size);
        reads_are_right(descriptor, reader, frames);
        version = 1;
        std::vector<std::uint64_t> numbers(count);
        for (std::uint64_t first = 0; first < blocks; first += count) {
            for (std::size_t at = 0; at < count; at++) {
                numbers[at] = first + at;
                fill(frames[at], numbers[at]);
            }
            write(reader.file(), numbers, frames);
        }
        reads_are_right(descriptor, reader, frames);
    }
    ::close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(std::string(argc > 1 ? argv[1] : ".") + "/ringfile-blocks-" + std::to_string(::getpid()));
    } catch (const std::exception& error) {
        std::cerr << "block_reader: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
    const ringfile_counts counts = ringfile::metrics();
    std::cout << counts.ops << " operations, " << counts.inline_ops << " by plain calls, " << counts.fixed_ops
              << " on registered memory\nok\n";
    return EXIT_SUCCESS;
}
