#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <posenc/attention/tile_gemm.h>

#include <algorithm>
#include <atomic>

namespace posenc::attention {

/// Multiply-adds below which another thread costs more than it brings.
constexpr double kWorkPerThread = 5e5;

/// Runs f(task, scratch) for all tasks, in order of their numbers, handed out one by one: tasks
/// differ in cost, and this way nobody waits at the end for one who got the heavy half. A task may
/// wait for a task of a lower number: that one is done or running. `work` in multiply-adds decides
/// how many threads are worth it; at most at::get_num_threads().
template <typename F>
void share_tasks(int64_t tasks, double work, int64_t scratch_bytes, const F& f) {
  if (tasks == 0) {
    return;
  }
  const double worth = std::max(1.0, work / kWorkPerThread);
  const int64_t most = std::min<int64_t>(at::get_num_threads(), tasks);
  const int64_t threads = worth < static_cast<double>(most) ? static_cast<int64_t>(worth) : most;
  const int64_t bytes = (scratch_bytes + 63) / 64 * 64;
  at::Tensor scratch = at::empty({threads * bytes}, at::kByte);
  char* const base = static_cast<char*>(scratch.mutable_data_ptr());
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) {
    for (int64_t task = next++; task < tasks; task = next++) {
      f(task, static_cast<void*>(base + begin * bytes));
    }
    tile_gemm_release();
  });
}

}  // namespace posenc::attention
