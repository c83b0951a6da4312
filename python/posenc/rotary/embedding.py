"""`RotaryPositionalEmbedding`: the one RoPE layer."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _C
from .._layer import ROTARY_KEYS, Layer, any_int, positive_int, positive_real, real
from .dictionary import arguments_from_config, read_scaling


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
        self.inverse = bool(inverse)
        self.interleaved_out = None if interleaved_out is None else bool(interleaved_out)
        self.rotary_start = any_int(where, "rotary_start", rotary_start)
        self.seq_dim = any_int(where, "seq_dim", seq_dim)
        self.scaling = None if scaling is None else dict(scaling)
        # One place checks what a RoPE may be and computes its frequencies: the C++ options.
        options = _C.RotaryPositionalEmbeddingOptions(self.d_model)
        options.max_seq_len = self.max_seq_len
        options.base = self.base
        options.interleaved = bool(interleaved)
        options.interleaved_out = self.interleaved_out
        options.inverse = self.inverse
        if rotary_dim is not None:
            options.rotary_dim = any_int(where, "rotary_dim", rotary_dim)
        options.rotary_start = self.rotary_start
        if axes is not None:
            options.axes = [any_int(where, "axes", axis) for axis in axes]
        options.seq_dim = self.seq_dim
        if attention_factor is not None:
            options.attention_factor = real(where, "attention_factor", attention_factor)
        rope_scaling = read_scaling(where, {} if scaling is None else scaling)
        options.scaling = rope_scaling
        options.check()
        self.base = options.theta()
        self.interleaved = options.reads_pairs()
        self.axes = options.resolved_axes() or None
        self.rotary_dim = options.width()
        self.rope_type = rope_scaling.type
        frequencies = options.frequencies()
        self.inv_freq = list(frequencies.inv_freq)
        self.attention_factor = frequencies.attention_factor
        # Dynamic NTK and LongRoPE choose by each sequence's own length, in forward.
        self.depends_on_length = rope_scaling.depends_on_length()
        self.long_inv_freq = list(frequencies.long_inv_freq)
        self.trained_length = frequencies.trained_length
        self.factor = 1.0 if rope_scaling.factor is None else rope_scaling.factor
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
                and the peculiarities of that model's code in transformers; without, it is as
                Llama: channels (i, i + rotary_dim / 2).
            layer_type: the entry to use where layers differ (``"full_attention"``,
                ``"sliding_attention"``, ...).
            overrides: constructor arguments that replace what the configuration gives.

        Raises:
            ValueError: a missing or unknown key, or a type of scaling that is not known, with its
                name and value.
        """
        return cls(**arguments_from_config(config, layer_type, overrides))

    def to_dict(self) -> dict[str, Any]:
        """A configuration that `from_config` reads as this layer."""
        return copy.deepcopy(self.config)

    def _rotate(self, x: Tensor, position_ids: Tensor | None, offset: int) -> Tensor:
        packed = False
        if not torch.jit.is_tracing() and x.size(-1) != self.d_model:
            packed = x.dim() == 3 and x.size(-1) > 0 and x.size(-1) % self.d_model == 0
            if not packed:
                raise ValueError(
                    "RotaryPositionalEmbedding: expected the last axis of x to be the head "
                    f"width d_model = {self.d_model} (or a 3-D x with heads side by side, a "
                    f"multiple of it), got shape {list(x.shape)}"
                )
        if packed:
            x = x.unflatten(-1, [-1, self.d_model])
        if self.depends_on_length:
            x = torch.ops.posenc.rotary_embedding(
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
            x = torch.ops.posenc.rotary_embedding(
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
        lengths = torch.ops.posenc.rope_lengths(x, position_ids, offset, self.seq_dim)
        if self.rope_type == "longrope":
            return torch.ops.posenc.longrope_inv_freq(
                lengths, self.inv_freq, self.long_inv_freq, self.trained_length
            )
        return torch.ops.posenc.dynamic_ntk_inv_freq(
            lengths, self.inv_freq, self.factor, self.trained_length
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
        """Rotates q and k, whose head counts may differ, by the same positions."""
        return self._rotate(q, position_ids, offset), self._rotate(k, position_ids, offset)

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

    @torch.jit.export
    def shift(self, k: Tensor, delta: int, deltas: Tensor | None = None) -> Tensor:
        """Keys that were rotated before, moved by ``delta`` positions: what a cache needs when
        tokens in front of them are dropped. A pure turn, whatever ``attention_factor`` is.

        Args:
            k: as `forward` returned it.
            delta: positions to move by, negative towards the front.
            deltas: (L), (1, L) or (B, L), integer or real: further moves of each token.

        Raises:
            ValueError: keys that cannot be moved by one number: with ``axes``, where images and
                videos stand at several positions, and where the frequencies depend on the length.
        """
        if self.axes is not None:
            raise ValueError(
                "RotaryPositionalEmbedding.shift: expected one position axis; keys that stand at "
                "several positions each (images and videos among text) cannot be moved by one "
                "number"
            )
        if self.depends_on_length:
            raise ValueError(
                "RotaryPositionalEmbedding.shift: expected frequencies that do not depend on the "
                f"length, as those of the scaling {self.rope_type} do: keys of another length are "
                "to be rotated anew"
            )
        moves = deltas
        if moves is None:
            moves = torch.zeros(k.size(self.seq_dim), dtype=torch.int64, device=k.device)
        layout, written = self.interleaved, self.interleaved_out
        if written is not None:
            layout = written
        return torch.ops.posenc.rotary_embedding(
            k,
            self.inv_freq,
            moves,
            delta,
            self.seq_dim,
            layout,
            None,
            self.rotary_start,
            1.0,
            None,
            self.inverse,
        )

    def extra_repr(self) -> str:
        text = f"{self.d_model}, base={self.base:g}, interleaved={self.interleaved}"
        if self.interleaved_out is not None:
            text += f", interleaved_out={self.interleaved_out}"
        if self.rotary_dim != self.d_model:
            text += f", rotary_dim={self.rotary_dim}, rotary_start={self.rotary_start}"
        if self.axes is not None:
            text += f", axes={self.axes}"
        if self.inverse:
            text += ", inverse=True"
        if self.seq_dim != 1:
            text += f", seq_dim={self.seq_dim}"
        if self.scaling is not None:
            text += f", scaling={self.scaling}"
        if self.attention_factor != 1.0:
            text += f", attention_factor={self.attention_factor:g}"
        return text
