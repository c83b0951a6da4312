#include <posenc/attention/attention_setup.h>

#include <ATen/ops/empty.h>
#include <posenc/core/checks.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace posenc::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor as_positions(const std::optional<at::Tensor>& positions) {
  return positions.has_value() ? positions->to(at::kDouble).contiguous() : at::Tensor();
}

}  // namespace

Strides strides_of(const at::Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2), t.stride(3)};
}

Setup::Setup(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
             const at::Tensor& slopes_in, const AttentionArgs& args)
    : slopes(slopes_in) {
  AttentionParams& p = params;
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.kv_heads = k.size(1);
  p.group = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads;
  p.q_len = q.size(2);
  p.k_len = k.size(2);
  p.head_dim = q.size(3);
  p.v_dim = v.size(3);
  p.key_blocks = divide_up(p.k_len, kKeyBlock);
  pairs = p.batch * p.kv_heads;
  element = q.scalar_type() == at::kDouble ? 8 : 4;
  kernels = &attention_kernels().of(q.scalar_type());

  p.q = q.const_data_ptr();
  p.k = k.const_data_ptr();
  p.v = v.const_data_ptr();
  p.q_strides = strides_of(q);
  p.k_strides = strides_of(k);
  p.v_strides = strides_of(v);
  if (args.mask.has_value()) {
    mask = args.mask->expand({p.batch, p.heads, p.q_len, p.k_len});  // strides 0, no memory
    p.mask = mask.const_data_ptr<bool>();
    p.mask_strides = strides_of(mask);
  }
  p.causal = args.is_causal;
  p.scale = args.scale_of(q);
  p.offset = static_cast<double>(args.offset_of(q, k).expect_int());
  p.bias = {slopes.const_data_ptr<double>(), slopes.dim() == 2 ? p.heads : 0};
  p.log_epsilon = log_epsilon(q.scalar_type());
  p.gemm_f32 = tile_gemm<float>();
  p.gemm_f64 = tile_gemm<double>();
  // Pairs of channels are multiplied at once.
  p.gemm_bf16 = kernels->takes_bf16_tiles && p.head_dim % 2 == 0 ? tile_gemm_bf16() : nullptr;

  q_positions = as_positions(args.q_positions);
  if (q_positions.defined()) {
    p.q_pos = q_positions.const_data_ptr<double>();
    p.q_pos_batch = q_positions.dim() == 2 && q_positions.size(0) > 1 ? p.q_len : 0;
  }
  k_positions = as_positions(args.k_positions);
  if (k_positions.defined()) {
    p.k_pos = k_positions.const_data_ptr<double>();
    const int64_t rows = k_positions.dim() == 2 ? k_positions.size(0) : 1;
    p.k_pos_batch = rows > 1 ? p.k_len : 0;
    p.k_range_batch = rows > 1 ? p.key_blocks : 0;
    position_ranges.resize(2 * rows * p.key_blocks);
    double *low = position_ranges.data(), *high = low + rows * p.key_blocks;
    for (int64_t block = 0; block < rows * p.key_blocks; ++block) {
      const int64_t row = block / p.key_blocks, first = block % p.key_blocks * kKeyBlock;
      low[block] = kInfinity;
      high[block] = -kInfinity;
      for (int64_t j = first; j < std::min(first + kKeyBlock, p.k_len); ++j) {
        low[block] = std::min(low[block], p.k_pos[row * p.k_len + j]);
        high[block] = std::max(high[block], p.k_pos[row * p.k_len + j]);
      }
    }
    p.k_pos_min = low;
    p.k_pos_max = high;
  }

  stats.resize(3 * pairs * p.key_blocks, kInfinity);
  p.stats.norm = stats.data();
  p.stats.left_max = p.stats.norm + pairs * p.key_blocks;
  p.stats.right_max = p.stats.left_max + pairs * p.key_blocks;
}

void Setup::accumulate_norms(int64_t pair) {
  const int64_t blocks = params.key_blocks;
  const double* norm = params.stats.norm + pair * blocks;
  double *left = params.stats.left_max + pair * blocks,
         *right = params.stats.right_max + pair * blocks;
  double most = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    left[block] = most = std::max(most, norm[block]);
  }
  most = 0;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    right[block] = most = std::max(most, norm[block]);
  }
}

PositionRange query_range(const AttentionParams& p, int64_t batch, const Tile& tile) {
  if (p.q_pos == nullptr) {
    return {query_position(p, batch, tile.query),
            query_position(p, batch, tile.query + tile.queries - 1)};
  }
  PositionRange range{kInfinity, -kInfinity};
  for (int64_t i = tile.query; i < tile.query + tile.queries; ++i) {
    const double position = query_position(p, batch, i);
    range.first = std::min(range.first, position);
    range.last = std::max(range.last, position);
  }
  return range;
}

namespace {

void visit_consecutive(const AttentionParams& p, int64_t pair, const PositionRange& queries,
                       bool norms_known, std::vector<Visit>& visits) {
  const int64_t batch = pair / p.kv_heads, blocks = p.key_blocks;
  const auto block_of = [&](double position) {
    return static_cast<int64_t>(
        std::clamp(std::floor(position / kKeyBlock), 0.0, static_cast<double>(blocks - 1)));
  };
  const auto visit = [&](int64_t block) {
    const double first = block_first(p, batch, block), last = block_last(p, batch, block);
    if (p.causal && first > queries.last) {
      return;
    }
    const int64_t index = pair * blocks + block;
    if (last < queries.first) {
      visits.push_back(
          {static_cast<int32_t>(block), -1, norms_known ? p.stats.left_max[index] : kInfinity});
    } else if (first > queries.last) {
      visits.push_back(
          {static_cast<int32_t>(block), 1, norms_known ? p.stats.right_max[index] : kInfinity});
    } else {
      visits.push_back({static_cast<int32_t>(block), 0, kInfinity});
    }
  };
  const int64_t low = block_of(queries.first), high = block_of(queries.last);
  for (int64_t block = high; block >= low; --block) {
    visit(block);
  }
  int64_t left = low - 1, right = high + 1;
  if (p.causal) {
    right = blocks;
  }
  while (left >= 0 || right < blocks) {
    const double to_left = left >= 0 ? queries.first - block_last(p, batch, left) : kInfinity;
    const double to_right =
        right < blocks ? block_first(p, batch, right) - queries.last : kInfinity;
    visit(to_left <= to_right ? left-- : right++);
  }
}

}  // namespace

int64_t make_visits(const AttentionParams& p, int64_t pair, const PositionRange& queries,
                    bool norms_known, std::vector<Visit>& visits) {
  visits.clear();
  if (p.q_pos == nullptr && p.k_pos == nullptr) {
    visit_consecutive(p, pair, queries, norms_known, visits);
    return static_cast<int64_t>(visits.size());
  }
  const int64_t batch = pair / p.kv_heads;
  std::vector<std::pair<double, int32_t>> order;
  for (int64_t block = 0; block < p.key_blocks; ++block) {
    const double first = block_first(p, batch, block), last = block_last(p, batch, block);
    if (p.causal && first > queries.last) {
      continue;
    }
    const double distance = std::max({0.0, queries.first - last, first - queries.last});
    order.emplace_back(distance, static_cast<int32_t>(block));
  }
  std::sort(order.begin(), order.end());
  for (const auto& [distance, block] : order) {
    visits.push_back({block, 0, kInfinity});
  }
  return static_cast<int64_t>(visits.size());
}

}  // namespace posenc::attention
