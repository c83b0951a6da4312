"""`accelerate`, `restore` and `swapped`."""

import logging
import threading
from typing import Any, NamedTuple, TypeVar

from torch import nn

from . import _alibi, _attention, _tables
from ._report import Entry, Report
from ._swap import Note, exchange_of, exchanged_class, set_class, unwind

_MODEL = TypeVar("_MODEL", bound=nn.Module)
_LOCK = threading.Lock()
_log = logging.getLogger(__name__)

#: The first version of transformers that the tests were run with.
_OLDEST = (5, 24)


def accelerate(model: _MODEL, exact: bool = False) -> _MODEL:
    """Lets a loaded transformers model rotate, and attend with ALiBi, by our operators.

    The rotation takes the model's own cos and sin, ALiBi (BLOOM, MPT, Falcon) the model's own
    biases: what it was trained with. ALiBi attention then needs O(L) memory; its rows of padding,
    which transformers fills with an average, are 0. The model is changed
    in place, in training and in inference, and only this model: another of the same class stays as
    it is. Weights, state dict, configuration, hooks and the names of the classes stay as well;
    copies and pickles of the model are accelerated as it is. A second call changes nothing, or
    goes over to another ``exact``. Call it before ``torch.compile`` and before FSDP.

    What is exchanged is found in the modules' own code: each function that takes cos and sin is
    called on random numbers to see which layout it has (halves or pairs, a part of the head, ...),
    and one that no layout explains is left and named in `swapped`. Calls that the operator does not
    serve go to the model's own function.

    Args:
        model: a model of transformers, or any module with such modules inside.
        exact: cos and sin are computed from the configuration by our rules: the angle in float64,
            rounded once, whatever the model's dtype; frequencies that depend on the length follow
            each row's own. ALiBi is exact too (Falcon rounds its biases to bfloat16). A module
            whose code and configuration disagree keeps its own tables; `swapped` names it.

    Returns:
        ``model`` itself.

    Raises:
        ImportError: no transformers, or one that is older than 5.24.
        TypeError: ``model`` is no ``nn.Module``.
        ValueError: nothing in the model could be exchanged; the message says what was looked for.
        RuntimeError: other code (FSDP) derived a class from an exchanged one.
    """
    _require_transformers()
    if not isinstance(model, nn.Module):
        raise TypeError(f"accelerate: expected model to be an nn.Module, got {model!r}")
    with _LOCK:
        _check_classes("accelerate", model)
        plans = _plans(model, bool(exact))
        if not any(plan.notes for _, plan in plans):
            raise ValueError(_nothing(model, [note for _, plan in plans for note in plan.left]))
        for module, plan in plans:
            _forget(module)
            vars(module).update(plan.state)
            if plan.left:
                vars(module)["_posenc_left"] = plan.left
            set_class(module, exchanged_class(plan.original, plan.kinds))
    _log.info("accelerate: %s", swapped(model))
    return model


def restore(model: _MODEL) -> _MODEL:
    """Undoes `accelerate`: the classes of all modules are the original ones again.

    Args:
        model: an accelerated model; any other is left as it is.

    Returns:
        ``model`` itself.

    Raises:
        RuntimeError: other code (FSDP) derived a class from an exchanged one.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"restore: expected model to be an nn.Module, got {model!r}")
    with _LOCK:
        _check_classes("restore", model)
        for module in model.modules():
            _forget(module)
            set_class(module, unwind(type(module))[0])
    return model


def swapped(model: nn.Module) -> Report:
    """What `accelerate` exchanged in ``model`` and what it had to leave, module by module.

    It is read from the model's state, so it is right for copies and after `restore` too.
    """
    done: list[Entry] = []
    left: list[Entry] = []
    exact = False
    for name, module in model.named_modules():
        original, exchanges = unwind(type(module))
        for exchange in exchanges:
            done += [Entry(name, original.__name__, *note) for note in exchange.notes]
            exact = exact or exchange.kind == "tables"
        exact = exact or vars(module).get("_posenc_exact", False)
        left += [Entry(name, original.__name__, *n) for n in vars(module).get("_posenc_left", ())]
    return Report(tuple(done), tuple(left), exact)


class _Plan(NamedTuple):
    """What to do with one module."""

    original: type
    kinds: tuple[str, ...]  #: the exchanges that make its class
    state: dict[str, Any]  #: attributes that the exchanged class reads
    notes: tuple[Note, ...]
    left: tuple[Note, ...]


def _plans(model: nn.Module, exact: bool) -> list[tuple[nn.Module, _Plan]]:
    configs: dict[str, Any] = {}
    plans = []
    for name, module in model.named_modules():
        above = configs.get(name.rpartition(".")[0]) if name else None
        configs[name] = getattr(module, "config", above)
        plans.append((module, _plan(module, exact)))
    if not exact or not any("rotation" in plan.kinds and plan.notes for _, plan in plans):
        return plans
    for i, (name, (module, plan)) in enumerate(zip(configs, plans, strict=True)):
        if not plan.notes and _tables.makes_tables(module, plan.original):
            made, left = _tables.tables(module, plan.original, configs[name])
            kinds = () if made is None else ("tables",)
            state = {} if made is None else {"_posenc_tables": made}
            plans[i] = (module, _Plan(plan.original, kinds, state, (), plan.left + left))
    return plans


def _plan(module: nn.Module, exact: bool) -> _Plan:
    original, _ = unwind(type(module))
    if _alibi.applies(module, original):
        notes, left = _alibi.notes(original)
        state = _alibi.state(module, original, exact) if notes else {}
        return _Plan(original, ("alibi",), state, notes, left)
    scan = _attention.scan(original)
    return _Plan(original, ("rotation",), {}, scan.notes, scan.left)


def _check_classes(where: str, model: nn.Module) -> None:
    """No exchanged class may lie below another: it could not be taken out."""
    for name, module in model.named_modules():
        cls = type(module)
        if exchange_of(cls) is None and hasattr(cls, "_posenc_exchange"):
            raise RuntimeError(
                f"{where}: expected module {name!r} to have the class that accelerate gave it, got "
                f"{cls}, derived from it by other code; undo that first"
            )


def _forget(module: nn.Module) -> None:
    """Removes the attributes of an exchange."""
    for name in [name for name in vars(module) if name.startswith("_posenc_")]:
        del vars(module)[name]


def _nothing(model: nn.Module, left: list[Note]) -> str:
    text = (
        "accelerate: expected a model whose modules call a rotary function, one that takes cos and "
        "sin (apply_rotary_pos_emb, apply_rotary_pos_emb_vision, ...), or the ALiBi attention of "
        f"BLOOM, MPT or Falcon; got {type(model).__name__}, whose "
        f"{len({type(m) for m in model.modules()})} classes of modules have none"
    )
    if left:
        text += "; left: " + "; ".join(sorted({f"{n.function}: {n.detail}" for n in left}))
    return text


def _require_transformers() -> None:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "posenc.integrations.transformers needs the package transformers, which cannot be "
            f"imported ({error}); `pip install transformers`"
        ) from error
    version = transformers.__version__
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ImportError(
            f"posenc.integrations.transformers needs transformers >= {oldest}, got {version}"
        )
