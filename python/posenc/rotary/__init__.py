"""Positions that rotate q and k (RoPE)."""

from .embedding import RotaryPositionalEmbedding
from .long_sequence import LongSequenceRoPE

__all__ = ["LongSequenceRoPE", "RotaryPositionalEmbedding"]
