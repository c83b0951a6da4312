"""Every rotary class of the installed transformers, with its default configuration, against the
layer that `from_config` makes of it: frequencies, attention factor, and the rotation itself.

The classes are found at run time. What differs is listed by name with its reason, and a listed
difference that is gone fails as well, so the lists stay true (of transformers 5.24).
"""

import copy
import importlib
import inspect
import json

import posenc
import pytest
import torch

transformers = pytest.importorskip("transformers")

from samples.rotary_classes import (  # noqa: E402
    Record,
    borrowed,
    build,
    classes,
    find,
    find_borrowed,
    model_rotates,
    package_configs,
)


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    """transformers warns of some configurations, its own defaults among them."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


CLASSES = classes()
EVERY_CLASS = pytest.mark.parametrize(
    "where", CLASSES, ids=[f"{package}:{name}" for package, _, name in CLASSES]
)

#: transformers computes its frequencies in fp32.
RTOL = 4e-6

#: Classes that refuse the default configuration of their own model, and what it lacks.
REPAIRED = {
    "CohereCompassRotaryEmbedding": (  # reads a dictionary by type of layer, the default is flat
        "CohereCompassTextConfig",
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    ),
}

TOWER = "a vision tower: AxialRotaryEmbedding serves it"
ODD = "an odd head rotated whole: transformers rounds its frequencies up and cannot apply them"
SECTIONS = "the class's default sections do not fit the default width: its forward fails"
PERMUTED = "permuted: "

#: Frequencies that are not the class's.
FREQUENCIES = {
    "clvp:ClvpRotaryPositionalEmbedding(ClvpEncoderConfig)": "the width is a formula in the class: "
    "max(projection_dim // (2 heads), 32)",
    "dinov3_vit:DINOv3ViTRopePositionEmbedding(DINOv3ViTConfig)": TOWER,
    "eomt_dinov3:EomtDinov3RotaryEmbedding(EomtDinov3Config)": TOWER,
    "sapiens2:Sapiens2RopePositionEmbedding(Sapiens2Config)": TOWER,
    "llama4:Llama4VisionRotaryEmbedding(Llama4VisionConfig)": TOWER,
    "esmfold2:EsmFold2RotaryEmbedding(EsmFold2AtomEncoderConfig)": "keys of its own, for three "
    "coordinates and a number of the molecule; the class holds no frequencies",
    "ernie4_5_vl_moe:Ernie4_5_VLMoeTextRotaryEmbedding(Ernie4_5_VLMoeTextConfig)": PERMUTED
    + "held as even and odd of the first 44, last 20, and applied in the plain order",
    "glm4v:Glm4vTextRotaryEmbedding(Glm4vTextConfig)": SECTIONS,
    "glm4v_moe:Glm4vMoeTextRotaryEmbedding(Glm4vMoeTextConfig)": SECTIONS,
    "glm_image:GlmImageTextRotaryEmbedding(GlmImageTextConfig)": SECTIONS,
    "mlcd:MLCDRotaryEmbedding(MLCDVisionConfig)": "its class token turns by learned angles",
    "minimax_m3_vl:MiniMaxM3VLRotaryEmbedding(MiniMaxM3VLTextConfig)": "its rotary_dim of 64 is "
    "read by no code of transformers, which rotates the whole head of 128",
    "qwen3_omni_moe:Qwen3OmniMoeThinkerTextRotaryEmbedding(Qwen3OmniMoeTextConfig)": ODD,
    "qwen3_omni_moe:Qwen3OmniMoeTalkerRotaryEmbedding(Qwen3OmniMoeTextConfig)": ODD,
}

#: Rotations that are not the model's, where the frequencies may be compared.
ROTATIONS = {
    "hunyuan_vl:HunYuanVLRotaryEmbedding(HunYuanVLTextConfig)": "XD-RoPE: the two channels of a "
    "pair read different axes, which is no rotation",
    "minimax_m3_vl:MiniMaxM3VLRotaryEmbedding(MiniMaxM3VLTextConfig)": "see FREQUENCIES",
}

#: Layers that the JSON of a configuration does not give.
JSON = {
    "seamless_m4t:SeamlessM4TConformerRotaryPositionalEmbedding(SeamlessM4TConfig)": "several "
    "numbers of heads, none of them under a name that says which",
}

#: Classes that take no positions: their rotation cannot be asked for.
NO_POSITIONS = {
    "ClvpRotaryPositionalEmbedding",
    "DINOv3ViTRopePositionEmbedding",
    "EfficientLoFTRRotaryEmbedding",
    "EomtDinov3RotaryEmbedding",
    "EsmFold2RotaryEmbedding",
    "Llama4VisionRotaryEmbedding",
    "MusicFlamingoRotaryEmbedding",
    "Sapiens2RopePositionEmbedding",
    "SeamlessM4TConformerRotaryPositionalEmbedding",
    "Wav2Vec2BertRotaryPositionalEmbedding",
    "Wav2Vec2ConformerRotaryPositionalEmbedding",
}


def repaired(package: str, module_name: str, name: str) -> list[Record]:
    module = importlib.import_module(f"transformers.models.{package}.{module_name}")
    config_name, keys = REPAIRED[name]
    (config_class,) = {c for c in package_configs(package) if c.__name__ == config_name}
    return build(package, module, name, config_class(**copy.deepcopy(keys)))


def records_of(where: tuple[str, str, str]) -> list[Record]:
    """The records of a class; skips, by name, where its package cannot be imported."""
    found = find(*where)
    if found.missing is not None:
        pytest.skip(f"not installed: {found.missing}")
    name = where[2]
    assert bool(found.records) != (name in REPAIRED), (
        f"{name} builds its default configuration: take it off REPAIRED"
        if found.records
        else f"no default configuration builds {name}: {found.failures}"
    )
    return found.records or repaired(*where)


def layer_of(record: Record, **overrides) -> posenc.RotaryPositionalEmbedding:
    return posenc.RotaryPositionalEmbedding.from_config(
        record.config, layer_type=record.layer_type, **overrides
    )


def close(got: list[float], want: list[float]) -> bool:
    return len(got) == len(want) and torch.allclose(
        torch.tensor(got, dtype=torch.float64),
        torch.tensor(want, dtype=torch.float64),
        rtol=RTOL,
        atol=0,
    )


def tower_of(record: Record) -> posenc.AxialRotaryEmbedding:
    """The layer of a vision class, for positions as the class gets them."""
    with pytest.raises(ValueError, match="AxialRotaryEmbedding serves it"):
        layer_of(record)
    return posenc.AxialRotaryEmbedding.from_config(record.config, layer_idx=0, offset=0)


def tower_s_frequencies_differ(record: Record) -> str | None:
    try:
        layer = tower_of(record)
    except ValueError as error:
        return f"from_config refuses: {error}"
    rows = [
        [f for f, of in zip(layer.inv_freq, layer.axes, strict=True) if of == axis]
        for axis in range(layer.n_axes)
    ]
    want = record.inv_freq()
    # One row for every axis, or (Pixtral) the rows of all axes one after the other.
    if all(close(row, want) for row in rows) or close([f for row in rows for f in row], want):
        return None
    return f"frequencies of the axes {rows}, the class has {want}"


def tower_s_rotation_differs(record: Record) -> str | None:
    """The class may count columns before rows: test_vision.py has the positions of each tower,
    here one of the two orders has to be the layer's."""
    layer = tower_of(record)
    positions = torch.tensor([[0, 1, 5, 37], [3, 0, 23, 11], [2, 19, 0, 7]])[: layer.n_axes]
    x = torch.randn(3, 4, layer.head_dim)
    want = model_rotates(record, x, positions)
    orders = [positions, positions.flip(0)] if layer.n_axes == 2 else [positions]
    worst = [
        (layer(x.transpose(0, 1)[None], order)[0].transpose(0, 1) - want).abs().max().item()
        for order in orders
    ]
    return None if min(worst) <= 2e-5 else f"q differs by {min(worst):.2g} (layer: {layer})"


