#include <posenc/core/dispatch.h>
#include <posenc/rotary/learned_rotary_module.h>

namespace posenc::nn {
namespace {

/// The dtype that the parameter gets where `dtype` is asked for.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

}  // namespace

void LearnedRotaryEmbeddingOptions::check(const char* where) const {
  RotaryPositionalEmbeddingOptions::check(where);
  TORCH_CHECK_VALUE(!n_heads_ || *n_heads_ > 0, where, ": expected n_heads > 0, got ",
                    n_heads_.value_or(0));
  TORCH_CHECK_VALUE(parametrisation_ == "log" || parametrisation_ == "direct", where,
                    ": expected parametrisation \"log\" or \"direct\", got \"", parametrisation_,
                    "\"");
  TORCH_CHECK_VALUE(!scaling().depends_on_length(), where,
                    ": expected a scaling whose frequencies do not depend on the length, got type ",
                    scaling().type);
}

LearnedRotaryEmbeddingImpl::LearnedRotaryEmbeddingImpl(LearnedRotaryEmbeddingOptions options_)
    : options(std::move(options_)) {
  reset();
}

void LearnedRotaryEmbeddingImpl::reset() {
  options.check();
  initial = options.frequencies();
  axes = options.resolved_axes();
  std::vector<int64_t> shape;
  if (options.n_heads().has_value()) {
    shape.push_back(*options.n_heads());
  }
  shape.push_back(static_cast<int64_t>(initial.inv_freq.size()));
  const at::Tensor values =
      torch::empty(shape, wide(c10::typeMetaToScalarType(c10::get_default_dtype())));
  if (options.parametrisation() == "log") {
    alpha = register_parameter("alpha", values);
  } else {
    freqs = register_parameter("freqs", values);
  }
  reset_parameters();
}

void LearnedRotaryEmbeddingImpl::reset_parameters() {
  torch::NoGradGuard no_grad;
  if (alpha.defined()) {
    alpha.zero_();
  } else {
    freqs.copy_(core::float_list_tensor(initial.inv_freq, freqs.options().dtype(at::kDouble)));
  }
}

void LearnedRotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::LearnedRotaryEmbedding(head_dim=" << options.d_model()
         << ", base=" << options.theta() << ", parametrisation=" << options.parametrisation();
  if (options.n_heads().has_value()) {
    stream << ", n_heads=" << *options.n_heads();
  }
  stream << ", interleaved=" << std::boolalpha << options.reads_pairs()
         << ", rotary_dim=" << options.width() << ", rotary_start=" << options.rotary_start()
         << ", scaling=" << options.scaling().type << ")";
}

void LearnedRotaryEmbeddingImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, wide(dtype), non_blocking);
}

void LearnedRotaryEmbeddingImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(wide(dtype), non_blocking);
}

at::Tensor LearnedRotaryEmbeddingImpl::frequencies() const {
  return learned_inv_freq(alpha.defined() ? alpha : freqs, initial.inv_freq,
                          options.parametrisation());
}

at::Tensor LearnedRotaryEmbeddingImpl::forward(const at::Tensor& x,
                                               const std::optional<at::Tensor>& position_ids,
                                               int64_t offset) {
  return rotary_embedding(
      x, frequencies(), position_ids, offset, options.seq_dim(), options.reads_pairs(),
      options.interleaved_out(), options.rotary_start(), initial.attention_factor,
      axes.empty() ? std::nullopt : at::OptionalIntArrayRef(at::IntArrayRef(axes)),
      options.inverse());
}

std::pair<at::Tensor, at::Tensor> LearnedRotaryEmbeddingImpl::rotate(
    const at::Tensor& q, const at::Tensor& k, const std::optional<at::Tensor>& position_ids,
    int64_t offset) {
  return {forward(q, position_ids, offset), forward(k, position_ids, offset)};
}

}  // namespace posenc::nn
