"""`QueryTemperature` and `nope_layers`: long contexts on layers without rope."""

from torch import Tensor

from .. import _C
from .._layer import Layer, any_int, positive_real, real
from ..functional.temperature import query_temperature


class QueryTemperature(Layer):
    """Queries at position p times ``1 + scale * ln(1 + floor((p + shift) / floor_scale))``.

    Args:
        scale: growth with each e-fold; Llama 4's ``attn_scale``, 0.1.
        floor_scale: positions of one step; Llama 4's ``floor_scale``, 8192.
        shift: added to the position before the division; 1 for Llama 4.
        seq_dim: the axis of the queries that is time: 1 for (B, L, H, D), 2 for (B, H, L, D).

    Llama 4 applies it on its layers without rope (`nope_layers`), with the defaults. Ministral 3
    and Mistral 4 apply it on every layer, after the rotation:
    ``QueryTemperature(llama_4_scaling_beta, original_max_position_embeddings, shift=0)``.
    Positions before floor_scale pass bit for bit. See `posenc.functional.query_temperature`.

    >>> warm = posenc.QueryTemperature(scale=0.5, floor_scale=2, shift=0)
    >>> warm(torch.ones(1, 4, 1, 1)).flatten()
    tensor([1.0000, 1.0000, 1.3466, 1.3466])
    """

    _legacy_keys = frozenset()  # type: FrozenSet[str]

    def __init__(
        self,
        scale: float = 0.1,
        floor_scale: float = 8192.0,
        shift: float = 1.0,
        *,
        seq_dim: int = 1,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.scale = real(where, "scale", scale)
        self.floor_scale = positive_real(where, "floor_scale", floor_scale)
        self.shift = real(where, "shift", shift)
        self.seq_dim = any_int(where, "seq_dim", seq_dim)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Scales queries.

        Args:
            x: (B, L, H, D), or another shape with time on ``seq_dim``.
            position_ids: (L), (1, L) or (B, L), integer or real. None: 0 ... L - 1.
            offset: added to every position: the number of tokens before this call.

        Returns:
            x's shape and dtype.
        """
        return query_temperature(
            x,
            self.scale,
            self.floor_scale,
            position_ids,
            offset,
            self.seq_dim,
            self.shift,
        )

    def extra_repr(self) -> str:
        text = f"scale={self.scale:g}, floor_scale={self.floor_scale:g}, shift={self.shift:g}"
        return text if self.seq_dim == 1 else text + f", seq_dim={self.seq_dim}"


def nope_layers(n_layers: int, every: int = 4) -> list[bool]:
    """Which layers of a model have no rope, where every ``every``-th goes without.

    Args:
        n_layers: number of layers.
        every: layer l, counted from 0, has no rope where l + 1 is a multiple of it.

    Returns:
        ``n_layers`` flags, True where there is no rope. The configurations of Llama 4, SmolLM3 and
        Mistral Large 4 (every 4th) list the opposite under the name ``no_rope_layers``: 1 where
        rope is used.

    Raises:
        ValueError: n_layers below 0 or every below 1.

    >>> posenc.nope_layers(6)
    [False, False, False, True, False, False]
    """
    where = "nope_layers"
    return list(
        _C.nope_layers(any_int(where, "n_layers", n_layers), any_int(where, "every", every))
    )
