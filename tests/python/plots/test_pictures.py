"""The pictures: names, units, colour bars, files; and that they show the layers' own numbers."""

import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import posenc
import pytest
import torch
from posenc import analysis, plots

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

#: Arguments that make a picture quick.
SMALL = {
    "blocks": {"length": 256},
    "decay": {"reach": 40},
    "wavelengths": {"head_dim": 16},
    "grid": {"reach": 3},
    "encodings": {"quiet": True},
    "benchmark": {
        "d_model": 8, "batch_size": 1, "seq_lens": (4, 8), "n_heads": 2, "seconds": 1e-4,
        "peers": False,
    },
}  # fmt: skip


#: What `posenc train` writes.
RESULTS = {
    "settings": {"train_length": 16, "eval_lengths": [16, 32]},
    "models": {"rope": {"losses": {"16": 2.0, "32": 2.5}}, "learned": {"losses": {"16": 2.1}}},
}
SMALL["loss"] = {"results": RESULTS}


def draw(name, **options):
    return plots.PICTURES[name].function(**{**SMALL.get(name, {}), **options})


def is_bar(axes):
    return hasattr(axes, "_colorbar")


@pytest.fixture(scope="module")
def figures():
    return {name: draw(name) for name in plots.PICTURES}


@pytest.mark.parametrize("name", plots.PICTURES)
def test_figures_have_titles_names_and_colour_bars(name, figures):
    figure = figures[name]
    assert isinstance(figure, Figure)
    panels = [axes for axes in figure.axes if not is_bar(axes)]
    assert panels and (figure.get_suptitle() or panels[0].get_title())
    for axes in panels:
        assert axes.get_xlabel() and axes.get_ylabel(), axes.get_title()
        assert axes.get_title() or len(panels) == 1
    bars = [axes for axes in figure.axes if is_bar(axes)]
    assert all(bar.get_ylabel() or bar.get_xlabel() for bar in bars)
    images = [image for axes in panels for image in axes.images]
    covered = {id(axes) for bar in bars for axes in bar._colorbar_info["parents"]}
    assert all(id(axes) in covered for axes in panels if axes.images)
    # Colours whose lightness rises throughout: readable in grey and with any colour vision.
    for image in images:
        grey = image.cmap(np.linspace(0, 1, 32))[:, :3] @ [0.299, 0.587, 0.114]
        assert (np.diff(grey) >= -1e-3).all()


