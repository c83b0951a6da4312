#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <posenc/core/checks.h>
#include <posenc/rotary/grid_positions.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace posenc {
namespace {

struct Grid {
  int64_t t, h, w;
};

/// The numbers in host memory, int64 and dense.
at::Tensor on_host(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      !tensor.is_meta(), op, ": expected ", name,
      " with numbers in memory, which decide the positions; got a tensor without them. Call it "
      "outside of torch.compile, torch.export and the meta device, and pass position_ids in.");
  TORCH_CHECK_TYPE(c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false), op,
                   ": expected ", name, " of an integer dtype, got ", tensor.scalar_type());
  return tensor.to(at::kCPU, at::kLong).contiguous();
}

std::vector<Grid> read_grids(const char* op, const char* name,
                             const std::optional<at::Tensor>& given, int64_t temporal,
                             int64_t merge) {
  if (!given.has_value()) {
    return {};
  }
  TORCH_CHECK_VALUE(given->dim() >= 1 && given->dim() <= 2 && given->size(-1) == 3, op,
                    ": expected ", name, " of shape (n, 3), got ", given->sizes());
  const at::Tensor host = on_host(op, name, *given);
  const auto* numbers = host.const_data_ptr<int64_t>();
  constexpr int64_t kMost = 1 << 24;  // no patch count overflows, and none comes near it
  std::vector<Grid> grids;
  for (int64_t i = 0; i < host.numel() / 3; ++i) {
    const Grid grid{numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2]};
    const bool whole = grid.t > 0 && grid.h > 0 && grid.w > 0 && grid.t < kMost && grid.h < kMost &&
                       grid.w < kMost && grid.t % temporal == 0 && grid.h % merge == 0 &&
                       grid.w % merge == 0;
    TORCH_CHECK_VALUE(whole, op, ": expected ", name,
                      " of positive numbers (t, h, w), t divisible by ", temporal,
                      ", h and w by spatial_merge_size ", merge, ", got (", grid.t, ", ", grid.h,
                      ", ", grid.w, ") at ", i);
    grids.push_back({grid.t / temporal, grid.h / merge, grid.w / merge});
  }
  return grids;
}

void check_merge(const char* op, const char* name, int64_t merge) {
  TORCH_CHECK_VALUE(merge >= 1, op, ": expected ", name, " >= 1, got ", merge);
}

}  // namespace

at::Tensor vision_position_ids(const at::Tensor& grid_thw, int64_t spatial_merge_size,
                               bool include_time) {
  const char* op = "vision_position_ids";
  const int64_t m = spatial_merge_size;
  check_merge(op, "spatial_merge_size", m);
  // In merged units; each holds m × m patches.
  const std::vector<Grid> grids = read_grids(op, "grid_thw", grid_thw, 1, m);
  int64_t length = 0;
  for (const Grid& grid : grids) {
    length += grid.t * grid.h * grid.w * m * m;
  }
  const int64_t n_axes = include_time ? 3 : 2;
  const at::Tensor ids = at::empty({n_axes, length}, at::kLong);
  auto* column = ids.mutable_data_ptr<int64_t>() + (n_axes - 1) * length;
  auto* row = column - length;
  auto* time = row - length;  // read only with include_time
  int64_t at = 0;
  for (const Grid& grid : grids) {
    for (int64_t t = 0; t < grid.t; ++t) {
      for (int64_t block = 0; block < grid.h * grid.w; ++block) {
        for (int64_t inner = 0; inner < m * m; ++inner, ++at) {
          row[at] = block / grid.w * m + inner / m;
          column[at] = block % grid.w * m + inner % m;
          if (include_time) {
            time[at] = t;
          }
        }
      }
    }
  }
  return ids.to(grid_thw.device());
}

namespace {

/// Kinds of tokens, and the grids of one kind in the order in which the batch uses them up.
constexpr int64_t kText = 0, kImage = 1, kVideo = 2;

struct Supply {
  const char* name;
  std::vector<Grid> grids;
  std::vector<float> intervals;  ///< positions between two frames
  size_t used = 0;
};

/// Token types and mask of a batch, in host memory.
struct Batch {
  int64_t rows, length;
  at::Tensor types_tensor, mask_tensor;
  const int64_t* types;
  const bool* mask;  ///< nullptr: no padding

