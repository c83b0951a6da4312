#pragma once

// Fibers: functions that take turns on one thread, each with a stack of its own. The threads of
// a block run as such, so that a kernel body reads as ordinary CUDA on the host too.

#include <cstddef>
#include <functional>
#include <memory>

namespace posenc::test {

class Fibers {
 public:
  Fibers();
  ~Fibers();
  Fibers(const Fibers&) = delete;

  /// Prepares `count` fibers that run `body(index)` from its start.
  void reset(int count, std::function<void(int)> body);

  /// Runs fiber `index` until it yields or returns.
  void resume(int index);

  /// From within a fiber: back to the caller of resume.
  void yield();

  bool finished(int index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace posenc::test
