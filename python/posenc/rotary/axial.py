"""`AxialRotaryEmbedding`: RoPE over the rows and columns of a grid."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import _C
from .._layer import ROTARY_KEYS, Layer, any_int, positive_int, positive_real, real


class AxialRotaryEmbedding(Layer):
    """RoPE over several position axes, in the arrangements of vision towers.

    Args:
        head_dim: D, the last axis of x.
        arrangement: which frequency reads which axis, and which channels are a pair. With s the
            channels of one axis (D / 2) and f_j = base ** (-2 j / s):

            - ``"half_hw"``: f reads h, then f reads w; pairs (i, i + D / 2). Qwen2-VL, Qwen2.5-VL,
              Qwen3-VL, GLM-4.1V and most towers after them; DINOv3 with real coordinates, base 100
              and scale 2 pi.
            - ``"half_wh"``: w before h. Step-3.7, Muse.
            - ``"half_alternating_wh"``: f_0 reads w, f_0 h, f_1 w, f_1 h, ... Kimi-K2.5.
            - ``"half_parity_hw"``: one series over D; its even members read h, its odd ones w.
              Pixtral.
            - ``"half_thw"``: three axes, s = 2 ((D // 3) // 2); the channels from 3 s on pass.
              MiniMax-M3-VL.
            - ``"pairs_wh"``: f reads w, then f reads h; pairs (2i, 2i + 1). SAM 2, SAM 3, EdgeTAM,
              Inkling-2, Llama 4, RoPE-Axial of RoPE-ViT (base 100).
            - ``"pairs_hw"``: h before w. EVA-02.
            - ``"blocks_wh"``: the first half of the head is RoPE by w, the second by h, each in
              two halves. Gemma 4 (base 100).
        base: theta.
        scale: multiplies every position; it becomes part of the frequencies.
        offset: added to every position before it is scaled (Llama 4: 1).
        n_prefix, n_suffix: tokens at the beginning and the end of the sequence that have no
            position (class token, registers); they pass bit for bit.
        seq_dim: the axis of x that is time: 1 for (B, L, H, D), 2 for (B, H, L, D).

    The layer holds no tensor: ``inv_freq`` and ``axes`` are lists of numbers.

    Sources: Heo et al. 2024, arXiv:2403.13298; Qwen2-VL, arXiv:2409.12191; Pixtral,
    arXiv:2410.07073; DINOv3, arXiv:2508.10104.

    >>> tower = posenc.AxialRotaryEmbedding(80, arrangement="half_hw")
    >>> position_ids = P.vision_position_ids(torch.tensor([[1, 4, 6]]))  # 4 rows, 6 columns
    >>> tower(torch.randn(2, 24, 16, 80), position_ids).shape
    torch.Size([2, 24, 16, 80])
    """

    inv_freq: list[float]
    axes: list[int]

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        head_dim: int,
        arrangement: str = "half_hw",
        base: float = 10000.0,
        *,
        scale: float = 1.0,
        offset: int = 0,
        n_prefix: int = 0,
        n_suffix: int = 0,
        seq_dim: int = 1,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.head_dim = positive_int(where, "head_dim", head_dim)
        self.arrangement = str(arrangement)
        self.base = positive_real(where, "base", base)
        self.scale = real(where, "scale", scale)
        self.offset = any_int(where, "offset", offset)
        self.n_prefix = any_int(where, "n_prefix", n_prefix)
        self.n_suffix = any_int(where, "n_suffix", n_suffix)
        self.seq_dim = any_int(where, "seq_dim", seq_dim)
        options = _C.AxialRotaryEmbeddingOptions(self.head_dim)
        options.arrangement = self.arrangement
        options.base = self.base
        options.scale = self.scale
        options.n_prefix = self.n_prefix
        options.n_suffix = self.n_suffix
        options.check()
        frequencies = options.frequencies()
        self.inv_freq = list(frequencies.inv_freq)
        self.axes = list(frequencies.axes)
        self.interleaved = frequencies.interleaved
        self.blocks = frequencies.blocks
        self.n_axes = frequencies.n_axes

    @classmethod
    def from_config(
        cls, config: Any, layer_idx: int | None = None, **overrides: Any
    ) -> "AxialRotaryEmbedding":
        """The layer of a vision tower, by its ``vision_config``.

        Positions are then those of `posenc.functional.vision_position_ids` (for DINOv3 and
        Sapiens-2 of `posenc.functional.grid_coordinates`), in the order that the tower gives its
        patches. Tokens without a place in Inkling-2 stand at -1.

        Args:
            config: a Hugging Face configuration, or a mapping with its keys, whose ``model_type``
                names a tower that one of the arrangements serves; or that of a whole model, with
                the tower's inside (``vision_config``).
            layer_idx: number of the layer, for SAM 3, whose global layers scale the positions.
            overrides: constructor arguments that replace what the configuration gives.

        Raises:
            ValueError: a ``model_type`` that is not served, naming it; a missing key.
        """
        where = f"{cls.__name__}.from_config"

        def get(name: str) -> Any:
            return _read(config, name)

        # A whole model's configuration holds that of its tower.
        for inner in ("vision_config", "backbone_config"):
            if get("model_type") not in _TOWERS and get(inner) is not None:
                config = get(inner)
        model_type = get("model_type")
        if f"{model_type}_vision" in _TOWERS:  # as older checkpoints name it
            model_type = f"{model_type}_vision"
        if model_type not in _TOWERS:
            raise ValueError(
                f"{where}: expected the configuration of a vision tower with axial RoPE, one of "
                f"{', '.join(sorted(_TOWERS))}; got model_type {model_type!r}"
            )
        arrangement, width_of, base, extras = _TOWERS[model_type]
        rope = get("rope_parameters") or get("rope_scaling") or {}
        theta = rope.get("rope_theta", get("rope_theta"))
        arguments: dict[str, Any] = {
            "arrangement": arrangement,
            "base": base if theta is None else theta,
            **(extras(where, get, layer_idx) if extras else {}),
            **overrides,
        }
        return cls(width_of(where, get), **arguments)

    def _rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        if not torch.jit.is_tracing() and x.size(-1) != self.head_dim:
            raise ValueError(
                f"AxialRotaryEmbedding: expected the last axis of x to be head_dim = "
                f"{self.head_dim}, got shape {list(x.shape)}"
            )
        return torch.ops.posenc.axial_rotary_embedding(
            x,
            self.inv_freq,
            self.axes,
            position_ids,
            self.offset,
            self.seq_dim,
            self.interleaved,
            self.blocks,
            self.n_prefix,
            self.n_suffix,
            False,
        )

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Rotates x.

        Args:
            x: (B, L, H, D), or another shape with time on ``seq_dim``.
            position_ids: (A, L), the same for each row of the batch, or (A, B, L), of the tokens
                between prefix and suffix: row (h, y) and column (w, x), with three axes t, h, w;
                integer or real.

        Returns:
            x's shape and dtype.
        """
        return self._rotate(x, position_ids)

    @torch.jit.export
    def rotate(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates q and k, whose head counts may differ, by the same positions."""
        return self._rotate(q, position_ids), self._rotate(k, position_ids)

    def extra_repr(self) -> str:
        text = f"{self.head_dim}, arrangement={self.arrangement}, base={self.base:g}"
        for name, default in (
            ("scale", 1.0),
            ("offset", 0),
            ("n_prefix", 0),
            ("n_suffix", 0),
            ("seq_dim", 1),
        ):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


def _read(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


# How the configurations of transformers name the numbers of a tower.
_Get = Callable[[str], Any]


def _needed(where: str, get: _Get, *names: str) -> Any:
    for name in names:
        value = get(name)
        if value is not None:
            return value
    raise ValueError(f"{where}: expected the key {' or '.join(names)}, got None")


def _head_width(where: str, get: _Get) -> int:
    if get("head_dim") is not None:
        return get("head_dim")
    heads = _needed(where, get, "num_attention_heads", "num_heads")
    return _needed(where, get, "hidden_size") // heads


def _qwen2_width(where: str, get: _Get) -> int:
    """Qwen2-VL's hidden_size is that of the language model."""
    if get("head_dim") is not None:
        return get("head_dim")
    return _needed(where, get, "embed_dim") // _needed(
        where, get, "num_heads", "num_attention_heads"
    )


def _memory_width(where: str, get: _Get) -> int:
    """The memory attention of SAM 2 and what follows it."""
    return _needed(where, get, "memory_attention_hidden_size") // (
        _needed(where, get, "memory_attention_downsample_rate")
        * _needed(where, get, "memory_attention_num_attention_heads")
    )


def _turns(where: str, get: _Get, layer_idx: int | None) -> dict[str, Any]:
    """DINOv3: a coordinate of 1 is one turn; the class token and the registers come first."""
    return {"scale": 2 * math.pi, "n_prefix": 1 + (get("num_register_tokens") or 0)}


def _from_one(where: str, get: _Get, layer_idx: int | None) -> dict[str, Any]:
    """Rows and columns are counted from 1."""
    return {"offset": 1}


def _from_one_class_last(where: str, get: _Get, layer_idx: int | None) -> dict[str, Any]:
    return {"offset": 1, "n_suffix": 1}


def _windows(where: str, get: _Get, layer_idx: int | None) -> dict[str, Any]:
    """SAM 3: the positions of global layers are shrunk to the span of a window."""
    if layer_idx is None:
        raise ValueError(
            f"{where}: expected layer_idx (the global layers of SAM 3 scale the positions), got "
            "None"
        )
    if layer_idx not in _needed(where, get, "global_attn_indexes"):
        return {}
    image, patch = _needed(where, get, "image_size"), _needed(where, get, "patch_size")
    image, patch = (v[0] if isinstance(v, (list, tuple)) else v for v in (image, patch))
    return {"scale": _needed(where, get, "window_size") / (image // patch)}


#: model_type: arrangement, head width, theta where the configuration has none, further arguments
_TOWERS: dict[str, tuple[str, Callable, float, Callable | None]] = {
    "qwen2_vl_vision": ("half_hw", _qwen2_width, 10000.0, None),
    **dict.fromkeys(
        (
            "cohere_compass_vision",
            "dots3_note_vision_encoder",
            "ernie4_5_vl_moe_vision",
            "exaone4_5_vision",
            "glm4v_moe_vision",
            "glm4v_vision",
            "glm5_next_vision",
            "glm_ocr_vision",
            "lfm3_vl_vision",
            "paddleocr_vl_vision",
            "qwen2_5_omni_vision_encoder",
            "qwen2_5_vl_vision",
            "qwen3_5_moe_vision",
            "qwen3_5_vision",
            "qwen3_omni_moe_vision_encoder",
            "qwen3_vl_moe_vision",
            "qwen3_vl_vision",
            "qwen4_exp_vision",
            "video_llama_3_vision",
        ),
        ("half_hw", _head_width, 10000.0, None),
    ),
    "step3p5_vision": ("half_wh", _head_width, 10000.0, None),
    "muse_glimmer_vision": ("half_wh", _head_width, 10000.0, _from_one),
    "muse_spark_vision": ("half_wh", _head_width, 10000.0, _from_one),
    "kimi_k25_vision": ("half_alternating_wh", _head_width, 10000.0, None),
    "pixtral": ("half_parity_hw", _head_width, 10000.0, None),
    "minimax_m3_vl_vision": ("half_thw", _head_width, 10000.0, None),
    "gemma4_vision": ("blocks_wh", _head_width, 100.0, None),
    "inkling2_vision": ("pairs_wh", _head_width, 10000.0, _from_one),
    "llama4_vision_model": ("pairs_wh", _head_width, 10000.0, _from_one_class_last),
    "sam3_vit_model": ("pairs_wh", _head_width, 10000.0, _windows),
    "sam2_video": ("pairs_wh", _memory_width, 10000.0, None),
    "sam3_tracker_video": ("pairs_wh", _memory_width, 10000.0, None),
    "edgetam_video": ("pairs_wh", _memory_width, 10000.0, None),
    "dinov3_vit": ("half_hw", _head_width, 100.0, _turns),
    "sapiens2": ("half_hw", _head_width, 100.0, _turns),
}