@pytest.mark.parametrize("name", plots.PICTURES)
def test_nothing_is_cut_off_or_too_small(name, figures):
    figure = figures[name]
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize")):
        if text.get_text() and text.get_visible():
            assert text.get_fontsize() >= 8, text.get_text()
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        box = axes.get_tightbbox(renderer)
        assert box.x0 >= -1 and box.y0 >= -1, axes.get_title()
        assert box.x1 <= width + 1 and box.y1 <= height + 1, axes.get_title()
    titles = [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.get_title()]
    for i, one in enumerate(titles):
        assert not any(one.overlaps(other) for other in titles[i + 1 :])


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_save(kind, tmp_path):
    path = tmp_path / f"picture.{kind}"
    draw("alibi", save=path)
    content = path.read_bytes()
    start = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF"}[kind]
    assert content.startswith(start)
    if kind == "svg":
        assert xml.etree.ElementTree.fromstring(content).tag.endswith("svg")
    draw("alibi", save=path)
    assert path.read_bytes() == content, "equal pictures are not equal files"


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    def work(*args, **options):
        raise AssertionError("the picture was computed")

    monkeypatch.setattr("posenc.plots.attention.block_shares", work)
    (tmp_path / "folder.png").mkdir()
    for name, error in (
        ("a.bmp", ValueError),
        ("absent/a.png", FileNotFoundError),
        ("folder.png", IsADirectoryError),
        ("a.png", AssertionError),
    ):
        with pytest.raises(error):
            draw("blocks", save=tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"], "left behind"


def test_save_refuses_other_names(tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.svg, \.pdf, got '.*picture\.doc'"):
        draw("alibi", save=tmp_path / "picture.doc")
    with pytest.raises(FileNotFoundError):
        draw("alibi", save=tmp_path / "absent" / "picture.png")


def test_no_display_no_window_no_trace(tmp_path):
    """With a backend that needs a display, and none there: in a process of its own."""
    code = (
        "import posenc, matplotlib\n"
        "before = dict(matplotlib.rcParams)\n"
        "posenc.visualize_alibi(save='alibi.png')\n"
        "import matplotlib.pyplot as plt\n"
        "assert plt.get_fignums() == []\n"
        "after = dict(matplotlib.rcParams)\n"
        # pyplot itself lets go of a backend that cannot run here.
        "changed = [k for k in before if before[k] != after[k] and k != 'backend']\n"
        "assert not changed, changed\n"
    )
    env = dict(os.environ)
    env.pop("DISPLAY", None)
    env.pop("WAYLAND_DISPLAY", None)
    env["MPLBACKEND"] = "TkAgg"
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "alibi.png").stat().st_size > 1000


def panel(figure, title):
    (found,) = (axes for axes in figure.axes if title in axes.get_title())
    return found


def test_the_table_s_numbers_are_drawn(figures):
    table = posenc.get_positional_encoding(100, 128).double().numpy()
    figure = figures["table"]
    assert np.array_equal(panel(figure, "Position ×").images[0].get_array(), table)
    for title, first, count in (("Dimensions 0–7", 0, 8), ("Dimensions 60–68", 60, 9)):
        lines = panel(figure, title).lines
        assert len(lines) == count
        for number, line in enumerate(lines):
            assert line.get_label() == str(first + number)
            assert np.array_equal(line.get_ydata(), table[:, first + number])


def test_tables_of_one_s_own():
    layer = posenc.LearnedPositionalEncoding(7, 5)
    figure = plots.visualize_positional_encoding(layer, title="ours")
    weight = layer.positional_embeddings.weight.detach().double().numpy()
    assert np.array_equal(panel(figure, "Position ×").images[0].get_array(), weight)
    assert "ours, 7 positions × 5 dimensions" in figure.get_suptitle()
    figure = plots.compare_positional_encodings(9, 5, learned=layer, quiet=True)
    first, second = (axes.images[0].get_array() for axes in figure.axes if axes.images)
    assert np.array_equal(first, posenc.get_positional_encoding(9, 5).double().numpy())
    assert np.array_equal(second, weight)


def test_comparison_prints_shapes_and_the_table_of_trade_offs(capsys):
    posenc.compare_positional_encodings()
    printed = capsys.readouterr().out
    assert "sinusoidal (100, 128), learned (100, 128)" in printed and "12,800" in printed
    for aspect in ("parameters", "extrapolation", "flexibility", "cost", "expressiveness"):
        assert aspect in printed


def test_the_rope_picture_reads_the_layer():
    scaling = {"rope_type": "linear", "factor": 2.0}
    for options in (
        {},
        {"interleaved": False, "seq_dim": 2},
        {"interleaved": False, "interleaved_out": True},
        {"axes": [0, 1, 2, 0, 1, 2, 0, 0]},
    ):
        rope = posenc.RotaryPositionalEmbedding(
            32, scaling=scaling, rotary_dim=16, rotary_start=4, **options
        )
        figure = plots.visualize_rope(rope, seq_len=20)
        waves = panel(figure, "Sine").lines
        angles = panel(figure, "angle").lines
        assert len(waves) == len(angles) == 4
        for line, angle, pair in zip(waves, angles, (0, 1, 2, 4), strict=True):
            positions = np.asarray(line.get_xdata())
            turned = positions * rope.inv_freq[pair]
            np.testing.assert_allclose(line.get_ydata(), np.sin(turned), atol=1e-9)
            shown = np.asarray(angle.get_ydata())
            seen = ~np.isnan(shown)
            assert seen.sum() > len(shown) - 5
            np.testing.assert_allclose(np.cos(shown[seen]), np.cos(turned[seen]), atol=1e-9)
            assert np.nanmin(shown) >= 0 and np.nanmax(shown) <= 2 * np.pi
        relative = panel(figure, "Similarity").lines[0]
        assert list(relative.get_xdata()) == list(range(-10, 11))
        scores = analysis.expected_scores(rope, [0, 10])[0][0]
        np.testing.assert_allclose(relative.get_ydata()[[10, 20]], scores / scores[0])


def test_wavelengths_and_decay_read_the_layers(figures):
    curves = panel(figures["wavelengths"], "Wavelength").lines
    lines = {line.get_label().split("\n")[0]: line for line in curves}
    examples = analysis.example_scalings(16)
    assert set(examples) - {"deepseek_yarn"} <= set(lines)
    for name in ("linear", "yarn", "dynamic"):
        rope = posenc.RotaryPositionalEmbedding(16, scaling=examples[name])
        want = 2 * np.pi / np.array(rope.inv_freq_at(32768))
        np.testing.assert_allclose(lines[name].get_ydata(), want)
    rope = posenc.RotaryPositionalEmbedding(8)
    alibi = posenc.ALiBiAttention(16, 2)
    figure = plots.score_decay({"a": rope, "b": alibi}, reach=30)
    (axes,) = figure.axes
    labels = [line.get_label() for line in axes.lines]
    assert labels[0] == "a" and "b, head 0 (slope 0.0625)" in labels[1]
    x = axes.lines[0].get_xdata()
    assert list(x) == list(range(31))
    scores = analysis.expected_scores(rope, list(x))[0][0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), scores - scores[0])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), -0.0625 * np.array(x))