  Batch(const char* op, const at::Tensor& token_types,
        const std::optional<at::Tensor>& attention_mask, int64_t most) {
    TORCH_CHECK_VALUE(token_types.dim() == 2, op, ": expected token_types of shape (B, L), got ",
                      token_types.sizes());
    rows = token_types.size(0);
    length = token_types.size(1);
    types_tensor = on_host(op, "token_types", token_types);
    types = types_tensor.const_data_ptr<int64_t>();
    mask = nullptr;
    if (attention_mask.has_value()) {
      TORCH_CHECK_VALUE(attention_mask->sizes() == token_types.sizes(), op,
                        ": expected attention_mask of token_types' shape ", token_types.sizes(),
                        ", got ", attention_mask->sizes());
      TORCH_CHECK_VALUE(!attention_mask->is_meta(), op,
                        ": expected attention_mask with numbers in memory");
      mask_tensor = attention_mask->ne(0).to(at::kCPU).contiguous();
      mask = mask_tensor.const_data_ptr<bool>();
    }
    for (int64_t i = 0; i < rows * length; ++i) {
      TORCH_CHECK_VALUE(!real(i) || (types[i] >= 0 && types[i] <= most), op,
                        ": expected token_types from 0 to ", most, ", got ", types[i], " in row ",
                        i / length);
    }
  }

  bool real(int64_t i) const { return mask == nullptr || mask[i]; }

