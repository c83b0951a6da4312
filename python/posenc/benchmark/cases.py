"""The work that is measured: for each case ours, the machine's limit, the peers, the target."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

import posenc
import posenc.functional as P

from . import peers
from .measure import Work


@dataclass
class Case:
    """One line of the table."""

    group: str
    name: str
    ours: Callable[[], Work]
    """Makes the inputs and returns the work; called when the case runs."""
    others: dict[str, Callable[[], Work]] = field(default_factory=dict)
    """The limit and the peers, by name; they see the inputs of `ours`."""
    targets: dict[str, float] = field(default_factory=dict)
    """name -> the largest ratio of our time to the other's that meets the target."""
    memory: bool = False
    seconds: float = 1.0
    moved: int = 0
    """Bytes that must be read and written, where the speed of memory is the limit."""

    def reached(self, name: str, ratio: float) -> bool | None:
        """Whether our time over the other's meets the target; None where there is none."""
        return ratio <= self.targets[name] * 1.0001 if name in self.targets else None


FAST = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
SLOPES = [2.0 ** -(i + 1) for i in range(8)]


def _clone(x: torch.Tensor) -> Work:
    return lambda: x.clone()


def rotary(lengths: tuple[int, ...] = (128, 512, 1024, 2048)) -> Iterator[Case]:
    """The rotation out of place against a clone of the same tensor and against other people's."""
    for length in lengths:
        for dtype, short in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
            for interleaved in (True, False):
                for seq_dim in (1, 2):
                    yield _rotation(length, dtype, short, interleaved, seq_dim)


def _rotation(length, dtype, short, interleaved, seq_dim) -> Case:
    shape = (32, length, 8, 64) if seq_dim == 1 else (32, 8, length, 64)
    box = {}

    def ours():
        box["x"] = torch.randn(shape).to(dtype)
        layer = posenc.RotaryPositionalEmbedding(64, interleaved=interleaved, seq_dim=seq_dim)
        return lambda: layer(box["x"])

    others = {
        "clone": lambda: _clone(box["x"]),
        "compiled": lambda: peers.compiled_rotation(box["x"], seq_dim, interleaved),
        "eager": lambda: peers.eager_rotation(box["x"], seq_dim, interleaved),
    }
    if interleaved:
        others["rotary-embedding-torch"] = lambda: peers.rotary_embedding_torch(box["x"], seq_dim)
    if seq_dim == 2 and not interleaved:
        others["x-transformers"] = lambda: peers.x_transformers(box["x"])
    layout = "pairs" if interleaved else "halves"
    order = "BLHD" if seq_dim == 1 else "BHLD"
    return Case(
        "rotary",
        f"RoPE (32, L={length}, 8, 64) {short} {layout} {order}",
        ours,
        others,
        {"clone": 1.10, "compiled": 1 / 2, "eager": 1 / 4},
        memory=length == 2048,
    )


def rotary_other() -> Iterator[Case]:
    """In place, one token, q and k together, backward."""
    box = {}
    inv_freq = P.rope_inv_freq(64)

    def in_place():
        box["x"] = torch.randn(32, 1024, 8, 64)
        return lambda: P.rotary_embedding_(box["x"], inv_freq)

    def copy():
        ready = torch.empty_like(box["x"])
        return lambda: ready.copy_(box["x"])

    yield Case(
        "rotary",
        "RoPE in place (32, 1024, 8, 64) fp32",
        in_place,
        {"copy into a ready tensor": copy},
        {"copy into a ready tensor": 0.8},
        memory=True,
    )

    def token():
        box["t"] = torch.randn(1, 1, 8, 64)
        box["layer"] = posenc.RotaryPositionalEmbedding(64)
        return lambda: box["layer"](box["t"], None, 5)

    yield Case(
        "rotary",
        "RoPE of one decoded token (1, 1, 8, 64), layer call",
        token,
        {
            "clone": lambda: _clone(box["t"]),
            "eager": lambda: peers.eager_rotation(box["t"], 1, True),
        },
        {"clone": 8.0},
        seconds=0.5,
    )

    def together():
        token()
        k = torch.randn(1, 1, 8, 64)
        return lambda: box["layer"].rotate(box["t"], k, None, 5)

    yield Case(
        "rotary",
        "q and k of one decoded token in one call",
        together,
        {"one of them": lambda: lambda: box["layer"](box["t"], None, 5)},
        {"one of them": 1.3},
        seconds=0.5,
    )

    def backward():
        box["leaf"] = torch.randn(32, 1024, 8, 64, requires_grad=True)
        layer = posenc.RotaryPositionalEmbedding(64)
        box["y"], box["grad"] = layer(box["leaf"]), torch.randn(32, 1024, 8, 64)
        return lambda: torch.autograd.grad(box["y"], box["leaf"], box["grad"], retain_graph=True)

    def forward():
        layer, x = posenc.RotaryPositionalEmbedding(64), box["leaf"].detach()
        return lambda: layer(x)

    yield Case(
        "rotary",
        "RoPE backward (32, 1024, 8, 64) fp32",
        backward,
        {"forward": forward},
        {"forward": 1.10},
    )


