"""What can be said of the CUDA kernels without a GPU: which operators have one."""

import pytest
import torch
from posenc import _build_info

COMPOSITE: set[str] = set()
"""Small work whose ATen calls serve on a GPU as well."""


def with_kernel(key):
    """The library's operators, with overloads, that have a kernel of a backend."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    return {name for name in names if name.startswith("posenc::") and has(name, key)}


def test_every_cpu_kernel_has_a_cuda_kernel():
    if not _build_info.CUDA:
        pytest.skip("posenc was built without its CUDA kernels")
    on_cpu, on_gpu = with_kernel("CPU"), with_kernel("CUDA")
    assert len(on_cpu) > 15
    assert sorted(on_cpu - on_gpu - COMPOSITE) == []
    assert sorted(on_gpu - on_cpu) == []
