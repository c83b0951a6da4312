#include "bindings.h"
#include "rope_value_caster.h"

#include <posenc/rotary/rotary_module.h>
#include <posenc/rotary/rotary_qk.h>
#include <pybind11/stl.h>

namespace posenc::python {

namespace {

using Ids = const std::optional<at::Tensor>&;
using Axes = const std::optional<std::vector<int64_t>>&;

at::OptionalIntArrayRef ref(Axes axes) {
  return axes ? at::OptionalIntArrayRef(at::IntArrayRef(*axes)) : std::nullopt;
}

at::Tensor rotate_one(const at::Tensor& x, const std::vector<double>& inv_freq, Ids position_ids,
                      int64_t offset, int64_t seq_dim, bool interleaved,
                      std::optional<bool> interleaved_out, int64_t rotary_start,
                      double attention_factor, Axes axes, bool inverse) {
  return rotary_embedding(x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
                          rotary_start, attention_factor, ref(axes), inverse);
}

std::tuple<at::Tensor, at::Tensor> rotate_both(
    const at::Tensor& q, const at::Tensor& k, const std::vector<double>& inv_freq, Ids position_ids,
    int64_t offset, int64_t seq_dim, bool interleaved, std::optional<bool> interleaved_out,
    int64_t rotary_start, double attention_factor, Axes axes, bool inverse) {
  return rotary_embedding_qk(q, k, inv_freq, position_ids, offset, seq_dim, interleaved,
                             interleaved_out, rotary_start, attention_factor, ref(axes), inverse);
}

}  // namespace

void bind_rotary(py::module& m) {
  // The operators, past torch.ops' own reading of arguments, which takes as long as the rotation of
  // a decoded token. For the layers, in eager mode.
  m.def("rotary_embedding", &rotate_one, WithoutGil());
  m.def("rotary_embedding_qk", &rotate_both, WithoutGil());

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
      .def_readonly("trained_length", &RopeFrequencies::trained_length)
      .def_readonly("dim", &RopeFrequencies::dim);

  using nn::InvFreq;
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
      .def(
          "check",
          [](const RopeOptions& options, const std::string& where) {
            options.check(where.c_str());
          },
          py::arg("where") = "RotaryPositionalEmbedding")
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
      .def_property_readonly("attention_factor",
                             [](const Rope& rope) { return rope.frequencies.attention_factor; })
      .def("rotate_packed", &Rope::rotate_packed, py::arg("qkv"),
           py::arg("n_kv_heads") = py::none(), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil())
      // Tensors first: one of a single number passes for an int.
      .def("inv_freq_at", py::overload_cast<const at::Tensor&>(&Rope::inv_freq_at, py::const_),
           py::arg("lengths"))
      .def("inv_freq_at", py::overload_cast<int64_t>(&Rope::inv_freq_at, py::const_),
           py::arg("length"))
      .def("shift",
           py::overload_cast<const at::Tensor&, const at::Tensor&, const std::optional<InvFreq>&>(
               &Rope::shift, py::const_),
           py::arg("keys"), py::arg("delta"), py::arg("inv_freq") = py::none(), WithoutGil())
      .def("shift",
           py::overload_cast<const at::Tensor&, int64_t, const std::optional<InvFreq>&>(
               &Rope::shift, py::const_),
           py::arg("keys"), py::arg("delta"), py::arg("inv_freq") = py::none(), WithoutGil())
      .def("re_rotate", &Rope::re_rotate, py::arg("keys"), py::arg("old_inv_freq"),
           py::arg("new_inv_freq") = py::none(), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, py::arg("old_attention_factor") = py::none(), WithoutGil())
      .def("apply_rotary_pos_emb", &Rope::apply_rotary_pos_emb, py::arg("x"),
           py::arg("seq_len") = py::none(), py::arg("offset") = 0, WithoutGil());

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
