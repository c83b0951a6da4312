// A model's rope dictionary ↔ RopeScaling: strict, so that no key is read by nobody.

#include <c10/util/Exception.h>
#include <posenc/rotary/dict_reader.h>
#include <posenc/rotary/scaling.h>

#include <cmath>
#include <set>

namespace posenc {
namespace {

using rotary::DictReader;

const std::set<std::string> kTypes = {"default",       "linear",   "dynamic", "ntk",         "yarn",
                                      "deepseek_yarn", "longrope", "llama3",  "proportional"};

std::string modern_name(const std::string& type) {
  if (type == "su") {
    return "longrope";  // Phi-3's first name for it
  }
  if (type == "xdrope") {
    return "dynamic";  // HunYuan-VL: NTK-alpha with sections
  }
  return type == "mrope" ? "default" : type;
}

std::string read_type(DictReader& reader) {
  const auto current = reader.word("rope_type"), legacy = reader.word("type");
  // transformers leaves {rope_type: default, type: mrope} and {rope_type: longrope, type: su}
  // behind.
  std::string type = modern_name(current.value_or(legacy.value_or("default")));
  TORCH_CHECK_VALUE(!current || !legacy || modern_name(*current) == modern_name(*legacy),
                    "rope scaling: expected one type, got rope_type '", *current, "' and type '",
                    *legacy, "'");
  if (type == "yarn" && reader.has("short_factor")) {
    type = "longrope";  // Phi-3's second name for it
  }
  TORCH_CHECK_VALUE(type != "axial",
                    "rope scaling: expected the rope_type of a one-dimensional RoPE, got 'axial'; "
                    "AxialRotaryEmbedding serves it");
  if (kTypes.count(type) == 0) {
    std::string names;
    for (const auto& name : kTypes) {
      names += (names.empty() ? "" : ", ") + name;
    }
    TORCH_CHECK_VALUE(false, "rope scaling: expected rope_type to be one of ", names, ", got '",
                      type, "'");
  }
  return type;
}

void require(const DictReader& reader, const char* key, bool there) {
  TORCH_CHECK_VALUE(there, reader.where(), "the key ", key);
}

void read_yarn(DictReader& reader, RopeScaling& s) {
  s.beta_fast = reader.number("beta_fast", 0).value_or(32);
  s.beta_slow = reader.number("beta_slow", 0).value_or(1);
  TORCH_CHECK_VALUE(s.beta_fast > s.beta_slow, reader.where(),
                    "beta_fast > beta_slow (many turns are high frequencies), got beta_fast ",
                    s.beta_fast, " and beta_slow ", s.beta_slow);
  s.mscale = reader.number("mscale", 0, true);
  s.mscale_all_dim = reader.number("mscale_all_dim", 0, true);
  s.attn_factor = reader.number("attn_factor", 0);
  s.extrapolation_factor = reader.number("extrapolation_factor", 0, true);
  s.apply_yarn_scaling = reader.flag("apply_yarn_scaling");
  // transformers reads a None that is there as False, and only a missing key as True.
  s.truncate = !reader.has("truncate");
  s.truncate = reader.flag("truncate").value_or(s.truncate);
}

void read_longrope(DictReader& reader, RopeScaling& s) {
  for (auto* list : {&s.short_factor, &s.long_factor}) {
    const char* key = list == &s.short_factor ? "short_factor" : "long_factor";
    const auto numbers = reader.numbers(key);
    require(reader, key, numbers.has_value());
    *list = *numbers;
  }
  s.short_mscale = reader.number("short_mscale", 0);
  s.long_mscale = reader.number("long_mscale", 0);
  TORCH_CHECK_VALUE(s.short_mscale == s.long_mscale, reader.where(),
                    "short_mscale and long_mscale to be one number (a factor that changes with the "
                    "length is not served), got ",
                    s.short_mscale.value_or(0), " and ", s.long_mscale.value_or(0));
  TORCH_CHECK_VALUE(!s.short_mscale || !s.attention_factor || s.short_mscale == s.attention_factor,
                    reader.where(), "one attention factor, got attention_factor ",
                    s.attention_factor.value_or(0), " and short_mscale ",
                    s.short_mscale.value_or(0));
}

void read_llama3(DictReader& reader, RopeScaling& s) {
  s.low_freq_factor = reader.number("low_freq_factor", 0);
  s.high_freq_factor = reader.number("high_freq_factor", 0);
  require(reader, "low_freq_factor", s.low_freq_factor.has_value());
  require(reader, "high_freq_factor", s.high_freq_factor.has_value());
  TORCH_CHECK_VALUE(*s.low_freq_factor < *s.high_freq_factor, reader.where(),
                    "low_freq_factor < high_freq_factor, got ", *s.low_freq_factor, " and ",
                    *s.high_freq_factor);
}

/// What belongs to the splitting of frequencies among axes, and to the model around them.
void read_model_keys(DictReader& reader, RopeScaling& s) {
  s.mrope_section = reader.whole_numbers("mrope_section").value_or(std::vector<int64_t>());
  s.xdrope_section = reader.whole_numbers("xdrope_section").value_or(std::vector<int64_t>());
  s.mrope_interleaved = reader.flag("mrope_interleaved");
  s.interleaved = reader.flag("interleaved");
  s.llama_4_scaling_beta = reader.number("llama_4_scaling_beta", 0, true);
  s.max_position_embeddings = reader.whole("max_position_embeddings");
  TORCH_CHECK_VALUE(s.mrope_section.empty() || s.xdrope_section.empty(), reader.where(),
                    "mrope_section or xdrope_section, got both");
  TORCH_CHECK_VALUE(!reader.has("dual_chunk_attention_config"), reader.where(),
                    "no dual_chunk_attention_config: positions that differ between the keys of one "
                    "query are another attention, not another rotation");
}

}  // namespace

RopeScaling RopeScaling::from_dict(const RopeDict& dict) {
  DictReader reader(dict, "rope scaling: expected ");
  RopeScaling s;
  s.type = read_type(reader);
  reader.rename("rope scaling " + s.type + ": expected ");
  s.rope_theta = reader.number("rope_theta", 0);
  s.partial_rotary_factor = reader.number("partial_rotary_factor", 0);
  read_model_keys(reader, s);
  // A dictionary of YaRN says its factor, if only as None (then it is the ratio of the lengths).
  require(reader, "factor", s.type != "yarn" || reader.has("factor"));
  if (s.type != "default") {
    const bool any = s.type == "proportional" || s.type == "ntk";
    s.factor = reader.number("factor", any ? 0 : 1, !any);
  }
  if (s.is_yarn() || s.type == "longrope") {
    s.attention_factor = reader.number("attention_factor", 0);
  }
  if (s.type == "dynamic" || s.type == "longrope" || s.type == "llama3" || s.is_yarn() ||
      s.llama_4_scaling_beta.has_value()) {
    const bool given = reader.has("original_max_position_embeddings");
    s.original_max_position_embeddings = reader.whole("original_max_position_embeddings");
    // Left out it is the model's longest length; a None is a mistake.
    TORCH_CHECK_VALUE(!given || s.original_max_position_embeddings.has_value() ||
                          (s.type != "yarn" && s.type != "llama3"),
                      reader.where(),
                      "original_max_position_embeddings to be a whole number > 0, got None");
  }
  if (s.type == "dynamic") {
    s.alpha = reader.number("alpha", 0);
    require(reader, "factor", s.factor.has_value() || s.alpha.has_value());
    if (s.alpha.has_value()) {
      // HunYuan's released dictionaries carry YaRN's keys beside alpha, which its model never
      // reads.
      for (const char* unread : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
        reader.number(unread, 0, true);
      }
    }
  } else if (s.is_yarn()) {
    read_yarn(reader, s);
  } else if (s.type == "longrope") {
    read_longrope(reader, s);
  } else if (s.type == "llama3") {
    read_llama3(reader, s);
  } else if (s.type == "ntk") {
    s.mixed_b = reader.number("mixed_b", 0);
  }
  require(reader, "factor",
          s.factor.has_value() || (s.type != "linear" && s.type != "llama3" && s.type != "ntk"));
  reader.finish();
  return s;
}

RopeDict RopeScaling::to_dict() const {
  RopeDict dict{{"rope_type", type}};
  const auto put = [&](const char* key, const auto& value) {
    if (value.has_value()) {
      dict[key] = *value;
    }
  };
  const auto put_list = [&](const char* key, const auto& list) {
    if (!list.empty()) {
      dict[key] = std::vector<double>(list.begin(), list.end());
    }
  };
  put("rope_theta", rope_theta);
  put("partial_rotary_factor", partial_rotary_factor);
  put("factor", factor);
  put("original_max_position_embeddings", original_max_position_embeddings);
  put("max_position_embeddings", max_position_embeddings);
  put("attention_factor", attention_factor);
  put("alpha", alpha);
  put("mixed_b", mixed_b);
  put("mscale", mscale);
  put("mscale_all_dim", mscale_all_dim);
  put("attn_factor", attn_factor);
  put("extrapolation_factor", extrapolation_factor);
  put("apply_yarn_scaling", apply_yarn_scaling);
  put("short_mscale", short_mscale);
  put("long_mscale", long_mscale);
  put("low_freq_factor", low_freq_factor);
  put("high_freq_factor", high_freq_factor);
  put("mrope_interleaved", mrope_interleaved);
  put("interleaved", interleaved);
  put("llama_4_scaling_beta", llama_4_scaling_beta);
  put_list("short_factor", short_factor);
  put_list("long_factor", long_factor);
  put_list("mrope_section", mrope_section);
  put_list("xdrope_section", xdrope_section);
  if (is_yarn()) {
    dict.try_emplace("factor");  // None: from the lengths
    dict["beta_fast"] = beta_fast;
    dict["beta_slow"] = beta_slow;
    dict["truncate"] = truncate;
  }
  return dict;
}

void RopeScaling::check(int64_t dim, std::optional<int64_t> max_position_embeddings) const {
  const std::string where = "rope scaling " + type + ": expected ";
  TORCH_CHECK_VALUE(dim % 2 == 0 || (!is_yarn() && type != "longrope"), where,
                    "an even number of rotated channels, got ", dim);
  if (type == "longrope") {
    const auto want = static_cast<size_t>(dim / 2);
    TORCH_CHECK_VALUE(short_factor.size() == want, where, "short_factor of ", want,
                      " numbers (one a frequency), got ", short_factor.size());
    TORCH_CHECK_VALUE(long_factor.size() == want, where, "long_factor of ", want,
                      " numbers (one a frequency), got ", long_factor.size());
  }
  if (type == "dynamic") {
    TORCH_CHECK_VALUE(dim > 2, where, "more than 2 rotated channels, got ", dim);
  }
  const bool needs_length =
      is_yarn() || type == "longrope" || type == "llama3" || depends_on_length();
  TORCH_CHECK_VALUE(!needs_length || original_max_position_embeddings.has_value() ||
                        max_position_embeddings.has_value(),
                    where, "the key original_max_position_embeddings");
}

}  // namespace posenc
