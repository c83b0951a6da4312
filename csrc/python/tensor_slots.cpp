#include "bindings.h"

#include <posenc/rotary/axial_module.h>
#include <posenc/rotary/learned_rotary_module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace posenc::python {
namespace {

/// The places where a C++ module holds its learned tensors, by the names of its state dict.
///
/// A Python nn.Module that owns those tensors puts its current ones here before each call. So the
/// module computes with them whatever replaced them in Python: `.to`, a loaded checkpoint,
/// deepcopy, torch.func.functional_call. torch's own registry of a C++ module cannot be re-pointed,
/// the members that `forward` reads can.
class TensorSlots {
 public:
  explicit TensorSlots(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {
    for (const auto& item :
         module_->named_modules(/*name_prefix=*/std::string(), /*include_self=*/true)) {
      auto& m = *item.value();
      const std::string prefix = item.key().empty() ? "" : item.key() + ".";
      if (auto* linear = m.as<torch::nn::LinearImpl>()) {
        add(prefix + "weight", &linear->weight);
        add(prefix + "bias", &linear->bias);
      } else if (auto* embedding = m.as<torch::nn::EmbeddingImpl>()) {
        add(prefix + "weight", &embedding->weight);
      } else if (auto* mixed = m.as<nn::MixedRotaryEmbeddingImpl>()) {
        add(prefix + "freqs", &mixed->freqs);
      } else if (auto* learned = m.as<nn::LearnedRotaryEmbeddingImpl>()) {
        add(prefix + "alpha", &learned->alpha);
        add(prefix + "freqs", &learned->freqs);
      }
    }
    TORCH_CHECK(slots_.size() == module_->parameters().size() && module_->buffers().empty(),
                "TensorSlots: ", module_->name(), " holds tensors that have no slot");
  }

  const std::vector<std::string>& names() const { return names_; }

  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> result;
    for (const auto* slot : slots_) {
      result.push_back(*slot);
    }
    return result;
  }

  void set(const std::vector<at::Tensor>& tensors) {
    TORCH_CHECK_VALUE(tensors.size() == slots_.size(), "TensorSlots.set: expected ", slots_.size(),
                      " tensors, got ", tensors.size());
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i]->is_same(tensors[i])) {
        *slots_[i] = tensors[i];
      }
    }
  }

  /// Lets go of the tensors until the next `set`.
  void clear() {
    for (auto* slot : slots_) {
      *slot = at::Tensor();
    }
  }

  /// Frees the memory of the tensors that the module was made with, once others are to take their
  /// place.
  void release() {
    torch::NoGradGuard no_grad;
    for (auto& tensor : module_->parameters()) {
      tensor.set_data(at::empty({0}, tensor.options()));
    }
  }

 private:
  void add(std::string name, at::Tensor* slot) {
    if (slot->defined()) {
      names_.push_back(std::move(name));
      slots_.push_back(slot);
    }
  }

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<std::string> names_;
  std::vector<at::Tensor*> slots_;
};

}  // namespace

void bind_tensor_slots(py::module& m) {
  py::class_<TensorSlots>(m, "TensorSlots")
      .def(py::init<std::shared_ptr<torch::nn::Module>>(), py::arg("module"))
      .def_property_readonly("names", &TensorSlots::names)
      .def("tensors", &TensorSlots::tensors)
      .def("set", &TensorSlots::set, py::arg("tensors"))
      .def("clear", &TensorSlots::clear)
      .def("release", &TensorSlots::release);
}

}  // namespace posenc::python
