#include <posenc/core/checks.h>
#include <posenc/core/positions.h>
#include <posenc/rotary/rotary_args.h>

#include <algorithm>
#include <cmath>

namespace posenc::rotary {

int64_t RotaryArgs::n_axes() const {
  return axes.has_value() && !axes->empty() ? *std::max_element(axes->begin(), axes->end()) + 1 : 0;
}

RotaryArgs RotaryArgs::transposed() const {
  RotaryArgs result = *this;
  result.interleaved = layout_out();
  result.interleaved_out = interleaved;
  result.inverse = !inverse;
  return result;
}

RotaryArgs make_args(const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                     int64_t seq_dim, bool interleaved, std::optional<bool> interleaved_out,
                     int64_t rotary_start, double attention_factor, at::OptionalIntArrayRef axes,
                     bool inverse) {
  RotaryArgs args{position_ids, std::move(offset), seq_dim,      interleaved, interleaved_out,
                  rotary_start, attention_factor,  std::nullopt, inverse};
  if (axes.has_value()) {
    args.axes = axes->vec();
  }
  return args;
}

namespace {

/// What holds whatever is rotated.
void check_options(const char* op, int64_t n, const RotaryArgs& args) {
  TORCH_CHECK_VALUE(args.rotary_start >= 0, op, ": expected rotary_start >= 0, got ",
                    args.rotary_start);
  TORCH_CHECK_VALUE(std::isfinite(args.attention_factor), op,
                    ": expected a finite attention_factor, got ", args.attention_factor);
  if (args.axes.has_value()) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(args.axes->size()) == n, op,
                      ": expected axes to name one position axis for each of the ", n,
                      " frequencies, got ", args.axes->size(), " entries");
    for (int64_t axis : *args.axes) {
      TORCH_CHECK_VALUE(axis >= 0 && axis < 16, op, ": expected axes in [0, 15], got ", axis);
    }
  }
}

/// One tensor that is rotated, by arguments that passed check_options; returns its time axis.
int64_t check_rotated(const char* op, const char* name, const at::Tensor& x, int64_t n,
                      const RotaryArgs& args) {
  core::check_floating(op, name, x);
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": expected ", name,
                    " of at least 2 axes (time and head_dim), got shape ", x.sym_sizes());
  const int64_t seq_dim = core::wrap_dim(op, "seq_dim", args.seq_dim, x.dim());
  TORCH_CHECK_VALUE(seq_dim != x.dim() - 1, op, ": expected seq_dim to name the time axis of ",
                    name, ", got ", seq_dim, ", the last axis of shape ", x.sym_sizes(),
                    ", which holds the channels");
  const c10::SymInt head_dim = x.sym_size(-1);
  // Subtracted: a sum of arguments may leave int64 and come out small.
  TORCH_CHECK_VALUE(head_dim - 2 * n >= args.rotary_start, op, ": expected head_dim >= ",
                    static_cast<uint64_t>(args.rotary_start) + 2 * static_cast<uint64_t>(n),
                    " (rotary_start ", args.rotary_start, " + 2 * ", n, " frequencies), got ",
                    head_dim, " in ", name, " of shape ", x.sym_sizes());
  core::check_position_ids(op, args.position_ids, x, seq_dim, args.n_axes());
  return seq_dim;
}

c10::SymInt batch_size(const at::Tensor& x, int64_t seq_dim) {
  const int64_t axis = core::batch_dim(seq_dim, x.dim());
  return axis < 0 ? c10::SymInt(1) : x.sym_size(axis);
}

}  // namespace

void check_rotary(const char* op, const at::Tensor& x, int64_t n, RotaryArgs& args,
                  const char* name) {
  check_options(op, n, args);
  args.seq_dim = check_rotated(op, name, x, n, args);
}

int64_t check_rotary_qk(const char* op, const at::Tensor& q, const at::Tensor& k, int64_t n,
                        RotaryArgs& args) {
  check_options(op, n, args);
  const int64_t q_dim = check_rotated(op, "q", q, n, args);
  const int64_t k_dim = check_rotated(op, "k", k, n, args);
  TORCH_CHECK_VALUE(k.device() == q.device(), op, ": expected k on q's device ", q.device(),
                    ", got ", k.device());
  TORCH_CHECK_VALUE(q.sym_size(q_dim) == k.sym_size(k_dim), op,
                    ": expected q and k of one length, got q of shape ", q.sym_sizes(),
                    " and k of shape ", k.sym_sizes(), " with time on axis ", args.seq_dim);
  args.seq_dim = q_dim;
  return k_dim;
}

