"""posenc's operators inside a loaded model of Hugging Face transformers.

>>> from posenc.integrations.transformers import accelerate, restore, swapped
>>> accelerate(model)        # in place: the model computes the same, with our operators
>>> print(swapped(model))    # what was exchanged, and what was left
>>> restore(model)           # as it was, bit for bit

transformers is imported when `accelerate` is called, not with this module.
"""

from ._accelerate import accelerate, restore, swapped
from ._report import Entry, Report

__all__ = ["Entry", "Report", "accelerate", "restore", "swapped"]
