"""Checks that no object compiled for one instruction set gives its inline code to the library.

A weak symbol (an inline function, a template) that an AVX-512 object emits may be the copy that the
linker keeps for all, and an older processor then crashes in it. The loop files are written so that
they emit none; this looks at what they did.

    python tests/check_symbols.py build/inplace
"""

import pathlib
import shutil
import subprocess
import sys

# A pointer to the C++ runtime's exception personality: data, the same in every object.
ALLOWED = ("DW.ref.__gxx_personality_v0",)


def weak_symbols(nm: str, obj: pathlib.Path) -> list[str]:
    out = subprocess.run(
        [nm, "-C", "--defined-only", obj], check=True, capture_output=True, text=True
    )
    rows = (line.split(maxsplit=2) for line in out.stdout.splitlines())
    return [row[2] for row in rows if len(row) == 3 and row[1] in "WVuw"]


def main() -> int:
    nm = shutil.which("nm")
    if nm is None:
        print("check_symbols: no nm on PATH, so nothing was checked")
        return 0
    build = pathlib.Path(sys.argv[1])
    objects = [
        o for isa in ("AVX2", "AVX512") for o in build.glob(f"CMakeFiles/posenc_{isa}.dir/**/*.o")
    ]
    bad = 0
    for obj in objects:
        for name in weak_symbols(nm, obj):
            if name not in ALLOWED:
                print(f"check_symbols: {obj.name} of {obj.parts[-5]} emits the weak symbol {name}")
                bad += 1
    print(f"check_symbols: {len(objects)} objects, {bad} weak symbols")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
