"""torch.jit.trace: a size that is handed over as an int is followed, or refused, never frozen."""

import inspect
import warnings

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import needs_torchscript
from torch import Tensor, nn

pytestmark = needs_torchscript

FREQ, SINUSOIDAL = P.rope_inv_freq(8), P.sinusoidal_inv_freq(16)
WEIGHT = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
FREQS = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(2))
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}


def heads(x):
    """(B, L, 16) as (B, L, 2, 8)."""
    return x.unflatten(-1, (2, 8))


def first(x):
    """(B, L, 16) as (B, 2, L, 8)."""
    return heads(x).transpose(1, 2)


def tokens(x):
    return (x[..., 0].abs() * 10).long() % 40


def ids(x):
    """(B, L) positions, not consecutive."""
    return tokens(x) + x.size(1)


def grid(x):
    return torch.stack((ids(x), ids(x) // 2))


def packed(x):
    return torch.cat((heads(x), heads(x), heads(x)), 2)


# (function, argument): calls with x (B, L, 16) and the size in that argument
FOLLOWED = {
    ("rotary_embedding", "offset"): (
        lambda x, n: P.rotary_embedding(heads(x), FREQ, offset=n),
        lambda x, n: P.rotary_embedding(heads(x), FREQ, ids(x), n),
        lambda x, n: P.rotary_embedding(first(x), FREQ, offset=n, seq_dim=-2),
        lambda x, n: P.rotary_embedding(heads(x), torch.tensor(FREQ).double(), offset=n),
        lambda x, n: P.rotary_embedding(heads(x), FREQ, grid(x), n, axes=[0, 1, 1, 0]),
    ),
    ("rotary_embedding_", "offset"): (
        lambda x, n: P.rotary_embedding_(heads(x).clone(), FREQ, offset=n),
    ),
    ("rotary_embedding_qk", "offset"): (
        lambda x, n: P.rotary_embedding_qk(heads(x), heads(x)[:, :, :1], FREQ, offset=n),
        lambda x, n: P.rotary_embedding_qk(heads(x), heads(x)[:, :, :1], FREQ, ids(x), n),
    ),
    ("rotary_embedding_qk_", "offset"): (
        lambda x, n: P.rotary_embedding_qk_(heads(x).clone(), heads(x) + 0, FREQ, offset=n),
    ),
    ("rotary_embedding_qkv", "offset"): (
        lambda x, n: P.rotary_embedding_qkv(packed(x), FREQ, 2, 2, offset=n),
    ),
    ("rotary_embedding_qkv_", "offset"): (
        lambda x, n: P.rotary_embedding_qkv_(packed(x), FREQ, 2, 2, offset=n),
    ),
    ("axial_rotary_embedding", "offset"): (
        lambda x, n: P.axial_rotary_embedding(heads(x), FREQ, [0, 0, 1, 1], grid(x), n),
    ),
    ("mixed_rotary_embedding", "offset"): (
        lambda x, n: P.mixed_rotary_embedding(heads(x), FREQS, grid(x), n),
    ),
    ("re_rotate", "offset"): (
        lambda x, n: P.re_rotate(heads(x), FREQ, SINUSOIDAL[:4], offset=n),
        lambda x, n: P.re_rotate(heads(x), torch.tensor(FREQ).double(), SINUSOIDAL[:4], offset=n),
    ),
    ("shift", "delta"): (lambda x, n: P.shift(heads(x), n, FREQ),),
    ("xpos_embedding", "offset"): (lambda x, n: P.xpos_embedding(heads(x), FREQ, offset=n),),
    ("query_temperature", "offset"): (
        lambda x, n: P.query_temperature(heads(x), 0.5, 2.0, offset=n),
    ),
    ("add_sinusoidal", "offset"): (
        lambda x, n: P.add_sinusoidal(x, SINUSOIDAL, offset=n),
        lambda x, n: P.add_sinusoidal(x.transpose(0, 1), SINUSOIDAL, offset=n, seq_dim=0),
    ),
    ("add_positions", "offset"): (lambda x, n: P.add_positions(x, WEIGHT, offset=n),),
    ("embed_tokens", "offset"): (
        lambda x, n: P.embed_tokens(tokens(x), WEIGHT, SINUSOIDAL, offset=n),
    ),
    ("add_positional_encoding", "offset"): (lambda x, n: P.add_positional_encoding(x, offset=n),),
    ("get_positional_encoding", "seq_len"): (lambda x, n: P.get_positional_encoding(n, 16),),
    ("get_positional_encoding", "offset"): (
        lambda x, n: P.get_positional_encoding(x.shape[1], 16, offset=n),
    ),
    ("alibi_attention", "offset"): (
        lambda x, n: P.alibi_attention(
            first(x), first(x), first(x), [0.5, 0.1], is_causal=True, offset=n - 3, return_lse=True
        ),
        lambda x, n: P.alibi_attention(
            first(x), first(x), first(x), torch.tensor([0.5, 0.1]), offset=n
        ),
    ),
    ("positions_from_offsets", "length"): (
        lambda x, n: P.positions_from_offsets(tokens(x)[:, 0].int(), n),
    ),
    ("positions_from_input_ids", "padding_idx"): (
        lambda x, n: P.positions_from_input_ids(tokens(x), n),
    ),
    ("mrope_decode_position_ids", "length"): (
        lambda x, n: P.mrope_decode_position_ids(tokens(x)[:, 0], -tokens(x)[:, 1], n),
    ),
}

REFUSED = {
    ("alibi_bias", "q_len"): lambda n: P.alibi_bias([1.0], n, 3),
    ("alibi_bias", "k_len"): lambda n: P.alibi_bias(torch.ones(2), 3, n),
    ("alibi_bias", "offset"): lambda n: P.alibi_bias([1.0], 3, 3, n),
    ("alibi_softmax", "offset"): lambda n: P.alibi_softmax(
        torch.zeros(1, 1, 2, 3), [1.0], offset=n
    ),
    ("grid_coordinates", "height"): lambda n: P.grid_coordinates(n, 2),
    ("grid_coordinates", "width"): lambda n: P.grid_coordinates(2, n),
    ("positions_from_cu_seqlens", "total"): lambda n: P.positions_from_cu_seqlens(
        torch.tensor([0, 2, 5]), n
    ),
    ("positions_for_context_parallel", "length"): lambda n: P.positions_for_context_parallel(
        n, 0, 1
    ),
    ("positions_for_context_parallel", "rank"): lambda n: P.positions_for_context_parallel(
        64, n, 32
    ),
    ("positions_for_context_parallel", "world_size"): lambda n: P.positions_for_context_parallel(
        45, 0, n
    ),
}

#: Arguments that tell how a model is made, or how tensors are laid out: no length of a call.
LAYOUT = {
    "blocks", "d_model", "dim", "head_start", "max_seq_len", "n", "n_axes", "n_heads",
    "n_kv_heads", "n_prefix", "n_suffix", "rotary_dim", "rotary_start", "seq_dim",
    "spatial_merge_size", "temporal_merge_size", "total_heads",
}  # fmt: skip
LAYOUT_OF = {("embed_tokens", "padding_idx")}

LAYERS = {
    ("SinusoidalPositionalEncoding", "forward"): (
        lambda: posenc.SinusoidalPositionalEncoding(16),
        lambda m, x, n: m(x, offset=n),
    ),
    ("LearnedPositionalEncoding", "forward"): (
        lambda: posenc.LearnedPositionalEncoding(40, 16, position_offset=2),
        lambda m, x, n: m(x, offset=n),
    ),
    ("TransformerEmbedding", "forward"): (
        lambda: posenc.TransformerEmbedding(40, 16),
        lambda m, x, n: m(tokens(x), offset=n),
    ),
    ("RotaryPositionalEmbedding", "forward"): (
        lambda: posenc.RotaryPositionalEmbedding(8, max_seq_len=4, scaling=DYNAMIC),
        lambda m, x, n: m(heads(x), offset=n),
    ),
    ("RotaryPositionalEmbedding", "rotate"): (
        lambda: posenc.RotaryPositionalEmbedding(
            8,
            scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4,
                "llama_4_scaling_beta": 0.5,
            },
        ),
        lambda m, x, n: m.rotate(heads(x), heads(x), None, n),
    ),
    ("RotaryPositionalEmbedding", "rotate_packed"): (
        lambda: posenc.RotaryPositionalEmbedding(8),
        lambda m, x, n: m.rotate_packed(packed(x), None, ids(x), n),
    ),
    ("RotaryPositionalEmbedding", "re_rotate"): (
        lambda: posenc.RotaryPositionalEmbedding(8),
        lambda m, x, n: m.re_rotate(heads(x), SINUSOIDAL[:4], offset=n),
    ),
    ("RotaryPositionalEmbedding", "apply_rotary_pos_emb"): (
        lambda: posenc.RotaryPositionalEmbedding(8),
        lambda m, x, n: m.apply_rotary_pos_emb(heads(x), x.shape[1], n),
    ),
    ("RotaryPositionalEmbedding", "inv_freq_at"): (
        lambda: posenc.RotaryPositionalEmbedding(8, max_seq_len=4, scaling=DYNAMIC),
        lambda m, x, n: P.rotary_embedding(
            heads(x),
            f if isinstance(f := m.inv_freq_at(n), Tensor) else torch.tensor(f).double(),
        ),
    ),
    ("RotaryPositionalEmbedding", "shift"): (
        lambda: posenc.RotaryPositionalEmbedding(8),
        lambda m, x, n: m.shift(heads(x), -n),
    ),
    ("LongSequenceRoPE", "forward"): (
        lambda: posenc.LongSequenceRoPE(8),
        lambda m, x, n: m(heads(x), offset=n),
    ),
    ("LearnedRotaryEmbedding", "forward"): (
        lambda: posenc.LearnedRotaryEmbedding(8),
        lambda m, x, n: m(heads(x), offset=n),
    ),
    ("LearnedRotaryEmbedding", "rotate"): (
        lambda: posenc.LearnedRotaryEmbedding(8),
        lambda m, x, n: m.rotate(heads(x), heads(x), None, n),
    ),
    ("XPosRotaryEmbedding", "forward"): (
        lambda: posenc.XPosRotaryEmbedding(8),
        lambda m, x, n: m(heads(x), offset=n),
    ),
    ("XPosRotaryEmbedding", "rotate"): (
        lambda: posenc.XPosRotaryEmbedding(8),
        lambda m, x, n: m.rotate(heads(x), heads(x), None, n),
    ),
    ("QueryTemperature", "forward"): (
        lambda: posenc.QueryTemperature(0.5, 2.0),
        lambda m, x, n: m(heads(x), offset=n),
    ),
    # Rotations by one offset cancel; the frequencies of a length do not.
    ("RoPEAttention", "forward"): (
        lambda: posenc.RoPEAttention(16, 2, scaling=DYNAMIC, max_seq_len=4),
        lambda m, x, n: m(x, offset=n),
    ),
    ("ALiBiAttention", "forward"): (
        lambda: posenc.ALiBiAttention(16, 2),
        lambda m, x, n: m(x, offset=n),
    ),
}


def traced_and_eager(call):
    """`call` traced at one pair of sizes, and what differs from eager calls at others."""
    x = torch.randn(2, 4, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(
            lambda x, like: call(x, like.shape[1]), (x, x.new_zeros(1, 5)), check_trace=False
        )
    for batch, length, size in ((2, 4, 9), (2, 6, 5), (1, 3, 2)):
        x = torch.randn(batch, length, 16)
        want = call(x, size)
        torch.testing.assert_close(traced(x, x.new_zeros(1, size)), want)


def cases(table):
    return [
        pytest.param(call, id=f"{'-'.join(key)}-{i}")
        for key, calls in table.items()
        for i, call in enumerate(calls)
    ]


@pytest.mark.parametrize("call", cases(FOLLOWED))
def test_a_trace_follows(call):
    traced_and_eager(call)


@pytest.mark.parametrize("key", LAYERS, ids="-".join)
def test_a_trace_of_a_layer_follows(key):
    build, call = LAYERS[key]
    module = build().eval().requires_grad_(False)
    traced_and_eager(lambda x, n: call(module, x, n))


@pytest.mark.parametrize("key", REFUSED, ids="-".join)
def test_a_trace_refuses(key):
    name, argument = key
    message = f"{name}: expected {argument} as an int, got a size that torch.jit.trace follows"
    with pytest.raises(TypeError, match=message):
        torch.jit.trace(lambda like: REFUSED[key](like.shape[0]), (torch.zeros(5),))
    anchor = torch.zeros(5)
    kept = torch.jit.trace(
        lambda like: REFUSED[key](int(like.shape[0])) + like[0], (anchor,), check_trace=False
    )
    torch.testing.assert_close(kept(anchor), REFUSED[key](5) + anchor[0])


def test_every_int_argument_is_in_a_table():
    known = {*FOLLOWED, *REFUSED, *LAYOUT_OF}
    ints = (int, int | None, int | Tensor)
    for name in P.__all__:
        for argument, parameter in inspect.signature(getattr(P, name)).parameters.items():
            if parameter.annotation in ints or argument in ("offset", "length", "q_len", "k_len"):
                assert argument in LAYOUT or (name, argument) in known, (name, argument)


def test_every_layer_with_an_offset_is_in_the_table():
    for name in posenc.__all__:
        layer = getattr(posenc, name)
        if not (inspect.isclass(layer) and issubclass(layer, nn.Module)):
            continue
        for method, function in inspect.getmembers(layer, inspect.isfunction):
            if method.startswith("_"):
                continue
            if {"offset", "length", "delta"} & set(inspect.signature(function).parameters):
                assert (name, method) in LAYERS, (name, method)


def test_positions_of_any_dtype():
    """The sum with the offset need not fit it; what an operator refuses, a trace does."""

    def call(dtype):
        position_ids = torch.tensor([3, 250, 7, 128]).to(dtype)
        return lambda x, n: P.rotary_embedding(
            heads(x[:, [0, 0, 1, 1]]), FREQ, position_ids, n * 99
        )

    for dtype in (torch.uint8, torch.int32, torch.float32):
        traced_and_eager(call(dtype))
    for dtype in (torch.bfloat16, torch.bool):
        with pytest.raises(TypeError, match="expected position_ids of an integer dtype"):
            traced_and_eager(call(dtype))


def test_the_modules_in_cpp_refuse():
    module = posenc.cpp.RotaryPositionalEmbedding(8)
    x = torch.randn(1, 3, 2, 8)
    with pytest.raises(
        TypeError, match=r"RotaryPositionalEmbedding\.forward: expected ints, got a"
    ):
        torch.jit.trace(lambda x: module(x, None, x.shape[1]), (x,))


@pytest.mark.parametrize("grouped", (None, 2))
@pytest.mark.parametrize("layer", (posenc.RoPEAttention, posenc.ALiBiAttention))
class TestForwardCached:
    """A prefill and a step, traced at one length of x and of the cache, serve every other."""

    def build(self, layer, grouped):
        module = layer(32, 4, n_kv_heads=grouped, is_causal=True).eval()
        return module.requires_grad_(False)

    def test_prefill(self, layer, grouped):
        module = self.build(layer, grouped)

        def prefill(x):
            out, cache = module.forward_cached(x)
            return out, *cache

        traced = torch.jit.trace(prefill, (torch.randn(2, 5, 32),), check_trace=False)
        for batch, length in ((2, 9), (3, 70), (1, 1)):
            x = torch.randn(batch, length, 32)
            torch.testing.assert_close(traced(x), prefill(x))

    @pytest.mark.parametrize("keys, length", ((5, 1), (5, 3), (0, 4), (130, 1)))
    def test_step(self, layer, grouped, keys, length):
        module = self.build(layer, grouped)

        def cache_of(batch, keys):
            if keys == 0:
                return module.empty_cache(batch)
            return module.forward_cached(torch.randn(batch, keys, 32))[1]

        def step(x, *cache):
            out, grown = module.forward_cached(x, posenc.KVCache(*cache))
            return out, *grown

        x = torch.randn(2, length, 32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which cached tensors are empty is part of the trace
            traced = torch.jit.trace(step, (x, *cache_of(2, keys)), check_trace=False)
        for keys, length in ((9, 1), (9, 4), (0, 6), (140, 1), (140, 70)):
            x, cache = torch.randn(3, length, 32), cache_of(3, keys)
            torch.testing.assert_close(traced(x, *cache), step(x, *cache))
