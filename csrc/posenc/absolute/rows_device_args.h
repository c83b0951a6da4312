#pragma once

// From tensors to the parameters of the CUDA kernels; needs no CUDA, so that tests on the host run
// the kernels with the very same ones.

#include <ATen/core/Tensor.h>
#include <posenc/absolute/rows_device.h>
#include <posenc/absolute/walk_rows.h>

#include <algorithm>

namespace posenc::absolute {

/// The ids in a dtype that the kernels read; other integers are widened.
inline at::Tensor readable_ids(const at::Tensor& ids) {
  const at::ScalarType dtype = ids.scalar_type();
  return dtype == at::kLong || dtype == at::kInt || dtype == at::kDouble || dtype == at::kFloat
             ? ids
             : ids.to(at::kLong);
}

/// A view of readable ids (L), (1, L) or (B, L), which must outlive it; the range from `offset` on
/// where they are undefined.
inline core::IdView id_view(const at::Tensor& ids, int64_t offset) {
  core::IdView view;
  view.offset = offset;
  if (!ids.defined()) {
    return view;
  }
  const at::ScalarType dtype = ids.scalar_type();
  view.data = ids.const_data_ptr();
  view.type = dtype == at::kLong     ? core::IdType::kInt64
              : dtype == at::kInt    ? core::IdType::kInt32
              : dtype == at::kDouble ? core::IdType::kDouble
                                     : core::IdType::kFloat;
  view.seq_stride = ids.stride(-1);
  view.batch_stride = ids.dim() == 2 && ids.size(0) > 1 ? ids.stride(0) : 0;
  return view;
}

/// The walk of walk_rows, if its rows are of few enough axes.
inline bool device_walk(const RowWalk& from, DeviceWalk* walk) {
  if (from.rest_dims > DeviceWalk::kMaxRest) {
    return false;
  }
  const auto copy = [&](const RowWalk::Strides& s, DeviceWalk::Strides* t) {
    t->batch = from.batch == 1 ? 0 : s.batch;
    t->time = from.length == 1 ? 0 : s.time;
    t->channel = s.channel;
    std::copy_n(s.rest, from.rest_dims, t->rest);
  };
  walk->batch = from.batch;
  walk->length = from.length;
  walk->rest_dims = from.rest_dims;
  std::copy_n(from.rest_size, from.rest_dims, walk->rest_size);
  copy(from.x, &walk->x);
  copy(from.y, &walk->y);
  return true;
}

/// Whether every row begins at a multiple of `count` elements, and its channels lie side by side.
inline bool takes_packs(const void* data, const DeviceWalk::Strides& s, int rest_dims,
                        int64_t count, int64_t element_size) {
  bool good = s.channel == 1 && s.batch % count == 0 && s.time % count == 0 &&
              reinterpret_cast<uintptr_t>(data) % (count * element_size) == 0;
  for (int k = 0; k < rest_dims; ++k) {
    good = good && s.rest[k] % count == 0;
  }
  return good;
}

/// (rows, channels) whose channels lie side by side.
inline TableView table_view(const at::Tensor& table) {
  return {table.const_data_ptr(), table.size(0), table.stride(0)};
}

/// Sets `packed`, once everything else but the slice is there.
inline void choose_packs(RowsDeviceParams* p, int64_t element_size) {
  const int64_t count = 16 / element_size;
  const auto table_takes = [&](const TableView& table) {
    DeviceWalk::Strides s;
    s.time = table.row_stride;
    return table.data == nullptr || takes_packs(table.data, s, 0, count, element_size);
  };
  p->packed =
      p->channels % count == 0 &&
      (p->x == nullptr || takes_packs(p->x, p->walk.x, p->walk.rest_dims, count, element_size)) &&
      takes_packs(p->y, p->walk.y, p->walk.rest_dims, count, element_size) &&
      table_takes(p->source) && table_takes(p->addend);
}

/// x, y and the positions of an addition; false where a launch cannot describe so many axes. What
/// is added, and `packed`, are left.
inline bool add_device_params(const at::Tensor& x, int64_t seq_dim, const core::IdView& positions,
                              const at::Tensor& y, RowsDeviceParams* p) {
  p->x = x.const_data_ptr();
  p->y = y.mutable_data_ptr();
  p->channels = x.size(-1);
  p->positions = positions;
  return device_walk(walk_rows(x, y, seq_dim), &p->walk);
}

/// The same for a tensor y (count, channels), contiguous, of the encoding alone; complete.
inline RowsDeviceParams encoding_device_params(const core::IdView& positions, const at::Tensor& y) {
  RowsDeviceParams p;
  p.walk.length = y.size(0);
  p.walk.y.time = y.size(1);
  p.y = y.mutable_data_ptr();
  p.channels = y.size(1);
  p.positions = positions;
  choose_packs(&p, y.element_size());
  return p;
}

/// The same for y (..., L, channels), contiguous, and its tokens (..., L); complete.
inline RowsDeviceParams embed_device_params(const at::Tensor& tokens, const at::Tensor& table,
                                            const core::IdView& positions, double scale,
                                            const at::Tensor& y) {
  RowsDeviceParams p;
  p.walk.length = tokens.size(-1);
  p.walk.batch = tokens.dim() == 2 ? tokens.size(0) : 1;
  p.walk.y.time = y.size(-1);
  p.walk.y.batch = p.walk.length * y.size(-1);
  p.y = y.mutable_data_ptr();
  p.channels = y.size(-1);
  p.scale = scale;
  p.positions = positions;
  p.tokens = id_view(tokens, 0);
  p.source = table_view(table);
  choose_packs(&p, y.element_size());
  return p;
}

/// f(p) for each slice of the frequencies, with that slice and its channels in p. `p` comes with
/// all the channels, and `packed` set.
template <class F>
void for_frequency_slices(RowsDeviceParams p, c10::ArrayRef<double> inv_freq, bool interleaved,
                          int64_t element_size, const F& f) {
  const auto n = static_cast<int64_t>(inv_freq.size());
  const int64_t channels = p.channels, pack = 16 / element_size;
  const bool is_double = element_size == 8;
  // A pack of channels is of sines or of cosines, where these lie apart.
  p.packed = p.packed && (interleaved || n % pack == 0);
  FrequencySlice& slice = p.slice;
  slice.n = n;
  slice.interleaved = interleaved;
  for (int64_t begin = 0; begin == 0 || begin < n; begin += FrequencySlice::kMost) {
    slice.begin = static_cast<int32_t>(begin);
    slice.count = static_cast<int32_t>(std::min<int64_t>(FrequencySlice::kMost, n - begin));
    for (int32_t i = 0; i < slice.count; ++i) {
      const double frequency = inv_freq[begin + i];
      if (is_double) {
        slice.fraction[i] = core::bit_cast<uint64_t>(frequency);
      } else if (core::has_turn_frequency(frequency)) {
        const core::TurnFrequency turns = core::turn_frequency(frequency);
        slice.fraction[i] = turns.fraction;
        slice.whole[i] = turns.whole;
      } else {
        slice.fraction[i] = 0;
        slice.whole[i] = core::kNoTurn;
      }
    }
    // The last slice has the channel more, or less, of an odd width.
    const bool last = begin + FrequencySlice::kMost >= n;
    p.channels = 2 * int64_t{slice.count} + (last ? channels - 2 * n : 0);
    if (p.channels > 0) {
      f(p);
    }
  }
}

}  // namespace posenc::absolute
