"""Training one model and measuring it."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._extras import progress
from . import text
from .options import Settings

EVAL_TOKENS_AT_ONCE = 8192


@dataclass
class Outcome:
    """What was measured of one model. Losses are in nats per byte."""

    encoding: str
    parameters: int
    longest: int | None  # positions the model has; None: no limit
    train_losses: list[float] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    tokens_per_second: float = 0.0
    scripted: dict | None = None


def precision(settings: Settings):
    if settings.dtype == "float32":
        return nullcontext()
    kind = torch.device(settings.device).type
    return torch.autocast(kind, dtype=getattr(torch, settings.dtype))


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).float().flatten(0, 1), targets.flatten())


def rate_at(step: int, settings: Settings) -> float:
    """Linear warm-up over a tenth of the steps, then half a cosine down to nothing."""
    warmup = max(1, settings.steps // 10)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, settings.steps - warmup)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * done))


def train(model: nn.Module, data: Tensor, settings: Settings, outcome: Outcome) -> None:
    """Train in place; losses by step, seconds and speed go into ``outcome``."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01)
    source = text.batches(
        data, settings.train_length, settings.batch_size, settings.steps, settings.seed
    )
    bar = progress(
        source,
        total=settings.steps,
        desc=f"{outcome.encoding:10}",
        unit="step",
    )
    tokens = settings.batch_size * settings.train_length
    start = time.perf_counter()
    for step, batch in enumerate(bar):
        batch = batch.to(settings.device)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, settings)
        with precision(settings):
            loss = loss_of(model, batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        outcome.train_losses.append(loss.item())
        outcome.train_seconds = time.perf_counter() - start
        outcome.tokens_per_second = tokens * (step + 1) / outcome.train_seconds
        speed = f"{outcome.tokens_per_second:,.0f} tokens/s"
        if hasattr(bar, "set_postfix_str"):
            bar.set_postfix_str(f"loss {outcome.train_losses[-1]:.3f}, {speed}", refresh=False)


@torch.no_grad()
def evaluate(model: nn.Module, stretches: Tensor, settings: Settings, outcome: Outcome) -> None:
    """The mean loss over the same stretches at each length that the model reaches."""
    model.eval()
    for length in settings.eval_lengths:
        if outcome.longest is not None and length > outcome.longest:
            continue
        inputs, targets = text.windows(stretches, length)
        rows = max(1, EVAL_TOKENS_AT_ONCE // length)
        total = 0.0
        for x, y in zip(inputs.split(rows), targets.split(rows), strict=True):
            with precision(settings):
                loss = loss_of(model, x.to(settings.device), y.to(settings.device))
            total += loss.item() * y.numel()
        outcome.losses[length] = total / targets.numel()
