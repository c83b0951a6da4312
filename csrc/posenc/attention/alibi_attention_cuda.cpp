// The CUDA side of biased attention: tensors in, parameters and scratch memory for the kernels of
// alibi_attention_kernels.cu, and the registration. Nothing here waits for the device or reads from
// it.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <posenc/attention/attention_backend.h>
#include <posenc/attention/attention_kernels.h>
#include <posenc/attention/attention_launch.h>
#include <posenc/attention/attention_passes.h>
#include <posenc/core/checks.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/core/dispatch.h>

#include <cmath>

namespace posenc::attention {
namespace {

using device::Params;
using device::View;

static_assert(device::kKeys == kKeyBlock, "key_norms are per block of the operator");

View view_of(const Tensor& t) {
  View view{t.const_data_ptr(), t.stride(0), t.stride(1), t.stride(2), t.stride(3), 0};
  if (view.last != 1 && t.size(3) > 1) {
    return view;
  }
  view.last = 1;
  view.align = 16;
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  const auto fits = [&](int64_t size, int64_t stride) {
    return size <= 1 || stride * t.element_size() % view.align == 0;
  };
  while (view.align > 1 && (address % view.align != 0 || !fits(t.size(0), view.batch) ||
                            !fits(t.size(1), view.head) || !fits(t.size(2), view.row))) {
    view.align /= 2;
  }
  return view;
}

View view_of(Tensor& t) {
  (void)t.mutable_data_ptr();
  return view_of(static_cast<const Tensor&>(t));
}

/// Params, and what keeps its pointers alive until the kernels are on the stream.
struct Setup {
  Params params{};
  at::TensorOptions compute;  ///< options of the compute type
  Tensor slopes, mask, q_positions, k_positions, norms, ranges, given;

  Setup(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
        const AttentionArgs& args)
      : compute(q.options().dtype(core::compute_dtype(q.scalar_type()))), op_(op) {
    Params& p = params;
    p.dtype = core::gpu_dtype(q.scalar_type());
    p.heads = static_cast<int>(q.size(1));
    p.kv_heads = static_cast<int>(k.size(1));
    p.group = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads;
    p.head_dim = static_cast<int>(q.size(3));
    p.v_dim = static_cast<int>(v.size(3));
    p.pairs = q.size(0) * k.size(1);
    p.q_len = q.size(2);
    p.k_len = k.size(2);
    p.key_blocks = divide_up(p.k_len, kKeyBlock);
    p.slices = p.parts = 1;
    p.q = view_of(q);
    p.k = view_of(k);
    p.v = view_of(v);
    if (args.mask.has_value()) {
      mask = args.mask->expand({q.size(0), p.heads, p.q_len, p.k_len});  // strides 0, no memory
      p.mask = mask.const_data_ptr<bool>();
      p.mask_batch = mask.stride(0);
      p.mask_head = mask.stride(1);
      p.mask_row = mask.stride(2);
      p.mask_last = mask.stride(3);
    }
    p.causal = args.is_causal;
    p.scale = args.scale_of(q);
    p.offset = static_cast<double>(args.offset_of(q, k).expect_int());
    const double log_share = attention::log_epsilon(q.scalar_type());
    p.skip_log = log_share - std::log(4.0 * static_cast<double>(p.k_len));
    p.stop_log = log_share - std::log(4.0);
    p.drop_share = std::exp(log_share) / 4;

    const auto as_positions = [&](const OptionalTensor& given_positions, Tensor& kept,
                                  const double*& data, int64_t& batch, int64_t length) {
      if (given_positions.has_value()) {
        kept = given_positions->to(at::kDouble).contiguous();
        data = kept.const_data_ptr<double>();
        batch = kept.dim() == 2 && kept.size(0) > 1 ? length : 0;
      }
    };
    as_positions(args.q_positions, q_positions, p.q_pos, p.q_pos_batch, p.q_len);
    as_positions(args.k_positions, k_positions, p.k_pos, p.k_pos_batch, p.k_len);
  }

  void set_slopes(SlopeList list) {
    slopes = core::float_list_on_gpu(list, compute.dtype(at::kDouble));
    params.bias = {slopes.const_data_ptr<double>(), 0};
  }
  void set_slopes(const Tensor& given_slopes) {
    slopes = given_slopes.to(at::kDouble).contiguous();
    params.bias = {slopes.const_data_ptr<double>(), slopes.dim() == 2 ? params.heads : 0};
  }

  /// What is known of the keys before the tiles. \param norms_too else their positions alone
  void scan_keys(bool norms_too, const OptionalTensor& key_norms) {
    Params& p = params;
    const int64_t blocks = p.pairs * p.key_blocks;
    if (p.k_pos != nullptr) {
      ranges = at::empty({2, blocks}, compute.dtype(at::kDouble));
      p.k_first = ranges.mutable_data_ptr<double>();
      p.k_last = p.k_first + blocks;
    }
    if (norms_too) {
      const bool far = p.q_pos == nullptr && p.k_pos == nullptr;
      norms = at::empty({far ? 3 : 1, blocks}, compute);
      char* data = static_cast<char*>(norms.mutable_data_ptr());
      p.norm = data;
      if (far) {
        p.left_max = data + blocks * norms.element_size();
        p.right_max = data + 2 * blocks * norms.element_size();
      }
      if (key_norms.has_value()) {
        given = key_norms->to(at::kDouble).contiguous();
      }
    }
    core::check_launch(
        op_, device::launch_keys(p, given.defined() ? given.const_data_ptr<double>() : nullptr,
                                 core::current_stream()));
  }

