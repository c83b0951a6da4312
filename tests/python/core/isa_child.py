"""The outputs of every operator sample under the instruction set of this process, saved to a file.

Run by test_runtime.py with ATEN_CPU_CAPABILITY set; prints the capability that torch took.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import torch  # noqa: E402
from samples.compare import FLOATS  # noqa: E402
from samples.operators import SAMPLES  # noqa: E402


def outputs():
    """{(sample, dtype): outputs and gradients}"""
    out = {}
    for sample in SAMPLES:
        for dtype in FLOATS:
            tensors = sample.tensors(dtype, requires_grad=True)
            values = sample.run(tensors, dtype)
            result = [v.detach() for v in values]
            if sample.differentiable:
                leaves = [tensors[name] for name in sample.differentiable]
                loss = sum(torch.where(torch.isfinite(v), v, 0).double().sum() for v in values)
                result += torch.autograd.grad(loss, leaves)
            out[str(sample), str(dtype)] = result
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.save(outputs(), sys.argv[1])
    print(torch.backends.cpu.get_cpu_capability())
