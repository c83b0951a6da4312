"""The temperature of queries against the models that use it, and which layers have no rope."""

import math

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import FLOATS, assert_same, unit

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])


def test_known_values():
    """Llama 4: 1 up to position 8190, 1 + 0.1 ln 2 from 8191 on, 1 + 0.1 ln 3 from 16383 on."""
    q = torch.ones(1, 4, 1, 1, dtype=torch.float64)
    layer = posenc.QueryTemperature()
    for position, step in ((0, 0), (8190, 0), (8191, 1), (16382, 1), (16383, 2), (10**6, 122)):
        out = layer(q[:, :1], None, position)
        assert out.item() == pytest.approx(1 + 0.1 * math.log(1 + step), rel=1e-15)
    ministral = posenc.QueryTemperature(0.1, 16384, 0)
    out = ministral(q, torch.tensor([0, 16383, 16384, 49152]))
    want = [1, 1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(4)]
    assert out.flatten().tolist() == pytest.approx(want, rel=1e-15)


@dtypes
def test_positions_before_the_first_step_pass_bit_for_bit(dtype):
    q = torch.randn(2, 6, 3, 5, dtype=torch.float64).to(dtype)
    q[0, 0, 0] = torch.tensor([float("inf"), float("nan"), -0.0, 0.0, -float("inf")])
    out = P.query_temperature(q, 0.3, 100.0, torch.tensor([-(10**6), -1, 0, 50, 98, 99]))
    torch.testing.assert_close(out, q, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit(), q.signbit())


@dtypes
def test_the_factor_is_rounded_once(dtype):
    """Half an ulp of the output: the factor is not cut to bfloat16 first."""
    q = torch.randn(1, 64, 2, 16, dtype=torch.float64).to(dtype)
    ids = torch.arange(64) * 1000
    out = P.query_temperature(q, 0.1, 2048.0, ids).double()
    factor = 1 + 0.1 * torch.log1p(torch.floor(ids.double() / 2048))
    want = q.double() * factor[None, :, None, None]
    inside = 2**-52 if dtype == torch.float64 else 2**-23
    assert ((out - want).abs() <= (unit(dtype) + inside) * want.abs()).all()