def test_temperature_is_the_layer_s():
    layer = posenc.QueryTemperature(0.3, 10.0, seq_dim=2)
    figure = plots.query_temperature({"q": layer}, reach=40)
    line = figure.axes[0].lines[0]
    positions = torch.as_tensor(np.asarray(line.get_xdata()))
    want = 1 + 0.3 * torch.log1p(torch.floor((positions + 1) / 10.0).double())
    np.testing.assert_allclose(line.get_ydata(), want, atol=1e-7)
    assert positions.min() == 0 and positions.max() == 39


def test_alibi_shows_the_operator_s_bias_and_the_layer_s_slopes():
    layer = posenc.ALiBiAttention(24, 12)
    figure = posenc.visualize_alibi(layer, heads=[1, 9], seq_len=6)
    heights = [bar.get_height() for bar in panel(figure, "Slopes").patches]
    assert heights == layer.slopes
    bias = posenc.alibi_bias(layer.slopes, 6, 6)
    for head in (1, 9):
        image = panel(figure, f"head {head},").images[0]
        assert np.array_equal(image.get_array(), bias[head].numpy())
    usual = posenc.visualize_alibi()
    shown = [axes.get_title() for axes in usual.axes if axes.images]
    assert [title.split(",")[0][-1] for title in shown] == ["0", "3", "7"]
    assert all(axes.images[0].get_array().shape == (20, 20) for axes in usual.axes if axes.images)
    causal = posenc.visualize_alibi(is_causal=True, heads=[0], seq_len=4)
    values = panel(causal, "head 0").images[0].get_array()
    assert np.isnan(np.ma.filled(values, np.nan)[0, 1:]).all()


def test_attention_patterns_are_the_layers_own_weights():
    rope, alibi = posenc.RoPEAttention(16, 2), posenc.ALiBiAttention(16, 2)
    x = torch.randn(1, 7, 16)
    figure = posenc.compare_attention_patterns(layers={"r": rope, "a": alibi}, x=x, heads=[1])
    for name, layer in (("r", rope), ("a", alibi)):
        image = panel(figure, f"{name}, head 1").images[0]
        want = analysis.attention_weights(layer, x)[0, 1]
        assert np.array_equal(image.get_array(), want.numpy())
    state = torch.random.get_rng_state()
    usual = posenc.compare_attention_patterns()
    assert torch.equal(torch.random.get_rng_state(), state)
    shapes = [axes.images[0].get_array().shape for axes in usual.axes if axes.images]
    assert shapes == [(30, 30)] * 6


def test_blocks_are_what_the_operator_computed(figures):
    slopes = posenc.alibi_slopes(8)
    for head in (0, 3, 7):
        values = np.ma.filled(panel(figures["blocks"], f"Head {head},").images[0].get_array(), -1)
        want = analysis.block_map(slopes[head], 256).numpy()
        assert np.array_equal(np.nan_to_num(values, nan=-1), want)
    heights = [bar.get_height() for bar in panel(figures["blocks"], "computed, by head").patches]
    shares = analysis.block_shares(slopes, 256)
    assert heights == pytest.approx([100 * forward for forward, _ in shares])


