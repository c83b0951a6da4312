"""The C++ page: a ``.. headers::`` line becomes Breathe directives for what those declare.

Breathe can show a whole header too, but then opens the namespace again with each of them.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

NAMESPACES = ("posenc", "posenc::nn")


def _namespaces(xml: Path) -> dict[str, str]:
    """Name of each namespace: the file that describes it."""
    index = ElementTree.parse(xml / "index.xml").getroot()
    spaces = index.findall("compound[@kind='namespace']")
    return {space.findtext("name"): space.get("refid") for space in spaces}


def _argument_types(member: ElementTree.Element) -> str:
    types = ["".join(p.find("type").itertext()) for p in member.findall("param")]
    return ", ".join(types)


def _described(node: ElementTree.Element) -> bool:
    parts = ("briefdescription", "detaileddescription")
    return any("".join(node.find(part).itertext()).strip() for part in parts)


def declarations(xml: Path) -> dict[str, list[tuple[int, str]]]:
    """Header (its file name): line and directive of everything public that it declares."""
    refs = _namespaces(xml)
    found: dict[str, list[tuple[int, str]]] = {}

    def add(node: ElementTree.Element, directive: str) -> None:
        location = node.find("location")
        header = Path(location.get("declfile") or location.get("file")).name
        line = int(location.get("declline") or location.get("line"))
        found.setdefault(header, []).append((line, directive))

    for namespace in NAMESPACES:
        root = ElementTree.parse(xml / f"{refs[namespace]}.xml").getroot()
        for member in root.findall(".//memberdef"):
            name = f"{namespace}::{member.findtext('name')}"
            if member.get("kind") == "function":
                add(member, f".. doxygenfunction:: {name}({_argument_types(member)})")
            elif _described(member):  # not the holder of each module
                add(member, f".. doxygentypedef:: {name}")
        for inner in root.findall(".//innerclass"):
            compound = ElementTree.parse(xml / f"{inner.get('refid')}.xml").find("compounddef")
            kind = compound.get("kind")
            add(compound, f".. doxygen{kind}:: {inner.text}\n   :members:\n   :undoc-members:")
    return found


def expand(text: str, xml: Path) -> str:
    """The page with its directives; an error where a declared name would not be on it."""
    found = declarations(xml)

    def directives(match: re.Match) -> str:
        return "\n\n".join(
            directive for header in match[1].split() for _, directive in sorted(found.pop(header))
        )

    text = re.sub(r"^\.\. headers:: (.*)$", directives, text, flags=re.MULTILINE)
    if found:
        raise ValueError(f"docs/api/cpp.rst: expected every public header, lacks {sorted(found)}")
    return text
