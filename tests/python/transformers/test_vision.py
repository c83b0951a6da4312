"""The vision towers of transformers: their own rotary code against `AxialRotaryEmbedding`.

Each tower's rotary module is built from its own configuration, on grids that are not square, with
the positions and the function that its own attention uses.
"""

import importlib
from types import SimpleNamespace

import posenc
import pytest
import torch
from posenc.functional import augment_coordinates, grid_coordinates, vision_position_ids

pytest.importorskip("transformers", reason="the comparison needs transformers")
from transformers.vision_utils import get_vision_position_ids

GRIDS = torch.tensor([[1, 4, 6], [2, 6, 2]])
NEAR = {"rtol": 0, "atol": 2e-5}


def tower(model, rotary, config, **options):
    """The modeling module, the rotary module and its configuration."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    settings = getattr(module, config)(**options)
    return module, getattr(module, rotary)(settings).eval(), settings


def heads(length, config, extra=0):
    layer = posenc.AxialRotaryEmbedding.from_config(
        config, **({"layer_idx": 0} if config.model_type == "sam3_vit_model" else {})
    )
    return layer, torch.randn(length + extra, 2, layer.head_dim)


#: model, rotary class, configuration class, blocks of patches, what the tower does to (h, w)
PACKED = (
    ("cohere_compass", "CohereCompassVision", "CohereCompassVisionConfig", 2, None),
    ("dots3_note", "Dots3NoteVision", "Dots3NoteVisionConfig", 2, None),
    ("ernie4_5_vl_moe", "Ernie4_5_VLMoeVision", "Ernie4_5_VLMoeVisionConfig", 2, None),
    ("exaone4_5", "Exaone4_5_Vision", "Exaone4_5_VisionConfig", 2, None),
    ("glm4v", "Glm4vVision", "Glm4vVisionConfig", 2, None),
    ("glm4v_moe", "Glm4vMoeVision", "Glm4vMoeVisionConfig", 2, None),
    ("glm5_next", "Glm5NextVision", "Glm5NextVisionConfig", 2, None),
    ("glm_ocr", "GlmOcrVision", "GlmOcrVisionConfig", 2, None),
    ("lfm3_vl", "Lfm3VlVision", "Lfm3VlVisionConfig", 2, None),
    ("paddleocr_vl", "PaddleOCRVision", "PaddleOCRVisionConfig", 1, None),
    ("qwen2_vl", "Qwen2VLVision", "Qwen2VLVisionConfig", 2, None),
    ("qwen2_5_vl", "Qwen2_5_VLVision", "Qwen2_5_VLVisionConfig", 2, None),
    ("qwen2_5_omni", "Qwen2_5OmniVision", "Qwen2_5OmniVisionEncoderConfig", 2, None),
    ("qwen3_vl", "Qwen3VLVision", "Qwen3VLVisionConfig", 2, None),
    ("qwen3_vl_moe", "Qwen3VLMoeVision", "Qwen3VLMoeVisionConfig", 2, None),
    ("qwen3_omni_moe", "Qwen3OmniMoeVision", "Qwen3OmniMoeVisionEncoderConfig", 2, None),
    ("qwen3_5", "Qwen3_5Vision", "Qwen3_5VisionConfig", 2, None),
    ("qwen3_5_moe", "Qwen3_5MoeVision", "Qwen3_5MoeVisionConfig", 2, None),
    ("qwen4_exp", "Qwen4ExpVision", "Qwen4ExpVisionConfig", 2, None),
    ("video_llama_3", "VideoLlama3Vision", "VideoLlama3VisionConfig", 2, None),
    ("step3p7", "Step3p7Vision", "Step3p7VisionConfig", 1, None),
    ("kimi_k25", "Kimi_K25Vision", "Kimi_K25VisionConfig", 1, None),
    ("minimax_m3_vl", "MiniMaxM3VLVision", "MiniMaxM3VLVisionConfig", 2, "time"),
    ("inkling2", "Inkling2Vision", "Inkling2VisionConfig", 1, "from_one"),
    ("muse_spark", "MuseSparkVision", "MuseSparkVisionConfig", 2, "xy_from_one"),
    ("muse_glimmer", "MuseGlimmerVision", "MuseGlimmerVisionConfig", 2, "xy_from_one"),
)


@pytest.mark.parametrize(
    ("model", "rotary", "config", "merge", "change"), PACKED, ids=[row[0] for row in PACKED]
)
def test_towers_that_pack_their_images(model, rotary, config, merge, change):
    module, theirs, settings = tower(model, f"{rotary}RotaryEmbedding", config)
    positions = get_vision_position_ids(GRIDS, merge, include_temporal=change == "time")
    ours = vision_position_ids(GRIDS, merge, include_time=change == "time")
    assert torch.equal(ours, positions.T)
    if change == "xy_from_one":
        positions = positions.flip(-1) + 1
    elif change == "from_one":
        positions = positions + 1
    layer, q = heads(len(positions), settings)
    cos, sin = theirs(q, positions)
    for name in ("apply_rotary_pos_emb_vision", "apply_rotary_pos_emb"):
        if hasattr(module, name):
            want, _ = getattr(module, name)(q, q, cos, sin)
            break
    torch.testing.assert_close(layer(q[None], ours)[0], want, **NEAR)


def test_pixtral():
    module, theirs, config = tower("pixtral", "PixtralVisionRotaryEmbedding", "PixtralVisionConfig")
    positions = get_vision_position_ids(GRIDS, 1)
    layer, q = heads(len(positions), config)
    q = q.transpose(0, 1)[None]
    cos, sin = theirs(q, positions)
    want, _ = module.apply_rotary_pos_emb(q, q, cos, sin, unsqueeze_dim=0)
    layer = posenc.AxialRotaryEmbedding.from_config(config, seq_dim=2)
    torch.testing.assert_close(layer(q, vision_position_ids(GRIDS)), want, **NEAR)


def test_gemma4_with_padding():
    module, theirs, config = tower("gemma4", "Gemma4VisionRotaryEmbedding", "Gemma4VisionConfig")
    rows, columns = vision_position_ids(torch.tensor([1, 3, 5]))
    xy = torch.stack([columns, rows], -1)
    padded = torch.cat([xy, torch.full((2, 2), -1)])[None]  # their processor pads by -1
    layer, q = heads(17, config)
    cos, sin = theirs(q, padded)
    want = module.apply_multidimensional_rope(q[None], cos, sin, padded)
    ours = torch.cat([torch.stack([rows, columns]), torch.full((2, 2), -1)], 1)
    torch.testing.assert_close(layer(q[None], ours), want, **NEAR)


def test_llama4_counts_from_one_and_ends_with_the_class():
    module, theirs, config = tower(
        "llama4", "Llama4VisionRotaryEmbedding", "Llama4VisionConfig", image_size=70, patch_size=14
    )
    layer, q = heads(25, config, extra=1)
    want, _ = module.vision_apply_rotary_emb(q[None], q[None], freqs_ci=theirs(q))
    out = layer(q[None], vision_position_ids(torch.tensor([1, 5, 5])))
    torch.testing.assert_close(out, want, **NEAR)
    assert torch.equal(out[0, -1], q[-1])


@pytest.mark.parametrize("layer_idx", (0, 7), ids=("window", "global"))
def test_sam3(layer_idx):
    module, theirs, config = tower("sam3", "Sam3ViTRotaryEmbedding", "Sam3ViTConfig")
    window = 0 if layer_idx in config.global_attn_indexes else config.window_size
    positions = module.Sam3ViTLayer.precompute_positions(config, window)
    side = window or config.image_size // config.patch_size
    layer = posenc.AxialRotaryEmbedding.from_config(config, layer_idx=layer_idx, seq_dim=2)
    q = torch.randn(1, 2, side * side, layer.head_dim)
    cos, sin = theirs(q, positions)
    want, _ = module.apply_rotary_pos_emb_2d(q, q, cos, sin)
    out = layer(q, vision_position_ids(torch.tensor([1, side, side])))
    torch.testing.assert_close(out, want, **NEAR)


@pytest.mark.parametrize(
    ("model", "name"),
    (
        ("sam2_video", "Sam2Video"),
        ("sam3_tracker_video", "Sam3TrackerVideo"),
        ("edgetam_video", "EdgeTamVideo"),
    ),
)
def test_memory_attention_of_sam2_and_after(model, name):
    sizes = {"memory_attention_rope_feat_sizes": [6, 4]}  # columns, rows
    module, theirs, config = tower(model, f"{name}VisionRotaryEmbedding", f"{name}Config", **sizes)
    positions = getattr(module, f"{name}MemoryAttention").precompute_positions(config)
    layer = posenc.AxialRotaryEmbedding.from_config(config, seq_dim=2)
    columns, rows = config.memory_attention_rope_feat_sizes  # SAM 3 computes them anew
    q = torch.randn(1, 1, rows * columns, layer.head_dim)
    cos, sin = theirs(q, positions)
    rotate = getattr(module, "apply_rotary_pos_emb_2d", None)
    rotate = rotate or module.apply_rotary_pos_emb_2d_self_attn
    want, _ = rotate(q, q, cos, sin)
    out = layer(q, vision_position_ids(torch.tensor([1, rows, columns])))
    torch.testing.assert_close(out, want, **NEAR)


@pytest.mark.parametrize(
    ("model", "name"),
    (("dinov3_vit", "DINOv3ViT"), ("sapiens2", "Sapiens2")),
)
def test_coordinates_of_dinov3_and_sapiens2(model, name):
    module, theirs, config = tower(
        model, f"{name}RopePositionEmbedding", f"{name}Config", num_register_tokens=4
    )
    height, width = config.patch_size * 3, config.patch_size * 5
    cos, sin = theirs(torch.zeros(1, 3, height, width))
    layer = posenc.AxialRotaryEmbedding.from_config(config, seq_dim=2)
    q = torch.randn(1, 2, 5 + 15, layer.head_dim)
    want, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    out = layer(q, grid_coordinates(3, 5))
    torch.testing.assert_close(out, want, **NEAR)
    assert torch.equal(out[:, :, :5], q[:, :, :5])


def test_dinov3_moves_coordinates_in_the_same_order():
    """Shift, then jitter, then rescale: all three with one point have the same range."""
    module = importlib.import_module("transformers.models.dinov3_vit.modeling_dinov3_vit")
    point = torch.zeros(1, 2)

    def extremes(draw):
        values = torch.stack([draw() for _ in range(400)])
        return values.min(), values.max()

    theirs = extremes(lambda: module.augment_patches_center_coordinates(point, 1.0, 3.0, 2.0))
    ours = extremes(lambda: augment_coordinates(point.T, 1.0, 3.0, 2.0))
    assert -6 <= theirs[0] < -3.2 and 3.2 < theirs[1] <= 6  # 1 · 3 · 2 is the farthest
    assert -6 <= ours[0] < -3.2 and 3.2 < ours[1] <= 6


def test_lightglue_is_a_linear_map_of_the_coordinates():
    module = importlib.import_module("transformers.models.lightglue.modeling_lightglue")
    config = SimpleNamespace(descriptor_dim=64, num_attention_heads=4)
    theirs = module.LightGluePositionalEncoder(config)
    points = torch.rand(2, 9, 2) * 2 - 1
    ((cos, sin),) = theirs(points)
    q = torch.randn(2, 4, 9, 16)
    want, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    layer = posenc.MixedRotaryEmbedding(16, 4, per_head=False, seq_dim=2)
    with torch.no_grad():
        layer.freqs.copy_(theirs.projector.weight.T)
    torch.testing.assert_close(layer(q, points.movedim(-1, 0)), want, **NEAR)
