"""posenc's C++ library: options, modules and helpers, bound one to one.

The modules themselves, `_C.cpp.X` (the C++ object) and `_C.X` (torch's own wrapper of it), take
one Options object. Use them through `posenc.cpp`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

cpp: Any

def rotary_embedding(
    x: Tensor,
    inv_freq: Sequence[float],
    position_ids: Tensor | None,
    offset: int,
    seq_dim: int,
    interleaved: bool,
    interleaved_out: bool | None,
    rotary_start: int,
    attention_factor: float,
    axes: Sequence[int] | None,
    inverse: bool,
) -> Tensor: ...
def rotary_embedding_qk(
    q: Tensor,
    k: Tensor,
    inv_freq: Sequence[float],
    position_ids: Tensor | None,
    offset: int,
    seq_dim: int,
    interleaved: bool,
    interleaved_out: bool | None,
    rotary_start: int,
    attention_factor: float,
    axes: Sequence[int] | None,
    inverse: bool,
) -> tuple[Tensor, Tensor]: ...
def rope_inv_freq(dim: int, base: float = 10000.0) -> list[float]: ...
def nope_layers(n_layers: int, every: int = 4) -> list[bool]: ...
def xpos_reach(dtype: torch.dtype, scale_base: float = 512.0, gamma: float = 0.4) -> float: ...
def yarn_mscale(scale: float, mscale: float = 1.0) -> float: ...
def sinusoidal_inv_freq(
    d_model: int, base: float = 10000.0, spacing: str = "standard"
) -> list[float]: ...
def alibi_slopes(
    n_heads: int,
    bias_max: float = 8.0,
    head_start: int = 0,
    total_heads: int | None = None,
    geometric: bool = False,
) -> list[float]: ...

class TensorSlots:
    """The places where a C++ module holds its learned tensors, by the names of its state dict."""

    def __init__(self, module: Any) -> None: ...
    @property
    def names(self) -> list[str]: ...
    def tensors(self) -> list[Tensor]: ...
    def set(self, tensors: Sequence[Tensor]) -> None: ...
    def clear(self) -> None: ...
    def release(self) -> None: ...

class KVCache:
    """Keys and values of the tokens so far; filled in place by ``forward_cached``."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    @property
    def key(self) -> Tensor | None: ...
    @property
    def value(self) -> Tensor | None: ...
    @property
    def positions(self) -> Tensor | None: ...
    @property
    def key_norms(self) -> Tensor | None: ...

class RopeScaling:
    """A scaling dictionary, read strictly."""

    @staticmethod
    def from_dict(dict: Mapping[str, Any]) -> RopeScaling: ...
    def to_dict(self) -> dict[str, Any]: ...
    def depends_on_length(self) -> bool: ...
    @property
    def type(self) -> str: ...
    @property
    def rope_theta(self) -> float | None: ...
    @property
    def partial_rotary_factor(self) -> float | None: ...
    @property
    def factor(self) -> float | None: ...
    @property
    def original_max_position_embeddings(self) -> int | None: ...
    @property
    def llama_4_scaling_beta(self) -> float | None: ...

class RopeFrequencies:
    """What a scaling gives: frequencies, factor, and what lengths are compared with."""

    @property
    def inv_freq(self) -> list[float]: ...
    @property
    def attention_factor(self) -> float: ...
    @property
    def long_inv_freq(self) -> list[float]: ...
    @property
    def trained_length(self) -> int: ...
    @property
    def dim(self) -> int: ...

