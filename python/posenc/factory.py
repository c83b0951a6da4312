"""The encoding that a configuration names."""

from typing import Any

from torch import nn

from .absolute import LearnedPositionalEncoding, SinusoidalPositionalEncoding
from .attention import ALiBiAttention
from .rotary import RotaryPositionalEmbedding

__all__ = ["choose_positional_encoding"]

_ALIASES: dict[str, str] = {
    "absolute": "sinusoidal",
    "fixed": "sinusoidal",
    "sincos": "sinusoidal",
    "sine": "sinusoidal",
    "embedding": "learned",
    "learnable": "learned",
    "rotary": "rope",
    "identity": "none",
}
_KNOWN = ("sinusoidal", "learned", "rope", "alibi", "none")


def choose_positional_encoding(config: Any) -> nn.Module:
    """The encoding that a configuration names.

    Args:
        config: a mapping, or an object with these names as attributes:

            ==============================  =====================================================
            ``pos_encoding_type``           ``"sinusoidal"`` (the default), ``"learned"``,
                                            ``"rope"``, ``"alibi"``, ``"none"``; see below for
                                            further spellings
            ``d_model``                     width of the model
            ``max_seq_len``                 2048; rows of a learned table, no limit for the
                                            others
            ``n_heads``                     8 for alibi; for rope the width is ``head_dim``, else
                                            ``d_model // n_heads`` where n_heads is given, else
                                            ``d_model``
            ``n_kv_heads``, ``is_causal``   for alibi
            ``base``, ``interleaved``       for sinusoidal and rope
            ``rotary_dim``, ``scaling``     for rope
            ==============================  =====================================================

            Other names are not read: a whole model's configuration may be given. Spellings:
            rotary = rope; sine, sincos, fixed, absolute = sinusoidal; embedding, learnable =
            learned; identity, None = none; upper or lower case.

    Returns:
        `SinusoidalPositionalEncoding`, `LearnedPositionalEncoding`, `RotaryPositionalEmbedding`,
        `ALiBiAttention`, or ``nn.Identity`` for none.

    Raises:
        ValueError: an unknown type, with the list of known ones, or a missing ``d_model``.

    >>> config = {"pos_encoding_type": "rope", "d_model": 512, "n_heads": 8}
    >>> posenc.choose_positional_encoding(config)
    RotaryPositionalEmbedding(64, base=10000, interleaved=True)
    """

    def given(name: str) -> bool:
        return get(name) is not None

    def get(name: str, default: Any = None) -> Any:
        if hasattr(config, "get") and hasattr(config, "keys"):
            value = config.get(name)
        else:
            value = getattr(config, name, None)
        return default if value is None else value

    def extras(*names: str) -> dict[str, Any]:
        return {name: get(name) for name in names if given(name)}

    where = "choose_positional_encoding"
    kind = get("pos_encoding_type")
    if kind is None:
        named = (
            "pos_encoding_type" in config
            if hasattr(config, "keys")
            else hasattr(config, "pos_encoding_type")
        )
        kind = "none" if named else "sinusoidal"
    key = kind.strip().lower() if isinstance(kind, str) else kind
    key = _ALIASES.get(key, key) if isinstance(key, str) else key
    if key not in _KNOWN:
        raise ValueError(
            f"{where}: expected pos_encoding_type to be one of {', '.join(_KNOWN)}, got {kind!r}"
        )
    if key == "none":
        return nn.Identity()
    if not given("d_model") and not (key == "rope" and given("head_dim")):
        raise ValueError(f"{where}: expected d_model for the type {kind!r}, got none")
    d_model, max_seq_len = get("d_model"), get("max_seq_len", 2048)
    if key == "sinusoidal":
        return SinusoidalPositionalEncoding(d_model, max_seq_len, **extras("base", "interleaved"))
    if key == "learned":
        return LearnedPositionalEncoding(max_seq_len, d_model)
    if key == "alibi":
        return ALiBiAttention(
            d_model, get("n_heads", 8), max_seq_len, **extras("n_kv_heads", "is_causal")
        )
    width = get("head_dim")
    if width is None:
        width = d_model
        if given("n_heads"):
            if d_model % get("n_heads"):
                raise ValueError(
                    f"{where}: expected d_model to be a multiple of n_heads, "
                    f"got d_model {d_model} and n_heads {get('n_heads')}"
                )
            width = d_model // get("n_heads")
    return RotaryPositionalEmbedding(
        width, max_seq_len, **extras("base", "interleaved", "rotary_dim", "scaling")
    )
