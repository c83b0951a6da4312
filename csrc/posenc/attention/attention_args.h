#pragma once

// The arguments of alibi_attention beside q, k, v and the slopes, and the checks of all; shared by
// Meta, CPU, Autograd.

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

namespace posenc::attention {

struct AttentionArgs {
  std::optional<at::Tensor> mask;
  bool is_causal = false;
  std::optional<double> scale;
  std::optional<c10::SymInt> offset;
  std::optional<at::Tensor> q_positions, k_positions, key_norms;

  /// The softmax scale: 1/√D unless given.
  double scale_of(const at::Tensor& q) const;
  /// Position of query 0 minus position of key 0: S − L unless given.
  c10::SymInt offset_of(const at::Tensor& q, const at::Tensor& k) const;
};

/// Checks everything but the slopes' values. Works on symbolic sizes. ValueError and TypeError name
/// the operator, what was expected and what came.
void check_attention(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionArgs& args);

/// As many slopes as query heads.
void check_slopes(const char* op, const at::Tensor& q, int64_t count);
/// Slopes as a tensor: (H) or (B, H), floating point.
void check_slopes(const char* op, const at::Tensor& q, const at::Tensor& slopes);

/// What the backward is handed beside the forward's arguments: shapes of the forward's outputs.
void check_backward(const char* op, const at::Tensor& grad_out,
                    const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse);

/// The arguments of alibi_key_norms.
void check_key_norms(const at::Tensor& k, const at::Tensor& v);

/// log of the share of a row's softmax mass that skipping may cost: what the dtype rounds away
/// anyway.
double log_epsilon(at::ScalarType dtype);

/// An empty output of the operator, (B, H, L, v's width): laid out as q where their widths agree,
/// so that a (B, L, H, D) model gets its heads back next to each other.
at::Tensor empty_output(const at::Tensor& q, const at::Tensor& v);
/// An empty (B, H, L) in the compute type.
at::Tensor empty_lse(const at::Tensor& q);
/// Whether there is nothing to compute: no rows, or no keys, for which out and lse are then filled.
bool fill_without_keys(const at::Tensor& k, at::Tensor& out, at::Tensor& lse);

}  // namespace posenc::attention
