"""The one table of layer samples: constructor, inputs, reference, parameters.

Every generic layer test runs over LAYERS; the parity tests build each row once as `posenc.X` and
once as `posenc.cpp.X`. The length of every input may vary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import posenc
import torch
from reference import layers as reference

from samples.compare import array

BATCH = 2


@dataclass(frozen=True)
class LayerSample:
    layer: str
    case: str
    arguments: tuple
    options: dict = field(hash=False)
    inputs: Callable = field(hash=False)
    """(length, draw) -> {argument of forward: tensor}, where draw(*shape) makes random floats."""
    reference: Callable = field(hash=False)
    """(state, **inputs) -> array"""
    parameters: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.layer}-{self.case}"

    def build(self, dtype=None, device=None, package=posenc, seed=0):
        """The layer with weights of a fixed seed."""
        torch.manual_seed(seed)
        module = getattr(package, self.layer)(*self.arguments, **self.options)
        return module.to(dtype=dtype, device=device)

    def tensors(self, dtype=torch.float32, length=5, seed=0, requires_grad=False):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        made = self.inputs(length, draw)
        if requires_grad:
            for name in self.differentiable:
                if name in made:
                    made[name].requires_grad_()
        return made

    differentiable = ("x", "attn_bias")

    @property
    def keeps_float32(self):
        """Its parameters are never a half type."""
        return self.layer == "LearnedRotaryEmbedding"

    def parameter_dtype(self, dtype):
        """What its parameters have where a dtype is asked for."""
        half = dtype in (torch.bfloat16, torch.float16)
        return torch.float32 if half and self.keeps_float32 else dtype

    @property
    def is_attention(self):
        return "Attention" in self.layer

    def expected(self, module, tensors):
        state = {name: array(value) for name, value in module.state_dict().items()}
        return self.reference(state, **{name: array(value) for name, value in tensors.items()})

    def real_rows(self, out, tensors):
        """The rows of real tokens: what padding computes is nobody's business."""
        keep = tensors.get("key_padding_mask")
        return (
            out
            if keep is None
            else out[keep.bool().cpu() if out.device.type == "cpu" else keep.bool()]
        )


ATTENTION_NAMES = tuple(
    f"{part}_proj.{kind}"
    for part in ("query", "key", "value", "out")
    for kind in ("weight", "bias")
)


