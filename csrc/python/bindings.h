#pragma once

/// \file
/// How libposenc is bound to Python: one function for each room, and the pattern that all of them
/// use. No algorithm lives in this folder.

#include <torch/python.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace posenc::python {

namespace py = pybind11;

void bind_tensor_slots(py::module& m);
void bind_rotary(py::module& m);
void bind_axial(py::module& m);
void bind_rotary_relatives(py::module& m);
void bind_absolute(py::module& m);
void bind_attention(py::module& m);

/// Python keeps running in other threads while a module computes.
using WithoutGil = py::call_guard<py::gil_scoped_release>;

/// A TORCH_ARG of an Options class as an attribute.
#define POSENC_OPTION(Options, name)                                                        \
  def_property(                                                                             \
      #name, [](const Options& o) { return o.name(); },                                     \
      [](Options& o, std::decay_t<decltype(std::declval<const Options&>().name())> value) { \
        o.name(std::move(value));                                                           \
      })

/// Binds a module in both of torch's ways: `_C.cpp.X`, the C++ object itself, and `_C.X`, torch's
/// own wrapper of it. The constructor takes an Options object. (torch's bind_module would bind
/// forward without names and defaults.)
template <class Impl, class Options>
auto bind_module(py::module& m, const char* name) {
  return torch::python::bind_module<Impl, /*force_enable=*/true>(m, name)
      .def(py::init<const Options&>(), py::arg("options"))
      .def_readonly("options", &Impl::options)
      .def("__repr__", [](const Impl& self) {
        std::ostringstream stream;
        self.pretty_print(stream);
        return stream.str();
      });
}

}  // namespace posenc::python
