#include <ATen/Version.h>

#include <posenc/core/isa.h>

namespace posenc::core {

Isa current_isa() {
  // at::native::get_cpu_capability() is not exported by libtorch; its name is.
  static const Isa isa = [] {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") {
      return Isa::kAvx512;
    }
    return name == "AVX2" ? Isa::kAvx2 : Isa::kDefault;
  }();
  return isa;
}

}  // namespace posenc::core
