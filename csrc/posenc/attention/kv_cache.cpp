#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <posenc/attention/alibi_attention.h>
#include <posenc/attention/kv_cache.h>

#include <algorithm>

namespace posenc::nn {
namespace {

constexpr int64_t kNormBlock = 64;

/// `buffer` with `part` behind its first `size` rows, in place where there is room.
at::Tensor grown(const at::Tensor& buffer, int64_t size, const at::Tensor& part) {
  const bool recorded = c10::GradMode::is_enabled() &&
                        (part.requires_grad() || (buffer.defined() && buffer.requires_grad()));
  if (recorded) {
    return size == 0 ? part : at::cat({buffer.narrow(2, 0, size), part}, 2);
  }
  const int64_t wanted = size + part.size(2);
  at::Tensor result = buffer;
  // A tensor made under inference mode cannot be written outside of it, nor one that autograd
  // knows.
  const bool writable = buffer.defined() && buffer.size(2) >= wanted && !buffer.requires_grad() &&
                        (!buffer.is_inference() || c10::InferenceMode::is_enabled());
  if (!writable) {
    const int64_t capacity = size == 0 ? wanted : std::max(2 * size, wanted);
    result = at::empty({part.size(0), part.size(1), capacity, part.size(3)}, part.options());
    if (size > 0) {
      result.narrow(2, 0, size).copy_(buffer.narrow(2, 0, size));
    }
  }
  result.narrow(2, size, part.size(2)).copy_(part);
  return result;
}

at::Tensor counted(int64_t from, int64_t to, const at::Tensor& like) {
  return at::arange(from, to, at::TensorOptions().dtype(at::kLong).device(like.device()))
      .unsqueeze(0);
}

void check_as_before(const char* name, const at::Tensor& held, const at::Tensor& added) {
  TORCH_CHECK_VALUE(added.size(0) == held.size(0) && added.size(1) == held.size(1) &&
                        added.size(3) == held.size(3),
                    "KVCache: expected ", name, " of shape (", held.size(0), ", ", held.size(1),
                    ", L, ", held.size(3), ") as before, got ", added.sizes());
  TORCH_CHECK_TYPE(added.scalar_type() == held.scalar_type(), "KVCache: expected ", name,
                   " of dtype ", held.scalar_type(), " as before, got ", added.scalar_type());
}

}  // namespace

void KVCache::append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& positions,
                     bool track_norms) {
  TORCH_CHECK_VALUE(k.dim() == 4 && v.dim() == 4 && k.sizes().slice(0, 3) == v.sizes().slice(0, 3),
                    "KVCache: expected k and v of shape (B, Hkv, L, D), got ", k.sizes(), " and ",
                    v.sizes());
  if (size_ > 0) {
    check_as_before("keys", k_, k);
    check_as_before("values", v_, v);
  }
  const int64_t added = k.size(2);
  if (positions.defined() || positions_.defined()) {
    const at::Tensor before = positions_.defined() ? positions_ : counted(0, size_, k);
    at::Tensor fresh = positions.defined() ? positions : counted(size_, size_ + added, k);
    fresh = fresh.dim() == 1 ? fresh.unsqueeze(0) : fresh;
    const int64_t rows = std::max(before.size(0), fresh.size(0));
    positions_ = at::cat({before.expand({rows, -1}), fresh.expand({rows, -1})}, 1);
  }
  k_ = grown(k_, size_, k);
  v_ = grown(v_, size_, v);
  const bool tracked = size_ == 0 || norms_.defined();
  const int64_t first = size_ / kNormBlock;
  size_ += added;
  if (track_norms && tracked) {
    const int64_t begin = first * kNormBlock;
    const at::Tensor fresh = alibi_key_norms(keys().detach().narrow(2, begin, size_ - begin),
                                             values().detach().narrow(2, begin, size_ - begin));
    norms_ = norms_.defined() ? at::cat({norms_.narrow(2, 0, first), fresh}, 2) : fresh;
  } else {
    norms_.reset();
  }
}

at::Tensor KVCache::keys() const { return k_.defined() ? k_.narrow(2, 0, size_) : k_; }

at::Tensor KVCache::values() const { return v_.defined() ? v_.narrow(2, 0, size_) : v_; }

void KVCache::clear() { *this = KVCache(); }

}  // namespace posenc::nn
