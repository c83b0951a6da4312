#include <posenc/rotary/query_temperature.h>
#include <posenc/rotary/rotary_module.h>
#include <posenc/rotary/rotary_qk.h>

#include <cmath>
#include <ostream>

namespace posenc::nn {

int64_t RotaryPositionalEmbeddingOptions::series_width() const {
  if (rotary_dim_.has_value()) {
    return *rotary_dim_;
  }
  // In a proportional scaling the factor is the share of frequencies that are kept, over the whole
  // head.
  if (scaling_.partial_rotary_factor.has_value() && scaling_.type != "proportional") {
    return static_cast<int64_t>(static_cast<double>(d_model_) * *scaling_.partial_rotary_factor);
  }
  return d_model_ - rotary_start_;
}

int64_t RotaryPositionalEmbeddingOptions::width() const {
  const int64_t series = series_width();
  const bool by_share = !rotary_dim_.has_value() && scaling_.partial_rotary_factor.has_value();
  return by_share ? series + series % 2 : series;
}

bool RotaryPositionalEmbeddingOptions::reads_pairs() const {
  return scaling_.interleaved.value_or(interleaved_);
}

void RotaryPositionalEmbeddingOptions::check(const char* op) const {
  TORCH_CHECK_VALUE(d_model_ > 0, op, ": expected d_model > 0, got ", d_model_);
  TORCH_CHECK_VALUE(max_seq_len_ > 0, op, ": expected max_seq_len > 0, got ", max_seq_len_);
  TORCH_CHECK_VALUE(std::isfinite(base_) && base_ > 0, op, ": expected a finite base > 0, got ",
                    base_);
  TORCH_CHECK_VALUE(!attention_factor_ || std::isfinite(*attention_factor_), op,
                    ": expected a finite attention_factor, got ", attention_factor_.value_or(0));
  TORCH_CHECK_VALUE(!scaling_.rope_theta || base_ == 10000.0 || base_ == *scaling_.rope_theta, op,
                    ": expected one theta, got base ", base_, " and a scaling with rope_theta ",
                    scaling_.rope_theta.value_or(0));
  TORCH_CHECK_VALUE(interleaved_ || !scaling_.interleaved.value_or(false), op,
                    ": expected one layout, got interleaved = False and a scaling with interleaved "
                    "True");
  TORCH_CHECK_VALUE(scaling_.llama_4_scaling_beta.value_or(0) == 0 ||
                        (scaling_.original_max_position_embeddings.has_value() && !axes_),
                    op,
                    ": expected original_max_position_embeddings and one axis with "
                    "llama_4_scaling_beta, got the beta ",
                    scaling_.llama_4_scaling_beta.value_or(0));
  TORCH_CHECK_VALUE(rotary_start_ >= 0 && rotary_start_ < d_model_, op,
                    ": expected rotary_start in [0, d_model) = [0, ", d_model_, "), got ",
                    rotary_start_);
  const int64_t rotated = width();
  TORCH_CHECK_VALUE(rotated > 0 && rotated % 2 == 0, op,
                    ": expected an even, positive number of rotated channels (",
                    rotary_dim_.has_value()                      ? "rotary_dim"
                    : scaling_.partial_rotary_factor.has_value() ? "d_model * partial_rotary_factor"
                                                                 : "d_model - rotary_start",
                    "), got ", rotated);
  TORCH_CHECK_VALUE(rotated <= d_model_ - rotary_start_, op,
                    ": expected rotary_start + rotary_dim <= d_model = ", d_model_, ", got ",
                    rotary_start_, " + ", rotated);
  if (axes_.has_value()) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(axes_->size()) == rotated / 2, op,
                      ": expected axes to name one position axis for each of the ", rotated / 2,
                      " frequencies, got ", axes_->size(), " entries");
    for (int64_t axis : *axes_) {
      TORCH_CHECK_VALUE(axis >= 0 && axis < 16, op, ": expected axes in [0, 15], got ", axis);
    }
  }
}

double RotaryPositionalEmbeddingOptions::theta() const {
  return scaling_.rope_theta.value_or(base_);
}

RopeFrequencies RotaryPositionalEmbeddingOptions::frequencies() const {
  RopeFrequencies result = rope_frequencies(series_width(), theta(), scaling_, max_seq_len_);
  result.attention_factor = attention_factor_.value_or(result.attention_factor);
  return result;
}

