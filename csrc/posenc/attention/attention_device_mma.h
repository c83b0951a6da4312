#pragma once

// Products of tiles on tensor cores, for float16 and bfloat16 from compute capability 8.0 on: the
// warp-wide mma.m16n8k16 and ldmatrix of PTX, with twins that do the same on the host by the
// documented layout of fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"). A block of four
// warps works on (64 × 4·N) scores, each warp on 16 rows. See attention_device_fma.h for what an
// engine is.

#include <posenc/attention/attention_device_fma.h>

namespace posenc::attention::device {

/// Four 8 × 8 matrices of 2-byte numbers from shared memory: lane i gives the address of row i % 8
/// of matrix i / 8, and gets of matrix m in r[m] the numbers 2·(lane % 4) and the next of row lane
/// / 4; `transposed`: of column lane / 4.
template <bool transposed, class Gpu>
POSENC_HD void load_matrices(const Gpu& gpu, const uint16_t* row, uint32_t (&r)[4]) {
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
#else
  if constexpr (requires { gpu.gather(row); }) {
    const uint16_t* const* rows = gpu.gather(row);
    const int line = gpu.lane() / 4, pair = gpu.lane() % 4 * 2;
    for (int m = 0; m < 4; ++m) {
      const uint16_t low = transposed ? rows[8 * m + pair][line] : rows[8 * m + line][pair];
      const uint16_t high =
          transposed ? rows[8 * m + pair + 1][line] : rows[8 * m + line][pair + 1];
      r[m] = low | static_cast<uint32_t>(high) << 16;
    }
  }
#endif
}

template <class S>
POSENC_HD uint32_t pack_pair(float low, float high) {
  const float both[2] = {low, high};
  return core::bit_cast<uint32_t>(core::pack<S>(both));
}

template <class S>
POSENC_HD float number_of(uint16_t bits) {
  return core::to_compute(core::bit_cast<S>(bits));
}

/// d += a·b for a (16 × 16) and b (16 × 8). Lane l holds, with g = l / 4 and t = 2·(l % 4): of a
/// the pairs (g, t), (g + 8, t), (g, t + 8), (g + 8, t + 8); of b the pairs (t, g), (t + 8, g) down
/// a column; of d (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1).
template <class S, class Gpu>
POSENC_HD void multiply_add(const Gpu& gpu, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                            float& d0, float& d1, float& d2, float& d3) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<S, core::Half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  __trap();  // never launched there: see has_tensor_cores
#endif
#else
  if constexpr (requires { gpu.gather(b0); }) {
    struct Fragments {
      uint32_t a[4], b[2];
    };
    const Fragments* all = gpu.gather(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    const auto half_of = [](uint32_t pair, int which) {
      return static_cast<double>(number_of<S>(static_cast<uint16_t>(pair >> (16 * which))));
    };
    const int g = gpu.lane() / 4, t = gpu.lane() % 4 * 2;
    float* d[4] = {&d0, &d1, &d2, &d3};
    for (int e = 0; e < 4; ++e) {
      double sum = *d[e];
      for (int k = 0; k < 16; ++k) {
        const int pair = k % 8 / 2;
        const uint32_t left = all[4 * g + pair].a[e / 2 + 2 * (k / 8)];
        const uint32_t right = all[4 * (t + e % 2) + pair].b[k / 8];
        sum += half_of(left, k % 2) * half_of(right, k % 2);
      }
      *d[e] = static_cast<float>(sum);
    }
  }
#endif
}

/// Rows [0, rows) of `a`, channels [first, first + width), bit for bit; zeros past the last. Copies
/// of one group: see gpu_context.h.
template <class S, class Gpu, class A>
POSENC_HD void copy_bits(const Gpu& gpu, const A& a, int rows, int first, int width, uint16_t* tile,
                         int stride) {
  constexpr int kPack = 8;
  const int packs = width / kPack, step = gpu.threads() / packs;
  const int c = gpu.thread() % packs * kPack, channel = first + c;
  const bool whole = channel + kPack <= a.channels && a.view.align >= 16;
  POSENC_UNROLL_BY(1)
  for (int r = gpu.thread() / packs; r < rows && gpu.thread() < step * packs; r += step) {
    const int64_t row = a.row_at(r);
    uint16_t* const to = tile + r * stride + c;
    if (row >= 0 && whole) {
      gpu.copy_async(to, a.view.template at<uint16_t>(row + channel));
      continue;
    }
    POSENC_UNROLL_BY(1)
    for (int i = 0; i < kPack; ++i) {
      to[i] = row >= 0 && channel + i < a.channels
                  ? gpu.load(a.view.template at<uint16_t>(row + (channel + i) * a.view.last))
                  : uint16_t{0};
    }
  }
  gpu.commit_copies();
}

/// S: Half or BFloat16. 4·C channels a slice, 4·N columns of scores at a time.
template <class S, int C_, int N_ = 16>
struct Mma {
  using T = float;
  static constexpr int M = 2, N = N_, C = C_, kLanes = 4;
  static constexpr int kThreads = 128, kRows = 64, kColumns = 4 * N, kWidth = 4 * C, kAdjacent = 2;
  static constexpr int kWeightStride = kColumns + 8;
  POSENC_HD static constexpr Dtype dtype(const Params&) {
    return std::is_same_v<S, Half> ? Dtype::kHalf : Dtype::kBFloat16;
  }

