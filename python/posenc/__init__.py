"""Positional encodings for Transformers: one C++ library, fused operators, drop-in layers.

>>> import torch, posenc
>>> rope = posenc.RotaryPositionalEmbedding(64)
>>> rope(torch.randn(2, 128, 8, 64)).shape
torch.Size([2, 128, 8, 64])

Layers live here (``posenc.RoPEAttention``), operators with defaults in
``posenc.functional``, and the C++ modules, wrapped as ``nn.Module``, in ``posenc.cpp``. What an
encoding does is told by ``posenc.analysis`` and drawn by ``posenc.plots``. Examples take
``import torch, posenc`` and ``import posenc.functional as P`` for granted.
"""

import os as _os
import typing as _typing

import torch as _torch


def _release(version: str) -> str:
    """Major and minor number of a version: what has to agree for the C++ ABI."""
    return ".".join(version.split("+")[0].split(".")[:2])


_HOW_TO_BUILD = (
    "Build it for the installed torch with `pip install --no-build-isolation .` in a checkout "
    "of posenc (or `make demo` / `make test`, which build in place)."
)

try:
    from . import _build_info
except ImportError as _error:
    raise ImportError(
        f"posenc: the compiled library is missing from {_os.path.dirname(__file__)}: "
        f"this package has not been built. {_HOW_TO_BUILD}"
    ) from _error

# Checked before the binary is loaded: with another torch it would fail with an undefined symbol.
if _release(_build_info.TORCH_VERSION) != _release(_torch.__version__):
    raise ImportError(
        f"posenc {_build_info.VERSION} was built for torch {_build_info.TORCH_VERSION}, but torch "
        f"{_torch.__version__} is installed. {_HOW_TO_BUILD} Or install torch "
        f"{_release(_build_info.TORCH_VERSION)}."
    )

if _build_info.CUDA and _torch.version.cuda is None:
    raise ImportError(
        f"posenc {_build_info.VERSION} was built with CUDA kernels, but torch {_torch.__version__} "
        f"is a build without CUDA, whose libraries they need. {_HOW_TO_BUILD}"
    )

try:
    from . import _C
except ImportError as _error:
    raise ImportError(
        f"posenc: the compiled library of {_os.path.dirname(__file__)} cannot be loaded "
        f"({_error}). {_HOW_TO_BUILD}"
    ) from _error

__version__: str = _build_info.VERSION
#: Folder of the package's CMake configuration, for ``CMAKE_PREFIX_PATH`` of a C++ project.
cmake_prefix_path: str = _os.path.join(
    _os.path.dirname(_os.path.abspath(__file__)), "share", "cmake"
)


def get_include() -> str:
    """Folder of the C++ headers: with it on the include path, ``#include <posenc/posenc.h>``."""
    return _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "include")


def _build_id() -> str:
    """What tells one build from another: size and time of the library's own file, so that a
    rebuild of a checkout counts as well."""
    folder = _os.path.join(_os.path.dirname(__file__), "lib")
    files = [_C.__file__]
    if _os.path.isdir(folder):
        files += [_os.path.join(folder, name) for name in sorted(_os.listdir(folder))]
    stats = [_os.stat(name) for name in files]
    return "-".join(f"{s.st_size:x}.{s.st_mtime_ns:x}" for s in stats)


def _tag_compile_cache() -> None:
    """Make torch's on-disk cache of compiled code depend on this build.

    Compiled code keeps the autograd formula of an operator, so after an upgrade a cache
    without this tag would go on using the old one.
    """
    from torch.compiler import config

    tag = f"posenc-{_build_info.VERSION}-{_build_id()}"
    if tag not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag} {tag}".strip()


_tag_compile_cache()

from . import functional  # noqa: E402
from .absolute import (  # noqa: E402
    LearnedPositionalEncoding,
    SinusoidalPositionalEncoding,
    TransformerEmbedding,
    add_positional_encoding,
    get_positional_encoding,
)
from .attention import ALiBiAttention, KVCache, RoPEAttention  # noqa: E402
from .bias import alibi_bias, alibi_slopes  # noqa: E402
from .factory import choose_positional_encoding  # noqa: E402
from .functional import convert_rope_weights  # noqa: E402
from .rotary import (  # noqa: E402
    AxialRotaryEmbedding,
    LearnedRotaryEmbedding,
    LongSequenceRoPE,
    MixedRotaryEmbedding,
    QueryTemperature,
    RotaryPositionalEmbedding,
    XPosRotaryEmbedding,
    nope_layers,
)

#: Loaded when first used: the import of posenc stays quick and needs torch alone.
_LAZY = ("analysis", "benchmark", "cpp", "plots", "training")
#: Functions that live in them.
_LAZY_NAMES = {
    "analyze_positional_encoding": "analysis",
    "benchmark_positional_encodings": "benchmark",
    "compare_attention_patterns": "plots",
    "compare_positional_encodings": "plots",
    "visualize_alibi": "plots",
    "visualize_positional_encoding": "plots",
    "visualize_rope": "plots",
}

if _typing.TYPE_CHECKING:
    from . import analysis, benchmark, cpp, plots
    from .analysis import analyze_positional_encoding
    from .benchmark import benchmark_positional_encodings
    from .plots import (
        compare_attention_patterns,
        compare_positional_encodings,
        visualize_alibi,
        visualize_positional_encoding,
        visualize_rope,
    )

__all__ = [
    "ALiBiAttention",
    "AxialRotaryEmbedding",
    "KVCache",
    "LearnedPositionalEncoding",
    "LearnedRotaryEmbedding",
    "LongSequenceRoPE",
    "MixedRotaryEmbedding",
    "QueryTemperature",
    "RoPEAttention",
    "RotaryPositionalEmbedding",
    "SinusoidalPositionalEncoding",
    "TransformerEmbedding",
    "XPosRotaryEmbedding",
    "add_positional_encoding",
    "alibi_bias",
    "alibi_slopes",
    "analysis",
    "analyze_positional_encoding",
    "benchmark",
    "benchmark_positional_encodings",
    "choose_positional_encoding",
    "cmake_prefix_path",
    "compare_attention_patterns",
    "compare_positional_encodings",
    "convert_rope_weights",
    "cpp",
    "functional",
    "get_include",
    "get_positional_encoding",
    "nope_layers",
    "plots",
    "visualize_alibi",
    "visualize_positional_encoding",
    "visualize_rope",
]


def __getattr__(name: str):
    if name in _LAZY or name in _LAZY_NAMES:
        import importlib

        module = importlib.import_module("." + _LAZY_NAMES.get(name, name), __name__)
        return getattr(module, name) if name in _LAZY_NAMES else module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(_LAZY) | set(_LAZY_NAMES))
