// The CPU registration of the biased attention operators, over attention_cpu.h.

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <posenc/attention/attention_backend.h>
#include <posenc/attention/attention_cpu.h>

namespace posenc::attention {
namespace {

Tensor cpu_slopes(SlopeList slopes) {
  return at::from_blob(const_cast<double*>(slopes.data()), {static_cast<int64_t>(slopes.size())},
                       at::kDouble);
}
Tensor cpu_slopes(const Tensor& slopes) { return slopes.to(at::kDouble).contiguous(); }

struct Cpu {
  template <typename Slopes>
  static Pair forward(const Tensor& q, const Tensor& k, const Tensor& v, const Slopes& slopes,
                      const AttentionArgs& args) {
    return attention_forward_cpu(q, k, v, cpu_slopes(slopes), args);
  }

  template <typename Slopes>
  static SlopeGrads backward(const Tensor& grad_out, const OptionalTensor& grad_lse,
                             const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse, const Slopes& slopes, const AttentionArgs& args,
                             bool want_slopes) {
    return attention_backward_cpu(grad_out, grad_lse, q, k, v, out, lse, cpu_slopes(slopes), args,
                                  want_slopes);
  }

  static Tensor blocks(const Tensor& q, const Tensor& k, const Tensor& v, SlopeList slopes,
                       const AttentionArgs& args) {
    BlockCounts forward, backward;
    auto [out, lse] = attention_forward_cpu(q, k, v, cpu_slopes(slopes), args, &forward);
    attention_backward_cpu(out, std::nullopt, q, k, v, out, lse, cpu_slopes(slopes), args, false,
                           &backward);
    Tensor counts = at::empty({4}, at::kLong);
    int64_t* data = counts.mutable_data_ptr<int64_t>();
    data[0] = forward.computed;
    data[1] = forward.total;
    data[2] = backward.computed;
    data[3] = backward.total;
    return counts;
  }

  static Tensor key_norms(const Tensor& k, const Tensor& v) { return key_norms_cpu(k, v); }
};

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) { AttentionKernel<Cpu>::register_in(m); }

}  // namespace posenc::attention
