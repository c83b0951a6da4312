#include "bindings.h"

#include <posenc/bias/alibi.h>

namespace posenc::python {

void bind_attention(py::module& m) {
  m.def("alibi_slopes", &alibi_slopes, py::arg("n_heads"), py::arg("bias_max") = 8.0, py::arg("head_start") = 0,
        py::arg("total_heads") = py::none(), py::arg("geometric") = false);
}

}  // namespace posenc::python
