#include <posenc/absolute/learned_kernels.h>
#include <posenc/absolute/row_loops.h>

namespace posenc::absolute {
namespace {

template <typename T>
void add_positions(const AddPositionsParams& p, int64_t begin, int64_t end) {
  const RowWalk& walk = p.walk;
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const bool dense = walk.x.channel == 1 && walk.y.channel == 1;
  int64_t b = begin / walk.length, l = begin % walk.length;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position =
        p.offset + (p.position_ids ? p.position_ids[b * p.ids_batch_stride + l] : l);
    const T* w = static_cast<const T*>(p.weight) + position * p.weight_row_stride;
    walk.rows_at(b, l, [&](int64_t x_at, int64_t y_at) {
      if (dense) {
        add_row(y + y_at, x + x_at, w, walk.channels);
      } else {
        add_strided(y + y_at, walk.y.channel, x + x_at, walk.x.channel, w, walk.channels);
      }
    });
    if (++l == walk.length) {
      l = 0;
      ++b;
    }
  }
}

}  // namespace

POSENC_DEFINE_ISA_TABLE(LearnedKernels, learned_kernels,
                        {&add_positions<double>, &add_positions<float>,
                         &add_positions<c10::BFloat16>, &add_positions<c10::Half>})

}  // namespace posenc::absolute
