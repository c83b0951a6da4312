"""K: positions in padded batches, caches, packed rows. A test has the name of its fault."""

import itertools

import posenc
import posenc.functional as P
import pytest
import reference
import torch
from samples.compare import assert_same

LEFT = torch.tensor([[0, 0, 1, 1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 0, 0]])


def layers():
    torch.manual_seed(0)
    for causal in (True, False):
        yield posenc.RoPEAttention(16, 2, is_causal=causal)
        yield posenc.RoPEAttention(16, 2, is_causal=causal, n_kv_heads=1, rotary_dim=4)
        yield posenc.ALiBiAttention(16, 2, is_causal=causal)
        yield posenc.ALiBiAttention(15, 3, is_causal=causal, n_kv_heads=1)


def layer_id(layer):
    side = "causal" if layer.is_causal else "plain"
    return f"{type(layer).__name__}-{side}-{layer.n_heads}-{layer.n_kv_heads}"


every_layer = pytest.mark.parametrize("layer", list(layers()), ids=layer_id)


@pytest.mark.parametrize(
    "cast", (lambda m: m, lambda m: m.bool(), lambda m: m.float(), lambda m: m.int() * 7)
)
def test_K1_positions_are_counted_from_real_tokens(cast):
    assert P.positions_from_mask(cast(LEFT)).tolist() == [[0, 0, 0, 1, 2]]
    assert P.positions_from_mask(cast(RIGHT))[0, :3].tolist() == [0, 1, 2]
    assert P.positions_from_mask(cast(LEFT[0])).tolist() == [0, 0, 0, 1, 2]
    holes = torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    got = P.positions_from_mask(cast(holes)).numpy()
    assert (got == reference.positions_from_mask(holes.numpy())).all()


@every_layer
@pytest.mark.parametrize("mask", (LEFT, RIGHT), ids=("left", "right"))
def test_K1_padding_changes_no_real_token(layer, mask):
    """Attention: real tokens of a padded batch against the run without padding."""
    width = layer.d_model
    keep = mask[0].bool()
    alone = torch.randn(1, 3, width)
    for filler in (0.0, 1e4, float("nan")):
        padded = torch.full((1, 5, width), filler)
        padded[:, keep] = alone
        other = torch.randn(1, 5, width)
        batch = torch.cat((padded, other))
        keeps = torch.cat((mask, torch.ones_like(mask)))
        for given in (keeps, keeps.bool(), keeps.float()):
            out = layer(batch, key_padding_mask=given)
            torch.testing.assert_close(out[:1, keep], layer(alone), rtol=0, atol=1e-5)
            torch.testing.assert_close(out[1:], layer(other), rtol=0, atol=1e-5)


