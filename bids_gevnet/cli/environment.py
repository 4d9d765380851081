"""Make the libraries behave on any machine: no network, read-only HOME, any user."""

import os
import resource
from pathlib import Path

from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.locks import claim
from bids_gevnet.errors import WorkflowBuildError
from bids_gevnet.layout import WorkLayout
from bids_gevnet.settings import ExecutionSettings

_THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
)


_LEAST_MEMORY = 2 * 10**9
"""Bytes of address space: importing what a run needs took 0.9 GB, a study of tiny scans 1.5."""


def quieten_libraries() -> None:
    """Keep libraries from asking the network or a display; call it before importing them."""
    os.environ.setdefault("NIPYPE_NO_ET", "1")
    os.environ.setdefault("NO_ET", "1")
    os.environ.setdefault("MPLBACKEND", "agg")
    # Workers that a signal ends leave semaphores, which Python's own tracker removes: no warning.
    ignored = "ignore::UserWarning:multiprocessing.resource_tracker"
    given = os.environ.get("PYTHONWARNINGS")
    if ignored not in (given or ""):
        os.environ["PYTHONWARNINGS"] = f"{given},{ignored}" if given else ignored
    # Users without an entry in the password file, usual in containers, get a name.
    os.environ.setdefault("LOGNAME", f"uid{os.getuid()}")


def require_memory() -> None:
    """Refuse to start where a limit leaves less memory than the libraries alone take.

    Some of them (OpenBLAS is one) wait for ever when they cannot have what they ask for, deaf to
    every signal but kill -9.
    """
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    if finite and min(finite) < _LEAST_MEMORY:
        raise WorkflowBuildError(
            expected=f"at least {_LEAST_MEMORY // 10**6} MB of memory for a process",
            found=f"a limit of {min(finite) // 10**6} MB (ulimit -v or -d)",
            remedy="raise the limit, or ask the batch system for more memory",
        )


def prepare_environment(
    work: WorkLayout, execution: ExecutionSettings, *, threads: int | None = None
) -> None:
    """Set what libraries read when they are imported; call it before importing them.

    Caches go under the work directory, because HOME may be read-only or missing. Thread
    counts are limited where given, because every worker process would otherwise take all cores.
    """
    claim(work)
    caches = work.caches
    caches.mkdir(parents=True, exist_ok=True)
    defaults = {
        "NIPYPE_CONFIG_DIR": str(caches / "nipype"),
        "MPLCONFIGDIR": str(caches / "matplotlib"),
        "XDG_CACHE_HOME": str(caches),
    }
    if threads is not None:
        defaults |= {name: str(threads) for name in _THREAD_COUNTS}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # Nipype announces every node on the terminal, from worker processes too; only a file in its
    # configuration folder reaches all of them.
    folder = Path(os.environ["NIPYPE_CONFIG_DIR"])
    if folder.is_relative_to(caches):
        level = "INFO" if execution.verbose > 1 else "CRITICAL"
        kinds = ("workflow_level", "utils_level", "interface_level")
        logging = "[logging]\n" + "".join(f"{kind} = {level}\n" for kind in kinds)
        monitoring = (
            f"[monitoring]\nenabled = {str(execution.resource_monitor).lower()}\n"
            "sample_frequency = 1\nsummary_append = false\n"
        )
        write_text(folder / "nipype.cfg", logging + monitoring)
