"""Rope dictionaries of every type: the frequencies and the attention factor that transformers
computes from them, and the errors that a wrong one gives."""

import copy
import math

import posenc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

transformers = pytest.importorskip("transformers")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    """transformers warns of much that these dictionaries hold on purpose."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


#: transformers computes in fp32: its ramps are off by up to 2.5e-6.
RTOL = 4e-6
TYPES = ("default", *ROPE_INIT_FUNCTIONS)


def rope(config, **options) -> posenc.RotaryPositionalEmbedding:
    return posenc.RotaryPositionalEmbedding.from_config(config, **options)


def assert_close(got, want: torch.Tensor) -> None:
    got = torch.as_tensor(got, dtype=torch.float64).flatten()
    torch.testing.assert_close(got, want.double(), rtol=RTOL, atol=0)


def of_transformers(config, length: int | None = None) -> tuple[torch.Tensor, float]:
    """inv_freq and attention factor of a normalised configuration."""
    kind = config.rope_parameters["rope_type"]
    if kind == "default":  # each model has its own; this one reads all keys
        return StableLmRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)


factors = st.one_of(st.integers(1, 64), st.floats(1, 64, width=32))
lengths = st.integers(7, 17).map(lambda n: 2**n)


def optional(strategy):
    """The value, or no such key."""
    return st.one_of(st.just(...), strategy)


def keys(draw, **strategies) -> dict:
    drawn = {key: draw(strategy) for key, strategy in strategies.items()}
    return {key: value for key, value in drawn.items() if value is not ...}


@st.composite
def dictionaries(draw, kind: str):
    """A config.json of a model, as it is found: old and new names, keys inside and outside of the
    rope dictionary, numbers as int and float."""
    head = draw(st.sampled_from((8, 16, 48, 64, 80, 96, 128, 256)))
    trained = draw(lengths)
    longest = draw(st.sampled_from((trained, 4 * trained, 32 * trained)))
    shares = st.sampled_from((0.25, 0.3, 0.5, 0.75, 0.9, 1.0))
    if kind in ("yarn", "longrope"):  # odd widths fail in both libraries
        shares = shares.filter(lambda share: int(head * share) % 2 == 0)
    if kind == "dynamic":  # d / (d - 2)
        shares = shares.filter(lambda share: int(head * share) > 2)
    config = {
        "hidden_size": 2 * head,
        "num_attention_heads": 2,
        "max_position_embeddings": longest,
        **keys(draw, head_dim=optional(st.just(head))),
    }
    scaling = keys(draw, partial_rotary_factor=optional(shares))
    theta = draw(st.sampled_from((10000, 10000.0, 150000.0, 5e5, 1e6, 1e7)))
    if draw(st.booleans()):
        scaling["rope_theta"] = theta
    else:
        config["rope_theta"] = theta
    if kind in ("linear", "dynamic", "llama3"):
        scaling["factor"] = draw(factors if kind != "llama3" else factors.filter(lambda s: s <= 16))
    if kind == "proportional":
        scaling.update(keys(draw, factor=optional(factors)))
    if kind == "yarn":
        scaling["factor"] = draw(st.one_of(st.none(), factors))
        scaling.update(
            keys(
                draw,
                attention_factor=optional(st.one_of(st.none(), st.floats(0.5, 2.0, width=32))),
                beta_fast=optional(st.sampled_from((32, 32.0, 16, 64))),
                beta_slow=optional(st.sampled_from((1, 1.0, 2.0))),
                mscale=optional(st.sampled_from((0, 0.707, 1.0, 1))),
                mscale_all_dim=optional(st.sampled_from((0, 0.707, 1.0, 2))),
                truncate=optional(st.sampled_from((True, False, None))),
            )
        )
    if kind == "longrope":
        width = int(head * scaling.get("partial_rotary_factor", 1.0)) // 2
        lists = st.lists(st.floats(1.0, 64.0, width=32), min_size=width, max_size=width)
        scaling.update(short_factor=draw(lists), long_factor=draw(lists))
        scaling.update(
            keys(
                draw,
                factor=optional(st.one_of(st.none(), factors)),
                attention_factor=optional(st.one_of(st.none(), st.floats(0.5, 2.0, width=32))),
            )
        )
    if kind == "llama3":
        low = draw(st.sampled_from((0.125, 0.5, 1, 1.0, 2.0)))
        scaling.update(low_freq_factor=low, high_freq_factor=low * draw(st.sampled_from((4, 8.0))))
    if kind in ("yarn", "longrope", "llama3"):
        # Inside, outside (which wins), or nowhere: then the longest is the trained length (and a
        # factor that is left to the lengths is refused here: it would be 1).
        inside, outside = st.just(trained), lengths
        if kind == "llama3" or scaling.get("factor") is not None:
            inside = optional(inside)
        scaling.update(keys(draw, original_max_position_embeddings=inside))
        config.update(keys(draw, original_max_position_embeddings=optional(outside)))
    names = ("type", "rope_type", "both")
    name = draw(st.sampled_from(names if scaling or kind != "default" else ("none", *names)))
    if name in ("type", "both"):
        scaling["type"] = kind
    if name in ("rope_type", "both"):
        scaling["rope_type"] = kind
    config[draw(st.sampled_from(("rope_scaling", "rope_parameters")))] = scaling
    return config


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_every_dictionary_means_what_it_means_in_transformers(kind, data):
    """The config.json as a mapping, and the normalised configuration object: both as the
    reference."""
    raw = data.draw(dictionaries(kind))
    config = transformers.LlamaConfig(**copy.deepcopy(raw))
    want, factor = of_transformers(config)
    for given_config in (raw, config):
        layer = rope(given_config)
        assert layer.rope_type == kind
        assert_close(layer.inv_freq, want)
        assert math.isclose(layer.attention_factor, factor, rel_tol=RTOL)
    assert 2 * len(want) == layer.rotary_dim


@given(data=st.data(), stretch=st.sampled_from((0.5, 1.0, 1.01, 2.0, 30.0)))
def test_dynamic_follows_the_length(data, stretch):
    raw = data.draw(dictionaries("dynamic"))
    config = transformers.LlamaConfig(**copy.deepcopy(raw))
    layer = rope(raw)
    assert layer.depends_on_length
    length = int(stretch * config.max_position_embeddings)
    want, _ = of_transformers(config, length)
    got = torch.ops.posenc.dynamic_ntk_inv_freq(
        torch.tensor([length]),
        layer.inv_freq,
        layer.factor,
        layer.trained_length,
        layer.series_width,
    )
    assert_close(got, want)


@given(data=st.data(), beyond=st.integers(0, 1))
def test_longrope_changes_after_the_trained_length(data, beyond):
    raw = data.draw(dictionaries("longrope"))
    config = transformers.LlamaConfig(**copy.deepcopy(raw))
    layer = rope(raw)
    config.standardize_rope_params()  # the outer original_max_position_embeddings goes in
    trained = config.rope_parameters["original_max_position_embeddings"]
    assert layer.trained_length == trained
    want, _ = of_transformers(config, trained + beyond)
    got = torch.ops.posenc.longrope_inv_freq(
        torch.tensor([trained + beyond]),
        layer.inv_freq,
        layer.long_inv_freq,
        layer.trained_length,
    )
    assert_close(got, want)


TRAINED = {"original_max_position_embeddings": 2048}
YARN = {"rope_type": "yarn", "factor": 4.0, **TRAINED}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    **TRAINED,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 32,
    "long_factor": [2.0] * 32,
    "factor": 4.0,
    **TRAINED,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
MODEL = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 8192}


def without(scaling: dict, key: str) -> dict:
    return {name: value for name, value in scaling.items() if name != key}


#: A wrong dictionary, the key that the message names, and the value that it shows.
WRONG = [
    # transformers: KeyError
    *[(without(scaling, "factor"), "factor", "") for scaling in (LINEAR, DYNAMIC, YARN, LLAMA3)],
    (without(LLAMA3, "low_freq_factor"), "low_freq_factor", ""),
    (without(LLAMA3, "high_freq_factor"), "high_freq_factor", ""),
    (without(LONGROPE, "short_factor"), "short_factor", ""),
    (without(LONGROPE, "long_factor"), "long_factor", ""),
    ({"rope_type": "foo", "factor": 4.0}, "rope_type", "foo"),
    # transformers: StrictDataclassClassValidationError
    ({**YARN, "original_max_position_embeddings": None}, "original_max_position_embeddings", ""),
    ({**LLAMA3, "original_max_position_embeddings": None}, "original_max_position_embeddings", ""),
    ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor", ""),
    ({**LLAMA3, "high_freq_factor": None}, "high_freq_factor", ""),
    ({**LONGROPE, "short_factor": None}, "short_factor", ""),
    ({**LONGROPE, "long_factor": None}, "long_factor", ""),
    # transformers: a warning, then TypeError, RuntimeError or a wrong number
    ({**LINEAR, "factor": None}, "factor", ""),
    ({**DYNAMIC, "factor": None}, "factor", ""),
    *[
        ({**scaling, "factor": "8"}, "factor", "8")
        for scaling in (LINEAR, DYNAMIC, YARN, LLAMA3, LONGROPE)
    ],
    ({**LONGROPE, "short_factor": [1.0] * 31}, "short_factor", "31"),
    ({**LONGROPE, "long_factor": [1.0] * 33}, "long_factor", "33"),
    ({**LONGROPE, "short_factor": "long"}, "short_factor", "long"),
    ({**LONGROPE, "short_factor": [1.0] * 31 + [0.0]}, "short_factor", "0"),
    # transformers: a warning alone
    ({**LINEAR, "factr": 3}, "factr", "3"),
    ({**LINEAR, "factor": 0.5}, "factor", "0.5"),
    ({**LINEAR, "factor": math.nan}, "factor", "nan"),
    ({**LINEAR, "factor": True}, "factor", "True"),
    ({**YARN, "factor": 0.5}, "factor", "0.5"),
    ({**YARN, "attention_factor": -1.5}, "attention_factor", "-1.5"),
    ({**LONGROPE, "attention_factor": -1.5}, "attention_factor", "-1.5"),
    ({**YARN, "beta_fast": 2, "beta_slow": 32}, "beta_fast", "32"),
    ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor", "1"),
    ({**LLAMA3, "high_freq_factor": 0.5}, "high_freq_factor", "0.5"),
    # transformers: nothing
    ({**YARN, "truncate": "no"}, "truncate", "no"),
    ({**YARN, "rope_theta": -1.5}, "base|rope_theta", "-1.5"),
    ({**YARN, "partial_rotary_factor": 0.0}, "partial_rotary_factor", "0"),
    ({**LLAMA3, "rope_theta": 0.0}, "base|rope_theta", "0"),
]


@pytest.mark.parametrize(("scaling", "key", "value"), WRONG)
def test_a_wrong_dictionary_is_an_error_with_key_and_value(scaling, key, value):
    with pytest.raises(ValueError, match=rf"(?s)({key}).*{value}") as error:
        rope({**MODEL, "rope_parameters": scaling})
    assert "expected" in str(error.value)


def test_dynamic_of_an_odd_width():
    """The exponents d / (d - 2) and 2i / d count the width before it is rounded up."""
    scaling = {**DYNAMIC, "partial_rotary_factor": 0.33}
    layer = rope({**MODEL, "rope_parameters": scaling})
    d, trained = 21, layer.trained_length
    for length in (trained // 2, trained, 3 * trained):
        stretch = layer.factor * max(length, trained) / trained - (layer.factor - 1)
        theta = layer.base * stretch ** (d / (d - 2))
        want = torch.tensor([theta ** (-2 * i / d) for i in range(11)], dtype=torch.float64)
        assert_close(layer.inv_freq_at(length), want)
        lengths = torch.tensor([length, 1])
        cpp = posenc.cpp.RotaryPositionalEmbedding.from_config(
            {**MODEL, "rope_parameters": scaling}
        )
        x = torch.randn(1, 4, 1, layer.d_model)
        assert torch.equal(cpp(x, None, length - 4), layer(x, None, length - 4))
        assert_close(layer.inv_freq_at(lengths)[0, 0].tolist(), want)


def test_a_factor_left_to_lengths_that_are_not_there_is_an_error():
    """transformers takes the longest length for the trained one, so that the factor is 1."""
    for scaling in ({**YARN, "factor": None}, without(LONGROPE, "factor")):
        with pytest.raises(ValueError, match=r"factor.*original_max_position_embeddings"):
            rope({**MODEL, "rope_parameters": without(scaling, "original_max_position_embeddings")})


@pytest.mark.parametrize("scaling", [DYNAMIC, YARN, LLAMA3, LONGROPE])
def test_no_length_at_all_is_an_error(scaling):
    model = without(MODEL, "max_position_embeddings")
    with pytest.raises(ValueError, match="max_position_embeddings"):
        rope({**model, "rope_parameters": without(scaling, "original_max_position_embeddings")})


def test_an_odd_head_that_is_rotated_whole_is_an_error():
    with pytest.raises(ValueError, match="33"):
        rope({**MODEL, "head_dim": 33, "rope_parameters": {"rope_type": "default"}})


@pytest.mark.parametrize(
    "scaling",
    [
        {**LLAMA3, "original_max_position_embeddings": 8192},  # a model cut to a shorter length
        {**YARN, "factor": 8.0},  # not the ratio of the lengths
        {**YARN, "attention_factor": 1},
    ],
)
def test_what_transformers_merely_warns_of_and_models_do_use(scaling):
    want, factor = of_transformers(transformers.LlamaConfig(**MODEL, rope_parameters={**scaling}))
    layer = rope({**MODEL, "rope_parameters": scaling})
    assert_close(layer.inv_freq, want)
    assert math.isclose(layer.attention_factor, factor, rel_tol=RTOL)


@pytest.mark.parametrize("given_original", (1024, 4096))
def test_the_trained_length_outside_of_the_dictionary_wins(given_original):
    """As Phi-3's files have it: transformers takes the outer one, of a flat dictionary."""
    raw = {**MODEL, "original_max_position_embeddings": given_original, "rope_scaling": YARN}
    want, _ = of_transformers(transformers.LlamaConfig(**copy.deepcopy(raw)))
    assert_close(rope(raw).inv_freq, want)
    inner, _ = of_transformers(transformers.LlamaConfig(**MODEL, rope_parameters=dict(YARN)))
    assert not torch.equal(want, inner)


