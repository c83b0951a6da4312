"""ALiBi attention of BLOOM, MPT and Falcon without a matrix of biases.

transformers adds slope x key position to the scores and a mask of (B, 1, L, S) on top. The bias
between two tokens is the same as -slope x distance, up to a number for each row that the softmax
does not see, so `alibi_attention` needs the positions of queries and keys and which keys are
padding: no L x S tensor.

Two classes take part: the model, whose forward hands on `Keys` in place of the mask, and the
attention, which computes with them. The model decides at each call whether ours serves: for
attention weights as output, masks of four axes, packed rows and dropout of weights in training it
runs as transformers wrote it.
"""

import functools
import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...functional import alibi_slopes
from ._alibi_keys import Count, Keys, attend, keys_of, own_biases, places, real_tokens
from ._rebuild import Rebuilder, called_names
from ._swap import MAKERS, Note, exchange_of, subclass

# ------------------------------------------------------------------ the attention of each model


def _bloom(scope: dict[str, Any]) -> Callable[..., Any]:
    dropout_add = scope["dropout_add"]

    def attention(
        self: nn.Module,
        hidden_states: Tensor,
        residual: Tensor,
        attention_mask: Keys,
        layer_past: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        q, k, v = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            k, v = layer_past.update(k, v, self.layer_idx)
        context = attend(q, k, v, self._posenc_slopes, self.inv_norm_factor, attention_mask)
        out = self.dense(context)
        return dropout_add(out, residual, self.hidden_dropout, self.training), None

    return attention


def _mpt(scope: dict[str, Any]) -> Callable[..., Any]:
    def attention(
        self: nn.Module,
        hidden_states: Tensor,
        attention_mask: Keys,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        qkv = self.Wqkv(hidden_states)
        if self.clip_qkv:
            qkv = qkv.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, self.head_dim)).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        context = attend(q, k, v, self._posenc_slopes, self.softmax_scale, attention_mask)
        return self.out_proj(context), None

    return attention


