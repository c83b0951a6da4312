"""Every rotary class of the installed transformers: found in the sources, built with default
configurations, and made to rotate unit vectors.

Nothing here is a list of models: packages, classes, configurations and apply functions are what the
installed version holds.
"""

import ast
import functools
import importlib
import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

FOLDER = Path(transformers.__file__).parent / "models"
CLASS = re.compile(r"^class (\w*(?:Rotary|Rope|RoPE)\w*Embedding)\(", re.MULTILINE)


@functools.cache
def classes() -> list[tuple[str, str, str]]:
    """(package, module, class) of every rotary class, read off the sources without an import."""
    found = []
    for path in sorted(FOLDER.glob("*/modeling_*.py")):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            found.append((path.parent.name, path.stem, name))
    return found


@functools.cache
def borrowed() -> list[tuple[str, str, str]]:
    """(model type, package, module) of the configurations whose model is another package's."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    owners = {}
    for package, module, _ in classes():
        text = (FOLDER / package / f"{module}.py").read_text(encoding="utf-8")
        for model in re.findall(r"^class (\w+Model)\(", text, re.MULTILINE):
            owners[model] = (package, module)
    found = []
    for model_type, model in MODEL_MAPPING_NAMES.items():
        own = list((FOLDER / model_type).glob("modeling_*.py"))
        package = (FOLDER / model_type).is_dir() and model_type in CONFIG_MAPPING_NAMES
        if package and not own and model in owners:
            found.append((model_type, *owners[model]))
    return found


@dataclass
class Record:
    """One rotary class with one default configuration and one type of layer."""

    package: str
    module: Any
    cls: str
    config: Any
    layer: torch.nn.Module
    layer_type: str | None

    @property
    def name(self) -> str:
        """Unique, and stable between versions: what the lists of differences use."""
        name = f"{self.package}:{self.cls}({type(self.config).__name__})"
        return name + (f"[{self.layer_type}]" if self.layer_type else "")

    @property
    def axial(self) -> bool:
        """A vision class, whose positions are (N, axes)."""
        return getattr(self.layer, "rope_type", None) == "axial"

    def inv_freq(self) -> list[float] | None:
        """The class's own frequencies; where it holds a table, those that the table shows."""
        name = f"{self.layer_type}_inv_freq" if self.layer_type else "inv_freq"
        buffer = getattr(self.layer, name, None)
        if buffer is None and hasattr(self.layer, "embed_positions"):
            sin, cos = self.layer.embed_positions[1].double().chunk(2)
            buffer = torch.atan2(sin, cos)
        return None if buffer is None else buffer.double().tolist()

    def attention_factor(self) -> float:
        name = f"{self.layer_type}_attention_scaling" if self.layer_type else "attention_scaling"
        return float(getattr(self.layer, name, 1.0))


@dataclass
class Found:
    """What one class gave: its records, or why there are none."""

    records: list[Record] = field(default_factory=list)
    missing: str | None = None  # an optional dependency that is not installed
    failures: list[str] = field(default_factory=list)  # configurations that the class refuses


def _annotation(owner: type, module) -> type | None:
    """The configuration class that a constructor names."""
    parameter = inspect.signature(owner.__init__).parameters.get("config")
    annotation = None if parameter is None else parameter.annotation
    if isinstance(annotation, str):
        annotation = getattr(module, annotation.split("|")[0].strip().strip("'\""), None)
    for option in (annotation, *getattr(annotation, "__args__", ())):
        if inspect.isclass(option) and issubclass(option, transformers.PreTrainedConfig):
            return None if option is transformers.PreTrainedConfig else option
    return None


def _call_sites(module, name: str) -> list[type]:
    """Configurations of the classes that build the rotary class."""
    configs = []
    for owner in ast.parse(inspect.getsource(module)).body:
        builds = isinstance(owner, ast.ClassDef) and any(
            isinstance(node, ast.Call) and getattr(node.func, "id", None) == name
            for node in ast.walk(owner)
        )
        if builds:
            cls = getattr(module, owner.name)
            configs.append(_annotation(cls, module) or getattr(cls, "config_class", None))
    return [config for config in configs if config is not None]


