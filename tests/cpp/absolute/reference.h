#pragma once

// Slow and obvious float64 references, and comparisons, for the tests of this room.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace posenc::testing {

using OptionalTensor = std::optional<at::Tensor>;

/// base^(-2i/d), one entry a loop.
inline std::vector<double> vaswani(int64_t d) {
  std::vector<double> f;
  for (int64_t i = 0; 2 * i < d; ++i) {
    f.push_back(1. / std::pow(10000., 2. * static_cast<double>(i) / static_cast<double>(d)));
  }
  return f;
}

/// One number of the encoding: channel c of d at position p.
inline double encoding_at(double p, const std::vector<double>& f, int64_t c, bool interleaved) {
  const auto n = static_cast<int64_t>(f.size());
  if (c >= 2 * n) {
    return 0.;
  }
  const bool sine = interleaved ? c % 2 == 0 : c < n;
  const int64_t i = interleaved ? c / 2 : c % n;
  const double angle = p * f[i];
  return sine ? std::sin(angle) : std::cos(angle);
}

/// x * scale + row(batch entry, time step), element by element, in float64.
inline at::Tensor reference_add(const at::Tensor& x, int64_t seq_dim, double scale,
                                const std::function<double(int64_t, int64_t, int64_t)>& row) {
  seq_dim = seq_dim < 0 ? seq_dim + x.dim() : seq_dim;
  const int64_t batch_dim = seq_dim != 0 ? 0 : (x.dim() >= 3 ? 1 : -1);
  at::Tensor y = x.detach().to(at::kDouble).contiguous().clone();
  double* data = y.mutable_data_ptr<double>();
  for (int64_t k = 0; k < y.numel(); ++k) {
    int64_t rest = k;
    std::vector<int64_t> index(y.dim());
    for (int64_t dim = y.dim() - 1; dim >= 0; --dim) {
      index[dim] = rest % y.size(dim);
      rest /= y.size(dim);
    }
    const int64_t b = batch_dim < 0 ? 0 : index[batch_dim];
    data[k] = data[k] * scale + row(b, index[seq_dim], index.back());
  }
  return y;
}

/// position_ids + offset at (b, l).
inline double position_at(const OptionalTensor& ids, double offset, int64_t b, int64_t l) {
  if (!ids.has_value()) {
    return offset + static_cast<double>(l);
  }
  const at::Tensor row = ids->dim() == 2 ? (*ids)[ids->size(0) == 1 ? 0 : b] : *ids;
  return row[l].item<double>() + offset;
}

/// Half a unit in the last place of the dtype, at numbers of size `magnitude`, twice over.
inline double tolerance(at::ScalarType dtype, double magnitude = 4.) {
  switch (dtype) {
    case at::kDouble:
      return magnitude * 0x1p-52;
    case at::kFloat:
      return magnitude * 0x1p-23;
    case at::kHalf:
      return magnitude * 0x1p-11;
    default:
      return magnitude * 0x1p-8;
  }
}

inline void expect_close(const at::Tensor& got, const at::Tensor& want, double tol,
                         const std::string& what = "") {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (got.numel() > 0) {
    const double off = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(off, tol) << what << "\ngot " << got << "\nwant " << want;
  }
}

inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b,
                             const std::string& what = "") {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(at::equal(a, b)) << what;
}

/// The text of the error that f throws; a test failure where it throws none or another kind.
template <typename Error>
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
  }
}

/// Central differences of sum(f(x) * weight) against the gradient that autograd gives.
inline void expect_gradient(const std::function<at::Tensor(const at::Tensor&)>& f,
                            const at::Tensor& x, double tol = 1e-6) {
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  const at::Tensor y = f(leaf);
  const at::Tensor weight = at::randn_like(y);
  (y * weight).sum().backward();
  at::Tensor numeric = at::zeros_like(x);
  at::NoGradGuard no_grad;
  const double h = 1e-5;
  for (int64_t k = 0; k < x.numel(); ++k) {
    at::Tensor high = x.detach().clone().contiguous(), low = high.clone();
    high.view({-1})[k] += h;
    low.view({-1})[k] -= h;
    numeric.view({-1})[k] = ((f(high) - f(low)) * weight).sum() / (2 * h);
  }
  ASSERT_TRUE(leaf.grad().defined());
  expect_close(leaf.grad(), numeric, tol, "gradient");
}

inline const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16,
                                                    at::kHalf};

}  // namespace posenc::testing
