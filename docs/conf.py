"""Sphinx configuration; `make docs` builds, with warnings as errors."""

import contextlib
import importlib
import inspect
import io
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs")]

import cpp_reference  # noqa: E402
import posenc  # noqa: E402
import posenc.cli  # noqa: E402
from docutils import nodes  # noqa: E402
from sphinx import addnodes  # noqa: E402

DOXYGEN_XML = ROOT / "build" / "docs" / "doxygen" / "xml"
WITH_DOXYGEN = (DOXYGEN_XML / "index.xml").exists()

project = "posenc"
author = "the posenc authors"
version = release = posenc.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
if WITH_DOXYGEN:
    extensions.append("breathe")

html_theme = "furo"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = f"posenc {release}"
html_theme_options = {"navigation_with_keys": True}
templates_path: list[str] = []
exclude_patterns = ["requirements.txt"]
smartquotes = False

# A name between single backticks in a docstring is a link; nitpicky: one that leads somewhere.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|transformers|collections|typing|numpy|matplotlib|os|pathlib)\..*"),
    ("py:class", r"(Tensor|Figure|optional|.*\.(_MODEL|cuda_cases\.Sizes))"),
    ("cpp:.*", r".*"),  # names of torch and the standard library
]
add_module_names = False
python_use_unqualified_type_names = True

autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

breathe_projects = {"posenc": str(DOXYGEN_XML)}
breathe_default_project = "posenc"
breathe_default_members = ("members",)
breathe_show_include = False

#: Where a name that stands alone is looked for.
WITH_PUBLIC_NAMES = (
    "posenc",
    "posenc.functional",
    "posenc.analysis",
    "posenc.plots",
    "posenc.benchmark",
    "posenc.training",
    "posenc.integrations.transformers",
)
#: Files that a page includes where they exist, and what stands there otherwise.
OPTIONAL_FILES = {
    "BENCHMARKS.md": "This checkout holds no measurements; `make bench` makes them.",
}


def help_of(match):
    """What a command's --help prints, as a block of text."""
    os.environ["COLUMNS"] = "100"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        posenc.cli.main([*match[1].split()[1:], "--help"])
    return f"```text\n{said.getvalue().rstrip()}\n```"


def adapt(app, docname, source):
    """Leaves out what this checkout or this machine does not have."""
    for name, otherwise in OPTIONAL_FILES.items():
        if not (ROOT / name).exists():
            block = rf"^```\{{include\}} \.\./{re.escape(name)}\n.*?^```$"
            source[0] = re.sub(block, otherwise, source[0], flags=re.MULTILINE | re.DOTALL)
    source[0] = re.sub(r"^```\{command-help\} (.*)\n```$", help_of, source[0], flags=re.MULTILINE)
    if docname == "api/cpp" and WITH_DOXYGEN:
        source[0] = cpp_reference.expand(source[0], DOXYGEN_XML)
    elif docname == "api/cpp":
        title = "\n".join(source[0].splitlines()[:2])
        source[0] = (
            f"{title}\n\nThis build was made without Doxygen, which reads the headers; "
            "the same comments stand in ``csrc/posenc/*/*.h``.\n"
        )


def drop_aliases(app, what, name, obj, options, lines):
    """The fields of a named tuple are described by the class's own text."""
    if inspect.isdatadescriptor(obj) and lines and lines[0].startswith("Alias for field"):
        lines.clear()


def link_papers(app, what, name, obj, options, lines):
    paper = re.compile(r"arXiv:(\d{4}\.\d{5})")
    lines[:] = [paper.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", line) for line in lines]


def public_names() -> dict[str, str]:
    """What a guide may write in backticks: where the reference has it."""
    targets: dict[str, str] = {}
    for where in (*WITH_PUBLIC_NAMES[1:], "posenc"):
        module = importlib.import_module(where)
        for name in module.__all__:
            if not inspect.ismodule(getattr(module, name)):
                targets.setdefault(name, f"{where}.{name}")
                targets.setdefault(f"{where}.{name}", targets[name])
    for name, target in list(targets.items()):
        layer = getattr(posenc, name, None)
        for method in vars(layer) if inspect.isclass(layer) else ():
            targets[f"{name}.{method}"] = f"{target}.{method}"
    return targets


def link_names(app, doctree):
    """A public name in the text of a guide leads to the reference."""
    if app.env.docname.startswith("api/"):
        return
    for node in list(doctree.findall(nodes.literal)):
        target = PUBLIC.get(node.astext().removesuffix("()"))
        if target is None or isinstance(node.parent, (nodes.reference, nodes.title)):
            continue
        xref = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=target, refdoc=app.env.docname
        )
        node.replace_self(xref)
        xref += node


def find_public(app, env, node, contnode):
    """`alibi_slopes` for ``posenc.functional.alibi_slopes``, wherever it is written, and the
    public name of a class that a signature names by the file that it stands in."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].lstrip("~.").rpartition(".")[2]
    domain = env.get_domain("py")
    for where in WITH_PUBLIC_NAMES:
        if f"{where}.{last}" in domain.objects:
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, "obj", f"{where}.{last}", node, contnode
            )
    return None


PUBLIC = public_names()


def setup(app):
    app.connect("source-read", adapt)
    app.connect("doctree-read", link_names)
    app.connect("autodoc-process-docstring", drop_aliases)
    app.connect("autodoc-process-docstring", link_papers)
    app.connect("missing-reference", find_public)
