#pragma once

#include <posenc/rotary/rope_dict.h>
#include <pybind11/stl.h>

namespace pybind11::detail {

/// A value of a dictionary ↔ None, bool, int, float, str, list of numbers or words, dict.
template <>
struct type_caster<posenc::RopeValue> {
  PYBIND11_TYPE_CASTER(posenc::RopeValue, const_name("Any"));

  bool load(handle source, bool convert) {
    make_caster<posenc::RopeValue::variant> caster;
    if (!caster.load(source, convert)) {
      return false;
    }
    static_cast<posenc::RopeValue::variant&>(value) =
        cast_op<posenc::RopeValue::variant&&>(std::move(caster));
    return true;
  }

  static handle cast(const posenc::RopeValue& source, return_value_policy policy, handle parent) {
    return make_caster<posenc::RopeValue::variant>::cast(
        static_cast<const posenc::RopeValue::variant&>(source), policy, parent);
  }
};

}  // namespace pybind11::detail
