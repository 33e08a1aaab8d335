// Fibers that move between threads, with sockets and a file: what does a second ring cost? Each connection has two
// fibers: one asks for blocks, the other reads them from the file and sends them; the first checks every byte. A thread
// runs fibers that are ready, whichever thread they ran on before, then submits what they wait for, and sleeps.
//
// The same fibers run over these, in turn:
//   one ring            a ringfile queue for each thread, for the file and the sockets
//   one shared ring     one ringfile queue of all threads, for both
//   a second ring       a ringfile queue for each thread, for the file, and a ring of liburing for the sockets, which
//                       also waits for the queue's descriptor
//
// Usage: fibers_threads [FOLDER [THREADS [CONNECTIONS [REQUESTS [BLOCKS [ROUNDS]]]]]]: the folder of a file that is made
// and removed, threads, connections, requests for each, blocks of the file, and rounds of all kinds.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if __has_include(<liburing.h>)
#include <liburing.h>
#define HAS_LIBURING
#endif

#include "blocks.hpp"
#include "fiber.hpp"

namespace {

struct settings {
    std::string folder = ".";
    unsigned threads = 2, connections = 16, requests = 100;
    std::uint64_t blocks = 1024;
    unsigned rounds = 1;
};

// The file, or a socket: as ringfile knows it, and as the kernel does.
struct endpoint {
    explicit endpoint(int descriptor, std::size_t index = 0)
        : file(ringfile::file::of_descriptor(descriptor)), descriptor(descriptor), index(index) {}
    endpoint(const endpoint&) = delete;
    endpoint& operator=(const endpoint&) = delete;
    ~endpoint() { close(descriptor); }

    ringfile::file file;
    int descriptor;
    std::size_t index;  // of a socket, among the sockets
};

using endpoints = std::vector<std::unique_ptr<endpoint>>;

class worker;

// What a fiber waits for.
struct operation {
    worker* owner;
    enum { read, receive, send } kind;
    const endpoint& on;
    std::byte* data;
    std::size_t length;
    std::uint64_t offset;
    std::int64_t result;
};

class worker : public fiber {
public:
    operation* wanted = nullptr;
    std::thread::id ran_on;
    unsigned moves = 0;

protected:
    // The thread adds the operation once the fiber has left its stack: until then, no other thread may enter it.
    std::int64_t await(operation one) {
        wanted = &one;
        park();
        return one.result;
    }
    // Receives or sends all of `length` bytes. Returns false if the other side has shut its end down.
    bool transfer(decltype(operation::kind) kind, const endpoint& socket, void* data, std::size_t length) {
        for (std::size_t done = 0; done < length;) {
            auto* rest = static_cast<std::byte*>(data) + done;
            const std::int64_t moved = await({this, kind, socket, rest, length - done, 0, 0});
            EXPECT(moved >= 0);
            if (moved == 0) {
                return false;
            }
            done += static_cast<std::size_t>(moved);
        }
        return true;
    }
};

// ---- What fibers do ----

// Sends the blocks that the other side asks for.
class server final : public worker {
public:
    server(const endpoint& file, const endpoint& socket, std::byte* block) : file_(file), socket_(socket), block_(block) {}

private:
    const endpoint &file_, &socket_;
    std::byte* block_;

    void run() override {
        std::uint64_t number;
        while (transfer(operation::receive, socket_, &number, sizeof number)) {
            EXPECT(await({this, operation::read, file_, block_, block_size, number * block_size, 0}) == block_size);
            EXPECT(transfer(operation::send, socket_, block_, block_size));
        }
    }
};

// Asks for blocks, and checks them.
class client final : public worker {
public:
    client(const settings& with, const endpoint& socket, unsigned id) : with_(with), socket_(socket), id_(id) {}

private:
    const settings& with_;
    const endpoint& socket_;
    unsigned id_;

