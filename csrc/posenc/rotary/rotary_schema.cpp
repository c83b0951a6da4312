#include <posenc/rotary/rotary_schema.h>

namespace posenc::rotary {

void save_args(torch::autograd::AutogradContext* ctx, const RotaryArgs& args) {
  ctx->saved_data["offset"] = args.offset;
  ctx->saved_data["seq_dim"] = args.seq_dim;
  ctx->saved_data["interleaved"] = args.interleaved;
  ctx->saved_data["interleaved_out"] = args.layout_out();
  ctx->saved_data["rotary_start"] = args.rotary_start;
  ctx->saved_data["attention_factor"] = args.attention_factor;
  ctx->saved_data["axes"] = args.axes.has_value() ? c10::IValue(*args.axes) : c10::IValue();
  ctx->saved_data["inverse"] = args.inverse;
}

RotaryArgs load_args(torch::autograd::AutogradContext* ctx, const at::Tensor& position_ids) {
  auto& data = ctx->saved_data;
  RotaryArgs args;
  args.position_ids = core::optional_of(position_ids);
  args.offset = data["offset"].toSymInt();
  args.seq_dim = data["seq_dim"].toInt();
  args.interleaved = data["interleaved"].toBool();
  args.interleaved_out = data["interleaved_out"].toBool();
  args.rotary_start = data["rotary_start"].toInt();
  args.attention_factor = data["attention_factor"].toDouble();
  if (!data["axes"].isNone()) {
    args.axes = data["axes"].toIntVector();
  }
  args.inverse = data["inverse"].toBool();
  return args;
}

}  // namespace posenc::rotary
