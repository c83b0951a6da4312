#include "bindings.h"
#include "rope_value_caster.h"

#include <posenc/rotary/rotary_module.h>
#include <pybind11/stl.h>

namespace posenc::python {

void bind_rotary(py::module& m) {
  m.def("rope_inv_freq", &rope_inv_freq, py::arg("dim"), py::arg("base") = 10000.0);
  m.def("yarn_mscale", &yarn_mscale, py::arg("scale"), py::arg("mscale") = 1.0);

  py::class_<RopeScaling>(m, "RopeScaling")
      .def_static("from_dict", &RopeScaling::from_dict, py::arg("dict"))
      .def("to_dict", &RopeScaling::to_dict)
      .def("depends_on_length", &RopeScaling::depends_on_length)
      .def_readonly("type", &RopeScaling::type)
      .def_readonly("rope_theta", &RopeScaling::rope_theta)
      .def_readonly("partial_rotary_factor", &RopeScaling::partial_rotary_factor)
      .def_readonly("factor", &RopeScaling::factor)
      .def_readonly("original_max_position_embeddings",
                    &RopeScaling::original_max_position_embeddings)
      .def_readonly("llama_4_scaling_beta", &RopeScaling::llama_4_scaling_beta);
  py::class_<RopeFrequencies>(m, "RopeFrequencies")
      .def_readonly("inv_freq", &RopeFrequencies::inv_freq)
      .def_readonly("attention_factor", &RopeFrequencies::attention_factor)
      .def_readonly("long_inv_freq", &RopeFrequencies::long_inv_freq)
      .def_readonly("trained_length", &RopeFrequencies::trained_length);

  using Rope = nn::RotaryPositionalEmbeddingImpl;
  using RopeOptions = nn::RotaryPositionalEmbeddingOptions;
  py::class_<RopeOptions>(m, "RotaryPositionalEmbeddingOptions")
      .def(py::init<int64_t>(), py::arg("d_model"))
      .POSENC_OPTION(RopeOptions, d_model)
      .POSENC_OPTION(RopeOptions, max_seq_len)
      .POSENC_OPTION(RopeOptions, base)
      .POSENC_OPTION(RopeOptions, interleaved)
      .POSENC_OPTION(RopeOptions, interleaved_out)
      .POSENC_OPTION(RopeOptions, inverse)
      .POSENC_OPTION(RopeOptions, rotary_dim)
      .POSENC_OPTION(RopeOptions, rotary_start)
      .POSENC_OPTION(RopeOptions, axes)
      .POSENC_OPTION(RopeOptions, seq_dim)
      .POSENC_OPTION(RopeOptions, attention_factor)
      .POSENC_OPTION(RopeOptions, scaling)
      .def_static("from_dict", &RopeOptions::from_dict, py::arg("config"),
                  py::arg("layer_type") = py::none())
      .def("to_dict", &RopeOptions::to_dict)
      .def_static("dict_keys", &RopeOptions::dict_keys)
      .def("check", &RopeOptions::check)
      .def("reads_pairs", &RopeOptions::reads_pairs)
      .def("resolved_axes", &RopeOptions::resolved_axes)
      .def("width", &RopeOptions::width)
      .def("theta", &RopeOptions::theta)
      .def("frequencies", &RopeOptions::frequencies);
  bind_module<Rope, RopeOptions>(m, "RotaryPositionalEmbedding")
      .def_property_readonly("inv_freq", [](const Rope& rope) { return rope.frequencies.inv_freq; })
      .def("forward", &Rope::forward, py::arg("x"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil())
      .def("rotate", &Rope::rotate, py::arg("q"), py::arg("k"),
           py::arg("position_ids") = py::none(), py::arg("offset") = 0, WithoutGil())
      .def("apply_rotary_pos_emb", &Rope::apply_rotary_pos_emb, py::arg("x"),
           py::arg("seq_len") = py::none(), py::arg("offset") = 0, WithoutGil())
      .def("shift", &Rope::shift, py::arg("k"), py::arg("delta"), py::arg("deltas") = py::none(),
           WithoutGil());

  using Long = nn::LongSequenceRoPEImpl;
  using LongOptions = nn::LongSequenceRoPEOptions;
  py::class_<LongOptions>(m, "LongSequenceRoPEOptions")
      .def(py::init<int64_t>(), py::arg("head_dim"))
      .POSENC_OPTION(LongOptions, head_dim)
      .POSENC_OPTION(LongOptions, chunk_size)
      .POSENC_OPTION(LongOptions, base)
      .POSENC_OPTION(LongOptions, interleaved);
  bind_module<Long, LongOptions>(m, "LongSequenceRoPE")
      .def_readonly("inv_freq", &Long::inv_freq)
      .def("forward", &Long::forward, py::arg("x"), py::arg("use_chunking") = true, WithoutGil());
}

}  // namespace posenc::python