 private:
  const char* op_;
};

/// The kernels' pairs (computed, possible), one a block of the grid.
Tensor make_counts(Params& p, const Tensor& q) {
  Tensor counts = at::zeros({device::most_blocks(p), 2}, q.options().dtype(at::kLong));
  p.counts = counts.mutable_data_ptr<int64_t>();
  return counts;
}

struct Cuda {
  template <typename Slopes>
  static Pair forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                      const AttentionArgs& args, Tensor* counts = nullptr) {
    const c10::cuda::CUDAGuard guard(q.device());
    Tensor out = empty_output(q, v), lse = empty_lse(q);
    if (fill_without_keys(k, out, lse)) {
      return {out, lse};
    }
    Setup s(kForward, q, k, v, args);
    Params& p = s.params;
    s.set_slopes(slopes);
    // With few rows a pass over the keys would cost as much as the attention: only norms that are
    // given leave blocks out.
    const bool few = p.group * p.q_len <= device::kFewRows;
    s.scan_keys(!few || args.key_norms.has_value(), args.key_norms);
    p.out = view_of(out);
    p.lse = lse.mutable_data_ptr();
    device::plan_forward(p);
    Tensor partial;
    if (p.parts > 1) {
      partial = at::empty({device::partial_size(p)}, s.compute);
      p.partial = partial.mutable_data_ptr();
    }
    if (counts != nullptr) {
      *counts = make_counts(p, q);
    }
    core::check_launch(kForward, device::launch_forward(p, core::current_stream()));
    return {out, lse};
  }

  template <typename Slopes>
  static SlopeGrads backward(const Tensor& grad_out, const OptionalTensor& grad_lse,
                             const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse_in, const Slopes& slopes, const AttentionArgs& args,
                             bool want_slopes, Tensor* counts = nullptr) {
    const c10::cuda::CUDAGuard guard(q.device());
    const auto sum_slopes = [&](const Tensor& rows) {  // (B, H, L)
      const int64_t over[2] = {-1, 0};
      return at::sum(rows, at::IntArrayRef(over, shared_by_batches(slopes) ? 2 : 1),
                     /*keepdim=*/false, at::kDouble);
    };
    if (lse_in.numel() == 0 || k.size(2) == 0) {
      return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v),
              want_slopes ? sum_slopes(at::zeros_like(lse_in)) : Tensor()};
    }
    Setup s(kBackward, q, k, v, args);
    Params& p = s.params;
    s.set_slopes(slopes);
    s.scan_keys(/*norms_too=*/true, std::nullopt);
    Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    p.grad_q = view_of(dq);
    p.grad_k = view_of(dk);
    p.grad_v = view_of(dv);
    p.grad_out = view_of(grad_out);
    p.out = view_of(out);
    const at::ScalarType dtype = core::compute_dtype(q.scalar_type());
    const Tensor lse = lse_in.to(dtype).contiguous();
    p.lse = const_cast<void*>(lse.const_data_ptr());
    Tensor dlse;
    if (grad_lse.has_value() && grad_lse->defined()) {
      dlse = grad_lse->to(dtype).contiguous();
      p.grad_lse = dlse.const_data_ptr();
    }
    device::plan_backward(p);
    const Tensor rows =
        at::empty({want_slopes ? 3 : 2, q.size(0), q.size(1), q.size(2)}, s.compute);
    char* row_data = static_cast<char*>(rows.mutable_data_ptr());
    const int64_t row_bytes = lse.numel() * rows.element_size();
    p.delta = row_data;
    p.reach = row_data + row_bytes;
    p.slope_rows = want_slopes ? row_data + 2 * row_bytes : nullptr;
    const Tensor stats = at::empty({device::stats_bytes(p)}, q.options().dtype(at::kByte));
    p.tile_stats = stats.mutable_data_ptr();
    if (counts != nullptr) {
      *counts = make_counts(p, q);
    }
    core::check_launch(kBackward, device::launch_backward(p, core::current_stream()));
    return {dq, dk, dv, want_slopes ? sum_slopes(rows.select(0, 2)) : Tensor()};
  }

  static Tensor blocks(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                       const AttentionArgs& args) {
    Tensor ahead = at::zeros({1, 2}, q.options().dtype(at::kLong)), back = ahead;
    const auto [out, lse] = forward(q, k, v, slopes, args, &ahead);
    backward(out, std::nullopt, q, k, v, out, lse, slopes, args, false, &back);
    return at::cat({at::sum(ahead, 0), at::sum(back, 0)});
  }

  static Tensor key_norms(const Tensor& k, const Tensor& v) {
    const c10::cuda::CUDAGuard guard(k.device());
    Setup s("alibi_key_norms", k, k, v, {});
    s.scan_keys(/*norms_too=*/true, std::nullopt);
    return s.norms.select(0, 0).reshape({k.size(0), k.size(1), s.params.key_blocks}).clone();
  }

 private:
  static bool shared_by_batches(SlopeList) { return true; }
  static bool shared_by_batches(const Tensor& slopes) { return slopes.dim() == 1; }
};

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) { AttentionKernel<Cuda>::register_in(m); }

}  // namespace posenc::attention