def test_the_grid_is_drawn_as_computed():
    layer = posenc.AxialRotaryEmbedding(16, "pairs_hw")
    figure = plots.grid_decay({"x": layer}, reach=2)
    scores, plain = analysis.expected_scores_on_grid(layer, 2)
    assert np.array_equal(panel(figure, "x").images[0].get_array(), (scores[0] - plain).numpy())


def shown_ticks(axis):
    axis.figure.draw_without_rendering()
    low, high = axis.get_view_interval()
    return [tick for tick in axis.get_majorticklocs() if low <= tick <= high]


@pytest.mark.parametrize("times", [(2.1, 7.7), (3.1, 3.4), (0.004, 90.0), (1.0, 1.0)])
def test_times_within_one_decade_can_be_read(times):
    from posenc.benchmark import EncodingTimes

    settings = {"d_model": 8, "batch_size": 1, "n_heads": 2, "dtype": "float32", "device": "cpu"}
    rows = {"RoPE": {128: times[0], 512: times[1]}}
    figure = EncodingTimes(rows, {}, settings, {"threads": 1}).plot()
    assert len(shown_ticks(figure.axes[0].yaxis)) >= 2
    texts = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert all(len(text) <= 6 for text in texts), texts


@pytest.mark.parametrize("n_heads", [1, 8, 20, 24, 31, 112])
def test_numbers_of_heads_do_not_run_into_each_other(n_heads):
    figure = posenc.visualize_alibi(n_heads=n_heads, heads=[0], seq_len=2)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    labels = panel(figure, "Slopes").get_xticklabels()
    boxes = [label.get_window_extent(renderer) for label in labels if label.get_text()]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_wavelengths_of_a_rope_of_which_no_pair_turns():
    (curve, *_) = panel(
        plots.rope_wavelengths(
            {
                "still": posenc.RotaryPositionalEmbedding(
                    4, scaling={"rope_type": "proportional", "partial_rotary_factor": 0.25}
                )
            }
        ),
        "Wavelength",
    ).lines
    assert np.isnan(curve.get_ydata()).all()


def test_only_the_pairs_that_are_shown_are_rotated(monkeypatch):
    largest, forward = [], posenc.RotaryPositionalEmbedding.forward

    def counted(self, x, *args):
        largest.append(x.numel())
        return forward(self, x, *args)

    monkeypatch.setattr(posenc.RotaryPositionalEmbedding, "forward", counted)
    posenc.plots.visualize_rope(seq_len=50)
    posenc.plots.visualize_rope(seq_len=9000)
    assert largest[0] == 4 * (12 * 49 + 1) * 64 and max(largest) < 4 * 50_010 * 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_attention_layers_of_any_dtype_get_an_input_of_theirs(dtype):
    layers = {
        "a": posenc.ALiBiAttention(16, 2).to(dtype),
        "r": posenc.RoPEAttention(16, 2),
    }
    for x in (None, torch.randn(1, 5, 16)):
        figure = posenc.compare_attention_patterns(5, layers=layers, x=x, heads=[0])
        rows = [axes.images[0].get_array().sum(-1) for axes in figure.axes if axes.images]
        np.testing.assert_allclose(rows[:2], 1.0, atol=0.02)


def test_xpos_is_drawn_as_far_as_it_goes():
    (axes,) = plots.score_decay(reach=300_000).axes
    ends = {line.get_label(): line.get_xdata()[-1] for line in axes.lines}
    assert 200_000 < ends["xPos"] < 283_287 and ends["RoPE, θ = 10⁴"] == 300_000


def test_few_positions_have_whole_numbers():
    (axes,) = plots.query_temperature(reach=3).axes
    assert all(tick == round(tick) for tick in shown_ticks(axes.xaxis))


@pytest.mark.parametrize("name", ["rope", "temperature"])
def test_a_default_device_of_the_caller_s_changes_nothing(name):
    """A stand-in for a GPU, whose tensors matplotlib cannot read either."""
    torch.set_default_device("meta")
    try:
        assert isinstance(draw(name), Figure)
    finally:
        torch.set_default_device(None)


