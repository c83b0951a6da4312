"""The table, what it shows, and every figure as JSON."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from typing import Any

import torch

from .. import _build_info
from .._machine import processor
from .options import Settings
from .text import Corpus
from .train import Outcome

NAMES = {
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "rope": "RoPE",
    "alibi": "ALiBi",
    "none": "none",
}


def growth(outcome: Outcome, settings: Settings) -> float | None:
    """Loss at the longest length minus loss at the shortest; None if it does not get there, or
    diverged."""
    first, last = settings.eval_lengths[0], settings.eval_lengths[-1]
    if first == last or first not in outcome.losses or last not in outcome.losses:
        return None
    change = outcome.losses[last] - outcome.losses[first]
    return change if math.isfinite(change) else None


def table(outcomes: list[Outcome], settings: Settings) -> str:
    """Markdown: validation loss in nats per byte by length."""
    lengths = settings.eval_lengths
    header = ["encoding", "parameters", *(f"{n}" for n in lengths)]
    if len(lengths) > 1:
        header.append(f"growth {lengths[0]} → {lengths[-1]}")
    rows = []
    for outcome in outcomes:
        row = [NAMES[outcome.encoding], f"{outcome.parameters:,}"]
        row += [f"{outcome.losses[n]:.3f}" if n in outcome.losses else "–" for n in lengths]
        if len(lengths) > 1:
            change = growth(outcome, settings)
            row.append("–" if change is None else f"{change:+.3f}")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0]] + ["-" * (w - 1) + ":" for w in widths[1:]]
    lines = []
    for row in (header, rule, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def findings(outcomes: list[Outcome], settings: Settings) -> list[str]:
    """Sentences that follow from the figures, and from nothing else."""
    first, last = settings.eval_lengths[0], settings.eval_lengths[-1]
    notes = []
    for outcome in outcomes:
        if outcome.longest is not None and last > outcome.longest:
            notes.append(
                f"{NAMES[outcome.encoding]}: – where the length is past the {outcome.longest} "
                "positions that it has."
            )
    for outcome in outcomes:
        if not all(map(math.isfinite, outcome.losses.values())):
            notes.append(f"{NAMES[outcome.encoding]} diverged: its loss is not a finite number.")
    grown = {o.encoding: g for o in outcomes if (g := growth(o, settings)) is not None}
    if len(grown) > 1:
        order = sorted(grown, key=grown.get)
        listed = ", ".join(f"{NAMES[e]} {grown[e]:+.3f}" for e in order)
        notes.append(f"Growth of the loss from {first} to {last}, lowest first: {listed}.")
        if "alibi" in grown:
            best = order[0] == "alibi"
            notes.append(
                f"ALiBi has {'the lowest' if best else 'not the lowest'} growth of the loss here"
                + ("." if best else f": that is {NAMES[order[0]]}.")
            )
    for length in dict.fromkeys((first, last)):
        reached = {o.encoding: o.losses[length] for o in outcomes if length in o.losses}
        reached = {name: loss for name, loss in reached.items() if math.isfinite(loss)}
        if len(reached) > 1:
            best = min(reached, key=reached.get)
            notes.append(f"Lowest loss at {length}: {NAMES[best]}, {reached[best]:.3f}.")
    return notes


def machine(settings: Settings) -> dict[str, Any]:
    """Versions and hardware; no name of the machine."""
    device = torch.device(settings.device)
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "posenc": _build_info.VERSION,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def results(
    outcomes: list[Outcome], settings: Settings, corpus: Corpus, seconds: float
) -> dict[str, Any]:
    """Every figure, for JSON."""
    chosen = dataclasses.asdict(settings)
    chosen["text"] = [p.name for p in settings.text]
    chosen["output"] = settings.output.name
    models = {}
    for outcome in outcomes:
        figures = dataclasses.asdict(outcome)
        figures["growth"] = growth(outcome, settings)
        models[figures.pop("encoding")] = figures
    return {
        "units": {"loss": "nats per byte", "length": "bytes", "time": "seconds"},
        "settings": chosen,
        "machine": machine(settings),
        "text": {
            "name": corpus.name,
            "train_files": corpus.train_files,
            "train_bytes": len(corpus.train),
            "validation_files": corpus.validation_files,
            "validation_bytes": len(corpus.validation),
            "sha256": corpus.sha256,
        },
        "models": models,
        "findings": findings(outcomes, settings),
        "seconds": seconds,
    }
