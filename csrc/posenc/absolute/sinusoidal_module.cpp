#include <c10/util/Exception.h>
#include <posenc/absolute/frequencies.h>
#include <posenc/absolute/sinusoidal.h>
#include <posenc/absolute/sinusoidal_module.h>

#include <cmath>

namespace posenc::nn {

SinusoidalPositionalEncodingOptions::SinusoidalPositionalEncodingOptions(int64_t d_model)
    : d_model_(d_model) {}

SinusoidalPositionalEncodingImpl::SinusoidalPositionalEncodingImpl(
    const SinusoidalPositionalEncodingOptions& options_)
    : options(options_) {
  reset();
}

void SinusoidalPositionalEncodingImpl::reset() {
  TORCH_CHECK_VALUE(std::isfinite(options.scale()),
                    "SinusoidalPositionalEncoding: expected a finite scale, got ", options.scale());
  inv_freq = sinusoidal_inv_freq(options.d_model(), options.base(), options.spacing());
}

void SinusoidalPositionalEncodingImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha
         << "posenc::nn::SinusoidalPositionalEncoding(d_model=" << options.d_model()
         << ", base=" << options.base() << ", interleaved=" << options.interleaved()
         << ", spacing=" << options.spacing() << ", scale=" << options.scale()
         << ", seq_dim=" << options.seq_dim() << ")";
}

at::Tensor SinusoidalPositionalEncodingImpl::forward(const at::Tensor& x,
                                                     const std::optional<at::Tensor>& position_ids,
                                                     int64_t offset) {
  return add_sinusoidal(x, inv_freq, position_ids, offset, options.seq_dim(), options.interleaved(),
                        options.scale());
}

}  // namespace posenc::nn
