// A scheduler of fibers on one thread: sockets, deadlines with one timer, and a disk, in one epoll. Each fiber has a
// stack and switches with swapcontext(3). For fibers.cpp.
#ifndef FIBERS_HPP
#define FIBERS_HPP

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "ringfile.hpp"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBERS_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define FIBERS_ASAN
#endif
#ifdef FIBERS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(from, to) 0
#define VALGRIND_STACK_DEREGISTER(id) (static_cast<void>(id))
#endif

constexpr std::size_t connections = 512, block_size = 4096, words = block_size / sizeof(std::uint64_t);
constexpr std::size_t stack_size = 64 << 10;
constexpr auto time_allowed = std::chrono::microseconds(200);
using monotonic = std::chrono::steady_clock;

#define EXPECT(truth) expect(truth, #truth, __LINE__)

inline void expect(bool truth, const char* what, int line) {
    if (!truth) {
        std::fprintf(stderr, "fibers:%d: check failed: %s (errno %d, last error: %s)\n", line, what, errno,
                     ringfile_last_error());
        std::_Exit(EXIT_FAILURE);
    }
}

enum class kind : std::uint32_t { plain, with_deadline, withdrawn };

struct request {
    std::uint64_t block;
    kind what;
    std::uint32_t unused;
};

struct fiber {
    ucontext_t context;
    std::byte* stack;
    unsigned stack_id;
    void* fake_stack;  // AddressSanitizer's
    int socket;
    std::byte* block;
    void (*run)(fiber&);
    bool is_ready, is_over;
};

struct operation {
    fiber* owner;  // the block goes to its memory
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
    void start(int socket, std::byte* block, void (*run)(fiber&));
    void run();
    void make_ready(fiber& one);
    // For fibers: lets the others run until something makes this one ready.
    void park(fiber& one) { leave(one, &one.fake_stack); }
    std::int64_t read(fiber& one, const request& wanted);

private:
    enum : std::uint64_t { from_disk, from_timer };  // anything above is a fiber
    std::byte* stacks_;
    int loop_, timer_;
    std::vector<std::unique_ptr<fiber>> fibers_;
    std::deque<fiber*> ready_;
    std::set<std::pair<monotonic::time_point, operation*>> deadlines_;
    std::size_t alive_ = 0;
    ucontext_t context_{};
    [[maybe_unused]] const void* thread_stack_ = nullptr;  // AddressSanitizer's
    [[maybe_unused]] std::size_t thread_stack_size_ = 0;

    static void entry();
    void add(int descriptor, std::uint32_t events, std::uint64_t source) const;
    void enter(fiber& one);
    void leave(fiber& one, void** fake_stack);
    void arrived(fiber& one);
    void sleep();
    void set_timer() const;
    void cancel_late();
};

inline scheduler* self;  // the thread's
inline fiber* of_entry;  // the fiber that is entered for the first time

inline scheduler::scheduler()
    : loop_(epoll_create1(EPOLL_CLOEXEC)), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    void* mapped = mmap(nullptr, connections * stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(loop_ >= 0 && timer_ >= 0 && mapped != MAP_FAILED);
    stacks_ = static_cast<std::byte*>(mapped);
    self = this;
}

inline scheduler::~scheduler() {
    for (const auto& one : fibers_) {
        VALGRIND_STACK_DEREGISTER(one->stack_id);
        close(one->socket);
    }
    munmap(stacks_, connections * stack_size);
    close(timer_);
    close(loop_);
}

inline void scheduler::add(int descriptor, std::uint32_t events, std::uint64_t source) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = source;
    EXPECT(epoll_ctl(loop_, EPOLL_CTL_ADD, descriptor, &event) == 0);
}

inline void scheduler::start(int socket, std::byte* block, void (*run)(fiber&)) {
    EXPECT(fibers_.size() < connections);
    auto one = std::make_unique<fiber>();
    one->stack = stacks_ + fibers_.size() * stack_size;
    one->stack_id = VALGRIND_STACK_REGISTER(one->stack, one->stack + stack_size);
    one->socket = socket;
    one->block = block;
    one->run = run;
    EXPECT(getcontext(&one->context) == 0);
    one->context.uc_stack.ss_sp = one->stack;
    one->context.uc_stack.ss_size = stack_size;
    makecontext(&one->context, entry, 0);
    // Edge-triggered: a fiber parks only after its call returned EAGAIN.
    add(socket, EPOLLIN | EPOLLOUT | EPOLLET, reinterpret_cast<std::uintptr_t>(one.get()));
    make_ready(*one);
    fibers_.push_back(std::move(one));
    alive_++;
}

inline void scheduler::entry() {
    fiber& one = *of_entry;
    self->arrived(one);
    one.run(one);
    one.is_over = true;
    self->alive_--;
    self->leave(one, nullptr);
}

inline void scheduler::arrived([[maybe_unused]] fiber& one) {
#ifdef FIBERS_ASAN
    __sanitizer_finish_switch_fiber(one.fake_stack, &thread_stack_, &thread_stack_size_);
#endif
}

inline void scheduler::enter(fiber& one) {
    of_entry = &one;
#ifdef FIBERS_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, one.stack, stack_size);
#endif
    EXPECT(swapcontext(&context_, &one.context) == 0);
#ifdef FIBERS_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

inline void scheduler::leave(fiber& one, [[maybe_unused]] void** fake_stack) {
#ifdef FIBERS_ASAN
    __sanitizer_start_switch_fiber(fake_stack, thread_stack_, thread_stack_size_);
#endif
    EXPECT(swapcontext(&one.context, &context_) == 0);
    arrived(one);
}

inline void scheduler::make_ready(fiber& one) {
    if (!one.is_ready && !one.is_over) {
        one.is_ready = true;
        ready_.push_back(&one);
    }
}

inline void scheduler::run() {
    add(timer_, EPOLLIN, from_timer);
    add(blocks->descriptor(), EPOLLIN, from_disk);
    for (;;) {
        for (std::size_t turn = ready_.size(); turn > 0; turn--) {
            fiber& one = *ready_.front();
            ready_.pop_front();
            one.is_ready = false;
            enter(one);
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
            make_ready(*reinterpret_cast<fiber*>(static_cast<std::uintptr_t>(source)));
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

inline std::int64_t scheduler::read(fiber& one, const request& wanted) {
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
        park(one);
    }
    deadlines_.erase(deadline);
    read.result == -ECANCELED ? cancelled++ : reads++;
    return read.result;
}

#endif
