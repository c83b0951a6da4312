#pragma once

// What the files that register rotary operators share: the arguments behind the frequencies, as the
// schema's text, as a signature and as a call, and how they travel from forward to backward.

#include <posenc/core/dispatch.h>
#include <posenc/rotary/rotary.h>
#include <posenc/rotary/rotary_args.h>
#include <torch/csrc/autograd/custom_function.h>

// As parameters of a kernel, as their types alone, and handed on.
#define POSENC_ROTARY_ARGS                                                           \
  const std::optional<at::Tensor>&position_ids, c10::SymInt offset, int64_t seq_dim, \
      bool interleaved, std::optional<bool> interleaved_out, int64_t rotary_start,   \
      double attention_factor, at::OptionalIntArrayRef axes, bool inverse
#define POSENC_ROTARY_TYPES                                                                   \
  const std::optional<at::Tensor>&, c10::SymInt, int64_t, bool, std::optional<bool>, int64_t, \
      double, at::OptionalIntArrayRef, bool
#define POSENC_ROTARY_PASS                                                                     \
  position_ids, offset, seq_dim, interleaved, interleaved_out, rotary_start, attention_factor, \
      axes, inverse
// The fields of a RotaryArgs, handed on.
#define POSENC_ROTARY_PASS_OF(a)                                                   \
  (a).position_ids, (a).offset, (a).seq_dim, (a).interleaved, (a).interleaved_out, \
      (a).rotary_start, (a).attention_factor, (a).axes_ref(), (a).inverse

namespace posenc::rotary {

/// The same in a schema, with the closing parenthesis.
inline constexpr const char* kSchemaRest =
    "Tensor? position_ids=None, SymInt offset=0, int seq_dim=1, bool interleaved=True, "
    "bool? interleaved_out=None, int rotary_start=0, float attention_factor=1., "
    "int[]? axes=None, bool inverse=False)";

/// The arguments across forward and backward; position_ids travels as a saved variable.
void save_args(torch::autograd::AutogradContext* ctx, const RotaryArgs& args);
RotaryArgs load_args(torch::autograd::AutogradContext* ctx, const at::Tensor& position_ids);

}  // namespace posenc::rotary
