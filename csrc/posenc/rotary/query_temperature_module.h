#pragma once

#include <posenc/rotary/query_temperature.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <ostream>

namespace posenc::nn {

/// Options of QueryTemperature; the defaults are Llama 4's.
struct POSENC_API QueryTemperatureOptions {
  QueryTemperatureOptions() = default;

  /// Growth with each e-fold of the step: Llama 4's attn_scale, Mistral's llama_4_scaling_beta.
  TORCH_ARG(double, scale) = 0.1;
  /// Positions of one step, > 0.
  TORCH_ARG(double, floor_scale) = 8192.0;
  /// Added to the position before the division: 1 for Llama 4, 0 for Ministral 3 and Mistral 4.
  TORCH_ARG(double, shift) = 1.0;
  /// The axis of the input that is time.
  TORCH_ARG(int64_t, seq_dim) = 1;

 public:
  /// Throws ValueError naming the option, what was expected and what came.
  void check() const;
};

/// Temperature of queries as a module without state. See posenc::query_temperature.
class POSENC_API QueryTemperatureImpl : public torch::nn::Cloneable<QueryTemperatureImpl> {
 public:
  QueryTemperatureImpl() : QueryTemperatureImpl(QueryTemperatureOptions()) {}
  explicit QueryTemperatureImpl(QueryTemperatureOptions options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// \param x queries (B, L, H, D), or as options.seq_dim says.
  /// \param position_ids (L), (1, L) or (B, L). \param offset tokens before this call.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  QueryTemperatureOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))})
};
TORCH_MODULE(QueryTemperature);

}  // namespace posenc::nn
