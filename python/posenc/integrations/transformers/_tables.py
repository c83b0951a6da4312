"""cos and sin by our rules, in the place of a model's rotary embedding module.

Such a module turns positions into cos and sin, each column of which belongs to one frequency and,
where positions have several axes, to one axis. Which ones is found by calling the module at
position 1 of each axis: the angles that come back are frequencies, and they must be those that
`RotaryPositionalEmbedding.from_config` reads from the same configuration. So the columns lie as
the model's own code puts them (halves doubled, pairs doubled, sections of M-RoPE, ...), and a
configuration that is understood in another way is found out and left.

The numbers themselves are the operator's: rotating the unit pair (1, 0) gives (cos, sin).
"""

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...rotary import RotaryPositionalEmbedding
from ._swap import MAKERS, Note, subclass


class Table(NamedTuple):
    """What one module, for one type of layer, computes."""

    inv_freq: list[float]  #: one a column
    columns: list[int]  #: which of the configuration's frequencies that is
    attention_factor: float
    axes: list[int] | None  #: one a column, where positions have several
    axes_last: bool  #: positions are (L, axes), of one row; else (axes, B, L)
    batched: bool  #: what comes back has a batch axis
    order: str  #: "cos sin", "sin cos" or "complex"
    rope: RotaryPositionalEmbedding | None  #: where the frequencies depend on the length


class _NotServed(Exception):
    """Says why a module is left."""


# ------------------------------------------------------------------ computing


def _rows(table: Table, x: Tensor, position_ids: Tensor) -> tuple[Tensor, ...] | Tensor | None:
    """What the module returns, None for positions that are not of its form."""
    axes = table.axes
    if axes is not None and table.axes_last:
        if position_ids.dim() != 2:
            return None
        position_ids = position_ids.t()[:, None]
    elif axes is not None and position_ids.dim() == 3:
        position_ids = (
            position_ids.expand(max(axes) + 1, -1, -1)
            if (position_ids.size(0) == 1)
            else position_ids
        )
    elif position_ids.dim() == 2:
        axes = None  # the same position on every axis
    else:
        return None
    width = len(table.inv_freq)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    batch, length = position_ids.shape[-2:]
    ones = torch.ones(width, dtype=dtype, device=x.device)
    unit = torch.cat([ones, torch.zeros_like(ones)]).expand(batch, length, 1, 2 * width)
    if table.rope is None:
        y = torch.ops.posenc.rotary_embedding(
            unit, table.inv_freq, position_ids, 0, 1, False, None, 0, table.attention_factor, axes
        )
    else:
        own = table.rope._inv_freq_of_length(unit, position_ids, 0)
        own = own[..., torch.tensor(table.columns, device=own.device)]
        y = torch.ops.posenc.rotary_embedding(
            unit, own, position_ids, 0, 1, False, None, 0, table.attention_factor, axes
        )
    y = y.squeeze(2) if table.batched else y[0, :, 0]
    cos, sin = y[..., :width].contiguous(), y[..., width:].contiguous()
    if table.order == "complex":
        return torch.complex(cos, sin)
    return (cos, sin) if table.order == "cos sin" else (sin, cos)


_SUBCLASSES: dict[type, type] = {}


def tables_class(cls: type) -> type:
    """The subclass of ``cls`` that computes by the tables kept on the module."""
    if cls not in _SUBCLASSES:
        plain: Any = cls.forward
        names = tuple(inspect.signature(plain).parameters)[1:]

        @functools.wraps(plain)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False))
            given.update(kwargs)
            table = self._posenc_tables.get(given.get("layer_type"))
            x, position_ids = given.get(names[0]), given.get("position_ids")
            if table is not None and x is not None and position_ids is not None:
                rows = _rows(table, x, position_ids)
                if rows is not None:
                    return rows
            return plain(self, *args, **kwargs)

        note = Note("tables", "forward", "exact cos and sin")
        _SUBCLASSES[cls] = subclass(cls, "tables", {"forward": forward}, (note,))
    return _SUBCLASSES[cls]


