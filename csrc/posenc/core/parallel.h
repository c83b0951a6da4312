#pragma once

#include <ATen/Parallel.h>

#include <algorithm>

namespace posenc::core {

/// Elements under which a second thread costs more than it brings; ATen's own figure.
constexpr int64_t kGrainElements = 32768;

/// Shares [0, tasks) between threads, each task being about `elements_per_task` elements of work.
/// Small inputs stay on the calling thread.
template <typename F>
void parallel_tasks(int64_t tasks, int64_t elements_per_task, const F& f) {
  at::parallel_for(
      0, tasks, std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, elements_per_task)), f);
}

}  // namespace posenc::core
