// Axial and mixed RoPE as compositions of rotary_embedding: they trace, script, export and
// differentiate as it does.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/rotary/axial.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_args.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

namespace posenc {
namespace {

constexpr int64_t kRow = 0, kColumn = 1;

void read(AxialFrequencies& to, const std::vector<double>& f, int64_t axis) {
  to.inv_freq.insert(to.inv_freq.end(), f.begin(), f.end());
  to.axes.insert(to.axes.end(), f.size(), axis);
}

/// The frequencies in the order in which they meet the channels.
AxialFrequencies two_axes(const std::string& order, int64_t head_dim, double base) {
  AxialFrequencies result;
  if (order == "half_parity_hw") {
    const std::vector<double> all = rope_inv_freq(head_dim, base);
    for (const int64_t axis : {kRow, kColumn}) {
      for (size_t i = axis; i < all.size(); i += 2) {
        read(result, {all[i]}, axis);
      }
    }
    return result;
  }
  const std::vector<double> f = rope_inv_freq(head_dim / 2, base);
  if (order == "half_alternating_wh") {
    for (const double frequency : f) {
      read(result, {frequency}, kColumn);
      read(result, {frequency}, kRow);
    }
    return result;
  }
  const bool row_first = order == "half_hw" || order == "pairs_hw";
  read(result, f, row_first ? kRow : kColumn);
  read(result, f, row_first ? kColumn : kRow);
  result.interleaved = order.rfind("pairs_", 0) == 0;
  result.blocks = order == "blocks_wh" ? 2 : 1;
  return result;
}

}  // namespace

AxialFrequencies axial_frequencies(const std::string& arrangement, int64_t head_dim, double base,
                                   double scale) {
  const char* op = "axial_frequencies";
  static const std::vector<std::string> two = {"half_hw",        "half_wh",  "half_alternating_wh",
                                               "half_parity_hw", "pairs_wh", "pairs_hw",
                                               "blocks_wh"};
  TORCH_CHECK_VALUE(std::isfinite(base) && base > 0, op, ": expected a finite base > 0, got ",
                    base);
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale != 0, op,
                    ": expected a finite scale other than 0, got ", scale);
  AxialFrequencies result;
  if (std::find(two.begin(), two.end(), arrangement) != two.end()) {
    TORCH_CHECK_VALUE(head_dim > 0 && head_dim % 4 == 0, op, ": expected head_dim for ",
                      arrangement, " to be a positive multiple of 4, got ", head_dim);
    result = two_axes(arrangement, head_dim, base);
  } else {
    TORCH_CHECK_VALUE(arrangement == "half_thw", op,
                      ": expected arrangement to be one of half_hw, half_wh, half_alternating_wh, "
                      "half_parity_hw, half_thw, pairs_wh, pairs_hw, blocks_wh, got '",
                      arrangement, "'");
    TORCH_CHECK_VALUE(head_dim >= 6, op, ": expected head_dim for half_thw to be 6 or more, got ",
                      head_dim);
    const std::vector<double> f = rope_inv_freq(2 * (head_dim / 3 / 2), base);
    result.n_axes = 3;
    for (int64_t axis = 0; axis < result.n_axes; ++axis) {
      read(result, f, axis);
    }
  }
  for (double& frequency : result.inv_freq) {
    frequency *= scale;
  }
  return result;
}

namespace {

/// The tokens between prefix and suffix.
struct Middle {
  int64_t seq_dim, n_prefix, n_suffix;

