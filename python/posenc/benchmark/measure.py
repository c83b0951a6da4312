"""Times of several ways to do one thing, taken by turns, and the memory that each needs."""

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

Work = Callable[[], object]


def own_generator(device: str) -> contextlib.AbstractContextManager[None]:
    """Inputs are drawn, and some set a seed: after this, the caller's generators go on as if none
    had been."""
    kind = torch.device(device)
    if kind.type != "cuda":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(
        devices=[torch.cuda.current_device() if kind.index is None else kind.index]
    )


def _once(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _once_on_device(work: Work, repeats: int) -> float:
    """The same by events of the current stream: what the device was busy, or waited for calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


def times(
    works: dict[str, Work],
    seconds: float = 1.0,
    rounds: int = 5,
    once: Callable[[Work, int], float] = _once,
) -> dict[str, list[float]]:
    """Seconds a call, one number a round.

    Rounds go through the works by turns, so that a slow spell of the machine meets all of them.

    Args:
        seconds: about how long each work runs in all.
        rounds: at least 2.
        once: (work, repeats) -> seconds a call.
    """
    repeats = {}
    for name, work in works.items():
        work()  # compiles, allocates
        one = once(work, 1)
        repeats[name] = max(1, min(2000, int(seconds / rounds / max(one, 1e-7))))
    result: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(max(2, rounds)):
        for name, work in works.items():
            result[name].append(once(work, repeats[name]))
    return result


def peak_memory(work: Work) -> float | None:
    """Largest resident memory while `work` runs, above what was there before, in MiB.

    The result of `work` counts. None where the system does not tell (other than Linux).
    """
    gc.collect()
    work()  # what is made once (thread pools, packed weights) is no part of it
    gc.collect()
    _give_back()
    try:
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")  # the high-water mark starts again from the present size
        before = _status("VmRSS")
        work()
        return max(0.0, _status("VmHWM") - before)
    except OSError:
        return None


def _give_back() -> None:
    """Freed memory that the C library keeps would hide what `work` takes."""
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    raise OSError(f"no {key} in /proc/self/status")


def peak_device_memory(work: Work) -> float:
    """Largest memory of torch's CUDA allocator while `work` runs, above what was there before, in
    MiB. The result of `work` counts."""
    gc.collect()
    work()  # what is made once (a library's workspace) is no part of it
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del result
    return (peak - before) / 2**20


class Meter(NamedTuple):
    """How a kind of device is measured.

    Attributes:
        device: as torch names it.
        once: seconds of one call, from a work and the number of its repeats.
        peak_memory: MiB that a work adds, None where that cannot be told.
    """

    device: str
    once: Callable[[Work, int], float]
    peak_memory: Callable[[Work], float | None]


CPU = Meter("cpu", _once, peak_memory)


def meter_for(device: str) -> Meter:
    """The meter of a device, "cpu", "cuda" or "cuda:1".

    Raises:
        RuntimeError: torch has no such device here.
    """
    try:
        kind = torch.device(device)
    except RuntimeError as error:
        raise RuntimeError(f"--device {device}: {str(error).splitlines()[0]}") from None
    if kind.type == "cpu":
        return CPU
    if kind.type != "cuda":
        raise RuntimeError(f"expected --device cpu or cuda, got {device}")
    if not torch.cuda.is_available():
        built = "built without CUDA" if torch.version.cuda is None else "finds no GPU it can use"
        raise RuntimeError(f"--device {device} needs a GPU, and torch {torch.__version__} {built}")
    if (kind.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(f"--device {device}: there are {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(kind)
    return Meter(device, _once_on_device, peak_device_memory)
