#pragma once

// cos and sin of a block of rows, in the form that the loops read. For *_simd.cpp only.

#include <posenc/core/phase_rows.h>
#include <posenc/rotary/rotary_kernels.h>
#include <posenc/rotary/rotate_row.h>

#include <limits>
#include <vector>

namespace posenc::rotary {
namespace {

/// cos and sin for the rows of one sequence block, from frequencies or from tables. kOneNan: a NaN
/// becomes the one that bfloat16 can hold.
template <typename C, Form kForm, bool kOneNan>
class AngleBlock {
 public:
  explicit AngleBlock(const RotaryParams& p)
      : p_(p),
        phases_(p.inv_freq, p.tables.cos ? 0 : p.n_freq, p.attention_factor,
                p.inverse ? -1.0 : 1.0),
        wide_(p.tables.cos && p.tables.wide),
        made_((wide_ ? 4 : 2) * p.n_freq),
        row_stride_((wide_ || kForm == Form::kDoubled ? 4 : 2) * p.n_freq),
        buffer_(p.seq_block * row_stride_),
        row_(kForm == Form::kPlain ? 0 : made_) {}

  /// True where every row of the batch has the same angles, so that a block serves them all.
  bool shared_by_batch() const {
    return p_.tables.cos ? p_.tables.batch_stride == 0 && p_.tables.rows_batch_stride == 0
                         : p_.positions.shared_by_batch() && p_.freq_batch_stride == 0;
  }

  void fill(int64_t batch, int64_t l0, int64_t l1) {
    phases_.use(p_.inv_freq + batch * p_.freq_batch_stride);
    for (int64_t l = l0; l < l1; ++l) {
      C* target = buffer_.data() + (l - l0) * row_stride_;
      C* row = kForm == Form::kPlain ? target : row_.data();
      p_.tables.cos ? from_tables(batch, l, row) : from_phases(batch, l, row);
      if constexpr (kOneNan) {
        for (int64_t i = 0; i < made_; ++i) {
          row[i] = row[i] == row[i] ? row[i] : std::numeric_limits<C>::quiet_NaN();
        }
      }
      if constexpr (kForm == Form::kDoubled) {
        double_row(row, target);
      } else if constexpr (kForm == Form::kSplit) {
        split_row(row, target);
      }
    }
  }

  Angles<C> row(int64_t i) const {
    const int64_t n = p_.n_freq;
    const C* r = buffer_.data() + i * row_stride_;
    if constexpr (kForm == Form::kDoubled) {
      return {r, r + 2 * n, r, r + 2 * n};
    }
    return wide_ ? Angles<C>{r, r + n, r + 2 * n, r + 3 * n} : Angles<C>{r, r + n, r, r + n};
  }

 private:
  void double_row(const C* row, C* target) const {
    const int64_t n = p_.n_freq, hi = wide_ ? 2 * n : 0;
    C *cos = target, *sin = target + 2 * n;
    for (int64_t i = 0; i < n; ++i) {
      cos[2 * i] = row[i];
      cos[2 * i + 1] = row[hi + i];
      sin[2 * i] = -row[n + i];
      sin[2 * i + 1] = row[hi + n + i];
    }
  }

  void split_row(const C* row, C* target) const {
    constexpr int64_t kHalf = Vectorized<C>::size();
    const int64_t n = p_.n_freq, whole = n / (2 * kHalf) * (2 * kHalf);
    for (int64_t part = 0; part < made_; part += n) {
      for (int64_t i = 0; i < whole; i += 2 * kHalf) {
        for (int64_t k = 0; k < kHalf; ++k) {
          target[part + i + k] = row[part + i + 2 * k];
          target[part + i + kHalf + k] = row[part + i + 2 * k + 1];
        }
      }
      for (int64_t i = whole; i < n; ++i) {
        target[part + i] = row[part + i];
      }
    }
  }

  void from_phases(int64_t batch, int64_t l, C* row) {
    C *cos = row, *sin = row + p_.n_freq;
    if (!p_.axes) {
      phases_.row(p_.positions.at(0, batch, l), cos, sin);
      return;
    }
    for (int64_t i = 0; i < p_.n_freq;) {  // runs of frequencies that read one axis
      int64_t end = i + 1;
      while (end < p_.n_freq && p_.axes[end] == p_.axes[i]) {
        ++end;
      }
      phases_.row(p_.positions.at(p_.axes[i], batch, l), cos, sin, i, end);
      i = end;
    }
  }

  void from_tables(int64_t batch, int64_t l, C* row) const {
    const Tables& t = p_.tables;
    const int64_t n = p_.n_freq;
    const int64_t r = t.rows ? t.rows[batch * t.rows_batch_stride + l] : l;
    const C* cos = static_cast<const C*>(t.cos) + batch * t.batch_stride + r * t.seq_stride;
    const C* sin = static_cast<const C*>(t.sin) + batch * t.batch_stride + r * t.seq_stride;
    const C sign = p_.inverse ? C(-1) : C(1);
    if (!t.wide) {
      for (int64_t i = 0; i < n; ++i) {
        row[i] = cos[i];
        row[n + i] = sign * sin[i];
      }
      return;
    }
    // The transpose of [[cos_lo, -sin_lo], [sin_hi, cos_hi]] swaps the two sines.
    const int64_t lo_sin = p_.inverse ? 3 * n : n, hi_sin = p_.inverse ? n : 3 * n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t lo = t.wide_interleaved ? 2 * i : i,
                    hi = t.wide_interleaved ? 2 * i + 1 : n + i;
      row[i] = cos[lo];
      row[2 * n + i] = cos[hi];
      row[lo_sin + i] = sign * sin[lo];
      row[hi_sin + i] = sign * sin[hi];
    }
  }

  const RotaryParams& p_;
  core::PhaseRows phases_;
  bool wide_;
  int64_t made_, row_stride_;
  std::vector<C> buffer_, row_;
};

}  // namespace
}  // namespace posenc::rotary
