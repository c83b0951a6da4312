"""Every encoding of the library: what it is for, its options, what it runs on in this build."""

import inspect
from dataclasses import asdict, dataclass
from typing import Any

import torch

import posenc


@dataclass(frozen=True)
class Encoding:
    """One row of the catalogue.

    Attributes:
        layer: name of the Python layer, and under ``posenc.cpp`` of the C++ module.
        room: where the position enters: absolute, rotary, bias, attention.
        summary: what it does.
        options: constructor arguments with their defaults.
        runs_on: device -> "fused" (kernels of ours) or "composite" (the same formula in torch's own
            operations), as this build has registered them.
        operators: of ``torch.ops.posenc``.
    """

    layer: str
    room: str
    summary: str
    options: dict[str, str]
    runs_on: dict[str, str]
    operators: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


#: Layer: where the position enters; the public operators behind it; the kernels that those end in.
_LAYERS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "SinusoidalPositionalEncoding": ("absolute", ("add_sinusoidal",), ("add_sinusoidal",)),
    "TransformerEmbedding": ("absolute", ("embed_tokens",), ("embed_tokens",)),
    "LearnedPositionalEncoding": ("absolute", ("add_positions",), ("add_positions",)),
    "RotaryPositionalEmbedding": (
        "rotary",
        ("rotary_embedding", "rotary_embedding_qk", "rotary_embedding_qkv"),
        ("rotary_embedding", "rotary_embedding_qk", "rotary_embedding_qkv"),
    ),
    "LongSequenceRoPE": ("rotary", ("rotary_embedding",), ("rotary_embedding",)),
    "LearnedRotaryEmbedding": (
        "rotary",
        ("learned_inv_freq", "rotary_embedding.Tensor"),
        ("rotary_embedding.Tensor",),
    ),
    "XPosRotaryEmbedding": (
        "rotary",
        ("xpos_embedding",),
        ("_xpos_pairs", "rotary_embedding", "apply_rotary"),
    ),
    "AxialRotaryEmbedding": ("rotary", ("axial_rotary_embedding",), ("rotary_embedding",)),
    "MixedRotaryEmbedding": ("rotary", ("mixed_rotary_embedding",), ("rotary_embedding.Tensor",)),
    "QueryTemperature": ("rotary", ("query_temperature",), ("_temperature_factor",)),
    "RoPEAttention": ("attention", ("rotary_embedding_qk",), ("rotary_embedding_qk",)),
    "ALiBiAttention": ("attention", ("alibi_attention",), ("alibi_attention",)),
}


def kernels_of(layer: str) -> tuple[str, ...]:
    """The operators with kernels of their own that a layer's forward ends in."""
    return _LAYERS[layer][2]


def _kind(kernels: tuple[str, ...], key: str) -> str:
    """fused where every kernel is there for this device, else composite."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return "fused" if all(has(f"posenc::{name}", key) for name in kernels) else "composite"


def catalogue() -> list[Encoding]:
    """Every encoding, in the order of the rooms."""
    rows = []
    for name, (room, operators, kernels) in _LAYERS.items():
        layer = getattr(posenc, name)
        parameters = list(inspect.signature(layer.__init__).parameters.values())[1:]
        rows.append(
            Encoding(
                layer=name,
                room=room,
                summary=(inspect.getdoc(layer) or name).split("\n\n")[0].replace("\n", " "),
                options={
                    p.name: "required" if p.default is p.empty else repr(p.default)
                    for p in parameters
                },
                runs_on={
                    device: _kind(kernels, key)
                    for device, key in (("cpu", "CPU"), ("cuda", "CUDA"))
                },
                operators=list(operators),
            )
        )
    return rows


def scaling_types() -> dict[str, str]:
    """Type of RoPE scaling -> what it does."""
    return {
        "default": "the paper's frequencies",
        "linear": "every frequency divided by factor (position interpolation)",
        "ntk": "a larger theta by factor (NTK-aware)",
        "dynamic": "a larger theta, growing with the length of each sequence (dynamic NTK)",
        "yarn": "slow pairs divided by factor, fast ones kept, a ramp between; warmer q and k",
        "deepseek_yarn": "YaRN with DeepSeek's attention factor",
        "longrope": "a divisor for each pair, one list for short and one for long sequences",
        "llama3": "pairs slower than the trained length divided by factor, fast ones kept",
        "proportional": "the slowest pairs do not turn at all (p-RoPE, Gemma 4)",
    }
