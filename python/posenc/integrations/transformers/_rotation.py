"""Rotary functions of transformers, and ours in their place.

A model file of transformers has its own ``apply_rotary_pos_emb``: one name, a dozen behaviours
(halves or pairs, all of the head or a part of it, tables once or twice as wide as there are
pairs, time on one axis or another). Which one a function has is found by calling it on random
numbers and comparing with the operator; what fits no layout is left alone. So a wrong layout
cannot be chosen, whatever a model's name is.

transformers has a hook for kernels of the hub, ``use_kernel_forward_from_hub("rotary_pos_emb")``.
It does not serve here: it needs the package ``kernels``, one name stands for all those layouts,
what it exchanges belongs to the model's file, so that every model of the process changes, and
half of the functions do not carry it.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: How functions call a complex table, cos + i sin, a column a pair.
_COMPLEX = ("freqs_cis", "freqs_ci")


class Layout(NamedTuple):
    """What a rotary function does with one tensor, in the operator's words."""

    seq_dim: int  #: axis of x that is time
    interleaved: bool  #: reads pairs (2i, 2i + 1); else (i, i + n)
    interleaved_out: bool  #: the same for writing
    inverse: bool  #: rotates by the negative angle
    trailing: bool  #: rotates the last channels, not the first
    tables: str  #: "own": a column a channel; "first": only the first half counts; "single": a pair
    prefix: bool = False  #: tokens before those of the tables pass through

    def __str__(self) -> str:
        word = {True: "pairs", False: "halves"}
        text = word[self.interleaved]
        if self.interleaved_out != self.interleaved:
            text += f" to {word[self.interleaved_out]}"
        return (
            text + (", inverse" if self.inverse else "") + (", trailing" if self.trailing else "")
        )


#: The arguments that a function may tell apart: (axes of x, axes of cos, unsqueeze_dim, `_fit`).
Call = tuple[int, int, int | None, str]


class Signature(NamedTuple):
    names: tuple[str, ...]  #: all parameters in order
    tensors: tuple[str, ...]  #: what is rotated
    table: str | None  #: name of the complex table; None: cos and sin
    unsqueeze: int | None  #: default of unsqueeze_dim; None: no such parameter
    extras: dict[str, Any]  #: other parameters and their defaults


class Rotation(NamedTuple):
    """All that is known of a rotary function."""

    function: Callable[..., Any]
    signature: Signature
    plan: dict[Call, Layout]
    alone: str | None  #: what comes back when the second tensor is None: "tensor", "pair"


# ------------------------------------------------------------------ the replacement


def _fit(x: Tensor, width: int) -> str:
    """How wide tables of ``width`` columns are beside a head."""
    head = x.size(-1)
    if width == head:
        return "full"
    return "half" if 2 * width == head else ("narrow" if width < head else "wide")


