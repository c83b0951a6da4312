"""The work that is measured on a GPU: memory-bound operators against a copy, attention against
FlexAttention. The makers run with the device as torch's default device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import posenc
import posenc.functional as P

from . import peers
from .cases import FAST, SDPA, Case
from .measure import Work

COPY = "device copy"
OF_A_COPY = 1 / 0.85
"""A kernel that reads and writes once: 85 % of the copy's bandwidth."""
FLEX = "FlexAttention"
HALVES_FIRST = (torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Sizes:
    """How large the tensors are; the rotated one has 256 MiB in bf16."""

    batch: int = 8
    length: int = 4096
    heads: int = 32
    kv_heads: int = 8
    width: int = 128
    vocabulary: int = 32000
    scores: tuple[int, int, int] = (1, 32, 4096)
    attention: tuple[int, ...] = (1024, 4096, 16384, 32768)
    attention_heads: int = 16
    attention_width: int = 64
    trained: tuple[int, ...] = (4096, 16384)
    cached: int = 32768
    decoded: int = 16
    dense_limit: int = 4096
    dtypes: tuple[torch.dtype, ...] = HALVES_FIRST
    compiled: bool = True
    """Whether peers under torch.compile (and FlexAttention) are among the others."""

    def slopes(self, heads: int) -> list[float]:
        return list(P.alibi_slopes(heads))


FULL = Sizes()
QUICK = Sizes(attention=(4096, 16384), trained=(4096,))


def copy_of(*sources: Tensor) -> Work:
    """Into tensors that are ready: one read and one write of each."""
    pairs = [(torch.empty_like(source), source) for source in sources]

    def work() -> None:
        for ready, source in pairs:
            ready.copy_(source)

    return work


def nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = 1
    for size in shape:
        count *= size
    return count * dtype.itemsize


def _compiled(s: Sizes, others: dict[str, Any], name: str, make: Callable[[], Work]) -> None:
    if s.compiled:
        others[name] = make


def rotary(s: Sizes) -> Iterator[Case]:
    """The rotation of one tensor, out of place, in place and backward."""
    for dtype in s.dtypes:
        for interleaved in (True, False):
            for seq_dim in (1, 2):
                yield from _rotation(s, dtype, interleaved, seq_dim)
    yield _query_and_key(s)
    yield _token(s)


def _rotation(s: Sizes, dtype: torch.dtype, interleaved: bool, seq_dim: int) -> Iterator[Case]:
    time_first = (s.batch, s.length, s.heads, s.width)
    shape = time_first if seq_dim == 1 else (s.batch, s.heads, s.length, s.width)
    order = "BLHD" if seq_dim == 1 else "BHLD"
    title = f"{shape} {FAST[dtype]} {'pairs' if interleaved else 'halves'} {order}"
    moved = 2 * nbytes(shape, dtype)
    box: dict[str, Any] = {}

    def layer() -> posenc.RotaryPositionalEmbedding:
        return posenc.RotaryPositionalEmbedding(s.width, interleaved=interleaved, seq_dim=seq_dim)

    def forward() -> Work:
        box["x"], rope = torch.randn(shape, dtype=dtype), layer()
        return lambda: rope(box["x"])

    others = {
        COPY: lambda: copy_of(box["x"]),
        "eager": lambda: peers.eager_rotation(box["x"], seq_dim, interleaved),
    }
    _compiled(
        s, others, "compiled", lambda: peers.compiled_rotation(box["x"], seq_dim, interleaved)
    )
    targets = {COPY: OF_A_COPY, "compiled": 1.0, "eager": 1.0}
    yield Case(
        "rotary",
        f"RoPE {title}",
        forward,
        others,
        {name: target for name, target in targets.items() if name in others},
        memory=interleaved and seq_dim == 1,
        moved=moved,
    )

    def backward() -> Work:
        box["x"] = torch.randn(shape, dtype=dtype, requires_grad=True)
        y, grad = layer()(box["x"]), torch.randn(shape, dtype=dtype)
        return lambda: torch.autograd.grad(y, box["x"], grad, retain_graph=True)

    yield Case(
        "rotary",
        f"RoPE backward {title}",
        backward,
        {COPY: lambda: copy_of(box["x"].detach())},
        {COPY: OF_A_COPY},
        moved=moved,
    )
    if seq_dim == 1:

        def in_place() -> Work:
            box["x"], inv_freq = torch.randn(shape, dtype=dtype), P.rope_inv_freq(s.width)
            return lambda: P.rotary_embedding_(box["x"], inv_freq, interleaved=interleaved)

        yield Case(
            "rotary",
            f"RoPE in place {title}",
            in_place,
            {COPY: lambda: copy_of(box["x"])},
            {COPY: OF_A_COPY},
            moved=moved,
        )


def _query_and_key(s: Sizes) -> Case:
    dtype, box = s.dtypes[0], {}
    q_shape = (s.batch, s.heads, s.length, s.width)
    k_shape = (s.batch, s.kv_heads, s.length, s.width)
    inv_freq = P.rope_inv_freq(s.width)

    def ours() -> Work:
        box["qk"] = [torch.randn(shape, dtype=dtype) for shape in (q_shape, k_shape)]
        return lambda: P.rotary_embedding_qk(*box["qk"], inv_freq, seq_dim=2, interleaved=False)

    def projected() -> list[Tensor]:
        # Liger's kernel wants q and k as a projection leaves them: time before heads in memory.
        return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in box["qk"]]

    return Case(
        "rotary",
        f"RoPE of q {q_shape} and k {k_shape} {FAST[dtype]} halves, one call",
        ours,
        {COPY: lambda: copy_of(*box["qk"]), "Liger": lambda: peers.liger(*projected())},
        {COPY: OF_A_COPY, "Liger": 1.0},
        moved=2 * (nbytes(q_shape, dtype) + nbytes(k_shape, dtype)),
    )