def frequencies_differ(record: Record) -> str | None:
    """What differs between the class's numbers and the layer's, or None."""
    if record.axial:
        return tower_s_frequencies_differ(record)
    want = record.inv_freq()
    try:
        layer = layer_of(record)
    except ValueError as error:
        return f"from_config refuses: {error}"
    if want is None:
        return "the class holds no frequencies"
    got = layer.inv_freq
    if not close(got, want):
        if close(sorted(got), sorted(want)):
            return "the same frequencies in another order"
        return f"{len(got)} frequencies {got[:3]}..., the class has {len(want)}: {want[:3]}..."
    factor = record.attention_factor()
    if abs(layer.attention_factor - factor) > RTOL * factor:
        return f"attention factor {layer.attention_factor}, the class has {factor}"
    return None


def settle(records: list[Record], differ, listed: dict[str, str]) -> None:
    """Each record agrees or is listed, and what is listed still differs."""
    problems = []
    for record in records:
        reason, difference = listed.get(record.name), differ(record)
        if difference is not None and reason is None:
            problems.append(f"{record.name}: {difference}")
        elif difference is None and reason is not None:
            problems.append(f"{record.name} agrees: take it off the list ({reason})")
        elif reason is not None and reason.startswith(PERMUTED) and "order" not in difference:
            problems.append(f"{record.name}: {difference}, listed as {reason}")
    assert not problems, "\n".join(problems)


