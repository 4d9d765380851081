"""Make the libraries behave on any machine: no network, read-only HOME, any user."""

import os
from pathlib import Path


def prepare_environment(work_dir: Path, *, threads: int) -> None:
    """Set what libraries read when they are imported; call it before importing them.

    Caches go under the work directory, because HOME may be read-only or missing. Thread
    counts are limited, because every worker process would otherwise take all cores. Users
    without an entry in the password file, usual in containers, get a name.
    """
    caches = work_dir / "cache"
    caches.mkdir(parents=True, exist_ok=True)
    defaults = {
        "NIPYPE_NO_ET": "1",
        "NO_ET": "1",
        "NIPYPE_CONFIG_DIR": str(caches / "nipype"),
        "MPLCONFIGDIR": str(caches / "matplotlib"),
        "MPLBACKEND": "agg",
        "XDG_CACHE_HOME": str(caches),
        "LOGNAME": f"uid{os.getuid()}",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": str(threads),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
