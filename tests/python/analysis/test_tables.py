"""Figures of tables, and tables out of checkpoints."""

import sys

import posenc
import pytest
import torch
from posenc import analysis


def test_the_article_s_figures_are_printed_and_returned(capsys):
    figures = posenc.analyze_positional_encoding(posenc.get_positional_encoding(100, 128))
    printed = capsys.readouterr().out
    assert figures.shape == (100, 128)
    assert figures.minimum == pytest.approx(-1, abs=1e-3)
    assert figures.maximum == pytest.approx(1, abs=1e-3)
    assert f"{figures.neighbours:.3f}" == "0.970"
    wanted = {1: "0.970", 5: "0.737", 10: "0.669", 20: "0.608", 50: "0.546"}
    assert {d: f"{s:.3f}" for d, s in figures.similarity.items()} == wanted
    for text in ("(100, 128)", "[-1.000, 1.000]", *wanted.values()):
        assert text in printed
    # Each pair of sine and cosine has norm 1.
    assert figures.mean_norm == pytest.approx(8.0, abs=1e-6)


def test_shorter_tables_leave_out_distances_that_they_lack(capsys):
    figures = posenc.analyze_positional_encoding(posenc.get_positional_encoding(11, 16))
    assert list(figures.similarity) == [1, 5, 10]
    assert "position 20" not in capsys.readouterr().out
    alone = posenc.analyze_positional_encoding(torch.ones(1, 4), quiet=True)
    assert alone.neighbours is None and alone.similarity == {}
    assert capsys.readouterr().out == "" and "neighbours" not in str(alone)


def test_figures_of_a_table_by_hand():
    table = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    figures = analysis.analyze_positional_encoding(table, (1, 2), quiet=True)
    assert (figures.minimum, figures.maximum, figures.mean_norm) == (-3.0, 2.0, 2.0)
    assert figures.similarity == {1: pytest.approx(0.0), 2: pytest.approx(-1.0)}
    assert figures.neighbours == pytest.approx(0.0)
    assert figures.to_dict()["shape"] == (3, 2)


def test_layers_and_half_types_are_taken():
    layer = posenc.LearnedPositionalEncoding(12, 8, dtype=torch.bfloat16)
    weight = layer.positional_embeddings.weight
    of_layer = analysis.analyze_positional_encoding(layer, quiet=True)
    assert of_layer == analysis.analyze_positional_encoding(weight[None], quiet=True)


@pytest.mark.parametrize(
    ("table", "error", "words"),
    [
        (torch.ones(3), ValueError, ["(positions, d_model)", "[3]"]),
        (torch.ones(0, 4), ValueError, ["[0, 4]"]),
        (torch.ones(2, 2, dtype=torch.bool), ValueError, ["bool"]),
        (torch.full((2, 2), float("nan")), ValueError, ["finite", "NaN"]),
        ([[1.0]], TypeError, ["tensor", "list"]),
        (posenc.RotaryPositionalEmbedding(8), TypeError, ["table", "RotaryPositionalEmbedding"]),
        (torch.empty(2, 2, device="meta"), ValueError, ["dense", "meta"]),
        (torch.ones(2, 2).to_sparse(), ValueError, ["dense", "sparse_coo"]),
    ],
)
def test_what_is_no_table_is_refused(table, error, words):
    with pytest.raises(error) as caught:
        analysis.analyze_positional_encoding(table)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("distances", [[-1, 5], [1.7], [float("nan")], 5, "15x"])
def test_distances_that_are_no_positions_are_refused(distances):
    with pytest.raises(ValueError, match="expected distances to be whole numbers >= 0, got"):
        analysis.analyze_positional_encoding(torch.eye(9), distances)


def test_rows_before_position_0_belong_to_no_position():
    layer = posenc.LearnedPositionalEncoding(10, 8, position_offset=2)
    rows = layer.positional_embeddings.weight.detach()
    assert analysis.analyze_positional_encoding(layer, quiet=True) == (
        analysis.analyze_positional_encoding(rows[2:], quiet=True)
    )
    assert analysis.analyze_positional_encoding(layer, quiet=True).shape == (10, 8)


@pytest.fixture
def gpt(tmp_path):
    """A checkpoint with one learned table among other tensors."""
    state = {
        "wte.weight": torch.randn(50, 8),
        "wpe.weight": torch.randn(16, 8),
        "h.0.attn.bias": torch.ones(8),
    }
    path = tmp_path / "gpt.pt"
    torch.save({"model": state, "step": 3}, path)
    return path, state["wpe.weight"]


