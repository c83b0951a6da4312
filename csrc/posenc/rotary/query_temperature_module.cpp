#include <posenc/rotary/query_temperature_module.h>

#include <cmath>

namespace posenc::nn {

void QueryTemperatureOptions::check() const {
  const char* where = "QueryTemperature";
  TORCH_CHECK_VALUE(std::isfinite(scale_), where, ": expected a finite scale, got ", scale_);
  rotary::check_temperature(where, scale_, floor_scale_, shift_);
}

QueryTemperatureImpl::QueryTemperatureImpl(QueryTemperatureOptions options_)
    : options(std::move(options_)) {
  reset();
}

void QueryTemperatureImpl::reset() { options.check(); }

void QueryTemperatureImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::QueryTemperature(scale=" << options.scale()
         << ", floor_scale=" << options.floor_scale() << ", shift=" << options.shift() << ")";
}

at::Tensor QueryTemperatureImpl::forward(const at::Tensor& x,
                                         const std::optional<at::Tensor>& position_ids,
                                         int64_t offset) {
  return query_temperature(x, options.scale(), options.floor_scale(), position_ids, offset,
                           options.seq_dim(), options.shift());
}

}  // namespace posenc::nn
