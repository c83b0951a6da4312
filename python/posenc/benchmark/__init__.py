"""Measured, not claimed: our operators against the limit of the machine and against their peers.

``python -m posenc.benchmark --help``. Every figure is a ratio of times taken by turns in one run.
"""

from .cases import Case, all_cases
from .cuda_cases import device_cases
from .encodings import EncodingTimes, benchmark_positional_encodings
from .measure import Meter, meter_for
from .report import machine, markdown, run_case

__all__ = [
    "Case",
    "EncodingTimes",
    "Meter",
    "all_cases",
    "benchmark_positional_encodings",
    "device_cases",
    "machine",
    "markdown",
    "meter_for",
    "run_case",
]
