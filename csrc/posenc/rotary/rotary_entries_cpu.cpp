#include <posenc/rotary/rotary_cpu.h>
#include <posenc/rotary/rotary_entries.h>

namespace posenc::rotary {
namespace {

struct CpuBackend {
  static void rotate(const char*, at::ArrayRef<RotaryTarget> targets, at::ArrayRef<double> inv_freq,
                     const RotaryArgs& args) {
    rotate_by_frequencies(targets, inv_freq, args);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(posenc, CPU, m) { RotaryEntries<CpuBackend>::register_in(m); }

}  // namespace posenc::rotary
