#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <posenc/attention/attention_cpu.h>
#include <posenc/attention/attention_setup.h>
#include <posenc/attention/share_tasks.h>
#include <posenc/core/checks.h>

#include <atomic>
#include <limits>

namespace posenc::attention {
namespace {

struct SharedCounts {
  std::atomic<int64_t> computed{0}, total{0};

  void add_to(BlockCounts* counts) const {
    if (counts != nullptr) {
      counts->computed += computed;
      counts->total += total;
    }
  }
};

/// Few query rows: one task is a stretch of the keys of one pair.
void forward_few(Setup& s, const AttentionArgs& args, SharedCounts& counts) {
  AttentionParams& p = s.params;
  if (args.key_norms.has_value()) {
    const at::Tensor norms = args.key_norms->to(at::kDouble).contiguous();
    const double* given = norms.const_data_ptr<double>();
    for (int64_t i = 0; i < s.pairs * p.key_blocks; ++i) {
      p.stats.norm[i] = given[i] >= 0 ? given[i] : std::numeric_limits<double>::infinity();
    }
    for (int64_t pair = 0; pair < s.pairs; ++pair) {
      s.accumulate_norms(pair);
    }
    p.keys_known = true;
  }
  // Long keys of few pairs are cut so that there is work for several threads. By shape alone:
  // results must not depend on the number of threads.
  constexpr int64_t kPartBlocks = 64, kPairsEnough = 8;
  const int64_t parts = s.pairs >= kPairsEnough ? 1
                                                : std::min(divide_up(p.key_blocks, kPartBlocks),
                                                           divide_up(2 * kPairsEnough, s.pairs));
  const int64_t rows = p.group * p.q_len, part_bytes = rows * (2 + p.v_dim) * s.element;
  at::Tensor partials = at::empty({s.pairs * parts * part_bytes}, at::kByte);
  char* const partial = static_cast<char*>(partials.mutable_data_ptr());
  const double work = static_cast<double>(s.pairs) * rows * p.k_len * p.head_dim;
  share_tasks(s.pairs * parts, work, s.kernels->few_scratch(p), [&](int64_t task, void* scratch) {
    const int64_t pair = task / parts, part = task % parts;
    std::vector<Visit> visits;
    const int64_t count =
        make_visits(p, pair, query_range(p, pair / p.kv_heads, Tile{0, p.group, 0, p.q_len}),
                    p.keys_known, visits);
    const int64_t begin = count * part / parts, end = count * (part + 1) / parts;
    const int64_t seed = part > 0 && count > 0 ? visits[0].block : -1;
    counts.computed += s.kernels->few_rows(p, pair, visits.data() + begin, end - begin, seed,
                                           partial + (pair * parts + part) * part_bytes, scratch);
    counts.total += end - begin;
  });
  for (int64_t pair = 0; pair < s.pairs; ++pair) {
    s.kernels->merge_rows(p, pair, partial + pair * parts * part_bytes, parts);
  }
}

/// Many query rows: keys are scanned and copied pair by pair, as many as a phase holds, then the
/// tiles go over them.
void forward_tiles(Setup& s, bool k_in_place, SharedCounts& counts) {
  AttentionParams& p = s.params;
  p.k_in_place = k_in_place;
  const int64_t k_blocks = k_in_place ? 1 : p.key_blocks;
  const int64_t k_element = p.gemm_bf16 != nullptr ? 2 : s.element;
  const int64_t k_bytes = divide_up(k_blocks * kKeyBlock * p.head_dim * k_element, 64) * 64;
  const int64_t v_bytes = p.key_blocks * kKeyBlock * p.v_dim * s.element;
  const int64_t phase = std::clamp<int64_t>(kPhaseBytes / (k_bytes + v_bytes), 1, s.pairs);
  at::Tensor packed = at::empty({phase * (k_bytes + v_bytes)}, at::kByte);
  p.packed_k = packed.mutable_data_ptr();
  p.packed_v = static_cast<char*>(p.packed_k) + phase * k_bytes;

  const Tiling tiling = Tiling::of(p);
  const int64_t scratch_bytes = s.kernels->forward_scratch(p);
  const double scan_work = static_cast<double>(p.k_len) * (p.head_dim + p.v_dim);
  const double tile_work = scan_work * p.group * p.q_len;
  for (int64_t first = 0; first < s.pairs; first += phase) {
    const int64_t pairs = std::min(phase, s.pairs - first);
    p.first_pair = first;
    share_tasks(pairs * p.key_blocks, 8 * scan_work * pairs, scratch_bytes,
                [&](int64_t task, void* scratch) {
                  s.kernels->scan_keys(p, first + task / p.key_blocks, task % p.key_blocks,
                                       scratch);
                });
    for (int64_t pair = first; pair < first + pairs; ++pair) {
      s.accumulate_norms(pair);
    }
    share_tasks(
        pairs * tiling.count, tile_work * pairs, scratch_bytes, [&](int64_t task, void* scratch) {
          // From the last tile down: under a causal mask those are the long ones.
          const int64_t pair = first + task / tiling.count;
          const Tile tile = tiling.at(tiling.count - 1 - task % tiling.count);
          thread_local std::vector<Visit> visits;
          const int64_t count =
              make_visits(p, pair, query_range(p, pair / p.kv_heads, tile), true, visits);
          counts.computed += s.kernels->forward_tile(p, pair, tile, visits.data(), count, scratch);
          counts.total += count;
        });
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_forward_cpu(const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const at::Tensor& slopes,
                                                         const AttentionArgs& args,
                                                         BlockCounts* counts) {
  at::Tensor out = empty_output(q, v), lse = empty_lse(q);
  if (fill_without_keys(k, out, lse)) {
    return {out, lse};
  }
  Setup s(q, k, v, slopes, args);
  AttentionParams& p = s.params;
  p.out = out.mutable_data_ptr();
  p.out_strides = strides_of(out);
  p.lse = lse.mutable_data_ptr();
  SharedCounts shared;
  if (p.group * p.q_len <= kFewRows) {
    forward_few(s, args, shared);
  } else {
    const bool computes_in_k =
        q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble || p.gemm_bf16 != nullptr;
    forward_tiles(s, computes_in_k && p.k_strides.last == 1 && p.k_strides.row >= p.head_dim,
                  shared);
  }
  shared.add_to(counts);
  return {out, lse};
}

at::Tensor key_norms_cpu(const at::Tensor& k, const at::Tensor& v) {
  if (k.size(2) == 0) {
    return at::empty({k.size(0), k.size(1), 0},
                     k.options().dtype(core::compute_dtype(k.scalar_type())));
  }
  AttentionArgs args;
  const at::Tensor none = at::zeros({k.size(1)}, at::kDouble);
  Setup s(k, k, v, none, args);
  const AttentionParams& p = s.params;
  const double work = 8.0 * static_cast<double>(s.pairs) * p.k_len * (p.head_dim + p.v_dim);
  share_tasks(s.pairs * p.key_blocks, work, s.kernels->forward_scratch(p),
              [&](int64_t task, void* scratch) {
                s.kernels->scan_keys(p, task / p.key_blocks, task % p.key_blocks, scratch);
              });
  at::Tensor norms = at::empty({p.batch, p.kv_heads, p.key_blocks},
                               k.options().dtype(core::compute_dtype(k.scalar_type())));
  for (int64_t i = 0; i < norms.numel(); ++i) {
    const double norm = p.stats.norm[i];
    if (norms.scalar_type() == at::kDouble) {
      norms.mutable_data_ptr<double>()[i] = norm;
    } else {
      // To float and up: a bound must not shrink.
      norms.mutable_data_ptr<float>()[i] =
          std::nextafter(static_cast<float>(norm), std::numeric_limits<float>::infinity());
    }
  }
  return norms;
}

}  // namespace posenc::attention
