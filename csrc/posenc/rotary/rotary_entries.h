#pragma once

// The operators that rotate by a list of frequencies, for any backend that can rotate the tensors
// of a call: `Backend::rotate(op, targets, inv_freq, args)`.

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <posenc/rotary/rotary_parts.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/library.h>

#include <tuple>

namespace posenc::rotary {

template <class Backend>
struct RotaryEntries {
  using Pair = std::tuple<at::Tensor, at::Tensor>;

  static at::Tensor rotate(const at::Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
    const char* op = "rotary_embedding";
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    check_rotary(op, x, inv_freq.size(), args);
    at::Tensor y = at::empty_like(x);
    Backend::rotate(op, {{x, y, args.seq_dim}}, inv_freq, args);
    return y;
  }

  static at::Tensor& rotate_(at::Tensor& x, at::ArrayRef<double> inv_freq, POSENC_ROTARY_ARGS) {
    const char* op = "rotary_embedding_";
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    check_rotary(op, x, inv_freq.size(), args);
    at::assert_no_internal_overlap(x);
    Backend::rotate(op, {{x, x, args.seq_dim}}, inv_freq, args);
    return x;
  }

  static at::Tensor rotate_qkv(const at::Tensor& qkv, at::ArrayRef<double> inv_freq,
                               int64_t n_heads, int64_t n_kv_heads, POSENC_ROTARY_ARGS) {
    const char* op = "rotary_embedding_qkv";
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    const int64_t rotated = check_rotary_qkv(op, qkv, n_heads, n_kv_heads, inv_freq.size(), args);
    at::Tensor out = at::empty_like(qkv);
    const int64_t rest = qkv.size(2) - rotated;
    const at::Tensor x = qkv.narrow(2, 0, rotated), y = out.narrow(2, 0, rotated);
    const at::Tensor v = qkv.narrow(2, rotated, rest), v_out = out.narrow(2, rotated, rest);
    Backend::rotate(op, {{x, y, args.seq_dim}, {v, v_out, args.seq_dim, /*copied=*/true}}, inv_freq,
                    args);
    return out;
  }

  static Pair rotate_qk(const at::Tensor& q, const at::Tensor& k, at::ArrayRef<double> inv_freq,
                        POSENC_ROTARY_ARGS) {
    const char* op = "rotary_embedding_qk";
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    const int64_t k_dim = check_rotary_qk(op, q, k, inv_freq.size(), args);
    Pair out{at::empty_like(q), at::empty_like(k)};
    rotate_both(op, {q, std::get<0>(out), args.seq_dim}, {k, std::get<1>(out), k_dim}, inv_freq,
                args);
    return out;
  }

  static Pair rotate_qk_(const at::Tensor& q, const at::Tensor& k, at::ArrayRef<double> inv_freq,
                         POSENC_ROTARY_ARGS) {
    const char* op = "rotary_embedding_qk_";
    RotaryArgs args = make_args(POSENC_ROTARY_PASS);
    const int64_t k_dim = check_rotary_qk(op, q, k, inv_freq.size(), args);
    at::assert_no_internal_overlap(q);
    at::assert_no_internal_overlap(k);
    at::assert_no_overlap(q, k);
    rotate_both(op, {q, q, args.seq_dim}, {k, k, k_dim}, inv_freq, args);
    return {q, k};
  }

  static void register_in(torch::Library& m) {
    m.impl("rotary_embedding", rotate);
    m.impl("rotary_embedding_", rotate_);
    m.impl("rotary_embedding_qkv", rotate_qkv);
    m.impl("rotary_embedding_qk", rotate_qk);
    m.impl("rotary_embedding_qk_", rotate_qk_);
  }

 private:
  static void rotate_both(const char* op, const RotaryTarget& q, const RotaryTarget& k,
                          at::ArrayRef<double> inv_freq, const RotaryArgs& args) {
    if (q.x.scalar_type() == k.x.scalar_type()) {
      Backend::rotate(op, {q, k}, inv_freq, args);
    } else {  // the kernels know one dtype
      Backend::rotate(op, {q}, inv_freq, args);
      Backend::rotate(op, {k}, inv_freq, args);
    }
  }
};

}  // namespace posenc::rotary
