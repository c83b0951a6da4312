#pragma once

// From the operator's arguments to the numbers and pointers of the loops.

#include <ATen/core/Tensor.h>
#include <posenc/attention/attention_args.h>
#include <posenc/attention/attention_kernels.h>

#include <vector>

namespace posenc::attention {

/// AttentionParams, and what keeps its pointers alive.
struct Setup {
  AttentionParams params{};
  const AttentionKernels* kernels = nullptr;
  int64_t pairs = 0;    ///< (batch, kv head)
  int64_t element = 4;  ///< bytes of the compute type
  at::Tensor slopes, mask, q_positions, k_positions;
  std::vector<double> position_ranges, stats;

  /// Everything but outputs and gradients.
  Setup(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& slopes,
        const AttentionArgs& args);

  /// left_max and right_max of a pair, from its norms.
  void accumulate_norms(int64_t pair);
};

/// Strides of a (B, H, L, D) tensor.
Strides strides_of(const at::Tensor& t);

/// How much scratch all copies of a phase may take together. Beyond it the pairs are worked on in
/// several phases.
constexpr int64_t kPhaseBytes = int64_t{32} << 20;

/// The range of the query positions of a tile.
struct PositionRange {
  double first, last;
};
PositionRange query_range(const AttentionParams& p, int64_t batch, const Tile& tile);

/// The key blocks that queries in a range of positions may see, nearest first. Returns how many.
int64_t make_visits(const AttentionParams& p, int64_t pair, const PositionRange& queries,
                    bool norms_known, std::vector<Visit>& visits);

}  // namespace posenc::attention
