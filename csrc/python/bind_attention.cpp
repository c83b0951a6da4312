#include "bindings.h"

namespace posenc::python {
void bind_attention(py::module&) {}
}  // namespace posenc::python
