"""Text, models, training, measurement, files: the whole comparison."""

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from .._extras import need
from ..plots import loss_by_length
from . import model, report, scripted, text, train
from .options import Settings, UserError


def check_device(settings: Settings) -> None:
    """Whether the device exists; a ``UserError`` otherwise."""
    try:
        torch.zeros(1, device=settings.device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        if settings.device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(
                f"--device {settings.device}: torch {torch.__version__} sees no CUDA device here"
            ) from None
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {settings.device}: {reason}") from None
    if torch.device(settings.device).type == "meta":
        raise UserError("--device meta: that device holds no data")


def run(settings: Settings, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Trains and measures a model with each encoding; prints and writes what was found.

    Args:
        settings: what to do and where to write.
        say: takes each piece of text for the user.

    Returns:
        what ``results.json`` holds: every figure.

    Raises:
        UserError: something that the user can put right.
        ImportError: the chart's package is missing; told before anything is trained.
    """
    need("matplotlib", "train", "posenc train")
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    check_device(settings)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {settings.output}: {error.strerror}") from None

    corpus = text.load(settings.text)
    stretches = text.segments(corpus.validation, settings.eval_lengths[-1], settings.eval_bytes)
    say(
        f"Text: {corpus.name}, {corpus.train_files} files with {len(corpus.train):,} bytes to "
        f"train on, {corpus.validation_files} with {len(corpus.validation):,} for validation "
        f"(sha256 {corpus.sha256[:12]})."
    )
    say(
        f"Model: {settings.layers} layers, d_model {settings.d_model}, {settings.heads} heads; "
        f"{settings.steps} steps of {settings.batch_size} × {settings.train_length} bytes; "
        f"{settings.device}, {torch.get_num_threads()} CPU threads, seed {settings.seed}.",
    )

    start = time.perf_counter()
    outcomes = []
    for encoding in settings.encodings:
        net = model.LanguageModel(
            encoding, settings.d_model, settings.layers, settings.heads, settings.train_length
        )
        model.initialise(net, settings.seed)
        net.to(settings.device)
        outcome = train.Outcome(
            encoding,
            parameters=sum(p.numel() for p in net.parameters()),
            longest=settings.train_length if encoding == "learned" else None,
        )
        train.train(net, corpus.train, settings, outcome)
        train.evaluate(net, stretches, settings, outcome)
        if encoding in ("rope", "alibi"):
            tokens = stretches[:2, :-1].to(settings.device)
            path = settings.output / f"{encoding}_scripted.pt"
            outcome.scripted = scripted.save_and_compare(net, tokens, path)
        outcomes.append(outcome)
    seconds = time.perf_counter() - start

    table = report.table(outcomes, settings)
    say("\nValidation loss (nats per byte) by length of the window (bytes)\n")
    say(table)
    say("")
    for note in report.findings(outcomes, settings):
        say(note)
    for outcome in outcomes:
        if outcome.scripted:
            name = report.NAMES[outcome.encoding]
            say(f"{name}, scripted: {scripted.describe(outcome.scripted)}.")
    speeds = ", ".join(
        f"{report.NAMES[o.encoding]} {o.train_seconds:.0f} s ({o.tokens_per_second:,.0f} tokens/s)"
        for o in outcomes
    )
    say(f"Training time: {speeds}; {seconds:.0f} s in all.")

    (settings.output / "table.md").write_text(table + "\n")
    results = report.results(outcomes, settings, corpus, seconds)
    (settings.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    loss_by_length(results, save=settings.output / "loss_by_length.png")
    say(f"Written: {settings.output}/ table.md, results.json, loss_by_length.png")
    return results
