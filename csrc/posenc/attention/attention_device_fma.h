#pragma once

// Products of tiles by multiply-adds: every dtype, every device. A block of 256 threads works on
// (16·M × 64) scores; thread (ty, tx) = (thread / 16, thread % 16) has rows ty + 16·i and columns
// tx
// + 16·j, and C channels of each of its rows. See attention_device.h.

#include <posenc/attention/attention_device_tile.h>

namespace posenc::attention::device {

/// An engine multiplies tiles: this one, or that of attention_device_mma.h. What both have:
///   kThreads, kRows, kColumns, kWidth  threads of a block, rows and columns of a tile of scores,
///                                      channels of a slice
///   M, N, C, kLanes                a thread's rows, columns and channels; lanes that share a row
///   kAdjacent                      so many of a thread's channels lie next to each other
///   dtype(p)                       of the tensors, a constant where it can be one
///   row(i), column(j), channel(c)  which ones
///   keep(slot, operand)            tells the left factor of scores; may copy it
///   kFetches                       whether right factors are fetched before they are used
///   fetch(slot, b, first)          sends for channels from `first` on of what scores(slot) or
///                                  values(slot) multiplies by; all threads are done with the last
///   arrive<n>()                    all but the last n fetches are there; a barrier
///   scores(slot, a, b, acc)        acc = a·bᵀ over all channels
///   values(slot, weights, b, first, guarded, touches, acc)  acc += weights·b, channels [first,
///     first + kWidth); where guarded, pairs for which touches(row, column, weight) is false are
///     left out
/// Where nothing is fetched, fetch and arrive do nothing and scores and values begin with a
/// barrier.
template <class T_, int M_, int C_>
struct Fma {
  using T = T_;
  static constexpr int M = M_, N = 4, C = C_, kLanes = 16;
  static constexpr int kThreads = 256, kRows = 16 * M, kColumns = 16 * N, kWidth = 16 * C;
  static constexpr int kAdjacent = kPackOf<T>;
  static constexpr bool kFetches = false;
  POSENC_HD static constexpr Dtype dtype(const Params& p) {
    return sizeof(T) == 8 ? Dtype::kDouble : p.dtype;
  }

  // Tiles are read in packs of 16 bytes; rows are padded by one, so that sixteen lie in different
  // banks.
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kChannels =
      sizeof(T) == 8 ? 8 : 32;  ///< of the factors of scores, at a time
  static constexpr int kStride = kChannels + kPack;
  static constexpr int kSteps = sizeof(T) == 8 ? 16 : 32;  ///< rows of the factor of values
  static constexpr int kScoreStride = kColumns + kPack;
  static constexpr int kFactors = (kRows + kColumns) * kStride;
  static constexpr int kChunk = kFactors > kSteps* kWidth ? kFactors : kSteps* kWidth;

  static int64_t shared_bytes(const Params&, int) {
    return (kChunk + kRows * kScoreStride) * static_cast<int64_t>(sizeof(T));
  }

  template <class Gpu>
  class Engine {
   public:
    POSENC_HD Engine(const Gpu& gpu, const Params& p, int)
        : gpu_(gpu),
          dtype_(dtype(p)),
          chunk_(gpu.template shared<T>(0)),
          tile_(chunk_ + kChunk),
          end_((kChunk + kRows * kScoreStride) * static_cast<int>(sizeof(T))),
          ty_(gpu.thread() / 16),
          tx_(gpu.thread() % 16) {}

    /// Where free shared memory begins, in bytes.
    POSENC_HD int end() const { return end_; }
    POSENC_HD int row(int i) const { return ty_ + 16 * i; }
    POSENC_HD int column(int j) const { return tx_ + 16 * j; }
    POSENC_HD int channel(int c) const { return tx_ * kPack + c / kPack * 16 * kPack + c % kPack; }
    POSENC_HD int lane() const { return tx_; }

    template <class A>
    POSENC_HD void keep(int, const A&) const {}

    template <class B>
    POSENC_HD void fetch(int, const B&, int) const {}
    template <int>
    POSENC_HD void arrive() const {}

