#pragma once

// Rows of the operator's tensors to and from registers and shared memory, in any dtype and with any
// strides. See attention_device.h.

#include <posenc/attention/attention_device.h>

namespace posenc::attention::device {

using core::BFloat16;
using core::Half;
using core::Pack;

/// Numbers of the compute type that fill 16 bytes.
template <class T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

template <class T, class Gpu>
POSENC_HD T load_as(const Gpu& gpu, Dtype dtype, const View& view, int64_t index) {
  if constexpr (sizeof(T) == 8) {
    return gpu.load(view.at<double>(index));
  } else {
    switch (dtype) {
      case Dtype::kFloat:
        return gpu.load(view.at<float>(index));
      case Dtype::kHalf:
        return core::to_compute(gpu.load(view.at<Half>(index)));
      default:
        return core::to_compute(gpu.load(view.at<BFloat16>(index)));
    }
  }
}

template <class T, class Gpu>
POSENC_HD void store_as(const Gpu& gpu, Dtype dtype, const View& view, int64_t index, T value) {
  if constexpr (sizeof(T) == 8) {
    gpu.store(view.mutable_at<double>(index), value);
  } else {
    switch (dtype) {
      case Dtype::kFloat:
        return gpu.store(view.mutable_at<float>(index), value);
      case Dtype::kHalf:
        return gpu.store(view.mutable_at<Half>(index), core::from_compute<Half>(value));
      default:
        return gpu.store(view.mutable_at<BFloat16>(index), core::from_compute<BFloat16>(value));
    }
  }
}

/// Adjacent numbers, a pack of the compute type at once.
template <class T, class S, class Gpu>
POSENC_HD void load_pack(const Gpu& gpu, const View& view, int64_t index, T (&values)[kPackOf<T>]) {
  constexpr int kPack = kPackOf<T>;
  const auto pack = gpu.load(reinterpret_cast<const Pack<S, kPack>*>(view.template at<S>(index)));
  core::unpack(pack, values);
}
template <class S, class T, int N, class Gpu>
POSENC_HD void store_pack(const Gpu& gpu, const View& view, int64_t index, const T (&values)[N]) {
  gpu.store(reinterpret_cast<Pack<S, N>*>(view.template mutable_at<S>(index)),
            core::pack<S>(values));
}

POSENC_HD inline int element_bytes(Dtype dtype) {
  return dtype == Dtype::kDouble ? 8 : dtype == Dtype::kFloat ? 4 : 2;
}

/// Channels [channel, channel + kPack) of the row that starts at `row`; 0 past `channels` and where
/// row is negative.
template <class T, class Gpu>
POSENC_HD void load_channels(const Gpu& gpu, Dtype dtype, const View& view, int64_t row,
                             int channel, int channels, T (&values)[kPackOf<T>]) {
  constexpr int kPack = kPackOf<T>;
  if (row >= 0 && channel + kPack <= channels && view.align >= kPack * element_bytes(dtype)) {
    const int64_t index = row + channel;
    if constexpr (sizeof(T) == 8) {
      load_pack<T, double>(gpu, view, index, values);
    } else if (dtype == Dtype::kFloat) {
      load_pack<T, float>(gpu, view, index, values);
    } else if (dtype == Dtype::kHalf) {
      load_pack<T, Half>(gpu, view, index, values);
    } else {
      load_pack<T, BFloat16>(gpu, view, index, values);
    }
    return;
  }
  POSENC_UNROLL
  for (int n = 0; n < kPack; ++n) {
    values[n] = row >= 0 && channel + n < channels
                    ? load_as<T>(gpu, dtype, view, row + (channel + n) * view.last)
                    : T(0);
  }
}

/// N channels from `channel` on, those that exist.
template <class T, int N, class Gpu>
POSENC_HD void store_channels(const Gpu& gpu, Dtype dtype, const View& view, int64_t row,
                              int channel, int channels, const T (&values)[N]) {
  if (channel + N <= channels && view.align >= N * element_bytes(dtype)) {
    const int64_t index = row + channel;
    if constexpr (sizeof(T) == 8) {
      store_pack<double>(gpu, view, index, values);
    } else if (dtype == Dtype::kFloat) {
      store_pack<float>(gpu, view, index, values);
    } else if (dtype == Dtype::kHalf) {
      store_pack<Half>(gpu, view, index, values);
    } else {
      store_pack<BFloat16>(gpu, view, index, values);
    }
    return;
  }
  POSENC_UNROLL
  for (int n = 0; n < N; ++n) {
    if (channel + n < channels) {
      store_as<T>(gpu, dtype, view, row + (channel + n) * view.last, values[n]);
    }
  }
}

/// A factor of a product: rows of a tensor. row_at(r) is the offset of row r; negative: zeros.
template <class RowAt>
struct Operand {
  const View& view;
  int channels;
  RowAt row_at;
};
template <class RowAt>
Operand(const View&, int, RowAt) -> Operand<RowAt>;

/// Rows [row, row + rows), channels [first, first + width) into shared memory, `stride` apart.
template <class T, class Gpu, class A>
POSENC_HD void load_tile(const Gpu& gpu, Dtype dtype, const A& a, int row, int rows, int first,
                         int width, T* tile, int stride) {
  constexpr int kPack = kPackOf<T>;
  const int packs = width / kPack;
  for (int n = gpu.thread(); n < rows * packs; n += gpu.threads()) {
    const int r = n / packs, c = n % packs * kPack;
    T values[kPack];
    load_channels(gpu, dtype, a.view, a.row_at(row + r), first + c, a.channels, values);
    Pack<T, kPack> pack;
    POSENC_UNROLL
    for (int i = 0; i < kPack; ++i) {
      pack.v[i] = values[i];
    }
    *reinterpret_cast<Pack<T, kPack>*>(tile + r * stride + c) = pack;
  }
}

template <class T>
POSENC_HD Pack<T, kPackOf<T>> shared_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kPackOf<T>>*>(from);
}

}  // namespace posenc::attention::device
