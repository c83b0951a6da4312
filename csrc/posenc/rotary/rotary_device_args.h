#pragma once

// What the host hands to the rotation kernel: numbers and addresses, at most 4 KB, by value.
//
// A thread owns a token (batch, position) and a chunk of its channels, and walks over the heads of
// every tensor of the call, so that cos and sin are made once and serve them all. A chunk is a pack
// of pairs (two packs of channels) or, past the pairs, a pack of channels that pass as they are.

#include <posenc/core/gpu_context.h>
#include <posenc/core/gpu_ids.h>

#include <algorithm>

namespace posenc::rotary {

/// One tensor; strides in elements.
struct RotaryDevicePart {
  const void* x;
  void* y;  ///< may be x
  int64_t x_batch, x_seq, x_head, x_last;
  int64_t y_batch, y_seq, y_head, y_last;
  int32_t heads, head_dim;
  int32_t chunks;  ///< of a token and head, those of rotated pairs first
  bool copied;     ///< every channel passes bit for bit
};

/// cos and sin given as tables (apply_rotary), of any dtype and strides; see Tables in
/// rotary_kernels.h.
struct RotaryDeviceTables {
  const void *cos, *sin;
  core::Dtype cos_dtype, sin_dtype;
  int64_t cos_batch, cos_seq, cos_last;
  int64_t sin_batch, sin_seq, sin_last;
  int64_t n_rows;
  bool wide, wide_interleaved;
};

struct RotaryDeviceParams {
  static constexpr int kMostParts = 4;
  static constexpr int kMostFrequencies = 128;  ///< by value; a longer list is several launches

  RotaryDevicePart parts[kMostParts];
  int32_t n_parts;
  int32_t total_heads, heads_per_thread;
  int64_t batch, seq;
  int32_t start;       ///< first rotated channel
  int32_t n_pairs;     ///< pairs of the rotation
  int32_t first_pair;  ///< pairs of this launch: n_here from first_pair on
  int32_t n_here;
  int32_t pair_chunks, chunks;  ///< chunks of pairs; the most chunks of any part
  bool interleaved_in, interleaved_out, inverse;
  bool copies_rest;  ///< channels that are not rotated are copied by this launch
  double attention_factor;

  /// Positions; with tables, the rows to take.
  core::IdView positions;
  int64_t axis_stride;  ///< elements between position axes; 0: one axis
  RotaryDeviceTables tables;

  /// Frequencies in device memory, float64 (batch or 1, heads or 1, n); nullptr: the lists below.
  const double* inv_freq;
  int64_t freq_batch, freq_head;
  /// In turns (see gpu_phase.h); for float64 the frequencies' own bits.
  uint64_t fraction[kMostFrequencies];
  int32_t whole[kMostFrequencies];
  uint8_t axis[kMostFrequencies];
};
static_assert(sizeof(RotaryDeviceParams) <= 4096);

/// Threads that fill a large GPU: work is spread over heads as well until there are as many.
inline constexpr int64_t kManyThreads = int64_t{1} << 18;

/// Shares the heads between threads, and sets the counts that follow from the parts. `pack` is the
/// number of channels that are read at once.
inline void plan_rotation(RotaryDeviceParams& p, int pack) {
  p.pair_chunks = p.n_here / pack;
  p.chunks = 0;
  p.total_heads = 0;
  for (int i = 0; i < p.n_parts; ++i) {
    RotaryDevicePart& part = p.parts[i];
    const bool copies = p.copies_rest && part.x != part.y;
    part.chunks = p.pair_chunks + (copies ? (part.head_dim - 2 * p.n_pairs) / pack : 0);
    p.chunks = std::max(p.chunks, part.chunks);
    p.total_heads += part.heads;
  }
  const int64_t items = std::max<int64_t>(1, p.batch * p.seq * p.chunks);
  const int64_t groups = std::clamp<int64_t>(core::ceil_div(kManyThreads, items), 1, p.total_heads);
  int64_t heads = core::ceil_div(p.total_heads, groups);
  heads = heads > 2 ? core::ceil_div(heads, 4) * 4 : heads;  // four at a time: see rotate_heads
  heads = std::max(heads, core::ceil_div(p.total_heads, core::kMaxGridYZ));
  p.heads_per_thread = static_cast<int32_t>(heads);
}

inline core::GridShape rotary_grid(const RotaryDeviceParams& p) {
  core::GridShape grid;
  grid.threads = 128;
  grid.x = core::ceil_div(p.batch * p.seq * p.chunks, grid.threads);
  grid.y = core::ceil_div(p.total_heads, std::max(1, p.heads_per_thread));
  return grid;
}

/// True where packs of `pack` channels of `size` bytes fit the tensor's addresses and strides and
/// the widths of rotated and passing channels.
inline bool pack_fits(const RotaryDeviceParams& p, const RotaryDevicePart& part, int pack,
                      int size) {
  const auto whole = [&](int64_t n) { return n % pack == 0; };
  const auto aligned = [&](const void* address) {
    return reinterpret_cast<uint64_t>(address) % (static_cast<uint64_t>(pack) * size) == 0;
  };
  return pack == 1 ||
         (part.x_last == 1 && part.y_last == 1 && whole(part.x_batch) && whole(part.x_seq) &&
          whole(part.x_head) && whole(part.y_batch) && whole(part.y_seq) && whole(part.y_head) &&
          aligned(part.x) && aligned(part.y) && whole(p.start) && whole(p.n_pairs) &&
          whole(part.head_dim));
}

/// The widest of the packs that the kernel is compiled for and that all parts allow: 16 bytes, 8
/// bytes (half types), one element.
inline int choose_pack(const RotaryDeviceParams& p, int size) {
  for (int pack = 16 / size; pack > 1; pack /= 2) {
    if (pack * size < 8) {
      break;
    }
    if (size >= 4 && pack * size < 16) {
      continue;
    }
    const bool fits = std::all_of(p.parts, p.parts + p.n_parts, [&](const RotaryDevicePart& part) {
      return pack_fits(p, part, pack, size);
    });
    if (fits) {
      return pack;
    }
  }
  return 1;
}

/// Writes frequency `i` of this launch into the lists.
inline void set_frequency(RotaryDeviceParams& p, int i, double inv_freq, int64_t axis,
                          bool is_double) {
  p.axis[i] = static_cast<uint8_t>(axis);
  if (is_double) {
    p.fraction[i] = core::bit_cast<uint64_t>(inv_freq);
  } else if (core::has_turn_frequency(inv_freq)) {
    const core::TurnFrequency turn = core::turn_frequency(inv_freq);
    p.fraction[i] = turn.fraction;
    p.whole[i] = turn.whole;
  } else {
    p.whole[i] = core::kNoTurn;
  }
}

}  // namespace posenc::rotary