  /// Where the real tokens of a row stand.
  std::vector<int64_t> tokens(int64_t row) const {
    std::vector<int64_t> result;
    for (int64_t i = row * length; i < (row + 1) * length; ++i) {
      if (real(i)) {
        result.push_back(i);
      }
    }
    return result;
  }
};

/// The end of the run of equal types that begins at `begin`.
size_t end_of_run(const Batch& batch, const std::vector<int64_t>& tokens, size_t begin) {
  size_t end = begin;
  while (end < tokens.size() && batch.types[tokens[end]] == batch.types[tokens[begin]]) {
    ++end;
  }
  return end;
}

void check_all_used(const char* op, const Supply& supply) {
  TORCH_CHECK_VALUE(supply.used == supply.grids.size(), op, ": expected tokens for all ",
                    supply.grids.size(), " grids of ", supply.name, ", got them for ", supply.used);
}

const Grid& next_grid(const char* op, Supply& supply, int64_t row, size_t left) {
  TORCH_CHECK_VALUE(supply.used < supply.grids.size(), op, ": expected a grid in ", supply.name,
                    " for each of its runs of tokens, got ", supply.grids.size(),
                    " grids, and row ", row, " has ", left, " tokens more");
  return supply.grids[supply.used++];
}

std::tuple<at::Tensor, at::Tensor> on_device_of(const at::Tensor& like, const at::Tensor& ids,
                                                const at::Tensor& deltas) {
  return {ids.to(like.device()), deltas.to(like.device())};
}

std::vector<float> read_intervals(const char* op, const std::vector<Grid>& grids,
                                  double tokens_per_second,
                                  const std::optional<at::Tensor>& seconds) {
  const size_t videos = grids.size();
  constexpr double kMost = 1LL << 53;
  TORCH_CHECK_VALUE(tokens_per_second >= 0 && tokens_per_second <= 1e6, op,
                    ": expected tokens_per_second from 0 to 1e6, got ", tokens_per_second);
  std::vector<float> intervals(videos, static_cast<float>(tokens_per_second));
  if (!seconds.has_value()) {
    return intervals;
  }
  TORCH_CHECK_VALUE(seconds->dim() == 1 && seconds->size(0) == static_cast<int64_t>(videos), op,
                    ": expected second_per_grid_ts of shape (", videos,
                    "), one number for each video, got ", seconds->sizes());
  TORCH_CHECK_VALUE(!seconds->is_meta(), op,
                    ": expected second_per_grid_ts with numbers in memory");
  const at::Tensor host = seconds->to(at::kCPU, at::kDouble).contiguous();
  for (size_t i = 0; i < videos; ++i) {
    const double second = host.const_data_ptr<double>()[i];
    const double interval = tokens_per_second * second;
    TORCH_CHECK_VALUE(second >= 0 && interval * static_cast<double>(grids[i].t) < kMost, op,
                      ": expected second_per_grid_ts of numbers >= 0 that give positions below "
                      "2^53, got ",
                      second);
    intervals[i] = static_cast<float>(interval);
  }
  return intervals;
}

/// Each frame of a video as a grid of its own.
Supply split_frames(const Supply& videos) {
  Supply result{videos.name, {}, {}};
  for (const Grid& grid : videos.grids) {
    result.grids.insert(result.grids.end(), grid.t, Grid{1, grid.h, grid.w});
  }
  result.intervals.assign(result.grids.size(), 0.0F);
  return result;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> mrope_position_ids(
    const at::Tensor& token_types, const std::optional<at::Tensor>& image_grid_thw,
    const std::optional<at::Tensor>& video_grid_thw,
    const std::optional<at::Tensor>& attention_mask, int64_t spatial_merge_size,
    int64_t temporal_merge_size, double tokens_per_second,
    const std::optional<at::Tensor>& second_per_grid_ts, bool split_video_frames) {
  const char* op = "mrope_position_ids";
  check_merge(op, "spatial_merge_size", spatial_merge_size);
  check_merge(op, "temporal_merge_size", temporal_merge_size);
  const Batch batch(op, token_types, attention_mask, kVideo);
  Supply images{"image_grid_thw",
                read_grids(op, "image_grid_thw", image_grid_thw, 1, spatial_merge_size),
                {}};
  images.intervals.assign(images.grids.size(), 1.0F);
  Supply videos{
      "video_grid_thw",
      read_grids(op, "video_grid_thw", video_grid_thw, temporal_merge_size, spatial_merge_size),
      {}};
  videos.intervals = read_intervals(op, videos.grids, tokens_per_second, second_per_grid_ts);
  if (split_video_frames) {
    videos = split_frames(videos);
  }

  const at::Tensor ids = at::zeros({3, batch.rows, batch.length}, at::kLong);
  const at::Tensor deltas = at::empty({batch.rows}, at::kLong);
  auto* to = ids.mutable_data_ptr<int64_t>();
  const int64_t axis_stride = batch.rows * batch.length;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const std::vector<int64_t> tokens = batch.tokens(row);
    int64_t count = 0;  // the largest position so far + 1
    const auto put = [&](int64_t token, std::array<int64_t, 3> position) {
      for (int64_t axis = 0; axis < 3; ++axis) {
        to[axis * axis_stride + token] = position[axis];
      }
    };
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t end = end_of_run(batch, tokens, begin);
      const int64_t type = batch.types[tokens[begin]];
      if (type == kText) {
        for (; begin < end; ++begin, ++count) {
          put(tokens[begin], {count, count, count});
        }
        continue;
      }
      Supply& supply = type == kImage ? images : videos;
      while (begin < end) {
        const Grid grid = next_grid(op, supply, row, end - begin);
        const float interval = supply.intervals[supply.used - 1];
        const auto size = static_cast<size_t>(grid.t * grid.h * grid.w);
        TORCH_CHECK_VALUE(size <= end - begin, op, ": expected ", size, " tokens for grid ",
                          supply.used - 1, " of ", supply.name, ", got ", end - begin, " in row ",
                          row);
        int64_t largest = 0;
        for (size_t i = 0; i < size; ++i) {
          const auto place = static_cast<int64_t>(i);
          const int64_t frame = place / (grid.h * grid.w);
          const auto t = static_cast<int64_t>(static_cast<float>(frame) * interval);
          const int64_t h = place / grid.w % grid.h, w = place % grid.w;
          put(tokens[begin + i], {count + t, count + h, count + w});
          largest = std::max({largest, t, h, w});
        }
        begin += size;
        count += largest + 1;
      }
    }
    deltas.mutable_data_ptr<int64_t>()[row] = count - static_cast<int64_t>(tokens.size());
  }
  check_all_used(op, images);
  check_all_used(op, videos);
  return on_device_of(token_types, ids, deltas);
}

