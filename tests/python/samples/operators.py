"""The one table of operator samples: operator -> inputs, reference, tolerance, dtypes, derivatives.

A sample holds the tensor arguments and the other arguments apart; both carry the schema's names, so
the operator and its reference are called with the same dictionary. A new operator is one entry in
OPERATORS and its rows in SAMPLES; every generic test then covers it.
"""

import math
from dataclasses import dataclass, field

import posenc  # noqa: F401  (registers the operators)
import reference
import torch

from samples.compare import FLOATS, array, assert_near, tensors_of

ROTATIONS = (
    "rotary_embedding",
    "rotary_embedding_qk",
    "rotary_embedding_qkv",
    "re_rotate",
    "shift",
)
ROTATED = ("x", "q", "k", "qkv", "keys")
PHASES = (
    *ROTATIONS,
    "axial_rotary_embedding",
    "mixed_rotary_embedding",
    "xpos_embedding",
    "sinusoidal_encoding",
    "add_sinusoidal",
    "embed_tokens",
)
FREQ4 = reference.rope_inv_freq(8)
FREQ3 = reference.rope_inv_freq(6)
FREQ32 = reference.rope_inv_freq(64)
SLOPES4 = reference.alibi_slopes(4)
SLOPES3 = reference.alibi_slopes(3)


@dataclass(frozen=True)
class Operator:
    """What holds for every sample of one operator."""

    name: str
    steps: float
    """Roundings inside, at the magnitude of the inputs."""
    differentiable: tuple[str, ...] = ()
    second_order: bool = True
    skips: bool = False
    batched: bool = True
    """The inputs have a batch axis."""
    dtypes: tuple[torch.dtype, ...] = FLOATS

    @property
    def base(self):
        return self.name.split(".")[0]

    def __call__(self, **arguments):
        return self.handle(**arguments)

    @property
    def makes_dtype(self):
        """Nothing but an argument says which dtype the output has."""
        return self.base in ("sinusoidal_encoding", "alibi_bias")

    @property
    def handle(self):
        packet, _, overload = self.name.partition(".")
        return getattr(getattr(torch.ops.posenc, packet), overload or "default")


OPERATORS = {
    op.name: op
    for op in (
        Operator("rotary_embedding", 4, ("x",)),
        Operator("rotary_embedding.Tensor", 4, ("x", "inv_freq")),
        Operator("rotary_embedding_qk", 4, ("q", "k")),
        Operator("rotary_embedding_qkv", 4, ("qkv",)),
        Operator("re_rotate", 4, ("keys",)),
        Operator("re_rotate.Tensor", 4, ("keys", "old_inv_freq", "new_inv_freq")),
        Operator("shift", 4, ("keys",)),
        Operator("shift.Tensor", 4, ("keys", "inv_freq")),
        Operator("apply_rotary", 4, ("x", "cos", "sin")),
        Operator("axial_rotary_embedding", 8, ("x",)),
        Operator("mixed_rotary_embedding", 8, ("x", "freqs")),
        Operator("convert_rope_weights", 0, ("weight",), batched=False),
        Operator("xpos_embedding", 4, ("x",)),
        Operator("query_temperature", 2, ("q",)),
        Operator("sinusoidal_encoding", 2),
        Operator("add_sinusoidal", 4, ("x",)),
        Operator("add_positions", 1, ("x", "weight")),
        Operator("embed_tokens", 4, ("weight",)),
        Operator("alibi_bias", 2, batched=False),
        Operator("alibi_bias.Tensor", 2, ("slopes",), batched=False),
        Operator("alibi_softmax", 16, ("scores",)),
        Operator("alibi_attention", 24, ("q", "k", "v"), skips=True),
        Operator("alibi_attention.Tensor", 24, ("q", "k", "v", "slopes"), skips=True),
        Operator("merge_attention", 8, ("out1", "lse1", "out2", "lse2")),
    )
}


