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

/// 16 bytes from global to shared memory, without a register in between; there after wait_copies.
template <class Gpu>
POSENC_HD void copy_pack(const Gpu& gpu, uint16_t* to, const uint16_t* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
#else
  using Bits = Pack<uint16_t, 8>;
  *reinterpret_cast<Bits*>(to) = gpu.load(reinterpret_cast<const Bits*>(from));
#endif
}
POSENC_HD inline void wait_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Rows [0, rows) of `a`, channels [first, first + width), bit for bit; zeros past the last. What a
/// thread has brought is there for itself afterwards, for the others after a barrier.
template <class S, class Gpu, class A>
POSENC_HD void load_bits(const Gpu& gpu, const A& a, int rows, int first, int width, uint16_t* tile,
                         int stride) {
  constexpr int kPack = 8;
  const int packs = width / kPack;
  POSENC_UNROLL_BY(1)
  for (int n = gpu.thread(); n < rows * packs; n += gpu.threads()) {
    const int r = n / packs, c = n % packs * kPack, channel = first + c;
    const int64_t row = a.row_at(r);
    if (row >= 0 && channel + kPack <= a.channels && a.view.align >= 16) {
      copy_pack(gpu, tile + r * stride + c, a.view.template at<uint16_t>(row + channel));
      continue;
    }
    POSENC_UNROLL_BY(1)
    for (int i = 0; i < kPack; ++i) {
      tile[r * stride + c + i] =
          row >= 0 && channel + i < a.channels
              ? gpu.load(a.view.template at<uint16_t>(row + (channel + i) * a.view.last))
              : uint16_t{0};
    }
  }
  wait_copies();
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

  /// Channels in shared memory: whole steps of 16, and 8 more so that the rows of a matrix lie in
  /// different banks.
  POSENC_HD static int stride_of(int channels) { return (channels + 15) / 16 * 16 + 8; }
  POSENC_HD static int right_stride(const Params& p) {
    const int most = p.head_dim > p.v_dim ? p.head_dim : p.v_dim;
    return stride_of(most > kWidth ? most : kWidth);
  }

  /// \param slots left factors that are kept: of head_dim, and of v_dim
  POSENC_HD static int tile_numbers(const Params& p, int slots) {
    const int left = stride_of(p.head_dim) + (slots > 1 ? stride_of(p.v_dim) : 0);
    return kRows * (left + kWeightStride) + kColumns * right_stride(p);
  }
  static int64_t shared_bytes(const Params& p, int slots) { return 2 * tile_numbers(p, slots); }

  template <class Gpu>
  class Engine {
   public:
    POSENC_HD Engine(const Gpu& gpu, const Params& p, int slots)
        : gpu_(gpu), warp_row_(16 * gpu.warp()), lane_(gpu.lane()) {
      left_stride_[0] = stride_of(p.head_dim);
      left_stride_[1] = stride_of(p.v_dim);
      right_stride_ = right_stride(p);
      right_at_ = kRows * (left_stride_[0] + (slots > 1 ? left_stride_[1] : 0));
      end_ = 2 * tile_numbers(p, slots);
    }

    POSENC_HD int end() const { return end_; }
    POSENC_HD int row(int i) const { return warp_row_ + lane_ / 4 + 8 * i; }
    POSENC_HD int column(int j) const { return j / 2 * 8 + lane_ % 4 * 2 + j % 2; }
    POSENC_HD int channel(int c) const { return column(c); }
    POSENC_HD int lane() const { return lane_ % 4; }

    template <class A>
    POSENC_HD void keep(int slot, const A& a) const {
      load_bits<S>(gpu_, a, kRows, 0, left_stride_[slot] - 8, left(slot), left_stride_[slot]);
    }

    template <class A, class B>
    POSENC_HD void scores(int slot, const A&, const B& b, float (&acc)[M][N]) const {
      POSENC_UNROLL
      for (int j = 0; j < N; ++j) {
        acc[0][j] = acc[1][j] = 0;
      }
      const int stride = left_stride_[slot], width = stride - 8;
      gpu_.sync();
      load_bits<S>(gpu_, b, kColumns, 0, width, right(), right_stride_);
      gpu_.sync();
      const uint16_t* a_row = left(slot) + (warp_row_ + lane_ % 16) * stride + lane_ / 16 * 8;
      const uint16_t* b_row =
          right() + (lane_ % 8 + lane_ / 16 * 8) * right_stride_ + lane_ / 8 % 2 * 8;
      POSENC_UNROLL_BY(1)
      for (int k = 0; k < width; k += 16) {
        uint32_t a[4];
        load_matrices<false>(gpu_, a_row + k, a);
        POSENC_UNROLL
        for (int j = 0; j < N; j += 4) {
          uint32_t bs[4];
          load_matrices<false>(gpu_, b_row + 4 * j * right_stride_ + k, bs);
          multiply_add<S>(gpu_, a, bs[0], bs[1], acc[0][j], acc[0][j + 1], acc[1][j],
                          acc[1][j + 1]);
          multiply_add<S>(gpu_, a, bs[2], bs[3], acc[0][j + 2], acc[0][j + 3], acc[1][j + 2],
                          acc[1][j + 3]);
        }
      }
    }

    template <class B, class Touches>
    POSENC_HD void values(const float (&weights)[M][N], const B& b, int first, bool guarded,
                          const Touches& touches, float (&acc)[M][C]) const {
      gpu_.sync();
      load_bits<S>(gpu_, b, kColumns, first, kWidth, right(), right_stride_);
      if (guarded) {
        add_guarded(weights, touches, acc);
        return;
      }
      gpu_.sync();
      const uint16_t* b_row = right() + lane_ % 16 * right_stride_ + lane_ / 16 * 8;
      POSENC_UNROLL
      for (int j = 0; j < N; j += 4) {
        const uint32_t a[4] = {pack_pair<S>(weights[0][j], weights[0][j + 1]),
                               pack_pair<S>(weights[1][j], weights[1][j + 1]),
                               pack_pair<S>(weights[0][j + 2], weights[0][j + 3]),
                               pack_pair<S>(weights[1][j + 2], weights[1][j + 3])};
        POSENC_UNROLL
        for (int c = 0; c < C; c += 4) {
          uint32_t bs[4];
          load_matrices<true>(gpu_, b_row + 4 * j * right_stride_ + 4 * c, bs);
          multiply_add<S>(gpu_, a, bs[0], bs[1], acc[0][c], acc[0][c + 1], acc[1][c],
                          acc[1][c + 1]);
          multiply_add<S>(gpu_, a, bs[2], bs[3], acc[0][c + 2], acc[0][c + 3], acc[1][c + 2],
                          acc[1][c + 3]);
        }
      }
    }

   private:
    // Places in shared memory are kept as offsets: an address would take two registers each.
    POSENC_HD uint16_t* left(int slot) const {
      return gpu_.template shared<uint16_t>(slot == 0 ? 0 : 2 * kRows * left_stride_[0]);
    }
    POSENC_HD uint16_t* right() const { return gpu_.template shared<uint16_t>(2 * right_at_); }

    template <class Touches>
    POSENC_HD void add_guarded(const float (&weights)[M][N], const Touches& touches,
                               float (&acc)[M][C]) const {
      uint16_t* const shared_weights = right() + kColumns * right_stride_;
      POSENC_UNROLL
      for (int i = 0; i < M; ++i) {
        POSENC_UNROLL
        for (int j = 0; j < N; ++j) {
          const float one[1] = {weights[i][j]};
          shared_weights[row(i) * kWeightStride + column(j)] =
              core::bit_cast<uint16_t>(core::pack<S>(one));
        }
      }
      gpu_.sync();
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
            acc[i][c] += weight * number_of<S>(right()[t * right_stride_ + channel(c)]);
          }
        }
      }
    }

    const Gpu& gpu_;
    int left_stride_[2], right_stride_, right_at_, warp_row_, lane_, end_;
  };
};

}  // namespace posenc::attention::device
