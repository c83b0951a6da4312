#include "support/fibers.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <stdexcept>
#include <vector>

// A switch by hand where the registers are known; ucontext, which asks the kernel each time,
// elsewhere.
#if defined(__x86_64__) && !defined(__CET__)
#define POSENC_FAST_FIBERS 1
#else
#define POSENC_FAST_FIBERS 0
#endif

#if POSENC_FAST_FIBERS
extern "C" void posenc_switch_stack(void** from, void* to);
asm(R"(
.text
.type posenc_switch_stack, @function
posenc_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size posenc_switch_stack, .-posenc_switch_stack
)");
#endif

namespace posenc::test {
namespace {

constexpr size_t kStackBytes = 256 * 1024;  // touched pages only are memory

}  // namespace

struct Fibers::State {
  struct Fiber {
    void* stack = nullptr;
    void* pointer = nullptr;
    ucontext_t context;
    bool done = true;
  };
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::function<void(int)> body;
  void* caller = nullptr;
  ucontext_t caller_context;
  int current = -1;

  void run() {
    body(current);  // does not throw: see HostGpu
    fibers[current]->done = true;
    leave();
  }

  void leave() {
    Fiber& fiber = *fibers[current];
#if POSENC_FAST_FIBERS
    posenc_switch_stack(&fiber.pointer, caller);
#else
    swapcontext(&fiber.context, &caller_context);
#endif
  }

  static inline State* starting = nullptr;
  static void entry() { starting->run(); }
};

Fibers::Fibers() : state_(std::make_unique<State>()) {}

Fibers::~Fibers() {
  for (const auto& fiber : state_->fibers) {
    munmap(fiber->stack, kStackBytes);
  }
}

void Fibers::reset(int count, std::function<void(int)> body) {
  state_->body = std::move(body);
  while (static_cast<int>(state_->fibers.size()) < count) {
    auto fiber = std::make_unique<State::Fiber>();
    fiber->stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->stack == MAP_FAILED) {
      throw std::runtime_error("fibers: no memory for a stack");
    }
    state_->fibers.push_back(std::move(fiber));
  }
  for (int i = 0; i < count; ++i) {
    State::Fiber& fiber = *state_->fibers[i];
    fiber.done = false;
#if POSENC_FAST_FIBERS
    // As if the fiber had called the switch: six registers, the address to return to, and above
    // it a place for a caller, which leaves the stack aligned as at a function's entry.
    auto** top = reinterpret_cast<void**>(static_cast<char*>(fiber.stack) + kStackBytes) - 1;
    top[0] = nullptr;
    *--top = reinterpret_cast<void*>(&State::entry);
    for (int r = 0; r < 6; ++r) {
      *--top = nullptr;
    }
    fiber.pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &State::entry, 0);
#endif
  }
}

void Fibers::resume(int index) {
  State::Fiber& fiber = *state_->fibers[index];
  state_->current = index;
  State::starting = state_.get();
#if POSENC_FAST_FIBERS
  posenc_switch_stack(&state_->caller, fiber.pointer);
#else
  swapcontext(&state_->caller_context, &fiber.context);
#endif
}

void Fibers::yield() { state_->leave(); }

bool Fibers::finished(int index) const { return state_->fibers[index]->done; }

}  // namespace posenc::test
