#pragma once

#include <ATen/core/Tensor.h>
#include <posenc/absolute/row_walk.h>
#include <posenc/core/positions.h>

namespace posenc::absolute {

/// The rows of x and of an output of the same shape. `seq_dim` counts from the front.
inline RowWalk walk_rows(const at::Tensor& x, const at::Tensor& y, int64_t seq_dim) {
  const int64_t channel_dim = x.dim() - 1;
  const int64_t batch_dim = core::batch_dim(seq_dim, x.dim());
  RowWalk walk;
  walk.length = x.size(seq_dim);
  walk.channels = x.size(channel_dim);
  walk.x.time = x.stride(seq_dim);
  walk.y.time = y.stride(seq_dim);
  walk.x.channel = x.stride(channel_dim);
  walk.y.channel = y.stride(channel_dim);
  if (batch_dim >= 0) {
    walk.batch = x.size(batch_dim);
    walk.x.batch = x.stride(batch_dim);
    walk.y.batch = y.stride(batch_dim);
  }
  for (int64_t dim = 0; dim < channel_dim; ++dim) {
    const int64_t size = x.size(dim), xs = x.stride(dim), ys = y.stride(dim);
    if (dim == seq_dim || dim == batch_dim || size == 1) {
      continue;
    }
    const int last = walk.rest_dims - 1;
    if (last >= 0 && walk.x.rest[last] == size * xs && walk.y.rest[last] == size * ys) {
      // Two axes that one stride walks through are one axis.
      walk.rest_size[last] *= size;
      walk.x.rest[last] = xs;
      walk.y.rest[last] = ys;
      continue;
    }
    walk.rest_size[walk.rest_dims] = size;
    walk.x.rest[walk.rest_dims] = xs;
    walk.y.rest[walk.rest_dims] = ys;
    ++walk.rest_dims;
  }
  return walk;
}

}  // namespace posenc::absolute
