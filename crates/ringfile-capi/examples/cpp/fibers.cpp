// A fiber scheduler on one thread: 512 connections, each served by its own fiber, over sockets, a timer and the disk in
// one epoll. A fiber takes requests from its socket, reads the block that each names, and sends it back. A second
// process sends requests and checks every byte. Of every eight requests, one has a deadline, after which the read is
// cancelled by its token, and one is withdrawn before the read is submitted.
//
// The same fibers run twice: over a pool of threads that call pread, and over one ringfile queue with registered
// memory.
//
// Usage: fibers [FOLDER [REQUESTS [BLOCKS [THREADS]]]]: the folder of a file that is made and removed, requests per
// connection, blocks of the file, and threads of the pool.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fibers.hpp"

namespace {

struct settings {
    std::string folder = ".";
    unsigned requests = 32;
    std::uint64_t blocks = 4096;
    unsigned threads = 64;
};

// The block follows if `result` is its size.
struct answer {
    std::uint64_t block;
    std::int64_t result;
};

// ---- The disk through a ringfile queue: no other thread ----

class queue_disk final : public disk {
public:
    explicit queue_disk(int file)
        : file_(ringfile::file::of_descriptor(file)),
          queue_(ringfile::queue::create(connections)),
          descriptor_(queue_.descriptor()) {}
    ~queue_disk() override { close(descriptor_); }

    void start(operation& read) override {
        read.token = queue_.add(ringfile_op_read(file_.get(), read.owner->block, block_size, read.block * block_size),
                                reinterpret_cast<std::uintptr_t>(&read));
    }
    void cancel(operation& read) override { queue_.cancel(read.token); }
    void collect() override {
        std::array<ringfile_result, 128> results;
        // Submits everything that the fibers have added, in one system call.
        const std::size_t taken = queue_.wait(results.data(), results.size(), 0, std::chrono::nanoseconds(0));
        for (std::size_t at = 0; at < taken; at++) {
            operation& read = *reinterpret_cast<operation*>(static_cast<std::uintptr_t>(results[at].user_data));
            read.result = results[at].result;
            read.is_over = true;
            self->make_ready(*read.owner);
        }
    }
    int descriptor() const override { return descriptor_; }

private:
    ringfile::file file_;
    ringfile::queue queue_;
    int descriptor_;
};

// ---- The disk through a pool of threads that call pread ----

class thread_disk final : public disk {
public:
    thread_disk(int file, unsigned threads) : file_(file), bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        EXPECT(bell_ >= 0);
        for (unsigned at = 0; at < threads; at++) {
            threads_.emplace_back([this] { work(); });
        }
    }
    ~thread_disk() override {
        {
            const std::lock_guard guard(lock_);
            is_closing_ = true;
        }
        changed_.notify_all();
        for (std::thread& one : threads_) {
            one.join();
        }
        close(bell_);
    }

    void start(operation& read) override {
        {
            const std::lock_guard guard(lock_);
            waiting_.push_back(&read);
        }
        changed_.notify_one();
    }
    void cancel(operation& read) override {
        const std::lock_guard guard(lock_);
        for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
            if (*at == &read) {
                waiting_.erase(at);
                end(read, -ECANCELED);
                return;
            }
        }
    }
    void collect() override {
        std::uint64_t rings;
        EXPECT(::read(bell_, &rings, sizeof rings) > 0 || errno == EAGAIN);
        {
            const std::lock_guard guard(lock_);
            over_.swap(taken_);
        }
        for (operation* read : taken_) {
            read->is_over = true;
            self->make_ready(*read->owner);
        }
        taken_.clear();
    }
    int descriptor() const override { return bell_; }

