"""Prints what every CUDA kernel of the built library uses; fails where one spills registers.

    python tests/check_kernels.py python/posenc/lib/libposenc.so

A line a kernel and architecture: registers, bytes of stack, static shared memory, loads and stores
of 16 bytes, and accesses to local memory, which are spilled registers or arrays that the compiler
indexes: both cost a memory-bound kernel its speed.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

# Kernels that may use local memory: how many accesses, and why.
ALLOWED = {
    # CUDA's sine of float64 reduces large angles by a table that it indexes.
    r"<double\b": (16, "float64 sine"),
}

Kernel = collections.namedtuple("Kernel", "arch registers stack shared loads stores local")


def tools() -> dict[str, str | None]:
    """cuobjdump and nvdisasm: the toolkit's, or of the wheels nvidia-cuda-cuobjdump, -nvdisasm."""
    places = [os.environ.get("PATH", "")]
    places += [f"{os.environ[v]}/bin" for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    places += ["/usr/local/cuda/bin"]
    wheels = importlib.util.find_spec("nvidia")
    for folder in wheels.submodule_search_locations or [] if wheels else []:
        places += map(str, pathlib.Path(folder).glob("cu*/bin"))
    path = os.pathsep.join(places)
    return {name: shutil.which(name, path=path) for name in ("cuobjdump", "nvdisasm")}


def run(*command: str, **env: str) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **env}
    ).stdout


def demangle(names: list[str]) -> list[str]:
    if shutil.which("c++filt") is None or not names:
        return names
    out = subprocess.run(
        ["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True
    ).stdout.splitlines()
    short = []
    for name in out:
        name = name.replace("(anonymous namespace)::", "").replace("posenc::", "")
        name = re.sub(r"^void ", "", name)
        short.append(re.sub(r"\([^()]*\)$", "", re.sub(r"\((?:int|bool)\)", "", name)))
    return short


def kernels(library: str, found: dict[str, str]) -> dict[tuple[str, str], Kernel]:
    env = {"PATH": f"{pathlib.Path(found['nvdisasm']).parent}:{os.environ.get('PATH', '')}"}
    usage, sass = {}, {}
    arch = name = ""
    for line in run(found["cuobjdump"], "-res-usage", library, **env).splitlines():
        if m := re.match(r"arch = (\w+)", line):
            arch = m[1]
        elif m := re.match(r"\s*Function (\S+):", line):
            name = m[1]
        elif "REG:" in line and name:
            usage[arch, name] = {k: int(v) for k, v in re.findall(r"(\w+)(?:\[\d\])?:(\d+)", line)}
    for line in run(found["cuobjdump"], "-sass", library, **env).splitlines():
        if m := re.match(r"arch = (\w+)", line):
            arch = m[1]
        elif m := re.search(r"Function : (\S+)", line):
            count = sass[arch, m[1]] = collections.Counter()
        elif m := re.search(r"\b(LDG|STG|LDL|STL)(\.\S+)?", line):
            count[m[1] + (".128" if ".128" in (m[2] or "") else "")] += 1
    result = {}
    for key, use in usage.items():
        ops = sass.get(key, collections.Counter())
        local = sum(n for op, n in ops.items() if op.startswith(("LDL", "STL")))
        result[key] = Kernel(
            key[0], use["REG"], use["STACK"], use["SHARED"], ops["LDG.128"], ops["STG.128"], local
        )
    return result


def main() -> int:
    library = sys.argv[1]
    if b".nv_fatbin" not in pathlib.Path(library).read_bytes():
        print(
            "check_kernels: this build has no CUDA kernels (no nvcc, a torch without CUDA, or "
            "POSENC_CUDA=0), so nothing was checked"
        )
        return 0
    found = tools()
    missing = [name for name, path in found.items() if path is None]
    if missing:
        print(
            f"check_kernels: no {' and no '.join(missing)}, so nothing was checked "
            "(pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)"
        )
        return 0
    table = kernels(library, found)
    names = demangle([name for _, name in table])
    rows = sorted(zip(names, table.values(), strict=True))
    bad = 0
    columns = ("registers", "stack", "shared", "16-byte loads", "stores", "local")
    print("  ".join(columns), " kernel")
    for name, k in rows:
        allowed = [a for pattern, a in ALLOWED.items() if re.search(pattern, name)]
        most, why = allowed[0] if allowed else (0, "")
        fails = k.local > most
        bad += fails
        note = " <- SPILLS" if fails else f" ({why})" if k.local else ""
        numbers = (str(n).rjust(len(c)) for n, c in zip(k[1:], columns, strict=True))
        print("  ".join(numbers), f" {k.arch} {name}{note}")
    if not rows:
        print("check_kernels: no kernel was found in the library, expected some")
        return 1
    print(f"check_kernels: {len(rows)} kernels, {bad} with registers in local memory")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
