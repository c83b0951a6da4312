"""`from_config`: every dictionary that models are released with, read strictly."""

import math

import posenc
import pytest
import reference
from samples.compare import assert_same

Rope = posenc.RotaryPositionalEmbedding


def config(rope=None, head_dim=16, **keys):
    return {
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "rope_parameters": rope or {},
        **keys,
    }


def close(got, want, rel=5e-5):
    """`want` as published: to five digits."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert math.isclose(a, b, rel_tol=rel), (a, b)


def trained(kind, length, factor=None, theta=1e4, **keys):
    given = {} if factor is None else {"factor": factor}
    return {
        "rope_type": kind,
        "rope_theta": theta,
        "original_max_position_embeddings": length,
        **given,
        **keys,
    }


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = trained("yarn", 2048, 10.0)

# head width, dictionary, {index: frequency}
PUBLISHED = {
    "default": (128, {"rope_type": "default"}, {1: 0.86596, 63: 1.1548e-4}),
    "yarn": (
        128,
        YARN,
        {16: 0.1, 17: 0.083479, 18: 0.069590, 40: 4.3007e-4, 41: 2.7384e-4},
    ),
    "llama3": (
        128,
        trained("llama3", 2048, 10.0, **LLAMA3),
        {30: 0.013335, 31: 0.010730, 32: 7.7785e-3, 40: 3.4539e-4, 41: 2.7384e-4},
    ),
    "proportional": (
        128,
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        {15: 0.11548, 16: 0.0, 63: 0.0},
    ),
    "linear": (8, {"rope_type": "linear", "factor": 4.0}, {0: 0.25, 1: 0.025, 3: 0.00025}),
    "yarn, whole bounds": (
        16,
        trained("yarn", 2048, 4.0),
        dict(enumerate([1, 0.316228, 0.1, 0.0256935, 0.00625, 0.0013835, 0.00025, 7.90569e-5])),
    ),
    "yarn, real bounds": (
        16,
        trained("yarn", 2048, 4.0, truncate=False),
        dict(enumerate([1, 0.316228, 0.1, 0.0238702, 0.00505697, 0.00081129, 0.00025, 7.90569e-5])),
    ),
    "llama3, 16": (
        16,
        trained("llama3", 8192, 8.0, 5e5, **LLAMA3),
        dict(
            enumerate(
                [
                    1,
                    0.193923,
                    0.037606,
                    0.00729266,
                    0.000524846,
                    3.4281e-5,
                    6.64787e-6,
                    1.28917e-6,
                ]
            )
        ),
    ),
    "proportional, 16": (
        16,
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        dict(enumerate([1, 0.177828, 0, 0, 0, 0, 0, 0])),
    ),
    "gpt-oss": (
        64,
        trained("yarn", 4096, 32.0, 150000.0, truncate=False),
        {8: 0.0508133, 9: 0.0317057, 10: 0.019335},
    ),
    "DeepSeek-V3": (
        64,
        trained("yarn", 4096, 40.0),
        {8: 0.1, 9: 0.0749894, 10: 0.0562341, 11: 0.0390069, 12: 0.0268794},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_frequencies(name):
    width, rope, want = PUBLISHED[name]
    layer = Rope.from_config(config(rope, width))
    assert len(layer.inv_freq) == width // 2
    for index, value in want.items():
        assert math.isclose(layer.inv_freq[index], value, rel_tol=5e-5), (index, value)
    assert layer.interleaved is False


@pytest.mark.parametrize(
    ("width", "factor", "length", "max_length", "want"),
    (
        (128, 10.0, 16384, 2048, {1: 0.80931, 2: 0.65498, 63: 1.6265e-6}),
        (8, 2.0, 8192, 2048, {0: 1, 1: 0.0522758, 2: 0.00273276, 3: 0.000142857}),
        (256, 10.0, 200000, 131072, {1: 0.91723, 127: 1.7170e-5}),
    ),
)
def test_published_frequencies_of_a_length(width, factor, length, max_length, want):
    rope = {"rope_type": "dynamic", "factor": factor, "rope_theta": 1e4}
    layer = Rope.from_config(config(rope, width, max_position_embeddings=max_length))
    inv_freq = posenc.functional.rotary_embedding  # the operators that the layer calls
    assert callable(inv_freq)
    import torch

    x = torch.zeros(1, 1, 1, width)
    ids = torch.tensor([[length - 1]])
    got = layer._inv_freq_of_length(x, ids, 0).flatten().tolist()
    for index, value in want.items():
        assert math.isclose(got[index], value, rel_tol=5e-5), (index, got[index], value)


def test_attention_factors():
    cases = {
        1.346574: trained("yarn", 4096, 32.0),
        1.190238: trained("longrope", 4096, 32.0, short_factor=[1.0] * 8, long_factor=[2.0] * 8),
        1.368888: trained("deepseek_yarn", 4096, 40.0),
        1.0: trained("deepseek_yarn", 4096, 40.0, mscale=1.0, mscale_all_dim=1.0),
        2 * 1.368888: trained("yarn", 4096, 40.0, attn_factor=2.0),
        0.5: trained("yarn", 4096, 40.0, attn_factor=0.5, apply_yarn_scaling=False),
        1.25: trained(
            "longrope",
            4096,
            short_factor=[1.0] * 8,
            long_factor=[2.0] * 8,
            short_mscale=1.25,
            long_mscale=1.25,
        ),
    }
    for want, rope in cases.items():
        assert abs(Rope.from_config(config(rope)).attention_factor - want) < 1e-5, rope


def test_fixed_ntk():
    plain = reference.rope_inv_freq(16, 4e4)
    layer = Rope.from_config(config({"rope_type": "ntk", "factor": 4.0}))
    close(layer.inv_freq, [f / 4 ** (2 / 16) for f in plain], 1e-12)
    mixed = Rope.from_config(config({"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.625}))
    a = math.log(4) / 8**0.625
    want = [f / math.exp(a * (i + 1) ** 0.625) for i, f in enumerate(reference.rope_inv_freq(16))]
    close(mixed.inv_freq, want, 1e-12)
    alpha = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0}
    close(
        Rope.from_config(config(alpha)).inv_freq,
        reference.rope_inv_freq(16, 1e4 * 1000 ** (16 / 14)),
        1e-12,
    )


def same(one, two):
    assert one.inv_freq == two.inv_freq
    assert (one.interleaved, one.interleaved_out) == (two.interleaved, two.interleaved_out)
    assert (one.rotary_start, one.rotary_dim) == (two.rotary_start, two.rotary_dim)
    assert (one.axes, one.inverse) == (two.axes, two.inverse)
    assert one.attention_factor == two.attention_factor
    assert one.long_inv_freq == two.long_inv_freq
    assert one.trained_length == two.trained_length
    assert one.d_model == two.d_model


LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}

# legacy spelling, current spelling
SPELLINGS = {
    "rope_scaling and type": (
        {"head_dim": 16, "rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 5e5},
        {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        },
    ),
    "su": (
        config(None, rope_scaling={"type": "su", **LISTS}, original_max_position_embeddings=1024),
        config(trained("longrope", 1024, **LISTS)),
    ),
    "Phi-3's yarn": (
        config(None, rope_scaling={"type": "yarn", **LISTS}, original_max_position_embeddings=1024),
        config(trained("longrope", 1024, **LISTS)),
    ),
    "both names, as transformers leaves them": (
        config({"type": "su", "rope_type": "longrope", **trained("longrope", 1024, **LISTS)}),
        config(trained("longrope", 1024, **LISTS)),
    ),
    "mrope": (
        config(None, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}),
        config({"rope_type": "default", "mrope_section": [2, 3, 3]}),
    ),
    "mrope and default": (
        config({"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}),
        config({"mrope_section": [2, 3, 3], "mrope_interleaved": False}),
    ),
    "GPT-NeoX": (
        {
            "model_type": "gpt_neox",
            "hidden_size": 64,
            "num_attention_heads": 4,
            "rotary_pct": 0.5,
            "rotary_emb_base": 20000,
        },
        config({"partial_rotary_factor": 0.5, "rope_theta": 20000.0}),
    ),
    "GPT-J": (
        {"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary_dim": 8},
        config(None, rotary_dim=8, interleaved=True),
    ),
    "a multimodal model's text_config": (
        {"model_type": "qwen2_vl", "text_config": config({"mrope_section": [2, 3, 3]})},
        config({"mrope_section": [2, 3, 3]}),
    ),
    "sizes of heads": (
        {"head_dim": None, "hidden_size": 64, "num_attention_heads": 4},
        {"head_dim": 16},
    ),
    "latent attention": (
        {
            "model_type": "deepseek_v3",
            "qk_rope_head_dim": 16,
            "hidden_size": 7168,
            "num_attention_heads": 128,
        },
        config(None, interleaved=True, interleaved_out=False),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_legacy_spellings(name):
    legacy, current = SPELLINGS[name]
    same(Rope.from_config(legacy), Rope.from_config(current))


def test_theta_s_priority():
    def theta(**keys):
        return Rope.from_config({"head_dim": 16, **keys}).base

    assert theta() == 10000.0
    assert theta(model_type="llama4_text") == 500000.0
    assert theta(model_type="llama4_text", rope_theta=7.0) == 7.0
    assert theta(rope_theta=7.0, rope_parameters={"rope_theta": 9.0}) == 9.0
    assert theta(rope_theta=7.0, rope_parameters={"rope_theta": None}) == 7.0
    # rope_scaling replaces rope_parameters, and an empty one does not.
    assert theta(rope_parameters={"rope_theta": 9.0}, rope_scaling={"rope_theta": 8.0}) == 8.0
    assert theta(rope_parameters={"rope_theta": 9.0}, rope_scaling=None) == 9.0


class TestLayerTypes:
    nested: dict = {  # noqa: RUF012
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "no_rope": None,
    }

    def test_nested(self):
        sliding = Rope.from_config(config(self.nested), "sliding_attention")
        full = Rope.from_config(config(self.nested), layer_type="full_attention")
        assert sliding.inv_freq == reference.rope_inv_freq(16)
        close(full.inv_freq, [f / 8 for f in reference.rope_inv_freq(16, 1e6)], 1e-12)
        for wrong in (None, "local"):
            with pytest.raises(ValueError, match=r"layer_type.*full_attention.*sliding"):
                Rope.from_config(config(self.nested), wrong)
        with pytest.raises(ValueError, match="no_rope"):
            Rope.from_config(config(self.nested), "no_rope")

    @pytest.mark.parametrize("key", ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"))
    def test_a_theta_of_their_own(self, key):
        old = {
            "head_dim": 16,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            key: 10000.0,
        }
        sliding = Rope.from_config(old, "sliding_attention")
        assert sliding.inv_freq == reference.rope_inv_freq(16)
        full = Rope.from_config(old, "full_attention")
        close(full.inv_freq, [f / 8 for f in reference.rope_inv_freq(16, 1e6)], 1e-12)
        with pytest.raises(ValueError, match="layer_type"):
            Rope.from_config(old)

    def test_the_trained_length_beside_nested_parameters_does_not_replace_theirs(self):
        nested = {"full_attention": trained("yarn", 1024, 4.0)}
        inner = Rope.from_config(
            config(nested, original_max_position_embeddings=2048), "full_attention"
        )
        same(inner, Rope.from_config(config(trained("yarn", 1024, 4.0))))
        flat = Rope.from_config(
            config(trained("yarn", 1024, 4.0), original_max_position_embeddings=2048)
        )
        same(flat, Rope.from_config(config(trained("yarn", 2048, 4.0))))

    def test_layers_with_heads_of_their_own(self):
        both = config(
            {
                "sliding_attention": {"rope_type": "default"},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
            },
            per_layer_config={"05": {"head_dim": 32}},
            layer_types=["sliding_attention"] * 5 + ["full_attention"],
        )
        assert Rope.from_config(both, "sliding_attention").d_model == 16
        full = Rope.from_config(both, "full_attention")
        assert full.d_model == 32 and full.inv_freq[4:] == [0.0] * 12


# model_type -> what its code does; the walk over transformers' models compares them all.
@pytest.mark.parametrize(
    ("model_type", "pairs", "pairs_out"),
    (
        ("llama", False, None),
        ("glm4", True, None),
        ("gptj", True, None),
        ("cohere", True, None),
        ("deepseek_v2", True, None),
        ("deepseek_v3", True, False),
    ),
)
def test_layouts(model_type, pairs, pairs_out):
    layer = Rope.from_config(config(None, model_type=model_type))
    assert (layer.interleaved, layer.interleaved_out) == (pairs, pairs_out)
    told = Rope.from_config(config(None, model_type=model_type), interleaved=not pairs)
    assert (told.interleaved, told.interleaved_out) == (not pairs, None)


def test_deepseek_v3_without_interleave():
    layer = Rope.from_config(config(None, model_type="deepseek_v3", rope_interleave=False))
    assert (layer.interleaved, layer.interleaved_out) == (False, None)


def test_deepseek_v4_turns_the_end_of_the_head():
    v4 = {
        "model_type": "deepseek_v4",
        "head_dim": 32,
        "qk_rope_head_dim": 8,
        "rope_parameters": {
            "main": {"rope_type": "default", "partial_rotary_factor": 0.25},
            "compress": {**trained("yarn", 1024, 16.0, 160000.0), "partial_rotary_factor": 0.25},
        },
    }
    main = Rope.from_config(v4, "main")
    assert (main.d_model, main.rotary_start, main.rotary_dim) == (32, 24, 8)
    assert main.interleaved
    assert Rope.from_config(v4, "compress").attention_factor == 1.0


class TestAxes:
    def test_sections(self):
        layer = Rope.from_config(config({"mrope_section": [2, 3, 3]}))
        assert layer.axes == [0, 0, 1, 1, 1, 2, 2, 2]
        layer = Rope.from_config(config({"mrope_section": [4, 2, 2], "mrope_interleaved": True}))
        assert layer.axes == [0, 1, 2, 0, 1, 2, 0, 0]
        layer = Rope.from_config(
            config({"type": "xdrope", "alpha": 1000.0, "xdrope_section": [2, 2, 2, 2]})
        )
        assert layer.axes == [0, 0, 1, 1, 2, 2, 3, 3]
        text = {"model_type": "qwen3_vl_text", "head_dim": 128}
        assert Rope.from_config(text).axes[:6] == [0, 1, 2, 0, 1, 2]
        # The model's own sections, at the width of a small test model: as its code does.
        assert Rope.from_config({**text, "head_dim": 16}).axes == [0, 1, 2, 0, 1, 2, 0, 1]
        ernie = {"model_type": "ernie4_5_vl_moe_text", "head_dim": 128}
        assert Rope.from_config(ernie).axes == [1, 2] * 22 + [0] * 20

    def test_the_constructor_reads_them_too(self):
        layer = Rope(16, scaling={"mrope_section": [2, 3, 3]})
        assert layer.axes == [0, 0, 1, 1, 1, 2, 2, 2]

    def test_sections_that_do_not_fit(self):
        with pytest.raises(ValueError, match="8"):
            Rope.from_config(config({"mrope_section": [2, 3, 4]}))


def test_an_odd_share_of_the_head_is_rounded_up():
    """GLM-4.5's default: 42 channels, half of them; exponents count 21."""
    layer = Rope.from_config(config({"partial_rotary_factor": 0.5}, head_dim=42))
    assert layer.rotary_dim == 22
    close(layer.inv_freq, [1e4 ** (-2 * i / 21) for i in range(11)], 1e-12)
    for kind in ("yarn", "longrope"):
        keys = {"short_factor": [1.0] * 11, "long_factor": [1.0] * 11} if kind != "yarn" else {}
        rope = trained(kind, 1024, 4.0, partial_rotary_factor=0.5, **keys)
        with pytest.raises(ValueError, match=r"even.*21"):
            Rope.from_config(config(rope, head_dim=42))
    with pytest.raises(ValueError, match=r"even.*21"):
        Rope(42, rotary_dim=21)


