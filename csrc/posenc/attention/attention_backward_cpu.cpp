#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <posenc/attention/attention_cpu.h>
#include <posenc/attention/attention_setup.h>
#include <posenc/attention/share_tasks.h>
#include <posenc/core/checks.h>

#include <atomic>
#include <limits>
#include <thread>

namespace posenc::attention {
namespace {

/// Keeps additions to dq in order. Every task of a pair passes all its tiles in turn, and passes a
/// tile only after the task before it has: so each tile gets its parts in the order of the keys,
/// whatever the threads do, and the sum is the same each time. Tasks are handed out in that order,
/// so the one waited for is running or done.
class Turns {
 public:
  Turns(int64_t pairs, int64_t tasks) : tasks_(tasks), passed_(pairs * tasks) {}

  /// False where a task has failed and the one waited for may never come.
  bool wait(int64_t pair, int64_t task, int64_t tile) {
    if (task == 0) {
      return true;
    }
    const std::atomic<int64_t>& before = passed_[pair * tasks_ + task - 1];
    while (before.load(std::memory_order_acquire) <= tile) {
      if (failed_.load(std::memory_order_relaxed)) {
        return false;
      }
      std::this_thread::yield();
    }
    return true;
  }

  void pass(int64_t pair, int64_t task, int64_t tile) {
    passed_[pair * tasks_ + task].store(tile + 1, std::memory_order_release);
  }

  void fail() { failed_ = true; }

 private:
  int64_t tasks_;
  std::vector<std::atomic<int64_t>> passed_;
  std::atomic<bool> failed_{false};
};

/// What a tile may see, for the count of blocks.
int64_t possible_blocks(const AttentionParams& p, int64_t batch, const TileStats& tile,
                        int64_t first) {
  int64_t count = 0;
  for (int64_t block = first; block < std::min(first + kTaskBlocks, p.key_blocks); ++block) {
    count += !p.causal || block_first(p, batch, block) <= tile.last;
  }
  return count;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
    const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
    const at::Tensor& slopes, const AttentionArgs& args, bool want_slopes, BlockCounts* counts) {
  const at::ScalarType dtype = core::compute_dtype(q.scalar_type());
  at::Tensor grad_slopes = want_slopes ? at::zeros_like(slopes) : at::Tensor();
  if (lse.numel() == 0 || k.size(2) == 0) {
    return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v), grad_slopes};
  }
  Setup s(q, k, v, slopes, args);
  AttentionParams& p = s.params;
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  p.grad_k = dk.mutable_data_ptr();
  p.grad_k_strides = strides_of(dk);
  p.grad_v = dv.mutable_data_ptr();
  p.grad_v_strides = strides_of(dv);
  p.grad_out = grad_out.const_data_ptr();
  p.grad_out_strides = strides_of(grad_out);
  p.out_in = out.const_data_ptr();
  p.out_in_strides = strides_of(out);
  const at::Tensor lse_in = lse.to(dtype).contiguous();
  p.lse_in = lse_in.const_data_ptr();
  at::Tensor dlse;
  if (grad_lse.has_value() && grad_lse->defined()) {
    dlse = grad_lse->to(dtype).contiguous();
    p.grad_lse = dlse.const_data_ptr();
  }

  const Tiling tiling = Tiling::of(p);
  const int64_t tasks = divide_up(p.key_blocks, kTaskBlocks);
  at::Tensor delta = at::empty_like(lse_in);
  std::vector<double> reach(lse_in.numel());
  std::vector<TileStats> tile_stats(s.pairs * tiling.count);
  std::vector<double> slope_parts(want_slopes ? p.batch * p.heads * tasks : 0);
  p.delta = delta.mutable_data_ptr();
  p.reach = reach.data();
  p.tile_stats = tile_stats.data();
  p.grad_slope = want_slopes ? slope_parts.data() : nullptr;

  // Half types add up dq in float32, one phase of pairs after another.
  const bool widened = dq.scalar_type() != dtype;
  const int64_t pair_rows = p.group * p.q_len;
  const int64_t phase =
      widened ? std::clamp<int64_t>(kPhaseBytes / (pair_rows * p.head_dim * s.element), 1, s.pairs)
              : s.pairs;
  at::Tensor wide;
  if (widened) {
    wide = at::empty({phase * pair_rows, p.head_dim}, q.options().dtype(dtype));
  } else {
    dq.zero_();
  }

