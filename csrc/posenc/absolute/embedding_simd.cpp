#include <posenc/absolute/embedding_kernels.h>
#include <posenc/absolute/encoding_rows.h>
#include <posenc/absolute/row_loops.h>

#include <algorithm>

namespace posenc::absolute {
namespace {

template <typename T>
void embed_tokens(const EmbedTokensParams& p, int64_t begin, int64_t end) {
  using C = Compute<T>;
  const TileGrid& grid = p.grid;
  EncodingRows<C> rows(p.source, p.channels);
  const auto tile = rows.buffer(grid.rows_per_tile);
  const C scale = static_cast<C>(p.scale);
  const T* weight = static_cast<const T*>(p.weight);
  T* y = static_cast<T*>(p.y);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t l0 = task / grid.groups * grid.rows_per_tile;
    const int64_t l1 = std::min(l0 + grid.rows_per_tile, p.length);
    const int64_t b0 = task % grid.groups * grid.batch_per_group;
    const int64_t b1 = std::min(b0 + grid.batch_per_group, p.batch);
    for (int64_t b = b0; b < b1; ++b) {
      if (b == b0 || p.source.positions_batch_stride != 0) {
        for (int64_t l = l0; l < l1; ++l) {
          rows.row(p.source.position(b, l), tile.get() + (l - l0) * rows.stride());
        }
      }
      for (int64_t l = l0; l < l1; ++l) {
        const int64_t token = b * p.length + l;
        scale_add_row(y + token * p.channels, weight + p.input_ids[token] * p.weight_row_stride,
                      tile.get() + (l - l0) * rows.stride(), p.channels, scale);
      }
    }
  }
}

}  // namespace

POSENC_DEFINE_ISA_TABLE(EmbeddingKernels, embedding_kernels,
                        {&embed_tokens<double>, &embed_tokens<float>, &embed_tokens<c10::BFloat16>,
                         &embed_tokens<c10::Half>})

}  // namespace posenc::absolute