at::Tensor mrope_decode_position_ids(const at::Tensor& n_tokens, const at::Tensor& rope_deltas,
                                     c10::SymInt length, int64_t n_axes) {
  const char* op = "mrope_decode_position_ids";
  for (const auto& [name, tensor] :
       {std::pair{"n_tokens", &n_tokens}, std::pair{"rope_deltas", &rope_deltas}}) {
    TORCH_CHECK_VALUE(tensor->dim() == 1, op, ": expected ", name, " of shape (B), got ",
                      tensor->sym_sizes());
    TORCH_CHECK_TYPE(c10::isIntegralType(tensor->scalar_type(), /*includeBool=*/false), op,
                     ": expected ", name, " of an integer dtype, got ", tensor->scalar_type());
  }
  TORCH_CHECK_VALUE(n_axes >= 1, op, ": expected n_axes >= 1, got ", n_axes);
  const at::Tensor first = n_tokens.to(at::kLong) + rope_deltas.to(at::kLong);
  const at::Tensor ids = first.unsqueeze(1) + at::arange(at::Scalar(length), first.options());
  return ids.unsqueeze(0).expand_symint({c10::SymInt(n_axes), ids.sym_size(0), ids.sym_size(1)});
}

std::tuple<at::Tensor, at::Tensor> xdrope_position_ids(
    const at::Tensor& token_types, const std::optional<at::Tensor>& image_grid_thw,
    const std::optional<at::Tensor>& attention_mask, int64_t n_axes, int64_t spatial_merge_size) {
  const char* op = "xdrope_position_ids";
  TORCH_CHECK_VALUE(n_axes >= 3 && n_axes <= 16, op, ": expected n_axes from 3 to 16, got ",
                    n_axes);
  check_merge(op, "spatial_merge_size", spatial_merge_size);
  const Batch batch(op, token_types, attention_mask, kImage);
  Supply images{"image_grid_thw",
                read_grids(op, "image_grid_thw", image_grid_thw, 1, spatial_merge_size),
                {}};
  const at::Tensor ids = at::zeros({n_axes, batch.rows, batch.length}, at::kLong);
  const at::Tensor deltas = at::empty({batch.rows}, at::kLong);
  auto* to = ids.mutable_data_ptr<int64_t>();
  const int64_t axis_stride = batch.rows * batch.length;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const std::vector<int64_t> tokens = batch.tokens(row);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int64_t axis = 0; axis < n_axes; ++axis) {
        to[axis * axis_stride + tokens[i]] = static_cast<int64_t>(i);
      }
    }
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t end = end_of_run(batch, tokens, begin), left = end - begin;
      if (batch.types[tokens[begin]] == kImage) {
        const auto image = static_cast<int64_t>(images.used);
        const Grid grid = next_grid(op, images, row, left);
        const int64_t columns = grid.w + 1;
        const auto size = static_cast<size_t>(grid.h * columns);
        TORCH_CHECK_VALUE(left == size || left == size + 2, op, ": expected ", size, " or ",
                          size + 2, " tokens in a row for image ", image, ", got ", left,
                          " in row ", row);
        const size_t first = begin + (left - size) / 2;
        for (size_t i = 0; i < size; ++i) {
          const auto place = static_cast<int64_t>(i);
          auto* token = to + tokens[first + i];
          token[(n_axes - 3) * axis_stride] = place % columns;
          token[(n_axes - 2) * axis_stride] = place / columns;
          token[(n_axes - 1) * axis_stride] = image;
        }
      }
      begin = end;
    }
    int64_t largest = -1;
    for (const int64_t token : tokens) {
      for (int64_t axis = 0; axis < n_axes; ++axis) {
        largest = std::max(largest, to[axis * axis_stride + token]);
      }
    }
    deltas.mutable_data_ptr<int64_t>()[row] = largest + 1 - static_cast<int64_t>(tokens.size());
  }
  check_all_used(op, images);
  return on_device_of(token_types, ids, deltas);
}

