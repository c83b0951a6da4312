// Facts about released models, as their code in transformers 5.24 shows them. A test walks all of
// its models and compares.

#include <posenc/rotary/model_table.h>

#include <map>

namespace posenc::rotary {
namespace {

using Names = std::vector<std::string>;

std::map<std::string, ModelRope> make_table() {
  std::map<std::string, ModelRope> table;
  const auto each = [&](const Names& names, auto&& change) {
    for (const auto& name : names) {
      change(table[name]);
    }
  };

  each({"blt_global_transformer",
        "blt_local_decoder",
        "blt_local_encoder",
        "blt_patcher",
        "codegen",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v4",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_vl_moe_text",
        "glm",
        "glm4",
        "glm4v_text",
        "glm_ocr_text",
        "gptj",
        "helium",
        "hy_v4_vl_text",
        "llama4_text",
        "moonshine",
        "moonshine_streaming",
        "openai_privacy_filter",
        "pe_audio_encoder",
        "pe_audio_video_encoder",
        "pe_video_encoder"},
       [](ModelRope& m) { m.layout = Layout::pairs; });
  each({"axk1", "axk2", "bailing_hybrid", "deepseek_v3", "deepseek_v32", "dots3_note_text",
        "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "mistral4", "mistral_large4_text",
        "qwen2_5_omni_dit", "sarvam_mla", "youtu"},
       [](ModelRope& m) { m.layout = Layout::pairs_to_halves; });

  each({"qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2_5_omni_talker",
        "paddleocr_vl_text"},
       [](ModelRope& m) {
         m.sections = {16, 24, 24};
       });
  each({"glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text"}, [](ModelRope& m) {
    m.sections = {8, 12, 12};
  });
  each({"qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text", "qwen3_omni_moe_talker_text",
        "cosmos3_edge_text"},
       [](ModelRope& m) {
         m.arrangement = "interleaved";
         m.sections = {24, 20, 20};
       });
  each({"qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"}, [](ModelRope& m) {
    m.arrangement = "interleaved";
    m.sections = {11, 11, 10};
  });
  each({"hy_v4_vl_text"}, [](ModelRope& m) {
    m.arrangement = "interleaved";
    m.sections = {12, 10, 10};
  });
  each({"ernie4_5_vl_moe_text"}, [](ModelRope& m) {
    m.arrangement = "alternating_hwt";
    m.sections = {22, 22, 20};
  });
  each({"neomme"}, [](ModelRope& m) {
    m.arrangement = "alternating";
    m.n_axes = 2;
  });

  each({"deepseek_v4"}, [](ModelRope& m) {
    m.trailing = true;
    m.unit_attention_factor = true;
  });
  each({"nanochat"}, [](ModelRope& m) { m.inverse = true; });

  each({"dinov3_vit", "eomt_dinov3", "llama4_vision_model", "sapiens2"}, [](ModelRope& m) {
    m.not_served = "a vision tower's positions have rows and columns (AxialRotaryEmbedding)";
  });
  each({"clvp_encoder"},
       [](ModelRope& m) { m.not_served = "its width and theta are numbers in the model's code"; });

  const std::map<double, Names> thetas = {
      {1e3, {"nomic_bert"}},
      {2e4,
       {"jina_embeddings_v3", "pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder"}},
      {1e5, {"helium"}},
      {1.5e5, {"gpt_oss", "openai_privacy_filter"}},
      {1.6e5, {"gte"}},
      {5e5,
       {"bitnet",
        "blt",
        "blt_global_transformer",
        "blt_local_decoder",
        "blt_local_encoder",
        "cohere",
        "csm",
        "csm_depth_decoder_model",
        "ernie4_5",
        "ernie4_5_moe",
        "ernie4_5_vl_moe_text",
        "evolla",
        "flex_olmo",
        "llama4_text",
        "mllama_text_model",
        "muse_glimmer_assistant",
        "olmo3",
        "paddleocr_vl_text",
        "qwen3_vl_moe_text",
        "qwen3_vl_text"}},
      {1e6,
       {"cwm", "emu3_text_model", "lfm2", "lfm2_moe", "lfm3", "minimax", "mixtral", "phimoe",
        "qwen2_5_omni_talker", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text",
        "qwen3_omni_moe_text", "solar_open"}},
      {2e6, {"smollm3"}},
      {5e6, {"minimax_m2", "minimax_m3_vl_text"}},
      {1e7, {"longcat_flash"}},
      {11158840, {"hy_v3"}},
      {1.2e7, {"apertus", "apertus1p5_text"}},
      {8e7, {"dots3_note_text"}},
      {1e8, {"cosmos3_edge_text"}},
  };
  for (const auto& [theta, names] : thetas) {
    for (const auto& name : names) {
      table[name].default_theta = theta;
    }
  }
  return table;
}

}  // namespace

ModelRope model_rope(const std::string& model_type) {
  static const auto* table = new std::map<std::string, ModelRope>(make_table());
  const auto it = table->find(model_type);
  return it == table->end() ? ModelRope() : it->second;
}

}  // namespace posenc::rotary
