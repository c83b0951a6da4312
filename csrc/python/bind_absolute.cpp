#include "bindings.h"

#include <posenc/absolute/embedding_module.h>
#include <posenc/absolute/frequencies.h>
#include <posenc/absolute/learned_module.h>
#include <posenc/absolute/sinusoidal_module.h>

namespace posenc::python {

void bind_absolute(py::module& m) {
  m.def("sinusoidal_inv_freq", &sinusoidal_inv_freq, py::arg("d_model"), py::arg("base") = 10000.0,
        py::arg("spacing") = "standard");

  using Sinusoidal = nn::SinusoidalPositionalEncodingImpl;
  using SinusoidalOptions = nn::SinusoidalPositionalEncodingOptions;
  py::class_<SinusoidalOptions>(m, "SinusoidalPositionalEncodingOptions")
      .def(py::init<int64_t>(), py::arg("d_model"))
      .POSENC_OPTION(SinusoidalOptions, d_model)
      .POSENC_OPTION(SinusoidalOptions, base)
      .POSENC_OPTION(SinusoidalOptions, interleaved)
      .POSENC_OPTION(SinusoidalOptions, spacing)
      .POSENC_OPTION(SinusoidalOptions, scale)
      .POSENC_OPTION(SinusoidalOptions, seq_dim);
  bind_module<Sinusoidal, SinusoidalOptions>(m, "SinusoidalPositionalEncoding")
      .def_readonly("inv_freq", &Sinusoidal::inv_freq)
      .def("forward", &Sinusoidal::forward, py::arg("x"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil());

  using Learned = nn::LearnedPositionalEncodingImpl;
  using LearnedOptions = nn::LearnedPositionalEncodingOptions;
  py::class_<LearnedOptions>(m, "LearnedPositionalEncodingOptions")
      .def(py::init<int64_t, int64_t>(), py::arg("max_len"), py::arg("d_model"))
      .POSENC_OPTION(LearnedOptions, max_len)
      .POSENC_OPTION(LearnedOptions, d_model)
      .POSENC_OPTION(LearnedOptions, seq_dim);
  bind_module<Learned, LearnedOptions>(m, "LearnedPositionalEncoding")
      .def("forward", &Learned::forward, py::arg("x"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil());

  using Tokens = nn::TransformerEmbeddingImpl;
  using TokensOptions = nn::TransformerEmbeddingOptions;
  py::class_<TokensOptions>(m, "TransformerEmbeddingOptions")
      .def(py::init<int64_t, int64_t>(), py::arg("vocab_size"), py::arg("d_model"))
      .POSENC_OPTION(TokensOptions, vocab_size)
      .POSENC_OPTION(TokensOptions, d_model)
      .POSENC_OPTION(TokensOptions, max_len)
      .POSENC_OPTION(TokensOptions, padding_idx)
      .POSENC_OPTION(TokensOptions, scale)
      .POSENC_OPTION(TokensOptions, base)
      .POSENC_OPTION(TokensOptions, interleaved)
      .POSENC_OPTION(TokensOptions, spacing);
  bind_module<Tokens, TokensOptions>(m, "TransformerEmbedding")
      .def_readonly("inv_freq", &Tokens::inv_freq)
      .def_readonly("scale", &Tokens::scale)
      .def("forward", &Tokens::forward, py::arg("input_ids"), py::arg("position_ids") = py::none(),
           py::arg("offset") = 0, WithoutGil());
}

}  // namespace posenc::python
