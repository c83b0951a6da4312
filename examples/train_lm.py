#!/usr/bin/env python3
"""Train a byte-level Transformer with each position encoding and compare them on longer inputs.

python examples/train_lm.py            everything, in a few minutes on two cores
python examples/train_lm.py --help     what can be chosen
"""

from __future__ import annotations

import sys
import time

from lm.options import Settings, UserError, parse


def check_device(settings: Settings) -> None:
    import torch

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


def run(settings: Settings) -> None:
    try:
        import torch
        from lm import chart, model, report, scripted, text, train
    except ImportError as error:
        raise UserError(
            f"cannot import {error.name or 'a module'} ({error}); needed are torch, posenc, tqdm "
            "and matplotlib"
        ) from None

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    check_device(settings)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {settings.output}: {error.strerror}") from None

    corpus = text.load(settings.text)
    stretches = text.segments(corpus.validation, settings.eval_lengths[-1], settings.eval_bytes)
    print(
        f"Text: {corpus.name}, {corpus.train_files} files with {len(corpus.train):,} bytes to "
        f"train on, {corpus.validation_files} with {len(corpus.validation):,} for validation "
        f"(sha256 {corpus.sha256[:12]})."
    )
    print(
        f"Model: {settings.layers} layers, d_model {settings.d_model}, {settings.heads} heads; "
        f"{settings.steps} steps of {settings.batch_size} × {settings.train_length} bytes; "
        f"{settings.device}, {torch.get_num_threads()} CPU threads, seed {settings.seed}.",
        flush=True,
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
    print("\nValidation loss (nats per byte) by length of the window (bytes)\n")
    print(table)
    print()
    for note in report.findings(outcomes, settings):
        print(note)
    for outcome in outcomes:
        if outcome.scripted:
            name = report.NAMES[outcome.encoding]
            print(f"{name}, scripted: {scripted.describe(outcome.scripted)}.")
    speeds = ", ".join(
        f"{report.NAMES[o.encoding]} {o.train_seconds:.0f} s ({o.tokens_per_second:,.0f} tokens/s)"
        for o in outcomes
    )
    print(f"Training time: {speeds}; {seconds:.0f} s in all.")

    (settings.output / "table.md").write_text(table + "\n")
    report.write_json(settings.output / "results.json", outcomes, settings, corpus, seconds)
    chart.draw(settings.output / "loss_by_length.png", outcomes, settings)
    print(f"Written: {settings.output}/ table.md, results.json, loss_by_length.png")


def main() -> int:
    settings = parse()
    try:
        run(settings)
    except UserError as error:
        print(f"train_lm.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntrain_lm.py: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
