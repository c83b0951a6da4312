"""B: buffers, caches, devices, loading. A test has the name of its fault."""

import copy
import io
import pickle
import threading

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same, needs_torchscript
from samples.layers import LAYERS, PLAIN
from torch.utils.checkpoint import checkpoint

by_layer = pytest.mark.parametrize("sample", LAYERS, ids=str)
by_kind = pytest.mark.parametrize("sample", PLAIN, ids=str)


@by_kind
def test_B1_materialised_from_meta(sample):
    """Nothing derived can be lost: only what a checkpoint holds is empty after to_empty."""
    want = sample.build()
    with torch.device("meta"):
        module = sample.build()
    module = module.to_empty(device="cpu")
    for name, parameter in module.named_parameters():
        assert name in sample.parameters
        parameter.data.fill_(float("nan"))
    module.load_state_dict(want.state_dict(), strict=True)
    tensors = sample.tensors()
    assert_same(module(**tensors), want(**tensors))
    for holder in (module, getattr(module, "rope", module)):
        if hasattr(holder, "inv_freq"):
            assert holder.inv_freq[0] == 1.0


def test_B1_the_rotation_is_not_the_identity():
    with torch.device("meta"):
        rope = posenc.RotaryPositionalEmbedding(8)
    x = torch.randn(1, 1, 1, 8)
    assert not torch.equal(rope.to_empty(device="cpu")(x, None, 1), x)


LEGACY = {
    "RotaryPositionalEmbedding": ("inv_freq", "cos_cached", "sin_cached", "freqs_cis"),
    "AxialRotaryEmbedding": ("inv_freq", "freqs_cis", "rotary_emb.inv_freq"),
    "MixedRotaryEmbedding": ("inv_freq", "rope.freqs"),
    "LearnedRotaryEmbedding": ("inv_freq", "original_inv_freq", "cos_cached"),
    "LongSequenceRoPE": ("inv_freq",),
    "QueryTemperature": (),
    "XPosRotaryEmbedding": ("inv_freq", "scale", "rotary_pos_emb.scale", "cached_scales"),
    "RoPEAttention": ("rotary_emb.inv_freq", "inv_freq", "freqs_cis"),
    "ALiBiAttention": ("slopes", "alibi"),
    "SinusoidalPositionalEncoding": ("pe",),
    "TransformerEmbedding": ("pe",),
    "LearnedPositionalEncoding": ("position_ids",),
}


@by_kind
def test_B2_old_checkpoints_with_derived_tables_load(sample):
    """Nothing derived is saved; what others saved is ignored, also inside a larger model."""
    module, tensors = sample.build(), sample.tensors()
    assert set(module.state_dict()) == set(sample.parameters)
    want = module(**tensors)
    state = module.state_dict()
    for prefix, model in (("", module), ("0.", torch.nn.Sequential(module))):
        plain = {prefix + name: value for name, value in state.items()}
        for strict in (True, False):
            model.load_state_dict(plain, strict=strict)
            for key in LEGACY[sample.layer]:
                result = model.load_state_dict(
                    {**plain, prefix + key: torch.zeros(3)}, strict=strict
                )
                assert not result.missing_keys and not result.unexpected_keys
        with pytest.raises(RuntimeError, match="surprise"):
            model.load_state_dict({**plain, prefix + "surprise": torch.zeros(3)}, strict=True)
    assert_same(module(**tensors), want)


@by_kind
def test_B3_the_output_follows_the_input_from_device_to_device(sample):
    """Primed on one device, called on another and back: nothing stays behind."""
    module, tensors = sample.build(), sample.tensors()
    first = module(**tensors)
    away = copy.deepcopy(module).to("meta")
    for length in (5, 9):
        out = away(**{n: t.to("meta") for n, t in sample.tensors(length=length).items()})
        assert out.is_meta
    if not sample.parameters:
        assert module(**{n: t.to("meta") for n, t in tensors.items()}).is_meta
    assert_same(module(**tensors), first)


@by_layer
def test_B4_no_buffer_stays_on_another_device(sample):
    module = sample.build()
    module(**sample.tensors())
    assert all(b.is_meta for b in module.to("meta").buffers())
    assert not list(module.buffers())


@by_layer
def test_B6_forward_saves_the_same_each_time(sample):
    """The first call ever and the second save tensors of equal number, shape and dtype."""
    module, tensors = (
        sample.build(torch.bfloat16),
        sample.tensors(torch.bfloat16, requires_grad=True),
    )
    seen = []
    for _ in range(3):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append((t.shape, t.dtype, t.device)) or t, lambda t: t
        ):
            module(**tensors)
        seen.append(saved)
    assert seen[0] == seen[1] == seen[2]
    first, plain = sample.build(torch.bfloat16), sample.build(torch.bfloat16)
    checkpoint(lambda: first(**tensors), use_reentrant=False).float().sum().backward()
    plain(**tensors).float().sum().backward()
    for a, e in zip(first.parameters(), plain.parameters(), strict=True):
        assert_same(a.grad, e.grad)