    void run() override {
        std::array<std::uint64_t, words> block;
        for (unsigned turn = 0; turn < with_.requests; turn++) {
            std::uint64_t number = (word(id_, turn) >> 20U) % with_.blocks;
            EXPECT(transfer(operation::send, socket_, &number, sizeof number));
            EXPECT(transfer(operation::receive, socket_, block.data(), block_size));
            for (std::size_t at = 0; at < words; at++) {
                EXPECT(block[at] == word(number, at));
            }
        }
        EXPECT(shutdown(socket_.descriptor, SHUT_WR) == 0);
    }
};

// ---- Where their operations go ----

// Belongs to one thread, or is shared by all.
class port {
public:
    port() : bell_(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)) { EXPECT(bell_ >= 0); }
    virtual ~port() { close(bell_); }
    virtual void add(operation& one) = 0;
    // Submits what was added, and appends the fibers whose operations have ended. Waits for one if it may.
    virtual void collect(bool may_wait, std::vector<worker*>& ready) = 0;
    // For other threads: ends a wait, or the next one.
    void ring() const {
        const std::uint64_t one = 1;
        EXPECT(write(bell_, &one, sizeof one) == sizeof one);
    }

protected:
    static constexpr std::size_t most = 64;  // results at once
    int bell_;
};

class one_ring final : public port {
public:
    explicit one_ring(std::uint32_t flags) : queue_(ringfile::queue::create(most, flags)), bell_file_(dup(bell_)) {}

    void add(operation& one) override {
        const operation what = one;
        const auto user_data = reinterpret_cast<std::uintptr_t>(&one);
        pass_on(&one);  // of a shared queue, another thread may take the result before this one is back
        if (what.kind == operation::send) {
            queue_.add(ringfile_op_write(what.on.file.get(), what.data, what.length, what.offset), user_data);
        } else {
            queue_.add(ringfile_op_read(what.on.file.get(), what.data, what.length, what.offset), user_data);
        }
    }
    void collect(bool may_wait, std::vector<worker*>& ready) override {
        if (may_wait && !hears_bell_.exchange(true)) {
            queue_.add(ringfile_op_read(bell_file_.file.get(), &rung_, sizeof rung_, 0), 0);
        }
        std::array<ringfile_result, most> results;
        const std::size_t taken = may_wait ? queue_.wait(results.data(), most, 1)
                                           : queue_.wait(results.data(), most, 0, std::chrono::nanoseconds(0));
        for (std::size_t at = 0; at < taken; at++) {
            if (results[at].user_data == 0) {
                hears_bell_ = false;
                continue;
            }
            auto& one = *reinterpret_cast<operation*>(static_cast<std::uintptr_t>(results[at].user_data));
            take_over(&one);
            one.result = results[at].result;
            ready.push_back(one.owner);
        }
    }

private:
    ringfile::queue queue_;
    endpoint bell_file_;
    std::atomic<bool> hears_bell_{false};
    std::uint64_t rung_ = 0;
};

#ifdef HAS_LIBURING
class second_ring final : public port {
public:
    explicit second_ring(const endpoints& sockets)
        : queue_(ringfile::queue::create(most)), descriptor_(queue_.descriptor()) {
        std::vector<int> descriptors;
        for (const auto& socket : sockets) {
            descriptors.push_back(socket->descriptor);
        }
        EXPECT(make(sockets_) == 0 && io_uring_register_ring_fd(&sockets_) == 1);
        EXPECT(io_uring_register_files(&sockets_, descriptors.data(), static_cast<unsigned>(descriptors.size())) == 0);
        watch(bell_, &bell_);
        watch(descriptor_, &descriptor_);
    }
    ~second_ring() override {
        io_uring_queue_exit(&sockets_);
        close(descriptor_);
    }
    // Returns why there can be no second ring; nullptr if there can.
    static const char* refused() {
        if (std::getenv("RINGFILE_DISABLE") != nullptr) {
            return "RINGFILE_DISABLE is set";
        }
        io_uring trial{};
        const int made = make(trial);  // before Linux 6.1, or where io_uring is blocked, there is no such ring
        made == 0 ? io_uring_queue_exit(&trial) : void();
        return made == 0 ? nullptr : std::strerror(-made);
    }

