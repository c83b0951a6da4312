"""Positions that rotate q and k (RoPE)."""

from .axial import AxialRotaryEmbedding
from .embedding import RotaryPositionalEmbedding
from .long_sequence import LongSequenceRoPE
from .mixed import MixedRotaryEmbedding

__all__ = [
    "AxialRotaryEmbedding",
    "LongSequenceRoPE",
    "MixedRotaryEmbedding",
    "RotaryPositionalEmbedding",
]