def test_K1_padding_changes_no_real_token_of_added_encodings():
    x = torch.randn(1, 3, 8)
    for layer in (posenc.SinusoidalPositionalEncoding(8), posenc.LearnedPositionalEncoding(9, 8)):
        for mask in (LEFT, RIGHT):
            keep = mask[0].bool()
            padded = torch.zeros(1, 5, 8)
            padded[:, keep] = x
            out = layer(padded, P.positions_from_mask(mask))
            torch.testing.assert_close(out[:, keep], layer(x), rtol=0, atol=1e-6)
    tokens = posenc.TransformerEmbedding(9, 8)
    ids = torch.tensor([[3, 1, 4]])
    padded = torch.tensor([[0, 0, 3, 1, 4]])
    out = tokens(padded, P.positions_from_mask(LEFT))
    torch.testing.assert_close(out[:, 2:], tokens(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ("RoPEAttention", "ALiBiAttention"))
@pytest.mark.parametrize("side", ("left", "right"))
def test_K2_each_row_decodes_at_its_own_position(name, side):
    """Real lengths 5 and 3: next come 5 and 3, then 6 and 4; each row equals its solo run."""
    torch.manual_seed(0)
    layer = getattr(posenc, name)(16, 2, is_causal=True)
    rows = [torch.randn(1, 8, 16), torch.randn(1, 6, 16)]
    lengths = (5, 3)
    start = torch.zeros(2, 5, 16)
    keep = torch.zeros(2, 5, dtype=torch.bool)
    for b, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        where = slice(5 - n, 5) if side == "left" else slice(0, n)
        start[b, where] = row[0, :n]
        keep[b, where] = True
    out, cache = layer.forward_cached(start, key_padding_mask=keep)
    assert cache.lengths.tolist() == [5, 3]
    want = [layer(row) for row in rows]
    for b, n in enumerate(lengths):
        torch.testing.assert_close(out[b][keep[b]], want[b][0, :n], rtol=0, atol=1e-5)
    for step in range(3):
        token = torch.stack([row[0, n + step] for row, n in zip(rows, lengths, strict=True)])[
            :, None
        ]
        out, cache = layer.forward_cached(token, cache)
        assert cache.lengths.tolist() == [6 + step, 4 + step]
        for b, n in enumerate(lengths):
            torch.testing.assert_close(out[b, 0], want[b][0, n + step], rtol=0, atol=1e-5)


def test_K2_offsets_by_row():
    offsets = torch.tensor([5, 3])
    assert P.positions_from_offsets(offsets, 2).tolist() == [[5, 6], [3, 4]]
    x = torch.randn(2, 2, 1, 8)
    rope = posenc.RotaryPositionalEmbedding(8)
    out = rope(x, P.positions_from_offsets(offsets, 2))
    for b in range(2):
        assert_same(out[b : b + 1], rope(x[b : b + 1], None, offsets[b].item()))


@every_layer
def test_K4_pieces_of_a_batch_and_of_a_sequence(layer):
    """A batch of four equals two and two; with a cache, a prefill and steps equal one pass."""
    x = torch.randn(4, 7, layer.d_model)
    whole = layer(x)
    parts = torch.cat((layer(x[:2]), layer(x[2:])))
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
    if not layer.is_causal:
        return
    for sizes in ((5, 1, 1), (1,) * 7, (3, 4), (7,)):
        cache, outs, at = None, [], 0
        for size in sizes:
            out, cache = layer.forward_cached(x[:, at : at + size], cache)
            outs.append(out)
            at += size
        torch.testing.assert_close(torch.cat(outs, 1), whole, rtol=0, atol=1e-5)
        assert cache.lengths.tolist() == [7] * 4 and cache.key.shape[2] == 7
    start = layer.empty_cache(4)
    out, cache = layer.forward_cached(x, start)
    torch.testing.assert_close(out, whole, rtol=0, atol=1e-5)
    assert start.key.shape[2] == 0, "the cache that was handed in has changed"


def test_K4_a_table_of_one_row_is_no_table_for_many():
    x = torch.randn(1, 2, 3, 8)
    one = torch.ones(1, 4)
    with pytest.raises((ValueError, IndexError), match="1"):
        P.apply_rotary(x, one, one)
    for ids in (torch.zeros(1).long(), torch.zeros(1, 1).long(), torch.zeros(2, 1).long()):
        with pytest.raises(ValueError, match="position"):
            P.rotary_embedding(x, [1.0], ids, seq_dim=2)
        with pytest.raises(ValueError, match="position"):
            P.add_sinusoidal(x[0], [1.0, 0.1, 0.01, 0.001], ids)
        with pytest.raises((ValueError, IndexError), match="position"):
            P.add_positions(x[0], torch.zeros(9, 8), ids)


def test_K5_positions_restart_with_each_document():
    assert P.positions_from_documents(torch.tensor([[1, 1, 2, 2, 2, 0]]))[0, :5].tolist() == [
        0,
        1,
        0,
        1,
        2,
    ]
    assert P.positions_from_cu_seqlens(torch.tensor([0, 4, 8]), 8).tolist() == [0, 1, 2, 3] * 2
    uneven = torch.tensor([0, 1, 1, 6, 9])
    got = P.positions_from_cu_seqlens(uneven, 9).numpy()
    assert (got == reference.positions_from_cu_seqlens(uneven.tolist(), 9)).all()
    for ids in ([[3, 3, 3, 1, 1, 3]], [[0, 0, 0, 0]], [[1, 2, 3, 4]], [[5, 5], [5, 6]]):
        ids = torch.tensor(ids)
        got = P.positions_from_documents(ids).numpy()
        assert (got == reference.positions_from_documents(ids.numpy())).all()


@every_layer
def test_K5_two_documents_in_a_row_do_not_see_each_other(layer):
    document = torch.randn(1, 4, layer.d_model)
    packed = torch.cat((document, document), 1)
    ids = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]])
    own = (ids[:, :, None] == ids[:, None, :])[:, None]
    out = layer(packed, mask=own, position_ids=P.positions_from_documents(ids))
    alone = layer(document)
    torch.testing.assert_close(out[:, :4], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(out[:, 4:], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("interleaved", (True, False))
def test_K8_keys_are_shifted_after_eviction(interleaved):
    """Keys 0..5, of which 0, 1, 4, 5 stay: the last two move by -2, the query stands at 4."""
    rope = posenc.RotaryPositionalEmbedding(8, interleaved=interleaved)
    keys = torch.randn(1, 6, 1, 8, dtype=torch.float64)
    cached = rope(keys)
    kept = torch.cat((cached[:, :2], rope.shift(cached[:, 4:], -2)), 1)
    fresh = rope(torch.cat((keys[:, :2], keys[:, 4:]), 1))
    torch.testing.assert_close(kept, fresh, rtol=0, atol=1e-12)
    query = rope(torch.randn(1, 1, 1, 8, dtype=torch.float64), None, 4)
    torch.testing.assert_close((query * kept).sum(-1), (query * fresh).sum(-1))
    # The same with a delta for each key, and by hand.
    each = rope.shift(cached[:, [0, 1, 4, 5]], torch.tensor([[0, 0, -2, -2]]))
    torch.testing.assert_close(each, fresh, rtol=0, atol=1e-12)
    back = P.rotary_embedding(
        cached[:, 4:], rope.inv_freq, torch.tensor([2, 2]), interleaved=interleaved, inverse=True
    )
    torch.testing.assert_close(back, kept[:, 2:], rtol=0, atol=1e-12)


def test_K8_a_sink_cache_decodes_as_a_fresh_run():
    """A window of six keys with two sinks, far past its size: each query sees what a run over the
    kept keys alone would see."""
    rope = posenc.RotaryPositionalEmbedding(8)
    keys, queries = torch.randn(2, 1, 20, 1, 8, dtype=torch.float64).unbind(0)
    cached, kept = keys[:, :0], []
    for t in range(20):
        if len(kept) == 6:  # the third key goes, those behind it close up
            cached = torch.cat((cached[:, :2], rope.shift(cached[:, 3:], -1)), 1)
            kept.pop(2)
        kept.append(t)
        key = rope(keys[:, t : t + 1], None, len(kept) - 1)
        cached = torch.cat((cached, key), 1)
        query = rope(queries[:, t : t + 1], None, len(kept) - 1)
        fresh = rope(keys[:, kept])
        torch.testing.assert_close((query * cached).sum(-1), (query * fresh).sum(-1))
    assert kept == [0, 1, 16, 17, 18, 19]


def test_K1_rotation_of_padded_rows():
    """q and k at positions counted from the mask: real tokens as in the run without padding, bit
    for bit, on either side; the next token of each row stands at its number of real tokens."""
    rope = posenc.RotaryPositionalEmbedding(8)
    q, k = torch.randn(1, 3, 4, 8), torch.randn(1, 3, 2, 8)
    want = rope.rotate(q, k)
    for mask in (LEFT, RIGHT):
        keep = mask[0].bool()
        padded = [torch.full((1, 5, t.shape[2], 8), 1e4) for t in (q, k)]
        for wide, t in zip(padded, (q, k), strict=True):
            wide[:, keep] = t
        out = rope.rotate(*padded, P.positions_from_mask(mask))
        assert_same([t[:, keep] for t in out], want)
        token = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 2, 8)
        place = P.positions_from_offsets(mask.sum(-1), 1)
        assert_same(rope.rotate(*token, place), rope.rotate(*token, None, 3))


def test_K2_each_row_of_a_batch_rotates_at_its_own_place():
    """Real lengths 5 and 3: a step of two tokens is at [5, 6] and [3, 4], as each row alone."""
    rope = posenc.RotaryPositionalEmbedding(8)
    offsets = torch.tensor([5, 3])
    q, k = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 1, 8)
    out = rope.rotate(q, k, P.positions_from_offsets(offsets, 2))
    packed = rope.rotate_packed(torch.cat((q, k, k), 2), 1, P.positions_from_offsets(offsets, 2))
    for b in range(2):
        alone = rope.rotate(q[b : b + 1], k[b : b + 1], None, offsets[b].item())
        assert_same([t[b : b + 1] for t in out], alone)
        assert_same(packed[b : b + 1, :, :5], torch.cat(alone, 2))


