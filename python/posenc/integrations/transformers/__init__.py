"""posenc's operators inside a loaded model of Hugging Face transformers.

>>> from posenc.integrations.transformers import accelerate, restore, swapped
>>> from transformers import LlamaConfig, LlamaModel
>>> model = LlamaModel(LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2))
>>> model = accelerate(model)  # in place: it computes the same, with our operators
>>> print(swapped(model))  # what was exchanged, and what was left
2 exchanged
  2 x LlamaAttention: rotation, apply_rotary_pos_emb: halves
>>> model = restore(model)  # as it was, bit for bit

transformers is imported when `accelerate` is called, not with this module.
"""

from ._accelerate import accelerate, restore, swapped
from ._report import Entry, Report

__all__ = ["Entry", "Report", "accelerate", "restore", "swapped"]
