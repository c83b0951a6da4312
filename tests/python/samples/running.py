"""Ways to run a sample of the operators: its gradients, its inputs in other memory, on a device."""

import torch

from samples.compare import tensors_of


def gradients(sample, tensors, dtype=None):
    """Gradients of a weighted sum of all outputs; the weights are the same for every layout."""
    inputs = [tensors[name] for name in sample.differentiable]
    generator = torch.Generator().manual_seed(5)
    loss = torch.zeros((), dtype=torch.float64, device=inputs[0].device)
    for out in run_on(sample, tensors, dtype):
        weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
        loss = loss + (torch.where(torch.isfinite(out), out, 0) * weight).sum().double()
    return torch.autograd.grad(loss, inputs)


def run_on(sample, tensors, dtype=None, device=None):
    """`sample.run`; `device` is handed on where no tensor says where the output belongs."""
    if tensors or device is None:
        return sample.run(tensors, dtype)
    return tensors_of(sample.op(**sample.options, dtype=dtype, device=device))


def moved(tensors, device):
    """The tensors on a device, leaves where they are leaves."""
    return {
        name: t.detach().to(device).requires_grad_(t.requires_grad) for name, t in tensors.items()
    }


def reversed_memory(t):
    """The same values, stored with the axes in reverse order: the first axis is the dense one."""
    axes = list(range(t.dim()))[::-1]
    return t.permute(axes).contiguous().permute(axes) if t.dim() > 1 else t


def every_second(t):
    """The same values, as every second element of a row twice as long."""
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1]), 7, dtype=t.dtype, device=t.device)
    wide[..., ::2] = t
    return wide[..., ::2]


def inside_a_row(t):
    """The same values, as a slice of wider rows, as q in a fused qkv: unaligned and with gaps."""
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 5), 7, dtype=t.dtype, device=t.device)
    wide[..., 3:-2] = t
    return wide[..., 3:-2]


LAYOUTS = (reversed_memory, every_second, inside_a_row)
