"""Text, models, training, measurement, files: the whole comparison."""

import time
from collections.abc import Callable
from typing import Any

import torch

from .._extras import need
from .._json import plain, write_json
from .._output import check_writable
from ..plots import loss_by_length
from . import model, report, scripted, text, train
from .options import Settings, UserError

#: Encodings whose trained models are also saved as TorchScript.
SCRIPTED = ("rope", "alibi")


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


def check_output(settings: Settings) -> None:
    """Makes the folder of the results; a ``UserError`` where one of its files cannot be written."""
    folder = settings.output
    names = ["table.md", "results.json", "loss_by_length.png"]
    names += [f"{encoding}_scripted.pt" for encoding in settings.encodings if encoding in SCRIPTED]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            check_writable(folder / name)
    except OSError as error:
        # The folder's own name says it all where it is the folder that fails.
        name = "" if error.filename in (None, str(folder)) else f" ({error.filename})"
        raise UserError(f"--output {folder}: {error.strerror}{name}") from None


def run(settings: Settings, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Trains and measures a model with each encoding; writes and then prints what was found.

    torch's generator stays as it was.

    Args:
        settings: what to do and where to write.
        say: takes each piece of text for the user.

    Returns:
        what ``results.json`` holds: every figure; None for the losses of a model that diverged.

    Raises:
        UserError: something that the user can put right. An output that cannot be written is told
            before anything is trained; a scripted copy that fails, after everything is written.
        ImportError: the chart's package is missing; told before anything is trained.
    """
    need("matplotlib", "train", "posenc train")
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    check_device(settings)
    check_output(settings)

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
        with torch.random.fork_rng(devices=[]):  # what torch's layers draw, `initialise` replaces
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
        if encoding in SCRIPTED:
            tokens = stretches[:2, :-1].to(settings.device)
            path = settings.output / f"{encoding}_scripted.pt"
            try:
                outcome.scripted = scripted.save_and_compare(net, tokens, path)
            except UserError as error:
                outcome.scripted = {"failed": str(error)}
        outcomes.append(outcome)
    seconds = time.perf_counter() - start

    # Files first: whatever happens to the output, what took long is kept.
    table = report.table(outcomes, settings)
    (settings.output / "table.md").write_text(table + "\n", encoding="utf-8")
    results = plain(report.results(outcomes, settings, corpus, seconds))
    write_json(settings.output / "results.json", results)
    loss_by_length(results, save=settings.output / "loss_by_length.png")

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
    say(f"Written: {settings.output}/ table.md, results.json, loss_by_length.png")
    for outcome in outcomes:
        if outcome.scripted and "failed" in outcome.scripted:
            raise UserError(outcome.scripted["failed"])
    return results
