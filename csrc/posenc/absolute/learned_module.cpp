#include <c10/util/Exception.h>
#include <posenc/absolute/learned.h>
#include <posenc/absolute/learned_module.h>

namespace posenc::nn {

LearnedPositionalEncodingOptions::LearnedPositionalEncodingOptions(int64_t max_len, int64_t d_model)
    : max_len_(max_len), d_model_(d_model) {}

LearnedPositionalEncodingImpl::LearnedPositionalEncodingImpl(
    const LearnedPositionalEncodingOptions& options_)
    : options(options_) {
  reset();
}

void LearnedPositionalEncodingImpl::reset() {
  TORCH_CHECK_VALUE(options.max_len() >= 1,
                    "LearnedPositionalEncoding: expected max_len >= 1, got ", options.max_len());
  TORCH_CHECK_VALUE(options.d_model() >= 1,
                    "LearnedPositionalEncoding: expected d_model >= 1, got ", options.d_model());
  positional_embeddings = register_module(
      "positional_embeddings", torch::nn::Embedding(options.max_len(), options.d_model()));
  reset_parameters();
}

void LearnedPositionalEncodingImpl::reset_parameters() {
  torch::NoGradGuard no_grad;
  positional_embeddings->weight.normal_(0., 0.02);
}

void LearnedPositionalEncodingImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::LearnedPositionalEncoding(max_len=" << options.max_len()
         << ", d_model=" << options.d_model() << ", seq_dim=" << options.seq_dim() << ")";
}

at::Tensor LearnedPositionalEncodingImpl::forward(const at::Tensor& x,
                                                  const std::optional<at::Tensor>& position_ids,
                                                  int64_t offset) {
  return add_positions(x, positional_embeddings->weight, position_ids, offset, options.seq_dim());
}

}  // namespace posenc::nn
