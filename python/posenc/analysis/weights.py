"""The attention weights of a layer, read from the layer's own computation."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import ALiBiAttention, RoPEAttention


def check_attention(where: str, layer: Any) -> None:
    """Whether the layer is one of those whose weights can be read; a ``TypeError`` otherwise."""
    if not hasattr(layer, "_attend") or not hasattr(layer, "n_kv_heads"):
        kind = type(layer)
        # The C++ layers have the same names.
        name = f"{kind.__module__}.{kind.__name__}".removeprefix("torch.nn.modules.")
        raise TypeError(
            f"{where}: expected a posenc.RoPEAttention or posenc.ALiBiAttention, got {name}"
        )


def attention_weights(layer: nn.Module, x: Tensor, *args: Any, **options: Any) -> Tensor:
    """The weights by which a layer mixes its values for input x.

    The layer runs as ever, on the path that it takes for these arguments, with the identity matrix
    in place of its values: what comes out of ``weights @ values`` then is the weights. Nothing is
    computed a second way.

    Args:
        layer: `RoPEAttention` or `ALiBiAttention`. Dropout is left out.
        x: (B, L, d_model).
        args, options: as ``layer.forward`` takes them (``mask``, ``key_padding_mask``, ...).

    Returns:
        (B, H, L, L) of x's dtype: query down, key across. A row sums to 1, or to 0 where no key
        is allowed.
    """
    check_attention("attention_weights", layer)
    seen: dict[str, Tensor] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        keys = k.size(2)
        unit = torch.eye(keys, dtype=v.dtype, device=v.device)
        seen["weights"] = layer_attend(q, k, unit.expand(k.size(0), k.size(1), keys, keys), *rest)
        return v.repeat_interleave(q.size(1) // v.size(1), 1)  # some output; it is dropped

    probe = copy.copy(layer)  # shares the weights; what is set on it stays with it
    probe.training = False
    layer_attend = probe._attend
    probe._attend = attend
    with torch.no_grad():
        probe(x, *args, **options)
    return seen["weights"]


def random_pair(
    seq_len: int, d_model: int, n_heads: int, is_causal: bool = False, seed: int = 0
) -> tuple[dict[str, nn.Module], Tensor]:
    """RoPE attention and ALiBi attention with the same projections, which so differ in nothing but
    position, and one input (1, seq_len, d_model), unit normal. torch's generator stays as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rope = RoPEAttention(d_model, n_heads, is_causal=is_causal)
        alibi = ALiBiAttention(d_model, n_heads, is_causal=is_causal)
        alibi.load_state_dict(rope.state_dict())
        return {"RoPE": rope, "ALiBi": alibi}, torch.randn(1, seq_len, d_model)
