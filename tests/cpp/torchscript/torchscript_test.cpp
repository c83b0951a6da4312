// Layers that Python scripted and saved, loaded by a program that links libposenc alone: equal
// outputs and gradients, and equal to the C++ module of the same options with the same weights.

#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <posenc/posenc.h>
#include <torch/script.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "support/support.h"

namespace posenc::test {
namespace {

using at::Tensor;
using Inputs = std::map<std::string, Tensor>;

std::optional<Tensor> maybe(const Inputs& inputs, const std::string& name) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? std::nullopt : std::optional<Tensor>(found->second);
}

/// A C++ module and its forward over named inputs.
struct Twin {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Inputs&)> forward;
};

/// Layers of one input and position_ids.
template <typename Holder>
Twin positional(Holder module, const std::string& input = "x") {
  return {module.ptr(), [module, input](const Inputs& inputs) mutable {
            return module->forward(inputs.at(input), maybe(inputs, "position_ids"));
          }};
}

/// Layers over a grid, whose position_ids are no option.
template <typename Holder>
Twin in_grid(Holder module) {
  return {module.ptr(), [module](const Inputs& inputs) mutable {
            return module->forward(inputs.at("x"), inputs.at("position_ids"));
          }};
}

template <typename Holder>
Twin attention(Holder module) {
  return {module.ptr(), [module](const Inputs& inputs) mutable {
            return module->forward(inputs.at("x"), maybe(inputs, "mask"),
                                   maybe(inputs, "attn_bias"), maybe(inputs, "key_padding_mask"),
                                   maybe(inputs, "position_ids"));
          }};
}

