"""Keys that were rotated and stay: moved to other positions, and to other frequencies."""

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same, needs_torchscript

YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64}
NTK = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 1.5, 4.0, 8.0],
    "original_max_position_embeddings": 8,
    "factor": 4.0,
}
LAYERS = {
    "pairs": {},
    "halves": {"interleaved": False},
    "partial": {"rotary_dim": 4, "rotary_start": 2},
    "heads_first": {"seq_dim": 2},
    "yarn": {"scaling": YARN},
    "relaid": {"interleaved_out": False},
    "backwards": {"inverse": True},
}
layers = pytest.mark.parametrize("arguments", LAYERS.values(), ids=LAYERS)
packages = pytest.mark.parametrize("package", (posenc, posenc.cpp), ids=("python", "cpp"))


def build(package, **arguments):
    return package.RotaryPositionalEmbedding(8, **arguments)


def keys_of(arguments, length=6, dtype=torch.float64):
    shape = (2, 3, length, 8) if arguments.get("seq_dim") == 2 else (2, length, 3, 8)
    return torch.randn(shape, dtype=dtype)


class TestShift:
    @layers
    @packages
    def test_equals_keys_rotated_at_their_new_place(self, package, arguments):
        rope = build(package, **arguments)
        keys = keys_of(arguments)
        at = torch.tensor([[10, 11, 20, 21, 22, 70], [0, 1, 2, 3, 4, 5]])
        cached = rope(keys, at)
        for delta in (
            -2,
            0,
            1000,
            torch.tensor(-2),
            torch.tensor([7]),
            torch.tensor([3, -9]),
            torch.tensor([[0, 0, -8, -8, -8, -55], [1, 2, 3, 4, 5, 6]]),
            torch.tensor([0.5, -0.25]),
        ):
            by = torch.as_tensor(delta)
            moved = at + (by[:, None] if by.dim() == 1 else by)
            torch.testing.assert_close(
                rope.shift(cached, delta), rope(keys, moved), rtol=0, atol=1e-11
            )

    @layers
    def test_function_and_layer_agree(self, arguments):
        rope = build(posenc, **arguments)
        cached = rope(keys_of(arguments, dtype=torch.float32))
        got = P.shift(
            cached,
            -3,
            rope.inv_freq,
            seq_dim=rope.seq_dim,
            interleaved=rope.interleaved if rope.interleaved_out is None else rope.interleaved_out,
            rotary_start=rope.rotary_start,
            inverse=rope.inverse,
        )
        assert_same(got, rope.shift(cached, -3))
        freq = torch.tensor(rope.inv_freq, dtype=torch.float64)
        assert_same(rope.shift(cached, -3, freq), got)

    def test_of_keys_whose_frequencies_depend_on_the_length(self):
        for package in (posenc, posenc.cpp):
            rope = package.RotaryPositionalEmbedding(8, scaling=NTK)
            keys = torch.randn(2, 16, 1, 8, dtype=torch.float64)
            cached = rope(keys)
            with pytest.raises(ValueError, match="inv_freq_at"):
                rope.shift(cached, 1)
            moved = rope.shift(cached[:, 4:], -4, rope.inv_freq_at(16))
            want = P.rotary_embedding(keys[:, 4:], rope.inv_freq_at(16))
            torch.testing.assert_close(moved, want, rtol=0, atol=1e-12)

    @needs_torchscript
    def test_script_compile_and_gradient(self):
        freq = posenc.RotaryPositionalEmbedding(8).inv_freq
        keys = torch.randn(2, 6, 3, 8)

        def call(k, delta: int, rows):
            return P.shift(k, delta, freq) + P.shift(k, rows, freq)

        rows = torch.tensor([3, -1])
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        for delta in (-2, 5, 9):
            torch.testing.assert_close(compiled(keys, delta, rows), call(keys, delta, rows))
        scripted = torch.jit.script(P.shift)
        assert_same(scripted(keys, -2, freq), P.shift(keys, -2, freq))
        assert_same(scripted(keys, rows, freq), P.shift(keys, rows, freq))
        tensor = torch.tensor(freq, dtype=torch.float64)
        assert_same(scripted(keys, rows, tensor), P.shift(keys, rows, freq))

    @packages
    def test_errors(self, package):
        rope = package.RotaryPositionalEmbedding(8)
        keys = torch.randn(2, 6, 3, 8)
        for delta in (torch.zeros(3), torch.zeros(2, 5), torch.zeros(3, 6), torch.zeros(1, 1, 6)):
            with pytest.raises(ValueError, match=r"shift: expected delta .*\(2, 6\)"):
                rope.shift(keys, delta)
        for dtype in (torch.bool, torch.bfloat16, torch.complex64):
            with pytest.raises(TypeError, match="shift: expected delta"):
                rope.shift(keys, torch.zeros(2, dtype=dtype))
        with pytest.raises(ValueError, match=r"shift: expected head_dim >= 8 .*6 in keys"):
            rope.shift(keys[..., :6], 1)


