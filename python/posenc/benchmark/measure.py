"""Times of several ways to do one thing, taken by turns, and the memory that each needs."""

import gc
import time
from collections.abc import Callable

Work = Callable[[], object]


def _once(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def times(works: dict[str, Work], seconds: float = 1.0, rounds: int = 5) -> dict[str, list[float]]:
    """Seconds a call, one number a round.

    Rounds go through the works by turns, so that a slow spell of the machine meets all of them.

    Args:
        seconds: about how long each work runs in all.
        rounds: at least 2.
    """
    repeats = {}
    for name, work in works.items():
        work()  # compiles, allocates
        one = _once(work, 1)
        repeats[name] = max(1, min(2000, int(seconds / rounds / max(one, 1e-7))))
    result: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(max(2, rounds)):
        for name, work in works.items():
            result[name].append(_once(work, repeats[name]))
    return result


def peak_memory(work: Work) -> float | None:
    """Largest resident memory while `work` runs, above what was there before, in MiB.

    The result of `work` counts. None where the system does not tell (other than Linux).
    """
    gc.collect()
    work()  # what is made once (thread pools, packed weights) is no part of it
    gc.collect()
    try:
        with open("/proc/self/clear_refs", "w") as reset:
            reset.write("5")  # the high-water mark starts again from the present size
        before = _status("VmRSS")
        work()
        return max(0.0, _status("VmHWM") - before)
    except OSError:
        return None


def _status(key: str) -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    raise OSError(f"no {key} in /proc/self/status")
