// The rotation loops, compiled once per instruction set. Pointers and numbers only; everything
// anonymous but the table.

#include <posenc/core/vec_tools.h>
#include <posenc/rotary/angle_block.h>
#include <posenc/rotary/rotary_kernels.h>
#include <posenc/rotary/rotate_row.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace posenc::rotary {
namespace {

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

/// How far ahead rows are asked for, where that pays (Walk).
constexpr int64_t kBytesAhead = 8192;

/// Streams that are walked side by side: reading and writing one alone, a thread does not fill the
/// memory's pipe. More than a few cost more than they bring.
constexpr int64_t kStreams = 4;

/// Heads that do not lie side by side are streams of their own.
inline int64_t streams_of(const RotaryPart& part) {
  return part.xs.head == part.head_dim ? 1 : part.heads;
}

/// How the rows of a part are walked. Measured: where the output is out of the caches' reach (its
/// pages are fresh), one stream with rows asked for ahead; elsewhere several streams, and the
/// processor's own prefetching, which only a single stream in place leaves wanting.
struct Walk {
  int64_t together;  ///< rows of the batch side by side
  bool ahead;        ///< ask for rows to come
};

template <typename T>
Walk walk_of(const RotaryParams& p, const RotaryPart& part, bool shared) {
  constexpr int64_t kLarge = int64_t{32} << 20;
  const int64_t bytes =
      p.batch * p.seq * part.heads * part.head_dim * static_cast<int64_t>(sizeof(T));
  const bool asks = p.seq > 1 && part.xs.last == 1;
  if (part.x != part.y && bytes >= kLarge) {
    return {1, asks};
  }
  const int64_t streams = streams_of(part);
  const int64_t together = shared ? std::max<int64_t>(1, kStreams / streams) : 1;
  return {together, asks && part.x == part.y && streams * std::min(together, p.batch) == 1};
}

/// Every head of one row, rotated; x and y point at the row's first channel. `ahead`: ask for rows
/// to come.
template <typename T, bool kInterleavedIn, bool kInterleavedOut>
void rotate_heads(const RotaryParams& p, const RotaryPart& part, const T* x, T* y,
                  const Angles<Compute<T>>& angles, bool ahead, T* scratch) {
  const int64_t n = p.n_freq, rotated = 2 * n;
  const bool pack_in = packs_in(part, kInterleavedIn != kInterleavedOut);
  const bool pack_out = packs_out(part);
  const bool copies = part.x != part.y && part.head_dim > rotated;
  T* in_row = scratch;
  T* out_row = scratch + rotated;
  if (ahead) {
    const int64_t row_bytes = part.head_dim * static_cast<int64_t>(sizeof(T));
    const int64_t rows_ahead = std::max<int64_t>(1, kBytesAhead / (part.heads * row_bytes));
    for (int64_t h = 0; h < part.heads; ++h) {
      core::prefetch_row(x + h * part.xs.head + rows_ahead * part.xs.seq, part.head_dim);
    }
  }
  for (int64_t h = 0; copies && h < part.heads; ++h) {
    const T* from = x + h * part.xs.head;
    T* to = y + h * part.ys.head;
    copy_channels(from, to, 0, p.start, part.xs.last, part.ys.last);
    copy_channels(from, to, p.start + rotated, part.head_dim, part.xs.last, part.ys.last);
  }
  const T* source = x + p.start * part.xs.last;
  T* target = y + p.start * part.ys.last;
  if (!pack_in && !pack_out) {
    rotate_row<T, kInterleavedIn, kInterleavedOut>(
        source, target, {part.heads, part.xs.head, part.ys.head}, n, angles);
    return;
  }
  for (int64_t h = 0; h < part.heads; ++h, source += part.xs.head, target += part.ys.head) {
    if (pack_in) {
      copy_channels(source, in_row, 0, rotated, part.xs.last, 1);
    }
    rotate_row<T, kInterleavedIn, kInterleavedOut>(
        pack_in ? in_row : source, pack_out ? out_row : target, {1, 0, 0}, n, angles);
    if (pack_out) {
      copy_channels(out_row, target, 0, rotated, 1, part.ys.last);
    }
  }
}

template <typename T, bool kInterleavedIn, bool kInterleavedOut>
void rotate_blocks(const RotaryParams& p, int64_t begin, int64_t end) {
  using C = Compute<T>;
  AngleBlock<C, form_of<T, kInterleavedIn, kInterleavedOut>(), std::is_same_v<T, c10::BFloat16>>
      angles(p);
  const bool shared = angles.shared_by_batch();
  const RotaryPart* const parts_end = p.parts + p.n_parts;
  const bool packs = std::any_of(p.parts, parts_end, [](const RotaryPart& part) {
    return packs_in(part, kInterleavedIn != kInterleavedOut) || packs_out(part);
  });
  std::vector<T> scratch(packs ? 4 * p.n_freq : 0);

  const int64_t blocks = (p.seq + p.seq_block - 1) / p.seq_block;
  const bool rows_in_turn = p.freq_batch_stride != 0;
  const Walk walk = walk_of<T>(p, *p.parts, shared);
  int64_t filled = -1;
  for (int64_t task = begin; task < end;) {
    const int64_t block = rows_in_turn ? task % blocks : task / p.batch;
    const int64_t b0 = rows_in_turn ? task / blocks : task % p.batch;
    const int64_t l0 = block * p.seq_block, l1 = std::min(p.seq, l0 + p.seq_block);
    if (!shared || filled != block) {
      angles.fill(b0, l0, l1);
      filled = block;
    }
    const int64_t together = std::min({walk.together, end - task, p.batch - b0});
    for (int64_t l = l0; l < l1; ++l) {
      const Angles<C> row = angles.row(l - l0);
      for (int64_t b = b0; b < b0 + together; ++b) {
        for (const RotaryPart* part = p.parts; part != parts_end; ++part) {
          const T* x = static_cast<const T*>(part->x) + b * part->xs.batch + l * part->xs.seq;
          T* y = static_cast<T*>(part->y) + b * part->ys.batch + l * part->ys.seq;
          if (part->copied) {
            copy_heads(*part, x, y);
          } else {
            rotate_heads<T, kInterleavedIn, kInterleavedOut>(p, *part, x, y, row, walk.ahead,
                                                             scratch.data());
          }
        }
      }
    }
    task += together;
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