def package_configs(package: str) -> list[type]:
    """All configurations that a package defines."""
    found = []
    for path in sorted((FOLDER / package).glob("configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{package}.{path.stem}")
        found += [
            value
            for value in vars(module).values()
            if inspect.isclass(value)
            and issubclass(value, transformers.PreTrainedConfig)
            and value.__module__ == module.__name__
        ]
    return found


def build(package: str, module: Any, name: str, config: Any) -> list[Record]:
    """The records of one class with one configuration: one for each of its types of layer."""
    layer = getattr(module, name)(config)
    kinds = getattr(layer, "rope_type", None)
    layer_types = sorted(kinds) if isinstance(kinds, dict) and kinds else [None]
    return [Record(package, module, name, config, layer, kind) for kind in layer_types]


def _build_defaults(package: str, module, name: str, configs, found: Found) -> None:
    for config_class in dict.fromkeys(configs):
        try:
            found.records += build(package, module, name, config_class())
        except Exception as error:  # a configuration of another part of the model
            found.failures.append(f"{config_class.__name__}: {type(error).__name__}: {error}")


@functools.cache
def find(package: str, module_name: str, name: str) -> Found:
    """The records of one class: with the configuration that its constructor names, those of the
    places that build it, and if none of them will do, any of the package's own."""
    found = Found()
    try:
        module = importlib.import_module(f"transformers.models.{package}.{module_name}")
    except ImportError as error:
        found.missing = f"{package}: {error}"
        return found
    named = _annotation(getattr(module, name), module)
    _build_defaults(package, module, name, filter(None, [named, *_call_sites(module, name)]), found)
    if not found.records:
        _build_defaults(package, module, name, package_configs(package), found)
    return found


@functools.cache
def find_borrowed(model_type: str, package: str, module_name: str) -> Found:
    """The records of a configuration with the classes of the package that it borrows from."""
    found = Found()
    try:
        module = importlib.import_module(f"transformers.models.{package}.{module_name}")
    except ImportError as error:
        found.missing = f"{package}: {error}"
        return found
    config_class = transformers.CONFIG_MAPPING[model_type]
    for owner, owned, name in classes():
        if (owner, owned) == (package, module_name):
            _build_defaults(package, module, name, [config_class], found)
    return found


# -- what the model does with the frequencies ------------------------------------------------------


def apply_function(record: Record):
    """(name, function) that the package's attention rotates with, or (None, None)."""
    functions = {
        name: value
        for name, value in vars(record.module).items()
        if inspect.isfunction(value)
        and value.__module__ == record.module.__name__
        and re.match(r"(vision_)?apply_\w*(rotary|rope)", name)
    }
    order = ["apply_rotary_pos_emb", "apply_rotary_emb"]
    if getattr(record.config, "rope_interleave", True):
        # Models with the flag hold both; without it, the plain one is the indexer's.
        order.insert(0, "apply_rotary_pos_emb_interleave")
    if record.axial:
        order = [
            "apply_rotary_pos_emb_vision",
            "apply_rotary_pos_emb_2d",
            "apply_rotary_pos_emb_2d_self_attn",
            "apply_multidimensional_rope",
            *order,
        ]
    if record.cls.endswith("AudioRotaryEmbedding"):  # an encoder beside a text model
        order.remove("apply_rotary_pos_emb_interleave")
    for name in order:
        if name in functions:
            return name, functions[name]
    return None, None


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def model_rotates(record: Record, x: Tensor, positions: Tensor) -> Tensor:
    """x (H, L, W) rotated by the model's own class and function at positions (axes, L).

    W is the width that the model's function takes.
    """
    name, apply = apply_function(record)
    if "DiT" in record.cls:  # its attention reorders the channels before the call
        x = record.module.deinterleave_head_dim(x)
    arguments = inspect.signature(apply).parameters
    forward = inspect.signature(type(record.layer).forward).parameters
    options = {"layer_type": record.layer_type} if "layer_type" in forward else {}
    probe = torch.zeros(1)
    if record.axial:
        ids = positions.T.contiguous()
        if "position_ids" in arguments:  # batched
            angles = record.layer(probe, ids[None])
            q = x.permute(1, 0, 2)[None]
            return apply(q, *angles, ids[None])[0].permute(1, 0, 2)
        angles = record.layer(probe, ids)
        if name == "apply_rotary_pos_emb_vision":
            return _first(apply(*2 * (x.transpose(0, 1),), *angles)).transpose(0, 1)
        if angles[0].dim() == 2:
            angles = (angles[0][None], angles[1][None])
        return _first(apply(*2 * (x[None],), *angles))[0]
    ids = positions[0][None] if len(positions) == 1 else positions[:, None]
    angles = record.layer(probe, ids, **options)
    if isinstance(angles, Tensor):  # complex numbers
        time_first = "unsqueeze(1)" not in inspect.getsource(apply)
        q = x.transpose(0, 1)[None] if time_first else x[None]
        result = _first(apply(q, q, angles))[0]
        return result.transpose(0, 1) if time_first else result
    if list(arguments)[:3] == ["tensor", "sin", "cos"]:
        return apply(x.transpose(0, 1)[None], *angles)[0].transpose(0, 1)
    if "q" not in arguments:
        return apply(x[None], *angles)[0]
    return _first(apply(x[None], x[None], *angles))[0]
