"""The command where something goes wrong: one line, the right code, nothing lost."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from posenc._command import run_command
from posenc._output import check_writable
from posenc.cli import main

pytest.importorskip("matplotlib")

HUGE = str(10**23)


SMALL_BENCH = [
    "bench", "--d-model", "8", "--batch-size", "1", "--heads", "2", "--lengths", "4",
    "--seconds", "1e-4", "--no-peers",
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["analyze", "sinusoidal", "--length", HUGE], 2, ["--length", "at most"]),
        (["analyze", "sinusoidal", "--d-model", HUGE], 2, ["--d-model", "at most"]),
        (["analyze", "alibi", "--heads", HUGE], 2, ["--heads", "at most"]),
        (["analyze", "alibi", "--head-dim", HUGE], 2, ["--head-dim", "at most"]),
        (["plot", "temperature", "--reach", HUGE], 2, ["--reach", "at most"]),
        (["plot", "attention", "--seed", HUGE], 2, ["--seed", "at most"]),
        (["bench", "--threads", "100000"], 2, ["--threads", "at most 1024"]),
        (["train", "--batch-size", HUGE], 2, ["--batch-size", "at most"]),
        # Within the bounds, and yet more than any memory.
        (["analyze", "sinusoidal", "--length", "2000000000", "--d-model", "2000"], 1,
         ["not enough memory"]),
        (["compare", "attention", "--length", "1000000"], 1, ["not enough memory"]),
        ([*SMALL_BENCH, "--batch-size", "2000000000", "--lengths", "2000000"], 1,
         ["not enough memory"]),
        (["compare", "scalings", "--factor", "1e305"], 1, ["factor", "1e+305"]),
        (["compare", "scalings", "--base", "1"], 1, ["finite frequencies", "yarn"]),
        (["plot", "attention", "--seq-len", "0"], 1, ["seq_len", "0"]),
        (["analyze", "rope", "--config", "deep.json"], 1, ["deep.json", "deeply nested"]),
        (["analyze", "rope", "--scaling", "deep.json"], 1, ["deep.json", "deeply nested"]),
        (["analyze", "rope", "--config", "binary.json"], 1, ["binary.json", "JSON"]),
        (["plot", "loss", "--results", "deep.json"], 1, ["deep.json", "deeply nested"]),
        (["plot", "rope", "--trained-length", "9"], 1, ["--trained-length", "--scaling", "none"]),
        (["plot", "decay", "--trained-length", "9", "--scaling", "{}"], 1, ["--trained-length"]),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else None,
)  # fmt: skip
def test_errors_are_one_line_with_a_code(words, code, said, run, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    got, out, err = run(*words)
    last = err.strip().splitlines()[-1]
    assert got == code and out == "" and "Traceback" not in err, err
    assert ": error: " in last and all(word in last for word in said), last


def test_a_fault_of_our_own_is_one_line_and_can_be_traced(run, monkeypatch):
    def broken():
        raise AttributeError("no such thing\nand much more")

    monkeypatch.setattr("posenc.analysis.library.catalogue", broken)
    code, out, err = run("list")
    assert (code, out, err) == (1, "", "posenc list: error: AttributeError: no such thing\n")
    monkeypatch.setenv("POSENC_TRACEBACK", "1")
    code, _, err = run("list")
    assert code == 1 and "Traceback" in err and "in broken" in err
    monkeypatch.delenv("POSENC_TRACEBACK")
    code, out, _ = run("--help")
    assert code == 0 and "POSENC_TRACEBACK=1" in out


def test_what_would_steer_a_terminal_is_not_printed(capsys):
    def work():
        raise ValueError("\x1b[1mbold\x1b[0m \x07bell")

    assert run_command(lambda: "name", work) == 1
    assert capsys.readouterr().err == "name: error: bold ?bell\n"


# ----------------------------------------------------------------------------------------- output
def onto(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


WORDS = [["list", "operators", "--json"], ["list"], ["analyze"], ["--help"], ["plot", "--help"]]


def code_of(words):
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_full_disk_is_told_once(words, monkeypatch, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with monkeypatch.context() as patch, onto(patch, open("/dev/full", "w")):
        code = code_of(words)  # what is left in the buffer must not fail when the file is closed
    err = capsys.readouterr().err
    assert code == 1 and "No space left" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_reader_that_is_gone_is_no_error(words, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch, onto(patch, open(writer, "w")):
        code = code_of(words)
    assert code == 0 and capsys.readouterr().err == ""


def test_buffered_output_of_a_process(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    env.pop("PYTHONUNBUFFERED", None)  # which hides what Python's end would say
    posenc = f"{sys.executable} -m posenc"
    command = f"{posenc} list operators --json | head -1; echo ${{PIPESTATUS[0]}}; "
    command += f"{posenc}.benchmark --list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], check=False, capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["{", "0", "0"] and done.stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_terminal_lacks(encoding, monkeypatch):
    raw = io.BytesIO()
    stream = onto(monkeypatch, io.TextIOWrapper(raw, encoding))
    assert main(SMALL_BENCH) == 0
    assert stream.errors == "strict", "the caller's stream was changed"
    text = raw.getvalue().decode(encoding)
    assert ("? clone" if encoding == "ascii" else "× clone") in text


def test_closed_streams(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", None)
    assert main([*SMALL_BENCH, "-o", "a.png"]) == 0 and Path("a.png").exists()
    assert main(["plot", "loss"]) == 1
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list"]) == 0


# ------------------------------------------------------------------------------------------ files
@pytest.mark.parametrize(
    "words",
    [
        SMALL_BENCH,
        ["compare", "encodings"],
        ["compare", "attention"],
        ["compare", "scalings"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
@pytest.mark.parametrize("path", ["a.bmp", "absent/a.png"])
def test_a_picture_that_cannot_be_written_is_told_first(words, path, run):
    code, out, err = run(*words, "-o", path)
    assert code == 1 and out == "" and path in err and len(err.splitlines()) == 1


def test_figures_are_shown_even_where_their_picture_fails(run, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device", "a.png")

    monkeypatch.setattr("posenc.benchmark.encodings.EncodingTimes.plot", full)
    code, out, err = run(*SMALL_BENCH, "-o", "a.png")
    assert code == 1 and "clone" in out and "Written" not in out and "No space" in err


def test_what_is_there_stays_when_it_is_looked_at(tmp_path):
    path = tmp_path / "file.png"
    check_writable(path)
    assert not path.exists()
    path.write_text("kept")
    check_writable(path)
    assert path.read_text() == "kept"
    os.mkfifo(tmp_path / "pipe.png")
    check_writable(tmp_path / "pipe.png")  # without waiting for a reader


# ------------------------------------------------------------------------------------------- json
@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "--json", "rope"],
        ["analyze", "--json", "sinusoidal"],
        ["analyze", "--json", "xpos"],
        ["compare", "--json", "scalings"],
        ["compare", "--json", "attention"],
        ["compare", "--json", "encodings"],
        ["analyze", "rope", "--base", "1e-308", "--json"],
        ["analyze", "rope", "--head-dim", "2", "--scaling", "proportional", "--json"],
    ],
    ids=" ".join,
)
def test_json_is_json_wherever_it_is_asked_for(words, run):
    def refuse(constant):
        raise AssertionError(f"no JSON: {constant}")

    code, out, err = run(*words)
    assert code == 0, err
    assert json.loads(out, parse_constant=refuse)


# ----------------------------------------------------------------------------------------- config
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "words", "length"),
    [
        ({}, [], 4096),
        ({"max_position_embeddings": 32768}, [], 32768),
        ({"max_position_embeddings": 32768}, ["--trained-length", "512"], 512),
        ({"max_position_embeddings": 32768}, ["--scaling", "yarn", "--factor", "4"], 32768),
        ({"max_position_embeddings": 131072, "rope_scaling": LLAMA3}, [], 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": LLAMA3}, ["--scaling", "yarn"], 8192),
    ],
)
def test_the_trained_length_is_the_configuration_s(extra, words, length, run, monkeypatch):
    Path("config.json").write_text(json.dumps({**CONFIG, **extra}))
    code, out, err = run("analyze", "rope", "--config", "config.json", *words, "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["trained_length"] == length
    if "--scaling" in words:  # the scaling itself is built from that length
        import posenc
        from posenc.analysis import example_scalings

        factor = float(words[3]) if "--factor" in words else 8.0
        scaling = example_scalings(16, factor, length)["yarn"]
        rope = posenc.RotaryPositionalEmbedding(16, base=5e5, scaling=scaling)
        assert figures["inv_freq"] == pytest.approx(rope.inv_freq, rel=1e-12)
    seen = {}
    picture = "posenc.plots.rotary.analyze_rope"
    original = sys.modules["posenc.plots.rotary"].analyze_rope

    def record(rope, trained_length, *args, **options):
        seen["trained"] = trained_length
        return original(rope, trained_length, *args, **options)

    monkeypatch.setattr(picture, record)
    code, _, err = run("plot", "wavelengths", "--config", "config.json", *words)
    assert code == 0 and seen["trained"] == length, err


def test_a_nested_configuration_names_its_length_too(run):
    nested = {"model_type": "llava", "text_config": {**CONFIG, "max_position_embeddings": 2048}}
    Path("config.json").write_text(json.dumps(nested))
    code, out, err = run("analyze", "rope", "--config", "config.json", "--json")
    assert code == 0 and json.loads(out)["trained_length"] == 2048, err


def test_help_says_what_is_so(run):
    _, out, _ = run("plot", "benchmark", "--help")
    assert "switches off: also time eager" in " ".join(out.split())
    _, out, _ = run("plot", "wavelengths", "--help")
    assert "(default: 128)" in out and "(default: 64)" not in out
    _, out, _ = run("plot", "decay", "--help")
    assert "(default: 64)" in out
    code, out, _ = run("compare", "encodings", "--d-model", "3")
    assert code == 0 and "300" in out


def test_the_generator_of_the_caller_goes_on(run):
    state = torch.get_rng_state()
    for words in (["compare"], ["compare", "attention"], SMALL_BENCH):
        assert run(*words)[0] == 0
        assert torch.equal(torch.get_rng_state(), state), words
