"""Set-up of every test: no compile caches on disk, a fixed seed, two threads."""

import os
import sys
from pathlib import Path

# torch reads these at import. A cache on disk would keep the autograd kernels of an older build.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "2")

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# torch's exp of a float64 tensor was seen off by 1e-9 in the first call of a process (one in 200,
# MKL's vector maths): that call is spent here.
torch.ones(64, dtype=torch.float64).exp()

hypothesis.settings.register_profile(
    "posenc",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("posenc")


def _why_no_gpu():
    """What a test marked `cuda` lacks here, or None."""
    if not torch.cuda.is_available():
        built = "built without CUDA" if torch.version.cuda is None else "which finds none"
        return f"needs a GPU, under torch {torch.__version__}, {built}"
    from posenc import _build_info

    return None if _build_info.CUDA else "needs posenc built with its CUDA kernels (POSENC_CUDA=1)"


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("cuda")]
    why = _why_no_gpu() if marked else None
    for item in marked if why else ():
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(autouse=True)
def _fresh_state():
    """Each test starts from one seed and leaves the global settings of torch as they were."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch._dynamo.reset()