def left_padding(length):
    keep = torch.ones(BATCH, length, dtype=torch.bool)
    keep[1, : (length + 1) // 3] = False
    return keep


def article_mask(length):
    """The article's: floats, zero blocks; one query without any key where there are enough."""
    keep = torch.ones(length, length).tril()
    if length > 3:
        keep[3] = 0
    return keep


def batch_ids(length):
    return torch.stack((torch.arange(length) * 2, torch.arange(length).flip(0) + 700))


def rows():
    """(layer, case, arguments, options, inputs, reference[, parameter names])"""

    def x(width):
        return lambda length, draw: {"x": draw(BATCH, length, width)}

    def heads(width, seq_dim=1):
        if seq_dim == 2:
            return lambda length, draw: {"x": draw(BATCH, 3, length, width)}
        return lambda length, draw: {"x": draw(BATCH, length, 3, width)}

    def sinusoidal(width, **fixed):
        return lambda state, **inputs: reference.sinusoidal_layer(
            state, d_model=width, **fixed, **inputs
        )

    name = "SinusoidalPositionalEncoding"
    yield name, "plain", (16,), {}, x(16), sinusoidal(16)
    yield (
        name,
        "halves",
        (16,),
        {"interleaved": False, "base": 500.0},
        x(16),
        sinusoidal(16, interleaved=False, base=500.0),
    )
    yield name, "odd", (7,), {}, x(7), sinusoidal(7)
    yield (
        name,
        "ids",
        (16,),
        {},
        lambda length, draw: {"x": draw(BATCH, length, 16), "position_ids": batch_ids(length)},
        sinusoidal(16),
    )

    name, table = "LearnedPositionalEncoding", ("positional_embeddings.weight",)
    yield name, "plain", (40, 16), {}, x(16), reference.learned_layer, table
    yield (
        name,
        "ids",
        (40, 16),
        {},
        lambda length, draw: {
            "x": draw(BATCH, length, 16),
            "position_ids": batch_ids(length) % 40,
        },
        reference.learned_layer,
        table,
    )

    def tokens(length, draw):
        return {"input_ids": (draw(BATCH, length).abs() * 10).long() % 30}

    name, weight = "TransformerEmbedding", ("token_embedding.weight",)
    yield name, "plain", (30, 16), {}, tokens, reference.embedding_layer, weight

    def rotary(width, **fixed):
        return lambda state, **inputs: reference.rotary_layer(
            state, rotary_dim=width, **fixed, **inputs
        )

    name = "RotaryPositionalEmbedding"
    yield name, "pairs", (8,), {}, heads(8), rotary(8)
    yield name, "halves", (8,), {"interleaved": False}, heads(8), rotary(8, interleaved=False)
    yield (
        name,
        "partial",
        (12,),
        {"rotary_dim": 6, "rotary_start": 3, "base": 500000.0},
        heads(12),
        rotary(6, rotary_start=3, base=500000.0),
    )
    yield name, "heads_first", (8,), {"seq_dim": 2}, heads(8, 2), rotary(8, seq_dim=2)
    yield (
        name,
        "ids",
        (8,),
        {},
        lambda length, draw: {"x": draw(BATCH, length, 3, 8), "position_ids": batch_ids(length)},
        rotary(8),
    )
    yield (
        name,
        "axes",
        (8,),
        {"interleaved": False, "axes": [0, 1, 1, 2]},
        lambda length, draw: {
            "x": draw(BATCH, length, 3, 8),
            "position_ids": torch.stack([batch_ids(length) + a for a in range(3)]),
        },
        rotary(8, interleaved=False, axes=[0, 1, 1, 2]),
    )

    def grid(width, seq_dim=1, batch=True):
        def inputs(length, draw):
            ids = torch.stack((torch.arange(length) % 7, torch.arange(length).flip(0)))
            if batch:
                ids = torch.stack((ids, ids.flip(0) - 3), 1)
            return {**heads(width, seq_dim)(length, draw), "position_ids": ids}

        return inputs

    def axial(**fixed):
        return lambda state, **inputs: reference.axial_layer(state, **fixed, **inputs)

    name = "AxialRotaryEmbedding"
    yield name, "halves", (16,), {}, grid(16), axial(arrangement="half_hw")
    yield (
        name,
        "blocks",
        (16, "blocks_wh", 100),
        {"seq_dim": 2, "offset": 1, "scale": 0.5},
        grid(16, 2, False),
        axial(arrangement="blocks_wh", base=100.0, seq_dim=2, offset=1, scale=0.5),
    )
    yield name, "pairs", (16, "pairs_wh"), {}, grid(16), axial(arrangement="pairs_wh")

    def mixed(**fixed):
        return lambda state, **inputs: reference.mixed_layer(state, **fixed, **inputs)

    name, learned = "MixedRotaryEmbedding", ("freqs",)
    yield name, "per_head", (8, 3), {}, grid(8), mixed(), learned
    yield (
        name,
        "shared",
        (8, 3),
        {"per_head": False, "interleaved": False, "seq_dim": 2},
        grid(8, 2, False),
        mixed(interleaved=False, seq_dim=2),
        learned,
    )

    def learned_rotary(width, **fixed):
        return lambda state, **inputs: reference.learned_rotary_layer(
            state, rotary_dim=width, **fixed, **inputs
        )

    name = "LearnedRotaryEmbedding"
    yield name, "log", (8,), {}, heads(8), learned_rotary(8), ("alpha",)
    yield (
        name,
        "log_heads",
        (12,),
        {"n_heads": 3, "interleaved": False, "rotary_dim": 6, "rotary_start": 3},
        heads(12),
        learned_rotary(6, interleaved=False, rotary_start=3),
        ("alpha",),
    )
    yield (
        name,
        "direct",
        (8,),
        {"parametrisation": "direct", "base": 500.0},
        lambda length, draw: {
            "x": draw(BATCH, length, 3, 8),
            "position_ids": batch_ids(length) % 50,
        },
        learned_rotary(8),
        ("freqs",),
    )
    yield (
        name,
        "direct_heads_first",
        (8,),
        {"parametrisation": "direct", "n_heads": 3, "seq_dim": 2},
        heads(8, 2),
        learned_rotary(8, seq_dim=2),
        ("freqs",),
    )

    def xpos(width, **fixed):
        return lambda state, **inputs: reference.xpos_layer(
            state, rotary_dim=width, **fixed, **inputs
        )

    name = "XPosRotaryEmbedding"
    yield name, "pairs", (8,), {"scale_base": 16.0}, heads(8), xpos(8, scale_base=16.0)
    yield (
        name,
        "partial",
        (12,),
        {"rotary_dim": 6, "rotary_start": 3, "interleaved": False, "centre": 4.0, "seq_dim": 2},
        heads(12, 2),
        xpos(6, rotary_start=3, interleaved=False, centre=4.0, seq_dim=2),
    )
    yield (
        name,
        "ids",
        (8,),
        {"gamma": 0.6, "base": 500.0},
        lambda length, draw: {"x": draw(BATCH, length, 3, 8), "position_ids": batch_ids(length)},
        xpos(8, gamma=0.6, base=500.0),
    )

    name = "QueryTemperature"
    warm = {"scale": 0.1, "floor_scale": 2.0, "shift": 1.0}
    plain = {"beta": 0.1, "floor_scale": 2.0, "shift": 1.0}
    yield (
        name,
        "plain",
        (),
        warm,
        heads(8),
        lambda state, **inputs: reference.temperature_layer(state, **plain, **inputs),
    )
    yield (
        name,
        "ids",
        (),
        {"scale": 0.3, "floor_scale": 100.0, "shift": 0.0, "seq_dim": 2},
        lambda length, draw: {"x": draw(BATCH, 3, length, 8), "position_ids": batch_ids(length)},
        lambda state, **inputs: reference.temperature_layer(
            state, beta=0.3, floor_scale=100.0, seq_dim=2, **inputs
        ),
    )
    yield "LongSequenceRoPE", "chunks", (8,), {"chunk_size": 4}, heads(8), rotary(8)

    for name, kind in (("RoPEAttention", "rope"), ("ALiBiAttention", "alibi")):

        def attention(kind=kind, **fixed):
            return lambda state, **inputs: reference.attention_layer(
                state, kind=kind, **fixed, **inputs
            )

        def with_inputs(**more):
            return lambda length, draw: {
                "x": draw(BATCH, length, 32),
                **{key: make(length, draw) for key, make in more.items()},
            }

        def row(case, options, inputs, name=name, attention=attention, **fixed):
            shared = {k: v for k, v in options.items() if k not in ("bias",)}
            names = ATTENTION_NAMES
            if options.get("bias") is False:
                names = tuple(n for n in names if not n.endswith("bias"))
            return (
                name,
                case,
                (32, 4),
                options,
                inputs,
                attention(n_heads=4, **shared, **fixed),
                names,
            )

        yield row("plain", {}, with_inputs())
        yield row("causal", {"is_causal": True}, with_inputs())
        yield row("grouped", {"n_kv_heads": 2, "is_causal": True, "bias": False}, with_inputs())
        yield row("mask", {}, with_inputs(mask=lambda length, draw: article_mask(length)))
        yield row(
            "bias",
            {"is_causal": True},
            with_inputs(attn_bias=lambda length, draw: draw(1, 4, length, length)),
        )
        yield row(
            "padding",
            {"is_causal": True},
            with_inputs(key_padding_mask=lambda length, draw: left_padding(length)),
        )
        yield row(
            "padding_both_ways",
            {},
            with_inputs(key_padding_mask=lambda length, draw: left_padding(length)),
        )
        if kind == "rope":
            yield row("partial", {"rotary_dim": 4, "interleaved": False}, with_inputs())
            yield row(
                "ids",
                {"base": 500.0},
                with_inputs(position_ids=lambda length, draw: batch_ids(length)),
            )


LAYERS = [LayerSample(*row) for row in rows()]
PLAIN = list({sample.layer: sample for sample in reversed(LAYERS)}.values())[::-1]
"""One sample a layer."""
