#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <c10/util/Exception.h>
#include <posenc/rotary/axial_module.h>

#include <cmath>
#include <numbers>
#include <ostream>

namespace posenc::nn {
namespace {

void check_ends(const char* op, int64_t n_prefix, int64_t n_suffix) {
  TORCH_CHECK_VALUE(n_prefix >= 0 && n_suffix >= 0, op,
                    ": expected n_prefix >= 0 and n_suffix >= 0, got ", n_prefix, " and ",
                    n_suffix);
}

void check_width(const char* op, const at::Tensor& x, int64_t head_dim) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == head_dim, op,
                    ": expected the last axis of x to be head_dim = ", head_dim, ", got shape ",
                    x.sym_sizes());
}

}  // namespace

void AxialRotaryEmbeddingOptions::check() const {
  check_ends("AxialRotaryEmbedding", n_prefix_, n_suffix_);
  frequencies();
}

AxialFrequencies AxialRotaryEmbeddingOptions::frequencies() const {
  return axial_frequencies(arrangement_, head_dim_, base_, scale_);
}

AxialRotaryEmbeddingImpl::AxialRotaryEmbeddingImpl(AxialRotaryEmbeddingOptions options_)
    : options(std::move(options_)) {
  reset();
}

void AxialRotaryEmbeddingImpl::reset() {
  options.check();
  frequencies = options.frequencies();
}

void AxialRotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::AxialRotaryEmbedding(head_dim=" << options.head_dim()
         << ", arrangement=" << options.arrangement() << ", base=" << options.base()
         << ", scale=" << options.scale() << ", offset=" << options.offset()
         << ", n_prefix=" << options.n_prefix() << ", n_suffix=" << options.n_suffix() << ")";
}

at::Tensor AxialRotaryEmbeddingImpl::forward(const at::Tensor& x,
                                             const at::Tensor& position_ids) const {
  check_width("AxialRotaryEmbedding", x, options.head_dim());
  return axial_rotary_embedding(x, frequencies.inv_freq, frequencies.axes, position_ids,
                                options.offset(), options.seq_dim(), frequencies.interleaved,
                                frequencies.blocks, options.n_prefix(), options.n_suffix());
}

std::pair<at::Tensor, at::Tensor> AxialRotaryEmbeddingImpl::rotate(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& position_ids) const {
  return {forward(q, position_ids), forward(k, position_ids)};
}

void MixedRotaryEmbeddingOptions::check() const {
  const char* op = "MixedRotaryEmbedding";
  check_ends(op, n_prefix_, n_suffix_);
  TORCH_CHECK_VALUE(head_dim_ > 0 && head_dim_ % 4 == 0, op,
                    ": expected head_dim to be a positive multiple of 4, got ", head_dim_);
  TORCH_CHECK_VALUE(n_heads_ > 0, op, ": expected n_heads > 0, got ", n_heads_);
  TORCH_CHECK_VALUE(std::isfinite(base_) && base_ > 0, op, ": expected a finite base > 0, got ",
                    base_);
}

MixedRotaryEmbeddingImpl::MixedRotaryEmbeddingImpl(MixedRotaryEmbeddingOptions options_)
    : options(std::move(options_)) {
  reset();
}

void MixedRotaryEmbeddingImpl::reset() {
  options.check();
  const int64_t n = options.head_dim() / 2;
  freqs = register_parameter(
      "freqs", options.per_head() ? at::empty({2, options.n_heads(), n}) : at::empty({2, n}));
  reset_parameters();
}

void MixedRotaryEmbeddingImpl::reset_parameters() {
  torch::NoGradGuard no_grad;
  const int64_t sets = options.per_head() ? options.n_heads() : 1;
  const at::Tensor angles = at::rand({sets}, freqs.options()) * (2 * std::numbers::pi);
  freqs.copy_(mixed_rotary_freqs(angles, options.head_dim() / 2, options.base()).view_as(freqs));
}

void MixedRotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::MixedRotaryEmbedding(head_dim=" << options.head_dim()
         << ", n_heads=" << options.n_heads() << ", base=" << options.base() << std::boolalpha
         << ", per_head=" << options.per_head() << ", interleaved=" << options.interleaved()
         << ", n_prefix=" << options.n_prefix() << ", n_suffix=" << options.n_suffix() << ")";
}

at::Tensor MixedRotaryEmbeddingImpl::forward(const at::Tensor& x,
                                             const at::Tensor& position_ids) const {
  check_width("MixedRotaryEmbedding", x, options.head_dim());
  return mixed_rotary_embedding(x, freqs, position_ids, 0, options.seq_dim(), options.interleaved(),
                                options.n_prefix(), options.n_suffix());
}

std::pair<at::Tensor, at::Tensor> MixedRotaryEmbeddingImpl::rotate(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& position_ids) const {
  return {forward(q, position_ids), forward(k, position_ids)};
}

}  // namespace posenc::nn