def test_torch_s_generator_stays_as_it_was(capsys):
    state = torch.get_rng_state()
    for name in ("encodings", "attention", "grid", "blocks", "benchmark"):
        draw(name, **({"quiet": False} if name == "encodings" else {}))
        assert torch.equal(torch.get_rng_state(), state), name


def test_a_loss_that_is_no_number_leaves_a_gap():
    results = {**RESULTS, "models": {"rope": {"losses": {"16": 2.0, "32": None}}}}
    (line,) = [a for a in plots.loss_by_length(results).axes[0].lines if a.get_label() == "RoPE"]
    assert line.get_ydata()[0] == 2.0 and np.isnan(line.get_ydata()[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 100_000, "too deeply nested"),
        ("{", "expected JSON"),
        (b"\xff\x00", "expected JSON"),
        ({**RESULTS, "models": {"foo": {"losses": {"16": 2}}}}, "alibi, none, got foo"),
        ({**RESULTS, "models": {"rope": {"losses": [1]}}}, "expected the results of"),
        ({**RESULTS, "models": {"rope": {"losses": {"16": "x"}}}}, "expected the results of"),
        ({**RESULTS, "settings": {"train_length": 0, "eval_lengths": []}}, "lengths >= 1, got 0"),
        ([], "expected the results of"),
    ],
    ids=["deep", "cut", "binary", "unknown", "list", "text", "zero", "empty"],
)
def test_results_that_are_none(content, words, tmp_path):
    path = tmp_path / "r.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=words):
        plots.loss_by_length(path)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: plots.visualize_alibi(heads=torch.tensor([9, 1])),
            ValueError,
            ["0 to 7", "[9, 1]"],
        ),
        (lambda: plots.score_decay({}), ValueError, ["at least one"]),
        (
            lambda: plots.score_decay([posenc.RotaryPositionalEmbedding(8)]),
            TypeError,
            ["name -> layer", "list"],
        ),
        (
            lambda: plots.rope_wavelengths(posenc.RotaryPositionalEmbedding(8)),
            TypeError,
            ["name -> layer", "RotaryPositionalEmbedding"],
        ),
        (lambda: plots.rope_wavelengths(factor=1e300), ValueError, ["factor", "1e+300"]),
        (lambda: plots.query_temperature(reach=10**24), ValueError, ["reach", "10"]),
        (lambda: plots.compare_attention_patterns(0), ValueError, ["seq_len", "0"]),
        (
            lambda: plots.compare_attention_patterns(x=torch.full((1, 3, 64), torch.nan)),
            ValueError,
            ["finite", "NaN"],
        ),
        (lambda: plots.compare_attention_patterns(x=torch.ones(3, 64)), ValueError, ["[3, 64]"]),
        (lambda: plots.compare_attention_patterns(x=[1]), TypeError, ["tensor", "list"]),
        (
            lambda: plots.compare_attention_patterns(
                layers={"a": posenc.cpp.ALiBiAttention(64, 4)}
            ),
            TypeError,
            ["posenc.cpp.ALiBiAttention"],
        ),
        (lambda: plots.visualize_alibi(heads=[8]), ValueError, ["0 to 7", "8"]),
        (lambda: plots.visualize_alibi(seq_len=0), ValueError, ["seq_len", "0"]),
        (lambda: plots.visualize_alibi("text"), TypeError, ["slopes", "str"]),
        (lambda: plots.visualize_rope(posenc.ALiBiAttention(8, 2)), TypeError, ["Rotary"]),
        (lambda: plots.visualize_rope(seq_len=1), ValueError, ["seq_len", "1"]),
        (lambda: plots.rope_wavelengths({}), ValueError, ["at least one"]),
        (lambda: plots.grid_decay({}), ValueError, ["at least one"]),
        (lambda: plots.query_temperature({}), ValueError, ["at least one"]),
        (lambda: plots.query_temperature(reach=1), ValueError, ["reach", "1"]),
        (lambda: plots.compare_attention_patterns(layers={}), ValueError, ["at least one"]),
        (lambda: plots.score_decay(reach=1), ValueError, ["reach", "1"]),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
