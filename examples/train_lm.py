#!/usr/bin/env python3
"""Train a byte-level Transformer with each position encoding and compare them on longer inputs.

python examples/train_lm.py            everything, in a few minutes on two cores
python examples/train_lm.py --help     what can be chosen

The same as ``python -m posenc train``; the code is the package ``posenc.training``.
"""

import sys

from posenc.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
