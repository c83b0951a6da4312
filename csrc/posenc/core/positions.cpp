#include <posenc/core/positions.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <posenc/core/dispatch.h>
#include <torch/library.h>

namespace posenc {
namespace core {
namespace {

bool is_position_dtype(at::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false) || dtype == at::kDouble ||
         dtype == at::kFloat;
}

/// int64 or the real dtype of most bits, so that adding an offset neither overflows nor rounds.
/// (MPS has no float64.)
at::Tensor widest(const at::Tensor& ids) {
  if (c10::isIntegralType(ids.scalar_type(), /*includeBool=*/false)) {
    return ids.to(at::kLong);
  }
  return ids.device().is_mps() ? ids : ids.to(at::kDouble);
}

}  // namespace

void check_position_ids(const char* op, const std::optional<at::Tensor>& position_ids,
                        const at::Tensor& x, int64_t seq_dim, int64_t n_axes) {
  if (!position_ids.has_value()) {
    return;
  }
  const at::Tensor& ids = *position_ids;
  // bfloat16 holds 8 bits: positions 256 and 257 would be one.
  TORCH_CHECK_TYPE(is_position_dtype(ids.scalar_type()), op,
                   ": expected position_ids of an integer dtype, float32 or float64, got ",
                   ids.scalar_type());
  TORCH_CHECK_VALUE(ids.device() == x.device(), op, ": expected position_ids on x's device ",
                    x.device(), ", got ", ids.device());
  const c10::SymInt length = x.sym_size(seq_dim);
  const int64_t batch_axis = batch_dim(seq_dim, x.dim());
  const c10::SymInt batch = batch_axis < 0 ? c10::SymInt(1) : x.sym_size(batch_axis);
  const int64_t most = n_axes > 0 ? 3 : 2;
  bool good = ids.dim() >= 1 && ids.dim() <= most && ids.sym_size(-1) == length;
  good = good && (ids.dim() < 2 || ids.sym_size(-2) == 1 || ids.sym_size(-2) == batch);
  good = good && (ids.dim() < 3 || ids.sym_size(0) >= n_axes);
  if (!good) {
    std::string forms =
        c10::str("(", length, "), (1, ", length, ") or (", batch, ", ", length, ")");
    if (n_axes > 0) {
      forms +=
          c10::str(", or with the ", n_axes, " axes (", n_axes, ", ", batch, ", ", length, ")");
    }
    TORCH_CHECK_VALUE(false, op, ": expected position_ids of shape ", forms, " for x of shape ",
                      x.sym_sizes(), " with time on axis ", seq_dim, ", got ", ids.sym_sizes());
  }
}

at::Tensor position_tensor(const std::optional<at::Tensor>& position_ids, const c10::SymInt& offset,
                           const c10::SymInt& length, const at::TensorOptions& options) {
  // MPS has no float64.
  const at::TensorOptions real =
      options.dtype(options.device().is_mps() ? at::kFloat : at::kDouble);
  if (!position_ids.has_value()) {
    at::Tensor range =
        at::arange(at::Scalar(length), real.dtype(at::kLong)).add(at::Scalar(offset));
    return range.to(real.dtype().toScalarType()).unsqueeze(0).unsqueeze(0);
  }
  at::Tensor ids = widest(*position_ids).add(at::Scalar(offset)).to(real.dtype().toScalarType());
  while (ids.dim() < 3) {
    ids = ids.unsqueeze(0);
  }
  return ids;
}

Positions make_positions(const std::optional<at::Tensor>& position_ids, int64_t offset) {
  Positions result;
  result.view.offset = static_cast<double>(offset);
  if (!position_ids.has_value()) {
    return result;
  }
  const at::Tensor ids = (offset == 0 ? *position_ids : widest(*position_ids).add(offset))
                             .to(at::kDouble)
                             .contiguous();
  result.storage = ids;
  PositionView& view = result.view;
  view.data = ids.const_data_ptr<double>();
  view.seq_stride = 1;
  const int64_t dim = ids.dim();
  view.batch_stride = dim >= 2 && ids.size(-2) > 1 ? ids.size(-1) : 0;
  view.axis_stride = dim == 3 ? ids.size(1) * ids.size(2) : 0;
  return result;
}

namespace {

at::Tensor positions_from_mask_impl(const at::Tensor& mask) {
  TORCH_CHECK_VALUE(mask.dim() == 1 || mask.dim() == 2,
                    "positions_from_mask: expected a mask of shape (L) or (B, L), got ",
                    mask.sym_sizes());
  return mask.ne(0).to(at::kLong).cumsum(-1).sub(1).clamp_min(0);
}

at::Tensor positions_from_cu_seqlens_impl(const at::Tensor& cu_seqlens, c10::SymInt total,
                                          const std::optional<at::Tensor>& offsets) {
  TORCH_CHECK_VALUE(cu_seqlens.dim() == 1 && cu_seqlens.sym_size(0) >= 1,
                    "positions_from_cu_seqlens: expected cu_seqlens of shape (documents + 1), got ",
                    cu_seqlens.sym_sizes());
  TORCH_CHECK_TYPE(c10::isIntegralType(cu_seqlens.scalar_type(), false),
                   "positions_from_cu_seqlens: expected an integer dtype, got ",
                   cu_seqlens.scalar_type());
  at::Tensor bounds = cu_seqlens.to(at::kLong);
  at::Tensor token = at::arange(at::Scalar(total), bounds.options());
  // right=true: the number of bounds ≤ token, so the document's own start is the one before.
  at::Tensor document = at::searchsorted(bounds, token, /*out_int32=*/false, /*right=*/true).sub(1);
  at::Tensor start = bounds;  // the token that is at position 0, had it come in this row
  if (offsets.has_value()) {
    const c10::SymInt documents = bounds.sym_size(0) - 1;
    TORCH_CHECK_TYPE(c10::isIntegralType(offsets->scalar_type(), false),
                     "positions_from_cu_seqlens: expected offsets of an integer dtype, got ",
                     offsets->scalar_type());
    TORCH_CHECK_VALUE(offsets->dim() == 1 && offsets->sym_size(0) == documents,
                      "positions_from_cu_seqlens: expected offsets of shape (", documents,
                      "), one a document, got ", offsets->sym_sizes());
    // Past the last document there is none.
    start = bounds - at::cat({offsets->to(bounds.options()), bounds.new_zeros({1})});
  }
  return token - start.index_select(0, document.clamp_min(0));
}

at::Tensor positions_from_documents_impl(const at::Tensor& document_ids) {
  TORCH_CHECK_VALUE(document_ids.dim() == 1 || document_ids.dim() == 2,
                    "positions_from_documents: expected ids of shape (L) or (B, L), got ",
                    document_ids.sym_sizes());
  at::Tensor index =
      at::arange(at::Scalar(document_ids.sym_size(-1)), document_ids.options().dtype(at::kLong))
          .expand_symint(document_ids.sym_sizes());
  at::Tensor changed = document_ids.ne(document_ids.roll_symint({c10::SymInt(1)}, {-1}));
  at::Tensor start = at::where(changed.logical_or(index.eq(0)), index, at::zeros_like(index));
  return index - std::get<0>(at::cummax(start, -1));
}

at::Tensor positions_from_offsets_impl(const at::Tensor& offsets, c10::SymInt length) {
  TORCH_CHECK_VALUE(offsets.dim() == 1,
                    "positions_from_offsets: expected offsets of shape (B), got ",
                    offsets.sym_sizes());
  TORCH_CHECK_TYPE(c10::isIntegralType(offsets.scalar_type(), false),
                   "positions_from_offsets: expected an integer dtype, got ",
                   offsets.scalar_type());
  return offsets.to(at::kLong).unsqueeze(1) +
         at::arange(at::Scalar(length), offsets.options().dtype(at::kLong));
}

at::Tensor positions_for_context_parallel_impl(c10::SymInt length, int64_t rank, int64_t world_size,
                                               bool zigzag, std::optional<at::Device> device) {
  TORCH_CHECK_VALUE(world_size >= 1 && rank >= 0 && rank < world_size,
                    "positions_for_context_parallel: expected 0 <= rank < world_size, got rank ",
                    rank, " of ", world_size);
  const int64_t parts = zigzag ? 2 * world_size : world_size;
  TORCH_CHECK_VALUE(length % parts == 0,
                    "positions_for_context_parallel: expected a length divisible by ", parts,
                    ", got ", length);
  const c10::SymInt chunk = length / parts;
  at::Tensor inner =
      at::arange(at::Scalar(chunk), at::TensorOptions(at::kLong).device(device.value_or(at::kCPU)));
  at::Tensor first = inner.add(at::Scalar(chunk * rank));
  return zigzag ? at::cat({first, inner.add(at::Scalar(chunk * (parts - 1 - rank)))}) : first;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("positions_from_mask(Tensor mask) -> Tensor", positions_from_mask_impl, tags);
  m.def(
      "positions_from_cu_seqlens(Tensor cu_seqlens, SymInt total, Tensor? offsets=None) -> Tensor",
      positions_from_cu_seqlens_impl, tags);
  m.def("positions_from_documents(Tensor document_ids) -> Tensor", positions_from_documents_impl,
        tags);
  m.def("positions_from_offsets(Tensor offsets, SymInt length) -> Tensor",
        positions_from_offsets_impl, tags);
  m.def(
      "positions_for_context_parallel(SymInt length, int rank, int world_size, bool zigzag=False, "
      "Device? device=None) -> "
      "Tensor",
      positions_for_context_parallel_impl, tags);
}

}  // namespace core

at::Tensor positions_from_mask(const at::Tensor& mask) {
  return core::positions_from_mask_impl(mask);
}
at::Tensor positions_from_cu_seqlens(const at::Tensor& cu_seqlens, c10::SymInt total,
                                     const std::optional<at::Tensor>& offsets) {
  return core::positions_from_cu_seqlens_impl(cu_seqlens, std::move(total), offsets);
}
at::Tensor positions_from_documents(const at::Tensor& document_ids) {
  return core::positions_from_documents_impl(document_ids);
}
at::Tensor positions_from_offsets(const at::Tensor& offsets, c10::SymInt length) {
  return core::positions_from_offsets_impl(offsets, std::move(length));
}
at::Tensor positions_for_context_parallel(c10::SymInt length, int64_t rank, int64_t world_size,
                                          bool zigzag) {
  return core::positions_for_context_parallel_impl(std::move(length), rank, world_size, zigzag,
                                                   std::nullopt);
}

}  // namespace posenc
