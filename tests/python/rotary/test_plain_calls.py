"""Eager calls on plain tensors skip torch.ops' reading of arguments; only the time tells."""

import posenc
import posenc.functional as P
import pytest
import reference
import torch
from posenc.functional import rotary
from samples.compare import assert_same
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FREQ = reference.rope_inv_freq(8)
OPTIONS = (
    {},
    {"offset": 7, "interleaved": False, "attention_factor": 1.5},
    {"seq_dim": -3, "interleaved_out": False, "inverse": True},
    {"axes": [0, 1, 1, 0], "position_ids": torch.arange(10).view(2, 1, 5)},
)
options = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")


def draw():
    return torch.randn(2, 5, 3, 8), torch.randn(2, 5, 1, 8)


class Recorder(torch.Tensor):
    """A subclass that sees calls from Python."""

    seen: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(str(function))
        return super().__torch_function__(function, types, args, kwargs)


@options
def test_the_same_result_gradient_and_errors(options):
    q, k = draw()
    ops = torch.ops.posenc
    assert rotary._is_plain(q, 0)
    assert_same(P.rotary_embedding(q, FREQ, **options), ops.rotary_embedding(q, FREQ, **options))
    both = ops.rotary_embedding_qk(q, k, FREQ, **options)
    assert_same(P.rotary_embedding_qk(q, k, FREQ, **options), both)
    leaf = q.clone().requires_grad_()
    out = P.rotary_embedding(leaf, tuple(FREQ), **options)
    want = ops.rotary_embedding(leaf, FREQ, **options)
    assert_same(*(torch.autograd.grad(o, leaf, q) for o in (out, want)))
    for call in (P.rotary_embedding, ops.rotary_embedding):
        with pytest.raises(ValueError, match="head_dim >= 8"):
            call(q[..., :6], FREQ, **options)
        with pytest.raises(TypeError, match="Long"):
            call(q.long(), FREQ, **options)


def test_who_watches_calls_sees_the_operator():
    q, k = draw()

    def one(x):
        return P.rotary_embedding(x, FREQ)

    def both(x):
        return P.rotary_embedding_qk(x, k, FREQ)

    for call in (one, both, posenc.RotaryPositionalEmbedding(8)):
        Recorder.seen.clear()
        out = call(q.as_subclass(Recorder))
        assert any("rotary_embedding" in name for name in Recorder.seen)
        assert isinstance(out[0] if isinstance(out, tuple) else out, Recorder)
    Recorder.seen.clear()
    P.rotary_embedding_qk(q, k.as_subclass(Recorder), FREQ)
    assert any("rotary_embedding_qk" in name for name in Recorder.seen)

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    for mode in (Functions, Dispatches):
        seen: list = []
        with mode():
            one(q)
            both(q)
        assert any("rotary_embedding" in name and "qk" not in name for name in seen)
        assert any("rotary_embedding_qk" in name for name in seen)


def test_graphs_hold_the_operator():
    q, k = draw()
    rope = posenc.RotaryPositionalEmbedding(8)

    def call(x, y):
        a, b = P.rotary_embedding_qk(x, y, FREQ, offset=3)
        return P.rotary_embedding(a, FREQ), b, *rope.rotate(x, y)

    want = call(q, k)
    fx = torch.fx.symbolic_trace(lambda x, y: P.rotary_embedding_qk(x, y, FREQ)[0])
    assert_same(fx(q, k), P.rotary_embedding(q, FREQ))
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(call, tracing_mode=mode)(q, k)
        assert "posenc.rotary_embedding_qk" in graph.code
        assert_same(graph(q, k), want)


def test_a_symbolic_offset_stays_one():
    x, longer = torch.randn(2, 5, 3, 8), torch.randn(4, 5, 3, 8)

    def call(t):
        return P.rotary_embedding(t, FREQ, offset=t.size(0))

    graph = make_fx(call, tracing_mode="symbolic")(x)
    assert_same(graph(longer), call(longer))