  const int64_t scratch_bytes = s.kernels->backward_scratch(p);
  const double row_work = static_cast<double>(s.pairs) * pair_rows * (p.head_dim + p.v_dim);
  const double key_work = static_cast<double>(s.pairs) * p.k_len * (p.head_dim + p.v_dim);
  share_tasks(s.pairs * p.key_blocks, 8 * key_work, scratch_bytes,
              [&](int64_t task, void* scratch) {
                s.kernels->scan_keys(p, task / p.key_blocks, task % p.key_blocks, scratch);
              });
  for (int64_t pair = 0; pair < s.pairs; ++pair) {
    s.accumulate_norms(pair);
  }
  share_tasks(s.pairs * tiling.count, 8 * row_work, scratch_bytes,
              [&](int64_t task, void* scratch) {
                s.kernels->backward_rows(p, task / tiling.count, task % tiling.count, scratch);
              });

  std::atomic<int64_t> computed{0}, total{0};
  for (int64_t first = 0; first < s.pairs; first += phase) {
    const int64_t pairs = std::min(phase, s.pairs - first);
    if (widened) {
      wide.zero_();
      // Addressed with absolute batch and head: (batch, head, row) lies at ((batch·heads + head) −
      // first·group)·q_len + row.
      float* base = static_cast<float*>(wide.mutable_data_ptr());
      p.grad_q_strides = {p.heads * p.q_len * p.head_dim, p.q_len * p.head_dim, p.head_dim, 1};
      p.grad_q = base;
      p.grad_q_shift = first * pair_rows * p.head_dim;
    } else {
      p.grad_q = dq.mutable_data_ptr();
      p.grad_q_strides = strides_of(dq);
      p.grad_q_shift = 0;
    }
    Turns turns(pairs, tasks);
    const double work = 5.0 / 2 * key_work / s.pairs * pairs * pair_rows;
    share_tasks(pairs * tasks, work, scratch_bytes, [&](int64_t number, void* scratch) {
      const int64_t task = number / pairs, local = number % pairs, pair = first + local;
      const int64_t block = task * kTaskBlocks;
      try {
        s.kernels->backward_begin(p, pair, block, scratch);
        for (int64_t tile = 0; tile < tiling.count; ++tile) {
          const int64_t blocks = s.kernels->backward_tile(p, pair, block, tile, scratch);
          if (!turns.wait(local, task, tile)) {
            return;
          }
          if (blocks > 0) {
            s.kernels->backward_add_dq(p, pair, tile, scratch);
          }
          turns.pass(local, task, tile);
          computed += blocks;
          if (counts != nullptr) {
            total += possible_blocks(p, pair / p.kv_heads, tile_stats[pair * tiling.count + tile],
                                     block);
          }
        }
        s.kernels->backward_end(p, pair, block, scratch);
      } catch (...) {
        turns.fail();
        throw;
      }
    });
    if (widened) {
      // Pairs are (batch, kv head) in order, so their rows are those of (batch·heads) in order.
      const at::Tensor rows =
          wide.narrow(0, 0, pairs * pair_rows).view({pairs * p.group, p.q_len, p.head_dim});
      for (int64_t n = 0; n < pairs * p.group; ++n) {
        const int64_t head = first * p.group + n;
        dq.select(0, head / p.heads).select(0, head % p.heads).copy_(rows.select(0, n));
      }
    }
  }
  if (counts != nullptr) {
    counts->computed += computed;
    counts->total += total;
  }
  if (want_slopes) {
    double* sum = grad_slopes.mutable_data_ptr<double>();
    for (int64_t head = 0; head < p.batch * p.heads; ++head) {
      for (int64_t task = 0; task < tasks; ++task) {
        sum[slopes.dim() == 2 ? head : head % p.heads] += slope_parts[head * tasks + task];
      }
    }
  }
  return {dq, dk, dv, grad_slopes};
}

}  // namespace posenc::attention