  static constexpr bool kFetches = true;

  /// Channels in shared memory: whole steps of 16, and 8 more so that the rows of a matrix lie in
  /// different banks.
  POSENC_HD static int stride_of(int channels) { return (channels + 15) / 16 * 16 + 8; }

  /// Numbers in shared memory. \param slots left factors: one in the forward, whose right ones are
  /// k and a slice of v; two in the backward, where each right factor is that of values as well
  struct Places {
    int left_stride[2], right_stride[2];

    POSENC_HD Places(const Params& p, int slots) {
      const int least = slots > 1 ? kWidth : 0;
      left_stride[0] = stride_of(p.head_dim);
      left_stride[1] = slots > 1 ? stride_of(p.v_dim) : 0;
      right_stride[0] = stride_of(p.head_dim > least ? p.head_dim : least);
      right_stride[1] = stride_of(slots > 1 && p.v_dim > kWidth ? p.v_dim : kWidth);
    }
    POSENC_HD int left(int slot) const { return slot * kRows * left_stride[0]; }
    POSENC_HD int right(int slot) const {
      return kRows * (left_stride[0] + left_stride[1]) + slot * kColumns * right_stride[0];
    }
    POSENC_HD int weights() const { return right(1) + kColumns * right_stride[1]; }
    POSENC_HD int end() const { return weights() + kRows * kWeightStride; }
  };
  static int64_t shared_bytes(const Params& p, int slots) { return 2 * Places(p, slots).end(); }

  template <class Gpu>
  class Engine {
   public:
    POSENC_HD Engine(const Gpu& gpu, const Params& p, int slots)
        : gpu_(gpu), places_(p, slots), warp_row_(16 * gpu.warp()), lane_(gpu.lane()) {}

    POSENC_HD int end() const { return 2 * places_.end(); }
    POSENC_HD int row(int i) const { return warp_row_ + lane_ / 4 + 8 * i; }
    POSENC_HD int column(int j) const { return j / 2 * 8 + lane_ % 4 * 2 + j % 2; }
    POSENC_HD int channel(int c) const { return column(c); }
    POSENC_HD int lane() const { return lane_ % 4; }

    template <class A>
    POSENC_HD void keep(int slot, const A& a) const {
      const int stride = places_.left_stride[slot];
      copy_bits<S>(gpu_, a, kRows, 0, stride - 8, at(places_.left(slot)), stride);
    }

    template <class B>
    POSENC_HD void fetch(int slot, const B& b, int first) const {
      const int stride = places_.right_stride[slot];
      copy_bits<S>(gpu_, b, kColumns, first, stride - 8, at(places_.right(slot)), stride);
    }

    template <int kPending>
    POSENC_HD void arrive() const {
      gpu_.template wait_copies<kPending>();
      gpu_.sync();
    }

