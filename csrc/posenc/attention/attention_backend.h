#pragma once

// What a backend's registration of the biased attention operators shares: the schemas' arguments,
// the checks before the backend's own code, and what is returned. A backend is a class with static
// functions
//
//   forward(q, k, v, slopes, args) -> (out, lse)
//   backward(grad_out, grad_lse, q, k, v, out, lse, slopes, args, want_slopes) -> (dq, dk, dv, dm)
//   blocks(q, k, v, slopes, args) -> counts
//   key_norms(k, v) -> norms
//
// where slopes are a SlopeList or a tensor and dm is (H) or (B, H) as they are, of any dtype.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <posenc/attention/attention_args.h>
#include <torch/library.h>

#include <tuple>

namespace posenc::attention {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalSymInt = std::optional<c10::SymInt>;
using Pair = std::tuple<Tensor, Tensor>;
using Grads = std::tuple<Tensor, Tensor, Tensor>;
using SlopeGrads = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using SlopeList = at::ArrayRef<double>;

constexpr const char* kForward = "alibi_attention";
constexpr const char* kBackward = "_alibi_attention_backward";
constexpr const char* kBlocks = "alibi_attention_blocks";

// The arguments after the slopes, in the schema's order.
#define POSENC_ATTENTION_REST                                                                     \
  const OptionalTensor &mask, bool is_causal, std::optional<double> scale, OptionalSymInt offset, \
      const OptionalTensor &q_positions, const OptionalTensor &k_positions
#define POSENC_ATTENTION_ARGS POSENC_ATTENTION_REST, const OptionalTensor& key_norms

inline AttentionArgs make_args(POSENC_ATTENTION_REST,
                               const OptionalTensor& key_norms = std::nullopt) {
  return {mask, is_causal, scale, std::move(offset), q_positions, k_positions, key_norms};
}

#define POSENC_MAKE_ARGS \
  make_args(mask, is_causal, scale, std::move(offset), q_positions, k_positions, key_norms)
#define POSENC_MAKE_BACKWARD_ARGS \
  make_args(mask, is_causal, scale, std::move(offset), q_positions, k_positions)

// Slopes come as a list or as a tensor; these make one code serve both.
inline void check_slopes_of(const char* op, const Tensor& q, SlopeList slopes) {
  check_slopes(op, q, static_cast<int64_t>(slopes.size()));
}
inline void check_slopes_of(const char* op, const Tensor& q, const Tensor& slopes) {
  check_slopes(op, q, slopes);
}

template <class Backend>
struct AttentionKernel {
  template <typename Slopes>
  static Pair run_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                          const AttentionArgs& args) {
    check_attention(kForward, q, k, v, args);
    check_slopes_of(kForward, q, slopes);
    return Backend::forward(q, k, v, slopes, args);
  }

  static Pair forward(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                      POSENC_ATTENTION_ARGS) {
    return run_forward(q, k, v, slopes, POSENC_MAKE_ARGS);
  }

  static Pair forward_tensor(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& slopes, POSENC_ATTENTION_ARGS) {
    return run_forward(q, k, v, slopes, POSENC_MAKE_ARGS);
  }

  template <typename Slopes>
  static SlopeGrads run_backward(const Tensor& grad_out, const OptionalTensor& grad_lse,
                                 const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& out, const Tensor& lse, const Slopes& slopes,
                                 const AttentionArgs& args, bool want_slopes) {
    check_attention(kBackward, q, k, v, args);
    check_slopes_of(kBackward, q, slopes);
    check_backward(kBackward, grad_out, grad_lse, q, v, out, lse);
    return Backend::backward(grad_out.to(q.scalar_type()), grad_lse, q, k, v,
                             out.to(q.scalar_type()), lse, slopes, args, want_slopes);
  }

  static Grads backward(const Tensor& grad_out, const OptionalTensor& grad_lse, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        SlopeList slopes, POSENC_ATTENTION_REST) {
    auto [dq, dk, dv, none] = run_backward(grad_out, grad_lse, q, k, v, out, lse, slopes,
                                           POSENC_MAKE_BACKWARD_ARGS, /*want_slopes=*/false);
    return {dq, dk, dv};
  }

  static SlopeGrads backward_tensor(const Tensor& grad_out, const OptionalTensor& grad_lse,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& out, const Tensor& lse, const Tensor& slopes,
                                    POSENC_ATTENTION_REST) {
    auto [dq, dk, dv, dslopes] = run_backward(grad_out, grad_lse, q, k, v, out, lse, slopes,
                                              POSENC_MAKE_BACKWARD_ARGS, /*want_slopes=*/true);
    Tensor result = at::empty_like(slopes);
    result.copy_(dslopes);
    return {dq, dk, dv, result};
  }

  static Tensor blocks(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                       POSENC_ATTENTION_ARGS) {
    const AttentionArgs args = POSENC_MAKE_ARGS;
    check_attention(kBlocks, q, k, v, args);
    check_slopes_of(kBlocks, q, slopes);
    return Backend::blocks(q, k, v, slopes, args);
  }

  static Tensor key_norms(const Tensor& k, const Tensor& v) {
    check_key_norms(k, v);
    return Backend::key_norms(k, v);
  }

  static void register_in(torch::Library& m) {
    m.impl("alibi_attention", forward);
    m.impl("alibi_attention.Tensor", forward_tensor);
    m.impl("_alibi_attention_backward", backward);
    m.impl("_alibi_attention_backward.Tensor", backward_tensor);
    m.impl("alibi_key_norms", key_norms);
    m.impl("alibi_attention_blocks", blocks);
  }
};

}  // namespace posenc::attention