MAKERS["tables"] = tables_class


# ------------------------------------------------------------------ reading a module


def makes_tables(module: nn.Module, original: type) -> bool:
    """Whether a module has the form of a rotary embedding: positions in, nothing learned."""
    forward = getattr(original, "forward", None)
    if not callable(forward) or any(True for _ in module.parameters()):
        return False
    if original.__module__.partition(".")[0] == "torch" or any(True for _ in module.children()):
        return False
    if any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
        return True
    return "position_ids" in inspect.signature(forward).parameters


def tables(
    module: nn.Module, original: type, config: Any
) -> tuple[dict[str | None, Table] | None, tuple[Note, ...]]:
    """The tables of a module by type of layer, or None and the reason."""
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
            return _tables(module, original, config), ()
    except _NotServed as reason:
        return None, (Note("tables", "forward", str(reason)),)


def _tables(module: nn.Module, original: type, config: Any) -> dict[str | None, Table]:
    config = getattr(module, "config", config)
    names = tuple(inspect.signature(original.forward).parameters)[1:]
    if "position_ids" not in names:
        raise _NotServed("it takes no position_ids")
    if config is None:
        raise _NotServed("there is no configuration to read frequencies from")
    try:
        # The module at hand may have been cast, moved, or have met a long sequence.
        fresh = original(config).float()
    except Exception as error:
        raise _NotServed(f"it cannot be made from its configuration: {error}") from error
    _same_frequencies(module, fresh)
    types: list[str | None] = [None]
    if "layer_type" in names:
        buffers = [name for name, _ in fresh.named_buffers(recurse=False)]
        own = [name.removesuffix("_inv_freq") for name in buffers if name.endswith("_inv_freq")]
        types = [
            name for name in own if not name.startswith("original") and "_original" not in name
        ]
        types = types or [None]
    return {layer_type: _table(fresh, names, config, layer_type) for layer_type in types}


def _same_frequencies(module: nn.Module, fresh: nn.Module) -> None:
    """The module at hand is what its configuration makes.

    But for a cast: a model that was in bfloat16 or float16 once has lost these bits for good.
    """
    buffers = dict(fresh.named_buffers(recurse=False))
    for name, right in buffers.items():
        own = getattr(module, name, None)
        if "inv_freq" not in name or not isinstance(own, Tensor) or own.is_meta:
            continue
        if name.replace("inv_freq", "original_inv_freq") in buffers:
            continue  # changes with the length (dynamic); the original does not
        off = (own.detach().cpu().double() - right.double()).abs()
        if own.shape != right.shape or (off > 2**-8 * right.abs() + 2**-24).any():
            raise _NotServed(f"its {name} is not what its configuration makes")


_BATCH, _LENGTH = 2, 5


def _table(fresh: nn.Module, names: tuple[str, ...], config: Any, layer_type: str | None) -> Table:
    more = {} if layer_type is None else {"layer_type": layer_type}

    def angles(position_ids: Tensor) -> tuple[Tensor, Tensor, str]:
        """Angle and size of each number that the module returns."""
        given = {names[0]: torch.zeros(1, 1, dtype=torch.float32), "position_ids": position_ids}
        try:
            out = fresh(**given, **more)
        except Exception as error:
            raise _NotServed(f"it does not take such positions: {error}") from error
        if isinstance(out, Tensor) and out.is_complex():
            return out.angle(), out.abs(), "complex"
        if not (isinstance(out, tuple) and len(out) == 2 and out[0].shape == out[1].shape):
            raise _NotServed("it does not return cos and sin")
        cos, sin, order = out[0].double(), out[1].double(), "cos sin"
        if _first_is_sin(fresh, given, more):
            cos, sin, order = sin, cos, "sin cos"
        return torch.atan2(sin, cos), torch.hypot(sin, cos), order

    axes_count, axes_last, batched = _form(fresh, names, more)

    def unit(axis: int | None) -> Tensor:
        """Position 1 on one axis, or on all."""
        on = torch.ones(axes_count, dtype=torch.long)
        if axis is not None:
            on = torch.zeros(axes_count, dtype=torch.long)
            on[axis] = 1
        if axes_last:
            return on[None]
        return on[:, None, None] if axes_count > 1 else on[None]

    angle, size, order = angles(unit(None))
    angle, size = angle.flatten(), size.flatten()
    axes = None
    if axes_count > 1:
        by_axis = torch.stack([angles(unit(axis))[0].flatten() for axis in range(axes_count)])
        if not torch.allclose(by_axis.sum(0), angle, rtol=1e-5, atol=0):
            raise _NotServed("its columns read more than one axis")
        axes = by_axis.abs().argmax(0).tolist()
    rope = _rope(config, layer_type, axes_count if axes_last else 1, angle.numel())
    factor = rope.attention_factor
    if not torch.allclose(size, torch.full_like(size, factor), rtol=1e-5, atol=0):
        raise _NotServed(f"its cos and sin are scaled by {float(size[0]):g}, not by {factor:g}")
    columns = _columns(angle, rope.inv_freq)
    return Table(
        [rope.inv_freq[i] for i in columns],
        columns,
        factor,
        axes,
        axes_last,
        batched,
        order,
        rope if rope.depends_on_length else None,
    )