def captured_queries(attention, hidden, **arguments):
    """What a transformers attention module hands to its attention function as queries."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen = []

    def capture(module, query, key, value, mask, **rest):
        seen.append(query.detach().clone())
        repeated = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return repeated.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("posenc_capture", capture)
    attention.config._attn_implementation = "posenc_capture"
    with torch.no_grad():
        attention(hidden, attention_mask=None, **arguments)
    return seen[0]


def test_llama4_without_rope():
    llama4 = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    config = llama4.Llama4TextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, floor_scale=16,
        num_hidden_layers=4, intermediate_size=32, intermediate_size_mlp=32, num_local_experts=1,
    )  # fmt: skip
    nope = posenc.nope_layers(4).index(True)
    attention = llama4.Llama4TextAttention(config, nope)
    assert not attention.use_rope
    hidden = torch.randn(2, 70, 32)
    got = captured_queries(attention, hidden, position_embeddings=torch.zeros(1))
    with torch.no_grad():
        q = attention.q_proj(hidden).unflatten(-1, (4, 8))
    ours = posenc.QueryTemperature(config.attn_scale, config.floor_scale)(q)
    torch.testing.assert_close(ours.transpose(1, 2), got, rtol=3e-7, atol=0)
    assert not torch.allclose(ours, q)


@pytest.mark.parametrize("name", ("ministral3", "mistral4"))
def test_mistral_s_scaling_beta(name):
    package = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    positions = torch.stack((torch.arange(300), torch.arange(300) * 7))
    q = torch.randn(2, 4, 300, 8)
    for beta, length in ((0.1, 16384), (0.1, 64), (0.25, 100)):
        want = q * package.get_llama_4_attn_scale(positions, beta, length)
        layer = posenc.QueryTemperature(beta, length, 0.0, seq_dim=2)
        torch.testing.assert_close(layer(q, positions), want, rtol=3e-7, atol=0)


def test_ministral3_s_attention():
    package = pytest.importorskip("transformers.models.ministral3.modeling_ministral3")
    config = package.Ministral3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_hidden_layers=1, intermediate_size=32, max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.2,
            "original_max_position_embeddings": 32,
        },
    )  # fmt: skip
    attention = package.Ministral3Attention(config, 0)
    hidden, ids = torch.randn(2, 90, 32), torch.arange(90).expand(2, 90)
    tables = package.Ministral3RotaryEmbedding(config)(hidden, ids)
    got = captured_queries(attention, hidden, position_embeddings=tables, position_ids=ids)
    with torch.no_grad():
        q = attention.q_proj(hidden).unflatten(-1, (4, 8)).transpose(1, 2)
    rope = posenc.RotaryPositionalEmbedding(8, interleaved=False, seq_dim=2)
    ours = posenc.QueryTemperature(0.2, 32, 0, seq_dim=2)(rope(q))
    torch.testing.assert_close(ours, got, rtol=2e-5, atol=2e-5)


def test_chunks_equal_the_whole():
    layer = posenc.QueryTemperature(0.2, 8, 1)
    q = torch.randn(2, 50, 3, 4)
    whole = layer(q)
    parts = [layer(q[:, s : s + 7], None, s) for s in range(0, 50, 7)]
    assert_same(torch.cat(parts, 1), whole)
    assert_same(layer(q, torch.arange(50)), whole)


def test_errors():
    q = torch.randn(1, 3, 2, 4)
    for options, text in (
        ({"floor_scale": 0.0}, "floor_scale > 0, got 0"),
        ({"floor_scale": float("nan")}, "floor_scale"),
        ({"beta": float("inf")}, "finite beta"),
        ({"shift": float("nan")}, "finite shift"),
        ({"seq_dim": -1}, "time axis"),
        ({"seq_dim": 4}, "seq_dim in"),
        ({"position_ids": torch.zeros(4)}, "position_ids of shape"),
    ):
        arguments = {"beta": 0.1, "floor_scale": 8.0, **options}
        with pytest.raises(ValueError, match=f"query_temperature: expected.*{text}"):
            P.query_temperature(q, **arguments)
    with pytest.raises(TypeError, match="query_temperature: expected q of dtype"):
        P.query_temperature(q.long(), 0.1, 8.0)
    with pytest.raises(ValueError, match="at least 2 axes"):
        P.query_temperature(q.flatten(), 0.1, 8.0, seq_dim=0)


def test_nope_layers():
    assert posenc.nope_layers(8) == [False, False, False, True] * 2
    assert posenc.nope_layers(3, 1) == [True] * 3
    assert posenc.nope_layers(0) == []
    for bad in ((-1, 4), (4, 0)):
        with pytest.raises(ValueError, match="nope_layers: expected"):
            posenc.nope_layers(*bad)
    with pytest.raises(TypeError):
        posenc.nope_layers(4.0)


@pytest.mark.parametrize("name", ("Llama4TextConfig", "SmolLM3Config", "MistralLarge4TextConfig"))
def test_nope_layers_of_models(name):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, name)(num_hidden_layers=10)
    assert [not used for used in config.no_rope_layers] == posenc.nope_layers(10)


def test_a_dictionary_with_a_beta_warms_the_queries_of_rotate():
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
    }
    layer = posenc.RotaryPositionalEmbedding(8, scaling=rope)
    q, k = torch.randn(2, 40, 3, 8), torch.randn(2, 40, 1, 8)
    warm, turned = layer.rotate(q, k, None, 3)
    want = P.query_temperature(layer(q, None, 3), 0.1, 16.0, offset=3)
    torch.testing.assert_close(warm, want)
    assert torch.equal(turned, layer(k, None, 3))
    for one, other in zip(
        posenc.cpp.RotaryPositionalEmbedding(8, scaling=rope).rotate(q, k, None, 3),
        (warm, turned),
        strict=True,
    ):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="llama_4_scaling_beta"):
        layer.rotate_packed(torch.randn(2, 40, 3, 2, 8))
    with pytest.raises(ValueError, match="llama_4_scaling_beta"):
        posenc.RotaryPositionalEmbedding(8, scaling={"llama_4_scaling_beta": 0.1})
