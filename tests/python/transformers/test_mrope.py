"""M-RoPE of transformers: its positions, and its choice of an axis for each frequency."""

import functools
import importlib
from types import SimpleNamespace

import pytest
import torch
from posenc.functional import (
    mrope_decode_position_ids,
    mrope_position_ids,
    rope_axes,
    rope_inv_freq,
    rotary_embedding,
    xdrope_position_ids,
)

pytest.importorskip("transformers", reason="the comparison needs transformers")

NEAR = {"rtol": 0, "atol": 2e-5}


def modeling(model):
    return importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def rope_index(model, name, **vision):
    """A model's get_rope_index, which needs the numbers of its configuration but no weights."""
    cls = getattr(modeling(model), name)
    config = SimpleNamespace(vision_config=SimpleNamespace(**vision))
    me = SimpleNamespace(config=config)
    me.get_vision_position_ids = functools.partial(cls.get_vision_position_ids, me)
    return functools.partial(cls.get_rope_index, me)


MERGE = {"spatial_merge_size": 2}
#: model, class, numbers of its vision_config, our options
MODELS = (
    ("qwen2_vl", "Qwen2VLModel", MERGE, {}),
    ("paddleocr_vl", "PaddleOCRVLModel", MERGE, {}),
    ("qwen2_5_vl", "Qwen2_5_VLModel", {**MERGE, "tokens_per_second": 2}, {"tokens_per_second": 2}),
    ("qwen3_vl", "Qwen3VLModel", MERGE, {"split_video_frames": True}),
    ("qwen3_vl_moe", "Qwen3VLMoeModel", MERGE, {"split_video_frames": True}),
    ("qwen3_5", "Qwen3_5Model", MERGE, {"split_video_frames": True}),
    ("qwen4_exp", "Qwen4ExpModel", MERGE, {"split_video_frames": True}),
    ("glm4v", "Glm4vModel", MERGE, {"split_video_frames": True}),
    ("glm46v", "Glm46VModel", MERGE, {"split_video_frames": True}),
    ("glm4v_moe", "Glm4vMoeModel", MERGE, {"split_video_frames": True}),
    ("glm_ocr", "GlmOcrModel", MERGE, {"split_video_frames": True}),
    (
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoeModel",
        {**MERGE, "temporal_merge_size": 2},
        {"temporal_merge_size": 2},
    ),
)
by_model = pytest.mark.parametrize(
    ("model", "name", "vision", "options"), MODELS, ids=[row[0] for row in MODELS]
)


