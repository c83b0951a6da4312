// A model's configuration (config.json) → options of its RoPE. What the configuration does not say
// is in model_table.cpp.

#include <posenc/rotary/axes.h>
#include <posenc/rotary/dict_reader.h>
#include <posenc/rotary/model_table.h>
#include <posenc/rotary/rotary_module.h>

namespace posenc::nn {
namespace {

using rotary::DictReader;
using rotary::Layout;
using rotary::ModelRope;
using LayerType = std::optional<std::string>;

const char* kWhere = "RotaryPositionalEmbedding.from_config: expected ";

/// Where a multimodal model keeps the configuration of its language model.
const std::vector<std::string> kTextConfigs = {"text_config", "thinker_config", "language_config",
                                               "llm_config"};

const std::vector<std::string> kRopeKeys = {"rope_parameters", "rope_scaling", "rope_theta",
                                            "rotary_dim",      "hidden_size",  "head_dim"};

RopeDict text_config(RopeDict config) {
  for (const auto& key : kRopeKeys) {
    const auto it = config.find(key);
    if (it != config.end() && !it->second.is_none()) {
      return config;
    }
  }
  for (const auto& key : kTextConfigs) {
    const auto it = config.find(key);
    if (it != config.end() && std::holds_alternative<RopeDict>(it->second)) {
      return text_config(std::get<RopeDict>(it->second));
    }
  }
  return config;
}

/// Settings of one type of layer replace those of the model (Gemma 4: head_dim).
void apply_layer_settings(RopeDict& config, const LayerType& layer_type, const ModelRope& model) {
  const auto it = config.find("per_layer_config");
  if (it == config.end() && layer_type == "full_attention") {
    const auto own = config.find("global_head_dim");  // as the files say it
    if (own != config.end()) {
      config["head_dim"] = own->second;
    } else if (model.default_global_head.has_value()) {
      config["head_dim"] = *model.default_global_head;
    }
  }
  if (it == config.end() || !layer_type || !std::holds_alternative<RopeDict>(it->second)) {
    return;
  }
  const RopeDict by_layer = std::get<RopeDict>(it->second);
  const auto own = by_layer.find(*layer_type);
  if (own == by_layer.end() || !std::holds_alternative<RopeDict>(own->second)) {
    return;
  }
  for (const auto& [key, value] : std::get<RopeDict>(own->second)) {
    config[key] = value;
  }
}

bool is_nested(const RopeDict& dict) {
  bool any = false;
  for (const auto& [key, value] : dict) {
    if (!value.is_none() && !std::holds_alternative<RopeDict>(value)) {
      return false;
    }
    any = any || !value.is_none();
  }
  return any;
}

std::string got(const LayerType& layer_type) {
  return layer_type ? "'" + *layer_type + "'" : std::string("None");
}

/// The entry of one type of layer.
RopeDict entry(const RopeDict& nested, const LayerType& layer_type) {
  std::string names;
  for (const auto& [key, unused] : nested) {
    names += (names.empty() ? "" : ", ") + key;
  }
  const auto it = layer_type ? nested.find(*layer_type) : nested.end();
  TORCH_CHECK_VALUE(it != nested.end(), kWhere, "layer_type to be one of ", names,
                    " (the rope parameters are nested), got ", got(layer_type));
  TORCH_CHECK_VALUE(!it->second.is_none(), kWhere, "a type of layer with rope, got '", *layer_type,
                    "', whose rope parameters are None");
  return std::get<RopeDict>(it->second);
}

/// The first that is there.
std::optional<double> first_number(DictReader& reader, std::initializer_list<const char*> keys) {
  std::optional<double> result;
  for (const char* key : keys) {
    const auto value = reader.number(key, 0);
    result = result ? result : value;
  }
  return result;
}

bool is_scaled(const RopeDict& dict) {
  for (const char* key : {"rope_type", "type"}) {
    const auto it = dict.find(key);
    const auto* word = it == dict.end() ? nullptr : std::get_if<std::string>(&it->second);
    if (word != nullptr && *word != "default" && *word != "mrope") {
      return true;
    }
  }
  return false;
}

/// A flat dictionary beside types of layers: it is meant for one of them (Gemma 3: the global
/// layers, DeepSeek-V4: the compressed ones), and the others are plain, with a θ of their own.
void of_layer_type(RopeDict& dict, std::optional<double>& theta, const LayerType& layer_type,
                   const ModelRope& model, std::optional<double> local,
                   std::optional<double> compressed) {
  const std::string scaled = !model.scaled_type.empty() ? model.scaled_type
                             : compressed               ? "compress"
                                                        : "full_attention";
  const auto plain_theta = local ? local : model.plain_theta;
  const auto scaled_theta = compressed ? compressed : model.scaled_theta;
  if (!plain_theta && !scaled_theta && (model.scaled_type.empty() || !is_scaled(dict))) {
    return;  // all layers are alike
  }
  TORCH_CHECK_VALUE(layer_type.has_value(), kWhere, "layer_type to be ", scaled,
                    " or another type (a flat dictionary is meant for the former, and the layers "
                    "differ), got None");
  if (*layer_type == scaled) {
    theta = scaled_theta ? scaled_theta : theta;
    return;
  }
  RopeDict plain{{"rope_type", RopeValue(std::string("default"))}};
  for (const char* key : {"partial_rotary_factor", "rope_theta"}) {
    const auto it = dict.find(key);
    if (it != dict.end() && (!plain_theta || std::string(key) != "rope_theta")) {
      plain.insert(*it);
    }
  }
  dict = plain;
  theta = plain_theta ? plain_theta : theta;
}

/// The dictionary of this type of layer, with θ from wherever the configuration has it.
RopeDict rope_dict(DictReader& reader, const LayerType& layer_type, const ModelRope& model,
                   const std::string& model_type, bool& nested) {
  const auto current = reader.dict("rope_parameters"), legacy = reader.dict("rope_scaling");
  RopeDict dict = legacy && !legacy->empty() ? *legacy : current.value_or(RopeDict());
  const auto local =
      first_number(reader, {"rope_local_base_freq", "local_rope_theta", "swa_rope_theta"});
  const auto compressed = reader.number("compress_rope_theta", 0);
  auto theta = first_number(reader, {"rope_theta", "global_rope_theta", "rotary_emb_base"});
  nested = is_nested(dict);
  TORCH_CHECK_VALUE(nested || !model.needs_nested, kWhere,
                    "rope_parameters nested by type of layer (model_type '", model_type,
                    "' has no other), got none");
  TORCH_CHECK_VALUE(!dict.empty() || !model.needs_dictionary, kWhere,
                    "rope_parameters or rope_scaling (model_type '", model_type,
                    "' is scaled by default), got none");
  if (nested) {
    dict = entry(dict, layer_type);
  } else {
    of_layer_type(dict, theta, layer_type, model, local, compressed);
  }
  const auto given = dict.find("rope_theta");
  if (given == dict.end() || given->second.is_none()) {
    dict["rope_theta"] =
        theta ? *theta : reader.number("default_theta", 0).value_or(model.default_theta);
  }
  return dict;
}

/// The first that is there, under the names that models give it.
std::optional<int64_t> first_whole(DictReader& reader, std::initializer_list<const char*> keys) {
  std::optional<int64_t> result;
  for (const char* key : keys) {
    const auto value = reader.whole(key);
    result = result ? result : value;
  }
  return result;
}

int64_t head_width(DictReader& reader, const ModelRope& model) {
  auto head = first_whole(reader, {"head_dim", "attention_head_dim", "kv_channels"});
  head = head ? head : model.default_head;
  if (head.has_value()) {
    return *head;
  }
  const auto hidden = first_whole(reader, {"hidden_size", "n_embd", "d_model"});
  const auto heads = first_whole(
      reader, {"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"});
  TORCH_CHECK_VALUE(hidden && heads, kWhere,
                    "head_dim, or hidden_size and num_attention_heads, got hidden_size ",
                    hidden.value_or(0), ", num_attention_heads ", heads.value_or(0));
  return *hidden / *heads;
}

/// How many channels turn, and where they begin.
struct Width {
  int64_t head, start = 0;
  std::optional<int64_t> rotated = std::nullopt;
};

Width read_width(DictReader& reader, RopeScaling& scaling, const ModelRope& model) {
  const auto share = first_number(reader, {"partial_rotary_factor", "rotary_pct"});
  const auto rotated = reader.whole("rotary_dim");
  const auto rope_head = reader.whole("qk_rope_head_dim");
  if (rope_head.has_value()) {
    // Multi-head latent attention: the rotated channels are a tensor of their own, or the last ones
    // of the head.
    scaling.partial_rotary_factor = std::nullopt;
    if (!model.trailing) {
      return {*rope_head};
    }
    const int64_t head = head_width(reader, model);
    return {head, head - *rope_head, *rope_head};
  }
  const int64_t head = head_width(reader, model);
  if (!scaling.partial_rotary_factor.has_value()) {
    scaling.partial_rotary_factor = share || rotated ? share : model.default_share;
  }
  if (!scaling.partial_rotary_factor.has_value()) {
    return {head, 0, rotated};
  }
  if (*scaling.partial_rotary_factor > 1) {  // EfficientLoFTR turns several heads as one
    const auto wide =
        static_cast<int64_t>(static_cast<double>(head) * *scaling.partial_rotary_factor);
    scaling.partial_rotary_factor = std::nullopt;
    return {wide};
  }
  return {head};
}

std::optional<std::vector<int64_t>> section_axes(const RopeScaling& scaling, const ModelRope& model,
                                                 int64_t n) {
  if (!scaling.xdrope_section.empty()) {
    return rope_axes("contiguous", scaling.xdrope_section, n);
  }
  const bool interleaved = scaling.mrope_interleaved.value_or(model.arrangement == "interleaved");
  const std::string arrangement = interleaved                          ? "interleaved"
                                  : model.arrangement == "interleaved" ? "contiguous"
                                                                       : model.arrangement;
  if (!scaling.mrope_section.empty()) {
    return rope_axes(arrangement, scaling.mrope_section, n);
  }
  if (!model.sections.empty()) {
    if (arrangement != "interleaved") {
      return rope_axes(arrangement, model.sections, n);
    }
    // The model's own sections at another width: its rule goes on with time, or stops early.
    auto axes = rope_axes(arrangement, model.sections);
    axes.resize(n, 0);
    return axes;
  }
  if (model.n_axes > 1) {
    std::vector<int64_t> equal(model.n_axes, n / model.n_axes);
    equal.front() += n % model.n_axes;
    return rope_axes(arrangement, equal, n);
  }
  return std::nullopt;
}

/// The keys that a model's configuration has no name for; to_dict writes them.
void read_own_keys(DictReader& reader, RotaryPositionalEmbeddingOptions& options) {
  if (const auto out = reader.flag("interleaved_out")) {
    options.interleaved_out(*out);
  }
  if (const auto start = reader.whole("rotary_start", /*zero_included=*/true)) {
    options.rotary_start(*start);
  }
  if (const auto value = reader.take("seq_dim")) {  // may be negative
    const auto* dim = std::get_if<int64_t>(&*value);
    TORCH_CHECK_VALUE(dim != nullptr, kWhere, "seq_dim to be a whole number, got ",
                      to_string(*value));
    options.seq_dim(*dim);
  }
  if (const auto factor = reader.number("attention_factor", 0)) {
    options.attention_factor(*factor);
  }
  if (const auto axes = reader.whole_numbers("axes")) {
    options.axes(*axes);
  }
}

}  // namespace

std::vector<int64_t> RotaryPositionalEmbeddingOptions::resolved_axes() const {
  return axes_ ? *axes_
               : section_axes(scaling_, ModelRope(), width() / 2).value_or(std::vector<int64_t>());
}

RotaryPositionalEmbeddingOptions RotaryPositionalEmbeddingOptions::from_dict(
    const RopeDict& config, const std::optional<std::string>& layer_type) {
  RopeDict flat = text_config(config);
  const std::string model_type =
      DictReader(flat, kWhere).word("model_type").value_or(std::string());
  const ModelRope model = rotary::model_rope(model_type);
  TORCH_CHECK_VALUE(model.not_served.empty(), kWhere,
                    "a model with RoPE over one series of positions, got model_type '", model_type,
                    "': ", model.not_served);
  apply_layer_settings(flat, layer_type, model);
  DictReader reader(flat, kWhere);

  bool nested = false;
  RopeScaling scaling =
      RopeScaling::from_dict(rope_dict(reader, layer_type, model, model_type, nested));
  const auto trained = reader.whole("original_max_position_embeddings");
  if (trained.has_value() && !nested &&
      (scaling.is_yarn() || scaling.type == "longrope" || scaling.type == "llama3")) {
    scaling.original_max_position_embeddings = trained;  // as transformers: before the dictionary's
  }
  const Width width = read_width(reader, scaling, model);

  RotaryPositionalEmbeddingOptions options(width.head);
  const auto interleave = reader.flag("rope_interleave"), pairs = reader.flag("interleaved");
  const Layout layout = interleave.has_value() && !*interleave ? Layout::halves : model.layout;
  options.interleaved(scaling.interleaved.value_or(pairs.value_or(layout != Layout::halves)));
  if (layout == Layout::pairs_to_halves && options.interleaved()) {
    options.interleaved_out(false);
  }
  auto longest = scaling.max_position_embeddings;
  const auto outer = first_whole(
      reader, {"max_position_embeddings", "n_positions", "model_max_length", "max_seq_len"});
  longest = longest ? longest : outer;
  const bool needs_length = scaling.is_yarn() || scaling.type == "longrope" ||
                            scaling.type == "llama3" || scaling.depends_on_length();
  TORCH_CHECK_VALUE(!needs_length || longest || scaling.original_max_position_embeddings, kWhere,
                    "max_position_embeddings or original_max_position_embeddings (rope_type '",
                    scaling.type, "' follows the trained length), got None for both");
  options.rotary_start(width.start)
      .rotary_dim(width.rotated)
      .inverse(reader.flag("inverse").value_or(model.inverse))
      .max_seq_len(longest.value_or(options.max_seq_len()))
      .base(*scaling.rope_theta)
      .scaling(scaling);
  if (model.unit_attention_factor && !scaling.attention_factor) {
    options.attention_factor(1.0);
  }
  read_own_keys(reader, options);
  if (!options.axes().has_value()) {
    options.axes(section_axes(scaling, model, options.width() / 2));
  }
  options.check();
  return options;
}

RopeDict RotaryPositionalEmbeddingOptions::to_dict() const {
  RopeDict rope = scaling_.to_dict();
  rope["rope_theta"] = theta();
  RopeDict dict{{"head_dim", d_model_},    {"max_position_embeddings", max_seq_len_},
                {"rope_parameters", rope}, {"interleaved", reads_pairs()},
                {"inverse", inverse_},     {"rotary_start", rotary_start_},
                {"seq_dim", seq_dim_}};
  if (rotary_dim_.has_value()) {
    dict["rotary_dim"] = *rotary_dim_;
  }
  if (interleaved_out_.has_value()) {
    dict["interleaved_out"] = *interleaved_out_;
  }
  if (attention_factor_.has_value()) {
    dict["attention_factor"] = *attention_factor_;
  }
  if (const auto axes = resolved_axes(); !axes.empty()) {
    dict["axes"] = std::vector<double>(axes.begin(), axes.end());
  }
  return dict;
}

const std::vector<std::string>& RotaryPositionalEmbeddingOptions::dict_keys() {
  static const auto* keys = new std::vector<std::string>{
      "model_type", "head_dim", "global_head_dim", "kv_channels", "attention_head_dim",
      "qk_rope_head_dim", "hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head",
      "n_heads", "decoder_num_attention_heads", "max_position_embeddings", "n_positions",
      "model_max_length", "max_seq_len", "original_max_position_embeddings", "rope_parameters",
      "rope_scaling", "rope_theta", "default_theta", "global_rope_theta", "local_rope_theta",
      "rope_local_base_freq", "swa_rope_theta", "compress_rope_theta", "rotary_emb_base",
      "partial_rotary_factor", "rotary_pct", "rotary_dim", "rope_interleave", "per_layer_config",
      "text_config", "thinker_config", "language_config", "llm_config",
      // What to_dict writes beside them:
      "interleaved", "interleaved_out", "inverse", "rotary_start", "seq_dim", "axes",
      "attention_factor"};
  return *keys;
}

}  // namespace posenc::nn
