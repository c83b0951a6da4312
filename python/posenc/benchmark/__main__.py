"""The command ``python -m posenc.benchmark``."""

import argparse
import sys
import warnings

import torch

from .._arguments import positive, threads
from .._command import HELP, run_command
from .._output import check_writable
from .cases import all_cases
from .cuda_cases import FULL, QUICK, device_cases
from .measure import meter_for
from .report import lines, machine, markdown, run_case, write_json

EXAMPLES = f"""examples:
  python -m posenc.benchmark                       everything, some 20 minutes
  python -m posenc.benchmark --quick               one length of each, some 5 minutes
  python -m posenc.benchmark decode "in place"     the cases whose names hold one of these words
  python -m posenc.benchmark --json run.json --markdown run.md
  python -m posenc.benchmark --device cuda         the cases of a GPU

{HELP}
"""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m posenc.benchmark",
        description="Times posenc against a clone, eager and compiled torch, and other packages.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("words", nargs="*", help="run the cases whose group or name holds one")
    result.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    result.add_argument("--quick", action="store_true", help="few lengths")
    result.add_argument("--list", action="store_true", help="name the cases and stop")
    result.add_argument("--threads", type=threads, help="torch's (default: its own)")
    result.add_argument(
        "--scale", type=positive, default=1.0, help="of the time spent on each case"
    )
    result.add_argument("--json", metavar="FILE", help="write all numbers")
    result.add_argument("--markdown", metavar="FILE", help="write a table")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line (None: the process's own) and returns its exit code."""
    return run_command(lambda: "python -m posenc.benchmark", lambda: _run(arguments))


def _run(arguments: list[str] | None) -> None:
    options = parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    words = [word.lower() for word in options.words]
    on_cpu = options.device.split(":")[0] == "cpu"
    every = all_cases(options.quick) if on_cpu else device_cases(QUICK if options.quick else FULL)
    cases = [
        case
        for case in every
        if not words or any(w in f"{case.group} {case.name}".lower() for w in words)
    ]
    if not cases:
        parser().error(f"no case has one of {options.words} in its name; --list shows them")
    if options.list:
        for case in cases:
            print(f"{case.group:10} {case.name}")
        return
    try:
        meter = meter_for(options.device)
    except RuntimeError as error:
        raise ValueError(str(error)) from None  # words for the user, not a fault of torch's
    for path in (options.json, options.markdown):
        if path is not None:
            check_writable(path)
    warnings.filterwarnings("ignore", module="torch")
    where, results = machine(options.device), []
    print(", ".join(f"{key} {value}" for key, value in where.items()), flush=True)
    count = len(cases)
    while cases:  # a case keeps its tensors: one is let go before the next begins
        results.append(run_case(cases.pop(0), options.scale, meter))
        print(f"[{len(results)}/{count}] " + "\n".join(lines(results[-1])), flush=True)
    if options.json:
        write_json(options.json, results, where)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as page:
            page.write(markdown(results, where))
    missed = sum(o["reached"] is False for r in results for o in r["others"].values())
    met = sum(o["reached"] is True for r in results for o in r["others"].values())
    print(f"{met} targets met, {missed} missed")


if __name__ == "__main__":
    sys.exit(main())
