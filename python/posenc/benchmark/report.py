"""Results as a table and as JSON."""

import os
import platform
from collections.abc import Callable
from typing import Any

import torch

import posenc
from posenc import _build_info

from .. import _json
from .._machine import processor
from .cases import Case
from .measure import CPU, Meter, Work, own_generator, times


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the figures were taken on."""
    gpu = {}
    if torch.device(device).type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu = {
            "GPU": properties.name,
            "GPU memory, GiB": round(properties.total_memory / 2**30, 1),
            "CUDA": torch.version.cuda,
            "posenc's CUDA kernels": "built in" if _build_info.CUDA else "not built",
        }
    return {
        **gpu,
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "posenc": posenc.__version__,
        "python": platform.python_version(),
    }


def run_case(case: Case, scale: float = 1.0, meter: Meter = CPU) -> dict[str, Any]:
    """Measures one case; torch's generator stays as it was.

    Args:
        scale: of the time that is spent on it.
        meter: of the device that it runs on.

    Returns:
        ``{"group", "name", "ms", "others": {name: {"ms", "ratio", "target", "reached"}}, ...}``;
        ``ratio`` is our best time over the other's, ``missing`` says why a peer was left out.
    """
    with own_generator(meter.device):
        return _measured(case, scale, meter)


def _measured(case: Case, scale: float, meter: Meter) -> dict[str, Any]:
    def make_on_device(make: Callable[[], Work]) -> Work:
        # While tensors are made only: this context adds to the time of every call inside it.
        with torch.device(meter.device):
            return make()

    works, missing = {"ours": make_on_device(case.ours)}, {}
    for name, make in case.others.items():
        try:
            works[name] = make_on_device(make)
            works[name]()
        except ImportError as error:
            missing[name] = str(error)
        except Exception as error:  # a peer that cannot do it here is a result, not the end
            missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            works.pop(name, None)
    taken = times(works, seconds=case.seconds * scale, once=meter.once)
    best = {name: min(t) for name, t in taken.items()}
    others = {}
    for name in works:
        if name == "ours":
            continue
        ratio = best["ours"] / best[name]
        others[name] = {
            "ms": best[name] * 1e3,
            "ratio": ratio,
            "target": case.targets.get(name),
            "reached": case.reached(name, ratio),
        }
    result = {
        "group": case.group,
        "name": case.name,
        "ms": best["ours"] * 1e3,
        "others": others,
        "missing": missing,
    }
    if case.moved:
        result["gb_per_s"] = case.moved / best["ours"] / 1e9
    if case.memory:
        result["peak_mib"] = {
            name: meter.peak_memory(work)
            for name, work in works.items()
            if meter.device != "cpu" or not name.startswith("Flex")
        }
    return result


def ms_text(value: float) -> str:
    """A time in ms with about three digits."""
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _comparison(other: dict[str, Any]) -> str:
    """Our time as a multiple of the limit's, or how much faster we are than a peer."""
    target = other["target"]
    if target is None or target < 0.75:
        text = f"{1 / other['ratio']:.2f} x as fast"
        goal = None if target is None else f">= {1 / target:.3g} x"
    else:
        text = f"{other['ratio']:.2f} x its time"
        goal = f"<= {target:.3g} x"
    mark = "" if goal is None else f" ({goal}{'' if other['reached'] else ', missed'})"
    return text + mark


def lines(result: dict[str, Any]) -> list[str]:
    """A case as lines of text."""
    speed = f", {result['gb_per_s']:.0f} GB/s" if "gb_per_s" in result else ""
    text = [f"{result['name']}: {ms_text(result['ms'])} ms{speed}"]
    for name, other in result["others"].items():
        text.append(f"    {name:28} {ms_text(other['ms']):>9} ms   {_comparison(other)}")
    for name, why in result["missing"].items():
        text.append(f"    {name:28} not measured: {why}")
    for name, mib in result.get("peak_mib", {}).items():
        if mib is not None:
            text.append(f"    {name:28} {mib:9.1f} MiB above its inputs")
    return text


def markdown(results: list[dict[str, Any]], where: dict[str, Any]) -> str:
    """The whole run as a Markdown page's body."""
    text = [", ".join(f"{key} {value}" for key, value in where.items()) + ".", ""]
    for group in dict.fromkeys(result["group"] for result in results):
        text += [f"## {group}", "", "| work | ours, ms | against | its ms | ours is | target |"]
        text += ["| --- | ---: | --- | ---: | ---: | --- |"]
        for result in (r for r in results if r["group"] == group):
            name, ours = result["name"], ms_text(result["ms"])
            if "gb_per_s" in result:
                ours += f" ({result['gb_per_s']:.0f} GB/s)"
            for other_name, other in result["others"].items():
                ratio, target = other["ratio"], other["target"]
                against = (
                    f"{ratio:.2f} of its time" if ratio > 0.75 else f"{1 / ratio:.2f} x faster"
                )
                goal = ""
                if target is not None:
                    goal = (
                        f"<= {target:.2f} of its time" if target > 0.75 else f"{1 / target:.3g} x"
                    )
                    goal += "" if other["reached"] else " (missed)"
                text.append(
                    f"| {name} | {ours} | {other_name} | {ms_text(other['ms'])} "
                    f"| {against} | {goal} |"
                )
                name = ours = ""
        text.append("")
    memory = [r for r in results if r.get("peak_mib")]
    if memory:
        text += [
            "## memory",
            "",
            "Largest memory above the inputs, results included, MiB.",
        ]
        text += ["", "| work | ours | others |", "| --- | ---: | --- |"]
        for result in memory:
            peaks = {k: v for k, v in result["peak_mib"].items() if v is not None}
            ours = peaks.pop("ours", None)
            rest = ", ".join(f"{name} {mib:.0f}" for name, mib in peaks.items())
            text.append(f"| {result['name']} | {'' if ours is None else f'{ours:.0f}'} | {rest} |")
        text.append("")
    return "\n".join(text)


def write_json(path: str, results: list[dict[str, Any]], where: dict[str, Any]) -> None:
    """All numbers of a run."""
    _json.write_json(path, {"machine": where, "results": results})