  /// Checks the lengths and the positions, (A, L) or (A, 1 or B, L); returns the latter.
  at::Tensor positions(const char* op, const at::Tensor& x, const at::Tensor& ids,
                       int64_t n_axes) const {
    TORCH_CHECK_VALUE(n_prefix >= 0 && n_suffix >= 0, op,
                      ": expected n_prefix >= 0 and n_suffix >= 0, got ", n_prefix, " and ",
                      n_suffix);
    const c10::SymInt length = x.sym_size(seq_dim) - n_prefix - n_suffix;
    const bool good = (ids.dim() == 2 || ids.dim() == 3) && ids.sym_size(0) == n_axes &&
                      ids.sym_size(-1) == length;
    TORCH_CHECK_VALUE(good, op, ": expected position_ids of shape (", n_axes, ", ", length,
                      ") or (", n_axes, ", B, ", length, ") for x of shape ", x.sym_sizes(),
                      " with time on axis ", seq_dim, ", ", n_prefix, " prefix and ", n_suffix,
                      " suffix tokens, got ", ids.sym_sizes());
    return ids.dim() == 2 ? ids.unsqueeze(1) : ids;
  }

  template <class Rotate>
  at::Tensor apply(const at::Tensor& x, const Rotate& rotate) const {
    if (n_prefix == 0 && n_suffix == 0) {
      return rotate(x);
    }
    const c10::SymInt end = x.sym_size(seq_dim) - n_suffix;
    std::vector<at::Tensor> parts;
    if (n_prefix > 0) {
      parts.push_back(x.narrow_symint(seq_dim, 0, n_prefix));
    }
    parts.push_back(rotate(x.narrow_symint(seq_dim, n_prefix, end - n_prefix)));
    if (n_suffix > 0) {
      parts.push_back(x.narrow_symint(seq_dim, end, n_suffix));
    }
    return at::cat(parts, seq_dim);
  }
};

Middle middle_of(const char* op, const at::Tensor& x, int64_t seq_dim, int64_t n_prefix,
                 int64_t n_suffix) {
  core::check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2, op,
                    ": expected x of at least 2 axes (time and head_dim), got shape ",
                    x.sym_sizes());
  return {core::wrap_dim(op, "seq_dim", seq_dim, x.dim()), n_prefix, n_suffix};
}

}  // namespace

at::Tensor axial_rotary_embedding(const at::Tensor& x, at::ArrayRef<double> inv_freq,
                                  at::IntArrayRef axes, const at::Tensor& position_ids,
                                  c10::SymInt offset, int64_t seq_dim, bool interleaved,
                                  int64_t blocks, int64_t n_prefix, int64_t n_suffix,
                                  bool inverse) {
  const char* op = "axial_rotary_embedding";
  const Middle middle = middle_of(op, x, seq_dim, n_prefix, n_suffix);
  TORCH_CHECK_VALUE(axes.size() == inv_freq.size() && !axes.empty(), op,
                    ": expected axes to name one position axis for each of the ", inv_freq.size(),
                    " frequencies, got ", axes.size(), " entries");
  TORCH_CHECK_VALUE(blocks >= 1 && inv_freq.size() % blocks == 0, op,
                    ": expected blocks that share the ", inv_freq.size(),
                    " frequencies evenly, got ", blocks);
  const int64_t n_axes = *std::max_element(axes.begin(), axes.end()) + 1;
  const at::Tensor ids = middle.positions(op, x, position_ids, n_axes);
  const auto n = static_cast<int64_t>(inv_freq.size()) / blocks;
  return middle.apply(x, [&](at::Tensor part) {
    for (int64_t b = 0; b < blocks; ++b) {
      part = rotary_embedding(part, inv_freq.slice(b * n, n), ids, offset, middle.seq_dim,
                              interleaved, std::nullopt, /*rotary_start=*/2 * n * b, 1.0,
                              axes.slice(b * n, n), inverse);
    }
    return part;
  });
}

