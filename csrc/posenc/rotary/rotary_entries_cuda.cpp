#include <posenc/rotary/rotary_cuda.h>
#include <posenc/rotary/rotary_entries.h>

namespace posenc::rotary {
namespace {

struct CudaBackend {
  static void rotate(const char* op, at::ArrayRef<RotaryTarget> targets,
                     at::ArrayRef<double> inv_freq, const RotaryArgs& args) {
    rotate_by_frequencies_cuda(op, targets, inv_freq, args);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CUDA, m) { RotaryEntries<CudaBackend>::register_in(m); }

}  // namespace posenc::rotary