int64_t check_rotary_qkv(const char* op, const at::Tensor& qkv, int64_t n_heads, int64_t n_kv_heads,
                         int64_t n, RotaryArgs& args) {
  TORCH_CHECK_VALUE(qkv.dim() == 4 || qkv.dim() == 5, op,
                    ": expected qkv of shape (B, L, n_heads + 2 * n_kv_heads, D) or "
                    "(B, L, 3, H, D), got ",
                    qkv.sym_sizes());
  TORCH_CHECK_VALUE(n_heads > 0 && n_kv_heads > 0, op,
                    ": expected n_heads > 0 and n_kv_heads > 0, got ", n_heads, " and ",
                    n_kv_heads);
  const int64_t given = args.seq_dim;
  check_rotary(op, qkv, n, args, "qkv");
  TORCH_CHECK_VALUE(args.seq_dim == 1, op,
                    ": expected seq_dim 1, the time axis of a packed qkv (B, L, ...), got ", given);
  if (qkv.dim() == 5) {
    TORCH_CHECK_VALUE(qkv.sym_size(2) == 3 && qkv.sym_size(3) == n_heads && n_heads == n_kv_heads,
                      op,
                      ": expected a 5-D qkv of shape (B, L, 3, H, D) with H = n_heads = ", n_heads,
                      " = n_kv_heads = ", n_kv_heads, ", got ", qkv.sym_sizes());
    return 2;
  }
  TORCH_CHECK_VALUE(qkv.sym_size(2) == n_heads + 2 * n_kv_heads, op, ": expected ",
                    n_heads + 2 * n_kv_heads, " heads (n_heads ", n_heads, " + 2 * n_kv_heads ",
                    n_kv_heads, ") on axis 2 of qkv, got ", qkv.sym_size(2), " in shape ",
                    qkv.sym_sizes());
  return n_heads + n_kv_heads;
}

int64_t head_dim_axis(const at::Tensor& x, int64_t seq_dim) {
  const int64_t batch = core::batch_dim(seq_dim, x.dim());
  return 3 - batch - seq_dim;  // the one of {0, 1, 2} that is neither
}

void check_freq_tensor(const char* op, const at::Tensor& x, const at::Tensor& inv_freq,
                       const RotaryArgs& args) {
  TORCH_CHECK_TYPE(inv_freq.scalar_type() == at::kDouble, op,
                   ": expected inv_freq of dtype float64 (frequencies lose 16 bits of position in "
                   "float32), got ",
                   inv_freq.scalar_type());
  TORCH_CHECK_VALUE(inv_freq.device() == x.device(), op, ": expected inv_freq on x's device ",
                    x.device(), ", got ", inv_freq.device());
  if (inv_freq.dim() == 1) {
    return;
  }
  TORCH_CHECK_VALUE(inv_freq.dim() == 3, op,
                    ": expected inv_freq of shape (n), (B, 1, n), or for a 4-D x (1, H, n), got ",
                    inv_freq.sym_sizes(), " for x of shape ", x.sym_sizes());
  const c10::SymInt batch = batch_size(x, args.seq_dim);
  const c10::SymInt heads =
      x.dim() == 4 ? x.sym_size(head_dim_axis(x, args.seq_dim)) : c10::SymInt(1);
  const c10::SymInt rows = inv_freq.sym_size(0), columns = inv_freq.sym_size(1);
  const bool per_batch = columns == 1 && (rows == 1 || rows == batch);
  const bool per_head = rows == 1 && columns == heads;
  TORCH_CHECK_VALUE(per_batch || per_head, op, ": expected inv_freq of shape (n), (", batch,
                    ", 1, n) or (1, ", heads, ", n) for x of shape ", x.sym_sizes(), ", got ",
                    inv_freq.sym_sizes());
}

void check_rotary_tensor(const at::Tensor& x, const at::Tensor& inv_freq, RotaryArgs& args) {
  const char* op = "rotary_embedding.Tensor";
  TORCH_CHECK_VALUE(inv_freq.dim() >= 1, op,
                    ": expected inv_freq of shape (n), (B, 1, n) or (1, H, n), got a scalar");
  check_rotary(op, x, core::fixed_size(inv_freq, -1), args);
  check_freq_tensor(op, x, inv_freq, args);
}

}  // namespace posenc::rotary
