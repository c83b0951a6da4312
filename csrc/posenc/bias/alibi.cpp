// The slopes, and the public functions: each calls its operator through the dispatcher.

#include <c10/util/Exception.h>
#include <posenc/bias/alibi.h>
#include <posenc/core/dispatch.h>

#include <cmath>

namespace posenc {

std::vector<double> alibi_slopes(int64_t n_heads, double bias_max, int64_t head_start,
                                 std::optional<int64_t> total_heads, bool geometric) {
  const int64_t total = total_heads.value_or(n_heads);
  constexpr int64_t kMost = int64_t{1} << 20;  // what a sum or a loop over heads can hold
  TORCH_CHECK_VALUE(n_heads >= 1 && n_heads <= kMost, "alibi_slopes: expected n_heads in [1, ",
                    kMost, "], got ", n_heads);
  TORCH_CHECK_VALUE(total <= kMost, "alibi_slopes: expected total_heads <= ", kMost, ", got ",
                    total);
  TORCH_CHECK_VALUE(bias_max > 0 && std::isfinite(bias_max),
                    "alibi_slopes: expected a finite bias_max > 0, got ", bias_max);
  TORCH_CHECK_VALUE(
      head_start >= 0 && head_start <= total - n_heads,
      "alibi_slopes: expected heads [head_start, head_start + n_heads) within total_heads = ",
      total, ", got ", n_heads, " heads from ", head_start, " on");
  int64_t power = 1;  // the largest power of two that is not above total
  while (2 * power <= total) {
    power *= 2;
  }
  std::vector<double> slopes;
  slopes.reserve(n_heads);
  for (int64_t h = head_start; h < head_start + n_heads; ++h) {
    double exponent;
    if (geometric) {
      exponent = static_cast<double>(h + 1) / static_cast<double>(total);
    } else if (h < power) {
      exponent = static_cast<double>(h + 1) / static_cast<double>(power);
    } else {
      exponent = static_cast<double>(2 * (h - power) + 1) / static_cast<double>(2 * power);
    }
    slopes.push_back(std::exp2(-bias_max * exponent));
  }
  return slopes;
}

at::Tensor alibi_bias(at::ArrayRef<double> slopes, c10::SymInt q_len, c10::SymInt k_len,
                      std::optional<c10::SymInt> offset, bool is_causal,
                      std::optional<at::ScalarType> dtype, std::optional<at::Device> device) {
  static const auto op = core::find_op<at::Tensor(
      at::ArrayRef<double>, c10::SymInt, c10::SymInt, std::optional<c10::SymInt>, bool,
      std::optional<at::ScalarType>, std::optional<at::Device>)>("posenc::alibi_bias");
  return op.call(slopes, q_len, k_len, offset, is_causal, dtype, device);
}

at::Tensor alibi_bias(const at::Tensor& slopes, c10::SymInt q_len, c10::SymInt k_len,
                      std::optional<c10::SymInt> offset, bool is_causal,
                      std::optional<at::ScalarType> dtype) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, c10::SymInt, c10::SymInt,
                               std::optional<c10::SymInt>, bool, std::optional<at::ScalarType>)>(
          "posenc::alibi_bias", "Tensor");
  return op.call(slopes, q_len, k_len, offset, is_causal, dtype);
}

at::Tensor alibi_softmax(const at::Tensor& scores, at::ArrayRef<double> slopes,
                         const std::optional<at::Tensor>& mask, bool is_causal, double scale,
                         std::optional<c10::SymInt> offset) {
  static const auto op = core::find_op<at::Tensor(
      const at::Tensor&, at::ArrayRef<double>, const std::optional<at::Tensor>&, bool, double,
      std::optional<c10::SymInt>)>("posenc::alibi_softmax");
  return op.call(scores, slopes, mask, is_causal, scale, offset);
}

}  // namespace posenc
