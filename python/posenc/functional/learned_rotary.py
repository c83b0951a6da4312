"""Frequencies of RoPE from a trained tensor."""

import torch
from torch import Tensor


def learned_inv_freq(weight: Tensor, inv_freq: list[float], parametrisation: str = "log") -> Tensor:
    """Frequencies of RoPE from a trained tensor, for `rotary_embedding`.

    Args:
        weight: (n), or (H, n): one set a head.
        inv_freq: the n frequencies f that training starts from, radians per position.
        parametrisation: ``"log"``: ``f * exp(weight)`` (LeRoPE). f stays exact; rounding weight by
            a relative u turns the angle at position p by at most ``p f |weight| u``, u being 2^-24
            for float32 and 2^-8 for bfloat16. ``"direct"``: the weight is the frequency; float32
            or float64, ``TypeError`` otherwise.

    Returns:
        float64 (n), or (1, H, n), differentiable in weight.

    Source: LeRoPE as in Mistral Large 4 (transformers).

    >>> alpha = torch.zeros(2, requires_grad=True)
    >>> inv_freq = P.learned_inv_freq(alpha, P.rope_inv_freq(4))
    >>> P.rotary_embedding(torch.randn(1, 10, 8, 4), inv_freq).sum().backward()
    >>> alpha.grad.shape
    torch.Size([2])
    """
    return torch.ops.posenc.learned_inv_freq(weight, inv_freq, parametrisation)
