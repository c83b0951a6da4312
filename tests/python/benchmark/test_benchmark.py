"""The benchmark runs and says what it measured; how fast anything is, no test asks."""

import json
import sys

import pytest
import torch
from posenc.benchmark import (
    Case,
    all_cases,
    benchmark_positional_encodings,
    device_cases,
    markdown,
    run_case,
)
from posenc.benchmark.__main__ import main
from posenc.benchmark.cuda_cases import Sizes
from posenc.benchmark.measure import meter_for, peak_memory, times
from posenc.benchmark.report import lines

TINY = Sizes(
    batch=2,
    length=16,
    heads=2,
    kv_heads=1,
    width=8,
    vocabulary=50,
    scores=(1, 2, 16),
    attention=(16,),
    attention_heads=2,
    attention_width=8,
    trained=(16,),
    cached=32,
    decoded=2,
    compiled=False,
)


@pytest.mark.parametrize("cases", (all_cases, device_cases))
def test_every_case_has_a_name_of_its_own(cases):
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) > 40
    for case in cases():
        assert set(case.targets) <= set(case.others), case.name


def test_one_case_from_the_command_line(tmp_path, capsys):
    json_file, page = tmp_path / "run.json", tmp_path / "run.md"
    words = ["one decoded token (1", "--scale", "0.01"]
    assert main([*words, "--json", str(json_file), "--markdown", str(page)]) == 0
    assert "RoPE of one decoded token" in capsys.readouterr().out
    run = json.loads(json_file.read_text())
    (result,) = run["results"]
    assert run["machine"]["torch"] == torch.__version__
    clone = result["others"]["clone"]
    assert result["ms"] > 0 and abs(clone["ratio"] - result["ms"] / clone["ms"]) < 1e-9
    assert "RoPE of one decoded token" in page.read_text()


def test_a_word_that_no_case_has(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["no such case"])
    assert stop.value.code == 2
    assert "no such case" in capsys.readouterr().err


def test_a_peer_that_is_not_there_is_named():
    def absent():
        raise ImportError("No module named 'absent'")

    case = Case("g", "n", lambda: lambda: None, {"absent": absent, "same": lambda: lambda: None})
    result = run_case(case, scale=0.01)
    assert "absent" in result["missing"]["absent"]
    assert list(result["others"]) == ["same"]
    assert "| n |" in markdown([result], {"cores": 2})


def test_a_ratio_and_its_target():
    case = Case("g", "n", lambda: lambda: None, targets={"slow": 0.5})
    assert case.reached("slow", 0.4) is True
    assert case.reached("slow", 0.6) is False
    assert case.reached("other", 0.6) is None


def test_times_are_taken_by_turns():
    seen = []
    result = times({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 1e-9, rounds=3)
    assert [len(t) for t in result.values()] == [3, 3]
    assert "".join(seen).endswith("ababab")


def test_peak_memory_counts_the_result():
    mib = peak_memory(lambda: torch.ones(16, 1024, 1024))
    if mib is None:
        pytest.skip("this system does not tell")
    assert 60 < mib < 80


@pytest.mark.parametrize("case", device_cases(TINY), ids=lambda case: case.name)
def test_a_case_of_a_gpu_runs_on_the_cpu(case):
    """What is measured there, at a small size: the works run, and only Liger may be missing."""
    result = run_case(case, scale=0.001)
    assert set(result["missing"]) <= {"Liger"}, result["missing"]
    if case.moved:
        assert result["gb_per_s"] == pytest.approx(case.moved / result["ms"] / 1e6)
        assert "GB/s" in lines(result)[0]
        assert "GB/s" in markdown([result], {})


def test_without_a_gpu_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == 1
    out, err = capsys.readouterr()
    assert "--device cuda needs a GPU" in err and torch.__version__ in err and not out
    assert main(["--device", "cuda", "--list"]) == 0
    assert "ALiBi attention" in capsys.readouterr().out
    assert main(["--device", "meta"]) == 1
    assert "cpu or cuda" in capsys.readouterr().err
    assert main(["--device", "no such thing"]) == 1
    assert "no such thing" in capsys.readouterr().err


def test_files_that_cannot_be_written_are_told_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("posenc.benchmark.__main__.run_case", None)
    for option in ("--json", "--markdown"):
        assert main(["decoded token (1", option, str(tmp_path / "absent" / "x")]) == 1
        out, err = capsys.readouterr()
        assert not out and "absent" in err and len(err.splitlines()) == 1
    with pytest.raises(SystemExit) as stop:
        main(["--threads", "-1"])
    assert stop.value.code == 2


def encodings(**options):
    small = {"seq_lens": [4], "seconds": 1e-4, "peers": False, "quiet": True, **options}
    return benchmark_positional_encodings(8, 1, n_heads=2, **small)


def test_torch_s_generator_stays_as_it_was():
    state = torch.get_rng_state()
    encodings()
    for case in (
        device_cases(TINY)[:1] + [c for c in device_cases(TINY) if "ttention" in c.name][:1]
    ):
        run_case(case, scale=0.001)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_encodings_are_measured_with():
    assert encodings(seq_lens=torch.tensor([8, 4, 8]).numpy()).lengths == [4, 8]
    assert encodings(device="cpu:3").machine["torch"] == torch.__version__
    assert encodings(device=torch.device("cpu")).settings["device"] == "cpu"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"save": "x.bmp"}, ValueError, "save: expected a file name"),
        ({"save": "absent/x.png"}, OSError, "absent"),
        ({"seq_lens": []}, ValueError, "seq_lens"),
        ({"seq_lens": 8}, TypeError, "seq_lens to be a list, got 8"),
        ({"seconds": float("nan")}, ValueError, "seconds"),
        ({"dtype": torch.int64}, ValueError, "floating dtype, got torch.int64"),
        ({"device": "no such thing"}, ValueError, "no such thing"),
    ],
)
def test_what_cannot_be_measured_is_told_before_the_work(options, error, words, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("posenc.benchmark.encodings.times", None)
    with pytest.raises(error, match=words):
        encodings(**options)


def test_absent_packages_name_the_extra_that_brings_them(monkeypatch):
    for name in ("rotary_embedding_torch", "x_transformers"):
        for loaded in [n for n in sys.modules if n.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
    missing = encodings(peers=True).missing
    assert len(missing) == 2
    assert all("pip install posenc[bench]" in why for why in missing.values()), missing


@pytest.mark.cuda
def test_a_gpu_is_measured_by_its_events_and_its_allocator():
    meter = meter_for("cuda")
    x = torch.ones(16, 1024, 1024, device="cuda")
    assert 60 < meter.peak_memory(lambda: x + 1) < 80
    small, large = meter.once(lambda: x[:1] + 1, 3), meter.once(lambda: x + 1, 3)
    assert small > 0 and 0 < large < 1
    (result,) = [run_case(c, 0.001, meter) for c in device_cases(TINY) if "decoded" in c.name]
    assert result["ms"] > 0
