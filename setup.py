"""Drives CMake, the one description of the build, and packs what it installs into the wheel."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    """Configures, builds and installs with CMake.

    `--inplace` (an editable install) leaves the binaries in python/posenc.
    """

    def build_extension(self, ext: Extension) -> None:
        del ext
        build = ROOT / "build" / ("inplace" if self.inplace else "wheel")
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        cmake = [sys.executable, "-m", "cmake"]
        options = {
            "Python_EXECUTABLE": sys.executable,
            "POSENC_CUDA": os.environ.get("POSENC_CUDA", "auto"),
            "POSENC_INPLACE": "ON" if self.inplace else "OFF",
        }
        defines = [f"-D{key}={value}" for key, value in options.items()]
        defines += os.environ.get("CMAKE_ARGS", "").split()
        subprocess.run([*cmake, "-S", ROOT, "-B", build, "-G", "Ninja", *defines], check=True)
        subprocess.run([*cmake, "--build", build, "--parallel", jobs], check=True)
        if not self.inplace:
            package = Path(self.build_lib).resolve() / "posenc"
            subprocess.run([*cmake, "--install", build, "--prefix", package, "--strip"], check=True)

    def get_outputs(self) -> list[str]:
        """What CMake installed is part of the package."""
        package = Path(self.build_lib) / "posenc"
        return [] if self.inplace else [str(path) for path in package.rglob("*") if path.is_file()]


setup(ext_modules=[Extension("posenc._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
