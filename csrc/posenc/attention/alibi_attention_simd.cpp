// The loops of alibi_attention, compiled once per instruction set. Pointers and numbers only;
// splitting the work among threads and allocating is alibi_attention_cpu.cpp's.

#include <posenc/attention/backward_tile.h>
#include <posenc/attention/few_rows.h>
#include <posenc/attention/forward_tile.h>
#include <posenc/attention/scan_keys.h>

namespace posenc::attention {
namespace {

using bias::AlibiBias;

template <typename S>
int64_t forward_scratch(const AttentionParams& p) {
  Arena arena(nullptr);
  ForwardScratch<compute_t<S>> s(p, arena);
  const int64_t scan = scan_scratch_size(p) * static_cast<int64_t>(sizeof(compute_t<S>));
  return arena.used() > scan ? arena.used() : scan;
}

template <typename S>
int64_t few_scratch(const AttentionParams& p) {
  Arena arena(nullptr);
  FewScratch<compute_t<S>> s(p, arena);
  return arena.used();
}

template <typename S>
int64_t backward_scratch(const AttentionParams& p) {
  Arena arena(nullptr);
  BackwardScratch<compute_t<S>> s(p, arena);
  return arena.used();  // more than scan_keys needs: it holds a task's keys
}

template <typename S>
constexpr AttentionKernels kernels_of() {
  return {kBf16Tiles<S>,
          &forward_scratch<S>,
          &few_scratch<S>,
          &backward_scratch<S>,
          &scan_keys<S>,
          &forward_tile<S, AlibiBias>,
          &few_rows<S, AlibiBias>,
          &merge_rows<S>,
          &backward_rows<S>,
          &backward_begin<S>,
          &backward_tile<S, AlibiBias>,
          &backward_add_dq<S>,
          &backward_end<S>};
}

}  // namespace

POSENC_DEFINE_ISA_TABLE(AttentionKernelTable, attention_kernels,
                        {kernels_of<double>(), kernels_of<float>(), kernels_of<c10::BFloat16>(),
                         kernels_of<c10::Half>()})

}  // namespace posenc::attention