def test_a_learned_table_is_found_by_its_name(gpt):
    path, table = gpt
    assert torch.equal(analysis.load_table(path), table)
    assert torch.equal(analysis.load_table(path, "model.wpe.weight"), table)
    figures = posenc.analyze_positional_encoding(analysis.load_table(path), quiet=True)
    assert figures.shape == (16, 8)


def test_posenc_s_own_layer_and_bare_tables_are_found(tmp_path):
    layer = posenc.LearnedPositionalEncoding(6, 4)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    loaded = analysis.load_table(tmp_path / "layer.pt")
    assert torch.equal(loaded, layer.positional_embeddings.weight)
    torch.save(torch.ones(1, 3, 4), tmp_path / "bare.pt")
    assert analysis.load_table(tmp_path / "bare.pt").shape == (3, 4)


def test_safetensors(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    table = torch.randn(5, 4)
    path = tmp_path / "m.safetensors"
    library.save_file({"embeddings.position_embeddings.weight": table}, path)
    assert torch.equal(analysis.load_table(path), table)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot read"):
        analysis.load_table(path)


def test_safetensors_by_another_name(tmp_path):
    library = pytest.importorskip("safetensors.torch")
    for name in ("m.bin", "M.SAFETENSORS"):
        library.save_file({"wpe.weight": torch.ones(5, 4)}, tmp_path / name)
        assert torch.equal(analysis.load_table(tmp_path / name), torch.ones(5, 4))


def test_tensors_in_lists_and_in_what_holds_itself(tmp_path):
    table = torch.randn(5, 4)
    state = {"groups": [{"wpe.weight": table}, ("word", 3)]}
    state["self"] = state
    torch.save(state, tmp_path / "m.pt")
    assert torch.equal(analysis.load_table(tmp_path / "m.pt"), table)
    assert torch.equal(analysis.load_table(tmp_path / "m.pt", "groups.0.wpe.weight"), table)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"wpe.weight": torch.empty(4, 4, device="meta")}, ["wpe.weight", "meta"]),
        ({"wpe.weight": torch.eye(4).to_sparse()}, ["wpe.weight", "sparse_coo"]),
        (torch.nn.Linear(3, 3), ["torch.nn.modules.linear.Linear", "state_dict"]),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_checkpoints_without_numbers_of_a_table(content, words, tmp_path):
    torch.save(content, tmp_path / "m.pt")
    with pytest.raises(ValueError) as caught:
        analysis.load_table(tmp_path / "m.pt")
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert said.isprintable() and "weights_only" not in said, said


def test_what_is_no_checkpoint_is_called_so(tmp_path):
    for content in (b"hello", b""):
        (tmp_path / "m.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"got another format or a damaged file$"):
            analysis.load_table(tmp_path / "m.pt")


def test_safetensors_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"")
    with pytest.raises(ImportError, match=r"pip install posenc\[checkpoint\]"):
        analysis.load_table(path)


def test_several_or_no_tables_ask_for_a_key(tmp_path):
    path = tmp_path / "two.pt"
    names = [f"{part}.embed_positions.weight" for part in ("enc", "dec")]
    torch.save({name: torch.ones(4, 2) for name in names}, path)
    with pytest.raises(ValueError, match=r"one table.*got 2.*enc\.embed_positions\.weight"):
        analysis.load_table(path)
    torch.save({"a": torch.ones(4, 2), "b": torch.ones(3)}, path)
    with pytest.raises(ValueError, match=r"got 0.*one of: a$"):
        analysis.load_table(path)


def test_errors_of_checkpoints_name_file_and_key(gpt, tmp_path):
    path, _ = gpt
    with pytest.raises(ValueError, match=r"nope.*model\.wte\.weight"):
        analysis.load_table(path, "nope")
    with pytest.raises(ValueError, match=r"model\.h\.0\.attn\.bias.*\[8\]"):
        analysis.load_table(path, "model.h.0.attn.bias")
    with pytest.raises(FileNotFoundError, match=r"absent\.pt"):
        analysis.load_table(tmp_path / "absent.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    with pytest.raises(ValueError, match=r"file of tensors"):
        analysis.load_table(tmp_path / "text.pt")
    torch.save({"step": 3}, tmp_path / "empty.pt")
    with pytest.raises(ValueError, match="got none"):
        analysis.load_table(tmp_path / "empty.pt")