@EVERY_CLASS
def test_frequencies_and_attention_factor(where):
    settle(records_of(where), frequencies_differ, FREQUENCIES)


def fitted(record: Record) -> Record:
    """The record itself, or, where the default sections of a multi-axis class do not fit its
    width (they are those of the published model's), a copy with sections that do."""
    width = len(record.inv_freq())
    sections = getattr(record.layer, "mrope_section", ())
    if isinstance(sections, dict):
        sections = sections[record.layer_type]
    if sections is not None and (len(sections) == 0 or sum(sections) == width):
        return record
    first = width // 4
    second = (width - first) // 2
    config = copy.deepcopy(record.config)
    parameters = config.rope_parameters
    parameters = parameters[record.layer_type] if record.layer_type else parameters
    parameters["mrope_section"] = [first, second, width - first - second]
    (copied,) = [
        other
        for other in build(record.package, record.module, record.cls, config)
        if other.layer_type == record.layer_type
    ]
    return copied


def rotation_differs(record: Record) -> str | None:
    """Compares q rotated by the model and by the layer, at a few positions, in fp32."""
    if record.axial:
        return None if record.name in FREQUENCIES else tower_s_rotation_differs(record)
    record = fitted(record)
    try:
        layer = layer_of(record)
    except ValueError:
        if FREQUENCIES.get(record.name) in (ODD, TOWER):
            return None
        raise
    axes = 1 if layer.axes is None else max(layer.axes) + 1
    positions = torch.tensor([[0, 1, 5, 37], [3, 0, 23, 11], [2, 19, 0, 7]])[:axes]
    x = torch.randn(3, 4, layer.d_model)
    ids = positions[0] if layer.axes is None else positions[:, None]
    got = layer(x.transpose(0, 1)[None], ids)[0].transpose(0, 1)
    try:
        want = model_rotates(record, x, positions)
    except RuntimeError:
        # The model's function takes the rotated channels alone, its attention cuts them out.
        want = x.clone()
        cut = slice(layer.rotary_start, layer.rotary_start + layer.rotary_dim)
        want[..., cut] = model_rotates(record, x[..., cut].contiguous(), positions)
    worst = (got - want).abs().max().item()
    return None if worst <= 2e-5 else f"q differs by {worst:.2g} (layer: {layer})"


@EVERY_CLASS
def test_rotation(where):
    records = records_of(where)
    takes_positions = "position_ids" in inspect.signature(type(records[0].layer).forward).parameters
    assert takes_positions != (where[2] in NO_POSITIONS)
    if takes_positions:
        settle(records, rotation_differs, ROTATIONS)


