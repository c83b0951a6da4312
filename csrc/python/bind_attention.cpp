#include "bindings.h"

#include <posenc/attention/alibi_attention_module.h>
#include <posenc/attention/rope_attention_module.h>
#include <posenc/bias/alibi.h>

namespace posenc::python {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// forward and forward_cached of an attention layer.
template <class Impl, class Class>
void bind_calls(Class& c) {
  c.def("forward", &Impl::forward, py::arg("x"), py::arg("mask") = py::none(),
        py::arg("attn_bias") = py::none(), py::arg("key_padding_mask") = py::none(),
        py::arg("position_ids") = py::none(), py::arg("offset") = 0, WithoutGil());
  c.def(
      "forward_cached",
      [](Impl& self, const at::Tensor& x, nn::KVCache& cache, OptionalTensor mask,
         OptionalTensor attn_bias, OptionalTensor key_padding_mask, OptionalTensor position_ids) {
        nn::AttentionInputs inputs;
        inputs.mask = std::move(mask);
        inputs.attn_bias = std::move(attn_bias);
        inputs.key_padding_mask = std::move(key_padding_mask);
        inputs.position_ids = std::move(position_ids);
        return self.forward_cached(x, cache, inputs);
      },
      py::arg("x"), py::arg("cache"), py::arg("mask") = py::none(),
      py::arg("attn_bias") = py::none(), py::arg("key_padding_mask") = py::none(),
      py::arg("position_ids") = py::none(), WithoutGil());
}

OptionalTensor if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

}  // namespace

void bind_attention(py::module& m) {
  m.def("alibi_slopes", &alibi_slopes, py::arg("n_heads"), py::arg("bias_max") = 8.0,
        py::arg("head_start") = 0, py::arg("total_heads") = py::none(),
        py::arg("geometric") = false);

  py::class_<nn::KVCache>(m, "KVCache")
      .def(py::init<>())
      .def("__len__", &nn::KVCache::size)
      .def("clear", &nn::KVCache::clear)
      .def_property_readonly("key",
                             [](const nn::KVCache& cache) { return if_defined(cache.keys()); })
      .def_property_readonly("value",
                             [](const nn::KVCache& cache) { return if_defined(cache.values()); })
      .def_property_readonly("positions",
                             [](const nn::KVCache& cache) { return if_defined(cache.positions()); })
      .def_property_readonly(
          "key_norms", [](const nn::KVCache& cache) { return if_defined(cache.key_norms()); });

  using Rope = nn::RoPEAttentionImpl;
  using RopeOptions = nn::RoPEAttentionOptions;
  py::class_<RopeOptions>(m, "RoPEAttentionOptions")
      .def(py::init<int64_t, int64_t>(), py::arg("d_model"), py::arg("n_heads"))
      .POSENC_OPTION(RopeOptions, d_model)
      .POSENC_OPTION(RopeOptions, n_heads)
      .POSENC_OPTION(RopeOptions, n_kv_heads)
      .POSENC_OPTION(RopeOptions, is_causal)
      .POSENC_OPTION(RopeOptions, bias)
      .POSENC_OPTION(RopeOptions, dropout)
      .POSENC_OPTION(RopeOptions, base)
      .POSENC_OPTION(RopeOptions, interleaved)
      .POSENC_OPTION(RopeOptions, rotary_dim);
  auto rope =
      bind_module<Rope, RopeOptions>(m, "RoPEAttention").def_readonly("inv_freq", &Rope::inv_freq);
  bind_calls<Rope>(rope);

  using Alibi = nn::ALiBiAttentionImpl;
  using AlibiOptions = nn::ALiBiAttentionOptions;
  py::class_<AlibiOptions>(m, "ALiBiAttentionOptions")
      .def(py::init<int64_t, int64_t>(), py::arg("d_model"), py::arg("n_heads"))
      .POSENC_OPTION(AlibiOptions, d_model)
      .POSENC_OPTION(AlibiOptions, n_heads)
      .POSENC_OPTION(AlibiOptions, max_seq_len)
      .POSENC_OPTION(AlibiOptions, n_kv_heads)
      .POSENC_OPTION(AlibiOptions, is_causal)
      .POSENC_OPTION(AlibiOptions, bias)
      .POSENC_OPTION(AlibiOptions, dropout);
  auto alibi =
      bind_module<Alibi, AlibiOptions>(m, "ALiBiAttention").def_readonly("slopes", &Alibi::slopes);
  bind_calls<Alibi>(alibi);
}

}  // namespace posenc::python
