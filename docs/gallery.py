"""Draws the pictures of docs/gallery.md: every one of ``posenc.plots.PICTURES`` that times nothing.

    python docs/gallery.py [--out docs/images/gallery] [name ...]

Equal pictures are equal files; `make docs` draws them anew.
"""

import argparse
import contextlib
import io
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
OUT = HERE / "images" / "gallery"
#: Bytes of one picture: they are part of every clone.
LARGEST = 60_000
#: Dots per inch and colours, tried in turn until the file is small enough.
SIZES = ((110, 256), (100, 256), (90, 256), (80, 256), (72, 128))


def optimised(png: bytes, colours: int) -> bytes:
    """The PNG with a palette in place of 32 bits a pixel."""
    from PIL import Image  # matplotlib brings it

    image = Image.open(io.BytesIO(png)).convert("RGB")
    # This method keeps the ends of a colour bar, however few points have them.
    small = image.quantize(colours, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    out = io.BytesIO()
    small.save(out, "PNG", optimize=True)
    return out.getvalue()


def names() -> list[str]:
    """The pictures of the gallery; those that time the machine differ on each, and those that read
    a file have nothing to show without it."""
    from posenc.plots import PICTURES

    return [name for name, p in PICTURES.items() if not p.measures and p.reads is None]


def draw(name: str) -> bytes:
    """One picture as a PNG file."""
    from posenc.plots import PICTURES

    with contextlib.redirect_stdout(io.StringIO()):  # some print a table as well
        figure = PICTURES[name].function()
    for dpi, colours in SIZES:
        out = io.BytesIO()
        # The file's text says which matplotlib drew it, which makes files differ.
        figure.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
        png = optimised(out.getvalue(), colours)
        if len(png) <= LARGEST:
            return png
    raise ValueError(f"gallery: expected {name} to fit into {LARGEST} bytes, got {len(png)}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="pictures to draw (default: all)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"expected names among {', '.join(names())}, got {', '.join(unknown)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or names():
        (options.out / f"{name}.png").write_bytes(draw(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