def absolute(lengths: tuple[int, ...] = (128, 512, 2048)) -> Iterator[Case]:
    """What is added to the embeddings."""
    for length in lengths:
        box = {}

        def embedding(length=length, box=box):
            box["ids"] = torch.randint(0, 10000, (32, length))
            layer = posenc.TransformerEmbedding(10000, 512).requires_grad_(False)
            return lambda: layer(box["ids"])

        def lookup(box=box):
            weight = torch.randn(10000, 512)
            return lambda: F.embedding(box["ids"], weight)

        yield Case(
            "absolute",
            f"TransformerEmbedding (32, L={length}, 512) fp32",
            embedding,
            {"F.embedding": lookup},
            {"F.embedding": 1.15},
        )
        for title, make in (
            ("LearnedPositionalEncoding", lambda: posenc.LearnedPositionalEncoding(4096, 512)),
            ("SinusoidalPositionalEncoding", lambda: posenc.SinusoidalPositionalEncoding(512)),
        ):

            def add(length=length, box=box, make=make):
                box["x"] = torch.randn(32, length, 512)
                layer = make().requires_grad_(False)
                return lambda: layer(box["x"])

            yield Case(
                "absolute",
                f"{title} (32, L={length}, 512) fp32",
                add,
                {"clone": lambda box=box: _clone(box["x"])},
                {"clone": 1.10},
            )


FORWARD = {1024: 1.7, 4096: 3.0, 8192: 4.0, 16384: 5.5, 32768: 9.0}
HALF = {1024: 1.0, 8192: 2.0}
BACKWARD = {4096: 2.0, 16384: 4.0}


def attention(lengths: tuple[int, ...] = tuple(FORWARD)) -> Iterator[Case]:
    """ALiBi attention, causal, 8 heads of 64, against torch's attention without any bias."""
    for length in lengths:
        yield _attention(length, torch.float32, FORWARD.get(length))
    for dtype in (torch.bfloat16, torch.float16):
        for length in HALF:
            if length in lengths:
                yield _attention(length, dtype, HALF[length])
    for length in BACKWARD:
        if length in lengths:
            yield _training(length)


SDPA = "SDPA causal, no bias"


def _attention(length: int, dtype: torch.dtype, target: float | None) -> Case:
    box = {}

    def ours():
        torch.manual_seed(0)
        box["qkv"] = [torch.randn(1, 8, length, 64).to(dtype) for _ in range(3)]
        return lambda: P.alibi_attention(*box["qkv"], SLOPES, is_causal=True)

    others = {
        SDPA: lambda: lambda: F.scaled_dot_product_attention(*box["qkv"], is_causal=True),
    }
    targets = {} if target is None else {SDPA: 1 / target}
    if dtype == torch.float32 and length <= 8192:
        others["SDPA, dense mask"] = lambda: peers.dense_mask_attention(*box["qkv"], SLOPES)
        others["FlexAttention"] = lambda: peers.flex_attention(*box["qkv"], SLOPES)
        if length == 8192:
            targets["SDPA, dense mask"] = 1 / 7
    if dtype != torch.float32:

        def ours_fp32():
            wide = [t.float() for t in box["qkv"]]
            return lambda: P.alibi_attention(*wide, SLOPES, is_causal=True)

        others["ours in fp32"] = ours_fp32
        targets["ours in fp32"] = 1.0
    return Case(
        "attention",
        f"ALiBi attention (1, 8, L={length}, 64) {FAST[dtype]}, causal",
        ours,
        others,
        targets,
        memory=True,
        seconds=max(1.0, length / 4096),
    )


def _training(length: int) -> Case:
    box = {}

    def ours():
        torch.manual_seed(0)
        box["qkv"] = [torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3)]
        box["grad"] = torch.randn(1, 8, length, 64)

        def work():
            out = P.alibi_attention(*box["qkv"], SLOPES, is_causal=True)
            return torch.autograd.grad(out, box["qkv"], box["grad"])

        return work

    def sdpa():
        def work():
            out = F.scaled_dot_product_attention(*box["qkv"], is_causal=True)
            return torch.autograd.grad(out, box["qkv"], box["grad"])

        return work

    return Case(
        "attention",
        f"ALiBi attention (1, 8, L={length}, 64) fp32, causal, forward + backward",
        ours,
        {SDPA: sdpa},
        {SDPA: 1 / BACKWARD[length]},
        memory=True,
        seconds=max(1.0, length / 2048),
    )


def decode(keys: int = 32768) -> Iterator[Case]:
    """One new token against a long cache, batch 8."""
    box = {}

    def bare():
        torch.manual_seed(0)
        box["q"] = torch.randn(8, 8, 1, 64)
        box["kv"] = [torch.randn(8, 8, keys, 64) for _ in range(2)]
        return lambda: P.alibi_attention(box["q"], *box["kv"], SLOPES, is_causal=True)

    def sdpa():
        return lambda: F.scaled_dot_product_attention(box["q"], *box["kv"])

    def cached():
        bare()
        norms = torch.ops.posenc.alibi_key_norms(*box["kv"])
        return lambda: P.alibi_attention(
            box["q"], *box["kv"], SLOPES, is_causal=True, key_norms=norms
        )

    for title, work, target in (
        ("from bare tensors", bare, 1.6),
        ("with the cache's block norms", cached, 5.0),
    ):
        yield Case(
            "attention",
            f"ALiBi decode, batch 8, 8 heads, {keys} keys, {title}",
            work,
            {"SDPA, no bias": sdpa},
            {"SDPA, no bias": 1 / target},
            seconds=2.0,
        )


def all_cases(quick: bool = False) -> list[Case]:
    """Every case; ``quick`` leaves out most lengths."""
    if quick:
        return [
            *rotary((512,)), *rotary_other(), *absolute((512,)), *attention((1024, 4096)),
            *decode(8192),
        ]  # fmt: skip
    return [*rotary(), *rotary_other(), *absolute(), *attention(), *decode()]