def _token(s: Sizes) -> Case:
    shape, dtype, box = (s.decoded, 1, s.heads, s.width), s.dtypes[0], {}

    def ours() -> Work:
        box["x"], layer = torch.randn(shape, dtype=dtype), posenc.RotaryPositionalEmbedding(s.width)
        return lambda: layer(box["x"], None, 5)

    return Case(
        "rotary",
        f"RoPE of one decoded token {shape} {FAST[dtype]}, layer call",
        ours,
        {
            "clone": lambda: lambda: box["x"].clone(),
            "eager": lambda: peers.eager_rotation(box["x"], 1, True),
        },
        {"eager": 1.0},
        seconds=0.5,
    )


def absolute(s: Sizes) -> Iterator[Case]:
    """What is added to the embeddings."""
    width = s.heads * s.width
    shape = (s.batch, s.length, width)
    for dtype in s.dtypes:
        box: dict[str, Any] = {}
        moved = 2 * nbytes(shape, dtype)

        def embedding(dtype: torch.dtype = dtype, box: dict[str, Any] = box) -> Work:
            box["ids"] = torch.randint(0, s.vocabulary, shape[:2])
            layer = posenc.TransformerEmbedding(s.vocabulary, width).to(dtype).requires_grad_(False)
            return lambda: layer(box["ids"])

        def lookup(dtype: torch.dtype = dtype, box: dict[str, Any] = box) -> Work:
            weight = torch.randn(s.vocabulary, width, dtype=dtype)
            return lambda: F.embedding(box["ids"], weight)

        yield Case(
            "absolute",
            f"TransformerEmbedding {shape} {FAST[dtype]}",
            embedding,
            {"F.embedding": lookup},
            {"F.embedding": 1.15},
            moved=moved,
        )
        for title, kind, arguments in (
            ("LearnedPositionalEncoding", posenc.LearnedPositionalEncoding, (s.length, width)),
            ("SinusoidalPositionalEncoding", posenc.SinusoidalPositionalEncoding, (width,)),
        ):

            def add(dtype=dtype, box=box, kind=kind, arguments=arguments) -> Work:
                box["x"] = torch.randn(shape, dtype=dtype)
                layer = kind(*arguments).to(dtype).requires_grad_(False)
                return lambda: layer(box["x"])

            yield Case(
                "absolute",
                f"{title} {shape} {FAST[dtype]}",
                add,
                {COPY: lambda box=box: copy_of(box["x"])},
                {COPY: OF_A_COPY},
                moved=moved,
            )