def test_K5_packed_rows_rotate_as_their_documents_alone():
    """Documents of 4, 1, 0 and 3 tokens in one row, by cumulated lengths and by ids; and packed
    chunks of documents whose beginnings are cached."""
    rope = posenc.RotaryPositionalEmbedding(8)
    q, k = torch.randn(1, 8, 4, 8), torch.randn(1, 8, 2, 8)
    bounds = torch.tensor([0, 4, 5, 5, 8], dtype=torch.int32)
    ids = torch.tensor([[1, 1, 1, 1, 2, 4, 4, 4]])
    cached = torch.tensor([10, 0, 7, 100])
    for positions, start in (
        (P.positions_from_cu_seqlens(bounds, 8), torch.zeros(4)),
        (P.positions_from_documents(ids), torch.zeros(4)),
        (P.positions_from_cu_seqlens(bounds, 8, cached), cached),
    ):
        out = rope.rotate(q, k, positions)
        for (a, b), first in zip(itertools.pairwise(bounds.tolist()), start.tolist(), strict=True):
            alone = rope.rotate(q[:, a:b], k[:, a:b], None, int(first))
            assert_same([t[:, a:b] for t in out], alone)
    with pytest.raises(ValueError, match=r"offsets .*\(4\).*\[3\]"):
        P.positions_from_cu_seqlens(bounds, 8, cached[:3])


