"""Compile the kernels of this folder into one shared library, where there is a C++ compiler.

    python bids_gevnet/compiled/build.py           # says what it made, or why it made nothing

Needs nothing but the standard library, because it runs when a wheel is built (`hatch_build.py`).
Every source is compiled once per instruction set of the x86-64 family, and once elsewhere: the
library runs on any processor of the family and takes the best set when it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess  # nosec B404
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = HERE / "kernels.so"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-pthread")
# In increasing order; `library` takes the last that the processor has.
_X86_64 = {
    "baseline": ("-march=x86-64",),
    "v3": ("-march=x86-64-v3",),
    "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}


class NoCompilerError(Exception):
    """There is no C++ compiler, or it cannot compile the kernels."""


def levels(machine: str | None = None) -> dict[str, tuple[str, ...]]:
    """Instruction sets to compile for, with the compiler's options for each."""
    if (machine or platform.machine()).lower() in {"x86_64", "amd64"}:
        return _X86_64
    return {"baseline": ()}


def digest() -> str:
    """Fingerprint of the sources, carried by the library: one out of date is not used."""
    total = hashlib.sha256()
    for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")]):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def compiler() -> list[str]:
    """Command of the C++ compiler: $CXX, or the first of c++, g++ and clang++ that is there."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise NoCompilerError("no C++ compiler: neither c++, g++ nor clang++ is on the PATH")


def build(library: Path = LIBRARY) -> Path:
    """Compile everything.

    Parameters
    ----------
    library : Path
        Where to put the shared library.

    Returns
    -------
    library : Path

    Raises
    ------
    NoCompilerError
        Where it cannot be made; nothing is left behind.
    """
    if sys.platform != "linux":
        raise NoCompilerError(f"kernels are compiled on Linux only, this is {sys.platform}")
    command = compiler()
    sources = sorted(HERE.glob("*.cpp"))
    with tempfile.TemporaryDirectory() as folder:
        objects, jobs = [], []
        for source in sources:
            for level, flags in levels().items():
                target = Path(folder) / f"{source.stem}_{level}.o"
                objects.append(target)
                jobs.append(
                    [*command, *_FLAGS, *flags, f"-DLEVEL={level}", "-c", source, "-o", target]
                )
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, jobs))
        stamp = Path(folder) / "digest.cpp"
        stamp.write_text(f'extern "C" const char kernels_digest[] = "{digest()}";\n')
        made = Path(folder) / library.name
        _run([*command, "-shared", "-fPIC", "-pthread", stamp, *objects, "-o", made])
        # In one step: a process that has the old library open keeps it.
        fresh = library.with_suffix(".new")
        shutil.copyfile(made, fresh)
        fresh.replace(library)
    return library


def _run(command: list[str | Path]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)  # nosec B603
    except OSError as error:
        raise NoCompilerError(f"{command[0]} does not start: {error}") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise NoCompilerError(f"{command[0]} failed: {lines[0]}") from error


def main() -> int:
    """Compile, and say in one line what came of it."""
    try:
        print(f"compiled {build()}")  # noqa: T201
    except NoCompilerError as error:
        print(f"no compiled kernels, PyTorch takes their place: {error}")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
