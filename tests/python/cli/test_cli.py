"""The command: every subcommand, its JSON, its errors and its exit codes."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import posenc
import pytest
import torch
from posenc import analysis, plots
from posenc.cli import build_parser

pytest.importorskip("matplotlib")


@pytest.fixture
def run_json(run):
    def call(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


def process(*arguments, cwd):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-m", "posenc", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=120,
    )


def test_as_a_process(tmp_path):
    done = process("analyze", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    for figure in ("0.970", "0.737", "0.669", "0.608", "0.546"):
        assert figure in done.stdout


def commands(parser, prefix=()):
    yield prefix
    for action in parser._actions:
        if hasattr(action, "_name_parser_map"):
            for name, inner in action._name_parser_map.items():
                yield from commands(inner, (*prefix, name))


@pytest.mark.parametrize("words", list(commands(build_parser())), ids=" ".join)
def test_every_help_has_examples(words, run):
    code, out, _ = run(*words, "--help")
    assert code == 0 and "examples:" in out and "posenc" in out


def examples():
    for words in commands(build_parser()):
        if len(words) == 1:
            (name,) = words
            (inner,) = (
                action._name_parser_map[name]
                for action in build_parser()._actions
                if hasattr(action, "_name_parser_map")
            )
            for line in inner.epilog.splitlines():
                if line.startswith("  posenc "):
                    yield line.strip().split("   ")[0].split()[1:]


@pytest.mark.parametrize("words", list(examples()), ids=" ".join)
def test_the_examples_of_the_help_can_be_parsed(words):
    assert build_parser().parse_args(words).run


def test_version_and_nothing_at_all(run):
    code, out, _ = run("--version")
    assert code == 0 and posenc.__version__ in out
    code, _, err = run()
    assert code == 2 and "COMMAND" in err


# ------------------------------------------------------------------------------------------- list
def test_list_encodings(run, run_json):
    rows = {row["layer"]: row for row in run_json("list")}
    assert set(rows) >= {
        name for name in posenc.__all__ if name.endswith(("Encoding", "Attention"))
    }
    assert rows["RotaryPositionalEmbedding"]["options"]["base"] == "10000.0"
    assert rows["ALiBiAttention"]["options"]["n_heads"] == "required"
    assert all(row["runs_on"]["cpu"] == "fused" for row in rows.values())
    code, out, _ = run("list", "encodings")
    assert code == 0 and all(name in out for name in rows)


def test_what_an_encoding_runs_on_is_told_by_the_kernels_that_it_calls():
    from posenc.analysis.library import catalogue, kernels_of
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "posenc":
                seen.add(str(function).removeprefix("posenc.").removesuffix(".default"))
            return function(*args, **(kwargs or {}))

    x, grid = torch.randn(1, 4, 2, 16), torch.zeros(2, 4, dtype=torch.long)
    arguments = {
        "SinusoidalPositionalEncoding": ((16,), (x[0],)),
        "TransformerEmbedding": ((9, 16), (grid,)),
        "LearnedPositionalEncoding": ((9, 16), (x[0],)),
        "MixedRotaryEmbedding": ((16, 2), (x, grid)),
        "AxialRotaryEmbedding": ((16,), (x, grid)),
        "QueryTemperature": ((), (x,)),
        "RoPEAttention": ((16, 2), (x[:, :, 0],)),
        "ALiBiAttention": ((16, 2), (x[:, :, 0],)),
    }
    for row in catalogue():
        build, call = arguments.get(row.layer, ((16,), (x,)))
        layer, seen = getattr(posenc, row.layer)(*build), set()
        with Seen():
            layer(*call)
            if row.layer == "RotaryPositionalEmbedding":
                layer.rotate(x, x)
                layer.rotate_packed(torch.randn(1, 4, 3, 2, 16))
        assert seen == set(kernels_of(row.layer)), row.layer
        for name in row.operators:
            assert hasattr(torch.ops.posenc, name.split(".")[0]), name


def test_list_scalings_pictures_and_operators(run, run_json):
    assert set(run_json("list", "scalings")) == set(analysis.example_scalings())
    assert set(run_json("list", "pictures")) == set(plots.PICTURES)
    operators = run_json("list", "operators")
    assert "rotary_embedding.Tensor" in operators and "alibi_attention" in operators
    assert not any(name.startswith("_") for name in operators)
    for what in ("scalings", "pictures", "operators"):
        code, out, _ = run("list", what)
        assert code == 0 and len(out.splitlines()) >= 9
    code, _, err = run("list", "nonsense")
    assert code == 2 and "nonsense" in err and "pictures" in err


# ---------------------------------------------------------------------------------------- analyze
def test_analyze_tables(run_json, tmp_path):
    figures = run_json("analyze", "sinusoidal", "--length", 30, "--d-model", 64)
    assert figures["encoding"] == "sinusoidal" and figures["shape"] == [30, 64]
    assert list(figures["similarity"]) == ["1", "5", "10", "20"]
    assert run_json("analyze")["shape"] == [100, 128]
    torch.save({"wpe.weight": torch.randn(9, 4), "x": torch.ones(2)}, tmp_path / "m.pt")
    figures = run_json("analyze", "learned", "--checkpoint", "m.pt", "--distances", 2, 8, 9)
    assert figures["shape"] == [9, 4] and list(figures["similarity"]) == ["2", "8"]


def test_analyze_rope(run, run_json, tmp_path):
    figures = run_json("analyze", "rope", "--head-dim", 16, "--base", 500, "--rotary-dim", 8)
    assert figures["inv_freq"] == posenc.functional.rope_inv_freq(8, 500.0)
    figures = run_json(
        "analyze", "rope", "--scaling", "yarn", "--factor", 4, "--trained-length", 64
    )
    scaling = analysis.example_scalings(64, 4.0, 64)["yarn"]
    assert figures["inv_freq"] == posenc.RotaryPositionalEmbedding(64, scaling=scaling).inv_freq
    assert figures["trained_length"] == 64
    given = json.dumps({"rope_type": "linear", "factor": 2.0})
    (tmp_path / "scaling.json").write_text(given)
    for words in (given, "scaling.json"):
        assert run_json("analyze", "rope", "--scaling", words)["stretch"][0] == 2.0
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in ("config.json", "."):
        figures = run_json("analyze", "rope", "--config", path)
        assert (figures["rotary_dim"], figures["base"]) == (16, 5e5)
    figures = run_json("analyze", "rope", "--config", ".", "--scaling", "linear", "--factor", 3)
    assert figures["stretch"][0] == pytest.approx(3.0)
    dynamic = ["rope", "--scaling", "dynamic", "--trained-length", 64, "--length", 256]
    assert run_json("analyze", *dynamic)["stretch"][-1] == pytest.approx(4.0)
    code, out, _ = run("analyze", "rope")
    assert code == 0 and "wavelengths" in out


def test_analyze_xpos_and_alibi(run, run_json):
    figures = run_json("analyze", "xpos", "--head-dim", 16, "--trained-length", 1000)
    assert figures["rotary_dim"] == 16 and figures["scores"]["999"] < 0
    figures = run_json("analyze", "alibi", "--heads", 6, "--length", 256, "--head-dim", 16)
    assert figures["slopes"] == posenc.alibi_slopes(6)
    code, out, _ = run("analyze", "alibi", "--heads", 2, "--length", 128)
    assert code == 0 and "slope" in out


# ------------------------------------------------------------------------------------------- plot
def test_plot_writes_what_it_says(run, run_json, tmp_path):
    code, out, _ = run("plot", "alibi", "--n-heads", 6, "--heads", 0, 5, "-o", "a.svg")
    assert code == 0 and out == "Written: a.svg\n" and (tmp_path / "a.svg").stat().st_size > 1000
    assert run_json("plot", "rope", "--scaling", "linear") == {"files": {"rope": "rope.png"}}
    assert (tmp_path / "rope.png").read_bytes().startswith(b"\x89PNG")


def test_plot_hands_its_options_over(run, monkeypatch, tmp_path):
    seen = {}

    def record(name):
        picture = plots.PICTURES[name]

        def function(*args, **options):
            seen.clear()
            seen.update(options)

        function.__wrapped__ = picture.function  # signature and docstring stay
        function.__doc__ = picture.function.__doc__
        monkeypatch.setitem(plots.PICTURES, name, dataclasses.replace(picture, function=function))

    for name in plots.PICTURES:
        record(name)
    torch.save({"wpe.weight": torch.ones(5, 4)}, tmp_path / "m.pt")
    assert run("plot", "table", "--checkpoint", "m.pt", "--title", "t")[0] == 0
    assert seen["pe"].shape == (5, 4) and seen["title"] == "t" and seen["save"] == "table.png"
    assert run("plot", "encodings", "--checkpoint", "m.pt", "--seq-len", 7)[0] == 0
    assert seen["learned"].shape == (5, 4) and seen["seq_len"] == 7 and seen["quiet"] is True
    assert run("plot", "rope", "--head-dim", 32, "--seq-len", 9)[0] == 0
    assert seen["rope"].d_model == 32 and seen["seq_len"] == 9
    assert run("plot", "wavelengths", "--head-dim", 32, "--factor", 2)[0] == 0
    assert seen == {"head_dim": 32, "factor": 2.0, "save": "wavelengths.png"}
    scaling = json.dumps(analysis.example_scalings(32, 4.0, 512)["yarn"])
    assert run("plot", "wavelengths", "--head-dim", 32, "--scaling", scaling)[0] == 0
    assert (seen["trained_length"], seen["factor"]) == (512, 4.0)
    assert [rope.rope_type for rope in seen["ropes"].values()] == ["default", "yarn"]
    assert run("plot", "decay", "--scaling", "ntk", "--reach", 99)[0] == 0
    assert next(iter(seen["encodings"])) == "without scaling" and seen["reach"] == 99
    assert run("plot", "decay", "--base", 5)[0] == 0
    assert list(seen["encodings"]) == ["RoPE, θ = 5"]
    assert run("plot", "attention", "--is-causal", "--heads", 1)[0] == 0
    assert seen["is_causal"] is True and seen["heads"] == [1]
    assert run("plot", "benchmark", "--no-peers", "--seq-lens", 4, 8, "--seconds", 0.5)[0] == 0
    assert seen["peers"] is False and seen["seq_lens"] == [4, 8] and seen["seconds"] == 0.5
    assert run("plot", "loss", "--results", "r.json")[0] == 0
    assert seen["results"] == "r.json"
    assert run("plot", "all", "-o", "here", "--format", "pdf")[0] == 0
    last = [n for n, p in plots.PICTURES.items() if not (p.measures or p.reads)][-1]
    assert seen == {"save": Path("here", f"{last}.pdf")}


# ---------------------------------------------------------------------------------------- compare
def test_compare(run, run_json, tmp_path):
    rows = run_json("compare")
    assert [row["encoding"] for row in rows] == ["sinusoidal", "learned", "rope", "alibi"]
    assert rows[1]["parameters"] == 12800
    code, out, _ = run("compare", "encodings", "--length", 5, "--d-model", 4, "-o", "c.png")
    assert code == 0 and "extrapolation" in out and (tmp_path / "c.png").exists()
    rows = run_json("compare", "attention", "--length", 20, "--heads", 2)
    assert [(row["encoding"], row["head"]) for row in rows] == [
        ("RoPE", 0), ("RoPE", 1), ("ALiBi", 0), ("ALiBi", 1),
    ]  # fmt: skip
    layers, x = analysis.weights.random_pair(20, 64, 2)
    weights = analysis.attention_weights(layers["ALiBi"], x)[0, 1]
    assert rows[3]["largest_weight"] == pytest.approx(weights.max().item())
    code, out, _ = run("compare", "attention", "--causal", "-o", "w.png")
    assert code == 0 and "entropy" in out and (tmp_path / "w.png").exists()
    found = run_json("compare", "scalings", "--head-dim", 16, "--trained-length", 64, "--factor", 2)
    assert set(found) == set(analysis.example_scalings())
    assert found["linear"]["stretch"] == pytest.approx([2.0] * 8)
    code, out, _ = run("compare", "scalings", "--head-dim", 16, "-o", "s.png")
    assert code == 0 and "proportional" in out and (tmp_path / "s.png").exists()


# ------------------------------------------------------------------------------------------ bench
SMALL_BENCH = [
    "--d-model",
    8,
    "--batch-size",
    1,
    "--heads",
    2,
    "--lengths",
    4,
    8,
    "--seconds",
    1e-4,
]


def test_bench(run, run_json, tmp_path):
    result = run_json("bench", *SMALL_BENCH, "-o", "times.png")
    assert (tmp_path / "times.png").exists()
    ours = ("sinusoidal", "learned", "RoPE", "clone (the limit)")
    assert list(result["milliseconds"])[:4] == list(ours)
    peers = {*result["milliseconds"], *result["missing"]} - set(ours)
    assert {"RoPE, rotary-embedding-torch", "RoPE, x-transformers"} <= peers
    assert all(set(row) == {"4", "8"} for row in result["milliseconds"].values())
    assert all(ms > 0 for row in result["milliseconds"].values() for ms in row.values())
    assert result["settings"]["n_heads"] == 2 and result["machine"]["torch"] == torch.__version__
    code, out, _ = run("bench", *SMALL_BENCH, "--no-peers", "--dtype", "bfloat16", "--threads", 1)
    assert code == 0 and "L = 8" in out and "× clone" in out
    assert len(out.splitlines()) == 2 + 4


# ------------------------------------------------------------------------------------------ train
SMALL_TRAINING = [
    "--steps", 2, "--batch-size", 2, "--d-model", 16, "--layers", 1, "--heads", 2,
    "--train-length", 16, "--eval-lengths", 16, 32, "--eval-bytes", 64, "--threads", 1,
]  # fmt: skip


def test_train_and_its_chart(run, run_json, tmp_path):
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 50)
    words = [*SMALL_TRAINING, "--text", "text.txt", "--encodings", "alibi", "none"]
    results = run_json("train", *words, "--output", "out")
    assert list(results["models"]) == ["alibi", "none"]
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written == results
    code, out, _ = run("plot", "loss", "--results", "out/results.json", "-o", "loss.png")
    assert code == 0 and out == "Written: loss.png\n"
    figure = plots.loss_by_length(results)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert lines["ALiBi"] == list(results["models"]["alibi"]["losses"].values())
    with pytest.raises(ValueError, match="expected the results"):
        plots.loss_by_length({"models": {}})


# ----------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nonsense"], 2, ["nonsense", "analyze"]),
        (["analyze", "nonsense"], 2, ["nonsense", "rope"]),
        (["plot", "nonsense"], 2, ["nonsense", "alibi"]),
        (["analyze", "learned"], 2, ["--checkpoint"]),
        (["analyze", "learned", "--checkpoint", "absent.pt"], 1, ["absent.pt"]),
        (["analyze", "sinusoidal", "--length", "0"], 2, ["--length", "at least 1", "0"]),
        (["analyze", "sinusoidal", "--length", "x"], 2, ["--length", "whole number", "x"]),
        (["analyze", "rope", "--base", "-1"], 2, ["--base", "above 0"]),
        (["analyze", "rope", "--head-dim", "7"], 1, ["even", "7"]),
        (["analyze", "rope", "--scaling", "nope"], 1, ["--scaling", "yarn", "nope"]),
        (["analyze", "rope", "--scaling", "{"], 1, ["--scaling", "JSON"]),
        (["analyze", "rope", "--scaling", '{"rope_type": "nope"}'], 1, ["rope_type", "nope"]),
        (["analyze", "rope", "--factor", "2"], 1, ["--factor", "--scaling"]),
        (["analyze", "rope", "--scaling", "{}", "--factor", "2"], 1, ["--factor", "linear"]),
        (["analyze", "rope", "--config", "absent"], 1, ["--config", "absent"]),
        (["analyze", "rope", "--layer-type", "x"], 1, ["--layer-type", "--config"]),
        (["plot", "table", "-o", "a.doc"], 1, [".png", "a.doc"]),
        (["plot", "table", "-o", "absent/a.png"], 1, ["absent/a.png"]),
        (["plot", "table", "--key", "x"], 1, ["--key", "--checkpoint"]),
        (["plot", "alibi", "--heads", "9"], 1, ["0 to 7", "9"]),
        (["plot", "blocks", "--length", "100"], 1, ["multiple of 64", "100"]),
        (["plot", "loss"], 1, ["results.json", "posenc train"]),
        (["bench", "--heads", "3"], 1, ["d_model", "3"]),
        (["bench", "--device", "meta"], 1, ["--device", "meta"]),
        (["train", "--text", "absent.txt"], 1, ["absent.txt"]),
        (["train", "--heads", "3"], 2, ["--heads", "3"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_are_one_line_with_a_code(words, code, said, run):
    got, out, err = run(*words)
    last = err.strip().splitlines()[-1]
    assert got == code and out == "" and "Traceback" not in err, err
    assert ": error: " in last and all(word in last for word in said), last


def test_a_stopped_command_has_a_code_of_its_own(run, monkeypatch):
    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("posenc.analysis.library.catalogue", stopped)
    code, _, err = run("list")
    assert code == 130 and "stopped" in err


def test_a_reader_that_has_enough(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = f"{sys.executable} -m posenc list operators | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], check=False, capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""
