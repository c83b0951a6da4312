#include "bindings.h"

#include <posenc/rotary/learned_rotary_module.h>
#include <posenc/rotary/query_temperature_module.h>
#include <posenc/rotary/xpos_module.h>
#include <pybind11/stl.h>

namespace posenc::python {

void bind_rotary_relatives(py::module& m) {
  m.def("nope_layers", &nope_layers, py::arg("n_layers"), py::arg("every") = 4);
  m.def(
      "xpos_reach",
      [](py::object dtype, double scale_base, double gamma) {
        return xpos_reach(torch::python::detail::py_object_to_dtype(std::move(dtype)), scale_base,
                          gamma);
      },
      py::arg("dtype"), py::arg("scale_base") = 512.0, py::arg("gamma") = 0.4);

  using XPos = nn::XPosRotaryEmbeddingImpl;
  using XPosOptions = nn::XPosRotaryEmbeddingOptions;
  py::class_<XPosOptions>(m, "XPosRotaryEmbeddingOptions")
      .def(py::init<int64_t>(), py::arg("head_dim"))
      .POSENC_OPTION(XPosOptions, head_dim)
      .POSENC_OPTION(XPosOptions, base)
      .POSENC_OPTION(XPosOptions, scale_base)
      .POSENC_OPTION(XPosOptions, centre)
      .POSENC_OPTION(XPosOptions, gamma)
      .POSENC_OPTION(XPosOptions, interleaved)
      .POSENC_OPTION(XPosOptions, rotary_dim)
      .POSENC_OPTION(XPosOptions, rotary_start)
      .POSENC_OPTION(XPosOptions, seq_dim)
      .def("check", &XPosOptions::check)
      .def("width", &XPosOptions::width)
      .def("inv_freq", &XPosOptions::inv_freq);
  bind_module<XPos, XPosOptions>(m, "XPosRotaryEmbedding")
      .def_readonly("inv_freq", &XPos::inv_freq)
      .def("forward", &XPos::forward, py::arg("x"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, py::arg("is_key") = false, WithoutGil())
      .def("rotate", &XPos::rotate, py::arg("q"), py::arg("k"),
           py::arg("position_ids") = py::none(), py::arg("offset") = 0, WithoutGil());

  using Temperature = nn::QueryTemperatureImpl;
  using TemperatureOptions = nn::QueryTemperatureOptions;
  py::class_<TemperatureOptions>(m, "QueryTemperatureOptions")
      .def(py::init<>())
      .POSENC_OPTION(TemperatureOptions, scale)
      .POSENC_OPTION(TemperatureOptions, floor_scale)
      .POSENC_OPTION(TemperatureOptions, shift)
      .POSENC_OPTION(TemperatureOptions, seq_dim)
      .def("check", &TemperatureOptions::check);
  bind_module<Temperature, TemperatureOptions>(m, "QueryTemperature")
      .def("forward", &Temperature::forward, py::arg("x"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil());

  using Learned = nn::LearnedRotaryEmbeddingImpl;
  using LearnedOptions = nn::LearnedRotaryEmbeddingOptions;
  py::class_<LearnedOptions, nn::RotaryPositionalEmbeddingOptions>(m,
                                                                   "LearnedRotaryEmbeddingOptions")
      .def(py::init<int64_t>(), py::arg("head_dim"))
      .POSENC_OPTION(LearnedOptions, n_heads)
      .POSENC_OPTION(LearnedOptions, parametrisation)
      .def(
          "check",
          [](const LearnedOptions& options, const std::string& where) {
            options.check(where.c_str());
          },
          py::arg("where") = "LearnedRotaryEmbedding");
  bind_module<Learned, LearnedOptions>(m, "LearnedRotaryEmbedding")
      .def_property_readonly("inv_freq", [](const Learned& rope) { return rope.initial.inv_freq; })
      .def("frequencies", &Learned::frequencies, WithoutGil())
      .def("forward", &Learned::forward, py::arg("x"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil())
      .def("rotate", &Learned::rotate, py::arg("q"), py::arg("k"),
           py::arg("position_ids") = py::none(), py::arg("offset") = 0, WithoutGil());
}

}  // namespace posenc::python
