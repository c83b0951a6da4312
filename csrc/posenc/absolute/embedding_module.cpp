#include <c10/util/Exception.h>
#include <posenc/absolute/embedding.h>
#include <posenc/absolute/embedding_module.h>
#include <posenc/absolute/frequencies.h>

#include <cmath>

namespace posenc::nn {

TransformerEmbeddingOptions::TransformerEmbeddingOptions(int64_t vocab_size, int64_t d_model)
    : vocab_size_(vocab_size), d_model_(d_model) {}

TransformerEmbeddingImpl::TransformerEmbeddingImpl(const TransformerEmbeddingOptions& options_)
    : options(options_) {
  reset();
}

void TransformerEmbeddingImpl::reset() {
  constexpr const char* name = "TransformerEmbedding";
  const int64_t rows = options.vocab_size();
  TORCH_CHECK_VALUE(rows >= 1, name, ": expected vocab_size >= 1, got ", rows);
  TORCH_CHECK_VALUE(options.d_model() >= 1, name, ": expected d_model >= 1, got ",
                    options.d_model());
  TORCH_CHECK_VALUE(options.max_len() >= 1, name, ": expected max_len >= 1, got ",
                    options.max_len());
  scale = options.scale().value_or(std::sqrt(static_cast<double>(options.d_model())));
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale != 0., name,
                    ": expected a finite scale that is not 0 (1 leaves the embedding as it is), "
                    "got ",
                    scale);
  inv_freq = sinusoidal_inv_freq(options.d_model(), options.base(), options.spacing());
  torch::nn::EmbeddingOptions table(rows, options.d_model());
  if (const auto padding_idx = options.padding_idx()) {
    TORCH_CHECK_VALUE(*padding_idx >= -rows && *padding_idx < rows, name,
                      ": expected padding_idx in [", -rows, ", ", rows - 1, "], got ",
                      *padding_idx);
    table.padding_idx(*padding_idx < 0 ? *padding_idx + rows : *padding_idx);
  }
  token_embedding = register_module("token_embedding", torch::nn::Embedding(table));
}

void TransformerEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "posenc::nn::TransformerEmbedding(vocab_size=" << options.vocab_size()
         << ", d_model=" << options.d_model();
  if (const auto padding_idx = options.padding_idx()) {
    stream << ", padding_idx=" << *padding_idx;
  }
  stream << ", scale=" << scale << ", base=" << options.base()
         << ", interleaved=" << options.interleaved() << ", spacing=" << options.spacing() << ")";
}

at::Tensor TransformerEmbeddingImpl::forward(const at::Tensor& input_ids,
                                             const std::optional<at::Tensor>& position_ids,
                                             int64_t offset) {
  return embed_tokens(input_ids, token_embedding->weight, inv_freq, position_ids, offset,
                      options.interleaved(), scale,
                      token_embedding->options.padding_idx().value_or(-1));
}

}  // namespace posenc::nn