private:
    int file_, bell_;
    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<operation*> waiting_;
    std::vector<operation*> over_, taken_;
    bool is_closing_ = false;
    std::vector<std::thread> threads_;

    // Called under the lock.
    void end(operation& read, std::int64_t result) {
        read.result = result;
        over_.push_back(&read);
        const std::uint64_t one = 1;
        if (over_.size() == 1) {
            EXPECT(write(bell_, &one, sizeof one) == sizeof one);
        }
    }
    void work() {
        std::unique_lock guard(lock_);
        for (;;) {
            changed_.wait(guard, [this] { return is_closing_ || !waiting_.empty(); });
            if (waiting_.empty()) {
                return;
            }
            operation& read = *waiting_.front();
            waiting_.pop_front();
            guard.unlock();
            const ssize_t got = pread(file_, read.owner->block, block_size, static_cast<off_t>(read.block * block_size));
            const std::int64_t result = got < 0 ? -errno : got;
            guard.lock();
            end(read, result);
        }
    }
};

// ---- What a fiber does ----

// Repeats a call until it returns something other than EAGAIN.
template <class Call>
ssize_t parking(connection& one, Call call) {
    for (;;) {
        const ssize_t result = call();
        if (result >= 0 || (errno != EAGAIN && errno != EINTR)) {
            return result;
        }
        if (errno == EAGAIN) {
            one.park();
        }
    }
}

// Answers requests until the other side closes its end. Messages of a SOCK_SEQPACKET socket come whole.
void serve(connection& one) {
    for (;;) {
        request wanted;
        const ssize_t got = parking(one, [&] { return recv(one.socket, &wanted, sizeof wanted, MSG_DONTWAIT); });
        if (got == 0) {
            return;
        }
        EXPECT(got == sizeof wanted);
        answer head{wanted.block, self->read(one, wanted)};
        std::array<iovec, 2> parts{{{&head, sizeof head}, {one.block, block_size}}};
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = head.result == block_size ? 2 : 1;
        EXPECT(parking(one, [&] { return sendmsg(one.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL); }) > 0);
    }
}

// ---- The second process: sends requests, and checks every byte ----

class checker {
public:
    checker(const std::vector<int>& sockets, const settings& with) : sockets_(sockets), with_(with) {}

    void run() {
        const int loop = epoll_create1(EPOLL_CLOEXEC);
        EXPECT(loop >= 0);
        for (std::size_t at = 0; at < sockets_.size(); at++) {
            epoll_event event{};
            event.events = EPOLLIN;
            event.data.u64 = at;
            EXPECT(epoll_ctl(loop, EPOLL_CTL_ADD, sockets_[at], &event) == 0);
            ask(at);
        }
        for (std::size_t open = sockets_.size(); open > 0;) {
            std::array<epoll_event, 128> events;
            const int count = epoll_wait(loop, events.data(), static_cast<int>(events.size()), -1);
            EXPECT(count > 0 || errno == EINTR);
            for (int at = 0; at < count; at++) {
                open -= take(events[static_cast<std::size_t>(at)].data.u64) ? 0 : 1;
            }
        }
        close(loop);
    }

private:
    const std::vector<int>& sockets_;
    const settings& with_;
    std::vector<unsigned> asked_ = std::vector<unsigned>(connections);

    request nth(std::size_t connection, unsigned n) const {
        const kind what = n % 8 == 3 ? kind::with_deadline : n % 8 == 7 ? kind::withdrawn : kind::plain;
        return {word(connection, n) >> 20U, what, 0};
    }
    void ask(std::size_t connection) {
        request wanted = nth(connection, asked_[connection]++);
        wanted.block %= with_.blocks;
        EXPECT(send(sockets_[connection], &wanted, sizeof wanted, MSG_NOSIGNAL) == sizeof wanted);
    }
    // Takes an answer and sends another request; closes the connection and returns false after the last one.
    bool take(std::size_t connection) {
        const request wanted = nth(connection, asked_[connection] - 1);
        answer head;
        std::array<std::uint64_t, words> block;
        std::array<iovec, 2> parts{{{&head, sizeof head}, {block.data(), block_size}}};
        const ssize_t got = readv(sockets_[connection], parts.data(), 2);
        EXPECT(got >= static_cast<ssize_t>(sizeof head) && head.block == wanted.block % with_.blocks);
        if (head.result == block_size) {
            EXPECT(got == static_cast<ssize_t>(sizeof head + block_size));
            for (std::size_t at = 0; at < words; at++) {
                EXPECT(block[at] == word(head.block, at));
            }
        } else {
            EXPECT(head.result == -ECANCELED && wanted.what != kind::plain);
        }
        if (asked_[connection] == with_.requests) {
            close(sockets_[connection]);
            return false;
        }
        ask(connection);
        return true;
    }
};

