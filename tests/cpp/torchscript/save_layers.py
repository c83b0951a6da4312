"""Saves every layer sample as TorchScript, with inputs, outputs and gradients, for the C++ tests.

    python tests/cpp/torchscript/save_layers.py FOLDER

One archive a sample: a module with the scripted layer as `layer` and, as buffers, `input_NAME`
for each argument of its forward, `expected`, and `grad_NAME` (dots as `__`) of the parameters and
differentiable inputs under the loss sum(output · weights).
"""

import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS.parent / "python"), str(TESTS), str(TESTS / "python")]
warnings.filterwarnings("ignore", category=FutureWarning)  # TorchScript itself is deprecated

import torch  # noqa: E402
from samples.layers import LAYERS  # noqa: E402


class Case(torch.nn.Module):
    """A layer beside what goes in and must come out."""

    def __init__(self, layer, buffers):
        super().__init__()
        self.layer = layer
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self):
        return self.expected


def case_of(sample):
    module = sample.build()
    tensors = sample.tensors(length=7, requires_grad=True)
    out = module(**tensors)
    keep = tensors.get("key_padding_mask")
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    if keep is not None:
        weights = weights * keep[..., None]  # what padding computes is nobody's business
    leaves = {n: tensors[n] for n in sample.differentiable if n in tensors}
    leaves.update(module.named_parameters())
    grads = torch.autograd.grad((out * weights).sum(), list(leaves.values()))
    buffers = {f"input_{name}": value.detach() for name, value in tensors.items()}
    buffers["expected"], buffers["weights"] = out.detach(), weights
    for name, grad in zip(leaves, grads, strict=True):
        buffers["grad_" + name.replace(".", "__")] = grad
    return torch.jit.script(Case(module, buffers))


def main(folder):
    if sys.version_info >= (3, 14):
        print("torch drops TorchScript on Python 3.14: nothing is saved")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.pt"):
        old.unlink()
    for sample in LAYERS:
        torch.jit.save(case_of(sample), folder / f"{sample}.pt")
    print(f"{len(LAYERS)} layers saved to {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
