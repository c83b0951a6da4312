#pragma once

#include <posenc/core/macros.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace posenc {

struct RopeValue;
/// A rope dictionary, or a whole configuration (config.json), as plain C++ values.
using RopeDict = std::map<std::string, RopeValue>;

/// One value of a dictionary: None, a flag, a number, a word, a list of numbers or of words, or
/// another dictionary.
struct RopeValue : std::variant<std::monostate, bool, int64_t, double, std::string,
                                std::vector<double>, std::vector<std::string>, RopeDict> {
  using variant::variant;
  bool is_none() const { return std::holds_alternative<std::monostate>(*this); }
};

/// As an error shows it: 'word', 4, None, a list of 3 numbers.
POSENC_API std::string to_string(const RopeValue& value);

}  // namespace posenc