def test_B7_the_same_length_at_another_offset():
    rope = posenc.RotaryPositionalEmbedding(2)
    x = torch.tensor([[[[1.0, 0.0]]]])
    torch.testing.assert_close(rope(x, None, 0), x)
    want = torch.tensor([0.283662, -0.958924])
    torch.testing.assert_close(rope(x, None, 5)[0, 0, 0], want, rtol=0, atol=1e-6)
    torch.testing.assert_close(rope.apply_rotary_pos_emb(x, 1, 5)[0, 0, 0], want, rtol=0, atol=1e-6)
    torch.testing.assert_close(rope(x, None, 0), x)
    for layer in (posenc.SinusoidalPositionalEncoding(4), posenc.LearnedPositionalEncoding(9, 4)):
        long = layer(torch.zeros(1, 9, 4))
        for offset in (0, 5, 3):
            assert_same(layer(torch.zeros(1, 2, 4), None, offset), long[:, offset : offset + 2])


@by_kind
def test_B9_training_after_evaluation_in_inference_mode(sample):
    module = sample.build()
    with torch.inference_mode():
        module(**sample.tensors())
        module(**sample.tensors(length=9))
    tensors = sample.tensors(requires_grad=True)
    module(**tensors).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    with torch.inference_mode():
        born = sample.build()
        born(**sample.tensors())


@by_layer
def test_B10_copies_after_a_recorded_forward(sample):
    module, tensors = sample.build(), sample.tensors(requires_grad=True)
    module(**tensors).sum().backward()
    want = module(**tensors).detach()
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(torch.nn.Sequential(module))[0],
    ):
        assert_same(other(**tensors).detach(), want)
        mine = {p.data_ptr() for p in module.parameters()}
        assert not mine & {p.data_ptr() for p in other.parameters()}
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        assert_same(module(**tensors).detach(), want)


def test_B12_modules_do_not_share_state():
    """Two bases, interleaved and from four threads: each equals its solo result bit for bit."""
    bases = (10000.0, 500000.0)
    x = torch.randn(1, 77, 2, 64)
    solo = [posenc.RotaryPositionalEmbedding(64, base=b)(x) for b in bases]
    ropes = [posenc.RotaryPositionalEmbedding(64, base=b) for b in bases]
    for _ in range(2):
        for rope, want in zip(ropes, solo, strict=True):
            assert_same(rope(x), want)
    wrong = []

    def work(number):
        for _ in range(50):
            if not torch.equal(ropes[number % 2](x), solo[number % 2]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class TestB13PositionsPastATable:
    """A learned table names the position and the limit; what is computed has no limit."""

    layer = posenc.LearnedPositionalEncoding(8, 4)

    @pytest.mark.parametrize("bad", (8, -1, 2**40))
    def test_B13_a_position_outside(self, bad):
        for ids in (torch.tensor([7, bad]), torch.tensor([[7, bad]])):
            with pytest.raises(IndexError) as error:
                self.layer(torch.zeros(1, 2, 4), ids)
            assert str(bad) in str(error.value) and "8" in str(error.value)
        self.layer(torch.zeros(1, 2, 4), torch.tensor([7, 0]))

    def test_B13_a_length_outside(self):
        for length, offset in ((9, 0), (2, 7), (1, 8), (1, -1)):
            with pytest.raises(IndexError) as error:
                self.layer(torch.zeros(1, length, 4), None, offset)
            assert "8" in str(error.value)

    @needs_torchscript
    def test_B13_in_every_way_of_running(self):
        x, ids = torch.zeros(1, 2, 4), torch.tensor([7, 8])
        with pytest.raises((IndexError, RuntimeError), match="8"):
            torch.jit.script(self.layer)(x, ids)
        with pytest.raises(IndexError, match="8"):
            torch.compile(self.layer, backend="aot_eager")(x, ids)
        with pytest.raises(IndexError, match="8"):
            self.layer(x.requires_grad_(), ids)

    def test_B13_computed_positions_have_no_limit(self):
        x = torch.randn(1, 3, 1, 4)
        ids = torch.tensor([-7, 10**9, 8])
        assert torch.isfinite(posenc.RotaryPositionalEmbedding(4, max_seq_len=2)(x, ids)).all()
        sinusoidal = posenc.SinusoidalPositionalEncoding(4)
        assert torch.isfinite(sinusoidal(x[:, :, 0], ids)).all()
        assert posenc.TransformerEmbedding(5, 4, max_len=2)(torch.zeros(1, 9).long()).shape[1] == 9
        assert posenc.ALiBiAttention(8, 2, max_seq_len=2)(torch.zeros(1, 9, 8)).shape == (1, 9, 8)

    def test_B13_the_gradient_of_the_table_with_a_bad_position_is_an_error_too(self):
        weight = torch.zeros(8, 4, requires_grad=True)
        with pytest.raises(IndexError):
            P.add_positions(torch.zeros(1, 2, 4), weight, torch.tensor([7, 8])).sum().backward()