at::Tensor grid_coordinates(c10::SymInt height, c10::SymInt width,
                            std::optional<at::Device> device) {
  TORCH_CHECK_VALUE(height >= 1 && width >= 1,
                    "grid_coordinates: expected height and width >= 1, got ", height, " and ",
                    width);
  const auto options = at::TensorOptions(at::kLong).device(device.value_or(at::kCPU));
  // Patch by patch from its number, so that no size is read twice.
  const at::Tensor patch = at::arange(at::Scalar(height * width), options);
  const auto centred = [](const at::Tensor& index, const c10::SymInt& size) {
    return index.to(at::kDouble).add(0.5).mul(2).div(at::Scalar(size)).sub(1);
  };
  return at::stack({centred(patch.div(at::Scalar(width), "floor"), height),
                    centred(patch.remainder(at::Scalar(width)), width)});
}

at::Tensor augment_coordinates(const at::Tensor& coordinates, std::optional<double> shift,
                               std::optional<double> jitter, std::optional<double> rescale) {
  const char* op = "augment_coordinates";
  TORCH_CHECK_TYPE(c10::isFloatingType(coordinates.scalar_type()), op,
                   ": expected coordinates of a floating dtype, got ", coordinates.scalar_type());
  TORCH_CHECK_VALUE(coordinates.dim() >= 1, op, ": expected coordinates of shape (A, ...), got ",
                    coordinates.sym_sizes());
  TORCH_CHECK_VALUE(!shift || (std::isfinite(*shift) && *shift >= 0), op,
                    ": expected a finite shift >= 0, got ", shift.value_or(0));
  for (const auto& [name, most] : {std::pair{"jitter", jitter}, std::pair{"rescale", rescale}}) {
    TORCH_CHECK_VALUE(!most || (std::isfinite(*most) && *most >= 1), op, ": expected a finite ",
                      name, " >= 1, got ", most.value_or(0));
  }
  std::vector<c10::SymInt> one_per_axis(coordinates.dim(), 1);
  const std::vector<c10::SymInt> one = one_per_axis;
  one_per_axis[0] = coordinates.sym_size(0);
  const auto draw = [&](const std::vector<c10::SymInt>& shape, double reach) {
    return at::rand_symint(shape, coordinates.options()).mul(2 * reach).sub(reach);
  };
  at::Tensor out = coordinates;
  if (shift.has_value()) {
    out = out + draw(one_per_axis, *shift);
  }
  if (jitter.has_value()) {
    out = out * draw(one_per_axis, std::log(*jitter)).exp();
  }
  if (rescale.has_value()) {
    out = out * draw(one, std::log(*rescale)).exp();
  }
  return out;
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  const std::vector<at::Tag> traced = {at::Tag::pt2_compliant_tag};
  m.def(
      "vision_position_ids(Tensor grid_thw, int spatial_merge_size=1, bool include_time=False) -> "
      "Tensor");
  m.def(
      "mrope_position_ids(Tensor token_types, Tensor? image_grid_thw=None, Tensor? "
      "video_grid_thw=None, Tensor? attention_mask=None, int spatial_merge_size=2, int "
      "temporal_merge_size=1, float tokens_per_second=1., Tensor? second_per_grid_ts=None, bool "
      "split_video_frames=False) -> (Tensor, Tensor)");
  m.def(
      "xdrope_position_ids(Tensor token_types, Tensor? image_grid_thw=None, Tensor? "
      "attention_mask=None, int n_axes=4, int spatial_merge_size=2) -> (Tensor, Tensor)");
  m.def(
      "mrope_decode_position_ids(Tensor n_tokens, Tensor rope_deltas, SymInt length, int n_axes=3) "
      "-> Tensor",
      mrope_decode_position_ids, traced);
  m.def("grid_coordinates(SymInt height, SymInt width, Device? device=None) -> Tensor",
        grid_coordinates, traced);
  m.def(
      "augment_coordinates(Tensor coordinates, float? shift=None, float? jitter=None, float? "
      "rescale=None) -> Tensor",
      augment_coordinates, {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded});
}

// They read numbers, so they are not to be decomposed into a graph.
TORCH_LIBRARY_IMPL(posenc, CompositeExplicitAutograd, m) {
  m.impl("vision_position_ids", vision_position_ids);
  m.impl("mrope_position_ids", mrope_position_ids);
  m.impl("xdrope_position_ids", xdrope_position_ids);
}

}  // namespace posenc
