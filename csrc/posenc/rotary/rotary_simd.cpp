// The rotation loops, compiled once per instruction set. Pointers and numbers only; everything
// anonymous but the table.

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <posenc/core/phase_rows.h>
#include <posenc/core/vec_tools.h>
#include <posenc/rotary/rotary_kernels.h>
#include <posenc/rotary/rotary_math.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace posenc::rotary {
namespace {

using at::vec::Vectorized;

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// A vector register of T as the one (float, double) or two (half types) registers of its compute
/// type.
template <typename T>
struct Lanes {
  using V = Vectorized<Compute<T>>;
  static constexpr int kParts = std::is_same_v<T, Compute<T>> ? 1 : 2;
  static constexpr int64_t kWidth = Vectorized<T>::size();

  static inline void load(const T* p, V (&v)[kParts]) {
    if constexpr (kParts == 1) {
      v[0] = V::loadu(p);
    } else {
      std::tie(v[0], v[1]) = at::vec::convert_to_float<T>(Vectorized<T>::loadu(p));
    }
  }
  static inline void store(T* p, const V (&v)[kParts]) {
    if constexpr (kParts == 1) {
      v[0].store(p);
    } else {
      at::vec::convert_from_float<T>(v[0], v[1]).store(p);
    }
  }
};

/// cos and sin of one row; the hi pointers equal the lo ones unless a table is wide.
template <typename C>
struct Angles {
  const C *cos_lo, *sin_lo, *cos_hi, *sin_hi;
};

/// Rotates the pairs of one row of one head: `x`, `y` point at the first rotated channel, unit
/// stride.
template <typename T, bool kInterleavedIn, bool kInterleavedOut>
inline void rotate_row(const T* x, T* y, int64_t n, const Angles<Compute<T>>& angles) {
  using C = Compute<T>;
  using L = Lanes<T>;
  using V = typename L::V;
  constexpr int kParts = L::kParts;
  constexpr int64_t kPart = V::size();  // pairs in one register of compute type
  constexpr int64_t kStep = L::kWidth;  // pairs in one turn: a register of T each way
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    V first[kParts], second[kParts], a[kParts], b[kParts];
    if constexpr (kInterleavedIn) {
      L::load(x + 2 * i, first);
      L::load(x + 2 * i + L::kWidth, second);
      // Registers in memory order: first[0], first[1], second[0], second[1]; neighbours hold whole
      // pairs.
      V all[2 * kParts];
      for (int k = 0; k < kParts; ++k) {
        all[k] = first[k];
        all[kParts + k] = second[k];
      }
      for (int k = 0; k < kParts; ++k) {
        std::tie(a[k], b[k]) = at::vec::deinterleave2(all[2 * k], all[2 * k + 1]);
      }
    } else {
      L::load(x + i, a);
      L::load(x + n + i, b);
    }
    V lo[kParts], hi[kParts];
    for (int k = 0; k < kParts; ++k) {
      const int64_t j = i + k * kPart;
      rotate_pair(a[k], b[k], V::loadu(angles.cos_lo + j), V::loadu(angles.sin_lo + j),
                  V::loadu(angles.cos_hi + j), V::loadu(angles.sin_hi + j), lo[k], hi[k]);
    }
    if constexpr (kInterleavedOut) {
      V all[2 * kParts];
      for (int k = 0; k < kParts; ++k) {
        std::tie(all[2 * k], all[2 * k + 1]) = at::vec::interleave2(lo[k], hi[k]);
      }
      for (int k = 0; k < kParts; ++k) {
        first[k] = all[k];
        second[k] = all[kParts + k];
      }
      L::store(y + 2 * i, first);
      L::store(y + 2 * i + L::kWidth, second);
    } else {
      L::store(y + i, lo);
      L::store(y + n + i, hi);
    }
  }
  for (; i < n; ++i) {
    const C a = static_cast<C>(x[kInterleavedIn ? 2 * i : i]);
    const C b = static_cast<C>(x[kInterleavedIn ? 2 * i + 1 : n + i]);
    C lo, hi;
    rotate_pair(a, b, angles.cos_lo[i], angles.sin_lo[i], angles.cos_hi[i], angles.sin_hi[i], lo,
                hi);
    y[kInterleavedOut ? 2 * i : i] = static_cast<T>(lo);
    y[kInterleavedOut ? 2 * i + 1 : n + i] = static_cast<T>(hi);
  }
}

/// cos and sin for the rows of one sequence block, from frequencies or from tables.
template <typename C>
class AngleBlock {
 public:
  explicit AngleBlock(const RotaryParams& p)
      : p_(p),
        phases_(p.inv_freq, p.tables.cos ? 0 : p.n_freq, p.attention_factor,
                p.inverse ? -1.0 : 1.0),
        row_stride_((p.tables.cos && p.tables.wide ? 4 : 2) * p.n_freq),
        buffer_(p.seq_block * row_stride_) {}

  /// True where every row of the batch has the same angles, so that a block serves them all.
  bool shared_by_batch() const {
    return p_.tables.cos ? p_.tables.batch_stride == 0 && p_.tables.rows_batch_stride == 0
                         : p_.positions.shared_by_batch();
  }

  void fill(int64_t batch, int64_t l0, int64_t l1) {
    for (int64_t l = l0; l < l1; ++l) {
      C* row = buffer_.data() + (l - l0) * row_stride_;
      p_.tables.cos ? from_tables(batch, l, row) : from_phases(batch, l, row);
    }
  }

  Angles<C> row(int64_t i) const {
    const int64_t n = p_.n_freq;
    const C* r = buffer_.data() + i * row_stride_;
    return p_.tables.cos && p_.tables.wide ? Angles<C>{r, r + n, r + 2 * n, r + 3 * n}
                                           : Angles<C>{r, r + n, r, r + n};
  }

