"""The gallery's pictures are those of posenc.plots, small, and as these draw them now."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from PIL import Image

DOCS = Path(__file__).resolve().parents[3] / "docs"
FOLDER = DOCS / "images" / "gallery"


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_shows_every_picture_with_its_function(gallery):
    from posenc.plots import PICTURES

    page = (DOCS / "gallery.md").read_text()
    shown = re.findall(r"!\[.+\]\(images/gallery/(\w+)\.png\)", page)
    assert sorted(shown) == sorted(gallery.names())
    assert sorted(p.stem for p in FOLDER.iterdir()) == sorted(shown)
    for name in shown:
        assert f"`posenc.plots.{PICTURES[name].function.__name__}()`" in page


def test_pictures_are_small(gallery):
    for path in FOLDER.iterdir():
        assert path.stat().st_size <= gallery.LARGEST, path.name


@pytest.mark.parametrize("name", ["alibi", "encodings", "rope"])
def test_picture_is_as_it_is_drawn_now(gallery, name, tmp_path, capsys):
    """Another version of matplotlib may move a letter, so: nearly the same picture."""
    assert gallery.main([name, "--out", str(tmp_path)]) == 0
    first = (tmp_path / f"{name}.png").read_bytes()
    gallery.main([name, "--out", str(tmp_path)])
    assert (tmp_path / f"{name}.png").read_bytes() == first, "expected equal files"
    now, kept = (
        np.asarray(Image.open(folder / f"{name}.png").convert("RGB"), dtype=float)
        for folder in (tmp_path, FOLDER)
    )
    assert now.shape == kept.shape, "draw docs/images/gallery again: make docs"
    assert np.abs(now - kept).mean() < 1.0, "draw docs/images/gallery again: make docs"


def test_unknown_picture_is_an_error(gallery, capsys):
    with pytest.raises(SystemExit):
        gallery.main(["benchmark"])
    assert "expected names among" in capsys.readouterr().err