MANY = [
    *(config(rope, width) for width, rope, _ in PUBLISHED.values()),
    *(one for pair in SPELLINGS.values() for one in pair),
    config(None, model_type="nanochat"),
    config({"mrope_section": [4, 2, 2], "mrope_interleaved": True}),
    config({"partial_rotary_factor": 0.5}, head_dim=42),
    config({"type": "ntk", "factor": 3, "mixed_b": 0.5}),
    config({"llama_4_scaling_beta": 0.1, **YARN}),
]


@pytest.mark.parametrize("number", range(len(MANY)))
def test_round_trip(number):
    layer = Rope.from_config(MANY[number])
    same(Rope.from_config(layer.to_dict()), layer)
    import torch

    x = torch.randn(1, 5, 2, layer.d_model)
    assert_same(posenc.cpp.RotaryPositionalEmbedding.from_config(MANY[number])(x), layer(x))


def test_overrides():
    layer = Rope.from_config(config(YARN), interleaved=True, seq_dim=2, base=500.0)
    assert layer.interleaved and layer.seq_dim == 2 and layer.base == 500.0
    layer = Rope.from_config(config(), scaling={"rope_type": "linear", "factor": 2.0})
    assert layer.inv_freq[0] == 0.5


# dictionary, what the message names
REFUSED = {
    "unknown key": ({"rope_type": "linear", "factor": 2.0, "factr": 3.5}, ("factr", "3.5")),
    "key of another type": ({"rope_type": "default", "beta_fast": 32}, ("beta_fast", "32")),
    "unknown type": ({"rope_type": "spiral"}, ("spiral", "yarn")),
    "two types": ({"rope_type": "linear", "type": "yarn", "factor": 2}, ("linear", "yarn")),
    "no factor": ({"rope_type": "linear"}, ("factor",)),
    "factor is None": ({"rope_type": "linear", "factor": None}, ("factor",)),
    "factor is a word": ({"rope_type": "linear", "factor": "8"}, ("factor", "'8'")),
    "factor is a flag": ({"rope_type": "linear", "factor": True}, ("factor", "True")),
    "factor is a list": ({"rope_type": "linear", "factor": [2.0]}, ("factor", "[2]")),
    "factor below 1": ({"rope_type": "linear", "factor": 0.5}, ("factor", "0.5")),
    "factor is no number": ({"rope_type": "linear", "factor": math.nan}, ("factor", "nan")),
    "infinite theta": ({"rope_theta": math.inf}, ("rope_theta", "inf")),
    "theta 0": ({"rope_theta": 0}, ("rope_theta", "0")),
    "yarn without lengths": (
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": None},
        ("original_max_position_embeddings", "None"),
    ),
    "betas": (trained("yarn", 1024, 4.0, beta_fast=1, beta_slow=32), ("beta_fast", "32")),
    "negative factor": (
        trained("yarn", 1024, 4.0, attention_factor=-1.0),
        ("attention_factor", "-1"),
    ),
    "trained length": (trained("yarn", 10.5, 4.0), ("original_max_position_embeddings", "10.5")),
    "short list": (
        trained("longrope", 1024, 4.0, short_factor=[1.0] * 7, long_factor=[1.0] * 8),
        ("short_factor", "8", "7"),
    ),
    "long list": (
        trained("longrope", 1024, 4.0, short_factor=[1.0] * 8, long_factor=[1.0] * 9),
        ("long_factor", "8", "9"),
    ),
    "list is None": (
        trained("longrope", 1024, 4.0, short_factor=None, long_factor=[1.0] * 8),
        ("short_factor",),
    ),
    "list of words": (
        trained("longrope", 1024, 4.0, short_factor=["1"] * 8, long_factor=[1.0] * 8),
        ("short_factor",),
    ),
    "a 0 in a list": (
        trained("longrope", 1024, 4.0, short_factor=[0.0] * 8, long_factor=[1.0] * 8),
        ("short_factor", "0"),
    ),
    "two factors": (
        trained("longrope", 1024, 4.0, **LISTS, short_mscale=1.1, long_mscale=1.2),
        ("short_mscale", "1.1", "1.2"),
    ),
    "low and high": (
        trained("llama3", 1024, 4.0, low_freq_factor=4.0, high_freq_factor=4.0),
        ("low_freq_factor", "high_freq_factor", "4"),
    ),
    "llama3 without high": (
        trained("llama3", 1024, 4.0, low_freq_factor=4.0),
        ("high_freq_factor",),
    ),
    "a share of 0": ({"partial_rotary_factor": 0.0}, ("partial_rotary_factor", "0")),
    "sections": ({"mrope_section": [8.5, 1, 1]}, ("mrope_section", "8.5")),
    "sections of a word": ({"mrope_section": "abc"}, ("mrope_section", "abc")),
    "dual chunk attention": (
        {"dual_chunk_attention_config": {"chunk_size": 8192}},
        ("dual_chunk_attention_config",),
    ),
    "axial": ({"rope_type": "axial"}, ("axial", "AxialRotaryEmbedding")),
    "not a dictionary": ("yarn", ("rope_parameters", "yarn")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    rope, words = REFUSED[name]
    with pytest.raises(ValueError) as error:
        Rope.from_config({"head_dim": 16, "rope_parameters": rope})
    for word in words:
        assert word in str(error.value), (word, str(error.value))


def test_a_config_without_heads():
    with pytest.raises(ValueError, match=r"head_dim.*hidden_size"):
        Rope.from_config({"rope_theta": 1e4})


def test_numbers_of_numpy():
    import numpy as np

    rope = {"rope_type": "linear", "factor": np.int64(2), "rope_theta": np.float32(10000.0)}
    layer = Rope.from_config(config(rope, np.int32(16)))
    assert layer.inv_freq == [f / 2 for f in reference.rope_inv_freq(16)]
