"""How near is near: bounds that follow from the arithmetic which the design promises."""

import sys

import numpy as np
import pytest
import torch

needs_torchscript = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="torch drops TorchScript on Python 3.14"
)

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def unit(dtype):
    """Largest relative error of one rounding to `dtype`."""
    return torch.finfo(dtype).eps / 2


def compute_unit(dtype):
    """The same for the arithmetic inside: fp64 for fp64, fp32 for everything else."""
    return unit(torch.float64 if dtype == torch.float64 else torch.float32)


def array(value):
    """A tensor as numpy array, floats widened to fp64; all else unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return (value.double() if value.is_floating_point() else value).numpy()


def tensors_of(out):
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def assert_near(actual, expected, *, steps, magnitude=None, skipped=0.0, what=""):
    """|actual - expected| <= one rounding of the output + `steps` roundings inside at `magnitude`.

    `skipped` is the share of softmax mass that a kernel may leave out (section 6 of the design).
    Infinities must stand at equal places with equal sign; NaN is never right.
    """
    dtype, a = actual.dtype, array(actual)
    e = array(expected) if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    if a.size == 0:
        return
    assert not np.isnan(a).any(), f"{what}: NaN in the output"
    infinite = np.isinf(e)
    assert (a[infinite] == e[infinite]).all(), f"{what}: infinities differ"
    a, e = a[~infinite], e[~infinite]
    if a.size == 0:
        return
    if magnitude is None:
        magnitude = max(np.abs(e).max(), 1e-30)
    inside = (steps * compute_unit(dtype) + skipped) * magnitude
    half = unit(dtype) * np.abs(e) if dtype not in (torch.float32, torch.float64) else 0.0
    bound = half * (1 + 1e-3) + inside + torch.finfo(dtype).smallest_normal * unit(dtype)
    worst = (np.abs(a - e) - bound).max()
    off = np.abs(a - e).max()
    assert worst <= 0, f"{what}: off by {off:.3g}, {worst:.3g} more than allowed in {dtype}"


def assert_same(actual, expected, what=""):
    """Bit for bit, and of the same dtype."""
    for a, e in zip(tensors_of(actual), tensors_of(expected), strict=True):
        assert a.dtype == e.dtype, f"{what}: {a.dtype} and {e.dtype}"
        assert a.shape == e.shape, f"{what}: {tuple(a.shape)} and {tuple(e.shape)}"
        if not torch.equal(a, e):
            gap = (a.double() - e.double()).abs().max().item()
            raise AssertionError(f"{what}: not bitwise equal, off by {gap:.3g}")