def bias(s: Sizes) -> Iterator[Case]:
    """The bias as a matrix, and the softmax over scores that exist already."""
    batch, heads, length = s.scores
    shape, slopes, scale = (batch, heads, length, length), s.slopes(heads), 0.125
    for dtype in s.dtypes:
        box: dict[str, Any] = {}

        def matrix(dtype: torch.dtype = dtype) -> Work:
            device = torch.get_default_device()
            return lambda: P.alibi_bias(
                slopes, length, length, is_causal=True, dtype=dtype, device=device
            )

        def fill(dtype: torch.dtype = dtype) -> Work:
            ready = torch.empty(shape[1:], dtype=dtype)
            return lambda: ready.fill_(1.0)

        yield Case(
            "bias",
            f"ALiBi bias {shape[1:]} {FAST[dtype]}, causal",
            matrix,
            {"fill": fill},
            {"fill": OF_A_COPY},
            moved=nbytes(shape[1:], dtype),
        )

        def softmax(dtype: torch.dtype = dtype, box: dict[str, Any] = box) -> Work:
            box["scores"] = torch.randn(shape, dtype=dtype)
            return lambda: P.alibi_softmax(box["scores"], slopes, is_causal=True, scale=scale)

        others = {
            COPY: lambda box=box: copy_of(box["scores"]),
            "eager": lambda box=box: peers.eager_softmax(box["scores"], slopes, scale),
        }
        _compiled(
            s,
            others,
            "compiled",
            lambda box=box: peers.compiled_softmax(box["scores"], slopes, scale),
        )
        yield Case(
            "bias",
            f"ALiBi softmax {shape} {FAST[dtype]}, causal",
            softmax,
            others,
            {COPY: OF_A_COPY, "eager": 1.0},
            memory=True,
            moved=2 * nbytes(shape, dtype),
        )

        def backward(dtype: torch.dtype = dtype, box: dict[str, Any] = box) -> Work:
            leaf = torch.randn(shape, dtype=dtype, requires_grad=True)
            weights = P.alibi_softmax(leaf, slopes, is_causal=True, scale=scale)
            box["grad"] = torch.randn(shape, dtype=dtype)
            return lambda: torch.autograd.grad(weights, leaf, box["grad"], retain_graph=True)

        def softmax_backward(dtype: torch.dtype = dtype, box: dict[str, Any] = box) -> Work:
            leaf = torch.randn(shape, dtype=dtype, requires_grad=True)
            weights = torch.softmax(leaf, -1)
            return lambda: torch.autograd.grad(weights, leaf, box["grad"], retain_graph=True)

        yield Case(
            "bias",
            f"ALiBi softmax backward {shape} {FAST[dtype]}, causal",
            backward,
            {"torch.softmax backward, no bias": softmax_backward},
            {"torch.softmax backward, no bias": 1.1},
            moved=3 * nbytes(shape, dtype),
        )


def attention(s: Sizes) -> Iterator[Case]:
    """ALiBi attention, causal, against FlexAttention with the same bias."""
    for dtype in s.dtypes:
        for length in s.attention:
            yield _attention(s, length, dtype, train=False)
        for length in s.trained:
            yield _attention(s, length, dtype, train=True)
    yield _decode(s)


def _attention(s: Sizes, length: int, dtype: torch.dtype, train: bool) -> Case:
    shape = (1, s.attention_heads, length, s.attention_width)
    slopes, box = s.slopes(s.attention_heads), {}

    def work(function: Callable[..., Tensor]) -> Work:
        """One pass over the inputs of the box, forward or forward and backward."""
        if not train:
            return lambda: function(*box["qkv"])
        return lambda: torch.autograd.grad(function(*box["qkv"]), box["qkv"], box["grad"])

    def ours() -> Work:
        torch.manual_seed(0)
        box["qkv"] = [torch.randn(shape, dtype=dtype, requires_grad=train) for _ in range(3)]
        box["grad"] = torch.randn(shape, dtype=dtype)
        return work(lambda q, k, v: P.alibi_attention(q, k, v, slopes, is_causal=True))

    def sdpa() -> Work:
        return work(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def flex() -> Work:
        return work(peers.flex_function(slopes, length))

    def dense() -> Work:
        mask = peers.alibi_mask(slopes, length, dtype)
        return work(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    others = {SDPA: sdpa}
    targets = {}
    _compiled(s, others, FLEX, flex)
    if length <= s.dense_limit:
        others["SDPA, dense mask"] = dense
    if FLEX in others and length >= 16384:
        targets[FLEX] = 1.0
    return Case(
        "attention",
        f"ALiBi attention {shape} {FAST[dtype]}, causal{', forward + backward' if train else ''}",
        ours,
        others,
        targets,
        memory=True,
    )


def _decode(s: Sizes) -> Case:
    heads, dtype, box = s.attention_heads, s.dtypes[0], {}
    slopes = s.slopes(heads)

    def cached() -> Work:
        torch.manual_seed(0)
        box["q"] = torch.randn(s.decoded, heads, 1, s.attention_width, dtype=dtype)
        shape = (s.decoded, heads, s.cached, s.attention_width)
        box["kv"] = [torch.randn(shape, dtype=dtype) for _ in range(2)]
        norms = torch.ops.posenc.alibi_key_norms(*box["kv"])
        return lambda: P.alibi_attention(
            box["q"], *box["kv"], slopes, is_causal=True, key_norms=norms
        )

    def sdpa() -> Work:
        return lambda: F.scaled_dot_product_attention(box["q"], *box["kv"])

    return Case(
        "attention",
        f"ALiBi decode, batch {s.decoded}, {heads} heads, {s.cached} keys {FAST[dtype]}, "
        "with the cache's block norms",
        cached,
        {"SDPA, no bias": sdpa},
        {"SDPA, no bias": 1.0},
    )


def device_cases(sizes: Sizes = FULL) -> list[Case]:
    """Every case of a GPU; ``sizes`` says how large, by default as a model has them."""
    return [*rotary(sizes), *absolute(sizes), *bias(sizes), *attention(sizes)]