// ---- The two runs ----

// Forks the checker. It does not use the library: see FORK in ringfile.h.
pid_t start_checker(const settings& with, std::vector<int>& ours) {
    std::vector<int> theirs;
    for (std::size_t at = 0; at < connections; at++) {
        int pair[2];
        EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        ours.push_back(pair[0]);
        theirs.push_back(pair[1]);
    }
    std::fflush(stdout);
    const pid_t child = fork();
    EXPECT(child >= 0);
    for (const int socket : child == 0 ? ours : theirs) {
        close(socket);
    }
    if (child == 0) {
        checker(theirs, with).run();
        std::_Exit(EXIT_SUCCESS);
    }
    return child;
}

// Serves all connections, and returns how many reads were cancelled. Only those that were made count.
template <class MakeDisk>
std::uint64_t serve_all(const char* name, const settings& with, std::byte* memory, MakeDisk make) {
    std::vector<int> sockets;
    const pid_t child = start_checker(with, sockets);
    scheduler fibers;
    fibers.blocks = make();
    for (std::size_t at = 0; at < connections; at++) {
        fibers.start(sockets[at], memory + at * block_size, serve);
    }
    const auto began = monotonic::now();
    const auto used = processor_time();
    fibers.run();
    const std::chrono::duration<double> time = monotonic::now() - began;
    const auto processor = processor_time() - used;
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(fibers.reads + fibers.cancelled == connections * with.requests);
    std::printf("%-16s %8llu reads, %llu cancelled %9.0f reads/s %7.1f us of CPU each\n", name,
                static_cast<unsigned long long>(fibers.reads), static_cast<unsigned long long>(fibers.cancelled),
                static_cast<double>(fibers.reads) / time.count(),
                static_cast<double>(processor.count()) / static_cast<double>(fibers.reads));
    return fibers.cancelled;
}

void run(const settings& with) {
    rlimit descriptors{};
    EXPECT(getrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    descriptors.rlim_cur = descriptors.rlim_max;  // two for each connection, until the checker has its own
    EXPECT(setrlimit(RLIMIT_NOFILE, &descriptors) == 0);
    const int file = make_file(with.folder, with.blocks);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(block_size, connections * block_size));
    EXPECT(memory != nullptr);
    std::memset(memory, 0, connections * block_size);  // valgrind does not see the memory that a ring writes

    serve_all("threads, pread", with, memory, [&] { return std::make_unique<thread_disk>(file, with.threads); });
    auto registered = ringfile::memory::add(memory, connections * block_size);
    const std::uint64_t cancelled =
        serve_all("ringfile queue", with, memory, [&] { return std::make_unique<queue_disk>(file); });
    // An operation that was not submitted is never carried out.
    EXPECT(cancelled >= connections * (with.requests / 8));
    EXPECT(!registered.close());
    std::free(memory);
    close(file);
}

}  // namespace

int main(int argc, char** argv) {
    settings with;
    with.folder = argc > 1 ? argv[1] : with.folder;
    with.requests = argc > 2 ? static_cast<unsigned>(std::stoul(argv[2])) : with.requests;
    with.blocks = argc > 3 ? std::stoull(argv[3]) : with.blocks;
    with.threads = argc > 4 ? static_cast<unsigned>(std::stoul(argv[4])) : with.threads;
    EXPECT(with.requests > 0 && with.blocks > 0 && with.threads > 0);
    try {
        run(with);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "fibers: %s\n", error.what());
        return EXIT_FAILURE;
    }
    std::puts("ok");
    return EXIT_SUCCESS;
}
