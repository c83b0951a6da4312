"""What an encoding does, in figures: tables, frequencies, decay with distance, skipped blocks.

>>> import posenc
>>> figures = posenc.analyze_positional_encoding(posenc.get_positional_encoding(100, 128))
shape                              (100, 128)
range                              [-1.000, 1.000]
mean cosine similarity, neighbours 0.970
cosine similarity of position 0 with
  position  1                      0.970
  position  5                      0.737
  position 10                      0.669
  position 20                      0.608
  position 50                      0.546

Everything here needs torch alone and asks the layers themselves for their numbers. The pictures
of the same are in ``posenc.plots``, the command is ``python -m posenc analyze``.
"""

from .alibi import AlibiFigures, analyze_alibi, block_map, block_shares
from .checkpoint import load_table, table_names
from .comparison import TradeOffs, trade_offs
from .decay import expected_scores, expected_scores_on_grid
from .frequencies import RopeFigures, analyze_rope, example_scalings
from .library import Encoding, catalogue, scaling_types
from .table import TableFigures, analyze_positional_encoding
from .weights import attention_weights

__all__ = [
    "AlibiFigures",
    "Encoding",
    "RopeFigures",
    "TableFigures",
    "TradeOffs",
    "analyze_alibi",
    "analyze_positional_encoding",
    "analyze_rope",
    "attention_weights",
    "block_map",
    "block_shares",
    "catalogue",
    "example_scalings",
    "expected_scores",
    "expected_scores_on_grid",
    "load_table",
    "scaling_types",
    "table_names",
    "trade_offs",
]
