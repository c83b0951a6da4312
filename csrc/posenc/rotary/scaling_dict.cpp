// A model's rope dictionary ↔ RopeScaling: strict, so that no key is read by nobody.

#include <c10/util/Exception.h>
#include <posenc/rotary/scaling.h>

#include <cmath>
#include <set>
#include <sstream>

namespace posenc {
namespace {

std::string text_of(const RopeValue& value) {
  std::ostringstream out;
  if (const auto* b = std::get_if<bool>(&value)) {
    out << (*b ? "True" : "False");
  } else if (const auto* i = std::get_if<int64_t>(&value)) {
    out << *i;
  } else if (const auto* d = std::get_if<double>(&value)) {
    out << *d;
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    out << "'" << *s << "'";
  } else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    out << "a list of " << list->size() << " numbers";
  } else {
    out << "None";
  }
  return out.str();
}

/// Takes the keys out of a dictionary one by one; what is left over at the end is unknown.
class Reader {
 public:
  explicit Reader(const RopeDict& dict) : left_(dict) {}

  std::optional<RopeValue> take(const std::string& key) {
    const auto it = left_.find(key);
    if (it == left_.end()) {
      return std::nullopt;
    }
    RopeValue value = it->second;
    left_.erase(it);
    if (std::holds_alternative<std::monostate>(value)) {
      return std::nullopt;  // None is as if it were not there
    }
    return value;
  }

  std::optional<double> number(const std::string& key, double least, bool least_included) {
    const auto value = take(key);
    if (!value.has_value()) {
      return std::nullopt;
    }
    double number = std::nan("");
    if (const auto* i = std::get_if<int64_t>(&*value)) {
      number = static_cast<double>(*i);
    } else if (const auto* d = std::get_if<double>(&*value)) {
      number = *d;
    }
    const bool good = std::isfinite(number) && (least_included ? number >= least : number > least);
    TORCH_CHECK_VALUE(good, where_, key, " to be a number ", least_included ? ">= " : "> ", least,
                      ", got ", text_of(*value));
    return number;
  }

  std::optional<int64_t> length(const std::string& key) {
    const auto value = number(key, 0, false);
    if (!value.has_value()) {
      return std::nullopt;
    }
    TORCH_CHECK_VALUE(*value == std::floor(*value), where_, key, " to be a whole number, got ",
                      *value);
    return static_cast<int64_t>(*value);
  }

  std::vector<double> list(const std::string& key) {
    const auto value = take(key);
    TORCH_CHECK_VALUE(value.has_value(), where_, "the key ", key);
    const auto* numbers = std::get_if<std::vector<double>>(&*value);
    TORCH_CHECK_VALUE(numbers != nullptr, where_, key, " to be a list of numbers, got ",
                      text_of(*value));
    for (const double number : *numbers) {
      TORCH_CHECK_VALUE(std::isfinite(number) && number > 0, where_, key,
                        " to hold finite numbers > 0, got ", number);
    }
    return *numbers;
  }

  std::optional<bool> flag(const std::string& key) {
    const auto value = take(key);
    if (!value.has_value()) {
      return std::nullopt;
    }
    const auto* b = std::get_if<bool>(&*value);
    TORCH_CHECK_VALUE(b != nullptr, where_, key, " to be True or False, got ", text_of(*value));
    return *b;
  }

  std::optional<std::string> word(const std::string& key) {
    const auto value = take(key);
    if (!value.has_value()) {
      return std::nullopt;
    }
    const auto* s = std::get_if<std::string>(&*value);
    TORCH_CHECK_VALUE(s != nullptr, where_, key, " to be a string, got ", text_of(*value));
    return *s;
  }

  void name_type(const std::string& type) { where_ = "rope scaling " + type + ": expected "; }
  const std::string& where() const { return where_; }

  void finish() const {
    if (!left_.empty()) {
      TORCH_CHECK_VALUE(false, where_, "no key '", left_.begin()->first,
                        "', got it with the value ", text_of(left_.begin()->second));
    }
  }

 private:
  RopeDict left_;
  std::string where_ = "rope scaling: expected ";
};

std::string modern_name(const std::string& type) {
  if (type == "su") {
    return "longrope";  // Phi-3's first name for it
  }
  return type == "mrope" ? "default" : type;
}

std::string read_type(Reader& reader) {
  static const std::set<std::string> known = {"default",  "linear", "dynamic",     "yarn",
                                              "longrope", "llama3", "proportional"};
  const auto current = reader.word("rope_type"), legacy = reader.word("type");
  std::string type = modern_name(current.value_or(legacy.value_or("default")));
  TORCH_CHECK_VALUE(!current || !legacy || modern_name(*current) == modern_name(*legacy),
                    "rope scaling: expected one type, got rope_type '", *current, "' and type '",
                    *legacy, "'");
  if (known.count(type) == 0) {
    std::string names;
    for (const auto& name : known) {
      names += (names.empty() ? "" : ", ") + name;
    }
    TORCH_CHECK_VALUE(false, "rope scaling: expected rope_type to be one of ", names, ", got '",
                      type, "'");
  }
  return type;
}

}  // namespace

