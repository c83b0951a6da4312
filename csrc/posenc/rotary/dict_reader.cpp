#include <c10/util/Exception.h>
#include <posenc/rotary/dict_reader.h>

#include <cmath>
#include <sstream>

namespace posenc {
namespace {

struct Printer {
  std::ostream& out;
  void operator()(std::monostate) const { out << "None"; }
  void operator()(bool value) const { out << (value ? "True" : "False"); }
  void operator()(int64_t value) const { out << value; }
  void operator()(double value) const { out << value; }
  void operator()(const std::string& value) const { out << "'" << value << "'"; }
  void operator()(const std::vector<double>& value) const {
    if (value.size() > 4) {
      out << "a list of " << value.size() << " numbers";
      return;
    }
    out << "[";
    for (size_t i = 0; i < value.size(); ++i) {
      out << (i == 0 ? "" : ", ") << value[i];
    }
    out << "]";
  }
  void operator()(const std::vector<std::string>& value) const {
    out << "a list of " << value.size() << " words";
  }
  void operator()(const RopeDict& value) const {
    out << "a dictionary with the keys";
    for (const auto& [key, unused] : value) {
      out << " " << key;
    }
  }
};

}  // namespace

std::string to_string(const RopeValue& value) {
  std::ostringstream out;
  std::visit(Printer{out}, static_cast<const RopeValue::variant&>(value));
  return out.str();
}

namespace rotary {

DictReader::DictReader(RopeDict dict, std::string where)
    : left_(std::move(dict)), where_(std::move(where)) {}

std::optional<RopeValue> DictReader::take(const std::string& key) {
  const auto it = left_.find(key);
  if (it == left_.end()) {
    return std::nullopt;
  }
  RopeValue value = std::move(it->second);
  left_.erase(it);
  return value.is_none() ? std::nullopt : std::optional<RopeValue>(std::move(value));
}

std::optional<double> DictReader::number(const std::string& key, double least,
                                         bool least_included) {
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
  TORCH_CHECK_VALUE(good, where_, key, " to be a finite number ", least_included ? ">= " : "> ",
                    least, ", got ", to_string(*value));
  return number;
}

std::optional<int64_t> DictReader::whole(const std::string& key, bool zero_included) {
  const auto value = number(key, 0, zero_included);
  if (!value.has_value()) {
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(*value == std::floor(*value) && *value < 9e15, where_, key,
                    " to be a whole number, got ", *value);
  return static_cast<int64_t>(*value);
}

std::optional<bool> DictReader::flag(const std::string& key) {
  const auto value = take(key);
  if (!value.has_value()) {
    return std::nullopt;
  }
  const auto* b = std::get_if<bool>(&*value);
  TORCH_CHECK_VALUE(b != nullptr, where_, key, " to be True or False, got ", to_string(*value));
  return *b;
}

std::optional<std::string> DictReader::word(const std::string& key) {
  const auto value = take(key);
  if (!value.has_value()) {
    return std::nullopt;
  }
  const auto* s = std::get_if<std::string>(&*value);
  TORCH_CHECK_VALUE(s != nullptr, where_, key, " to be a string, got ", to_string(*value));
  return *s;
}

std::optional<RopeDict> DictReader::dict(const std::string& key) {
  const auto value = take(key);
  if (!value.has_value()) {
    return std::nullopt;
  }
  const auto* d = std::get_if<RopeDict>(&*value);
  TORCH_CHECK_VALUE(d != nullptr, where_, key, " to be a dictionary, got ", to_string(*value));
  return *d;
}

std::optional<std::vector<double>> DictReader::numbers(const std::string& key) {
  const auto value = take(key);
  if (!value.has_value()) {
    return std::nullopt;
  }
  const auto* numbers = std::get_if<std::vector<double>>(&*value);
  TORCH_CHECK_VALUE(numbers != nullptr, where_, key, " to be a list of numbers, got ",
                    to_string(*value));
  for (const double number : *numbers) {
    TORCH_CHECK_VALUE(std::isfinite(number) && number > 0, where_, key,
                      " to hold finite numbers > 0, got ", number);
  }
  return *numbers;
}

std::optional<std::vector<int64_t>> DictReader::whole_numbers(const std::string& key) {
  const auto value = take(key);
  if (!value.has_value()) {
    return std::nullopt;
  }
  const auto* numbers = std::get_if<std::vector<double>>(&*value);
  TORCH_CHECK_VALUE(numbers != nullptr, where_, key, " to be a list of whole numbers, got ",
                    to_string(*value));
  std::vector<int64_t> result;
  for (const double number : *numbers) {
    TORCH_CHECK_VALUE(number >= 0 && number < 1e9 && number == std::floor(number), where_, key,
                      " to hold whole numbers >= 0, got ", number);
    result.push_back(static_cast<int64_t>(number));
  }
  return result;
}

void DictReader::finish() const {
  if (!left_.empty()) {
    TORCH_CHECK_VALUE(false, where_, "no key '", left_.begin()->first, "', got it with the value ",
                      to_string(left_.begin()->second));
  }
}

}  // namespace rotary
}  // namespace posenc
