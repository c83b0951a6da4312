"""Functions without a tensor argument make their result where torch's factories do."""

import inspect

import posenc.functional as P
import pytest
import torch

MADE = {
    "alibi_bias": lambda **device: P.alibi_bias([1.0, 0.5], 2, 3, **device),
    "get_positional_encoding": lambda **device: P.get_positional_encoding(3, 8, **device),
    "grid_coordinates": lambda **device: P.grid_coordinates(2, 3, **device),
    "positions_for_context_parallel": lambda **device: P.positions_for_context_parallel(
        8, 1, 2, **device
    ),
}
META = torch.device("meta")


def test_every_function_with_a_device_is_in_the_table():
    named = {n for n in P.__all__ if "device" in inspect.signature(getattr(P, n)).parameters}
    assert named == set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_the_default_device(name):
    make = MADE[name]
    want = make()
    assert want.device.type == "cpu"
    with META:
        assert make().device == META
        assert make().shape == want.shape and make().dtype == want.dtype
        torch.testing.assert_close(make(device=torch.device("cpu")), want)
    assert make(device=META).device == META
    torch.set_default_device("meta")
    try:
        assert make().device == META
    finally:
        torch.set_default_device(None)
    assert make().device.type == "cpu"


@pytest.mark.parametrize("name", MADE)
def test_the_default_device_of_compiled_code(name):
    compiled = torch.compile(MADE[name], backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), MADE[name]())
    with META:
        assert compiled().device == META


def test_slopes_say_where_their_bias_belongs():
    with META:
        assert P.alibi_bias(torch.ones(2, device="cpu"), 2, 3).device.type == "cpu"
