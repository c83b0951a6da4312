#pragma once

#include <ATen/core/Tensor.h>
#include <posenc/core/macros.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace posenc::nn {

/// Options of `SinusoidalPositionalEncoding`.
struct POSENC_API SinusoidalPositionalEncodingOptions {
  /* implicit */ SinusoidalPositionalEncodingOptions(int64_t d_model);

  /// Channels of the input.
  TORCH_ARG(int64_t, d_model);
  /// Wavelengths run from 2 pi to 2 pi base. Default: 10000.
  TORCH_ARG(double, base) = 10000.;
  /// [sin, cos, sin, cos, ...], else all sines, then all cosines. Default: true.
  TORCH_ARG(bool, interleaved) = true;
  /// "standard" or "half_minus_one", see `sinusoidal_inv_freq`.
  TORCH_ARG(std::string, spacing) = "standard";
  /// Factor on the input, for example sqrt(d_model). Default: 1.
  TORCH_ARG(double, scale) = 1.;
  /// The time axis of the input. Default: 1; 0 for sequence-first input.
  TORCH_ARG(int64_t, seq_dim) = 1;
};

/// Adds the sinusoidal encoding to its input. Holds no tensor: nothing of it is
/// saved, cast or limited in length.
class POSENC_API SinusoidalPositionalEncodingImpl
    : public torch::nn::Cloneable<SinusoidalPositionalEncodingImpl> {
 public:
  explicit SinusoidalPositionalEncodingImpl(int64_t d_model)
      : SinusoidalPositionalEncodingImpl(SinusoidalPositionalEncodingOptions(d_model)) {}
  explicit SinusoidalPositionalEncodingImpl(const SinusoidalPositionalEncodingOptions& options_);

  /// Checks the options and computes the frequencies.
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// `x` (B, L, d_model), or as `seq_dim` says; the rest as `add_sinusoidal`.
  at::Tensor forward(const at::Tensor& x,
                     const std::optional<at::Tensor>& position_ids = std::nullopt,
                     int64_t offset = 0);

  SinusoidalPositionalEncodingOptions options;
  /// Radians per position, n = ceil(d_model/2) of them.
  std::vector<double> inv_freq;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())},
                           {2, torch::nn::AnyValue(int64_t(0))})
};
TORCH_MODULE(SinusoidalPositionalEncoding);

}  // namespace posenc::nn
