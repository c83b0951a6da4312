#include <posenc/core/positions.h>
#include <posenc/rotary/rotary_parts.h>

#include <algorithm>
#include <vector>

namespace posenc::rotary {
namespace {

struct Axis {
  int64_t size, x_stride, y_stride;
};

using Parts = decltype(RotaryWork::parts);

/// The axes that are neither batch, time nor channel, with neighbours merged where both tensors
/// allow it.
std::vector<Axis> head_axes(const at::Tensor& x, const at::Tensor& y, int64_t batch,
                            int64_t seq_dim) {
  std::vector<Axis> axes;
  for (int64_t d = 0; d < x.dim() - 1; ++d) {
    if (d == batch || d == seq_dim || x.size(d) == 1) {
      continue;
    }
    const Axis axis{x.size(d), x.stride(d), y.stride(d)};
    if (!axes.empty() && axes.back().x_stride == axis.size * axis.x_stride &&
        axes.back().y_stride == axis.size * axis.y_stride) {
      axes.back() = {axes.back().size * axis.size, axis.x_stride, axis.y_stride};
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

/// Appends the target as parts of one head axis each: where axes could not be merged, one part for
/// each index of those in front.
void add_parts(Parts& parts, RotaryPart part, const std::vector<Axis>& axes, size_t depth,
               int64_t element) {
  if (depth + 1 >= axes.size()) {
    const Axis last = axes.empty() ? Axis{1, 0, 0} : axes.back();
    part.heads = last.size;
    part.xs.head = last.x_stride;
    part.ys.head = last.y_stride;
    parts.push_back(part);
    return;
  }
  const Axis& axis = axes[depth];
  for (int64_t i = 0; i < axis.size; ++i) {
    RotaryPart slice = part;
    slice.x = static_cast<const char*>(part.x) + i * axis.x_stride * element;
    slice.y = static_cast<char*>(part.y) + i * axis.y_stride * element;
    add_parts(parts, slice, axes, depth + 1, element);
  }
}

/// `batch` is the batch axis; −1 for none, or one that counts as heads.
void add_parts(Parts& parts, const RotaryTarget& target, int64_t batch) {
  const at::Tensor &x = target.x, &y = target.y;
  RotaryPart part{};
  part.x = x.const_data_ptr();
  part.y = y.mutable_data_ptr();
  part.head_dim = x.size(-1);
  part.xs = {batch < 0 ? 0 : x.stride(batch), x.stride(target.seq_dim), 0, x.stride(-1)};
  part.ys = {batch < 0 ? 0 : y.stride(batch), y.stride(target.seq_dim), 0, y.stride(-1)};
  part.copied = target.copied;
  add_parts(parts, part, head_axes(x, y, batch, target.seq_dim), 0, x.element_size());
}

int64_t batch_axis(const RotaryTarget& target) {
  return core::batch_dim(target.seq_dim, target.x.dim());
}

int64_t batch_size(const RotaryTarget& target) {
  const int64_t axis = batch_axis(target);
  return axis < 0 ? 1 : target.x.size(axis);
}

}  // namespace

RotaryWork share_out(at::ArrayRef<RotaryTarget> targets) {
  RotaryWork work;
  work.seq = targets[0].x.size(targets[0].seq_dim);
  work.batch = batch_size(targets[0]);
  const bool one_batch = std::all_of(targets.begin() + 1, targets.end(), [&](const auto& target) {
    return batch_size(target) == work.batch;
  });
  if (!one_batch) {
    work.batch = 1;
  }
  for (const RotaryTarget& target : targets) {
    if (target.x.numel() == 0) {
      continue;
    }
    work.row += target.x.numel() / (work.batch * work.seq);
    add_parts(work.parts, target, one_batch ? batch_axis(target) : -1);
  }
  return work;
}

}  // namespace posenc::rotary
