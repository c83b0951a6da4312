"""A small pre-norm Transformer whose only variable part is how it is told about position."""

from __future__ import annotations

import zlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..absolute import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from ..attention import ALiBiAttention, RoPEAttention

VOCABULARY = 256  # one token per byte


class PlainAttention(nn.Module):
    """Causal attention that knows nothing of position; children named as in posenc's layers."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.query_proj = nn.Linear(d_model, d_model)
        self.key_proj = nn.Linear(d_model, d_model)
        self.value_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.n_heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q = self.heads(self.query_proj(x))
        k = self.heads(self.key_proj(x))
        v = self.heads(self.value_proj(x))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(out.transpose(1, 2).reshape(x.shape))


def make_attention(encoding: str, d_model: int, n_heads: int) -> nn.Module:
    if encoding == "rope":
        return RoPEAttention(d_model, n_heads, is_causal=True)
    if encoding == "alibi":
        return ALiBiAttention(d_model, n_heads, is_causal=True)
    return PlainAttention(d_model, n_heads)


def make_position(encoding: str, d_model: int, max_length: int) -> nn.Module:
    if encoding == "sinusoidal":
        return SinusoidalPositionalEncoding(d_model)
    if encoding == "learned":
        return LearnedPositionalEncoding(max_length, d_model)
    return nn.Identity()


class Block(nn.Module):
    def __init__(self, encoding: str, d_model: int, n_heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = make_attention(encoding, d_model, n_heads)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """Bytes (B, L) to logits of the next byte (B, L, 256)."""

    def __init__(self, encoding: str, d_model: int, layers: int, heads: int, max_length: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.position = make_position(encoding, d_model, max_length)
        self.blocks = nn.ModuleList(Block(encoding, d_model, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.position(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Draw every matrix anew from a generator of its own, keyed by its name, so that models that
    differ in their encoding start from the same weights everywhere else. Ranges are those of
    torch's own layers; biases start at 0."""
    for name, module in model.named_modules():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            module.weight.uniform_(-bound, bound, generator=generator)
            module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            std = 1.0 if name == "embedding" else 0.02
            module.weight.normal_(0.0, std, generator=generator)