# -- where the two differ on purpose, or by transformers' doing -----------------------------------


def test_truncate_of_a_type_of_layer():
    """transformers looks for it outside of the nested dictionaries, so that False is not seen."""
    exact = {**YARN, "rope_theta": 1e4, "truncate": False}
    nested = {
        "full_attention": exact,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    shape = {**MODEL, "head_dim": 64}
    config = transformers.Gemma3TextConfig(**shape, rope_parameters=copy.deepcopy(nested))
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", layer_type="full_attention")
    ours = rope(config, layer_type="full_attention").inv_freq
    assert_close(ours, of_transformers(transformers.LlamaConfig(**shape, rope_parameters=exact))[0])
    rounded = {**exact, "truncate": True}
    assert_close(rope({**shape, "rope_parameters": rounded}).inv_freq, theirs)
    assert not torch.allclose(torch.tensor(ours, dtype=torch.float64), theirs.double(), rtol=1e-3)


def test_phimoe_has_the_short_frequencies_at_every_length():
    """Its class computes them anew without the length; ours change with it, as Phi-3's do. Its two
    factors on cos and sin are served where they are one number."""
    from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

    model = {**MODEL, "num_attention_heads": 2, "num_key_value_heads": 2}
    scaling = {**without(LONGROPE, "factor"), "short_mscale": 1.25, "long_mscale": 1.25}
    theirs = PhimoeRotaryEmbedding(
        transformers.PhimoeConfig(**model, rope_scaling=copy.deepcopy(scaling))
    )
    positions = torch.tensor([[0, 1, 4000]])
    cos, sin = theirs(torch.zeros(1), positions)
    angles = torch.atan2(sin, cos)[0, 1, :32]
    layer = rope({**model, "model_type": "phimoe", "rope_scaling": scaling})
    torch.testing.assert_close(cos[0, 0, :32], torch.full((32,), layer.attention_factor))
    torch.testing.assert_close(angles.double(), torch.tensor(layer.inv_freq, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"short_mscale.*1\.25.*1\.5"):
        rope({**model, "rope_scaling": {**scaling, "long_mscale": 1.5}})


@pytest.mark.parametrize("layer_type", ("main", "compress"))
@pytest.mark.parametrize("factor", (None, 1.5))
def test_deepseek_v4_as_its_file_has_it(layer_type, factor):
    """One flat dictionary, meant for the compressed layers; A is 1 unless it is given."""
    from transformers.models.deepseek_v4 import modeling_deepseek_v4

    scaling = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 4096}
    if factor is not None:
        scaling["attention_factor"] = factor
    raw = {
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 65536,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": scaling,
    }
    config = modeling_deepseek_v4.DeepseekV4Config(**copy.deepcopy(raw))
    theirs = modeling_deepseek_v4.DeepseekV4RotaryEmbedding(config)
    for source in ({"model_type": "deepseek_v4", **raw}, config):
        layer = rope(source, layer_type=layer_type)
        assert_close(layer.inv_freq, getattr(theirs, f"{layer_type}_inv_freq"))
        want = getattr(theirs, f"{layer_type}_attention_scaling")
        assert math.isclose(layer.attention_factor, want)
        assert (layer.rotary_start, layer.rotary_dim) == (448, 64)