    void add(operation& one) override {
        if (one.kind == operation::read) {
            queue_.add(ringfile_op_read(one.on.file.get(), one.data, one.length, one.offset),
                       reinterpret_cast<std::uintptr_t>(&one));
            must_look_ = true;
            return;
        }
        io_uring_sqe* entry = free_entry();
        const int socket = static_cast<int>(one.on.index);
        if (one.kind == operation::send) {
            io_uring_prep_send(entry, socket, one.data, one.length, MSG_NOSIGNAL);
        } else {
            io_uring_prep_recv(entry, socket, one.data, one.length, 0);
        }
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
        io_uring_sqe_set_data(entry, &one);
    }
    void collect(bool may_wait, std::vector<worker*>& ready) override {
        if (must_look_) {
            std::array<ringfile_result, most> results;
            const std::size_t taken = queue_.wait(results.data(), most, 0, std::chrono::nanoseconds(0));
            for (std::size_t at = 0; at < taken; at++) {
                end(reinterpret_cast<operation*>(static_cast<std::uintptr_t>(results[at].user_data)), results[at].result,
                    ready);
            }
            // The poll announces what ends from now on, but not again what is left.
            must_look_ = taken == most;
        }
        const bool waits = may_wait && ready.empty();
        const int submitted = waits ? io_uring_submit_and_wait(&sockets_, 1) : io_uring_submit_and_get_events(&sockets_);
        EXPECT(submitted >= 0 || submitted == -EINTR);
        io_uring_cqe* completion;
        unsigned head, seen = 0;
        io_uring_for_each_cqe(&sockets_, head, completion) {
            seen++;
            void* of = io_uring_cqe_get_data(completion);
            if (of != &bell_ && of != &descriptor_) {
                end(static_cast<operation*>(of), completion->res, ready);
                continue;
            }
            EXPECT(completion->res >= 0);  // of the polls, which announce each signal once: nothing is read
            must_look_ |= of == &descriptor_;
            if ((completion->flags & IORING_CQE_F_MORE) == 0) {
                watch(*static_cast<int*>(of), of);
            }
        }
        io_uring_cq_advance(&sockets_, seen);
    }

private:
    ringfile::queue queue_;
    int descriptor_;
    io_uring sockets_{};
    bool must_look_ = false;

    static int make(io_uring& ring) {
        io_uring_params how{};
        how.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
        return io_uring_queue_init_params(4 * most, &ring, &how);
    }
    io_uring_sqe* free_entry() {
        io_uring_sqe* entry = io_uring_get_sqe(&sockets_);
        if (entry == nullptr) {
            EXPECT(io_uring_submit(&sockets_) > 0);
            entry = io_uring_get_sqe(&sockets_);
        }
        return entry;
    }
    void watch(int descriptor, void* of) {
        io_uring_sqe* entry = free_entry();
        io_uring_prep_poll_multishot(entry, descriptor, POLLIN);
        io_uring_sqe_set_data(entry, of);
    }
    static void end(operation* one, std::int64_t result, std::vector<worker*>& ready) {
        one->result = result;
        ready.push_back(one->owner);
    }
};
#endif

// ---- Threads ----

class scheduler {
public:
    explicit scheduler(unsigned threads) : threads_(threads) {}

    void start(worker& one) {
        ready_.push_back(&one);
        alive_++;
    }

    // Runs fibers until all are over: on each thread, over a port of its own or one of all threads.
    void run(port& io) {
        std::vector<worker*> some;
        sleeper here{io};
        while (take(some, here)) {
            for (worker* one : some) {
                one->moves += one->ran_on != std::this_thread::get_id() ? 1 : 0;
                one->ran_on = std::this_thread::get_id();
                one->enter();
                one->is_over() ? end() : io.add(*one->wanted);
            }
            const bool may_wait = some.empty();
            some.clear();
            io.collect(may_wait, some);
            add(some, here);
        }
        io.ring();  // a thread that shares the port may still wait
    }

private:
    struct sleeper {
        port& io;
    };
    const unsigned threads_;
    std::mutex lock_;
    std::deque<worker*> ready_;
    std::vector<sleeper*> asleep_;
    std::size_t alive_ = 0;