@pytest.mark.parametrize("zigzag", (False, True))
def test_ranks_of_a_context_parallel_group_rotate_their_part(zigzag):
    """Each rank's q and k are those of the whole, also where documents are packed in the row."""
    rope = posenc.RotaryPositionalEmbedding(8)
    q, k = torch.randn(2, 12, 4, 8), torch.randn(2, 12, 2, 8)
    documents = torch.tensor([[1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3]])
    whole, packed = rope.rotate(q, k), rope.rotate(q, k, P.positions_from_documents(documents))
    for rank in range(3):
        own = P.positions_for_context_parallel(12, rank, 3, zigzag)
        mine = [t[:, own] for t in (q, k)]
        assert_same(rope.rotate(*mine, own), [t[:, own] for t in whole])
        ids = P.positions_from_documents(documents)[:, own]
        assert_same(rope.rotate(*mine, ids), [t[:, own] for t in packed])
        if not zigzag:  # a run of positions: an offset says the same
            assert_same(rope.rotate(*mine, None, 4 * rank), [t[:, own] for t in whole])


def test_slices_of_a_context_parallel_group():
    for length, world, zigzag in ((12, 3, False), (12, 3, True), (8, 1, True), (8, 2, True)):
        parts = [P.positions_for_context_parallel(length, r, world, zigzag) for r in range(world)]
        for rank, part in enumerate(parts):
            want = reference.positions_for_context_parallel(length, rank, world, zigzag)
            assert part.tolist() == want.tolist()
        assert sorted(torch.cat(parts).tolist()) == list(range(length))
    x = torch.randn(1, 12, 2, 8)
    rope = posenc.RotaryPositionalEmbedding(8)
    whole = rope(x)
    for rank in range(3):
        ids = P.positions_for_context_parallel(12, rank, 3, True)
        assert_same(rope(x[:, ids], ids), whole[:, ids])
    with pytest.raises(ValueError):
        P.positions_for_context_parallel(13, 0, 3)
    with pytest.raises(ValueError):
        P.positions_for_context_parallel(12, 3, 3)
