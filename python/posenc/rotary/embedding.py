"""`RotaryPositionalEmbedding`: the one RoPE layer."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _C
from .._layer import ROTARY_KEYS, Layer, positive_int, positive_real
from .._tracing import traced_offset
from ..functional.cached_keys import re_rotate, shift
from ..functional.rotary import rotary_embedding, rotary_embedding_qk, rotary_embedding_qkv
from ..functional.temperature import query_temperature
from ._options import fill_options, shown
from .dictionary import arguments_from_config


class RotaryPositionalEmbedding(Layer):
    """Rotary position embedding: turns pairs of channels of q and k by position x frequency.

    Args:
        d_model: head width D: the last axis of x. (The article's name; it is the width of a head.)
        max_seq_len: no limit: kept for the article's signature. Any position works, exactly.
        base: theta, 10000 in the paper.
        interleaved: pairs are channels (2i, 2i + 1) as in the paper; False: (i, i + rotary_dim / 2)
            as Llama in transformers and GPT-NeoX.
        rotary_dim: number of rotated channels, even; None: all from ``rotary_start`` on.
        rotary_start: first rotated channel.
        axes: for each frequency the axis of ``position_ids`` that it reads (M-RoPE);
            ``position_ids`` are then (A, B, L).
        seq_dim: the axis of x that is time: 1 for (B, L, H, D), 2 for (B, H, L, D).
        scaling: dictionary as in a Hugging Face configuration (``{"rope_type": ...}``).
        attention_factor: scales the rotated channels; None: what ``scaling`` says, else 1.
        interleaved_out: the layout to write, where it differs from the one to read.
        inverse: turn by the negative angle (NanoChat).

    ``inv_freq`` (list of float, highest first) and ``attention_factor`` are plain numbers: the
    layer holds no tensor, so nothing is cast, saved, moved or rebuilt.

    Source: Su et al. 2021, arXiv:2104.09864.

    >>> rope = posenc.RotaryPositionalEmbedding(64, interleaved=False)
    >>> q, k = torch.randn(2, 100, 8, 64), torch.randn(2, 100, 2, 64)
    >>> q, k = rope.rotate(q, k)
    >>> q.shape, k.shape
    (torch.Size([2, 100, 8, 64]), torch.Size([2, 100, 2, 64]))
    """

    inv_freq: list[float]
    long_inv_freq: list[float]
    axes: list[int] | None
    interleaved_out: bool | None

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        d_model: int,
        max_seq_len: int = 5000,
        base: float = 10000.0,
        *,
        interleaved: bool = True,
        rotary_dim: int | None = None,
        rotary_start: int = 0,
        axes: Sequence[int] | None = None,
        seq_dim: int = 1,
        scaling: Mapping[str, Any] | None = None,
        attention_factor: float | None = None,
        interleaved_out: bool | None = None,
        inverse: bool = False,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.d_model = positive_int(where, "d_model", d_model)
        self.max_seq_len = positive_int(where, "max_seq_len", max_seq_len)
        self.base = positive_real(where, "base", base)
        # One place checks what a RoPE may be and computes its frequencies: the C++ options.
        options = _C.RotaryPositionalEmbeddingOptions(self.d_model)
        options.max_seq_len = self.max_seq_len
        options.base = self.base
        frequencies = fill_options(
            where,
            self,
            options,
            interleaved=interleaved,
            interleaved_out=interleaved_out,
            inverse=inverse,
            rotary_dim=rotary_dim,
            rotary_start=rotary_start,
            axes=axes,
            seq_dim=seq_dim,
            scaling=scaling,
            attention_factor=attention_factor,
        )
        rope_scaling = options.scaling
        self.rope_type = rope_scaling.type
        # Dynamic NTK and LongRoPE choose by each sequence's own length, in forward.
        self.depends_on_length = rope_scaling.depends_on_length()
        self.long_inv_freq = list(frequencies.long_inv_freq)
        self.trained_length = frequencies.trained_length
        self.series_width = frequencies.dim
        self.factor = 1.0 if rope_scaling.factor is None else rope_scaling.factor
        # 0: the queries have no temperature.
        self.query_beta = rope_scaling.llama_4_scaling_beta or 0.0
        self.query_floor = float(rope_scaling.original_max_position_embeddings or 0)
        self.config = options.to_dict()

    @classmethod
    def from_config(
        cls, config: Any, layer_type: str | None = None, **overrides: Any
    ) -> "RotaryPositionalEmbedding":
        """The layer that a model's configuration describes.

        Args:
            config: a Hugging Face configuration, or a mapping with the keys of its config.json:
                current and legacy spellings (``rope_parameters``, ``rope_scaling`` and ``type``,
                ``rotary_pct``, ``rotary_dim``, ``rope_local_base_freq``, ...), a multimodal model's
                ``text_config`` included. By its ``model_type`` the layer has the layout, the axes
                and the peculiarities of that model's code in transformers, and what the file
                leaves out (theta, the head's width and rotated share) is as that model's
                configuration has it; without, it is as Llama: channels (i, i + rotary_dim / 2).
            layer_type: the entry to use where layers differ (``"full_attention"``,
                ``"sliding_attention"``, ...).
            overrides: constructor arguments that replace what the configuration gives.

        Raises:
            ValueError: a missing or unknown key, or a type of scaling that is not known, with its
                name and value.

        >>> llama = {"model_type": "llama", "head_dim": 128, "rope_parameters": {"rope_theta": 5e5}}
        >>> rope = posenc.RotaryPositionalEmbedding.from_config(llama)
        >>> rope.d_model, rope.interleaved, rope.inv_freq[0]
        (128, False, 1.0)
        """
        return cls(**arguments_from_config(config, layer_type, overrides))

    def to_dict(self) -> dict[str, Any]:
        """A configuration that `from_config` reads as this layer."""
        return copy.deepcopy(self.config)

    def _side_by_side(self, x: Tensor) -> bool:
        """True for a 3-D x whose heads lie side by side on the last axis; False for plain heads."""
        if torch.jit.is_tracing() or x.size(-1) == self.d_model:
            return False
        if x.dim() != 3 or x.size(-1) == 0 or x.size(-1) % self.d_model != 0:
            raise ValueError(
                "RotaryPositionalEmbedding: expected the last axis of x to be the head "
                f"width d_model = {self.d_model} (or a 3-D x with heads side by side, a "
                f"multiple of it), got shape {list(x.shape)}"
            )
        return True

    def _rotate(self, x: Tensor, position_ids: Tensor | None, offset: int) -> Tensor:
        packed = self._side_by_side(x)
        if packed:
            x = x.unflatten(-1, [-1, self.d_model])
        if self.depends_on_length:
            x = rotary_embedding(
                x,
                self._inv_freq_of_length(x, position_ids, offset),
                position_ids,
                offset,
                self.seq_dim,
                self.interleaved,
                self.interleaved_out,
                self.rotary_start,
                self.attention_factor,
                self.axes,
                self.inverse,
            )
        else:
            x = rotary_embedding(
                x,
                self.inv_freq,
                position_ids,
                offset,
                self.seq_dim,
                self.interleaved,
                self.interleaved_out,
                self.rotary_start,
                self.attention_factor,
                self.axes,
                self.inverse,
            )
        return x.flatten(-2) if packed else x

    def _inv_freq_of_length(self, x: Tensor, position_ids: Tensor | None, offset: int) -> Tensor:
        """(B or 1, 1, n) float64: frequencies by the length that each row reaches."""
        if not torch.jit.is_scripting():
            position_ids, offset = traced_offset(x, position_ids, offset, self.seq_dim)
        lengths = torch.ops.posenc.rope_lengths(x, position_ids, offset, self.seq_dim)
        return self._inv_freq_of_lengths(lengths)

    def _inv_freq_of_lengths(self, lengths: Tensor) -> Tensor:
        if self.rope_type == "longrope":
            return torch.ops.posenc.longrope_inv_freq(
                lengths, self.inv_freq, self.long_inv_freq, self.trained_length
            )
        return torch.ops.posenc.dynamic_ntk_inv_freq(
            lengths, self.inv_freq, self.factor, self.trained_length, self.series_width
        )

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Rotates x.

        Args:
            x: (B, L, H, D), or another shape with time on ``seq_dim``; a 3-D (B, L, H D) is read
                as H heads side by side.
            position_ids: (L), (1, L) or (B, L), integer or real, negative too; with ``axes``
                (A, B, L). None: 0 ... L - 1.
            offset: added to every position: the number of tokens before this call.

        Returns:
            x's shape and dtype.
        """
        return self._rotate(x, position_ids, offset)

    @torch.jit.export
    def rotate(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotates q and k, whose head counts may differ, by the same positions, in one call.

        Where the scaling has a ``llama_4_scaling_beta`` (Ministral 3, Mistral 4), q also gets its
        temperature, `posenc.functional.query_temperature`, as in those models.
        """
        if self.query_beta > 0.0:
            q = query_temperature(
                q, self.query_beta, self.query_floor, position_ids, offset, self.seq_dim, 0.0
            )
        if self.depends_on_length:
            return self._rotate(q, position_ids, offset), self._rotate(k, position_ids, offset)
        q_packed, k_packed = self._side_by_side(q), self._side_by_side(k)
        if q_packed:
            q = q.unflatten(-1, [-1, self.d_model])
        if k_packed:
            k = k.unflatten(-1, [-1, self.d_model])
        q, k = rotary_embedding_qk(
            q,
            k,
            self.inv_freq,
            position_ids,
            offset,
            self.seq_dim,
            self.interleaved,
            self.interleaved_out,
            self.rotary_start,
            self.attention_factor,
            self.axes,
            self.inverse,
        )
        return q.flatten(-2) if q_packed else q, k.flatten(-2) if k_packed else k

    @torch.jit.export
    def rotate_packed(
        self,
        qkv: Tensor,
        n_kv_heads: int | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Rotates q and k inside a packed projection, in one pass; v passes bit for bit.

        Args:
            qkv: (B, L, heads, D), heads of q, then of k, then of v; the same with the heads side by
                side, (B, L, heads D); or (B, L, 3, H, D) as flash-attention packs it.
            n_kv_heads: heads of k, and of v; None: a third of all.

        Returns:
            qkv's shape and dtype.

        >>> rope = posenc.RotaryPositionalEmbedding(64)
        >>> rope.rotate_packed(torch.randn(2, 100, 12, 64), n_kv_heads=2).shape  # 8 + 2 + 2 heads
        torch.Size([2, 100, 12, 64])
        """
        if self.query_beta > 0.0:
            raise ValueError(
                "rotate_packed: expected a scaling without llama_4_scaling_beta, whose temperature "
                f"is for q alone, got {self.query_beta}; use rotate"
            )
        side_by_side = self._side_by_side(qkv)
        if side_by_side:
            qkv = qkv.unflatten(-1, [-1, self.d_model])
        if qkv.dim() == 5:
            n_heads = qkv.size(3)
            n_kv = n_heads if n_kv_heads is None else n_kv_heads
            rotated = 2
        elif qkv.dim() == 4:
            heads = qkv.size(2)
            if n_kv_heads is None and heads % 3 != 0:
                raise ValueError(
                    "rotate_packed: expected n_kv_heads, or a number of heads divisible by 3, got "
                    f"{heads} heads in qkv of shape {list(qkv.shape)}"
                )
            n_kv = heads // 3 if n_kv_heads is None else n_kv_heads
            n_heads = heads - 2 * n_kv
            rotated = n_heads + n_kv
        else:
            raise ValueError(
                f"rotate_packed: expected qkv of shape (B, L, heads, {self.d_model}), "
                f"(B, L, heads * {self.d_model}) or (B, L, 3, H, {self.d_model}), got "
                f"{list(qkv.shape)}"
            )
        if n_heads < 1 or n_kv < 1:
            raise ValueError(
                "rotate_packed: expected heads of q and of k, got n_kv_heads "
                f"{n_kv_heads} for qkv of shape {list(qkv.shape)}"
            )
        if self.depends_on_length:
            front = self._rotate(qkv.narrow(2, 0, rotated), position_ids, offset)
            qkv = torch.cat([front, qkv.narrow(2, rotated, qkv.size(2) - rotated)], 2)
        else:
            qkv = rotary_embedding_qkv(
                qkv,
                self.inv_freq,
                n_heads,
                n_kv,
                position_ids,
                offset,
                self.seq_dim,
                self.interleaved,
                self.interleaved_out,
                self.rotary_start,
                self.attention_factor,
                self.axes,
                self.inverse,
            )
        return qkv.flatten(-2) if side_by_side else qkv

    def inv_freq_at(self, length: int | Tensor) -> list[float] | Tensor:
        """The frequencies that a sequence of ``length`` tokens is rotated by.

        They depend on it for dynamic NTK and LongRoPE alone; elsewhere they are ``inv_freq``.

        Args:
            length: an int, or a tensor (B) of the rows' own lengths.

        Returns:
            list of n floats, or float64 (B, 1, n).
        """
        if isinstance(length, Tensor):
            if length.dim() == 0:  # a size, in torch.jit.trace
                length = length[None]
            if self.depends_on_length:
                return self._inv_freq_of_lengths(length)
            freq = torch.tensor(self.inv_freq, dtype=torch.float64, device=length.device)
            return freq.expand(length.size(0), 1, -1)
        if not self.depends_on_length:
            return list(self.inv_freq)
        return self._inv_freq_of_lengths(torch.tensor([length], device="cpu")).flatten().tolist()

    def _layout_out(self) -> bool:
        """The layout that leaves `forward`: pairs or not."""
        written = self.interleaved_out
        return self.interleaved if written is None else written

    def _turn(self) -> tuple[Any, ...]:
        """Which channels of a key were turned, beside by how much."""
        return self._layout_out(), self.rotary_start, self.rotary_dim, self.axes, self.inverse

    @torch.jit.export
    def shift(
        self, keys: Tensor, delta: int | Tensor, inv_freq: list[float] | Tensor | None = None
    ) -> Tensor:
        """Moves cached keys, which this layer rotated, by ``delta`` positions.

        A pure rotation of the layer's own channels: the attention factor that the keys carry is not
        applied again. The next query stands where the keys now end.

        Args:
            keys: as they left the layer, any shape that it takes but heads side by side.
            delta: one number, or a tensor (B) one a row, (B, L) one a key.
            inv_freq: what the keys carry; needed where frequencies depend on the length
                (``rope.inv_freq_at(length)``).

        Raises:
            ValueError: the layer has several position axes, whose keys no one number can move.

        >>> rope = posenc.RotaryPositionalEmbedding(64)
        >>> k = torch.randn(1, 10, 2, 64)
        >>> moved = rope.shift(rope(k, offset=5), -5)
        >>> torch.testing.assert_close(moved, rope(k))
        """
        if self.axes is not None:
            raise ValueError(
                "RotaryPositionalEmbedding.shift: expected one position axis; keys that stand at "
                "several positions each (images and videos among text) cannot be moved by one "
                "number"
            )
        if inv_freq is None:
            if self.depends_on_length:
                raise ValueError(
                    "RotaryPositionalEmbedding.shift: expected inv_freq, the frequencies that the "
                    "keys carry (rope.inv_freq_at(length)), because those of type "
                    f"{self.rope_type} depend on the length"
                )
            inv_freq = self.inv_freq
        return shift(
            keys,
            delta,
            inv_freq,
            self.seq_dim,
            self._layout_out(),
            self.rotary_start,
            self.inverse,
        )

    def re_rotate(
        self,
        keys: Tensor,
        old: "RotaryPositionalEmbedding | list[float] | Tensor",
        new: list[float] | Tensor | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
        old_attention_factor: float | None = None,
    ) -> Tensor:
        """Moves cached keys from the frequencies ``old`` to this layer's, or to ``new``.

        With dynamic NTK, whose frequencies change as the text grows:

        >>> scaling = {"rope_type": "dynamic", "factor": 4.0}
        >>> rope = posenc.RotaryPositionalEmbedding(64, max_seq_len=32, scaling=scaling)
        >>> keys = rope(torch.randn(1, 100, 8, 64))
        >>> old, new = rope.inv_freq_at(100), rope.inv_freq_at(101)
        >>> keys = rope.re_rotate(keys, old, new)

        With a layer that replaces another: ``extended.re_rotate(keys, original)``.

        Args:
            keys: as they left the layer that rotated them.
            old: that layer, or its frequencies.
            new: frequencies to move to; None: this layer's.
            position_ids, offset: the positions that the keys were rotated at.
            old_attention_factor: what the keys are scaled by; None: as ``old`` says, or this
                layer's.
        """
        if isinstance(old, RotaryPositionalEmbedding):
            if old._turn() != self._turn():
                raise ValueError(
                    "RotaryPositionalEmbedding.re_rotate: expected a layer of the same layout, "
                    f"channels and axes, got {old} for {self}"
                )
            if old.depends_on_length:
                raise ValueError(
                    "RotaryPositionalEmbedding.re_rotate: expected the frequencies that the keys "
                    "carry (old.inv_freq_at(length)), because those of type "
                    f"{old.rope_type} depend on the length"
                )
            if old_attention_factor is None:
                old_attention_factor = old.attention_factor
            old = old.inv_freq
        if new is None:
            if self.depends_on_length:
                raise ValueError(
                    "RotaryPositionalEmbedding.re_rotate: expected new (rope.inv_freq_at(length)), "
                    f"because the frequencies of type {self.rope_type} depend on the length"
                )
            new = self.inv_freq
        if old_attention_factor is None:
            old_attention_factor = self.attention_factor
        return re_rotate(
            keys,
            old,
            new,
            position_ids,
            offset,
            self.seq_dim,
            self._layout_out(),
            self.rotary_start,
            old_attention_factor,
            self.attention_factor,
            self.axes,
            self.inverse,
        )

    @torch.jit.export
    def apply_rotary_pos_emb(
        self, x: Tensor, seq_len: int | None = None, offset: int = 0
    ) -> Tensor:
        """The article's method: x (B, L, H, D) at positions offset ... offset + L - 1.

        Args:
            seq_len: L, checked where given.
        """
        traced = torch.jit.is_tracing()
        if seq_len is not None and not traced and seq_len != x.size(self.seq_dim):
            raise ValueError(
                "apply_rotary_pos_emb: expected seq_len to be the length of x "
                f"({x.size(self.seq_dim)}), got {seq_len}"
            )
        return self._rotate(x, None, offset)

    def extra_repr(self) -> str:
        text = f"{self.d_model}, base={self.base:g}, interleaved={self.interleaved}"
        return text + shown(self, self.d_model)