 private:
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
  int64_t row_stride_;
  std::vector<C> buffer_;
};

template <typename T>
void copy_channels(const T* x, T* y, int64_t begin, int64_t end, int64_t x_stride,
                   int64_t y_stride) {
  if (x_stride == 1 && y_stride == 1) {
    std::memcpy(y + begin, x + begin, (end - begin) * sizeof(T));
    return;
  }
  for (int64_t d = begin; d < end; ++d) {
    y[d * y_stride] = x[d * x_stride];
  }
}

/// Every head of one row, channels as they are.
template <typename T>
void copy_heads(const RotaryPart& part, const T* x, T* y) {
  const int64_t width = part.head_dim;
  if (part.xs.last == 1 && part.ys.last == 1 && part.xs.head == width && part.ys.head == width) {
    std::memcpy(y, x, part.heads * width * sizeof(T));
    return;
  }
  for (int64_t h = 0; h < part.heads; ++h) {
    copy_channels(x + h * part.xs.head, y + h * part.ys.head, 0, width, part.xs.last, part.ys.last);
  }
}

/// Rows whose channels do not lie side by side, and a rotation in place that writes another layout
/// than it reads, go through a row of scratch.
inline bool packs_in(const RotaryPart& part, bool relaid) {
  return part.xs.last != 1 || (relaid && part.x == part.y);
}

inline bool packs_out(const RotaryPart& part) { return part.ys.last != 1; }

constexpr int64_t kBytesAhead = 8192;

/// Every head of one row, rotated; x and y point at the row's first channel.
template <typename T, bool kInterleavedIn, bool kInterleavedOut>
void rotate_heads(const RotaryParams& p, const RotaryPart& part, const T* x, T* y,
                  const Angles<Compute<T>>& angles, T* scratch) {
  const int64_t n = p.n_freq, rotated = 2 * n;
  const bool pack_in = packs_in(part, kInterleavedIn != kInterleavedOut);
  const bool pack_out = packs_out(part);
  const bool copies = part.x != part.y && part.head_dim > rotated;
  T* in_row = scratch;
  T* out_row = scratch + rotated;
  // Rows some pages ahead are asked for now: reading one stream, a thread does not fill the
  // memory's pipe by itself.
  const int64_t row_bytes = part.head_dim * static_cast<int64_t>(sizeof(T));
  const int64_t rows_ahead = std::max<int64_t>(1, kBytesAhead / (part.heads * row_bytes));
  const int64_t ahead = part.xs.last == 1 && p.seq > 1 ? rows_ahead * part.xs.seq : 0;
  for (int64_t h = 0; h < part.heads; ++h, x += part.xs.head, y += part.ys.head) {
    if (ahead != 0) {
      core::prefetch_row(x + ahead, part.head_dim);
    }
    const T* source = x + p.start * part.xs.last;
    T* target = y + p.start * part.ys.last;
    if (pack_in) {
      copy_channels(source, in_row, 0, rotated, part.xs.last, 1);
      source = in_row;
    }
    rotate_row<T, kInterleavedIn, kInterleavedOut>(source, pack_out ? out_row : target, n, angles);
    if (pack_out) {
      copy_channels(out_row, target, 0, rotated, 1, part.ys.last);
    }
    if (copies) {
      copy_channels(x, y, 0, p.start, part.xs.last, part.ys.last);
      copy_channels(x, y, p.start + rotated, part.head_dim, part.xs.last, part.ys.last);
    }
  }
}

template <typename T, bool kInterleavedIn, bool kInterleavedOut>
void rotate_blocks(const RotaryParams& p, int64_t begin, int64_t end) {
  using C = Compute<T>;
  AngleBlock<C> angles(p);
  const bool shared = angles.shared_by_batch();
  const RotaryPart* const parts_end = p.parts + p.n_parts;
  const bool packs = std::any_of(p.parts, parts_end, [](const RotaryPart& part) {
    return packs_in(part, kInterleavedIn != kInterleavedOut) || packs_out(part);
  });
  std::vector<T> scratch(packs ? 4 * p.n_freq : 0);

  int64_t filled = -1;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t block = task / p.batch, b = task % p.batch;
    const int64_t l0 = block * p.seq_block, l1 = std::min(p.seq, l0 + p.seq_block);
    if (!shared || filled != block) {
      angles.fill(b, l0, l1);
      filled = block;
    }
    for (int64_t l = l0; l < l1; ++l) {
      const Angles<C> row = angles.row(l - l0);
      for (const RotaryPart* part = p.parts; part != parts_end; ++part) {
        const T* x = static_cast<const T*>(part->x) + b * part->xs.batch + l * part->xs.seq;
        T* y = static_cast<T*>(part->y) + b * part->ys.batch + l * part->ys.seq;
        if (part->copied) {
          copy_heads(*part, x, y);
        } else {
          rotate_heads<T, kInterleavedIn, kInterleavedOut>(p, *part, x, y, row, scratch.data());
        }
      }
    }
  }
}

template <typename T>
void rotate(const RotaryParams& p, int64_t begin, int64_t end) {
  if (p.interleaved_in) {
    p.interleaved_out ? rotate_blocks<T, true, true>(p, begin, end)
                      : rotate_blocks<T, true, false>(p, begin, end);
  } else {
    p.interleaved_out ? rotate_blocks<T, false, true>(p, begin, end)
                      : rotate_blocks<T, false, false>(p, begin, end);
  }
}

}  // namespace

POSENC_DEFINE_ISA_TABLE(RotaryKernels, rotary_kernels,
                        {&rotate<double>, &rotate<float>, &rotate<c10::BFloat16>,
                         &rotate<c10::Half>})

}  // namespace posenc::rotary
