"""The benchmark runs and says what it measured; how fast anything is, no test asks."""

import json

import pytest
import torch
from posenc.benchmark import Case, all_cases, markdown, run_case
from posenc.benchmark.__main__ import main
from posenc.benchmark.measure import peak_memory, times


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names) > 40
    for case in all_cases():
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