class RotaryPositionalEmbeddingOptions:
    d_model: int
    max_seq_len: int
    base: float
    interleaved: bool
    interleaved_out: bool | None
    inverse: bool
    rotary_dim: int | None
    rotary_start: int
    axes: list[int] | None
    seq_dim: int
    attention_factor: float | None
    scaling: RopeScaling
    def __init__(self, d_model: int) -> None: ...
    @staticmethod
    def from_dict(
        config: Mapping[str, Any], layer_type: str | None = None
    ) -> RotaryPositionalEmbeddingOptions: ...
    def to_dict(self) -> dict[str, Any]: ...
    @staticmethod
    def dict_keys() -> list[str]: ...
    def check(self, where: str = "RotaryPositionalEmbedding") -> None: ...
    def reads_pairs(self) -> bool: ...
    def resolved_axes(self) -> list[int]: ...
    def width(self) -> int: ...
    def theta(self) -> float: ...
    def frequencies(self) -> RopeFrequencies: ...

class AxialFrequencies:
    """What an axial arrangement is made of."""

    @property
    def inv_freq(self) -> list[float]: ...
    @property
    def axes(self) -> list[int]: ...
    @property
    def interleaved(self) -> bool: ...
    @property
    def blocks(self) -> int: ...
    @property
    def n_axes(self) -> int: ...
    def rotary_dim(self) -> int: ...

class AxialRotaryEmbeddingOptions:
    head_dim: int
    arrangement: str
    base: float
    scale: float
    offset: int
    n_prefix: int
    n_suffix: int
    seq_dim: int
    def __init__(self, head_dim: int) -> None: ...
    def check(self) -> None: ...
    def frequencies(self) -> AxialFrequencies: ...

class MixedRotaryEmbeddingOptions:
    head_dim: int
    n_heads: int
    base: float
    per_head: bool
    interleaved: bool
    n_prefix: int
    n_suffix: int
    seq_dim: int
    def __init__(self, head_dim: int, n_heads: int) -> None: ...
    def check(self) -> None: ...

class XPosRotaryEmbeddingOptions:
    head_dim: int
    base: float
    scale_base: float
    centre: float
    gamma: float
    interleaved: bool
    rotary_dim: int | None
    rotary_start: int
    seq_dim: int
    def __init__(self, head_dim: int) -> None: ...
    def check(self) -> None: ...
    def width(self) -> int: ...
    def inv_freq(self) -> list[float]: ...

class QueryTemperatureOptions:
    scale: float
    floor_scale: float
    shift: float
    seq_dim: int
    def __init__(self) -> None: ...
    def check(self) -> None: ...

class LearnedRotaryEmbeddingOptions(RotaryPositionalEmbeddingOptions):
    n_heads: int | None
    parametrisation: str
    def __init__(self, head_dim: int) -> None: ...
    def check(self, where: str = "LearnedRotaryEmbedding") -> None: ...

class LongSequenceRoPEOptions:
    head_dim: int
    chunk_size: int
    base: float
    interleaved: bool
    def __init__(self, head_dim: int) -> None: ...

class SinusoidalPositionalEncodingOptions:
    d_model: int
    base: float
    interleaved: bool
    spacing: str
    scale: float
    seq_dim: int
    def __init__(self, d_model: int) -> None: ...

class LearnedPositionalEncodingOptions:
    max_len: int
    d_model: int
    seq_dim: int
    def __init__(self, max_len: int, d_model: int) -> None: ...

class TransformerEmbeddingOptions:
    vocab_size: int
    d_model: int
    max_len: int
    padding_idx: int | None
    scale: float | None
    base: float
    interleaved: bool
    spacing: str
    def __init__(self, vocab_size: int, d_model: int) -> None: ...

class RoPEAttentionOptions:
    d_model: int
    n_heads: int
    n_kv_heads: int | None
    is_causal: bool
    bias: bool
    dropout: float
    base: float
    interleaved: bool
    rotary_dim: int | None
    def __init__(self, d_model: int, n_heads: int) -> None: ...

class ALiBiAttentionOptions:
    d_model: int
    n_heads: int
    max_seq_len: int
    n_kv_heads: int | None
    is_causal: bool
    bias: bool
    dropout: float
    def __init__(self, d_model: int, n_heads: int) -> None: ...
