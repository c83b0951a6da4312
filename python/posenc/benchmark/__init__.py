"""Measured, not claimed: our operators against the limit of the machine and against their peers.

``python -m posenc.benchmark --help``. Every figure is a ratio of times taken by turns in one run.
"""

from .cases import Case, all_cases
from .report import machine, markdown, run_case

__all__ = ["Case", "all_cases", "machine", "markdown", "run_case"]