@pytest.mark.parametrize("where", borrowed(), ids=lambda where: where[0])
def test_models_that_borrow_their_classes(where):
    """Configurations without a model of their own (Exaone's is Llama's)."""
    found = find_borrowed(*where)
    if found.missing is not None:
        pytest.skip(f"not installed: {found.missing}")
    assert found.records, found.failures
    settle(found.records, frequencies_differ, {})
    settle(found.records, rotation_differs, {})


SAME = ("d_model", "rotary_dim", "rotary_start", "interleaved", "interleaved_out", "axes")


def json_differs(record: Record) -> str | None:
    """The layer of the configuration's JSON against that of the object."""
    try:
        layer = layer_of(record)
    except ValueError:
        return None  # refused either way, and listed above
    config = json.loads(record.config.to_json_string(use_diff=False))
    try:
        other = posenc.RotaryPositionalEmbedding.from_config(config, layer_type=record.layer_type)
    except ValueError as error:
        return f"from_config refuses: {error}"
    different = [
        f"{name} {getattr(other, name)}, the object's is {getattr(layer, name)}"
        for name in (*SAME, "inv_freq", "attention_factor")
        if getattr(other, name) != getattr(layer, name)
    ]
    return "; ".join(different) or None


@EVERY_CLASS
def test_json_says_the_same_as_the_object(where):
    settle(records_of(where), json_differs, JSON)


THETA = 123456.0

