#include <posenc/rotary/rotary_cuda.h>

#include <ATen/ops/empty_like.h>
#include <posenc/core/checks.h>
#include <posenc/core/cuda_tools.h>
#include <posenc/rotary/rotary_launch.h>
#include <posenc/rotary/rotary_schema.h>
#include <torch/library.h>

#include <algorithm>

namespace posenc::rotary {
namespace {

RotaryDevicePart device_part(const RotaryPart& part) {
  RotaryDevicePart result{};
  result.x = part.x;
  result.y = part.y;
  result.x_batch = part.xs.batch;
  result.x_seq = part.xs.seq;
  result.x_head = part.xs.head;
  result.x_last = part.xs.last;
  result.y_batch = part.ys.batch;
  result.y_seq = part.ys.seq;
  result.y_head = part.ys.head;
  result.y_last = part.ys.last;
  result.heads = static_cast<int32_t>(part.heads);
  result.head_dim = static_cast<int32_t>(part.head_dim);
  result.copied = part.copied;
  return result;
}

/// What does not depend on where the frequencies come from.
RotaryDeviceParams params_of(const RotaryArgs& args, int64_t n, at::Tensor& ids) {
  RotaryDeviceParams p{};
  p.start = static_cast<int32_t>(args.rotary_start);
  p.n_pairs = p.n_here = static_cast<int32_t>(n);
  p.interleaved_in = args.interleaved;
  p.interleaved_out = args.layout_out();
  p.inverse = args.inverse;
  p.copies_rest = true;
  p.attention_factor = args.attention_factor;
  p.positions = position_view(args.position_ids, args.offset.expect_int(), ids);
  const bool has_axes = args.axes.has_value() && ids.defined() && ids.dim() == 3;
  p.axis_stride = has_axes ? ids.stride(0) : 0;
  return p;
}

int64_t axis_of(const RotaryArgs& args, int64_t i) { return args.axes ? (*args.axes)[i] : 0; }

/// A layout that changes in place would be read where it is already written: by way of a copy.
bool relays_in_place(at::ArrayRef<RotaryTarget> targets, const RotaryArgs& args) {
  return args.interleaved != args.layout_out() && targets[0].x.is_same(targets[0].y);
}

}  // namespace

core::IdView position_view(const std::optional<at::Tensor>& position_ids, int64_t offset,
                           at::Tensor& storage) {
  core::IdView view;
  view.offset = offset;
  if (!position_ids.has_value()) {
    return view;
  }
  storage = *position_ids;
  switch (storage.scalar_type()) {
    case at::kLong:
      view.type = core::IdType::kInt64;
      break;
    case at::kInt:
      view.type = core::IdType::kInt32;
      break;
    case at::kDouble:
      view.type = core::IdType::kDouble;
      break;
    case at::kFloat:
      view.type = core::IdType::kFloat;
      break;
    default:
      storage = storage.to(at::kLong);
  }
  view.data = storage.const_data_ptr();
  view.seq_stride = storage.stride(-1);
  view.batch_stride = storage.dim() >= 2 && storage.size(-2) > 1 ? storage.stride(-2) : 0;
  return view;
}

void run_rotation_cuda(const char* op, at::ArrayRef<RotaryTarget> targets, RotaryDeviceParams p) {
  const RotaryWork work = share_out(targets);
  const at::Tensor& first = targets[0].x;
  const int size = static_cast<int>(first.element_size());
  p.batch = work.batch;
  p.seq = work.seq;
  const c10::cuda::CUDAGuard guard(first.device());
  for (size_t begin = 0; begin < work.parts.size();) {
    p.n_parts = 0;
    for (; begin < work.parts.size() && p.n_parts < RotaryDeviceParams::kMostParts; ++begin) {
      const RotaryPart& part = work.parts[begin];
      if (!part.copied || part.x != part.y) {
        p.parts[p.n_parts++] = device_part(part);
      }
    }
    if (p.n_parts == 0) {
      continue;
    }
    const int pack = choose_pack(p, size);
    plan_rotation(p, pack);
    core::check_launch(
        op, launch_rotation(p, core::gpu_dtype(first.scalar_type()), pack, core::current_stream()));
  }
}

void rotate_by_frequencies_cuda(const char* op, at::ArrayRef<RotaryTarget> targets,
                                at::ArrayRef<double> inv_freq, const RotaryArgs& args) {
  if (relays_in_place(targets, args)) {
    for (const RotaryTarget& target : targets) {
      const at::Tensor y = at::empty_like(target.x);
      rotate_by_frequencies_cuda(op, {{target.x, y, target.seq_dim}}, inv_freq, args);
      target.y.copy_(y);
    }
    return;
  }
  at::Tensor ids;
  RotaryDeviceParams p = params_of(args, static_cast<int64_t>(inv_freq.size()), ids);
  const bool is_double = targets[0].x.scalar_type() == at::kDouble;
  int64_t first = 0;
  do {  // a list without frequencies still has channels to copy
    p.first_pair = static_cast<int32_t>(first);
    p.n_here = std::min(p.n_pairs - p.first_pair, RotaryDeviceParams::kMostFrequencies);
    p.copies_rest = first == 0;
    for (int i = 0; i < p.n_here; ++i) {
      set_frequency(p, i, inv_freq[first + i], axis_of(args, first + i), is_double);
    }
    run_rotation_cuda(op, targets, p);
    first += p.n_here;
  } while (first < p.n_pairs);
}

namespace {

at::Tensor rotary_embedding_tensor_cuda(const at::Tensor& x, const at::Tensor& inv_freq,
                                        POSENC_ROTARY_ARGS) {
  RotaryArgs args = make_args(POSENC_ROTARY_PASS);
  check_rotary_tensor(x, inv_freq, args);
  at::Tensor y = at::empty_like(x);
  const at::Tensor freq = inv_freq.contiguous();
  const int64_t n = freq.size(-1);
  at::Tensor ids;
  RotaryDeviceParams p = params_of(args, n, ids);
  p.inv_freq = freq.const_data_ptr<double>();
  p.freq_batch = freq.dim() == 3 && freq.size(0) > 1 ? n : 0;
  p.freq_head = freq.dim() == 3 && freq.size(1) > 1 ? n : 0;
  const int64_t chunk = p.axis_stride != 0 ? RotaryDeviceParams::kMostFrequencies
                                           : std::max<int64_t>(n, 1);  // axes travel by value
  int64_t first = 0;
  do {
    p.first_pair = static_cast<int32_t>(first);
    p.n_here = static_cast<int32_t>(std::min(n - first, chunk));
    p.copies_rest = first == 0;
    for (int i = 0; p.axis_stride != 0 && i < p.n_here; ++i) {
      p.axis[i] = static_cast<uint8_t>(axis_of(args, first + i));
    }
    run_rotation_cuda("rotary_embedding.Tensor", {{x, y, args.seq_dim}}, p);
    first += p.n_here;
  } while (first < n);
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) {
  m.impl("rotary_embedding.Tensor", rotary_embedding_tensor_cuda);
}

}  // namespace posenc::rotary