/// The rows of the Python table of layer samples (tests/python/samples/layers.py), by the same
/// names.
std::map<std::string, std::function<Twin()>> twins() {
  using namespace posenc::nn;
  using Sinusoidal = SinusoidalPositionalEncodingOptions;
  using Rotary = RotaryPositionalEmbeddingOptions;
  using Axial = AxialRotaryEmbeddingOptions;
  using Learned = LearnedRotaryEmbeddingOptions;
  using XPos = XPosRotaryEmbeddingOptions;
  using Temperature = QueryTemperatureOptions;
  std::map<std::string, std::function<Twin()>> rows = {
      {"SinusoidalPositionalEncoding-plain",
       [] { return positional(SinusoidalPositionalEncoding(Sinusoidal(16))); }},
      {"SinusoidalPositionalEncoding-halves",
       [] {
         return positional(
             SinusoidalPositionalEncoding(Sinusoidal(16).interleaved(false).base(500)));
       }},
      {"SinusoidalPositionalEncoding-odd",
       [] { return positional(SinusoidalPositionalEncoding(Sinusoidal(7))); }},
      {"SinusoidalPositionalEncoding-ids",
       [] { return positional(SinusoidalPositionalEncoding(Sinusoidal(16))); }},
      {"LearnedPositionalEncoding-plain",
       [] { return positional(LearnedPositionalEncoding(40, 16)); }},
      {"LearnedPositionalEncoding-ids",
       [] { return positional(LearnedPositionalEncoding(40, 16)); }},
      {"TransformerEmbedding-plain",
       [] { return positional(TransformerEmbedding(30, 16), "input_ids"); }},
      {"RotaryPositionalEmbedding-pairs",
       [] { return positional(RotaryPositionalEmbedding(Rotary(8))); }},
      {"RotaryPositionalEmbedding-halves",
       [] { return positional(RotaryPositionalEmbedding(Rotary(8).interleaved(false))); }},
      {"RotaryPositionalEmbedding-partial",
       [] {
         return positional(
             RotaryPositionalEmbedding(Rotary(12).rotary_dim(6).rotary_start(3).base(500000)));
       }},
      {"RotaryPositionalEmbedding-heads_first",
       [] { return positional(RotaryPositionalEmbedding(Rotary(8).seq_dim(2))); }},
      {"RotaryPositionalEmbedding-ids",
       [] { return positional(RotaryPositionalEmbedding(Rotary(8))); }},
      {"RotaryPositionalEmbedding-axes",
       [] {
         return positional(RotaryPositionalEmbedding(
             Rotary(8).interleaved(false).axes(std::vector<int64_t>{0, 1, 1, 2})));
       }},
      {"AxialRotaryEmbedding-halves",
       [] { return in_grid(AxialRotaryEmbedding(Axial(16).arrangement("half_hw"))); }},
      {"AxialRotaryEmbedding-pairs",
       [] { return in_grid(AxialRotaryEmbedding(Axial(16).arrangement("pairs_wh"))); }},
      {"AxialRotaryEmbedding-blocks",
       [] {
         return in_grid(AxialRotaryEmbedding(
             Axial(16).arrangement("blocks_wh").base(100).seq_dim(2).offset(1).scale(0.5)));
       }},
      {"MixedRotaryEmbedding-per_head",
       [] { return in_grid(MixedRotaryEmbedding(MixedRotaryEmbeddingOptions(8, 3))); }},
      {"MixedRotaryEmbedding-shared",
       [] {
         return in_grid(MixedRotaryEmbedding(
             MixedRotaryEmbeddingOptions(8, 3).per_head(false).interleaved(false).seq_dim(2)));
       }},
      {"LearnedRotaryEmbedding-log", [] { return positional(LearnedRotaryEmbedding(Learned(8))); }},
      {"LearnedRotaryEmbedding-log_heads",
       [] {
         Learned options(12);
         options.n_heads(3).interleaved(false).rotary_dim(6).rotary_start(3);
         return positional(LearnedRotaryEmbedding(options));
       }},
      {"LearnedRotaryEmbedding-direct",
       [] {
         Learned options(8);
         options.parametrisation("direct").base(500);
         return positional(LearnedRotaryEmbedding(options));
       }},
      {"LearnedRotaryEmbedding-direct_heads_first",
       [] {
         Learned options(8);
         options.parametrisation("direct").n_heads(3).seq_dim(2);
         return positional(LearnedRotaryEmbedding(options));
       }},
      {"XPosRotaryEmbedding-pairs",
       [] { return positional(XPosRotaryEmbedding(XPos(8).scale_base(16))); }},
      {"XPosRotaryEmbedding-partial",
       [] {
         return positional(XPosRotaryEmbedding(
             XPos(12).rotary_dim(6).rotary_start(3).interleaved(false).centre(4).seq_dim(2)));
       }},
      {"XPosRotaryEmbedding-ids",
       [] { return positional(XPosRotaryEmbedding(XPos(8).gamma(0.6).base(500))); }},
      {"QueryTemperature-plain",
       [] { return positional(QueryTemperature(Temperature().scale(0.1).floor_scale(2))); }},
      {"QueryTemperature-ids",
       [] {
         return positional(
             QueryTemperature(Temperature().scale(0.3).floor_scale(100).shift(0).seq_dim(2)));
       }},
      {"LongSequenceRoPE-chunks",
       [] {
         LongSequenceRoPE module(LongSequenceRoPEOptions(8).chunk_size(4));
         return Twin{module.ptr(), [module](const Inputs& inputs) mutable {
                       return module->forward(inputs.at("x"));
                     }};
       }},
  };
  const auto both = [&rows](const std::string& name, auto options, auto make) {
    const auto row = [&](const std::string& sample, auto changed) {
      rows[name + "-" + sample] = [=] { return attention(make(changed)); };
    };
    row("plain", options);
    row("mask", options);
    row("padding_both_ways", options);
    auto causal = options;
    causal.is_causal(true);
    row("causal", causal);
    row("bias", causal);
    row("padding", causal);
    auto grouped = causal;
    grouped.n_kv_heads(2).bias(false);
    row("grouped", grouped);
  };
  both("ALiBiAttention", ALiBiAttentionOptions(32, 4),
       [](const auto& options) { return ALiBiAttention(options); });
  both("RoPEAttention", RoPEAttentionOptions(32, 4),
       [](const auto& options) { return RoPEAttention(options); });
  rows["RoPEAttention-partial"] = [] {
    return attention(RoPEAttention(RoPEAttentionOptions(32, 4).rotary_dim(4).interleaved(false)));
  };
  rows["RoPEAttention-ids"] = [] {
    return attention(RoPEAttention(RoPEAttentionOptions(32, 4).base(500)));
  };
  return rows;
}

/// A buffer's name holds no dots.
std::string saved_name(std::string name) {
  c10::ReplaceAll(name, ".", "__");
  return name;
}

/// One archive: the scripted layer, and what goes in and must come out.
struct Archive {
  torch::jit::Module layer;
  Inputs inputs, grads;
  Tensor expected, weights;

  explicit Archive(const std::filesystem::path& path) {
    torch::jit::Module root = torch::jit::load(path.string());
    layer = root.attr("layer").toModule();
    for (const auto& buffer : root.named_buffers(/*recurse=*/false)) {
      const std::string& name = buffer.name;
      if (name.rfind("input_", 0) == 0) {
        inputs[name.substr(6)] = buffer.value;
      } else if (name.rfind("grad_", 0) == 0) {
        grads[name.substr(5)] = buffer.value;
      }
    }
    expected = root.attr("expected").toTensor();
    weights = root.attr("weights").toTensor();
  }

  /// Inputs whose gradient was saved, as fresh leaves.
  Inputs leaves() const {
    Inputs result;
    for (const auto& [name, value] : inputs) {
      result[name] = value.detach().clone();
      if (grads.count(name) != 0) {
        result[name].requires_grad_();
      }
    }
    return result;
  }

