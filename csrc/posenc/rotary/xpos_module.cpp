#include <posenc/rotary/rotary_module.h>
#include <posenc/rotary/xpos_module.h>

namespace posenc::nn {
namespace {

constexpr const char* kName = "XPosRotaryEmbedding";

/// The rotation below the scale.
RotaryPositionalEmbeddingOptions rope_of(const XPosRotaryEmbeddingOptions& options) {
  return RotaryPositionalEmbeddingOptions(options.head_dim())
      .base(options.base())
      .rotary_dim(options.rotary_dim())
      .rotary_start(options.rotary_start());
}

}  // namespace

void XPosRotaryEmbeddingOptions::check() const {
  rope_of(*this).check(kName);
  rotary::check_xpos(kName, scale_base_, centre_, gamma_);
}

int64_t XPosRotaryEmbeddingOptions::width() const { return rope_of(*this).width(); }

std::vector<double> XPosRotaryEmbeddingOptions::inv_freq() const {
  return rope_of(*this).frequencies().inv_freq;
}

XPosRotaryEmbeddingImpl::XPosRotaryEmbeddingImpl(XPosRotaryEmbeddingOptions options_)
    : options(std::move(options_)) {
  reset();
}

void XPosRotaryEmbeddingImpl::reset() {
  options.check();
  inv_freq = options.inv_freq();
}

void XPosRotaryEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "posenc::nn::XPosRotaryEmbedding(head_dim=" << options.head_dim()
         << ", base=" << options.base() << ", scale_base=" << options.scale_base()
         << ", centre=" << options.centre() << ", gamma=" << options.gamma()
         << ", interleaved=" << std::boolalpha << options.interleaved()
         << ", rotary_dim=" << options.width() << ", rotary_start=" << options.rotary_start()
         << ")";
}

at::Tensor XPosRotaryEmbeddingImpl::forward(const at::Tensor& x,
                                            const std::optional<at::Tensor>& position_ids,
                                            int64_t offset, bool is_key) {
  TORCH_CHECK_VALUE(x.dim() > 0 && x.size(-1) == options.head_dim(), kName,
                    ": expected the last axis of x to be head_dim = ", options.head_dim(),
                    ", got shape ", x.sizes());
  return xpos_embedding(x, inv_freq, position_ids, offset, options.seq_dim(), options.interleaved(),
                        options.rotary_start(), options.scale_base(), options.centre(),
                        options.gamma(), is_key);
}

std::pair<at::Tensor, at::Tensor> XPosRotaryEmbeddingImpl::rotate(
    const at::Tensor& q, const at::Tensor& k, const std::optional<at::Tensor>& position_ids,
    int64_t offset) {
  return {forward(q, position_ids, offset, /*is_key=*/false),
          forward(k, position_ids, offset, /*is_key=*/true)};
}

}  // namespace posenc::nn
