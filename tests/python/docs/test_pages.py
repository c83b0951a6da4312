"""The pages name everything public, and what they include and link to is there.

`make docs` builds them with warnings as errors; this is what can be told without Sphinx.
"""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")])
MODULES = [
    "posenc",
    "posenc.functional",
    "posenc.cpp",
    "posenc.integrations.transformers",
    "posenc.analysis",
    "posenc.plots",
    "posenc.benchmark",
    "posenc.training",
]
#: Modules whose functions ``posenc`` also has under a shorter name.
SHORTENED = ("posenc.functional", "posenc.analysis", "posenc.plots", "posenc.benchmark")
#: May be missing until someone has measured; the page says so then (docs/conf.py).
OPTIONAL = {"BENCHMARKS.md"}


def documented() -> set[str]:
    """Full names that the reference has a directive for."""
    names = set()
    for page in (DOCS / "api").glob("*.rst"):
        module = ""
        for line in page.read_text().splitlines():
            if match := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif match := re.match(r"\.\. auto(?:module|class|function|data):: (\S+)", line):
                name = match[1]
                names.add(name if name.startswith("posenc") else f"{module}.{name}")
            elif match := re.match(r"\.\. data:: (\S+)", line):
                names.add(f"{module}.{match[1]}")
    return names


@pytest.mark.parametrize("module", MODULES)
def test_reference_has_every_public_name_and_no_other(module):
    needs = {
        "posenc.integrations.transformers": "transformers",
        "posenc.plots": "matplotlib",
        "posenc.training": "matplotlib",
    }
    pytest.importorskip(needs.get(module, "torch"))
    public = set(importlib.import_module(module).__all__)
    found = {name.rpartition(".")[2] for name in documented() if name.rpartition(".")[0] == module}
    if module == "posenc":
        short = {name for m in SHORTENED for name in importlib.import_module(m).__all__} & public
        text = (DOCS / "api" / "python.rst").read_text()
        assert all(f"``posenc.{name}``" in text for name in short)
        public -= short
        public -= {m.rpartition(".")[2] for m in MODULES}  # they have pages of their own
        found -= {m.partition(".")[2].partition(".")[0] for m in MODULES}
    assert found <= public
    assert public - found == set(), "docs/api lacks these"


def test_each_table_of_contents_names_what_follows_it():
    for page in (DOCS / "api").glob("*.rst"):
        text = page.read_text()
        listed = set()
        for block in re.findall(r"autosummary::\n(?: {3}:.*\n)*\n((?: {3}\w+\n)+)", text):
            listed |= set(block.split())
        described = set(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", text, re.MULTILINE))
        if listed:
            assert listed == described, page.name


def test_reference_has_every_public_header():
    page = (DOCS / "api" / "cpp.rst").read_text()
    listed = " ".join(re.findall(r"^\.\. headers:: (.*)$", page, re.MULTILINE)).split()
    headers = (ROOT / "csrc/posenc/posenc.h").read_text()
    public = re.findall(r"#include <posenc/\w+/(\w+\.h)>", headers)
    assert set(public) <= set(listed)
    assert len(listed) == len(set(listed))
    for name in listed:
        assert len(list((ROOT / "csrc/posenc").glob(f"*/{name}"))) == 1, name


def test_every_page_is_in_a_table_of_contents():
    linked = []
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks += re.findall(r"^\.\. toctree::\n((?: {3}.*\n|\n)+)", text, re.MULTILINE)
        entries = [line.strip() for block in blocks for line in block.splitlines()]
        linked += [(page.parent / e).resolve() for e in entries if e and e[0] != ":"]
    pages = [page.with_suffix("").resolve() for page in PAGES if page.stem != "index"]
    assert sorted(linked) == sorted(pages)


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def included(page: Path, text: str) -> list[tuple[Path, str]]:
    """Each file that a page includes, with the part that it takes."""
    parts = []
    for target, options in re.findall(
        r"^```\{include\} (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    ):
        path = (page.parent / target).resolve()
        if not path.exists() and path.name in OPTIONAL:
            continue
        part = path.read_text()
        for option, cut in (("start-after", 2), ("end-before", 0)):
            if match := re.search(rf'^:{option}: "(.*)"$', options, re.MULTILINE):
                assert part.count(f"{match[1]}\n") >= 1, f"{page.name}: {match[1]!r} is not there"
                part = part.partition(match[1])[cut]
        assert part.strip(), f"{page.name}: nothing of {target} is left"
        parts.append((path, part))
    return parts


def anchors(page: Path) -> set[str]:
    text = page.read_text()
    own = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    texts = [own, *(part for _, part in included(page, text))]
    return {slug(h) for t in texts for h in re.findall(r"^#+ (.*)$", t, re.MULTILINE)}


def links(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in t]


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(DOCS)) for p in PAGES])
def test_links_and_includes_lead_somewhere(page):
    text = page.read_text()
    assert page.suffix == ".md" or "](" not in text
    for target in links(text):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target
    for source, part in included(page, text):
        for target in links(part):
            path, _, anchor = target.partition("#")
            assert (source.parent / path).exists(), target
            # Sphinx sees the pages under docs/ alone.
            assert path.startswith("docs/") and (not anchor or anchor in anchors(ROOT / path)), (
                f"{page.name} takes in a link that leads out of docs/: {target}"
            )
    for target in re.findall(r"^(?:```\{literalinclude\}|\.\. literalinclude::) (\S+)", text, re.M):
        assert (page.parent / target).exists(), target
    for target in re.findall(r":doc:`(?:[^`<]*<)?([^`>]+)>?`", text):
        assert any((page.parent / f"{target}{end}").exists() for end in (".md", ".rst")), target


def test_command_line_page_has_every_command():
    from posenc.cli import build_parser

    page = (DOCS / "command.md").read_text()
    shown = re.findall(r"^```\{command-help\} posenc ?(\w*)$", page, re.MULTILINE)
    (commands,) = [a for a in build_parser()._actions if a.dest == "command"]
    assert shown == ["", *commands.choices]


def test_pages_name_what_exists():
    """`posenc.x.y` in the text of a guide, and functions and layers in backticks with a call."""
    for page in [p for p in PAGES if p.suffix == ".md"]:
        for name in re.findall(r"`(posenc(?:\.\w+)+)`", page.read_text()):
            *path, last = name.split(".")
            if last in ("h", "pt"):
                continue
            owner = importlib.import_module(path[0])
            for part in [*path[1:], last]:
                owner = getattr(owner, part, None) or importlib.import_module(
                    f"{owner.__name__}.{part}"
                )