def random_batch(generator, options, rows=4):
    """Rows of text, images and videos whose frames do not outnumber rows or columns."""

    def draw(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    split, temporal = options.get("split_video_frames"), options.get("temporal_merge_size", 1)
    batch, images, videos, seconds = [], [], [], []
    for _ in range(rows):
        row = [0] * draw(1, 4)
        for _ in range(draw(0, 3)):
            h, w = draw(1, 5), draw(1, 5)
            if draw(0, 1):
                images.append((1, 2 * h, 2 * w))
                row += [1] * (h * w)
            else:
                second = (0.5, 1.0)[draw(0, 1)]
                t = draw(1, 4) if split else 1 + draw(0, (max(h, w) - 1) // 2)
                videos.append((t * temporal, 2 * h, 2 * w))
                seconds.append(second)
                row += ([2] * (h * w) + [0] * draw(1, 3)) * t if split else [2] * (t * h * w)
            row += [0] * draw(1, 3)
        batch.append(row)
    length = max(map(len, batch)) + draw(0, 2)
    return batch, length, images, videos, seconds


@by_model
@pytest.mark.parametrize("left", (True, False), ids=("left", "right"))
def test_positions_and_deltas(model, name, vision, options, left):
    theirs = rope_index(model, name, **vision)
    generator = torch.Generator().manual_seed(len(model) + left)
    for _ in range(8):
        batch, length, images, videos, seconds = random_batch(generator, options)
        pad = [[0] * (length - len(row)) for row in batch]
        types = torch.tensor([p + r if left else r + p for p, r in zip(pad, batch, strict=True)])
        mask = torch.tensor(
            [
                [0] * len(p) + [1] * len(r) if left else [1] * len(r) + [0] * len(p)
                for p, r in zip(pad, batch, strict=True)
            ]
        )
        image_grids = torch.tensor(images).reshape(-1, 3).long()
        video_grids = torch.tensor(videos).reshape(-1, 3).long()
        timed = (
            {"second_per_grid_ts": torch.tensor(seconds)} if "tokens_per_second" in vision else {}
        )
        want, deltas = theirs(
            types + 5,
            mm_token_type_ids=types,
            image_grid_thw=image_grids,
            video_grid_thw=video_grids.clone(),
            attention_mask=mask,
            **timed,
        )
        ids, ours = mrope_position_ids(types, image_grids, video_grids, mask, **options, **timed)
        assert torch.equal(ids, want)
        assert torch.equal(ours, deltas[:, 0])


def test_more_frames_than_rows_where_transformers_contradicts_itself():
    """3 words and a video of 6 x 2 x 2: the next word is at 9, as decoding says, not at 5."""
    types = torch.tensor([[0] * 3 + [2] * 24 + [0]])
    grid = torch.tensor([[6, 4, 4]])
    theirs = rope_index("qwen2_vl", "Qwen2VLModel", **MERGE)
    want, delta = theirs(types, mm_token_type_ids=types, video_grid_thw=grid)
    ids, _ = mrope_position_ids(types, None, grid)
    assert torch.equal(ids[..., :-1], want[..., :-1])
    assert want[:, 0, -1].tolist() == [5] * 3 and ids[:, 0, -1].tolist() == [9] * 3
    # The same video without the word: the first decoded word, by their delta, is at 9 as well.
    _, delta = theirs(types[:, :-1], mm_token_type_ids=types[:, :-1], video_grid_thw=grid)
    _, ours = mrope_position_ids(types[:, :-1], None, grid)
    assert torch.equal(ours, delta[0])
    assert mrope_decode_position_ids(torch.tensor([27]), ours).flatten().tolist() == [9] * 3


def test_positions_of_hunyuan_vl():
    cls = modeling("hunyuan_vl").HunYuanVLModel
    text = SimpleNamespace(rope_parameters={"mrope_section": [4, 4, 4, 4]})
    me = SimpleNamespace(
        config=SimpleNamespace(
            text_config=text, vision_config=SimpleNamespace(spatial_merge_size=2)
        )
    )
    me.get_vision_position_ids = functools.partial(cls.get_vision_position_ids, me)
    first, second = 2 * 4 + 2, 3 * 3
    types = torch.tensor([[0] * 3 + [1] * first + [0] * 2, [0] * 4 + [1] * second + [0] * 2])
    mask = torch.ones_like(types)
    mask[1, :2] = 0
    grids = torch.tensor([[1, 4, 6], [1, 6, 4]])
    want, deltas = cls.get_rope_index(
        me, types + 5, mm_token_type_ids=types, image_grid_thw=grids, attention_mask=mask
    )
    ids, ours = xdrope_position_ids(types, grids, mask)
    assert torch.equal(ids, want) and torch.equal(ours, deltas[:, 0])


#: model, class prefix, text configuration, arrangement, sections, frequencies, pairs, options
TEXT = (
    ("qwen2_vl", "Qwen2VL", "Qwen2VLTextConfig", "contiguous", [2, 3, 3], False, {}),
    ("qwen2_5_vl", "Qwen2_5_VL", "Qwen2_5_VLTextConfig", "contiguous", [2, 3, 3], False, {}),
    ("qwen3_vl", "Qwen3VLText", "Qwen3VLTextConfig", "interleaved", [4, 2, 2], False, {}),
    ("qwen3_vl", "Qwen3VLText", "Qwen3VLTextConfig", "interleaved", [3, 3, 2], False, {}),
    ("glm4v", "Glm4vText", "Glm4vTextConfig", "contiguous", [2, 3, 3], True, {}),
    (
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoeText",
        "Ernie4_5_VLMoeTextConfig",
        "alternating_hwt",
        [3, 3, 2],
        True,
        {},
    ),
)


@pytest.mark.parametrize(
    ("model", "prefix", "config", "arrangement", "sections", "pairs", "options"),
    TEXT,
    ids=[f"{row[0]}-{row[4]}" for row in TEXT],
)
def test_axes_of_the_language_models(model, prefix, config, arrangement, sections, pairs, options):
    module = modeling(model)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    settings = getattr(module, config)(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        rope_parameters=rope, **options,
    )  # fmt: skip
    theirs = getattr(module, f"{prefix}RotaryEmbedding")(settings)
    ids = torch.randint(0, 40, (3, 2, 7))
    q = torch.randn(2, 4, 7, 16)
    cos, sin = theirs(q, ids)
    want, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    out = rotary_embedding(
        q, rope_inv_freq(16), ids, seq_dim=2, interleaved=pairs,
        axes=rope_axes(arrangement, sections),
    )  # fmt: skip
    torch.testing.assert_close(out, want, **NEAR)
    assert not torch.allclose(
        out, rotary_embedding(q, rope_inv_freq(16), ids[0], seq_dim=2, interleaved=pairs)
    )


def test_axes_of_neomme():
    module = modeling("neomme")
    kinds = ["full_attention", "sliding_attention"]
    settings = module.NeoMMEConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
        num_hidden_layers=2, layer_types=kinds,
        rope_parameters={k: {"rope_type": "default", "rope_theta": 1e4} for k in kinds},
    )  # fmt: skip
    theirs = module.NeoMMERotaryEmbedding(settings)
    ids, q = torch.randint(0, 40, (2, 2, 7)), torch.randn(2, 4, 7, 16)
    cos, sin = theirs(q, ids, layer_type=kinds[1])
    want, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    out = rotary_embedding(
        q, rope_inv_freq(16), ids, seq_dim=2, interleaved=False,
        axes=rope_axes("alternating", [4, 4]),
    )  # fmt: skip
    torch.testing.assert_close(out, want, **NEAR)
