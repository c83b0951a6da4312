"""Positions that are added to the attention scores."""

from .functional import alibi_bias, alibi_slopes, alibi_softmax

__all__ = ["alibi_bias", "alibi_slopes", "alibi_softmax"]
