"""The encoding that a command is about, from its options."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._arguments import positive, whole
from .._json import parse_json, read_json

#: What configurations call their longest sequence, and where they keep it.
_LENGTHS = ("max_position_embeddings", "n_positions", "model_max_length", "max_seq_len")
_NESTED = (
    *("text_config", "thinker_config", "language_config", "llm_config"),
    *("rope_parameters", "rope_scaling"),
)


def add_rope(parser: argparse.ArgumentParser, width: int = 64) -> None:
    """Options that describe a RoPE.

    Args:
        width: of a head, where neither --head-dim nor --config says.
    """
    parser.set_defaults(rope_width=width)
    group = parser.add_argument_group("which RoPE")
    add = group.add_argument
    add("--config", metavar="FILE", help="a model's config.json, or the folder that holds it")
    add("--layer-type", metavar="NAME", help="the layer type, where a configuration has several")
    add("--head-dim", type=whole(2), metavar="N", help=f"width of a head (default: {width})")
    add("--base", type=positive, metavar="X", help="theta (default: 10000)")
    add("--rotary-dim", type=whole(2), metavar="N", help="rotated channels (default: all)")
    add(
        "--scaling",
        metavar="TYPE|JSON|FILE",
        help="a type (linear, ntk, dynamic, yarn, longrope, llama3, ...) with its usual values, a "
        'JSON dictionary such as \'{"rope_type": "linear", "factor": 4}\', or a file of one',
    )
    add(
        "--factor",
        type=positive,
        metavar="X",
        help="how many times the trained length, with a type (default: 8)",
    )
    add(
        "--trained-length",
        type=whole(1),
        metavar="N",
        help="positions seen in training (default: the configuration's or the scaling's, else "
        "4096)",
    )


def _scaling(
    given: argparse.Namespace, head_dim: int, trained_length: int | None
) -> dict[str, Any] | None:
    from ..analysis import example_scalings

    text = given.scaling
    if text is None:
        if given.factor is not None:
            raise ValueError("--factor: expected --scaling with a type, got none")
        return None
    width = given.rotary_dim or head_dim
    examples = example_scalings(width, given.factor or 8.0, trained_length or 4096)
    if text in examples:
        return examples[text]
    if given.factor is not None:
        raise ValueError(
            f"--factor: expected --scaling to be one of {', '.join(examples)}, got {text}"
        )
    if text.lstrip().startswith("{"):
        found = parse_json("--scaling", text)
    elif Path(text).is_file():
        found = read_json("--scaling", text)
    else:
        raise ValueError(
            f"--scaling: expected a JSON dictionary, a file or one of {', '.join(examples)}, "
            f"got {text}"
        )
    if not isinstance(found, dict):
        raise ValueError(f"--scaling: expected a dictionary, got {found!r}")
    return found


def is_rope_given(given: argparse.Namespace, apart: frozenset[str] | set[str]) -> bool:
    """Whether any option describes a RoPE, but for those that mean something else here."""
    names = {"config", "layer_type", "head_dim", "base", "rotary_dim", "scaling", "factor"}
    return any(getattr(given, name) is not None for name in names - apart)


def _configured_length(config: Mapping[str, Any], rope: Any) -> int | None:
    """The length that a configuration names: the trained one of its scaling, else the longest."""
    from ..analysis.frequencies import known_length

    def names_one(part: Mapping[str, Any]) -> bool:
        inside = [part[key] for key in _NESTED if isinstance(part.get(key), Mapping)]
        return any(part.get(key) is not None for key in _LENGTHS) or any(map(names_one, inside))

    named = known_length(rope)
    return rope.max_seq_len if named is None and names_one(config) else named


def rope_of(given: argparse.Namespace) -> tuple[Any, int | None]:
    """The `RotaryPositionalEmbedding` that the options describe, and the length that it was trained
    on: --trained-length, else what its scaling names, else what its configuration names."""
    from ..analysis.frequencies import known_length
    from ..rotary import RotaryPositionalEmbedding

    if given.config is None:
        if given.layer_type is not None:
            raise ValueError("--layer-type: expected --config with it, got none")
        width = given.head_dim or given.rope_width
        rope = RotaryPositionalEmbedding(
            width,
            base=10000.0 if given.base is None else given.base,
            rotary_dim=given.rotary_dim,
            scaling=_scaling(given, width, given.trained_length),
        )
        return rope, given.trained_length or known_length(rope)
    path = Path(given.config)
    config = read_json("--config", path / "config.json" if path.is_dir() else path)
    if not isinstance(config, dict):
        raise ValueError(f"--config {path}: expected a dictionary, got {type(config).__name__}")
    overrides: dict[str, Any] = {}
    if given.head_dim is not None:
        overrides["d_model"] = given.head_dim
    for name in ("base", "rotary_dim"):
        if getattr(given, name) is not None:
            overrides[name] = getattr(given, name)
    plain = RotaryPositionalEmbedding.from_config(config, given.layer_type, **overrides)
    trained = given.trained_length or _configured_length(config, plain)
    scaling = _scaling(given, plain.d_model, trained)
    if scaling is None:
        return plain, trained
    rope = RotaryPositionalEmbedding.from_config(
        config, given.layer_type, **overrides, scaling=scaling
    )
    return rope, given.trained_length or known_length(rope) or trained


def rope_name(rope: Any) -> str:
    """A short name for legends."""
    name = "RoPE" if rope.rope_type == "default" else f"RoPE, {rope.rope_type}"
    return f"{name}, θ = {rope.base:g}"


def add_checkpoint(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Options that name a learned table."""
    group = parser.add_argument_group("which table")
    group.add_argument(
        "--checkpoint",
        required=required,
        metavar="FILE",
        help="a learned table out of this .pt or .safetensors file",
    )
    group.add_argument(
        "--key", metavar="NAME", help="its name in the file (default: the one that says positions)"
    )


def table_of(given: argparse.Namespace) -> Any:
    """The table that the options name; None without any."""
    from ..analysis import load_table

    if given.checkpoint is None:
        if given.key is not None:
            raise ValueError("--key: expected --checkpoint with it, got none")
        return None
    return load_table(given.checkpoint, given.key)
