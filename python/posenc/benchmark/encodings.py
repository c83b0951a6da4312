"""`benchmark_positional_encodings`: the encodings side by side at growing lengths."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import absolute, rotary
from .._extras import progress
from .._output import check_picture
from . import peers
from .measure import Work, meter_for, own_generator, times
from .report import machine, ms_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The copy of the input: nothing that writes an output of its size is faster.
LIMIT = "clone (the limit)"
OURS = ("sinusoidal", "learned", "RoPE")


@dataclass(frozen=True)
class EncodingTimes:
    """What `benchmark_positional_encodings` measured.

    Attributes:
        milliseconds: name -> length -> the best time of one call, in ms. The names of ``OURS``, the
            limit, then the peers.
        missing: peer -> why it was not measured.
        settings: d_model, batch_size, n_heads, dtype, device.
        machine: what it ran on.
    """

    milliseconds: dict[str, dict[int, float]]
    missing: dict[str, str]
    settings: dict[str, Any]
    machine: dict[str, Any]

    @property
    def lengths(self) -> list[int]:
        """The lengths measured."""
        return list(next(iter(self.milliseconds.values())))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "unit": "milliseconds",
            "milliseconds": {
                name: {str(length): value for length, value in row.items()}
                for name, row in self.milliseconds.items()
            },
            "missing": self.missing,
            "settings": self.settings,
            "machine": self.machine,
        }

    def __str__(self) -> str:
        """The table, in ms, with the last length as a multiple of the limit."""
        lengths = self.lengths
        last = self.milliseconds[LIMIT][lengths[-1]]
        header = ["encoding (ms)", *(f"L = {n}" for n in lengths), f"× clone, L = {lengths[-1]}"]
        rows = [
            [name, *(ms_text(row[n]) for n in lengths), f"{row[lengths[-1]] / last:.2f}"]
            for name, row in self.milliseconds.items()
        ]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = []
        for cells in (header, *rows):
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
            )
            lines.append("  ".join([first, *rest]))
        lines += [f"{name}: not measured: {why}" for name, why in self.missing.items()]
        return "\n".join(lines)

    def plot(self, *, save: str | os.PathLike[str] | None = None) -> "Figure":
        """The line plot, `posenc.plots.benchmark_lines` of these times."""
        from ..plots import benchmark_lines

        return benchmark_lines(self, save=save)


def _makers(
    x: Tensor, n_heads: int, with_peers: bool, compiled: bool
) -> Iterator[tuple[str, Callable[[], Work]]]:
    """Name and maker of each work on x (B, L, d_model)."""
    length, d_model = x.size(1), x.size(2)
    heads = x.view(x.size(0), length, n_heads, -1)
    fixed = absolute.SinusoidalPositionalEncoding(d_model)
    learned = absolute.LearnedPositionalEncoding(length, d_model, dtype=x.dtype)
    learned.requires_grad_(False)
    rope = rotary.RotaryPositionalEmbedding(heads.size(-1))
    yield "sinusoidal", lambda: lambda: fixed(x)
    yield "learned", lambda: lambda: learned(x)
    yield "RoPE", lambda: lambda: rope(heads)
    yield LIMIT, lambda: x.clone
    if not with_peers:
        return
    table = absolute.get_positional_encoding(length, d_model, dtype=x.dtype)
    embedding = learned.positional_embeddings
    positions = torch.arange(length)
    yield "sinusoidal, eager with a ready table", lambda: lambda: x + table
    yield "learned, eager", lambda: lambda: x + embedding(positions)
    yield "RoPE, eager with ready tables", lambda: peers.eager_rotation(heads, 1, True)
    if compiled:
        yield "RoPE, compiled", lambda: peers.compiled_rotation(heads, 1, True)
    yield "RoPE, rotary-embedding-torch", lambda: peers.rotary_embedding_torch(heads, 1)
    by_head = heads.transpose(1, 2).contiguous()
    yield "RoPE, x-transformers", lambda: peers.x_transformers(by_head)


def benchmark_positional_encodings(
    d_model: int = 512,
    batch_size: int = 32,
    seq_lens: Sequence[int] = (128, 512, 1024, 2048),
    n_heads: int = 8,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    peers: bool = True,
    compiled: bool = False,
    seconds: float = 0.5,
    quiet: bool = False,
    save: str | os.PathLike[str] | None = None,
) -> EncodingTimes:
    """Times the encodings at growing lengths, against a copy of their input and against peers.

    Sinusoidal and learned positions are added to (batch_size, L, d_model); RoPE rotates the same
    numbers as (batch_size, L, n_heads, d_model / n_heads). All take turns in each round. torch's
    generator stays as it was.

    Args:
        d_model, batch_size, seq_lens, n_heads: the article's by default.
        dtype: of the input.
        device: cpu, cuda or cuda:1.
        peers: also time eager torch and other packages, those that are installed
            (``pip install posenc[bench]``).
        compiled: also time the eager rotation under ``torch.compile`` (needs a C++ compiler).
        seconds: about how long each is timed at each length.
        quiet: print no table.
        save: file for the line plot (.png, .svg, .pdf), checked before anything is measured.

    Returns:
        the times: ``str()`` is the table, ``.plot()`` the line plot, ``.to_dict()`` for JSON.

    Raises:
        ValueError: sizes, a dtype or a device that make no sense, or another ending of ``save``.
        OSError: ``save`` cannot be written.

    >>> times = posenc.benchmark_positional_encodings(
    ...     16, 1, [8], 2, seconds=0.01, peers=False, quiet=True
    ... )
    >>> times.lengths, list(times.milliseconds)
    ([8], ['sinusoidal', 'learned', 'RoPE', 'clone (the limit)'])
    """
    where = "benchmark_positional_encodings"
    for name, value in (("d_model", d_model), ("batch_size", batch_size), ("n_heads", n_heads)):
        if value < 1:
            raise ValueError(f"{where}: expected {name} >= 1, got {value}")
    try:
        lengths = sorted({int(length) for length in seq_lens})
    except TypeError:
        raise TypeError(f"{where}: expected seq_lens to be a list, got {seq_lens!r}") from None
    if not lengths or lengths[0] < 1:
        raise ValueError(f"{where}: expected seq_lens >= 1, got {lengths}")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"{where}: expected finite seconds > 0, got {seconds}")
    if not dtype.is_floating_point:
        raise ValueError(f"{where}: expected a real floating dtype, got {dtype}")
    if d_model % n_heads or (d_model // n_heads) % 2:
        raise ValueError(
            f"{where}: expected d_model / n_heads to be an even whole number, got "
            f"{d_model} / {n_heads}"
        )
    check_picture(save)
    device = str(device)
    try:
        meter = meter_for(device)
    except RuntimeError as error:
        raise ValueError(f"{where}: {error}") from None
    milliseconds: dict[str, dict[int, float]] = {}
    missing: dict[str, str] = {}
    with own_generator(device), torch.no_grad():
        for length in progress(lengths, desc="benchmark", unit="length"):
            # While tensors are made only: this context adds to the time of every call inside it.
            with torch.device(meter.device):
                x = torch.randn(batch_size, length, d_model).to(dtype)
                works = _ready(_makers(x, n_heads, peers, compiled), missing)
            for name, taken in times(works, seconds, once=meter.once).items():
                milliseconds.setdefault(name, {})[length] = min(taken) * 1e3
    result = EncodingTimes(
        {n: row for n, row in milliseconds.items() if n not in missing},
        missing,
        {
            "d_model": d_model,
            "batch_size": batch_size,
            "n_heads": n_heads,
            "dtype": str(dtype).removeprefix("torch."),
            "device": device,
        },
        machine(device),
    )
    if not quiet:
        print(result)
    if save is not None:
        result.plot(save=save)
    return result


def _ready(
    makers: Iterator[tuple[str, Callable[[], Work]]], missing: dict[str, str]
) -> dict[str, Work]:
    """The works that run here; what does not is noted in ``missing``."""
    works: dict[str, Work] = {}
    for name, make in makers:
        try:
            works[name] = make()
            works[name]()
        except Exception as error:
            if name in OURS or name == LIMIT:
                raise
            works.pop(name, None)
            reason = (str(error).splitlines() or [repr(error)])[0][:120]
            missing[name] = reason if isinstance(error, ImportError) else repr(error)[:120]
    return works
