"""How `accelerate` finds what a function does, and how it makes functions again."""

import functools

import pytest
import torch
from posenc.integrations.transformers import accelerate, swapped
from posenc.integrations.transformers._rebuild import Rebuilder
from posenc.integrations.transformers._rotation import Layout, describe, probe, replacement
from torch import nn

# ------------------------------------------------------------------ layouts


def _pairs(x, interleaved):
    """The two channels of each pair."""
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def _join(a, b, interleaved):
    return torch.stack([a, b], -1).flatten(-2) if interleaved else torch.cat([a, b], -1)


def _function(layout: Layout):
    """A rotary function written as model files write them, for any layout."""

    def rotate(x, cos, sin):
        width = 2 * cos.size(-1) if layout.tables == "single" else cos.size(-1)
        start = x.size(-1) - width if layout.trailing else 0
        part = x[..., start : start + width]
        a, b = _pairs(part, layout.interleaved)
        if layout.tables == "own":
            (ca, cb), (sa, sb) = _pairs(cos, layout.interleaved), _pairs(sin, layout.interleaved)
        else:
            ca, sa = (t[..., : width // 2] for t in (cos, sin))
            cb, sb = ca, sa
        if layout.inverse:
            sa, sb = -sa, -sb
        part = _join(a * ca - b * sa, b * cb + a * sb, layout.interleaved_out)
        return torch.cat([x[..., :start], part, x[..., start + width :]], -1)

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return rotate(q, cos, sin), rotate(k, cos, sin)

    return apply


LAYOUTS = [
    Layout(0, reads, writes, inverse, trailing, tables)
    for tables in ("own", "first", "single")
    for trailing in (False, True)
    for inverse in (False, True)
    for reads in (False, True)
    for writes in (False, True)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x}, {x.tables}".replace(" ", "_"))
def test_every_layout_is_found_and_computed(layout):
    function = _function(layout)
    rotation = probe(function)
    assert rotation is not None and describe(rotation) == str(layout)
    ours = replacement(rotation)
    for unsqueeze_dim, shape in ((1, (2, 3, 7, 24)), (2, (2, 7, 3, 24))):
        q, k = torch.randn(shape), torch.randn(shape)
        for width in (24, 12, 8):
            if layout.tables == "single" and width == 24:
                continue
            cos, sin = torch.randn(2, 7, width), torch.randn(2, 7, width)
            right = function(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
            result = ours(q, k, cos, sin=sin, unsqueeze_dim=unsqueeze_dim)
            torch.testing.assert_close(result, right, atol=1e-5, rtol=0)


def test_a_function_that_ignores_a_table_column_is_unknown():
    def apply(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim).clone(), sin.unsqueeze(unsqueeze_dim)
        cos[..., 0] = 1  # a fault, or a rotation that no layout is
        return _function(LAYOUTS[0])(q, k, cos.squeeze(1), sin.squeeze(1))

    assert probe(apply) is None
    assert probe(lambda q, k: (q, k)) is None
    assert probe(lambda cos, sin: cos) is None
    assert probe(3) is None


def test_probing_leaves_the_random_state():
    state = torch.get_rng_state()
    probe(_function(LAYOUTS[3]))
    assert torch.equal(torch.get_rng_state(), state)


def test_one_tensor_or_none_for_the_second():
    def one(x, cos, sin, unsqueeze_dim=1):
        return _function(LAYOUTS[0])(x, x, cos, sin, unsqueeze_dim)[0]

    def optional(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
        y = one(q, cos, sin, unsqueeze_dim)
        return y if k is None else (y, one(k, cos, sin, unsqueeze_dim))

    def pair(q, k, cos, sin, unsqueeze_dim=1):
        y = one(q, cos, sin, unsqueeze_dim)
        return y, None if k is None else one(k, cos, sin, unsqueeze_dim)

    x, cos, sin = torch.randn(2, 3, 5, 8), torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    right = one(x, cos, sin)
    torch.testing.assert_close(replacement(probe(one))(x, cos, sin), right)
    torch.testing.assert_close(replacement(probe(optional))(x, cos=cos, sin=sin), right)
    first, second = replacement(probe(pair))(x, None, cos, sin)
    torch.testing.assert_close(first, right)
    assert second is None


def test_other_arguments_are_for_the_function_itself():
    def apply(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
        if position_ids is not None:
            cos, sin = cos[position_ids], sin[position_ids]
        return _function(LAYOUTS[0])(q, k, cos, sin, unsqueeze_dim)

    ours, q = replacement(probe(apply)), torch.randn(2, 3, 5, 8)
    table, positions = torch.randn(9, 8), torch.tensor([[4, 0, 8, 2, 1]])
    right = apply(q, q, table, table, positions)
    torch.testing.assert_close(ours(q, q, table, table, positions), right, atol=0, rtol=0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        ours(q, q, table, table, nothing=1)
    with pytest.raises(TypeError, match="positional argument"):
        ours(q, q)


# ------------------------------------------------------------------ functions made again


def old(x):
    return x + 1


def new(x):
    return x + 100


def helper(x):
    return old(x) * 2


def countdown(n):
    return old(n) if n <= 0 else countdown(n - 1)


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


TABLE = {}


def hiding(function):
    TABLE["function"] = function

    @functools.wraps(function)
    def wrapper(x):
        return TABLE["function"](x)

    return wrapper


@doubled
@doubled
def decorated(x, *, more=5):
    return old(x) + more


@hiding
def hidden(x):
    return old(x)


def inside(x):
    return [old(y) for y in (lambda: [x, old(x)])()]


class Methods:
    @staticmethod
    def static(x):
        return old(x)

    @classmethod
    def of_class(cls, x):
        return (cls.__name__, old(x))

    def method(self, x):
        return super().__repr__() and old(x)


def _again(value):
    return Rebuilder(lambda item: new if item is old else None).attribute(value)


def test_functions_are_made_again_with_all_that_is_around_them():
    assert _again(helper)(1) == 202 and helper(1) == 4
    assert _again(countdown)(3) == 100
    assert _again(inside)(1) == [101, 201]
    assert _again(decorated)(1) == 4 * 106 and _again(decorated)(1, more=0) == 4 * 101
    assert _again(decorated).__wrapped__.__wrapped__(1) == 106
    assert _again(decorated).__name__ == "decorated" and _again(decorated).__module__ == __name__
    assert decorated(1) == 4 * 7
    assert _again(len) is None and _again(new) is None and _again(3) is None

    members = {name: _again(value) for name, value in vars(Methods).items()}
    made = type("Made", (Methods,), {k: v for k, v in members.items() if v is not None})
    assert made.static(1) == 101 and made.of_class(1) == ("Made", 101) and made().method(1) == 101
    assert Methods.static(1) == 2 and Methods().method(1) == 2


def test_a_decorator_that_hides_its_function_is_noticed():
    rebuilder = Rebuilder(lambda item: new if item is old else None)
    assert rebuilder.function(hidden) is None and rebuilder.hidden == [hidden]


def apply_halves(q, k, cos, sin, unsqueeze_dim=1):
    return _function(LAYOUTS[0])(q, k, cos, sin, unsqueeze_dim)


def rotate_by_parts(q, cos, sin, positions):
    """As Gemma 4's tower: parts of the head, each rotated by the plain function."""
    parts = zip(*(t.chunk(positions.size(-1), -1) for t in (q, cos, sin)), strict=True)
    return torch.cat([apply_halves(x, x, c, s)[0] for x, c, s in parts], -1)


class _Parts(nn.Module):
    def forward(self, q, cos, sin, positions):
        return rotate_by_parts(q, cos, sin, positions)


class _Hidden(nn.Module):
    @hiding
    def forward(self, q=None, cos=None, sin=None):
        return apply_halves(q, q, cos, sin)


def test_a_helper_around_the_function_is_no_obstacle():
    module, q = _Parts(), torch.randn(2, 3, 5, 16)
    arguments = (q, torch.randn(2, 5, 16), torch.randn(2, 5, 16), torch.zeros(5, 2))
    right = module(*arguments)
    report = swapped(accelerate(module))
    assert [entry.function for entry in report.swapped] == ["apply_halves"] and not report.left
    torch.testing.assert_close(module(*arguments), right)


def test_what_a_decorator_hides_is_left_and_named():
    with pytest.raises(ValueError, match="left: forward: a decorator hides"):
        accelerate(_Hidden())