    template <class A, class B>
    POSENC_HD void scores(int slot, const A&, const B&, float (&acc)[M][N]) const {
      POSENC_UNROLL
      for (int j = 0; j < N; ++j) {
        acc[0][j] = acc[1][j] = 0;
      }
      const int stride = places_.left_stride[slot], right_stride = places_.right_stride[slot];
      const uint16_t* a_row =
          at(places_.left(slot)) + (warp_row_ + lane_ % 16) * stride + lane_ / 16 * 8;
      const uint16_t* b_row =
          at(places_.right(slot)) + (lane_ % 8 + lane_ / 16 * 8) * right_stride + lane_ / 8 % 2 * 8;
      POSENC_UNROLL_BY(1)
      for (int k = 0; k < stride - 8; k += 16) {
        uint32_t a[4];
        load_matrices<false>(gpu_, a_row + k, a);
        POSENC_UNROLL
        for (int j = 0; j < N; j += 4) {
          uint32_t bs[4];
          load_matrices<false>(gpu_, b_row + 4 * j * right_stride + k, bs);
          multiply_add<S>(gpu_, a, bs[0], bs[1], acc[0][j], acc[0][j + 1], acc[1][j],
                          acc[1][j + 1]);
          multiply_add<S>(gpu_, a, bs[2], bs[3], acc[0][j + 2], acc[0][j + 3], acc[1][j + 2],
                          acc[1][j + 3]);
        }
      }
    }

    template <class B, class Touches>
    POSENC_HD void values(int slot, const float (&weights)[M][N], const B&, int, bool guarded,
                          const Touches& touches, float (&acc)[M][C]) const {
      if (guarded) {
        add_guarded(slot, weights, touches, acc);
        return;
      }
      const int stride = places_.right_stride[slot];
      const uint16_t* b_row = at(places_.right(slot)) + lane_ % 16 * stride + lane_ / 16 * 8;
      POSENC_UNROLL
      for (int j = 0; j < N; j += 4) {
        const uint32_t a[4] = {pack_pair<S>(weights[0][j], weights[0][j + 1]),
                               pack_pair<S>(weights[1][j], weights[1][j + 1]),
                               pack_pair<S>(weights[0][j + 2], weights[0][j + 3]),
                               pack_pair<S>(weights[1][j + 2], weights[1][j + 3])};
        POSENC_UNROLL
        for (int c = 0; c < C; c += 4) {
          uint32_t bs[4];
          load_matrices<true>(gpu_, b_row + 4 * j * stride + 4 * c, bs);
          multiply_add<S>(gpu_, a, bs[0], bs[1], acc[0][c], acc[0][c + 1], acc[1][c],
                          acc[1][c + 1]);
          multiply_add<S>(gpu_, a, bs[2], bs[3], acc[0][c + 2], acc[0][c + 3], acc[1][c + 2],
                          acc[1][c + 3]);
        }
      }
    }

   private:
    // Places are kept as offsets: addresses would take twice the registers.
    POSENC_HD uint16_t* at(int place) const { return gpu_.template shared<uint16_t>(2 * place); }

    template <class Touches>
    POSENC_HD void add_guarded(int slot, const float (&weights)[M][N], const Touches& touches,
                               float (&acc)[M][C]) const {
      // Each warp writes and reads the weights of its own rows.
      uint16_t* const shared_weights = at(places_.weights());
      const uint16_t* const right = at(places_.right(slot));
      const int stride = places_.right_stride[slot];
      gpu_.sync_warp();
      POSENC_UNROLL
      for (int i = 0; i < M; ++i) {
        POSENC_UNROLL
        for (int j = 0; j < N; ++j) {
          const float one[1] = {weights[i][j]};
          shared_weights[row(i) * kWeightStride + column(j)] =
              core::bit_cast<uint16_t>(core::pack<S>(one));
        }
      }
      gpu_.sync_warp();
      POSENC_UNROLL_BY(1)
      for (int t = 0; t < kColumns; ++t) {
        POSENC_UNROLL
        for (int i = 0; i < M; ++i) {
          const float weight = number_of<S>(shared_weights[row(i) * kWeightStride + t]);
          if (!touches(row(i), t, weight)) {
            continue;
          }
          POSENC_UNROLL
          for (int c = 0; c < C; ++c) {
            acc[i][c] += weight * number_of<S>(right[t * stride + channel(c)]);
          }
        }
      }
    }

    const Gpu& gpu_;
    Places places_;
    int warp_row_, lane_;
  };
};

}  // namespace posenc::attention::device
