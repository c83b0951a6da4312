// The Python module _C: options, modules and helpers of libposenc, bound one to one. Loading it
// registers torch.ops.posenc.
#include "bindings.h"

namespace {

/// The library's errors as the Python exceptions that they stand for; without this, pybind11 knows
/// RuntimeError alone.
void translate(std::exception_ptr error) {
  const auto raise = [](PyObject* type, const c10::Error& e) {
    PyErr_SetString(type, e.what_without_backtrace());
  };
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const c10::IndexError& e) {
    raise(PyExc_IndexError, e);
  } catch (const c10::ValueError& e) {
    raise(PyExc_ValueError, e);
  } catch (const c10::TypeError& e) {
    raise(PyExc_TypeError, e);
  } catch (const c10::NotImplementedError& e) {
    raise(PyExc_NotImplementedError, e);
  } catch (const c10::Error& e) {
    raise(PyExc_RuntimeError, e);
  }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "posenc's C++ library: options, modules and helpers";
  pybind11::register_local_exception_translator(&translate);
  posenc::python::bind_tensor_slots(m);
  posenc::python::bind_rotary(m);
  posenc::python::bind_axial(m);
  posenc::python::bind_rotary_relatives(m);
  posenc::python::bind_absolute(m);
  posenc::python::bind_attention(m);
}
