"""Small random models of transformers, one a row of `MODELS`; nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 96


@dataclass(frozen=True)
class TinyModel:
    """How to build a model and what to call it with."""

    model_class: str
    config_class: str
    options: dict[str, Any] = field(default_factory=dict)
    #: Takes a size (1 small, 4 large); None: rows of tokens.
    inputs: Callable[[int], dict[str, Tensor]] | None = None
    generates: bool = True
    entries: int = 0  #: what accelerate exchanges in it

    def build(self, gain: float = 1.5) -> nn.Module:
        import transformers

        torch.manual_seed(1)
        config = getattr(transformers, self.config_class)(**self.options)
        model = getattr(transformers, self.model_class)(config).eval()
        if hasattr(model, "generation_config"):
            model.generation_config.pad_token_id = 0
            model.generation_config.eos_token_id = None
        return spread(model, gain)

    def call(self, size: int = 1) -> dict[str, Tensor]:
        return tokens(2 * size**2, 11 * size) if self.inputs is None else self.inputs(size)


def spread(model: nn.Module, gain: float) -> nn.Module:
    """Weights large enough that attention is far from uniform: a wrong rotation shows."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, gain / parameter.size(-1) ** 0.5, generator=generator)
    return model


def tokens(batch: int = 2, length: int = 11) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length), generator=generator)}


def _text(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def _vision_inputs(patch: int) -> Callable[[int], dict[str, Tensor]]:
    """Rows of text, each with one image of 4 x 4 patches (more for a size), merged 2 x 2."""

    def make(size: int) -> dict[str, Tensor]:
        rows, side = 2 * size - 1, 4 * size
        merged = side * side // 4
        text = tokens(rows, 9 + merged)["input_ids"] % 60 + 3
        text[:, 3], text[:, 4 + merged] = 92, 93
        text[:, 4 : 4 + merged] = 90
        generator = torch.Generator().manual_seed(4)
        patches = torch.randn(rows * side * side, 6 * patch * patch, generator=generator)
        return {
            "input_ids": text,
            "mm_token_type_ids": (text == 90).int(),
            "pixel_values": patches,
            "image_grid_thw": torch.tensor([[1, side, side]] * rows),
        }

    return make


_SPECIAL = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}

MODELS: dict[str, TinyModel] = {
    "llama": TinyModel("LlamaForCausalLM", "LlamaConfig", _text(), entries=2),
    "qwen2": TinyModel("Qwen2ForCausalLM", "Qwen2Config", _text(), entries=2),
    "qwen3": TinyModel("Qwen3ForCausalLM", "Qwen3Config", _text(head_dim=16), entries=2),
    "mistral": TinyModel(
        "MistralForCausalLM", "MistralConfig", _text(head_dim=8, sliding_window=6), entries=2
    ),
    "gemma3": TinyModel(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _text(
            head_dim=16,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        ),
        entries=2,
    ),
    "glm4": TinyModel("Glm4ForCausalLM", "Glm4Config", _text(head_dim=16), entries=2),
    "gpt_neox": TinyModel(
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        _text(rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        entries=2,
    ),
    "gptj": TinyModel(
        "GPTJForCausalLM",
        "GPTJConfig",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "rotary_dim": 8,
            "n_positions": 256,
        },
        entries=2,
    ),
    "phi3": TinyModel(
        "Phi3ForCausalLM",
        "Phi3Config",
        _text(partial_rotary_factor=0.5, original_max_position_embeddings=256),
        entries=2,
    ),
    "deepseek_v3": TinyModel(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        _text(
            num_key_value_heads=4,
            q_lora_rank=12,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            moe_intermediate_size=16,
            n_shared_experts=1,
        ),
        entries=4,
    ),
    "cohere": TinyModel("CohereForCausalLM", "CohereConfig", _text(), entries=2),
    "falcon": TinyModel(
        "FalconForCausalLM",
        "FalconConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "alibi": False,
        },
        entries=2,
    ),
    "falcon_alibi": TinyModel(
        "FalconForCausalLM",
        "FalconConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "alibi": True,
        },
        entries=3,
    ),
    "bloom": TinyModel(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 2, "n_head": 6},
        entries=3,
    ),
    "mpt": TinyModel(
        "MptForCausalLM",
        "MptConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 48,
            "n_layers": 2,
            "n_heads": 6,
            "expansion_ratio": 2,
            "max_seq_len": 256,
        },
        entries=3,
    ),
    "qwen2_vl": TinyModel(
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        {
            "text_config": _text(
                rope_parameters={
                    "rope_theta": 1e4,
                    "rope_type": "default",
                    "mrope_section": [1, 1, 2],
                }
            ),
            "vision_config": {
                "depth": 2,
                "embed_dim": 32,
                "num_heads": 2,
                "hidden_size": 32,
                "mlp_ratio": 2,
            },
            **_SPECIAL,
        },
        _vision_inputs(14),
        entries=4,
    ),
    "qwen2_5_vl": TinyModel(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {
            "text_config": _text(
                rope_parameters={
                    "rope_theta": 1e4,
                    "rope_type": "default",
                    "mrope_section": [1, 1, 2],
                }
            ),
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "num_heads": 2,
                "intermediate_size": 40,
                "out_hidden_size": 32,
                "fullatt_block_indexes": [1],
                "window_size": 28,
            },
            **_SPECIAL,
        },
        _vision_inputs(14),
        entries=4,
    ),
    "qwen3_vl": TinyModel(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLConfig",
        {
            "text_config": _text(
                head_dim=16,
                rope_parameters={
                    "rope_theta": 1e4,
                    "rope_type": "default",
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
            ),
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "num_heads": 2,
                "intermediate_size": 40,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
            **_SPECIAL,
        },
        _vision_inputs(16),
        entries=4,
    ),
}

#: Not in the promise by name: found by structure alone.
OTHERS: dict[str, TinyModel] = {
    "gpt_oss": TinyModel(
        "GptOssForCausalLM",
        "GptOssConfig",
        _text(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=6),
        entries=2,
    ),
    "nanochat": TinyModel("NanoChatForCausalLM", "NanoChatConfig", _text(), entries=2),
    "llama4": TinyModel(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        _text(
            head_dim=8,
            intermediate_size_mlp=40,
            num_local_experts=2,
            num_hidden_layers=4,
            attention_chunk_size=8,
        ),
        entries=4,
    ),
    "olmo2": TinyModel("Olmo2ForCausalLM", "Olmo2Config", _text(), entries=2),
    "stablelm": TinyModel("StableLmForCausalLM", "StableLmConfig", _text(), entries=2),
    "dinov3": TinyModel(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "num_register_tokens": 2,
        },
        lambda size: {
            "pixel_values": torch.randn(size, 3, 32, 32, generator=torch.Generator().manual_seed(5))
        },
        generates=False,
        entries=2,
    ),
    "modernbert": TinyModel(
        "ModernBertModel", "ModernBertConfig", _text(), generates=False, entries=2
    ),
}