#: What a config.json of the time before transformers 5 says, beside the model's other numbers.
FILES = {
    "nothing": {},
    "theta": {"rope_theta": THETA},
    "linear": {"rope_theta": THETA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "yarn": {
        "rope_theta": THETA,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    },
}

BESIDE = "transformers passes a rope_theta over that stands beside a default dictionary of its own"
SHARE = "in transformers the default share of the head goes with the dictionary it stands in"
OTHER_THETA = "transformers reads another key: rotary_emb_base, global_rope_theta"

#: Where both libraries read such a file, and differently: model_type, what is in the file.
OLD_FILES = {
    ("cohere2_moe", "linear"): "transformers drops the scaling",
    ("cohere2_moe", "yarn"): "transformers drops the scaling",
    ("cosmos3_edge_text", "theta"): BESIDE,
    ("gpt_neox", "theta"): OTHER_THETA,
    ("gpt_neox", "linear"): OTHER_THETA,
    ("gpt_neox", "yarn"): OTHER_THETA,
    ("gpt_neox_japanese", "theta"): OTHER_THETA,
    ("gpt_neox_japanese", "linear"): OTHER_THETA,
    ("gpt_neox_japanese", "yarn"): OTHER_THETA,
    ("mimo_v2_flash", "theta"): BESIDE,
    ("mistral4", "linear"): "transformers rotates the channels of qk_nope_head_dim as well",
    ("mistral4", "yarn"): "transformers rotates the channels of qk_nope_head_dim as well",
    ("modernbert", "theta"): OTHER_THETA,
    ("modernbert", "linear"): OTHER_THETA + ", and scales the local layers, too",
    ("modernbert", "yarn"): OTHER_THETA + ", and scales the local layers, too",
    ("modernbert-decoder", "theta"): OTHER_THETA,
    ("modernbert-decoder", "linear"): OTHER_THETA + ", and scales the local layers, too",
    ("modernbert-decoder", "yarn"): OTHER_THETA + ", and scales the local layers, too",
    ("moonshine_streaming", "theta"): BESIDE,
    ("moonshine_streaming", "linear"): SHARE,
    ("moonshine_streaming", "yarn"): SHARE,
    ("muse_spark_text", "theta"): BESIDE,
    ("nemotron3_5_transcribe_asr_audio", "theta"): BESIDE,
    ("nemotron3_5_transcribe_asr_audio", "linear"): SHARE,
    ("nemotron3_5_transcribe_asr_audio", "yarn"): SHARE,
    ("nemotron3_5_transcribe_word_timestamp", "theta"): BESIDE,
    ("nemotron3_5_transcribe_word_timestamp", "linear"): SHARE,
    ("nemotron3_5_transcribe_word_timestamp", "yarn"): SHARE,
    ("olmo3", "theta"): "transformers gives the sliding layers the default theta",
    ("olmo3", "linear"): "transformers gives the sliding layers the default theta",
    ("olmo3", "yarn"): "transformers gives the sliding layers the default theta",
}
UNREAD = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")


def file_differs(record: Record, left_out: tuple[str, ...], keys: dict) -> str | None:
    """The model that transformers makes of a file against the layer made of it. Nothing to compare
    where transformers refuses the file, or where a default dictionary that is scaled or nested
    would have to be guessed, or sections fit no width."""
    config = json.loads(record.config.to_json_string(use_diff=False))
    config = {key: value for key, value in config.items() if key not in left_out} | keys
    try:
        read = type(record.config)(**copy.deepcopy(config))
        same = build(record.package, record.module, record.cls, read)
    except Exception:
        return None
    try:
        layer = posenc.RotaryPositionalEmbedding.from_config(config, layer_type=record.layer_type)
    except ValueError as error:
        known = "expected rope_parameters" in str(error) or "rope_axes" in str(error)
        return None if known else f"{record.name}: from_config refuses: {error}"
    (other,) = [one for one in same if one.layer_type == record.layer_type]
    want, factor = other.inv_freq(), other.attention_factor()
    if close(layer.inv_freq, want) and abs(layer.attention_factor - factor) <= RTOL * factor:
        return None
    return (
        f"{record.layer_type}: {len(layer.inv_freq)} frequencies of theta {layer.base}, "
        f"{layer.rope_type}; transformers has {len(want)}: {read.rope_parameters}"
    )


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
@EVERY_CLASS
def test_files_of_the_time_before_transformers_5(where):
    """Defaults that a file leaves out, flat dictionaries of models whose layers differ."""
    records = [
        record
        for record in records_of(where)
        if not record.axial
        and getattr(record.config, "rope_parameters", None)
        and record.name not in FREQUENCIES
    ]
    problems = []
    for name, keys in FILES.items():
        found = {}
        for record in records:
            found.setdefault(record.config.model_type, []).append(
                file_differs(record, UNREAD, keys)
            )
        for model_type, differences in found.items():
            listed = (model_type, name) in OLD_FILES
            if any(differences) != listed:
                problems.append(f"{model_type}, {name}: {differences}, listed: {listed}")
    assert not problems, "\n".join(problems)


@EVERY_CLASS
def test_a_head_width_that_a_file_leaves_out(where):
    """Many configurations have a constant instead of hidden_size / num_attention_heads; with twice
    the hidden size the two differ."""

    def differs(record: Record) -> str | None:
        wide = {"hidden_size": 2 * record.config.hidden_size}
        return file_differs(record, ("head_dim", "per_layer_config"), wide)

    records = [
        record
        for record in records_of(where)
        if not record.axial
        and record.name not in FREQUENCIES
        and getattr(record.config, "rope_parameters", None)
        and getattr(record.config, "hidden_size", None)
    ]
    settle(records, differs, {})


def test_the_walk_is_long_and_its_lists_are_of_it():
    """The walk cannot become empty, and no name is listed that it does not meet."""
    found = [find(*where) for where in CLASSES]
    records = [record for one in found for record in one.records]
    names = {record.name for record in records}
    missing = [one.missing for one in found if one.missing]
    assert len(records) + len(missing) >= 250, f"{len(records)} records, not read: {missing}"
    assert len({record.package for record in records}) + len(missing) >= 200
    if not missing:
        assert {kind for kind, _ in OLD_FILES} <= {one.config.model_type for one in records}
        assert set(FREQUENCIES) | set(ROTATIONS) | set(JSON) <= names
        assert NO_POSITIONS | set(REPAIRED) <= {name for _, _, name in CLASSES}
