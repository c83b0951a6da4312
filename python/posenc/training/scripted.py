"""A TorchScript copy of a trained model: saved, loaded again, compared."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from .options import UserError

ALLOWED_DIFFERENCE = 1e-4


@torch.no_grad()
def save_and_compare(model: nn.Module, tokens: Tensor, path: Path) -> dict:
    """Script the whole model, save it, load it, and compare its logits on ``tokens``.

    Raises:
        UserError: it cannot be saved, or the copy has other logits.
    """
    if sys.version_info >= (3, 14):
        return {"skipped": "torch.jit.script is gone from Python 3.14 on"}
    model.eval()
    wanted = model(tokens)
    if not wanted.isfinite().all():
        return {"skipped": "not saved: the model diverged, its logits are not finite"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of TorchScript at every call
        copy = torch.jit.script(model)
        try:
            copy.save(str(path))
        except (OSError, RuntimeError) as error:  # torch's own reason for a file it cannot write
            raise UserError(f"{path}: {str(error).splitlines()[0]}") from None
        loaded = torch.jit.load(str(path), map_location=tokens.device)
    got = [loaded(tokens) for _ in range(3)]  # the first calls profile, later ones are optimised
    difference = max((wanted - g).abs().max().item() for g in got)
    if not difference <= ALLOWED_DIFFERENCE:
        raise UserError(f"{path}: logits of the scripted copy differ by {difference:.3g}")
    return {
        "file": path.name,
        "logits_compared": wanted.numel(),
        "largest_difference": difference,
        "largest_logit": wanted.abs().max().item(),
    }


def describe(scripted: dict) -> str:
    if "skipped" in scripted:
        return scripted["skipped"]
    if "failed" in scripted:
        return scripted["failed"]
    difference = scripted["largest_difference"]
    same = "the same" if difference == 0 else f"the same within {difference:.1e}"
    return (
        f"{scripted['file']} saved and loaded again: {same} "
        f"({scripted['logits_compared']:,} logits, of size up to {scripted['largest_logit']:.1f})"
    )
