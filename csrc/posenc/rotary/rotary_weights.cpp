#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <posenc/rotary/rotary_weights.h>
#include <torch/library.h>

#include <vector>

namespace posenc {

at::Tensor convert_rope_weights(const at::Tensor& weight, int64_t n_heads, std::string_view to,
                                std::optional<int64_t> rotary_dim, int64_t rotary_start) {
  const char* op = "convert_rope_weights";
  TORCH_CHECK_VALUE(to == "half" || to == "interleaved", op,
                    ": expected to='half' or to='interleaved', got '", to, "'");
  TORCH_CHECK_VALUE(n_heads > 0, op, ": expected n_heads > 0, got ", n_heads);
  TORCH_CHECK_VALUE(weight.dim() >= 1, op,
                    ": expected a weight (n_heads * head_dim, in) or a bias (n_heads * head_dim), "
                    "got a scalar");
  const c10::SymInt rows = weight.sym_size(0);
  TORCH_CHECK_VALUE(rows % n_heads == 0, op, ": expected rows of ", n_heads,
                    " heads, got a weight of shape ", weight.sym_sizes());
  const c10::SymInt head_dim = rows / n_heads;
  TORCH_CHECK_VALUE(rotary_start >= 0 && rotary_start <= head_dim, op,
                    ": expected rotary_start in [0, ", head_dim, "], got ", rotary_start);
  const c10::SymInt rotated =
      rotary_dim.has_value() ? c10::SymInt(*rotary_dim) : head_dim - rotary_start;
  TORCH_CHECK_VALUE(rotated >= 0 && rotated % 2 == 0, op,
                    ": expected an even number of rotated channels, got ", rotated);
  TORCH_CHECK_VALUE(rotated <= head_dim - rotary_start, op,
                    ": expected rotary_start + rotary_dim <= head_dim = ", head_dim, ", got ",
                    rotary_start, " + ", rotated);

  // (heads, channel, …); the rotated channels as a table of pairs, turned over.
  std::vector<c10::SymInt> shape = weight.sym_sizes().vec();
  shape[0] = n_heads;
  shape.insert(shape.begin() + 1, head_dim);
  const at::Tensor heads = weight.reshape_symint(shape);
  const at::Tensor part = heads.narrow_symint(1, rotary_start, rotated);
  shape[1] = to == "half" ? rotated / 2 : c10::SymInt(2);
  shape.insert(shape.begin() + 2, to == "half" ? c10::SymInt(2) : rotated / 2);
  const at::Tensor turned =
      part.reshape_symint(shape).transpose(1, 2).reshape_symint(part.sym_sizes());
  const c10::SymInt rest = head_dim - rotary_start - rotated;
  const at::Tensor all = at::cat({heads.narrow(1, 0, rotary_start), turned,
                                  heads.narrow_symint(1, rotary_start + rotated, rest)},
                                 1);
  return all.reshape_symint(weight.sym_sizes());
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  m.def(
      "convert_rope_weights(Tensor weight, int n_heads, str to, int? rotary_dim=None, "
      "int rotary_start=0) -> Tensor",
      convert_rope_weights, {at::Tag::pt2_compliant_tag});
}

// Not found through the composite registration by vmap, which would fall back to a loop.
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatched, m) {
  m.impl("convert_rope_weights", convert_rope_weights);
}

}  // namespace posenc