def _serves(x: Tensor, cos: Tensor, layout: Layout) -> bool:
    """Whether cos has a row for each token of x."""
    if cos.dim() == 3 and cos.size(0) != 1 and cos.size(0) != x.size(0):
        return False
    tokens, rows = x.size(layout.seq_dim), cos.size(-2)
    return tokens == rows or (layout.prefix and tokens > rows)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    rotated = 2 * cos.size(-1) if layout.tables == "single" else cos.size(-1)
    if layout.tables == "first":
        cos, sin = cos[..., : rotated // 2], sin[..., : rotated // 2]
    if layout.inverse:  # not the operator's inverse: each channel keeps its own column
        sin = -sin
    if layout.prefix and x.size(layout.seq_dim) > cos.size(-2):
        rows = x.size(layout.seq_dim) - cos.size(-2)
        cos = nn.functional.pad(cos, (0, 0, rows, 0), value=1.0)
        sin = nn.functional.pad(sin, (0, 0, rows, 0))
    return torch.ops.posenc.apply_rotary(
        x,
        cos,
        sin,
        None,
        layout.seq_dim,
        layout.interleaved,
        layout.interleaved_out,
        x.size(-1) - rotated if layout.trailing else 0,
        False,
        layout.tables == "own",
    )


def _rotate_all(rotation: Rotation, given: dict[str, Any]) -> Any:
    """The result for these arguments, None where the function itself has to say what they mean."""
    signature = rotation.signature
    if signature.table is None:
        cos, sin = given.get("cos"), given.get("sin")
    else:
        table = given.get(signature.table)
        cos, sin = (None, None) if table is None else (table.real, table.imag)
    if cos is None or sin is None:
        return None
    for name, default in signature.extras.items():
        value = given.get(name, default)
        if value is not default and not (isinstance(value, int) and value == default):
            return None
    unsqueeze = given.get("unsqueeze_dim", signature.unsqueeze)
    rotated: list[Tensor | None] = []
    for name in signature.tensors:
        x = given.get(name)
        if x is None:
            rotated.append(None)
            continue
        layout = rotation.plan.get((x.dim(), cos.dim(), unsqueeze, _fit(x, cos.size(-1))))
        if layout is None or not _serves(x, cos, layout):
            return None
        rotated.append(_rotate(x, cos, sin, layout))
    if len(rotated) == 1:
        return rotated[0]
    if rotated[0] is None or (rotated[1] is None and rotation.alone is None):
        return None
    return rotated[0] if rotated[1] is None and rotation.alone == "tensor" else tuple(rotated)


def describe(rotation: Rotation) -> str:
    """The layout in words. Of a whole head all is said but where a narrower rotation starts."""
    layouts = {call[3]: layout for call, layout in rotation.plan.items()}
    return str(layouts.get("narrow") or layouts.get("half") or layouts["full"])


def replacement(rotation: Rotation) -> Callable[..., Any]:
    """A function with the signature and result of ``rotation.function``, through our operator.

    What the operator does not serve (other ranks, tables that do not fit) goes to the function
    itself, its errors included.
    """
    function, names = rotation.function, rotation.signature.names

    def rotate(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= len(names):
            given = dict(zip(names, args, strict=False))
            given.update(kwargs)
            rotated = _rotate_all(rotation, given)
            if rotated is not None:
                return rotated
        return function(*args, **kwargs)

    plain = python_function(function)
    return rotate if plain is None else functools.wraps(plain)(rotate)


# ------------------------------------------------------------------ what a function is


def python_function(value: Any) -> FunctionType | None:
    """The function behind a value: with ``kernels`` installed it is kept inside a module."""
    if isinstance(value, FunctionType):
        return inspect.unwrap(value)
    if isinstance(value, nn.Module) and isinstance(type(value).forward, FunctionType):
        forward = type(value).forward
        kept = [cell.cell_contents for cell in forward.__closure__ or ()]
        kept = [item for item in kept if isinstance(item, FunctionType)]
        return inspect.unwrap(kept[0] if len(kept) == 1 else forward)
    return None


def signature_of(function: Any) -> Signature | None:
    """The signature of a function that takes cos and sin; None for anything else."""
    plain = python_function(function)
    if plain is None:
        return None
    names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
    table = next((name for name in _COMPLEX if name in names), None)
    if table is None and not ("cos" in names and "sin" in names):
        return None
    tensors, unsqueeze, extras = [], None, {}
    for name, parameter in inspect.signature(plain).parameters.items():
        if name in ("cos", "sin", table) or parameter.kind == parameter.VAR_KEYWORD:
            continue
        default = None if parameter.default is parameter.empty else parameter.default
        if name == "unsqueeze_dim":
            unsqueeze = 1 if default is None else default
        elif name == "position_ids" or default is not None:
            extras[name] = default
        else:
            tensors.append(name)
    return Signature(names, tuple(tensors), table, unsqueeze, extras)


_BATCH, _TOKENS, _HEADS, _PREFIX = 2, 5, 3, 2
#: (head, width of the tables) for each answer of `_fit`.
_WIDTHS = {"full": (8, 8), "half": (8, 4), "narrow": (12, 4)}


def probe(function: Any) -> Rotation | None:
    """What ``function`` does, found by calling it; None where no layout explains it."""
    signature = signature_of(function)
    if signature is None or len(signature.tensors) not in (1, 2):
        return None
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        # A hub kernel may stand in for what a module keeps; the function says what it stands for.
        plain = python_function(function) if isinstance(function, nn.Module) else function
        prober = _Prober(plain, signature)
        plan = dict(prober.plan())
        if not plan:
            return None
        return Rotation(function, signature, plan, prober.alone(next(iter(plan))))


class _Prober:
    """Calls a function on random numbers and finds the layouts that explain the results."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function, self.signature = function, signature
        self.random = torch.Generator().manual_seed(20)  # the global one stays as it is
        self.layouts = [
            Layout(0, reads, writes, inverse, trailing, tables)
            for tables in ("own", "first", "single")
            for trailing in (False, True)
            for inverse in (False, True)
            for reads in (False, True)
            for writes in (False, True)
        ]

    def plan(self) -> Iterator[tuple[Call, Layout]]:
        """Every way in which the function can be called whose layout we know."""
        places = [(4, 3, 2), (4, 3, 1), (4, 2, 2), (4, 2, 1), (3, 2, 0), (3, 2, 1), (3, 3, 1)]
        unsqueeze_dims = (None,) if self.signature.unsqueeze is None else (1, 2, 0, -2, -3)
        for fit in _WIDTHS:
            for x_dim, cos_dim, seq_dim in places:
                for unsqueeze in unsqueeze_dims:
                    call = (x_dim, cos_dim, unsqueeze, fit)
                    layout = self.layout(call, seq_dim)
                    if layout is not None:
                        yield call, layout

    def layout(self, call: Call, seq_dim: int) -> Layout | None:
        xs, cos, sin = self.inputs(call, seq_dim)
        out = self.call(xs, cos, sin, call[2])
        if out is None:
            return None
        for k, layout in enumerate(self.layouts):
            layout = layout._replace(seq_dim=seq_dim)
            if not _explains(layout, out, xs, cos, sin):
                continue
            self.layouts.insert(0, self.layouts.pop(k))  # likely the next one's too
            longer, cos, sin = self.inputs(call, seq_dim, _PREFIX)
            out = self.call(longer, cos, sin, call[2])
            passing = layout._replace(prefix=True)
            if out is not None and _explains(passing, out, longer, cos, sin):
                return passing
            return layout
        return None

    def alone(self, call: Call) -> str | None:
        """What the function returns when its second tensor is None."""
        if len(self.signature.tensors) < 2:
            return None
        xs, cos, sin = self.inputs(call, 2 if call[0] == 4 else 0)
        out = self.call([xs[0], None], cos, sin, call[2])
        if out is None:
            return None
        return {1: "tensor", 2: "pair"}.get(len(out)) if out[-1] is None or len(out) == 1 else None

    def inputs(
        self, call: Call, seq_dim: int, prefix: int = 0
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Random tensors and tables; only batch and time are of a size that both have."""
        x_dim, cos_dim, _, fit = call
        head, width = _WIDTHS[fit]
        xs = []
        for i in range(len(self.signature.tensors)):
            sizes = [_BATCH] + (x_dim - 2) * [_HEADS + i]
            if seq_dim == 0:
                sizes[-1] = _HEADS + i
            sizes[seq_dim] = _TOKENS + prefix
            xs.append(self.rand(*sizes, head))
        rows = (_TOKENS, width) if cos_dim == 2 else (_BATCH, _TOKENS, width)
        return xs, self.rand(*rows), self.rand(*rows)

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.random, dtype=torch.float64) - 0.5

    def call(
        self, xs: list[Any], cos: Tensor, sin: Tensor, unsqueeze: int | None
    ) -> tuple[Any, ...] | None:
        """What the function returns, as a tuple; None where it does not take such arguments."""
        given: dict[str, Any] = dict(zip(self.signature.tensors, xs, strict=True))
        if self.signature.table is None:
            given.update(cos=cos, sin=sin)
        else:
            given[self.signature.table] = torch.complex(cos, sin)
        if unsqueeze is not None:
            given["unsqueeze_dim"] = unsqueeze
        try:
            out = self.function(**given)
        except Exception:  # whatever it says to shapes that are not for it
            return None
        return out if isinstance(out, tuple) else (out,)


def _explains(
    layout: Layout, out: tuple[Any, ...], xs: list[Tensor], cos: Tensor, sin: Tensor
) -> bool:
    if len(out) != len(xs):
        return False
    for y, x in zip(out, xs, strict=True):
        if not isinstance(y, Tensor) or y.shape != x.shape or y.is_complex():
            return False
        try:
            ours = _rotate(x, cos, sin, layout)
        except (RuntimeError, ValueError, IndexError, TypeError):  # the tables do not fit it
            return False
        # Some functions compute in float32 whatever they are given.
        if not torch.allclose(ours, y.to(ours.dtype), rtol=0, atol=1e-5):
            return False
    return True
