#include <posenc/absolute/learned.h>
#include <posenc/absolute/learned_checks.h>
#include <posenc/absolute/tokens.h>
#include <posenc/core/checks.h>
#include <posenc/core/dispatch.h>
#include <posenc/core/positions.h>

namespace posenc {

at::Tensor add_positions(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& position_ids, c10::SymInt offset,
                         int64_t seq_dim) {
  static const auto op =
      core::find_op<at::Tensor(const at::Tensor&, const at::Tensor&,
                               const std::optional<at::Tensor>&, c10::SymInt, int64_t)>(
          "posenc::add_positions");
  return op.call(x, weight, position_ids, std::move(offset), seq_dim);
}

namespace absolute {
namespace {

void check_positions(const char* op, const at::Tensor& x, const c10::SymInt& num_rows,
                     const std::optional<at::Tensor>& position_ids, const c10::SymInt& offset,
                     int64_t axis) {
  core::check_position_ids(op, position_ids, x, axis);
  if (position_ids.has_value()) {
    TORCH_CHECK_TYPE(c10::isIntegralType(position_ids->scalar_type(), /*includeBool=*/false), op,
                     ": expected position_ids of an integer dtype, as rows of a table have whole "
                     "numbers, got ",
                     position_ids->scalar_type());
    return;
  }
  const c10::SymInt length = x.sym_size(axis);
  TORCH_CHECK_INDEX(holds(offset.sym_ge(0)), op, ": expected positions in [0, ", num_rows,
                    "), the rows of the table, got position ", offset, " (offset)");
  // Subtracted: a sum of arguments may leave int64 and come out small.
  TORCH_CHECK_INDEX(holds(offset.sym_le(num_rows - length)), op, ": expected positions in [0, ",
                    num_rows, "), the rows of the table, got position ",
                    holds(offset.sym_le(num_rows)) ? offset + length - 1 : offset, " (length ",
                    length, ", offset ", offset, ")");
}

}  // namespace

int64_t check_add_positions(const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& position_ids,
                            const c10::SymInt& offset, int64_t seq_dim) {
  constexpr const char* op = "add_positions";
  const int64_t axis = check_tokens(op, x, seq_dim);
  core::check_same(op, "weight", weight, "x", x);
  TORCH_CHECK_VALUE(weight.dim() == 2 && holds(weight.sym_size(1).sym_eq(x.sym_size(-1))), op,
                    ": expected weight of shape (num_rows, ", x.sym_size(-1), "), got ",
                    weight.sym_sizes());
  check_positions(op, x, weight.sym_size(0), position_ids, offset, axis);
  return axis;
}

int64_t check_add_positions_backward(const at::Tensor& grad, const c10::SymInt& num_rows,
                                     const std::optional<at::Tensor>& position_ids,
                                     const c10::SymInt& offset, int64_t seq_dim) {
  constexpr const char* op = "_add_positions_backward";
  const int64_t axis = check_tokens(op, grad, seq_dim);
  check_positions(op, grad, num_rows, position_ids, offset, axis);
  return axis;
}

at::Tensor checked_ids(const char* op, const char* name, const at::Tensor& ids, int64_t offset,
                       int64_t num_rows) {
  const at::Tensor whole = ids.to(at::kLong).contiguous();
  const int64_t* data = whole.const_data_ptr<int64_t>();
  // Before any thread starts and anything is written. The smallest and largest first: that loop has
  // no branch.
  const int64_t count = whole.numel();
  int64_t low = count == 0 ? 0 : data[0], high = low;
  for (int64_t i = 0; i < count; ++i) {
    low = data[i] < low ? data[i] : low;
    high = data[i] > high ? data[i] : high;
  }
  // The offset after the search, where it can be looked at whether the sum leaves int64.
  const auto is_row = [&](int64_t id, int64_t& row) {
    return !__builtin_add_overflow(id, offset, &row) && row >= 0 && row < num_rows;
  };
  int64_t first = 0, last = 0;
  const bool first_inside = is_row(low, first), last_inside = is_row(high, last);
  TORCH_CHECK_INDEX(count == 0 || (first_inside && last_inside), op, ": expected ", name,
                    " in [0, ", num_rows, "), the rows of the table, got ",
                    first_inside ? last : first,
                    offset == 0 ? std::string() : c10::str(" (offset ", offset, " included)"));
  return whole;
}

}  // namespace absolute

}  // namespace posenc
