"""Positions that rotate q and k (RoPE), and its relatives."""

from .axial import AxialRotaryEmbedding
from .embedding import RotaryPositionalEmbedding
from .learned import LearnedRotaryEmbedding
from .long_sequence import LongSequenceRoPE
from .mixed import MixedRotaryEmbedding
from .temperature import QueryTemperature, nope_layers
from .xpos import XPosRotaryEmbedding

__all__ = [
    "AxialRotaryEmbedding",
    "LearnedRotaryEmbedding",
    "LongSequenceRoPE",
    "MixedRotaryEmbedding",
    "QueryTemperature",
    "RotaryPositionalEmbedding",
    "XPosRotaryEmbedding",
    "nope_layers",
]
