#include "bindings.h"

#include <posenc/rotary/axial_module.h>
#include <pybind11/stl.h>

namespace posenc::python {

void bind_axial(py::module& m) {
  py::class_<AxialFrequencies>(m, "AxialFrequencies")
      .def_readonly("inv_freq", &AxialFrequencies::inv_freq)
      .def_readonly("axes", &AxialFrequencies::axes)
      .def_readonly("interleaved", &AxialFrequencies::interleaved)
      .def_readonly("blocks", &AxialFrequencies::blocks)
      .def_readonly("n_axes", &AxialFrequencies::n_axes)
      .def("rotary_dim", &AxialFrequencies::rotary_dim);

  using Axial = nn::AxialRotaryEmbeddingImpl;
  using AxialOptions = nn::AxialRotaryEmbeddingOptions;
  py::class_<AxialOptions>(m, "AxialRotaryEmbeddingOptions")
      .def(py::init<int64_t>(), py::arg("head_dim"))
      .POSENC_OPTION(AxialOptions, head_dim)
      .POSENC_OPTION(AxialOptions, arrangement)
      .POSENC_OPTION(AxialOptions, base)
      .POSENC_OPTION(AxialOptions, scale)
      .POSENC_OPTION(AxialOptions, offset)
      .POSENC_OPTION(AxialOptions, n_prefix)
      .POSENC_OPTION(AxialOptions, n_suffix)
      .POSENC_OPTION(AxialOptions, seq_dim)
      .def("check", &AxialOptions::check)
      .def("frequencies", &AxialOptions::frequencies);
  bind_module<Axial, AxialOptions>(m, "AxialRotaryEmbedding")
      .def_readonly("frequencies", &Axial::frequencies)
      .def("forward", &Axial::forward, py::arg("x"), py::arg("position_ids"), WithoutGil())
      .def("rotate", &Axial::rotate, py::arg("q"), py::arg("k"), py::arg("position_ids"),
           WithoutGil());

  using Mixed = nn::MixedRotaryEmbeddingImpl;
  using MixedOptions = nn::MixedRotaryEmbeddingOptions;
  py::class_<MixedOptions>(m, "MixedRotaryEmbeddingOptions")
      .def(py::init<int64_t, int64_t>(), py::arg("head_dim"), py::arg("n_heads"))
      .POSENC_OPTION(MixedOptions, head_dim)
      .POSENC_OPTION(MixedOptions, n_heads)
      .POSENC_OPTION(MixedOptions, base)
      .POSENC_OPTION(MixedOptions, per_head)
      .POSENC_OPTION(MixedOptions, interleaved)
      .POSENC_OPTION(MixedOptions, n_prefix)
      .POSENC_OPTION(MixedOptions, n_suffix)
      .POSENC_OPTION(MixedOptions, seq_dim)
      .def("check", &MixedOptions::check);
  bind_module<Mixed, MixedOptions>(m, "MixedRotaryEmbedding")
      .def("forward", &Mixed::forward, py::arg("x"), py::arg("position_ids"), WithoutGil())
      .def("rotate", &Mixed::rotate, py::arg("q"), py::arg("k"), py::arg("position_ids"),
           WithoutGil());
}

}  // namespace posenc::python
