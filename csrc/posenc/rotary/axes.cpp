#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <posenc/rotary/axes.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace posenc {
namespace {

using Counts = std::vector<int64_t>;

constexpr int64_t kTime = 0, kHeight = 1, kWidth = 2;

std::string text_of(const Counts& sections) {
  std::string text = "[";
  for (size_t i = 0; i < sections.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(sections[i]);
  }
  return text + "]";
}

void check_three(const std::string& arrangement, const Counts& sections, const char* order) {
  TORCH_CHECK_VALUE(sections.size() == 3, "rope_axes: expected three sections ", order, " for the ",
                    arrangement, " arrangement, got ", text_of(sections));
}

Counts contiguous(const Counts& sections) {
  Counts axes;
  for (size_t axis = 0; axis < sections.size(); ++axis) {
    axes.insert(axes.end(), sections[axis], static_cast<int64_t>(axis));
  }
  return axes;
}

/// Height and width take every third frequency up to three times their section, time the rest.
Counts interleaved(const Counts& sections) {
  check_three("interleaved", sections, "(t, h, w)");
  Counts axes(std::accumulate(sections.begin(), sections.end(), int64_t{0}), kTime);
  for (const int64_t axis : {kHeight, kWidth}) {
    const int64_t end = std::min<int64_t>(3 * sections[axis], axes.size());
    for (int64_t i = axis; i < end; i += 3) {
      axes[i] = axis;
    }
  }
  return axes;
}

/// Round after round over the axes; the last round may end early.
Counts alternating(const Counts& sections) {
  const auto n_axes = static_cast<int64_t>(sections.size());
  Counts axes(std::accumulate(sections.begin(), sections.end(), int64_t{0}));
  for (size_t i = 0; i < axes.size(); ++i) {
    axes[i] = static_cast<int64_t>(i) % n_axes;
  }
  for (int64_t axis = 0; axis < n_axes; ++axis) {
    TORCH_CHECK_VALUE(std::count(axes.begin(), axes.end(), axis) == sections[axis],
                      "rope_axes: expected sections that axes in turn can have (equal, or the "
                      "first ones one larger) for the alternating arrangement, got ",
                      text_of(sections));
  }
  return axes;
}

/// Height and width in turn on the high frequencies, time on the low ones.
Counts alternating_then_time(const std::string& arrangement, const Counts& sections, int64_t n_h,
                             int64_t n_w, int64_t n_t) {
  TORCH_CHECK_VALUE(n_h == n_w, "rope_axes: expected equal sections for height and width in the ",
                    arrangement, " arrangement, got ", text_of(sections));
  Counts axes(n_h + n_w + n_t, kTime);
  for (int64_t i = 0; i < n_h + n_w; ++i) {
    axes[i] = i % 2 == 0 ? kHeight : kWidth;
  }
  return axes;
}

}  // namespace

std::vector<int64_t> rope_axes(const std::string& arrangement, const std::vector<int64_t>& sections,
                               std::optional<int64_t> n) {
  int64_t sum = 0;
  for (const int64_t count : sections) {
    // The bound keeps a number that is no section from becoming an allocation of its size.
    TORCH_CHECK_VALUE(count >= 0 && count <= (1 << 20),
                      "rope_axes: expected sections of 0 or more frequencies, got ",
                      text_of(sections));
    sum += count;
  }
  TORCH_CHECK_VALUE(!sections.empty() && sections.size() <= 16 && sum > 0,
                    "rope_axes: expected sections for 1 to 16 axes with at least one frequency, "
                    "got ",
                    text_of(sections));
  TORCH_CHECK_VALUE(!n.has_value() || sum == *n, "rope_axes: expected sections whose sum is the ",
                    n.value_or(0), " frequencies, got ", text_of(sections), ", whose sum is ", sum);
  if (arrangement == "contiguous") {
    return contiguous(sections);
  }
  if (arrangement == "interleaved") {
    return interleaved(sections);
  }
  if (arrangement == "alternating") {
    return alternating(sections);
  }
  if (arrangement == "alternating_hwt") {
    check_three(arrangement, sections, "(h, w, t)");
    return alternating_then_time(arrangement, sections, sections[0], sections[1], sections[2]);
  }
  if (arrangement == "alternating_thw") {
    check_three(arrangement, sections, "(t, h, w)");
    return alternating_then_time(arrangement, sections, sections[1], sections[2], sections[0]);
  }
  TORCH_CHECK_VALUE(false,
                    "rope_axes: expected arrangement to be one of contiguous, interleaved, "
                    "alternating, alternating_hwt, alternating_thw, got '",
                    arrangement, "'");
}

std::vector<int64_t> mrope_axes(const std::vector<int64_t>& sections, bool interleaved,
                                std::optional<int64_t> n) {
  return rope_axes(interleaved ? "interleaved" : "contiguous", sections, n);
}

TORCH_LIBRARY_FRAGMENT(posenc, m) {
  // An operator, so that scripted code can call it; it holds no tensor.
  m.def("rope_axes(str arrangement, int[] sections, int? n=None) -> int[]",
        [](std::string_view arrangement, c10::IntArrayRef sections, std::optional<int64_t> n) {
          return rope_axes(std::string(arrangement), sections.vec(), n);
        },
        {at::Tag::pt2_compliant_tag});
}

}  // namespace posenc
