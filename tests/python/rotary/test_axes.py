"""Which position axis each frequency of RoPE reads."""

import posenc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from posenc.functional import mrope_axes, rope_axes, rope_inv_freq, rotary_embedding
from reference import grids as reference
from samples.compare import assert_same, needs_torchscript

MODELS = (
    ("contiguous", [16, 24, 24]),  # Qwen2-VL
    ("contiguous", [8, 12, 12]),  # GLM-4.1V
    ("contiguous", [16, 16, 16, 16]),  # HunYuan-VL
    ("interleaved", [24, 20, 20]),  # Qwen3-VL
    ("interleaved", [11, 11, 10]),  # Qwen3.5
    ("alternating", [32, 32]),  # NeoMME
    ("alternating_hwt", [22, 22, 20]),  # ERNIE-4.5-VL
    ("alternating_thw", [16, 24, 24]),  # VideoRoPE
)


@pytest.mark.parametrize(("arrangement", "sections"), MODELS)
def test_axes_of_the_models(arrangement, sections):
    axes = rope_axes(arrangement, sections)
    assert axes == reference.rope_axes(arrangement, sections)
    assert axes == rope_axes(arrangement, sections, sum(sections))
    if arrangement in ("contiguous", "interleaved"):
        assert axes == mrope_axes(sections, arrangement == "interleaved")


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any))
def test_three_sections_of_any_size(sections):
    for arrangement in ("contiguous", "interleaved"):
        assert rope_axes(arrangement, sections) == reference.rope_axes(arrangement, sections)


@pytest.mark.parametrize(("arrangement", "sections"), MODELS)
def test_equal_axes_are_1d_rope_bit_for_bit(arrangement, sections):
    """K7: text, whose axes are all equal."""
    axes = rope_axes(arrangement, sections)
    n = len(axes)
    x, ids = torch.randn(2, 9, 3, 2 * n), torch.randint(-9, 10**6, (2, 9))
    for interleaved in (True, False):
        plain = rotary_embedding(x, rope_inv_freq(2 * n), ids, interleaved=interleaved)
        several = rotary_embedding(
            x,
            rope_inv_freq(2 * n),
            ids.expand(len(sections), 2, 9),
            interleaved=interleaved,
            axes=axes,
        )
        assert_same(several, plain)


@pytest.mark.parametrize(
    ("arrangement", "sections", "words"),
    (
        ("contiguous", [16, 24, 24], ("32", "[16, 24, 24]", "64")),
        ("contiguous", [], ("[]",)),
        ("contiguous", [0, 0], ("[0, 0]",)),
        ("contiguous", [3, -1], ("[3, -1]",)),
        ("contiguous", [2**40, 1], (str(2**40),)),
        ("interleaved", [16, 16], ("(t, h, w)", "[16, 16]")),
        ("alternating", [3, 29], ("[3, 29]",)),
        ("alternating_hwt", [3, 2, 27], ("[3, 2, 27]",)),
        ("alternating_thw", [28, 3, 1], ("[28, 3, 1]",)),
        ("spiral", [16, 16], ("spiral", "contiguous")),
    ),
)
def test_sections_that_make_no_sense(arrangement, sections, words):
    with pytest.raises(ValueError, match="rope_axes: expected") as error:
        rope_axes(arrangement, sections, 32)
    for word in words:
        assert word in str(error.value)


def scripted(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    axes = posenc.functional.mrope_axes([2, 1, 1], True)
    axes = posenc.functional.rope_axes("interleaved", [2, 1, 1], len(axes))
    return torch.ops.posenc.rotary_embedding(x, [1.0, 0.5, 0.2, 0.1], ids, axes=axes)


@needs_torchscript
def test_in_scripted_code():
    x, ids = torch.randn(1, 5, 2, 8), torch.randint(0, 9, (3, 1, 5))
    assert_same(torch.jit.script(scripted)(x, ids), scripted(x, ids))


def test_in_compiled_code():
    x, ids = torch.randn(1, 5, 2, 8), torch.randint(0, 9, (3, 1, 5))
    compiled = torch.compile(scripted, backend="aot_eager", fullgraph=True)
    assert_same(compiled(x, ids), scripted(x, ids))
