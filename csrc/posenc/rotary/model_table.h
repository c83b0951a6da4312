#pragma once

#include <optional>
#include <string>
#include <vector>

namespace posenc::rotary {

/// Which channels make a pair, and where its two results go.
enum class Layout { halves, pairs, pairs_to_halves };

/// What a model's code does and its configuration does not say.
struct ModelRope {
  Layout layout = Layout::halves;
  /// The name of rope_axes' arrangement for its sections.
  std::string arrangement = "contiguous";
  /// Sections, where the dictionary may leave them out; `n_axes` equal ones instead for NeoMME.
  std::vector<int64_t> sections;
  int64_t n_axes = 1;
  /// θ, where neither the dictionary nor the configuration has one.
  double default_theta = 10000.0;
  /// Width of a head, where the configuration leaves it out and it is not hidden_size / heads.
  std::optional<int64_t> default_head;
  /// The same of full_attention layers, where they have heads of their own (Gemma 4).
  std::optional<int64_t> default_global_head;
  /// Rotated share of the head, where neither says one.
  std::optional<double> default_share;
  /// A flat dictionary is meant for this type of layer alone; the others are plain. Empty: for all.
  std::string scaled_type;
  /// θ of the layers of that type, and of the plain ones, where it is a number of its own.
  std::optional<double> scaled_theta, plain_theta;
  /// The configuration has no default that could be left out: it has to hold a rope dictionary, or
  /// one that is nested by type of layer.
  bool needs_dictionary = false, needs_nested = false;
  /// The rotated channels are the last ones of the head.
  bool trailing = false;
  /// It turns by the negative angle.
  bool inverse = false;
  /// A is 1, unless the dictionary says another.
  bool unit_attention_factor = false;
  /// Why the model's configuration describes no RoPE of one series of positions; empty: it does.
  std::string not_served;
};

/// By a configuration's `model_type`; a model that is not in the table is as Llama: halves, one
/// axis.
ModelRope model_rope(const std::string& model_type);

}  // namespace posenc::rotary
