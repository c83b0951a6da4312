"""``posenc bench``: times of the encodings by length."""

from typing import Any

from .._arguments import positive, threads, whole
from .._output import check_picture
from ._common import add_command, add_json, add_output, show

_EXAMPLES = """\
examples:
  posenc bench                                     batch 32, d_model 512, 128 to 2048 tokens
  posenc bench --lengths 1024 4096 --batch-size 4 -o times.png
  posenc bench --dtype bfloat16 --compiled --json

All take turns in each round; the best time of each counts. Peers that are not installed are named:
pip install posenc[bench]. `python -m posenc.benchmark --help` times every operator by itself."""

_DTYPES = ("float32", "float64", "bfloat16", "float16")


def add(commands: Any) -> None:
    """Describes the command."""
    parser = add_command(
        commands, "bench", "time the encodings, against a copy and against peers", _EXAMPLES, _run
    )
    option = parser.add_argument
    option("--d-model", type=whole(1), default=512, metavar="N", help="width (default: 512)")
    option("--batch-size", type=whole(1), default=32, metavar="N", help="rows (default: 32)")
    option(
        "--lengths",
        nargs="+",
        type=whole(1),
        default=[128, 512, 1024, 2048],
        metavar="N",
        help="tokens a row (default: 128 512 1024 2048)",
    )
    option("--heads", type=whole(1), default=8, metavar="N", help="of RoPE (default: 8)")
    option("--dtype", choices=_DTYPES, default="float32", help="default: float32")
    option("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (default: cpu)")
    option("--no-peers", action="store_true", help="leave out eager torch and other packages")
    option("--compiled", action="store_true", help="also the eager rotation, compiled (slow)")
    option(
        "--seconds", type=positive, default=0.5, metavar="X", help="for each time (default: 0.5)"
    )
    option("--threads", type=threads, metavar="N", help="CPU threads (default: torch's own)")
    add_output(parser, "write the line plot (.png, .svg, .pdf)")
    add_json(parser)


def _run(given: Any) -> None:
    import torch

    from ..benchmark import benchmark_positional_encodings

    check_picture(given.output)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    result = benchmark_positional_encodings(
        given.d_model,
        given.batch_size,
        given.lengths,
        given.heads,
        dtype=getattr(torch, given.dtype),
        device=given.device,
        peers=not given.no_peers,
        compiled=given.compiled,
        seconds=given.seconds,
        quiet=True,
    )

    def text() -> str:
        machine = ", ".join(f"{key} {value}" for key, value in result.machine.items())
        return f"{machine}\n{result}"

    show(given, result.to_dict(), text, lambda: result.plot(save=given.output))