RopeScaling RopeScaling::from_dict(const RopeDict& dict) {
  Reader reader(dict);
  RopeScaling s;
  s.type = read_type(reader);
  reader.name_type(s.type);
  const auto required = [&](const char* key, bool there) {
    TORCH_CHECK_VALUE(there, reader.where(), "the key ", key);
  };
  s.rope_theta = reader.number("rope_theta", 0, false);
  s.partial_rotary_factor = reader.number("partial_rotary_factor", 0, false);
  if (s.type == "linear" || s.type == "dynamic" || s.type == "yarn" || s.type == "longrope" ||
      s.type == "llama3" || s.type == "proportional") {
    s.factor = reader.number("factor", s.type == "proportional" ? 0 : 1, s.type != "proportional");
  }
  if (s.type == "dynamic") {
    s.alpha = reader.number("alpha", 0, false);
    required("factor", s.factor.has_value() || s.alpha.has_value());
  }
  if (s.type == "linear" || s.type == "llama3") {
    required("factor", s.factor.has_value());
  }
  if (s.type == "dynamic" || s.type == "yarn" || s.type == "longrope" || s.type == "llama3") {
    s.original_max_position_embeddings = reader.length("original_max_position_embeddings");
  }
  if (s.type == "yarn" || s.type == "longrope") {
    s.attention_factor = reader.number("attention_factor", 0, false);
  }
  if (s.type == "yarn") {
    s.beta_fast = reader.number("beta_fast", 0, false).value_or(32);
    s.beta_slow = reader.number("beta_slow", 0, false).value_or(1);
    TORCH_CHECK_VALUE(s.beta_fast > s.beta_slow, reader.where(),
                      "beta_fast > beta_slow (many turns are high frequencies), got beta_fast ",
                      s.beta_fast, " and beta_slow ", s.beta_slow);
    s.mscale = reader.number("mscale", 0, true);
    s.mscale_all_dim = reader.number("mscale_all_dim", 0, true);
    // transformers reads a None that is there as False, and only a missing key as True.
    const auto truncate = dict.find("truncate");
    s.truncate =
        truncate == dict.end() || !std::holds_alternative<std::monostate>(truncate->second);
    s.truncate = reader.flag("truncate").value_or(s.truncate);
  }
  if (s.type == "longrope") {
    s.short_factor = reader.list("short_factor");
    s.long_factor = reader.list("long_factor");
  }
  if (s.type == "llama3") {
    s.low_freq_factor = reader.number("low_freq_factor", 0, false);
    s.high_freq_factor = reader.number("high_freq_factor", 0, false);
    required("low_freq_factor", s.low_freq_factor.has_value());
    required("high_freq_factor", s.high_freq_factor.has_value());
    TORCH_CHECK_VALUE(*s.low_freq_factor < *s.high_freq_factor, reader.where(),
                      "low_freq_factor < high_freq_factor, got ", *s.low_freq_factor, " and ",
                      *s.high_freq_factor);
  }
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
  put("rope_theta", rope_theta);
  put("partial_rotary_factor", partial_rotary_factor);
  put("factor", factor);
  put("original_max_position_embeddings", original_max_position_embeddings);
  put("attention_factor", attention_factor);
  put("alpha", alpha);
  put("mscale", mscale);
  put("mscale_all_dim", mscale_all_dim);
  put("low_freq_factor", low_freq_factor);
  put("high_freq_factor", high_freq_factor);
  if (type == "yarn") {
    dict["beta_fast"] = beta_fast;
    dict["beta_slow"] = beta_slow;
    dict["truncate"] = truncate;
  }
  if (type == "longrope") {
    dict["short_factor"] = short_factor;
    dict["long_factor"] = long_factor;
  }
  return dict;
}

void RopeScaling::check(int64_t dim, std::optional<int64_t> max_position_embeddings) const {
  const std::string where = "rope scaling " + type + ": expected ";
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
      type == "yarn" || type == "longrope" || type == "llama3" || depends_on_length();
  TORCH_CHECK_VALUE(!needs_length || original_max_position_embeddings.has_value() ||
                        max_position_embeddings.has_value(),
                    where, "the key original_max_position_embeddings");
}

}  // namespace posenc
