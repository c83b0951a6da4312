#pragma once

// Threads that work on one row together: a warp or a whole block (see gpu_context.h).

#include <posenc/core/gpu_context.h>

namespace posenc::core {

template <class T>
POSENC_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}

/// Threads of a block that has `work` to do for each: whole warps, `most` at most.
constexpr int threads_for(int64_t work, int most) {
  return work >= most ? most : work <= 32 ? 32 : static_cast<int>(ceil_div(work, 32)) * 32;
}

/// Blocks in one line, also where there are more than the first axis takes.
inline GridShape line_of_blocks(int64_t blocks) {
  GridShape grid;
  grid.x = min_of(blocks, kMaxGridX);
  grid.y = grid.x == 0 ? 0 : ceil_div(blocks, grid.x);
  return grid;
}

/// The block's place in that line; the last ones may be beyond its end.
template <class Ctx>
POSENC_HD int64_t linear_block(const Ctx& gpu) {
  return int64_t{gpu.block(1)} * gpu.blocks(0) + gpu.block(0);
}

/// Shared memory that a team of a whole block needs, at offset 0.
inline constexpr int64_t kTeamBytes = 2 * 32 * sizeof(double);

/// Reductions in a fixed order, whose result is the same number in every thread. One `max` and one
/// `sum` for each team: they have a piece of shared memory each. Every thread takes part.
template <bool kWholeBlock, class Ctx>
class Team {
 public:
  POSENC_HD explicit Team(const Ctx& gpu) : gpu_(gpu) {}

  POSENC_HD int rank() const { return kWholeBlock ? gpu_.thread() : gpu_.lane(); }
  POSENC_HD int size() const { return kWholeBlock ? gpu_.threads() : 32; }

  /// The largest; values are not NaN.
  template <class C>
  POSENC_HD C max(C value) const {
    return reduce(value, 0, [](C a, C b) { return a < b ? b : a; });
  }

  template <class C>
  POSENC_HD C sum(C value) const {
    return reduce(value, 32 * sizeof(double), [](C a, C b) { return a + b; });
  }

 private:
  template <class C, class F>
  POSENC_HD C reduce(C value, int64_t shared_at, const F& join) const {
    for (int mask = 16; mask > 0; mask /= 2) {
      value = join(value, gpu_.shuffle_xor(value, mask));
    }
    if constexpr (kWholeBlock) {
      C* of_warp = gpu_.template shared<C>(shared_at);
      if (gpu_.lane() == 0) {
        of_warp[gpu_.warp()] = value;
      }
      gpu_.sync();
      value = of_warp[0];
      for (int w = 1; w < gpu_.threads() / 32; ++w) {
        value = join(value, of_warp[w]);
      }
    }
    return value;
  }

  const Ctx& gpu_;
};

}  // namespace posenc::core
