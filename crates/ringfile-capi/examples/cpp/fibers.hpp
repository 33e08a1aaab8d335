// A scheduler of fibers on one thread: sockets, deadlines with one timer, and a disk, in one epoll. For fibers.cpp.
#ifndef FIBERS_HPP
#define FIBERS_HPP

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "blocks.hpp"
#include "fiber.hpp"

constexpr std::size_t connections = 512;
constexpr auto time_allowed = std::chrono::microseconds(200);

enum class kind : std::uint32_t { plain, with_deadline, withdrawn };

struct request {
    std::uint64_t block;
    kind what;
    std::uint32_t unused;
};

// A fiber with its socket, and memory for a block.
struct connection final : fiber {
    connection(int socket, std::byte* block, void (*serve)(connection&)) : socket(socket), block(block), serve(serve) {}
    ~connection() override { close(socket); }

    int socket;
    std::byte* block;
    bool is_ready = false;

private:
    void (*serve)(connection&);
    void run() override { serve(*this); }
};

struct operation {
    connection* owner;  // the block goes to its memory
    std::uint64_t block;
    std::uint64_t token;
    std::int64_t result;
    bool is_over;
};

// The source of blocks. `collect` takes results and makes their owners ready; `descriptor` is readable when it should
// be called.
class disk {
public:
    virtual ~disk() = default;
    virtual void start(operation& read) = 0;
    virtual void cancel(operation& read) = 0;
    virtual void collect() = 0;
    virtual int descriptor() const = 0;
};

// Runs fibers until each waits for something, then collects results from the disk, and sleeps in epoll_wait.
class scheduler {
public:
    std::unique_ptr<disk> blocks;
    std::uint64_t reads = 0, cancelled = 0;

    scheduler();
    ~scheduler();
    void start(int socket, std::byte* block, void (*serve)(connection&));
    void run();
    void make_ready(connection& one);
    // For fibers.
    std::int64_t read(connection& one, const request& wanted);

private:
    enum : std::uint64_t { from_disk, from_timer };  // anything above is a fiber
    int loop_, timer_;
    std::vector<std::unique_ptr<connection>> fibers_;
    std::deque<connection*> ready_;
    std::set<std::pair<monotonic::time_point, operation*>> deadlines_;
    std::size_t alive_ = 0;

    void add(int descriptor, std::uint32_t events, std::uint64_t source) const;
    void sleep();
    void set_timer() const;
    void cancel_late();
};

inline scheduler* self;  // the thread's

inline scheduler::scheduler()
    : loop_(epoll_create1(EPOLL_CLOEXEC)), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    EXPECT(loop_ >= 0 && timer_ >= 0);
    self = this;
}

inline scheduler::~scheduler() {
    close(timer_);
    close(loop_);
}

inline void scheduler::add(int descriptor, std::uint32_t events, std::uint64_t source) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = source;
    EXPECT(epoll_ctl(loop_, EPOLL_CTL_ADD, descriptor, &event) == 0);
}

inline void scheduler::start(int socket, std::byte* block, void (*serve)(connection&)) {
    auto one = std::make_unique<connection>(socket, block, serve);
    // Edge-triggered: a fiber parks only after its call returned EAGAIN.
    add(socket, EPOLLIN | EPOLLOUT | EPOLLET, reinterpret_cast<std::uintptr_t>(one.get()));
    make_ready(*one);
    fibers_.push_back(std::move(one));
    alive_++;
}

inline void scheduler::make_ready(connection& one) {
    if (!one.is_ready && !one.is_over()) {
        one.is_ready = true;
        ready_.push_back(&one);
    }
}

inline void scheduler::run() {
    add(timer_, EPOLLIN, from_timer);
    add(blocks->descriptor(), EPOLLIN, from_disk);
    for (;;) {
        for (std::size_t turn = ready_.size(); turn > 0; turn--) {
            connection& one = *ready_.front();
            ready_.pop_front();
            one.is_ready = false;
            one.enter();
            alive_ -= one.is_over() ? 1 : 0;
        }
        if (alive_ == 0) {
            return;
        }
        blocks->collect();
        sleep();
    }
}

// Sleeps until a source is ready; only polls if a fiber is ready.
inline void scheduler::sleep() {
    std::array<epoll_event, 128> events;
    const int count = epoll_wait(loop_, events.data(), static_cast<int>(events.size()), ready_.empty() ? -1 : 0);
    EXPECT(count >= 0 || errno == EINTR);
    for (int at = 0; at < count; at++) {
        const std::uint64_t source = events[static_cast<std::size_t>(at)].data.u64;
        if (source == from_timer) {
            cancel_late();
        } else if (source != from_disk) {  // run collects from the disk in any case
            make_ready(*reinterpret_cast<connection*>(static_cast<std::uintptr_t>(source)));
        }
    }
}

// Sets the timer to the earliest deadline, or off.
inline void scheduler::set_timer() const {
    itimerspec when{};
    if (!deadlines_.empty()) {
        const auto since = deadlines_.begin()->first.time_since_epoch();
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
        when.it_value.tv_sec = seconds.count();
        when.it_value.tv_nsec = std::chrono::nanoseconds(since - seconds).count();
    }
    EXPECT(timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr) == 0);
}

// Cancels reads that are late. Their results still arrive.
inline void scheduler::cancel_late() {
    std::uint64_t expirations;
    EXPECT(::read(timer_, &expirations, sizeof expirations) > 0 || errno == EAGAIN);
    const auto now = monotonic::now();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
        operation& late = *deadlines_.begin()->second;
        deadlines_.erase(deadlines_.begin());
        if (!late.is_over) {
            blocks->cancel(late);
        }
    }
    set_timer();
}

inline std::int64_t scheduler::read(connection& one, const request& wanted) {
    operation read{&one, wanted.block, 0, 0, false};
    const auto deadline = std::pair(monotonic::now() + time_allowed, &read);
    blocks->start(read);
    if (wanted.what == kind::withdrawn) {
        blocks->cancel(read);
    } else if (wanted.what == kind::with_deadline) {
        deadlines_.insert(deadline);
        if (deadlines_.begin()->second == &read) {
            set_timer();
        }
    }
    while (!read.is_over) {
        one.park();
    }
    deadlines_.erase(deadline);
    read.result == -ECANCELED ? cancelled++ : reads++;
    return read.result;
}

#endif
