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
    m.scaled_type = "compress";
    m.scaled_theta = 160000;
  });
  each({"nanochat"}, [](ModelRope& m) { m.inverse = true; });

  each({"dinov3_vit", "eomt_dinov3", "llama4_vision_model", "sapiens2"}, [](ModelRope& m) {
    m.not_served = "a vision tower's positions have rows and columns (AxialRotaryEmbedding)";
  });
  each({"clvp_encoder"},
       [](ModelRope& m) { m.not_served = "its width and theta are numbers in the model's code"; });

  // Layers of several types, described by a flat dictionary (as released before transformers 5).
  each({"gemma3_text", "gemma3n_text", "mimo_v2_flash", "modernbert", "modernbert-decoder",
        "t5gemma2_decoder", "t5gemma2_text"},
       [](ModelRope& m) {
         m.scaled_type = "full_attention";
         m.plain_theta = 1e4;
       });
  each({"olmo3"}, [](ModelRope& m) { m.scaled_type = "full_attention"; });

  // What their configurations default to is scaled, or differs by type of layer.
  each({"apertus", "apertus1p5_text", "cwm", "gpt_oss", "higgs_audio_v2", "ministral3", "mistral4",
        "mistral_large4_text", "openai_privacy_filter"},
       [](ModelRope& m) { m.needs_dictionary = true; });
  each({"beam", "diffusion_gemma_text", "dory", "dots3_note_text", "embedding_gemma2_text",
        "gemma4_text", "gemma4_unified_text", "laguna", "lfm3", "mellum", "neomme", "ultrabert",
        "zaya"},
       [](ModelRope& m) { m.needs_nested = true; });

  const std::map<int64_t, Names> heads = {
      {64,
       {"gpt_oss", "muse_spark_text", "neomme", "neucodec", "openai_privacy_filter",
        "qwen2_5_omni_dit", "voxtral_realtime_encoder", "xcodec2"}},
      {80, {"timesfm2_5"}},
      {128,
       {"afmoe",
        "beam",
        "cohere2_moe",
        "cosmos3_edge_text",
        "cwm",
        "dia_decoder",
        "dia_encoder",
        "ernie4_5",
        "flint",
        "glm",
        "glm4",
        "helium",
        "higgs_audio_v2",
        "hrm_text",
        "hy_v3",
        "kolibri1",
        "laguna",
        "lara_mini",
        "lfm3",
        "llama4_text",
        "mellum",
        "minimax_m2",
        "minimax_m3_vl_text",
        "ministral3",
        "molmo2_text",
        "muse_glimmer_assistant",
        "muse_glimmer_text",
        "paddleocr_vl_text",
        "pe_audio_encoder",
        "pe_audio_video_encoder",
        "pe_video_encoder",
        "qwen2_5_omni_talker",
        "qwen3",
        "qwen3_omni_moe_talker_code_predictor",
        "qwen3_vl_text",
        "seed_oss",
        "solar_open",
        "step3p5",
        "zaya"}},
      {192, {"mimo_v2_flash"}},
      {256,
       {"diffusion_gemma_text", "dory", "embedding_gemma2_text", "gemma", "gemma2", "gemma3_text",
        "gemma3n_text", "gemma4_text", "gemma4_unified_text", "qwen3_5_moe_text", "qwen3_5_text",
        "qwen3_next", "qwen4_exp_text", "t5_gemma_module", "t5gemma2_decoder", "t5gemma2_text",
        "vaultgemma"}},
      {512, {"deepseek_v4"}},
  };
  for (const auto& [head, names] : heads) {
    for (const auto& name : names) {
      table[name].default_head = head;
    }
  }

  each({"diffusion_gemma_text", "embedding_gemma2_text", "gemma4_text", "gemma4_unified_text"},
       [](ModelRope& m) { m.default_global_head = 512; });

  const std::map<double, Names> shares = {
      {0.2, {"musicflamingo"}},
      {0.25, {"gpt_neox", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "stablelm"}},
      {0.334, {"mimo_v2_flash"}},
      {0.5,
       {"bamba", "dots3_note_audio_encoder", "glm", "glm4", "glm4_moe", "glm4v_moe_text",
        "glmasr_encoder", "nemotron", "nemotron3_5_transcribe_asr_audio",
        "nemotron3_5_transcribe_word_timestamp", "persimmon", "phi", "recurrent_gemma"}},
      {0.8, {"moonshine_streaming"}},
      {0.9, {"moonshine"}},
      {4.0, {"efficientloftr"}},
  };
  for (const auto& [share, names] : shares) {
    for (const auto& name : names) {
      table[name].default_share = share;
    }
  }

  const std::map<double, Names> thetas = {
      {1e3, {"nomic_bert"}},
      {1.2e3, {"musicflamingo"}},
      {2e4,
       {"jina_embeddings_v3", "pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder"}},
      {1e5, {"helium"}},
      {1.5e5, {"gpt_oss", "openai_privacy_filter"}},
      {1.6e5, {"gte", "modernbert", "modernbert-decoder"}},
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
        "muse_spark_text",
        "olmo3",
        "paddleocr_vl_text",
        "qwen3_vl_moe_text",
        "qwen3_vl_text"}},
      {1e6,
       {"cwm", "emu3_text_model", "gemma3_text", "gemma3n_text", "lfm2", "lfm2_moe", "lfm3",
        "minimax", "mixtral", "phimoe", "t5gemma2_decoder", "t5gemma2_text", "qwen2_5_omni_talker",
        "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3_omni_moe_text",
        "solar_open"}},
      {2e6, {"smollm3"}},
      {5e6, {"mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text"}},
      {6e6, {"bailing_hybrid"}},
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
