"""Frequencies and slopes: lists of float."""

import math

import torch

from .. import _C


# The C++ library computes these numbers. TorchScript and torch.compile cannot call a pybind11
# function; for them the same formulas stand here in the subset of Python that both understand
# (a test compares the two bit for bit).
def _power_series(base: float, n: int, step: int, span: int) -> list[float]:
    """base ** (-step i / span), i < n."""
    result: list[float] = []
    for i in range(n):
        result.append(math.pow(base, -float(step * i) / float(span)))
    return result


def _traced_slopes(
    n_heads: int, bias_max: float, head_start: int, total_heads: int | None, geometric: bool
) -> list[float]:
    total = n_heads
    if total_heads is not None:
        total = total_heads
    if n_heads < 1 or head_start < 0 or head_start + n_heads > total:
        raise ValueError(
            "alibi_slopes: expected n_heads >= 1 and heads [head_start, head_start + n_heads) "
            f"among total_heads = {total}, got n_heads {n_heads}, head_start {head_start}"
        )
    power = 1
    while power * 2 <= total:
        power = power * 2
    result: list[float] = []
    for h in range(head_start, head_start + n_heads):
        if geometric:
            exponent = bias_max * float(h + 1) / float(total)
        elif h < power:
            exponent = bias_max * float(h + 1) / float(power)
        else:
            exponent = bias_max * float(2 * (h - power) + 1) / float(2 * power)
        result.append(math.pow(2.0, -exponent))
    return result


def rope_inv_freq(dim: int, base: float = 10000.0) -> list[float]:
    """RoPE's frequencies ``base ** (-2 i / dim)``, i = 0 ... dim / 2 - 1, in float64.

    Args:
        dim: rotated channels, even; else ``ValueError``.
        base: theta, above 0.

    Source: Su et al. 2021, arXiv:2104.09864.

    >>> P.rope_inv_freq(4)
    [1.0, 0.01]
    """
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
        return list(_C.rope_inv_freq(dim, base))
    if dim < 2 or dim % 2 != 0 or base <= 0:
        raise ValueError("rope_inv_freq: expected an even dim >= 2 and base > 0")
    return _power_series(base, dim // 2, 2, dim)


def sinusoidal_inv_freq(
    d_model: int, base: float = 10000.0, spacing: str = "standard"
) -> list[float]:
    """Frequencies of a sinusoidal table, in radians per position, in float64.

    Args:
        d_model: width of the table.
        base: theta, above 0.
        spacing: ``"standard"``: ``base ** (-2 i / d_model)``, i < ceil(d_model / 2) (the paper,
            BART, DETR). ``"half_minus_one"``: ``base ** (-i / (h - 1))``, i < h = d_model // 2
            (tensor2tensor, fairseq, Whisper); an odd width then ends with a channel of zeros.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    >>> P.sinusoidal_inv_freq(4)
    [1.0, 0.01]
    >>> P.sinusoidal_inv_freq(4, spacing="half_minus_one")
    [1.0, 0.0001]
    """
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
        return list(_C.sinusoidal_inv_freq(d_model, base, spacing))
    if d_model < 1 or base <= 0:
        raise ValueError("sinusoidal_inv_freq: expected d_model >= 1 and base > 0")
    if spacing == "standard":
        return _power_series(base, (d_model + 1) // 2, 2, d_model)
    if spacing != "half_minus_one":
        raise ValueError(
            f"sinusoidal_inv_freq: expected spacing 'standard' or 'half_minus_one', got '{spacing}'"
        )
    return _power_series(base, d_model // 2, 1, max(d_model // 2 - 1, 1))


def alibi_slopes(
    n_heads: int,
    bias_max: float = 8.0,
    head_start: int = 0,
    total_heads: int | None = None,
    geometric: bool = False,
) -> list[float]:
    """ALiBi's slopes, one a head: ``2 ** (-bias_max (h + 1) / n)`` with n the largest power of two
    <= ``total_heads``; the heads past n take every second slope of the series for 2n.

    Args:
        n_heads: heads held here.
        bias_max: exponent of the last slope (8 in the paper; MPT's ``alibi_bias_max``).
        head_start: index of the first of them, under tensor parallelism.
        total_heads: heads of the whole model; ``n_heads`` when None.
        geometric: one plain geometric series for any head count (the paper's sentence; no
            released checkpoint uses it).

    Returns:
        list of ``n_heads`` floats (scores lost per position of distance).

    Source: Press et al. 2021, arXiv:2108.12409, and its published code.

    >>> P.alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> P.alibi_slopes(2, head_start=2, total_heads=4)  # the second of two ranks
    [0.015625, 0.00390625]
    """
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
        return list(_C.alibi_slopes(n_heads, bias_max, head_start, total_heads, geometric))
    return _traced_slopes(n_heads, bias_max, head_start, total_heads, geometric)