at::Tensor mixed_rotary_embedding(const at::Tensor& x, const at::Tensor& freqs,
                                  const at::Tensor& position_ids, c10::SymInt offset,
                                  int64_t seq_dim, bool interleaved, int64_t n_prefix,
                                  int64_t n_suffix, bool inverse) {
  const char* op = "mixed_rotary_embedding";
  const Middle middle = middle_of(op, x, seq_dim, n_prefix, n_suffix);
  core::check_floating(op, "freqs", freqs);
  const bool per_head = freqs.dim() == 3;
  TORCH_CHECK_VALUE(per_head || freqs.dim() == 2, op,
                    ": expected freqs of shape (A, H, n) or (A, n), got ", freqs.sym_sizes());
  if (per_head) {
    const bool good =
        x.dim() == 4 && freqs.sym_size(1) == x.sym_size(rotary::head_dim_axis(x, middle.seq_dim));
    TORCH_CHECK_VALUE(good, op, ": expected freqs (A, H, n) with the H heads of a 4-D x, got ",
                      freqs.sym_sizes(), " for x of shape ", x.sym_sizes());
  }
  const int64_t n_axes = freqs.size(0);
  TORCH_CHECK_VALUE(n_axes > 0, op, ": expected freqs for at least one axis, got ",
                    freqs.sym_sizes());
  const at::Tensor ids = middle.positions(op, x, position_ids, n_axes);
  const at::Tensor exact = freqs.to(at::kDouble);
  return middle.apply(x, [&](const at::Tensor& part) {
    // One rotation after the other adds their angles. In between float32 is kept, so that a half
    // type is rounded once.
    at::Tensor out = part.to(core::compute_dtype(part.scalar_type()));
    for (int64_t axis = 0; axis < n_axes; ++axis) {
      const at::Tensor row = exact.select(0, axis);
      out = rotary_embedding(out, per_head ? row.unsqueeze(0) : row, ids.select(0, axis), offset,
                             middle.seq_dim, interleaved, std::nullopt, /*rotary_start=*/0, 1.0,
                             std::nullopt, inverse);
    }
    return out.to(part.scalar_type());
  });
}

at::Tensor mixed_rotary_freqs(const at::Tensor& angles, int64_t n, double base) {
  const char* op = "mixed_rotary_freqs";
  core::check_floating(op, "angles", angles);
  TORCH_CHECK_VALUE(angles.dim() == 1, op, ": expected angles of shape (H), got ",
                    angles.sym_sizes());
  TORCH_CHECK_VALUE(n > 0 && n % 2 == 0, op,
                    ": expected an even, positive number of frequencies, got ", n);
  const at::Tensor magnitudes =
      core::float_list_tensor(rope_inv_freq(n, base), angles.options().dtype(at::kDouble));
  const at::Tensor direction = angles.to(at::kDouble).unsqueeze(-1);
  const at::Tensor along = magnitudes * direction.cos(), across = magnitudes * direction.sin();
  return at::stack({at::cat({along, -across}, -1), at::cat({across, along}, -1)})
      .to(angles.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "axial_rotary_embedding(Tensor x, float[] inv_freq, int[] axes, Tensor position_ids, SymInt "
      "offset=0, int seq_dim=1, bool interleaved=False, int blocks=1, int n_prefix=0, int "
      "n_suffix=0, bool inverse=False) -> Tensor",
      axial_rotary_embedding, tags);
  m.def(
      "mixed_rotary_embedding(Tensor x, Tensor freqs, Tensor position_ids, SymInt offset=0, int "
      "seq_dim=1, bool interleaved=True, int n_prefix=0, int n_suffix=0, bool inverse=False) -> "
      "Tensor",
      mixed_rotary_embedding, tags);
  m.def("mixed_rotary_freqs(Tensor angles, int n, float base=10.) -> Tensor", mixed_rotary_freqs,
        tags);
}

// vmap takes them apart as autograd does, in place of a loop over the batch.
TORCH_LIBRARY_IMPL(posenc, FuncTorchBatchedDecomposition, m) {
  m.impl("axial_rotary_embedding", axial_rotary_embedding);
  m.impl("mixed_rotary_embedding", mixed_rotary_embedding);
}

}  // namespace posenc