@dataclass(frozen=True)
class Sample:
    op: Operator
    case: str
    shapes: dict = field(hash=False)
    """Name -> shape of a random tensor, or a tensor itself (integers, masks, fp64 frequencies)."""
    options: dict = field(hash=False)
    large: bool = False
    """Too large for a full numerical Jacobian."""

    def __str__(self):
        return f"{self.op.name}-{self.case}"

    def tensors(self, dtype=torch.float64, requires_grad=False, seed=0):
        """The tensor arguments; random ones are equal, but for rounding, in each dtype."""
        generator = torch.Generator().manual_seed(seed)
        out = {}
        for name, shape in self.shapes.items():
            if isinstance(shape, torch.Tensor):
                out[name] = shape.clone()
            else:
                out[name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            # Statistics stay in fp32 beside a half-precision output.
            if name.startswith("lse") and dtype != torch.float64:
                out[name] = out[name].float()
            if requires_grad and name in self.differentiable:
                out[name].requires_grad_()
        return out

    @property
    def differentiable(self):
        return [name for name in self.op.differentiable if name in self.shapes]

    def run(self, tensors, dtype=None):
        """The operator's outputs; `dtype` is handed on where the output's dtype is an argument."""
        extra = {"dtype": dtype} if dtype is not None and self.op.makes_dtype else {}
        return tensors_of(self.op(**tensors, **self.options, **extra))

    def expected(self, tensors):
        """The reference's outputs for these (already rounded) inputs."""
        function = getattr(reference, self.op.base)
        arrays = {name: array(tensor) for name, tensor in tensors.items()}
        return tensors_of(function(**arrays, **self.options))

    def magnitude(self, tensors):
        """Largest number that the arithmetic meets."""
        sizes = [1.0]
        rotated = ROTATED if self.op.base in ROTATIONS else ()
        queries = ("q",) if self.op.base == "query_temperature" else ()
        for name in ("x", "v", "weight", "out1", "out2", *rotated, *queries):
            if name in tensors and tensors[name].numel():
                sizes.append(tensors[name].detach().double().abs().max().item())
        factor = max(1.0, abs(self.options.get("attention_factor", 1.0)))
        factor *= max(1.0, self.options.get("new_attention_factor", 1.0))
        if "q" not in tensors:
            factor *= max(1.0, abs(self.options.get("scale", 1.0)))
        if self.op.base == "xpos_embedding":
            factor = self.largest_scale(tensors)
        if self.op.base == "query_temperature":
            factor = 1 + abs(self.options["beta"]) * math.log(
                2 + self.farthest(tensors["q"], tensors) / self.options["floor_scale"]
            )
        for name in ("cos", "sin"):
            if name in tensors:
                factor = max(factor, tensors[name].detach().abs().max().item())
        return max(sizes) * factor

    def farthest(self, x, tensors, centre=0.0):
        """The largest distance of a position from the centre."""
        length = x.shape[self.options.get("seq_dim", 1)]
        ids = tensors.get("position_ids", torch.arange(length)).double()
        ids = ids + self.options.get("offset", 0)
        return (ids - centre).abs().max().item() if ids.numel() else 0.0

    def largest_scale(self, tensors):
        """What xPos multiplies by at its farthest position, at least 1."""
        far = self.farthest(tensors["x"], tensors, self.options.get("centre", 0.0))
        zeta = reference.xpos_zeta(0, 1, self.options.get("gamma", 0.4))
        return zeta ** (-far / self.options.get("scale_base", 512.0))

    def phase_steps(self, tensors):
        """Roundings of a phase in fp64: a product of this size is that many units off."""
        size = abs(self.options.get("offset") or 0)
        for name in (*ROTATED, "position_ids", "delta"):
            if name in tensors and self.op.base in PHASES:
                t = tensors[name].detach().double().abs()
                size += max(t.shape) if name in ROTATED else t.max().item()
        return 2 * size

    def check(self, actual, expected, tensors, what=""):
        for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
            magnitude = self.magnitude(tensors) * math.sqrt(2)
            statistics = number == 1 and self.op.base not in ROTATIONS
            if statistics or self.op.base == "alibi_bias":
                finite = e[abs(e) != math.inf]
                magnitude = max(1.0, abs(finite).max()) if finite.size else 1.0
            assert_near(
                a,
                e,
                steps=self.op.steps
                + (self.phase_steps(tensors) if a.dtype == torch.float64 else 0),
                magnitude=magnitude,
                skipped=skipped(tensors["q"].dtype) if self.op.skips else 0.0,
                what=f"{self} {what} output {number}",
            )


def skipped(dtype):
    """The share of a row's mass that far blocks may hold when they are left out."""
    return {torch.float64: 2**-53, torch.float32: 2**-24}.get(dtype, 2**-14)


def ids(*rows):
    return torch.tensor(rows if len(rows) > 1 else rows[0])


def random_keep(*shape, seed=3):
    """A mask that keeps about two keys of three, and at least the first of each row."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(shape, generator=generator) < 0.66
    keep[..., 0] = True
    return keep


def blocked_row(L, S):
    """A mask in which query 1 has no key at all."""
    keep = torch.ones(1, 1, L, S, dtype=torch.bool)
    keep[:, :, 1] = False
    return keep


def no_key(*shape):
    """Statistics in which one row has seen no key."""
    lse = torch.linspace(-2, 3, math.prod(shape), dtype=torch.float64).reshape(shape)
    lse[..., 1] = -math.inf
    return lse


BATCH_IDS = ids([0, 3, 3, -2, 700], [5, 4, 3, 2, 100003])
SMALL_IDS = ids([0, 3, 3, 2, 6], [5, 4, 3, 2, 1])
AXIS_IDS = torch.tensor([BATCH_IDS.tolist(), SMALL_IDS.tolist(), (SMALL_IDS + 9).tolist()])
X4 = (2, 5, 3, 8)


def rows():
    """(operator, case, tensors, options[, large])"""
    rotary = "rotary_embedding"
    yield rotary, "pairs", {"x": X4}, {"inv_freq": FREQ4}
    yield rotary, "halves", {"x": X4}, {"inv_freq": FREQ4, "interleaved": False}
    yield rotary, "offset", {"x": X4}, {"inv_freq": FREQ4, "offset": 1000}
    yield rotary, "negative_offset", {"x": X4}, {"inv_freq": FREQ4, "offset": -3}
    yield rotary, "ids", {"x": X4, "position_ids": ids([4, 2, 0, 9, 65])}, {"inv_freq": FREQ4}
    yield (
        rotary,
        "ids_row",
        {"x": X4, "position_ids": ids([4, 2, 0, 9, 65])[None]},
        {"inv_freq": FREQ4},
    )
    yield (
        rotary,
        "ids_batch",
        {"x": X4, "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "interleaved": False, "offset": 2},
    )
    yield (
        rotary,
        "ids_int32",
        {"x": X4, "position_ids": BATCH_IDS.to(torch.int32)},
        {"inv_freq": FREQ4},
    )
    yield rotary, "ids_real", {"x": X4, "position_ids": BATCH_IDS.double() / 7}, {"inv_freq": FREQ4}
    yield (
        rotary,
        "axes",
        {"x": X4, "position_ids": AXIS_IDS},
        {"inv_freq": FREQ4, "axes": [0, 1, 2, 1], "interleaved": False},
    )
    yield (
        rotary,
        "axes_pairs",
        {"x": X4, "position_ids": AXIS_IDS[:2]},
        {"inv_freq": FREQ4, "axes": [1, 0, 0, 1]},
    )
    yield (
        rotary,
        "partial",
        {"x": (2, 5, 3, 11)},
        {"inv_freq": FREQ3, "rotary_start": 3},
    )
    yield (
        rotary,
        "partial_halves",
        {"x": (2, 5, 3, 11)},
        {"inv_freq": FREQ3, "rotary_start": 5, "interleaved": False},
    )
    yield rotary, "pairs_to_halves", {"x": X4}, {"inv_freq": FREQ4, "interleaved_out": False}
    yield (
        rotary,
        "halves_to_pairs",
        {"x": (2, 5, 3, 9)},
        {"inv_freq": FREQ4, "interleaved": False, "interleaved_out": True, "rotary_start": 1},
    )
    yield (
        rotary,
        "factor",
        {"x": (2, 5, 3, 10)},
        {"inv_freq": FREQ4, "attention_factor": 1.346574},
    )
    yield (
        rotary,
        "inverse",
        {"x": X4},
        {"inv_freq": FREQ4, "inverse": True, "attention_factor": 0.5, "offset": 3},
    )
    yield rotary, "heads_first", {"x": (2, 3, 5, 8)}, {"inv_freq": FREQ4, "seq_dim": 2}
    yield (
        rotary,
        "heads_first_ids",
        {"x": (2, 3, 5, 8), "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "seq_dim": -2, "interleaved": False},
    )
    yield (
        rotary,
        "time_first",
        {"x": (5, 2, 3, 8), "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "seq_dim": 0},
    )
    yield rotary, "rank3", {"x": (2, 5, 8)}, {"inv_freq": FREQ4}
    yield rotary, "rank2", {"x": (5, 8)}, {"inv_freq": FREQ4, "seq_dim": 0}
    yield rotary, "rank5", {"x": (2, 5, 2, 2, 8)}, {"inv_freq": FREQ4, "interleaved": False}
    yield rotary, "one_token", {"x": (2, 1, 3, 8)}, {"inv_freq": FREQ4, "offset": 77}
    for width in (2, 6, 10, 14, 18, 34):
        yield (
            rotary,
            f"width{width}",
            {"x": (1, 3, 2, width)},
            {"inv_freq": reference.rope_inv_freq(width), "interleaved": width % 4 == 2},
        )
    for interleaved in (True, False):
        yield (
            rotary,
            f"wide_{'pairs' if interleaved else 'halves'}",
            {"x": (1, 131, 2, 64)},
            {"inv_freq": FREQ32, "interleaved": interleaved, "offset": 61},
            True,
        )

    learned = "rotary_embedding.Tensor"
    freq = torch.tensor(FREQ4, dtype=torch.float64)
    per_batch = torch.stack([freq, freq * 0.3])[:, None]
    per_head = torch.stack([freq, freq * 0.3, freq + 0.1])[None]
    yield learned, "vector", {"x": X4, "inv_freq": freq}, {}
    yield learned, "halves", {"x": X4, "inv_freq": freq}, {"interleaved": False, "offset": 5}
    yield learned, "per_batch", {"x": X4, "inv_freq": per_batch, "position_ids": SMALL_IDS}, {}
    yield (
        learned,
        "per_head",
        {"x": X4, "inv_freq": per_head},
        {"interleaved": False, "attention_factor": 1.5},
    )
    yield (
        learned,
        "per_head_heads_first",
        {"x": (2, 3, 5, 10), "inv_freq": per_head, "position_ids": SMALL_IDS},
        {"seq_dim": 2, "rotary_start": 1, "interleaved_out": False},
    )
    yield (
        learned,
        "axes",
        {"x": X4, "inv_freq": freq, "position_ids": AXIS_IDS.clamp(-9, 9)},
        {"axes": [0, 1, 2, 1], "inverse": True},
    )
    yield learned, "rank2", {"x": (5, 8), "inv_freq": freq}, {"seq_dim": 0}

    axial = "axial_rotary_embedding"
    halves = {"inv_freq": FREQ4, "axes": [0, 0, 1, 1]}
    yield axial, "shared", {"x": X4, "position_ids": BATCH_IDS}, halves
    yield (
        axial,
        "pairs_batch",
        {"x": X4, "position_ids": AXIS_IDS[:2]},
        {**halves, "interleaved": True, "offset": 1},
    )
    yield (
        axial,
        "blocks",
        {"x": (2, 3, 5, 9), "position_ids": AXIS_IDS[:2]},
        {**halves, "blocks": 2, "seq_dim": 2},
    )
    yield (
        axial,
        "three_axes",
        {"x": X4, "position_ids": AXIS_IDS.double() / 7},
        {"inv_freq": FREQ3, "axes": [0, 1, 2], "inverse": True},
    )
    yield (
        axial,
        "ends",
        {"x": (2, 8, 3, 8), "position_ids": SMALL_IDS},
        {**halves, "n_prefix": 1, "n_suffix": 2},
    )

    mixed = "mixed_rotary_embedding"
    ids2 = SMALL_IDS.expand(2, 2, 5)
    yield mixed, "per_head", {"x": X4, "freqs": (2, 3, 4), "position_ids": SMALL_IDS}, {}
    yield (
        mixed,
        "shared_halves",
        {"x": (2, 3, 5, 10), "freqs": (2, 4), "position_ids": ids2},
        {"interleaved": False, "seq_dim": 2, "inverse": True},
    )
    yield (
        mixed,
        "ends",
        {"x": (2, 8, 3, 8), "freqs": (2, 3, 4), "position_ids": SMALL_IDS},
        {"n_prefix": 2, "n_suffix": 1, "offset": 2},
    )
    xpos = "xpos_embedding"
    yield xpos, "pairs", {"x": X4}, {"inv_freq": FREQ4}
    yield xpos, "keys", {"x": X4}, {"inv_freq": FREQ4, "is_key": True, "interleaved": False}
    yield (
        xpos,
        "far",
        {"x": X4},
        {"inv_freq": FREQ4, "offset": 2000, "centre": 500.0, "is_key": True},
    )
    yield (
        xpos,
        "partial",
        {"x": (2, 5, 3, 11), "position_ids": SMALL_IDS},
        {"inv_freq": FREQ3, "rotary_start": 3, "gamma": 0.7, "centre": 2.5, "scale_base": 20.0},
    )
    yield (
        xpos,
        "heads_first_ids",
        {"x": (2, 3, 5, 8), "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "seq_dim": -2, "scale_base": 1e6, "offset": -3, "is_key": True},
    )
    yield (
        xpos,
        "ids_real",
        {"x": X4, "position_ids": ids([4, 2, 0, 9, 65]).double() / 7},
        {"inv_freq": FREQ4},
    )
    yield (
        xpos,
        "time_first",
        {"x": (5, 2, 3, 8), "position_ids": SMALL_IDS},
        {"inv_freq": FREQ4, "seq_dim": 0, "interleaved": False},
    )
    yield xpos, "rank2", {"x": (5, 8)}, {"inv_freq": FREQ4, "seq_dim": 0, "offset": 30}
    yield xpos, "one_token", {"x": (2, 1, 3, 8)}, {"inv_freq": FREQ4, "offset": 77}

    warm = "query_temperature"
    yield warm, "llama4", {"q": X4}, {"beta": 0.1, "floor_scale": 2.0, "shift": 1.0}
    yield warm, "offset", {"q": X4}, {"beta": 0.1, "floor_scale": 8192.0, "offset": 16380}
    yield (
        warm,
        "ids_batch",
        {"q": (2, 3, 5, 7), "position_ids": BATCH_IDS},
        {"beta": 0.4, "floor_scale": 3.0, "seq_dim": 2},
    )
    yield (
        warm,
        "ids_real",
        {"q": X4, "position_ids": ids([4, 2, 0, 9, 65]).double() / 7},
        {"beta": -0.05, "floor_scale": 0.5, "offset": -1},
    )
    yield warm, "time_first", {"q": (5, 2, 3)}, {"beta": 1.0, "floor_scale": 2.0, "seq_dim": 0}
    yield warm, "rank2", {"q": (5, 8)}, {"beta": 1.0, "floor_scale": 2.0, "seq_dim": 0}

    both = "rotary_embedding_qk"
    qk = {"q": X4, "k": (2, 5, 1, 8)}
    yield both, "pairs", qk, {"inv_freq": FREQ4}
    yield both, "halves", qk, {"inv_freq": FREQ4, "interleaved": False, "offset": 9}
    yield both, "ids_batch", {**qk, "position_ids": BATCH_IDS}, {"inv_freq": FREQ4, "offset": 2}
    yield (
        both,
        "axes",
        {**qk, "position_ids": AXIS_IDS},
        {"inv_freq": FREQ4, "axes": [0, 1, 2, 1], "interleaved": False},
    )
    yield (
        both,
        "partial",
        {"q": (2, 5, 3, 11), "k": (2, 5, 2, 9)},
        {"inv_freq": FREQ3, "rotary_start": 3, "attention_factor": 1.346574},
    )
    yield both, "pairs_to_halves", qk, {"inv_freq": FREQ4, "interleaved_out": False}
    yield both, "inverse", qk, {"inv_freq": FREQ4, "inverse": True, "attention_factor": 0.5}
    yield (
        both,
        "heads_first",
        {"q": (2, 4, 5, 8), "k": (2, 2, 5, 8), "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "seq_dim": 2, "interleaved": False},
    )
    yield (
        both,
        "time_first",
        {"q": (5, 2, 3, 8), "k": (5, 2, 1, 8)},
        {
            "inv_freq": FREQ4,
            "seq_dim": 0,
        },
    )
    yield both, "ranks", {"q": X4, "k": (2, 5, 8)}, {"inv_freq": FREQ4}
    yield both, "rank2", {"q": (5, 8), "k": (5, 8)}, {"inv_freq": FREQ4, "seq_dim": 0}
    yield (
        both,
        "one_token",
        {"q": (1, 1, 3, 8), "k": (1, 1, 1, 8)},
        {
            "inv_freq": FREQ4,
            "offset": 77,
        },
    )
    yield (
        both,
        "wide",
        {"q": (1, 131, 3, 64), "k": (1, 131, 2, 64)},
        {"inv_freq": FREQ32, "offset": 61},
        True,
    )

    packed = "rotary_embedding_qkv"
    grouped = {"qkv": (2, 5, 5, 8)}
    heads = {"inv_freq": FREQ4, "n_heads": 3, "n_kv_heads": 1}
    yield packed, "grouped", grouped, heads
    yield packed, "halves", grouped, {**heads, "interleaved": False, "offset": 9}
    yield packed, "ids_batch", {**grouped, "position_ids": BATCH_IDS}, heads
    yield packed, "axes", {**grouped, "position_ids": AXIS_IDS}, {**heads, "axes": [0, 1, 2, 1]}
    yield packed, "pairs_to_halves", grouped, {**heads, "interleaved_out": False}
    yield (
        packed,
        "partial",
        {"qkv": (2, 5, 6, 11)},
        {
            "inv_freq": FREQ3,
            "n_heads": 2,
            "n_kv_heads": 2,
            "rotary_start": 3,
            "attention_factor": 1.346574,
        },
    )
    three = {"inv_freq": FREQ4, "n_heads": 2, "n_kv_heads": 2}
    yield packed, "three", {"qkv": (2, 5, 3, 2, 8)}, {**three, "interleaved": False}
    yield (
        packed,
        "three_inverse",
        {"qkv": (2, 5, 3, 2, 8), "position_ids": SMALL_IDS},
        {**three, "inverse": True, "seq_dim": -4},
    )
    yield (
        packed,
        "one_token",
        {"qkv": (1, 1, 3, 1, 8)},
        {
            "inv_freq": FREQ4,
            "n_heads": 1,
            "n_kv_heads": 1,
            "offset": 77,
        },
    )
    yield (
        packed,
        "wide",
        {"qkv": (1, 131, 5, 64)},
        {"inv_freq": FREQ32, "n_heads": 3, "n_kv_heads": 1, "offset": 61},
        True,
    )

    moved = "re_rotate"
    keys = {"keys": X4}
    slower = [f * 0.3 for f in FREQ4]
    both_sets = {"old_inv_freq": FREQ4, "new_inv_freq": slower}
    yield moved, "pairs", keys, {**both_sets, "offset": 9}
    yield moved, "halves", {**keys, "position_ids": BATCH_IDS}, {**both_sets, "interleaved": False}
    yield (
        moved,
        "factors",
        {"keys": (2, 3, 5, 11)},
        {
            **both_sets,
            "seq_dim": 2,
            "rotary_start": 2,
            "old_attention_factor": 1.2,
            "new_attention_factor": 1.5,
        },
    )
    yield (
        moved,
        "axes",
        {**keys, "position_ids": AXIS_IDS},
        {**both_sets, "axes": [0, 1, 2, 1], "inverse": True},
    )
    vectors = {"old_inv_freq": freq, "new_inv_freq": freq * 0.3}
    yield f"{moved}.Tensor", "vectors", {**keys, **vectors}, {"offset": 9, "interleaved": False}
    yield (
        f"{moved}.Tensor",
        "per_batch",
        {**keys, "old_inv_freq": freq, "new_inv_freq": per_batch, "position_ids": SMALL_IDS},
        {"new_attention_factor": 1.5},
    )
    yield (
        f"{moved}.Tensor",
        "per_batch_both",
        {**keys, "old_inv_freq": per_batch, "new_inv_freq": per_batch * 0.9},
        {},
    )

    near = "shift"
    for case, delta in (
        ("one", ids([-2])),
        ("rows", ids([3, -70])),
        ("each", SMALL_IDS - 4),
        ("each_for_all", SMALL_IDS[:1] - 4),
        ("column", ids([3], [-70])),
        ("real", ids([0.5, -7.25])),
    ):
        yield near, case, {**keys, "delta": delta}, {"inv_freq": FREQ4}
    yield (
        near,
        "partial",
        {"keys": (2, 3, 5, 11), "delta": ids([3, -70])},
        {"inv_freq": FREQ3, "seq_dim": 2, "interleaved": False, "rotary_start": 3},
    )
    yield (
        near,
        "inverse",
        {**keys, "delta": ids([3, -70])},
        {"inv_freq": FREQ4, "inverse": True},
    )
    yield near, "rank2", {"keys": (5, 8), "delta": ids([4])}, {"inv_freq": FREQ4, "seq_dim": 0}
    yield f"{near}.Tensor", "vector", {**keys, "delta": ids([-2]), "inv_freq": freq}, {}
    yield (
        f"{near}.Tensor",
        "per_batch",
        {**keys, "delta": ids([3, -7]), "inv_freq": per_batch},
        {"interleaved": False},
    )

    layouts = "convert_rope_weights"
    for to in ("half", "interleaved"):
        yield layouts, f"weight_to_{to}", {"weight": (24, 5)}, {"n_heads": 3, "to": to}
        yield layouts, f"bias_to_{to}", {"weight": (24,)}, {"n_heads": 2, "to": to}
        yield (
            layouts,
            f"partial_to_{to}",
            {"weight": (22, 3)},
            {"n_heads": 2, "to": to, "rotary_dim": 6, "rotary_start": 3},
        )

    given = "apply_rotary"
    x = (2, 3, 5, 8)
    yield given, "table", {"x": x, "cos": (5, 4), "sin": (5, 4)}, {}
    yield given, "longer_table", {"x": x, "cos": (9, 4), "sin": (9, 4)}, {}
    yield given, "ids", {"x": x, "cos": (9, 4), "sin": (9, 4), "position_ids": SMALL_IDS}, {}
    yield (
        given,
        "ids_pairs",
        {"x": x, "cos": (9, 4), "sin": (9, 4), "position_ids": ids([8, 0, 1, 1, 3])},
        {"interleaved": True},
    )
    yield given, "gathered", {"x": x, "cos": (2, 5, 4), "sin": (2, 5, 4)}, {}
    yield given, "gathered_one", {"x": x, "cos": (1, 5, 4), "sin": (1, 5, 4)}, {"inverse": True}
    yield (
        given,
        "time_second",
        {"x": X4, "cos": (5, 4), "sin": (5, 4)},
        {"seq_dim": 1, "interleaved": True, "interleaved_out": False},
    )
    yield (
        given,
        "partial",
        {"x": (2, 3, 5, 13), "cos": (5, 3), "sin": (5, 3)},
        {"rotary_start": 2},
    )
    doubled = {"doubled": True}
    yield given, "doubled", {"x": x, "cos": (5, 8), "sin": (5, 8)}, doubled
    yield (
        given,
        "doubled_pairs",
        {"x": x, "cos": (9, 8), "sin": (9, 8), "position_ids": SMALL_IDS},
        {"interleaved": True, **doubled},
    )
    yield (
        given,
        "doubled_relaid",
        {"x": (2, 3, 5, 11), "cos": (2, 5, 6), "sin": (2, 5, 6)},
        {"interleaved": True, "interleaved_out": False, "rotary_start": 2, **doubled},
    )
    yield (
        given,
        "doubled_relaid_back",
        {"x": (2, 3, 5, 11), "cos": (1, 5, 6), "sin": (1, 5, 6)},
        {"interleaved_out": True, "inverse": True, **doubled},
    )
    yield (
        given,
        "wide",
        {"x": (1, 2, 67, 64), "cos": (67, 32), "sin": (67, 32)},
        {},
        True,
    )

    sin = "sinusoidal_encoding"
    yield (
        sin,
        "pairs",
        {"position_ids": ids([0, 1, 2, 63, 64, 65, 1000])},
        {"inv_freq": FREQ4, "d_model": 8},
    )
    yield (
        sin,
        "halves",
        {"position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "d_model": 8, "interleaved": False},
    )
    yield sin, "real", {"position_ids": BATCH_IDS.double() / 3}, {"inv_freq": FREQ4, "d_model": 8}
    yield (
        sin,
        "odd",
        {"position_ids": BATCH_IDS},
        {"inv_freq": reference.sinusoidal_inv_freq(7), "d_model": 7},
    )
    yield (
        sin,
        "odd_halves",
        {"position_ids": BATCH_IDS},
        {"inv_freq": reference.sinusoidal_inv_freq(7), "d_model": 7, "interleaved": False},
    )

    add = "add_sinusoidal"
    yield add, "plain", {"x": (2, 5, 8)}, {"inv_freq": FREQ4}
    yield (
        add,
        "halves_scale",
        {"x": (2, 5, 8)},
        {"inv_freq": FREQ4, "interleaved": False, "scale": 2.5},
    )
    yield add, "offset", {"x": (2, 5, 8)}, {"inv_freq": FREQ4, "offset": 90}
    yield add, "ids", {"x": (2, 5, 8), "position_ids": BATCH_IDS}, {"inv_freq": FREQ4}
    yield (
        add,
        "ids_real",
        {"x": (2, 5, 8), "position_ids": BATCH_IDS.double() / 7},
        {"inv_freq": FREQ4},
    )
    yield (
        add,
        "time_first",
        {"x": (5, 2, 8), "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "seq_dim": 0},
    )
    yield add, "rank2", {"x": (5, 8)}, {"inv_freq": FREQ4, "seq_dim": 0}
    yield (
        add,
        "rank4",
        {"x": (2, 3, 5, 8), "position_ids": BATCH_IDS},
        {"inv_freq": FREQ4, "seq_dim": 2},
    )
    yield add, "odd", {"x": (2, 5, 7)}, {"inv_freq": reference.sinusoidal_inv_freq(7)}
    yield add, "wide", {"x": (1, 131, 66)}, {"inv_freq": reference.sinusoidal_inv_freq(66)}, True

    table = "add_positions"
    yield table, "plain", {"x": (2, 5, 6), "weight": (9, 6)}, {}
    yield table, "offset", {"x": (2, 5, 6), "weight": (9, 6)}, {"offset": 4}
    yield table, "ids", {"x": (2, 5, 6), "weight": (9, 6), "position_ids": SMALL_IDS}, {"offset": 1}
    yield (
        table,
        "ids_row",
        {"x": (2, 5, 6), "weight": (9, 6), "position_ids": ids([8, 0, 0, 1, 1])},
        {},
    )
    yield (
        table,
        "time_first",
        {"x": (5, 2, 6), "weight": (9, 6), "position_ids": SMALL_IDS},
        {"seq_dim": 0},
    )
    yield table, "rank2", {"x": (5, 6), "weight": (9, 6)}, {"seq_dim": 0}
    yield (
        table,
        "rank4",
        {"x": (2, 3, 5, 6), "weight": (9, 6), "position_ids": SMALL_IDS},
        {"seq_dim": 2},
    )
    yield table, "wide", {"x": (2, 40, 67), "weight": (50, 67)}, {}, True

    embed = "embed_tokens"
    tokens = ids([3, 0, 6, 6, 1], [2, 2, 2, 5, 0])
    yield embed, "plain", {"input_ids": tokens, "weight": (7, 8)}, {"inv_freq": FREQ4}
    yield embed, "row", {"input_ids": tokens[0], "weight": (7, 8)}, {"inv_freq": FREQ4, "offset": 5}
    yield (
        embed,
        "ids_scale",
        {"input_ids": tokens, "weight": (7, 8), "position_ids": SMALL_IDS},
        {"inv_freq": FREQ4, "scale": 8**0.5},
    )
    yield (
        embed,
        "halves_odd",
        {"input_ids": tokens, "weight": (7, 9)},
        {"inv_freq": reference.sinusoidal_inv_freq(9), "interleaved": False},
    )

    yield "alibi_bias", "square", {}, {"slopes": SLOPES4, "q_len": 5, "k_len": 5}
    yield "alibi_bias", "causal", {}, {"slopes": SLOPES3, "q_len": 5, "k_len": 5, "is_causal": True}
    yield "alibi_bias", "cache", {}, {"slopes": SLOPES3, "q_len": 2, "k_len": 7, "is_causal": True}
    yield "alibi_bias", "offset", {}, {"slopes": SLOPES3, "q_len": 3, "k_len": 4, "offset": 9}
    slopes = torch.tensor(SLOPES3, dtype=torch.float64)
    yield "alibi_bias.Tensor", "square", {"slopes": slopes}, {"q_len": 5, "k_len": 5}
    yield (
        "alibi_bias.Tensor",
        "causal",
        {"slopes": slopes},
        {"q_len": 2, "k_len": 7, "is_causal": True},
    )

    soft = "alibi_softmax"
    scores = (2, 4, 5, 7)
    yield soft, "plain", {"scores": scores}, {"slopes": SLOPES4}
    yield soft, "causal", {"scores": scores}, {"slopes": SLOPES4, "is_causal": True, "scale": 0.3}
    yield soft, "mask", {"scores": scores, "mask": random_keep(2, 1, 5, 7)}, {"slopes": SLOPES4}
    yield (
        soft,
        "blocked_row",
        {"scores": scores, "mask": blocked_row(5, 7)},
        {"slopes": SLOPES4, "is_causal": True, "offset": 1},
    )
    yield soft, "wide", {"scores": (1, 2, 9, 150)}, {"slopes": SLOPES4[:2], "is_causal": True}, True

    def qkv(B, H, Hkv, L, S, D, Dv=None):
        return {"q": (B, H, L, D), "k": (B, Hkv, S, D), "v": (B, Hkv, S, Dv or D)}

    positions = {
        "q_positions": ids([0, 1, 2, 3, 9], [0, 0, 1, 2, 3]),
        "k_positions": ids([0, 1, 2, 3, 4, 9], [0, 0, 0, 1, 2, 3]),
    }
    for name in ("alibi_attention", "alibi_attention.Tensor"):

        def with_slopes(tensors, options, values, name=name):
            if name == "alibi_attention":
                return tensors, {"slopes": values, **options}
            learned = torch.tensor(values, dtype=torch.float64)
            return {**tensors, "slopes": learned}, options

        small = qkv(2, 4, 4, 5, 5, 4)
        for case, tensors, options in (
            ("plain", small, {}),
            ("causal", small, {"is_causal": True}),
            ("cache", qkv(2, 4, 4, 3, 7, 4), {"is_causal": True}),
            ("decode", qkv(2, 4, 2, 1, 9, 4), {"is_causal": True}),
            ("grouped", qkv(2, 4, 2, 5, 6, 4), {"is_causal": True, "scale": 0.7}),
            ("one_kv_head", qkv(1, 4, 1, 4, 4, 4), {}),
            ("offset", small, {"offset": -2, "is_causal": True}),
            ("mask", {**small, "mask": random_keep(2, 1, 5, 5)}, {}),
            ("mask_heads", {**small, "mask": random_keep(2, 4, 5, 5)}, {"is_causal": True}),
            ("padding", {**small, "mask": random_keep(2, 1, 1, 5)}, {"is_causal": True}),
            ("blocked_row", {**small, "mask": blocked_row(5, 5)}, {}),
            ("positions", {**qkv(2, 4, 2, 5, 6, 4), **positions}, {"is_causal": True}),
            ("positions_plain", {**qkv(2, 4, 2, 5, 6, 4), **positions}, {}),
        ):
            yield name, case, *with_slopes(tensors, options, SLOPES4)
        for case, tensors, options in (
            ("tiles", qkv(1, 2, 1, 70, 70, 16), {"is_causal": True}),
            ("tiles_both_sides", qkv(1, 2, 2, 66, 130, 16), {}),
            ("far", qkv(1, 2, 2, 3, 600, 8), {"is_causal": True}),
        ):
            yield name, case, *with_slopes(tensors, options, [0.5, 0.25]), True
    batched = torch.tensor([SLOPES4, SLOPES4[::-1]], dtype=torch.float64)
    yield (
        "alibi_attention.Tensor",
        "per_batch",
        {**qkv(2, 4, 2, 5, 5, 4), "slopes": batched},
        {"is_causal": True},
    )

    parts = {"out1": (2, 3, 4, 5), "lse1": (2, 3, 4), "out2": (2, 3, 4, 5), "lse2": (2, 3, 4)}
    yield "merge_attention", "plain", parts, {}
    yield "merge_attention", "one_empty", {**parts, "lse2": no_key(2, 3, 4)}, {}
    yield (
        "merge_attention",
        "both_empty",
        {**parts, "lse1": no_key(2, 3, 4), "lse2": no_key(2, 3, 4)},
        {},
    )


SAMPLES = [Sample(OPERATORS[row[0]], *row[1:]) for row in rows()]
DIFFERENTIABLE = [sample for sample in SAMPLES if sample.differentiable]