  /// The output on rows that count, and every gradient, against what Python saved.
  void check(const Tensor& out, const Inputs& leaf,
             const std::map<std::string, Tensor>& parameters) const {
    const Tensor live = weights.ne(0);
    EXPECT_LT(max_error(at::where(live, out, at::zeros_like(out)),
                        at::where(live, expected, at::zeros_like(out))),
              2e-6);
    std::map<std::string, Tensor> all = parameters;
    for (const auto& [name, value] : leaf) {
      if (value.requires_grad()) {
        all[name] = value;
      }
    }
    EXPECT_EQ(all.size(), grads.size());
    if (all.empty()) {
      return;
    }
    std::vector<Tensor> targets;
    for (const auto& item : all) {
      targets.push_back(item.second);
    }
    const auto got = torch::autograd::grad({(out * weights).sum()}, targets);
    size_t index = 0;
    for (const auto& item : all) {
      const std::string name = saved_name(item.first);
      ASSERT_EQ(grads.count(name), 1U) << name;
      EXPECT_LT(max_error(got[index++], grads.at(name)), 1e-5) << "gradient of " << name;
    }
  }
};

class TorchScript : public ::testing::Test {
 protected:
  std::filesystem::path folder;

  void SetUp() override {
    const char* given = std::getenv("POSENC_TORCHSCRIPT_DIR");
    if (given == nullptr || !std::filesystem::is_directory(given)) {
      GTEST_SKIP() << "POSENC_TORCHSCRIPT_DIR names no folder; "
                      "tests/cpp/torchscript/save_layers.py FOLDER makes one";
    }
    folder = given;
  }

  template <typename F>
  void for_each(F&& f) {
    for (const auto& row : twins()) {
      SCOPED_TRACE(row.first);
      const auto path = folder / (row.first + ".pt");
      ASSERT_TRUE(std::filesystem::exists(path)) << path << " was not saved";
      f(Archive(path), row.second);
    }
  }
};

TEST_F(TorchScript, EveryArchiveHasATwin) {
  std::set<std::string> saved, known;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    saved.insert(entry.path().stem().string());
  }
  for (const auto& row : twins()) {
    known.insert(row.first);
  }
  EXPECT_EQ(saved, known);
}

TEST_F(TorchScript, LoadedLayersGiveWhatPythonGave) {
  for_each([](const Archive& archive, const std::function<Twin()>&) {
    torch::jit::Module layer = archive.layer;
    for (int call = 0; call < 3; ++call) {  // the profiling executor specialises in the second
      const Inputs leaves = archive.leaves();
      torch::jit::Kwargs arguments;
      for (const auto& [name, value] : leaves) {
        arguments[name] = value;
      }
      std::map<std::string, Tensor> parameters;
      for (const auto& parameter : layer.named_parameters()) {
        parameters[parameter.name] = parameter.value;
      }
      archive.check(layer.forward({}, arguments).toTensor(), leaves, parameters);
    }
  });
}

TEST_F(TorchScript, ModulesWithTheSameWeightsGiveTheSame) {
  for_each([](const Archive& archive, const std::function<Twin()>& make) {
    const Twin twin = make();
    std::map<std::string, Tensor> parameters;
    for (auto& item : twin.module->named_parameters()) {
      parameters[item.key()] = item.value();
    }
    torch::NoGradGuard copying;
    size_t count = 0;
    for (const auto& saved : archive.layer.named_parameters()) {
      ++count;
      ASSERT_EQ(parameters.count(saved.name), 1U) << saved.name;
      parameters[saved.name].copy_(saved.value);
    }
    EXPECT_EQ(count, parameters.size());
    EXPECT_TRUE(twin.module->named_buffers().is_empty());
    const at::AutoGradMode recording(true);
    const Inputs leaves = archive.leaves();
    archive.check(twin.forward(leaves), leaves, parameters);
  });
}

TEST_F(TorchScript, LoadedLayersMoveToAnotherDtype) {
  for_each([](const Archive& archive, const std::function<Twin()>&) {
    torch::jit::Module layer = archive.layer.deepcopy();
    layer.to(at::kDouble);
    torch::jit::Kwargs arguments;
    for (const auto& [name, value] : archive.inputs) {
      arguments[name] = value.is_floating_point() ? value.to(at::kDouble) : value;
    }
    const Tensor out = layer.forward({}, arguments).toTensor();
    const Tensor live = archive.weights.ne(0);
    const Tensor nothing = at::zeros_like(out);
    EXPECT_EQ(out.scalar_type(), at::kDouble);
    EXPECT_LT(max_error(at::where(live, out, nothing), at::where(live, archive.expected, nothing)),
              5e-6);
  });
}

}  // namespace
}  // namespace posenc::test