class TestReRotate:
    @layers
    @packages
    def test_from_one_layer_to_another(self, package, arguments):
        """A longer context with YaRN, whose factor differs too, over keys of the plain layer."""
        old = build(package, **{**arguments, "scaling": None})
        new = build(package, **{**arguments, "scaling": YARN})
        assert new.attention_factor > 1.2 and old.attention_factor == 1
        keys = keys_of(arguments)
        at = torch.randint(0, 2000, (2, 6))
        for position_ids, offset in ((None, 0), (None, 500), (at, 0), (at[:1], 3)):
            cached = old(keys, position_ids, offset)
            if package is posenc:
                moved = new.re_rotate(cached, old, None, position_ids, offset)
            else:
                moved = new.re_rotate(
                    cached, old.inv_freq, None, position_ids, offset, old.attention_factor
                )
            want = new(keys, position_ids, offset)
            torch.testing.assert_close(moved, want, rtol=0, atol=1e-10)

    @packages
    @pytest.mark.parametrize("scaling", (NTK, LONG), ids=("ntk", "longrope"))
    def test_frequencies_of_two_lengths(self, package, scaling):
        rope = package.RotaryPositionalEmbedding(8, scaling=scaling)
        keys = torch.randn(1, 16, 2, 8, dtype=torch.float64)
        cached = rope(keys[:, :6])
        assert rope.inv_freq_at(6) == rope.inv_freq and rope.inv_freq_at(16) != rope.inv_freq
        moved = rope.re_rotate(cached, rope.inv_freq_at(6), rope.inv_freq_at(16))
        torch.testing.assert_close(moved, rope(keys)[:, :6], rtol=0, atol=1e-12)
        lengths = torch.tensor([6]), torch.tensor([16])
        freqs = [rope.inv_freq_at(length) for length in lengths]
        assert freqs[0].shape == (1, 1, 4) and freqs[0].dtype == torch.float64
        assert freqs[1].flatten().tolist() == rope.inv_freq_at(16)
        for old, new in (freqs, (freqs[0], rope.inv_freq_at(16)), (rope.inv_freq, freqs[1])):
            assert_same(rope.re_rotate(cached, old, new), moved)

    @packages
    def test_frequencies_of_no_length(self, package):
        rope = package.RotaryPositionalEmbedding(8, scaling=YARN)
        assert rope.inv_freq_at(5) == rope.inv_freq_at(5000) == rope.inv_freq
        rows = rope.inv_freq_at(torch.tensor([5, 5000]))
        assert rows.shape == (2, 1, 4) and rows[1, 0].tolist() == rope.inv_freq

    def test_there_and_back(self):
        keys = torch.randn(2, 6, 3, 8, dtype=torch.float64)
        freq, slow = P.rope_inv_freq(8), P.rope_inv_freq(8, 500.0)
        there = P.re_rotate(keys, freq, slow, None, 99, 1, True, 0, 1.0, 1.25)
        back = P.re_rotate(there, slow, freq, None, 99, 1, True, 0, 1.25, 1.0)
        torch.testing.assert_close(back, keys, rtol=0, atol=1e-13)
        assert_same(P.re_rotate(keys, freq, freq, None, 10**6), keys)

    def test_the_difference_is_taken_in_float64(self):
        """Frequencies that differ in the tenth digit still turn a key at a million."""
        keys = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 1, 1, 2)
        out = P.re_rotate(keys, [1.0], [1.0 + 1e-10], offset=2**20)
        want = torch.tensor(2**20 * ((1.0 + 1e-10) - 1.0), dtype=torch.float64)
        torch.testing.assert_close(out[0, 0, 0, 1], want.sin(), rtol=0, atol=1e-15)

    @needs_torchscript
    def test_script_and_compile(self):
        freq, slow = P.rope_inv_freq(8), P.rope_inv_freq(8, 500.0)
        keys = torch.randn(2, 6, 3, 8)
        tensors = [torch.tensor(f, dtype=torch.float64) for f in (freq, slow)]
        want = P.re_rotate(keys, freq, slow, offset=7)
        scripted = torch.jit.script(P.re_rotate)
        compiled = torch.compile(P.re_rotate, backend="aot_eager", fullgraph=True)
        for call in (scripted, compiled, P.re_rotate):
            for old in (freq, tensors[0]):
                for new in (slow, tensors[1]):
                    torch.testing.assert_close(
                        call(keys, old, new, offset=7), want, rtol=0, atol=1e-6
                    )

    def test_several_axes(self):
        axes = [0, 1, 1, 2]
        rope = posenc.RotaryPositionalEmbedding(8, axes=axes)
        wide = posenc.RotaryPositionalEmbedding(8, base=500.0, axes=axes)
        keys = torch.randn(2, 6, 3, 8, dtype=torch.float64)
        at = torch.randint(0, 50, (3, 2, 6))
        moved = wide.re_rotate(rope(keys, at), rope, position_ids=at)
        torch.testing.assert_close(moved, wide(keys, at), rtol=0, atol=1e-12)

    def test_errors(self):
        rope = posenc.RotaryPositionalEmbedding(8)
        halves = posenc.RotaryPositionalEmbedding(8, interleaved=False)
        backwards = posenc.RotaryPositionalEmbedding(8, inverse=True)
        partial = posenc.RotaryPositionalEmbedding(8, rotary_dim=4)
        ntk = posenc.RotaryPositionalEmbedding(8, scaling=NTK)
        keys = torch.randn(2, 6, 3, 8)
        freq = rope.inv_freq
        tensor = torch.tensor(freq, dtype=torch.float64)
        for call, words in (
            (lambda: rope.re_rotate(keys, freq[:2]), ("re_rotate", "4 and 2")),
            (lambda: rope.re_rotate(keys, tensor[:2], tensor), ("re_rotate", "[4] and [2]")),
            (lambda: rope.re_rotate(keys, ntk), ("inv_freq_at", "dynamic")),
            (lambda: ntk.re_rotate(keys, freq), ("inv_freq_at", "dynamic")),
            (lambda: rope.re_rotate(keys, halves), ("same layout",)),
            (lambda: rope.re_rotate(keys, backwards), ("same layout",)),
            (lambda: rope.re_rotate(keys, partial), ("same layout", "rotary_dim=4")),
            (lambda: rope.re_rotate(keys, freq, old_attention_factor=0.0), ("other than 0",)),
            (lambda: P.re_rotate(keys, freq, freq, torch.arange(4)), ("re_rotate: ", "[4]")),
            (lambda: P.re_rotate(keys[..., :6], freq, freq), ("re_rotate: ", "6 in keys")),
            (
                lambda: P.re_rotate(keys, tensor, torch.ones(3, 1, 4, dtype=torch.float64)),
                ("re_rotate", "[3, 1, 4]"),
            ),
        ):
            with pytest.raises(ValueError) as error:
                call()
            for word in words:
                assert word in str(error.value), str(error.value)
        with pytest.raises(TypeError, match=r"re_rotate.*float64"):
            P.re_rotate(keys, tensor.float(), tensor)
