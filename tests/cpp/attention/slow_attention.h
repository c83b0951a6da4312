#pragma once

// Biased attention in float64: once as loops from the formula, once dense in ATen so that autograd
// gives the gradients.

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace posenc::test {

/// The arguments of alibi_attention beside q, k, v.
struct AttentionCase {
  std::vector<double> slopes;
  bool causal = false;
  std::optional<at::Tensor> mask = {};  ///< broadcasts to (B, H, L, S)
  std::optional<double> scale = {};
  std::optional<int64_t> offset = {};
  std::optional<at::Tensor> q_positions = {}, k_positions = {};
};

struct AttentionResult {
  at::Tensor out, lse;
};

inline at::Tensor positions_of(const std::optional<at::Tensor>& given, int64_t batch,
                               int64_t length, int64_t offset) {
  if (given.has_value()) {
    return given->to(at::kDouble).expand({batch, length}).contiguous();
  }
  return (at::arange(length, at::kDouble) + static_cast<double>(offset))
      .expand({batch, length})
      .contiguous();
}

/// One pair at a time. A pair that is not allowed is never looked at.
inline AttentionResult slow_attention(const at::Tensor& q_in, const at::Tensor& k_in,
                                      const at::Tensor& v_in, const AttentionCase& c) {
  const at::Tensor q = q_in.detach().to(at::kDouble).contiguous(),
                   k = k_in.detach().to(at::kDouble).contiguous(),
                   v = v_in.detach().to(at::kDouble).contiguous();
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), D = q.size(3), S = k.size(2),
                Dv = v.size(3);
  const int64_t group = H / k.size(1);
  const at::Tensor qp = positions_of(c.q_positions, B, L, c.offset.value_or(S - L));
  const at::Tensor kp = positions_of(c.k_positions, B, S, 0);
  const at::Tensor mask = c.mask.has_value() ? c.mask->expand({B, H, L, S}).contiguous()
                                             : at::ones({B, H, L, S}, at::kBool);
  AttentionResult r{at::zeros({B, H, L, Dv}, at::kDouble), at::empty({B, H, L}, at::kDouble)};
  const auto Q = q.accessor<double, 4>(), K = k.accessor<double, 4>(), V = v.accessor<double, 4>();
  const auto QP = qp.accessor<double, 2>(), KP = kp.accessor<double, 2>();
  const auto M = mask.accessor<bool, 4>();
  auto out = r.out.accessor<double, 4>();
  auto lse = r.lse.accessor<double, 3>();
  const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t i = 0; i < L; ++i) {
        std::vector<double> score(S);
        std::vector<int64_t> keys;
        double most = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < S; ++j) {
          if (!M[b][h][i][j] || (c.causal && KP[b][j] > QP[b][i])) {
            continue;
          }
          double dot = 0;
          for (int64_t d = 0; d < D; ++d) {
            dot += Q[b][h][i][d] * K[b][h / group][j][d];
          }
          score[j] = scale * dot - c.slopes[h] * std::abs(QP[b][i] - KP[b][j]);
          most = std::max(most, score[j]);
          keys.push_back(j);
        }
        double sum = 0;
        for (int64_t j : keys) {
          sum += std::exp(score[j] - most);
        }
        lse[b][h][i] =
            keys.empty() ? -std::numeric_limits<double>::infinity() : most + std::log(sum);
        for (int64_t j : keys) {
          for (int64_t d = 0; d < Dv; ++d) {
            out[b][h][i][d] += std::exp(score[j] - most) / sum * V[b][h / group][j][d];
          }
        }
      }
    }
  }
  return r;
}

/// The same with whole matrices, differentiable; slopes as a tensor (H) or (B, H).
inline AttentionResult dense_reference(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const at::Tensor& slopes,
                                       const AttentionCase& c) {
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), S = k.size(2), group = H / k.size(1);
  const at::Tensor qp = positions_of(c.q_positions, B, L, c.offset.value_or(S - L));
  const at::Tensor kp = positions_of(c.k_positions, B, S, 0);
  const at::Tensor distance = (kp.unsqueeze(1) - qp.unsqueeze(2)).unsqueeze(1);
  at::Tensor allowed =
      c.mask.has_value() ? c.mask->expand({B, H, L, S}) : at::ones({B, H, L, S}, at::kBool);
  if (c.causal) {
    allowed = allowed.logical_and(distance <= 0);
  }
  const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const at::Tensor kk = k.repeat_interleave(group, 1), vv = v.repeat_interleave(group, 1);
  const at::Tensor scores = at::matmul(q, kk.transpose(2, 3)) * scale -
                            slopes.unsqueeze(-1).unsqueeze(-1) * distance.abs();
  // log_softmax, not exp: torch's exp of a float64 tensor was seen off by 1e-9 in the first call of
  // a process (about one process in 200, MKL's vector maths).
  const at::Tensor empty = allowed.any(-1, true).logical_not();
  const at::Tensor open = scores.masked_fill(allowed.logical_or(empty).logical_not(),
                                             -std::numeric_limits<double>::infinity());
  if (S == 0) {
    return {at::matmul(scores, vv),
            at::full({B, H, L}, -std::numeric_limits<double>::infinity(), scores.options())};
  }
  const at::Tensor best = open.detach().argmax(-1, true);
  const at::Tensor lse = (open.gather(-1, best) - at::log_softmax(open, -1).gather(-1, best));
  return {at::matmul(at::softmax(open, -1).masked_fill(empty, 0), vv),
          lse.masked_fill(empty, -std::numeric_limits<double>::infinity()).squeeze(-1)};
}

/// Largest |a − b| where b is finite; infinite where the two are not finite in the same places.
inline double finite_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  const at::Tensor good = y.isfinite();
  if (x.sizes() != y.sizes() || !at::equal(x.isfinite(), good)) {
    return std::numeric_limits<double>::infinity();
  }
  const at::Tensor difference = (x - y).abs().masked_select(good);
  return difference.numel() == 0 ? 0.0 : difference.max().item<double>();
}

}  // namespace posenc::test
