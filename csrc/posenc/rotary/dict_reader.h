#pragma once

#include <posenc/rotary/rope_dict.h>

#include <optional>

namespace posenc::rotary {

/// Takes the keys out of a dictionary one by one and checks their values; what is left over at the
/// end is unknown, so no key is read by nobody. None counts as not given. Every error is a
/// ValueError with key and value.
class DictReader {
 public:
  /// \param where begins every error, as "rope scaling: expected ".
  DictReader(RopeDict dict, std::string where);

  std::optional<RopeValue> take(const std::string& key);
  /// A finite number above `least`, or equal to it where that is included.
  std::optional<double> number(const std::string& key, double least, bool least_included = false);
  /// A whole number above 0, or from 0 on where that is included.
  std::optional<int64_t> whole(const std::string& key, bool zero_included = false);
  std::optional<bool> flag(const std::string& key);
  std::optional<std::string> word(const std::string& key);
  std::optional<RopeDict> dict(const std::string& key);
  /// Finite numbers above 0.
  std::optional<std::vector<double>> numbers(const std::string& key);
  /// Whole numbers from 0 on.
  std::optional<std::vector<int64_t>> whole_numbers(const std::string& key);

  bool has(const std::string& key) const { return left_.count(key) != 0; }
  void rename(std::string where) { where_ = std::move(where); }
  const std::string& where() const { return where_; }
  /// Refuses what was not taken.
  void finish() const;

 private:
  RopeDict left_;
  std::string where_;
};

}  // namespace posenc::rotary