RotaryPositionalEmbeddingImpl::RotaryPositionalEmbeddingImpl(
    RotaryPositionalEmbeddingOptions options_)
    : options(std::move(options_)) {
  reset();
}

void RotaryPositionalEmbeddingImpl::reset() {
  options.check();
  frequencies = options.frequencies();
  axes = options.resolved_axes();
}

void RotaryPositionalEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::RotaryPositionalEmbedding(d_model=" << options.d_model()
         << ", base=" << options.theta() << ", interleaved=" << std::boolalpha
         << options.reads_pairs() << ", rotary_dim=" << options.width()
         << ", rotary_start=" << options.rotary_start() << ", scaling=" << options.scaling().type
         << ")";
}

at::OptionalIntArrayRef RotaryPositionalEmbeddingImpl::axes_ref() const {
  return axes.empty() ? std::nullopt : at::OptionalIntArrayRef(at::IntArrayRef(axes));
}

at::Tensor RotaryPositionalEmbeddingImpl::forward(const at::Tensor& x,
                                                  const std::optional<at::Tensor>& position_ids,
                                                  int64_t offset) const {
  const auto rotate = [&](const auto& inv_freq) {
    return rotary_embedding(x, inv_freq, position_ids, offset, options.seq_dim(),
                            options.reads_pairs(), options.interleaved_out(),
                            options.rotary_start(), frequencies.attention_factor, axes_ref(),
                            options.inverse());
  };
  if (!options.scaling().depends_on_length()) {
    return rotate(at::ArrayRef<double>(frequencies.inv_freq));
  }
  return rotate(inv_freq_at(rope_lengths(x, position_ids, offset, options.seq_dim())));
}

std::pair<at::Tensor, at::Tensor> RotaryPositionalEmbeddingImpl::rotate(
    const at::Tensor& q_in, const at::Tensor& k, const std::optional<at::Tensor>& position_ids,
    int64_t offset) const {
  const RopeScaling& scaling = options.scaling();
  const double beta = scaling.llama_4_scaling_beta.value_or(0.0);
  const at::Tensor q =
      beta > 0 ? query_temperature(q_in, beta,
                                   static_cast<double>(*scaling.original_max_position_embeddings),
                                   position_ids, offset, options.seq_dim())
               : q_in;
  if (scaling.depends_on_length()) {
    return {forward(q, position_ids, offset), forward(k, position_ids, offset)};
  }
  auto [q_out, k_out] =
      rotary_embedding_qk(q, k, frequencies.inv_freq, position_ids, offset, options.seq_dim(),
                          options.reads_pairs(), options.interleaved_out(), options.rotary_start(),
                          frequencies.attention_factor, axes_ref(), options.inverse());
  return {std::move(q_out), std::move(k_out)};
}

at::Tensor RotaryPositionalEmbeddingImpl::apply_rotary_pos_emb(const at::Tensor& x,
                                                               std::optional<int64_t> seq_len,
                                                               int64_t offset) const {
  if (seq_len.has_value()) {
    const int64_t dim = options.seq_dim() < 0 ? options.seq_dim() + x.dim() : options.seq_dim();
    TORCH_CHECK_VALUE(dim >= 0 && dim < x.dim() && x.size(dim) == *seq_len,
                      "apply_rotary_pos_emb: expected seq_len to be the length of x on axis ",
                      options.seq_dim(), ", got ", *seq_len, " for x of shape ", x.sizes());
  }
  return forward(x, std::nullopt, offset);
}

LongSequenceRoPEImpl::LongSequenceRoPEImpl(LongSequenceRoPEOptions options_)
    : options(std::move(options_)) {
  reset();
}

void LongSequenceRoPEImpl::reset() {
  TORCH_CHECK_VALUE(options.chunk_size() > 0, "LongSequenceRoPE: expected chunk_size > 0, got ",
                    options.chunk_size());
  RotaryPositionalEmbeddingOptions rope(options.head_dim());
  rope.base(options.base());
  rope.check("LongSequenceRoPE");
  inv_freq = rope.frequencies().inv_freq;
}

void LongSequenceRoPEImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::LongSequenceRoPE(head_dim=" << options.head_dim()
         << ", chunk_size=" << options.chunk_size() << ")";
}

at::Tensor LongSequenceRoPEImpl::forward(const at::Tensor& x, bool /*use_chunking*/) const {
  return rotary_embedding(x, inv_freq, std::nullopt, 0, /*seq_dim=*/1, options.interleaved());
}

}  // namespace posenc::nn
