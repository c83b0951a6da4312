"""`LearnedRotaryEmbedding`: RoPE whose frequencies are trained."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _C
from .._layer import (
    ROTARY_KEYS,
    KeepsFloat32,
    Layer,
    at_least_float32,
    positive_int,
    positive_real,
)
from ..functional.rotary import rotary_embedding
from ._options import fill_options, shown
from .dictionary import arguments_from_config


class LearnedRotaryEmbedding(KeepsFloat32, Layer):
    """Rotary position embedding with trained frequencies.

    Args:
        head_dim: head width D: the last axis of x.
        base: theta of the frequencies f that training starts from.
        n_heads: one set of frequencies for each of so many heads, which q and k (4-D) must have;
            None: one set for all.
        parametrisation: ``"log"`` (LeRoPE, Mistral Large 4): the frequencies are
            ``f * exp(alpha)`` with a parameter ``alpha`` of zeros. ``"direct"``: the parameter
            ``freqs`` is the frequencies. The log form is the better conditioned one, since a step
            of alpha moves every frequency by the same share.
        scaling: dictionary as in a Hugging Face configuration; it shapes f. Dynamic NTK and
            LongRoPE, whose f depends on the length, are refused.
        max_seq_len, interleaved, rotary_dim, rotary_start: as in `RotaryPositionalEmbedding`.
        axes, seq_dim, attention_factor, interleaved_out, inverse: as there.
        device, dtype: of the parameter, (n) or (n_heads, n), n = rotary_dim / 2.

    **Precision.** An angle is position x frequency, so a frequency in bfloat16 (2^-8 relative)
    turns a fast pair by a whole radian after some 256 tokens. Hence the parameter is never a half
    type: where the layer is built in, or cast to, bfloat16 or float16, the parameter stays float32
    (a mixture of dtypes; torch's first FSDP needs it among its ``ignored_states``). ``alpha`` in
    float32 turns the angle at position p by at most ``p f |alpha| 2^-24``, and by nothing at its
    initial 0, where the layer equals `RotaryPositionalEmbedding` bit for bit; ``freqs`` in float32
    by ``p f 2^-24``, and by nothing in float64.

    ``inv_freq`` (list of float) are the initial frequencies, `frequencies` gives the current ones.

    >>> rope = posenc.LearnedRotaryEmbedding(64, n_heads=8)
    >>> rope(torch.randn(2, 100, 8, 64)).shape
    torch.Size([2, 100, 8, 64])
    >>> rope.alpha.shape
    torch.Size([8, 32])
    """

    inv_freq: list[float]
    axes: list[int] | None
    interleaved_out: bool | None

    # "freqs" is what other codes name trained frequencies: not to be ignored when it is loaded.
    _legacy_keys = frozenset(key for key in ROTARY_KEYS if not key.endswith("freqs"))

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        n_heads: int | None = None,
        parametrisation: str = "log",
        max_seq_len: int = 5000,
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.head_dim = positive_int(where, "head_dim", head_dim)
        self.n_heads = None if n_heads is None else positive_int(where, "n_heads", n_heads)
        self.parametrisation = str(parametrisation)
        options = _C.LearnedRotaryEmbeddingOptions(self.head_dim)
        options.max_seq_len = positive_int(where, "max_seq_len", max_seq_len)
        options.base = positive_real(where, "base", base)
        options.n_heads = self.n_heads
        options.parametrisation = self.parametrisation
        fill_options(
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
        n = len(self.inv_freq)
        shape = (n,) if self.n_heads is None else (self.n_heads, n)
        weight = torch.empty(shape, device=device, dtype=at_least_float32(dtype))
        log = parametrisation == "log"
        self.register_parameter("alpha", nn.Parameter(weight) if log else None)
        self.register_parameter("freqs", None if log else nn.Parameter(weight))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to the initial frequencies."""
        with torch.no_grad():
            if self.alpha is not None:
                self.alpha.zero_()
            if self.freqs is not None:
                self.freqs.copy_(torch.tensor(self.inv_freq, dtype=torch.float64))

    @torch.jit.export
    def frequencies(self) -> Tensor:
        """The current frequencies, radians per position: float64 (n), or (1, n_heads, n)."""
        return self._frequencies()

    def _frequencies(self) -> Tensor:
        if self.alpha is not None:  # noqa: SIM108  (TorchScript drops the branch that is None)
            weight = self.alpha
        else:
            weight = self.freqs
        return torch.ops.posenc.learned_inv_freq(weight, self.inv_freq, self.parametrisation)

    @classmethod
    def from_config(
        cls, config: Any, layer_type: str | None = None, **overrides: Any
    ) -> "LearnedRotaryEmbedding":
        """The layer whose initial frequencies a model's configuration describes; as
        `RotaryPositionalEmbedding.from_config`. ``overrides`` are arguments of this class."""
        arguments = arguments_from_config(config, layer_type, overrides)
        return cls(arguments.pop("d_model"), **arguments)

    def _turn(self, x: Tensor, position_ids: Tensor | None, offset: int) -> Tensor:
        if not torch.jit.is_tracing() and x.size(-1) != self.head_dim:
            raise ValueError(
                "LearnedRotaryEmbedding: expected the last axis of x to be "
                f"head_dim = {self.head_dim}, got shape {list(x.shape)}"
            )
        return rotary_embedding(
            x,
            self._frequencies(),
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

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Rotates x.

        Args:
            x: (B, L, H, D), or another shape with time on ``seq_dim``.
            position_ids: (L), (1, L) or (B, L), integer or real, negative too; with ``axes``
                (A, B, L). None: 0 ... L - 1.
            offset: added to every position: the number of tokens before this call.

        Returns:
            x's shape and dtype.
        """
        return self._turn(x, position_ids, offset)

    @torch.jit.export
    def rotate(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotates q and k by the same positions."""
        return self._turn(q, position_ids, offset), self._turn(k, position_ids, offset)

    def extra_repr(self) -> str:
        text = f"{self.head_dim}, base={self.base:g}, parametrisation={self.parametrisation!r}"
        if self.n_heads is not None:
            text += f", n_heads={self.n_heads}"
        return text + f", interleaved={self.interleaved}" + shown(self, self.head_dim)
