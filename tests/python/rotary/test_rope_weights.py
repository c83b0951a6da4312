"""Weights of one layout made to run with the other."""

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same

convert = posenc.convert_rope_weights


def scores(x, weights, biases, heads, interleaved, **rope):
    """q·k of every pair of heads that grouped attention multiplies."""
    rotate = posenc.RotaryPositionalEmbedding(
        weights[0].shape[0] // heads[0], interleaved=interleaved, **rope
    )
    q, k = (
        torch.nn.functional.linear(x, w, b).unflatten(-1, (h, -1))
        for w, b, h in zip(weights, biases, heads, strict=True)
    )
    q, k = rotate.rotate(q, k, None, 5)
    return torch.einsum("blhd,bmhd->bhlm", q, k.repeat_interleave(heads[0] // heads[1], 2))


@pytest.mark.parametrize(
    "rope", ({}, {"rotary_dim": 8}, {"rotary_dim": 4, "rotary_start": 6}), ids=str
)
@pytest.mark.parametrize("to", ("half", "interleaved"))
def test_scores_stay(rope, to):
    """A q and k projection with biases, four query heads over two key heads, full and partial."""
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    heads = (4, 2)
    weights = [torch.randn(h * 16, 24, dtype=torch.float64) for h in heads]
    biases = [torch.randn(h * 16, dtype=torch.float64) for h in heads]
    want = scores(x, weights, biases, heads, to == "half", **rope)
    moved = [
        [convert(t, h, to, **rope) for t, h in zip(group, heads, strict=True)]
        for group in (weights, biases)
    ]
    got = scores(x, *moved, heads, to == "interleaved", **rope)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    wrong = scores(x, weights, biases, heads, to == "interleaved", **rope)
    assert (wrong - want).abs().max() > 0.1, "the layouts do not differ on these inputs"


@pytest.mark.parametrize(
    "dtype", (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.uint8), ids=str
)
def test_there_and_back_bit_for_bit(dtype):
    for shape in ((96, 5), (96,), (96, 2, 3)):
        w = (torch.randn(shape) * 50).to(dtype)
        for options in ({}, {"rotary_dim": 8}, {"rotary_start": 4, "rotary_dim": 6}):
            for first, second in (("half", "interleaved"), ("interleaved", "half")):
                there = convert(w, 6, first, **options)
                assert there.shape == w.shape and not torch.equal(there, w)
                assert_same(convert(there, 6, second, **options), w)
    strided = torch.randn(5, 96).T
    assert_same(convert(strided, 6, "half"), convert(strided.contiguous(), 6, "half"))


def test_transformers_does_the_same():
    """Its conversion of Meta's weights, for q, for k of grouped heads, and for biases."""
    loading = pytest.importorskip("transformers.core_model_loading")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=4)
    for inverse, to in ((False, "half"), (True, "interleaved")):
        theirs = loading.PermuteForRope(inverse=inverse)
        for w in (torch.randn(64, 64), torch.randn(64)):
            assert_same(convert(w, 4, to), theirs._permute_for_rope(w, config))
    gguf = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    processor = gguf.LlamaTensorProcessor(config={})
    w = torch.randn(32, 64)
    theirs = processor._reverse_permute_weights(w.numpy(), 4, 2)
    assert_same(convert(w, 2, "half"), torch.from_numpy(theirs.copy()))


def test_a_llama_runs_in_the_papers_layout():
    """Weights of a transformers model, converted, in the layer that rotates neighbours."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=16,
        num_hidden_layers=1, vocab_size=7, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaModel(config).eval()
    attention = model.layers[0].self_attn
    x = torch.randn(1, 6, 32)
    position = torch.arange(6)[None]
    mask = torch.full((6, 6), -torch.inf).triu(1)[None, None]
    want = attention(x, model.rotary_emb(x, position), mask)[0]
    ours = posenc.RoPEAttention(32, 4, n_kv_heads=2, bias=False, is_causal=True)
    state = {
        "query_proj.weight": convert(attention.q_proj.weight, 4, "interleaved"),
        "key_proj.weight": convert(attention.k_proj.weight, 2, "interleaved"),
        "value_proj.weight": attention.v_proj.weight,
        "out_proj.weight": attention.o_proj.weight,
    }
    ours.load_state_dict(state)
    torch.testing.assert_close(ours(x), want, rtol=0, atol=1e-5)


def test_errors_name_the_argument():
    w = torch.randn(24, 3)
    for call, words in (
        (lambda: convert(w, 3, "halves"), ("half", "interleaved", "halves")),
        (lambda: convert(w, 5, "half"), ("5 heads", "[24, 3]")),
        (lambda: convert(w, 0, "half"), ("n_heads", "0")),
        (lambda: convert(w, 8, "half"), ("even", "3")),
        (lambda: convert(w, 3, "half", 5), ("even", "5")),
        (lambda: convert(w, 3, "half", 10), ("head_dim = 8", "10")),
        (lambda: convert(w, 3, "half", 4, 6), ("head_dim = 8", "6 + 4")),
        (lambda: convert(w, 3, "half", rotary_start=9), ("rotary_start", "9")),
        (lambda: convert(w, 3, "half", rotary_start=-1), ("rotary_start", "-1")),
        (lambda: convert(torch.tensor(1.0), 1, "half"), ("scalar",)),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert "convert_rope_weights" in str(error.value)
        for word in words:
            assert word in str(error.value), str(error.value)
    assert P.convert_rope_weights is convert
