#pragma once

// position_ids and token ids as the CUDA kernels read them: from the tensor as it is, of any
// stride, without a copy.

#include <posenc/core/gpu_phase.h>

namespace posenc::core {

enum class IdType : int32_t { kInt64, kInt32, kDouble, kFloat };

/// (batch, length) numbers, to which `offset` is added; offset + l where there are none.
struct IdView {
  const void* data = nullptr;
  IdType type = IdType::kInt64;
  int64_t batch_stride = 0, seq_stride = 0;  ///< elements
  int64_t offset = 0;

  POSENC_HD int64_t index(int64_t b, int64_t l) const { return b * batch_stride + l * seq_stride; }
};

/// A whole number of the view, which is not of a real dtype.
template <class Ctx>
POSENC_HD int64_t load_id(const Ctx& gpu, const IdView& ids, int64_t b, int64_t l) {
  if (ids.data == nullptr) {
    return ids.offset + l;
  }
  const int64_t i = ids.index(b, l);
  return ids.offset + (ids.type == IdType::kInt64
                           ? gpu.load(static_cast<const int64_t*>(ids.data) + i)
                           : gpu.load(static_cast<const int32_t*>(ids.data) + i));
}

POSENC_HD inline bool is_real(const IdView& ids) {
  return ids.data != nullptr && (ids.type == IdType::kDouble || ids.type == IdType::kFloat);
}

/// A position of the view in float64.
template <class Ctx>
POSENC_HD double load_position(const Ctx& gpu, const IdView& ids, int64_t b, int64_t l) {
  if (!is_real(ids)) {
    return static_cast<double>(load_id(gpu, ids, b, l));
  }
  const int64_t i = ids.index(b, l);
  const double position = ids.type == IdType::kDouble
                              ? gpu.load(static_cast<const double*>(ids.data) + i)
                              : gpu.load(static_cast<const float*>(ids.data) + i);
  return position + static_cast<double>(ids.offset);
}

/// The same for fixed_position: whole numbers take no way through float64.
template <class Ctx>
POSENC_HD FixedPosition load_fixed_position(const Ctx& gpu, const IdView& ids, int64_t b,
                                            int64_t l) {
  if (is_real(ids)) {
    return fixed_position(load_position(gpu, ids, b, l));
  }
  FixedPosition position;
  position.whole = load_id(gpu, ids, b, l);
  return position;
}

}  // namespace posenc::core
