"""Trained frequencies: exact at the start, kept from half types, and they learn."""

import copy

import posenc
import posenc.functional as P
import pytest
import reference
import torch
from samples.compare import FLOATS, assert_same

LAYOUTS = (
    {},
    {"interleaved": False, "rotary_dim": 32, "rotary_start": 8},
    {"scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}},
    {"scaling": {"rope_type": "linear", "factor": 4}, "interleaved_out": False},
    {"axes": [0, 1, 1, 2] * 8},
    {"attention_factor": 1.3, "base": 5e5},
)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("n_heads", (None, 3))
def test_untrained_it_is_rope_bit_for_bit(options, dtype, n_heads):
    x = torch.randn(2, 40, 3, 64, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, 10**6, (3, 2, 40) if "axes" in options else (2, 40))
    want = posenc.RotaryPositionalEmbedding(64, **options)(x, ids)
    layer = posenc.LearnedRotaryEmbedding(64, n_heads=n_heads, **options).to(dtype)
    assert_same(layer(x, ids), want)
    direct = posenc.LearnedRotaryEmbedding(
        64, n_heads=n_heads, parametrisation="direct", dtype=torch.float64, **options
    )
    assert_same(direct(x, ids), want)
    q, k = layer.rotate(x, x[..., :], ids)
    assert_same(q, want)
    assert_same(k, want)


def test_frequencies_and_their_shapes():
    f = torch.tensor(reference.rope_inv_freq(8), dtype=torch.float64)
    alpha = torch.randn(3, 4)
    log = posenc.LearnedRotaryEmbedding(8, n_heads=3)
    log.load_state_dict({"alpha": alpha})
    torch.testing.assert_close(
        log.frequencies(), (f * alpha.double().exp())[None], rtol=1e-14, atol=0
    )
    assert log.inv_freq == f.tolist()
    assert posenc.LearnedRotaryEmbedding(8).frequencies().shape == (4,)
    direct = posenc.LearnedRotaryEmbedding(8, parametrisation="direct")
    assert direct.frequencies().dtype == torch.float64
    torch.testing.assert_close(direct.frequencies(), f, rtol=2**-24, atol=0)
    log.reset_parameters()
    assert_same(log.frequencies(), f.expand(1, 3, 4))
    cpp = posenc.cpp.LearnedRotaryEmbedding(8, n_heads=3)
    cpp.load_state_dict({"alpha": alpha})
    assert_same(cpp.frequencies(), P.learned_inv_freq(alpha, f.tolist()))


def test_mistral_large_4():
    """LeRoPE over YaRN as transformers computes it, with the same name of the parameter."""
    name = "transformers.models.mistral_large4.modeling_mistral_large4"
    package = pytest.importorskip(name)
    config = package.MistralLarge4TextConfig(num_hidden_layers=4)
    theirs = package.MistralLarge4TextRotaryEmbedding(config)
    with torch.no_grad():
        theirs.alpha.normal_(0, 0.1)
    parameters = dict(config.rope_parameters)
    ours = posenc.LearnedRotaryEmbedding(
        config.head_dim, scaling=parameters, max_seq_len=config.max_position_embeddings
    )
    ours.load_state_dict(theirs.state_dict(), strict=True)
    ids = torch.arange(400)[None]
    cos, sin = theirs(torch.zeros(1), ids)
    q = torch.randn(1, 2, 400, config.head_dim)
    want, _ = package.apply_rotary_pos_emb_interleave(q, q, cos, sin)
    rope = posenc.RotaryPositionalEmbedding  # the same rotation, pairs read, halves written
    assert rope is not None
    halves = posenc.LearnedRotaryEmbedding(
        config.head_dim,
        scaling=parameters,
        max_seq_len=config.max_position_embeddings,
        seq_dim=2,
        interleaved_out=False,
    )
    halves.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(halves(q), want, rtol=0, atol=2e-4)
    torch.testing.assert_close(ours(q.transpose(1, 2)).transpose(1, 2).norm(), want.norm())


def test_a_peer_s_trained_frequencies_load():
    peer = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding(16, learned_freq=True)
    with torch.no_grad():
        peer.freqs.mul_(1 + 0.2 * torch.randn(8))
    ours = posenc.LearnedRotaryEmbedding(16, parametrisation="direct")
    ours.load_state_dict(peer.state_dict(), strict=True)
    x = torch.randn(2, 30, 3, 16)
    want = peer.rotate_queries_or_keys(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(ours(x), want, rtol=0, atol=2e-5)
    with pytest.raises(RuntimeError, match="freqs"):
        posenc.LearnedRotaryEmbedding(16).load_state_dict(peer.state_dict())


CASTS = {
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "half": lambda m: m.half(),
    "double_half": lambda m: m.double().half(),
    "parent": lambda m: torch.nn.Sequential(m, torch.nn.Linear(4, 4)).bfloat16()[0],
    "meta_and_back": lambda m: m.to("meta", torch.bfloat16).to_empty(device="cpu"),
}


@pytest.mark.parametrize("cast", CASTS.values(), ids=list(CASTS))
@pytest.mark.parametrize("parametrisation", ("log", "direct"))
@pytest.mark.parametrize("package", (posenc, posenc.cpp), ids=("python", "cpp"))
def test_P1_no_cast_ruins_the_frequencies(cast, parametrisation, package):
    """The rotation of a bfloat16 model is that of the float32 model, rounded once."""
    layer = package.LearnedRotaryEmbedding(64, parametrisation=parametrisation)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(1.01).add_(0.003)
    x, ids = torch.randn(1, 3, 2, 64), torch.tensor([0, 1000, 100_000])
    state, want = copy.deepcopy(layer.state_dict()), layer(x, ids)
    layer = cast(layer)
    layer.load_state_dict(state)
    assert all(p.dtype in (torch.float32, torch.float64) for p in layer.parameters())
    assert_same(layer(x, ids).detach(), want.detach())
    low = layer(x.bfloat16(), ids)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low, layer(x.bfloat16().float(), ids).bfloat16(), rtol=0, atol=0)


def test_P1_built_in_a_half_type():
    for package in (posenc, posenc.cpp):
        for kind in ("log", "direct"):
            made = package.LearnedRotaryEmbedding(8, parametrisation=kind, dtype=torch.bfloat16)
            torch.set_default_dtype(torch.float16)
            born = package.LearnedRotaryEmbedding(8, parametrisation=kind)
            torch.set_default_dtype(torch.float32)
            assert {p.dtype for m in (made, born) for p in m.parameters()} == {torch.float32}


def test_P1_the_operator_refuses_frequencies_of_a_half_type():
    freq = reference.rope_inv_freq(8)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(TypeError, match="learned_inv_freq: expected frequencies of dtype"):
            P.learned_inv_freq(torch.ones(4, dtype=dtype), freq, "direct")
        # alpha = 0 loses nothing, whatever its dtype.
        out = P.learned_inv_freq(torch.zeros(4, dtype=dtype), freq)
        assert out.tolist() == freq


@pytest.mark.parametrize("parametrisation", ("log", "direct"))
@pytest.mark.parametrize("n_heads", (None, 2))
def test_it_learns_the_frequencies_of_data(parametrisation, n_heads):
    """Rotations by other frequencies are recovered from inputs and outputs alone."""
    torch.manual_seed(0)
    x = torch.randn(8, 12, 2, 8)
    shape = (4,) if n_heads is None else (n_heads, 4)
    layer = posenc.LearnedRotaryEmbedding(
        8, base=50.0, n_heads=n_heads, parametrisation=parametrisation
    )
    truth = (
        torch.tensor(layer.inv_freq, dtype=torch.float64)
        * (0.15 * torch.randn(shape, dtype=torch.float64)).exp()
    )
    target = P.rotary_embedding(x, truth if n_heads is None else truth[None])
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    first = None
    for _ in range(300):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        first = loss.item() if first is None else first
    assert loss.item() < 1e-6 * first
    found = layer.frequencies().detach()
    torch.testing.assert_close(found.reshape(shape), truth, rtol=1e-3, atol=1e-4)


def test_the_gradient_is_the_formula():
    """d alpha_i = f_i exp(alpha_i) sum over rows and heads of p (dy_hi y_lo - dy_lo y_hi)."""
    layer = posenc.LearnedRotaryEmbedding(8).double()
    with torch.no_grad():
        layer.alpha.normal_(0, 0.3)
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    ids = torch.randint(0, 50, (2, 5))
    y = layer(x, ids)
    up = torch.randn_like(y)
    got = torch.autograd.grad(y, layer.alpha, up)[0]
    lo, hi, up_lo, up_hi = y[..., ::2], y[..., 1::2], up[..., ::2], up[..., 1::2]
    turn = (up_hi * lo - up_lo * hi).sum(2) * ids[..., None]
    want = turn.sum((0, 1)) * layer.frequencies()
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_errors():
    freq = reference.rope_inv_freq(8)
    for weight, text in (
        (torch.zeros(3), r"weight of shape \(4\)"),
        (torch.zeros(1, 2, 4), r"weight of shape \(4\)"),
    ):
        with pytest.raises(ValueError, match=f"learned_inv_freq: expected {text}"):
            P.learned_inv_freq(weight, freq)
    with pytest.raises(ValueError, match='"log" or "direct", got "exp"'):
        P.learned_inv_freq(torch.zeros(4), freq, "exp")
    with pytest.raises(TypeError):
        P.learned_inv_freq(torch.zeros(4).long(), freq)
    for package in (posenc, posenc.cpp):
        build = package.LearnedRotaryEmbedding
        with pytest.raises(ValueError, match=r"LearnedRotaryEmbedding: expected.*parametrisation"):
            build(8, parametrisation="exp")
        with pytest.raises(ValueError, match=r"LearnedRotaryEmbedding: expected.*length.*dynamic"):
            build(8, scaling={"rope_type": "dynamic", "factor": 2.0})
        with pytest.raises(ValueError, match=r"rotary_embedding\.Tensor: expected inv_freq"):
            build(8, n_heads=3)(torch.randn(1, 2, 2, 8))


def test_from_a_configuration():
    config = {
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
    }
    layer = posenc.LearnedRotaryEmbedding.from_config(config, n_heads=2)
    assert layer.alpha.shape == (2, 4)
    assert layer.inv_freq == posenc.RotaryPositionalEmbedding.from_config(config).inv_freq


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("shape", ((32,), (1, 8, 32), (4, 1, 32)), ids=str)
@pytest.mark.parametrize("with_ids", (False, True), ids=("range", "ids"))
def test_the_gradient_holds_over_a_long_sequence(dtype, shape, with_ids):
    """Positions weigh float32 sums in float64: 16384 tokens cost no digits."""
    x = torch.randn(4, 512, 8, 64).to(dtype)
    up = torch.randn(4, 512, 8, 64).to(dtype)
    ids = torch.randint(0, 5000, (4, 512)) if with_ids else None
    freq = torch.tensor(reference.rope_inv_freq(64), dtype=torch.float64).expand(shape).clone()
    grads = []
    for wide in (x, x.double()):
        leaf = freq.clone().requires_grad_()
        for wants_x in (False, True):
            given = wide.clone().requires_grad_(wants_x)
            y = P.rotary_embedding(given, leaf, ids)
            grads.append(torch.autograd.grad(y, leaf, up.to(y.dtype))[0])
    assert_same(grads[0], grads[1])
    # Rounding of the gradient of x to its dtype, at random over the sum.
    size = (4 * 512 * 8 / (freq.numel() / 32)) ** 0.5 * (5000 if with_ids else 512)
    bound = {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    assert (grads[0] - grads[2]).abs().max() <= bound * size


def test_x_is_kept_for_the_gradient_of_frequencies_alone():
    x = torch.randn(2, 5, 3, 8, requires_grad=True)
    freq = torch.tensor(reference.rope_inv_freq(8), dtype=torch.float64)

    def kept(freq):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append(t.shape) or t, lambda t: t
        ):
            P.rotary_embedding(x, freq)
        return x.shape in saved

    assert kept(freq.clone().requires_grad_()) and not kept(freq)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("options", ({}, {"seq_dim": 2, "interleaved": False}), ids=str)
def test_a_batch_of_frequencies_is_its_rows(dtype, options):
    """One pass over rows that have frequencies of their own: the bits of a call for each row."""
    for batch, length in ((5, 1), (3, 150)):
        shape = (batch, 3, length, 64) if options else (batch, length, 3, 64)
        x = torch.randn(shape, dtype=torch.float64).to(dtype)
        freq = torch.rand(batch, 1, 32, dtype=torch.float64)
        for ids in (
            None,
            torch.randint(0, 9000, (length,)),
            torch.randint(0, 9000, (batch, length)),
            torch.rand(batch, length, dtype=torch.float64) * 100,
        ):
            rows = [
                P.rotary_embedding(
                    x[b : b + 1],
                    freq[b, 0].tolist(),
                    ids if ids is None or ids.dim() == 1 else ids[b : b + 1],
                    7,
                    **options,
                )
                for b in range(batch)
            ]
            for threads in (1, 3):
                torch.set_num_threads(threads)
                assert_same(P.rotary_embedding(x, freq, ids, 7, **options), torch.cat(rows))


def test_tensors_of_frequencies_reach_their_overload_at_once(monkeypatch):
    """torch.ops, asked for an operator with two overloads, prints the tensor that did not fit the
    first: half a millisecond a call."""
    monkeypatch.setattr(torch._tensor_str, "_str", lambda *_, **__: pytest.fail("printed"))
    x, freq = torch.randn(1, 3, 2, 8), torch.tensor(reference.rope_inv_freq(8)).double()
    P.rotary_embedding(x, freq)
    P.shift(x, 3, freq)
    P.re_rotate(x, freq, freq * 2)
    P.re_rotate(x, freq.tolist(), freq * 2)
    posenc.LearnedRotaryEmbedding(8)(x)
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    posenc.RotaryPositionalEmbedding(8, scaling=scaling, max_seq_len=16)(x)