    template <class A, class B>
    POSENC_HD void scores(int, const A& a, const B& b, T (&acc)[M][N]) const {
      T *chunk_a = chunk_, *chunk_b = chunk_ + kRows * kStride;
      POSENC_UNROLL
      for (int i = 0; i < M; ++i) {
        POSENC_UNROLL
        for (int j = 0; j < N; ++j) {
          acc[i][j] = 0;
        }
      }
      for (int first = 0; first < a.channels; first += kChannels) {
        gpu_.sync();
        load_tile(gpu_, dtype_, a, 0, kRows, first, kChannels, chunk_a, kStride);
        load_tile(gpu_, dtype_, b, 0, kColumns, first, kChannels, chunk_b, kStride);
        gpu_.sync();
        POSENC_UNROLL_BY(2)
        for (int d = 0; d < kChannels; d += kPack) {
          Pack<T, kPack> left[M], right[N];
          POSENC_UNROLL
          for (int i = 0; i < M; ++i) {
            left[i] = shared_pack(chunk_a + row(i) * kStride + d);
          }
          POSENC_UNROLL
          for (int j = 0; j < N; ++j) {
            right[j] = shared_pack(chunk_b + column(j) * kStride + d);
          }
          POSENC_UNROLL
          for (int n = 0; n < kPack; ++n) {
            POSENC_UNROLL
            for (int i = 0; i < M; ++i) {
              POSENC_UNROLL
              for (int j = 0; j < N; ++j) {
                acc[i][j] += left[i].v[n] * right[j].v[n];
              }
            }
          }
        }
      }
    }

    template <class B, class Touches>
    POSENC_HD void values(int, const T (&weights)[M][N], const B& b, int first, bool guarded,
                          const Touches& touches, T (&acc)[M][C]) const {
      gpu_.sync();  // all have read what the tile held before
      POSENC_UNROLL
      for (int i = 0; i < M; ++i) {
        POSENC_UNROLL
        for (int j = 0; j < N; ++j) {
          tile_[row(i) * kScoreStride + column(j)] = weights[i][j];
        }
      }
      for (int t0 = 0; t0 < kColumns; t0 += kSteps) {
        gpu_.sync();
        load_tile(gpu_, dtype_, b, t0, kSteps, first, kWidth, chunk_, kWidth);
        gpu_.sync();
        if (guarded) {
          add_guarded(t0, touches, acc);
          continue;
        }
        POSENC_UNROLL_BY(1)
        for (int t = 0; t < kSteps; t += kPack) {
          Pack<T, kPack> left[M];
          POSENC_UNROLL
          for (int i = 0; i < M; ++i) {
            left[i] = shared_pack(tile_ + row(i) * kScoreStride + t0 + t);
          }
          POSENC_UNROLL
          for (int n = 0; n < kPack; ++n) {
            POSENC_UNROLL
            for (int c = 0; c < C; c += kPack) {
              const Pack<T, kPack> right = shared_pack(chunk_ + (t + n) * kWidth + channel(c));
              POSENC_UNROLL
              for (int i = 0; i < M; ++i) {
                POSENC_UNROLL
                for (int e = 0; e < kPack; ++e) {
                  acc[i][c + e] += left[i].v[n] * right.v[e];
                }
              }
            }
          }
        }
      }
    }

   private:
    template <class Touches>
    POSENC_HD void add_guarded(int t0, const Touches& touches, T (&acc)[M][C]) const {
      POSENC_UNROLL_BY(1)
      for (int t = 0; t < kSteps; ++t) {
        POSENC_UNROLL
        for (int i = 0; i < M; ++i) {
          const T weight = tile_[row(i) * kScoreStride + t0 + t];
          if (!touches(row(i), t0 + t, weight)) {
            continue;
          }
          POSENC_UNROLL
          for (int c = 0; c < C; ++c) {
            acc[i][c] += weight * chunk_[t * kWidth + channel(c)];
          }
        }
      }
    }

    const Gpu& gpu_;
    Dtype dtype_;
    T *chunk_, *tile_;
    int end_, ty_, tx_;
  };
};

}  // namespace posenc::attention::device
