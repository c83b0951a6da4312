"""The main job: a small language model with each encoding, compared beyond the trained length.

``python -m posenc train`` (in a checkout also ``make demo``). Needed beside torch:
``pip install posenc[train]`` for the progress bars and the chart.
"""

from .job import run
from .options import Settings, UserError

__all__ = ["Settings", "UserError", "run"]