def _first_is_sin(fresh: nn.Module, given: dict[str, Any], more: dict[str, Any]) -> bool:
    """At position 0 cos is not 0 and sin is."""
    zero = {**given, "position_ids": torch.zeros_like(given["position_ids"])}
    first, second = fresh(**zero, **more)
    if bool(second.eq(0).all()) and bool(first.ne(0).all()):
        return False
    if bool(first.eq(0).all()) and bool(second.ne(0).all()):
        return True
    raise _NotServed("it does not return cos and sin")


def _form(fresh: nn.Module, names: tuple[str, ...], more: dict[str, Any]) -> tuple[int, bool, bool]:
    """Number of axes of positions, whether they are the last axis, and whether rows are batched."""
    x = torch.zeros(1, 1, dtype=torch.float32)
    for shape, rows, form in (
        ((3, _BATCH, _LENGTH), (_BATCH, _LENGTH), (3, False, True)),
        ((_BATCH, _LENGTH), (_BATCH, _LENGTH), (1, False, True)),
        ((_LENGTH, 2), (_LENGTH,), (2, True, False)),
        ((_LENGTH, 2), (1, _LENGTH), (2, True, True)),
        ((_LENGTH, 3), (_LENGTH,), (3, True, False)),
    ):
        given = {names[0]: x, "position_ids": torch.ones(shape, dtype=torch.long)}
        try:
            out = fresh(**given, **more)
        except Exception:  # not its form
            continue
        out = out if isinstance(out, Tensor) else out[0]
        if tuple(out.shape[:-1]) == rows:
            return form
    raise _NotServed("its positions have another form")


def _rope(
    config: Any, layer_type: str | None, axes_count: int, width: int
) -> RotaryPositionalEmbedding:
    """Our reading of the configuration."""
    parameters = getattr(config, "rope_parameters", None) or {}
    try:
        if axes_count > 1 or parameters.get("rope_type") == "axial":
            # An axis is a RoPE of its own, over its share of the columns.
            theta = float(parameters["rope_theta"])
            return RotaryPositionalEmbedding(width // axes_count, base=theta)
        return RotaryPositionalEmbedding.from_config(config, layer_type)
    except (ValueError, TypeError, KeyError) as error:
        raise _NotServed(f"its configuration is not understood: {error}") from error


def _columns(angle: Tensor, inv_freq: list[float]) -> list[int]:
    """For each column the frequency that it has."""
    known = torch.tensor(inv_freq, dtype=torch.float64)
    distance = (angle[:, None] - known).abs()
    nearest = distance.argmin(1)
    # transformers computes frequencies in float32; its ramps are off by up to 4e-6.
    if not bool((distance.min(1).values <= 1e-5 * known[nearest].abs() + 1e-12).all()):
        raise _NotServed("its frequencies are not those that its configuration gives")
    return nearest.tolist()
