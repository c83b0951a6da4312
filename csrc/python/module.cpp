// The Python module _C: options, modules and helpers of libposenc, bound one to one. No algorithm lives here.
#include <torch/python.h>

#include <posenc/rotary/rotary.h>

namespace py = pybind11;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "posenc's C++ library: loading it registers torch.ops.posenc";
  m.def("rope_inv_freq", &posenc::rope_inv_freq, py::arg("dim"), py::arg("base") = 10000.0);
}
