// A fiber: a stack of its own, and the place where it goes on (swapcontext(3)). For fibers.cpp and fibers_threads.cpp.
//
// One thread at a time enters a fiber, each time any. Code that runs in a fiber that moves between threads must keep
// nothing of a thread's across park: compilers remember the addresses of thread-local variables, errno's too.
#ifndef FIBER_HPP
#define FIBER_HPP

#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

#include "blocks.hpp"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define FIBER_TSAN
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define FIBER_ASAN
#endif
#ifdef __SANITIZE_THREAD__
#define FIBER_TSAN
#endif
#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(from, to) 0
#define VALGRIND_STACK_DEREGISTER(id) (static_cast<void>(id))
#endif

constexpr std::size_t stack_size = 64 << 10;

// Says what passes from one thread to another through code that ThreadSanitizer does not see.
inline void pass_on([[maybe_unused]] void* what) {
#ifdef FIBER_TSAN
    __tsan_release(what);
#endif
}
inline void take_over([[maybe_unused]] void* what) {
#ifdef FIBER_TSAN
    __tsan_acquire(what);
#endif
}

class fiber {
public:
    fiber();
    fiber(const fiber&) = delete;
    fiber& operator=(const fiber&) = delete;
    virtual ~fiber();

    // For threads: runs the fiber until it parks or is over.
    void enter();
    // For the fiber: returns when it is entered again.
    void park();
    bool is_over() const { return is_over_; }

protected:
    // What the fiber does.
    virtual void run() = 0;

private:
    void* stack_;
    unsigned stack_id_;
    ucontext_t here_{}, thread_{};
    bool is_over_ = false;
    // The sanitizers': the fiber's, and those of the thread that has entered it.
    [[maybe_unused]] void *fake_stack_ = nullptr, *state_ = nullptr, *thread_state_ = nullptr;
    [[maybe_unused]] const void* thread_stack_ = nullptr;
    [[maybe_unused]] std::size_t thread_stack_size_ = 0;

    static void entry(unsigned low, unsigned high);
    void leave();
    void arrived();
};

inline fiber::fiber() : stack_(mmap(nullptr, stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT(stack_ != MAP_FAILED && getcontext(&here_) == 0);
    stack_id_ = VALGRIND_STACK_REGISTER(stack_, static_cast<std::byte*>(stack_) + stack_size);
    here_.uc_stack.ss_sp = stack_;
    here_.uc_stack.ss_size = stack_size;
    const std::uint64_t self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes on nothing longer than int
    makecontext(&here_, reinterpret_cast<void (*)()>(entry), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32U));
#ifdef FIBER_TSAN
    state_ = __tsan_create_fiber(0);
#endif
}

inline fiber::~fiber() {
#ifdef FIBER_TSAN
    __tsan_destroy_fiber(state_);
#endif
    VALGRIND_STACK_DEREGISTER(stack_id_);
    munmap(stack_, stack_size);
}

inline void fiber::entry(unsigned low, unsigned high) {
    auto& self = *reinterpret_cast<fiber*>(static_cast<std::uintptr_t>(std::uint64_t{high} << 32U | low));
    self.arrived();
    self.run();
    self.is_over_ = true;
    self.leave();
}

inline void fiber::arrived() {
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(fake_stack_, &thread_stack_, &thread_stack_size_);
#endif
}

inline void fiber::enter() {
#ifdef FIBER_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack_, stack_size);
#endif
#ifdef FIBER_TSAN
    thread_state_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(state_, 0);
#endif
    EXPECT(swapcontext(&thread_, &here_) == 0);
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

inline void fiber::leave() {
#ifdef FIBER_ASAN
    // A fiber that is over gives up its fake stack.
    __sanitizer_start_switch_fiber(is_over_ ? nullptr : &fake_stack_, thread_stack_, thread_stack_size_);
#endif
#ifdef FIBER_TSAN
    __tsan_switch_to_fiber(thread_state_, 0);
#endif
    EXPECT(swapcontext(&here_, &thread_) == 0);
}

inline void fiber::park() {
    leave();
    arrived();
}

#endif
