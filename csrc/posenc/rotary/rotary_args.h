#pragma once

// The arguments of the rotary operators that are not tensors to rotate, and their checks; shared by
// Meta, CPU and Autograd.

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/OptionalArrayRef.h>

namespace posenc::rotary {

struct RotaryArgs {
  std::optional<at::Tensor> position_ids;
  c10::SymInt offset = 0;
  int64_t seq_dim = 1;
  bool interleaved = true;
  std::optional<bool> interleaved_out;
  int64_t rotary_start = 0;
  double attention_factor = 1.0;
  std::optional<std::vector<int64_t>> axes;
  bool inverse = false;

  bool layout_out() const { return interleaved_out.value_or(interleaved); }
  int64_t n_axes() const;

  at::OptionalIntArrayRef axes_ref() const {
    return axes.has_value() ? at::OptionalIntArrayRef(at::IntArrayRef(*axes)) : std::nullopt;
  }

  /// The transpose of the same map: the rotation of a gradient.
  RotaryArgs transposed() const;
};

/// The schema's arguments as one value.
RotaryArgs make_args(const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                     int64_t seq_dim, bool interleaved, std::optional<bool> interleaved_out,
                     int64_t rotary_start, double attention_factor, at::OptionalIntArrayRef axes,
                     bool inverse);

/// Checks x and the arguments against `n` frequencies, and wraps seq_dim. Works on symbolic sizes.
/// `name` is what the operator's schema calls x.
void check_rotary(const char* op, const at::Tensor& x, int64_t n, RotaryArgs& args,
                  const char* name = "x");

/// The same for two tensors that turn by the same positions: each alone, and their lengths against
/// each other. args.seq_dim becomes q's time axis; returns k's.
int64_t check_rotary_qk(const char* op, const at::Tensor& q, const at::Tensor& k, int64_t n,
                        RotaryArgs& args);

/// The same for a packed (B, L, n_heads + 2·n_kv_heads, D) or (B, L, 3, H, D), time on axis 1;
/// returns how many entries of axis 2 are rotated: q's and k's.
int64_t check_rotary_qkv(const char* op, const at::Tensor& qkv, int64_t n_heads, int64_t n_kv_heads,
                         int64_t n, RotaryArgs& args);

/// Checks frequencies given as a tensor: float64 (n), (B, 1, n), or for a 4-D x (1, H, n).
void check_freq_tensor(const char* op, const at::Tensor& x, const at::Tensor& inv_freq,
                       const RotaryArgs& args);

/// All of rotary_embedding.Tensor, whose number of frequencies must be known.
void check_rotary_tensor(const at::Tensor& x, const at::Tensor& inv_freq, RotaryArgs& args);

/// The axis of a 4-D x that is neither batch, time nor channel: the heads.
int64_t head_dim_axis(const at::Tensor& x, int64_t seq_dim);

}  // namespace posenc::rotary
