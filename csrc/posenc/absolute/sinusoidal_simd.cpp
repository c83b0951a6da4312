#include <posenc/absolute/encoding_rows.h>
#include <posenc/absolute/row_loops.h>
#include <posenc/absolute/sinusoidal_kernels.h>

#include <algorithm>

namespace posenc::absolute {
namespace {

template <typename T>
void encode(const EncodeParams& p, int64_t begin, int64_t end) {
  using C = Compute<T>;
  EncodingRows<C> rows(p.source, p.channels);
  const auto row = rows.buffer(1);
  T* y = static_cast<T*>(p.y) + begin * p.channels;
  for (int64_t i = begin; i < end; ++i, y += p.channels) {
    rows.row(p.source.position(0, i), row.get());
    store_row(y, row.get(), p.channels);
  }
}

template <typename T>
void add(const AddSinusoidalParams& p, int64_t begin, int64_t end) {
  using C = Compute<T>;
  const RowWalk& walk = p.walk;
  const TileGrid& grid = p.grid;
  EncodingRows<C> rows(p.source, walk.channels);
  const auto tile = rows.buffer(grid.rows_per_tile);
  const C scale = static_cast<C>(p.scale);
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const bool dense = walk.x.channel == 1 && walk.y.channel == 1;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t l0 = task / grid.groups * grid.rows_per_tile;
    const int64_t l1 = std::min(l0 + grid.rows_per_tile, walk.length);
    const int64_t b0 = task % grid.groups * grid.batch_per_group;
    const int64_t b1 = std::min(b0 + grid.batch_per_group, walk.batch);
    for (int64_t b = b0; b < b1; ++b) {
      if (b == b0 || p.source.positions_batch_stride != 0) {
        for (int64_t l = l0; l < l1; ++l) {
          rows.row(p.source.position(b, l), tile.get() + (l - l0) * rows.stride());
        }
      }
      for (int64_t l = l0; l < l1; ++l) {
        const C* e = tile.get() + (l - l0) * rows.stride();
        walk.rows_at(b, l, [&](int64_t x_at, int64_t y_at) {
          if (dense) {
            scale_add_row(y + y_at, x + x_at, e, walk.channels, scale);
          } else {
            scale_add_strided(y + y_at, walk.y.channel, x + x_at, walk.x.channel, e, walk.channels,
                              scale);
          }
        });
      }
    }
  }
}

template <typename T>
constexpr SinusoidalLoops loops() {
  return {&encode<T>, &add<T>};
}

}  // namespace

POSENC_DEFINE_ISA_TABLE(SinusoidalKernels, sinusoidal_kernels,
                        {loops<double>(), loops<float>(), loops<c10::BFloat16>(),
                         loops<c10::Half>()})

}  // namespace posenc::absolute