    // Takes this thread's share of the fibers that are ready; if there are none, the thread is going to sleep. Returns
    // false if all fibers are over.
    bool take(std::vector<worker*>& some, sleeper& here) {
        const std::lock_guard guard(lock_);
        const std::size_t share = (ready_.size() + threads_ - 1) / threads_;
        some.assign(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(share));
        ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(share));
        if (some.empty() && alive_ > 0) {
            asleep_.push_back(&here);
        }
        return alive_ > 0;
    }
    // Makes fibers ready, and wakes a thread if there is work for it.
    void add(const std::vector<worker*>& some, sleeper& here) {
        const std::lock_guard guard(lock_);
        const auto at = std::find(asleep_.begin(), asleep_.end(), &here);
        if (at != asleep_.end()) {
            asleep_.erase(at);
        }
        ready_.insert(ready_.end(), some.begin(), some.end());
        if (ready_.size() > 1 && !asleep_.empty()) {
            wake();
        }
    }
    void end() {
        const std::lock_guard guard(lock_);
        alive_--;
        while (alive_ == 0 && !asleep_.empty()) {
            wake();
        }
    }
    void wake() {
        asleep_.back()->io.ring();
        asleep_.pop_back();
    }
};

// Serves all connections, with the port that `make` returns on each thread.
template <class Make>
void measure(const char* name, const settings& with, const endpoint& file, std::byte* memory, Make make) {
    endpoints sockets;
    std::vector<std::unique_ptr<worker>> fibers;
    scheduler all(with.threads);
    for (unsigned at = 0; at < with.connections; at++) {
        int pair[2];
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        const auto& ours = *sockets.emplace_back(std::make_unique<endpoint>(pair[0], 2 * at));
        const auto& theirs = *sockets.emplace_back(std::make_unique<endpoint>(pair[1], 2 * at + 1));
        fibers.push_back(std::make_unique<server>(file, ours, memory + at * block_size));
        fibers.push_back(std::make_unique<client>(with, theirs, at));
    }
    for (const auto& one : fibers) {
        all.start(*one);
    }
    const auto began = monotonic::now();
    const auto used = processor_time();
    std::vector<std::thread> threads;
    for (unsigned at = 0; at < with.threads; at++) {
        threads.emplace_back([&] { all.run(*make(sockets)); });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    const std::chrono::duration<double> time = monotonic::now() - began;
    const double requests = with.connections * with.requests;
    unsigned moves = 0;
    for (const auto& one : fibers) {
        EXPECT(one->is_over());
        moves += one->moves - 1;
    }
    std::printf("%-16s %9.0f requests/s %7.2f us of CPU each %7.3f moves each\n", name, requests / time.count(),
                static_cast<double>((processor_time() - used).count()) / requests, moves / requests);
}

void run(const settings& with) {
    const endpoint file(make_file(with.folder, with.blocks));
    const std::size_t length = with.connections * block_size;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(block_size, length));
    EXPECT(memory != nullptr);
    std::memset(memory, 0, length);  // valgrind does not see the memory that a ring writes
    auto registered = ringfile::memory::add(memory, length);
    for (unsigned round = 0; round < with.rounds; round++) {
        measure("one ring", with, file, memory, [](const endpoints&) { return std::make_unique<one_ring>(0U); });
        one_ring shared(RINGFILE_QUEUE_SHARED);
        measure("one shared ring", with, file, memory, [&](const endpoints&) { return &shared; });
#ifdef HAS_LIBURING
        if (const char* why = second_ring::refused(); why != nullptr) {
            std::printf("SKIPPED a second ring: %s\n", why);
        } else {
            measure("a second ring", with, file, memory,
                    [](const endpoints& sockets) { return std::make_unique<second_ring>(sockets); });
        }
#else
        std::puts("SKIPPED a second ring: liburing is not installed");
#endif
        measure("one ring, again", with, file, memory, [](const endpoints&) { return std::make_unique<one_ring>(0U); });
    }
    EXPECT(!registered.close());
    std::free(memory);
}

}  // namespace

int main(int argc, char** argv) {
    settings with;
    const auto number = [&](int at, auto& to) {
        to = argc > at ? static_cast<std::remove_reference_t<decltype(to)>>(std::stoul(argv[at])) : to;
        EXPECT(to > 0);
    };
    with.folder = argc > 1 ? argv[1] : with.folder;
    number(2, with.threads);
    number(3, with.connections);
    number(4, with.requests);
    number(5, with.blocks);
    number(6, with.rounds);
    try {
        run(with);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "fibers_threads: %s\n", error.what());
        return EXIT_FAILURE;
    }
    std::puts("ok");
    return EXIT_SUCCESS;
}