def _falcon(scope: dict[str, Any]) -> Callable[..., Any]:
    def attention(
        self: nn.Module,
        hidden_states: Tensor,
        attention_mask: Keys,
        layer_past: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        q, k, v = self._split_heads(self.query_key_value(hidden_states))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if layer_past is not None:
            k, v = layer_past.update(k, v, self.layer_idx)
        scale = self.inv_norm_factor  # of the bias as well
        slopes = [slope * scale for slope in self._posenc_slopes]
        return self.dense(attend(q, k, v, slopes, scale, attention_mask)), None

    return attention


def _falcon_biases(scope: dict[str, Any], config: Any) -> Count:
    """Falcon rounds slope, position and their product to bfloat16, and adds the result, scaled as
    the scores are: once with sdpa, twice where it is written out."""
    times = 2 if config._attn_implementation == "eager" else 1
    scale = times / math.sqrt(config.hidden_size // config.num_attention_heads)
    return functools.partial(
        own_biases, build=scope["build_alibi_tensor"], heads=config.num_attention_heads, scale=scale
    )


def _bloom_slopes(scope: dict[str, Any], heads: int) -> list[float]:
    ones = torch.ones(1, 2, dtype=torch.long)
    return scope["build_alibi_tensor"](ones, heads, torch.float32)[:, 0, 1].tolist()


def _mpt_slopes(scope: dict[str, Any], heads: int) -> list[float]:
    return (-scope["build_mpt_alibi_tensor"](heads, 2)[:, 0, 0]).tolist()


class _Family(NamedTuple):
    """How a model of transformers 5.24 does ALiBi."""

    model: str
    attention: str
    attend: Callable[[dict[str, Any]], Callable[..., Any]]
    slopes: Callable[[dict[str, Any], int], list[float]]
    heads: str  #: name of the attention's number of heads
    count: Count  #: its positions
    #: Where it rounds its biases: they instead, unless exact ones are asked for.
    biases: Callable[[dict[str, Any], Any], Count] | None
    attentions: Callable[[nn.Module], list[nn.Module]]  #: of the model
    dropout: Callable[[nn.Module], float]  #: of an attention's weights
    uses_alibi: Callable[[Any], bool]  #: from the configuration
    needs: tuple[str, ...]  #: names that the attention's forward has to use


_FAMILIES = (
    _Family(
        "transformers.models.bloom.modeling_bloom.BloomModel",
        "transformers.models.bloom.modeling_bloom.BloomAttention",
        _bloom,
        _bloom_slopes,
        "num_heads",
        real_tokens,
        None,
        lambda model: [block.self_attention for block in model.h],
        lambda attention: attention.attention_dropout.p,
        lambda config: not (config.pretraining_tp > 1 and config.slow_but_exact),
        ("_reshape", "baddbmm", "inv_norm_factor", "dropout_add"),
    ),
    _Family(
        "transformers.models.mpt.modeling_mpt.MptModel",
        "transformers.models.mpt.modeling_mpt.MptAttention",
        _mpt,
        _mpt_slopes,
        "n_heads",
        places,
        None,
        lambda model: [block.attn for block in model.blocks],
        lambda attention: attention.attn_dropout_p,
        lambda config: True,
        ("Wqkv", "clip_qkv", "softmax_scale", "out_proj"),
    ),
    _Family(
        "transformers.models.falcon.modeling_falcon.FalconModel",
        "transformers.models.falcon.modeling_falcon.FalconAttention",
        _falcon,
        _bloom_slopes,
        "num_heads",
        real_tokens,
        _falcon_biases,
        lambda model: [block.self_attention for block in model.h],
        lambda attention: attention.attention_dropout.p,
        lambda config: bool(config.alibi),
        ("_split_heads", "inv_norm_factor", "dense"),
    ),
)


def _family(cls: type) -> tuple[_Family, bool] | None:
    """The family of a class and whether it is the model; None for any other class."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    for family in _FAMILIES:
        if name in (family.model, family.attention):
            return family, name == family.model
    return None


def _scope(cls: type) -> dict[str, Any]:
    return inspect.unwrap(cls.forward).__globals__


def applies(module: nn.Module, original: type) -> bool:
    """Whether a module of class ``original`` takes part in ALiBi attention."""
    found = _family(original)
    if found is None:
        return False
    config = getattr(module, "config", None)
    return config is None or found[0].uses_alibi(config)


def notes(original: type) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """What is exchanged in such a class, and what is left."""
    exchanged = alibi_class(original)
    if exchanged is None:
        return (), (Note("alibi", "forward", "not written as in transformers 5.24"),)
    exchange = exchange_of(exchanged)
    return (exchange.notes if exchange else ()), ()


def state(module: nn.Module, original: type, exact: bool) -> dict[str, Any]:
    """What an exchanged module has to know."""
    found = _family(original)
    if found is None or found[1]:
        return {"_posenc_exact": exact}
    family, heads = found[0], getattr(module, found[0].heads)
    with torch.no_grad(), torch.device("cpu"):
        slopes = family.slopes(_scope(original), heads)
    if exact:
        slopes = alibi_slopes(heads)
    return {"_posenc_slopes": slopes, "_posenc_exact": exact}


# ------------------------------------------------------------------ the classes

_SUBCLASSES: dict[type, type | None] = {}


def alibi_class(cls: type) -> type | None:
    """The subclass of a model or attention class; None where it is not as we know it."""
    if cls not in _SUBCLASSES:
        found = _family(cls)
        if found is None:
            _SUBCLASSES[cls] = None
        elif found[1]:
            _SUBCLASSES[cls] = _model_class(cls, found[0])
        else:
            _SUBCLASSES[cls] = _attention_class(cls, found[0])
    return _SUBCLASSES[cls]


MAKERS["alibi"] = alibi_class


def _attention_class(cls: type, family: _Family) -> type | None:
    plain: Any = cls.forward
    if not set(family.needs) <= set(called_names(inspect.unwrap(plain).__code__)):
        return None
    ours = family.attend(_scope(cls))

    @functools.wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("attention_mask"), Keys):
            return ours(self, *args, **kwargs)
        return plain(self, *args, **kwargs)

    note = Note("alibi", "forward", "distances in place of a bias")
    return subclass(cls, "alibi", {"forward": forward}, (note,))


def _model_class(cls: type, family: _Family) -> type | None:
    plain: Any = cls.forward
    scope = _scope(cls)
    calls = {exact: _with_keys(plain, scope, family, exact) for exact in (False, True)}
    if None in calls.values():
        return None
    names = tuple(inspect.signature(plain).parameters)[1:]

    @functools.wraps(plain)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        call = calls[self._posenc_exact] if _serves(self, family, given) else plain
        return call(self, *args, **kwargs)

    note = Note("alibi", "create_causal_mask", "positions in place of a mask")
    return subclass(cls, "alibi", {"forward": forward}, (note,))


def _with_keys(
    plain: Any, scope: dict[str, Any], family: _Family, exact: bool
) -> FunctionType | None:
    """The model's forward with `Keys` in the place of its mask."""
    causal_mask = scope.get("create_causal_mask")
    biases = None if exact else family.biases

    def keys(
        config: Any,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Keys:
        count = family.count if biases is None else biases(scope, config)
        return keys_of(inputs_embeds, attention_mask, cache, count, biases is not None)

    rebuilder = Rebuilder(lambda value: keys if value is causal_mask else None)
    return None if causal_mask is None else rebuilder.function(plain)


def _serves(model: nn.Module, family: _Family, given: dict[str, Any]) -> bool:
    config, mask = model.config, given.get("attention_mask")
    weights = given.get("output_attentions")
    if config.output_attentions if weights is None else weights:
        return False
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        return False
    if mask is None and given.get("position_ids") is not None and not _caches(model, given):
        return False  # transformers looks for packed rows in them
    if config._attn_implementation not in ("eager", "sdpa"):
        return False
    if not getattr(config, "is_causal", True) or not family.uses_alibi(config):
        return False
    for attention in family.attentions(model):
        if "_posenc_slopes" not in vars(attention):  # restored by itself
            return False
        if model.training and family.dropout(attention) > 0:
            return False
    return True


def _caches(model: nn.Module, given: dict[str, Any]) -> bool:
    """Whether the model will have a cache, by the rules of its own forward."""
    if given.get("cache") is not None or given.get("past_key_values") is not None:
        return True
    asked = given.get("use_cache")
    wanted = model.config.use_cache if asked is None else asked
    return bool(wanted) and not (model.gradient_checkpointing and model.training)
