"""Nipype's local processes, made safe: no fork of a threaded program, no wait for the dead.

Nipype's own MultiProc plugin forks the running program, and a fork copies the locks of threads
but not the threads: numerical libraries that have already worked in parallel may then wait for
ever. It also never learns of a worker that was killed, say by a system out of memory.
"""

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from typing import Any

from nipype.pipeline.plugins.multiproc import MultiProcPlugin, process_initializer

_START_METHOD = "forkserver"
_PRELOADED = ("bids_gevnet.workflows.participant", "ants", "dipy.reconst.dti", "nilearn.image")
"""What nearly every node needs: imported once, by the server that all workers are forked from."""


class WorkerKilledError(RuntimeError):
    """A worker process ended without an answer."""


def _start_worker(folder: str) -> None:
    """Prepare a worker, which ends when the program does, however that ends."""
    process_initializer(folder)
    program = multiprocessing.parent_process()
    if program is not None:
        threading.Thread(target=_end_with, args=(program.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class LocalProcessesPlugin(MultiProcPlugin):  # type: ignore[misc]
    """MultiProc whose workers come from a server without threads, and whose death is noticed."""

    pool: ProcessPoolExecutor

    def __init__(self, plugin_args: Mapping[str, Any] | None = None) -> None:
        self._owners: dict[str, int] = {}
        """Name of a participant or model to its turn."""
        self._turns: list[int] = []
        """Turn of every node, in Nipype's order."""
        self._threads: dict[int, int] = {}
        """Threads that a node would use if all cores were free."""
        # Heeded by the first worker's server only; later calls do no harm.
        multiprocessing.set_forkserver_preload(list(_PRELOADED))
        # Ctrl-C reaches all processes of a terminal; workers leave it to the program.
        resource_tracker.ensure_running()  # before, because it unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        super().__init__(plugin_args=dict(plugin_args or {}))
        self.pool.shutdown()  # Nipype's own; it has not started a process yet
        self.pool = self._start_pool()

    def run(self, *args: Any, **options: Any) -> None:
        """Run a workflow; see Nipype."""
        # Nipype collects garbage at every look at its workers. With the libraries of all nodes
        # loaded that takes half a core, unless what is there already is left out of it.
        gc.freeze()
        try:
            super().run(*args, **options)
        except BaseException:
            self._end_workers()
            raise
        finally:
            gc.unfreeze()

    def _end_workers(self) -> None:
        """End workers without waiting for what they are doing; their nodes run again next time."""
        for process in list((self.pool._processes or {}).values()):  # noqa: SLF001
            process.terminate()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _sort_jobs(self, jobids: Any, scheduler: str = "tsort") -> list[int]:  # noqa: ARG002
        """Order nodes participant by participant, so that results come one after the other."""
        for node in self.procs[len(self._turns) :]:  # those of a MapNode are added on the way
            owner = ".".join(str(node.fullname).split(".")[:2])
            self._turns.append(self._owners.setdefault(owner, len(self._owners)))
        ordered = sorted((int(job) for job in jobids), key=lambda job: (self._turns[job], job))
        self._fit_threads(ordered)
        return ordered

    def _fit_threads(self, jobs: Sequence[int]) -> None:
        """Let nodes that can use any number of threads take the cores that are free.

        A core that the participant whose turn it is does not need works for the next one.
        """
        free = self._check_resources(self.pending_tasks)[1]
        for job in jobs:
            node = self.procs[job]
            if hasattr(node.inputs, "num_threads"):
                wanted = self._threads.setdefault(job, int(node.n_procs))
                node.n_procs = max(1, min(wanted, int(free)))

    def _start_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            max_workers=self.processors,
            initializer=_start_worker,
            initargs=(self._cwd,),
            mp_context=multiprocessing.get_context(_START_METHOD),
        )

    def _async_callback(self, args: "Future[dict[str, Any]]") -> None:
        if args.exception() is None:
            super()._async_callback(args)

    def _get_result(self, taskid: int) -> dict[str, Any] | None:
        future = self._task_obj[taskid]
        error = future.exception() if future.done() else None
        if error is None:
            return super()._get_result(taskid)  # type: ignore[no-any-return]
        if isinstance(error, BrokenProcessPool):
            error = WorkerKilledError(
                "a worker process was killed, most likely because memory ran out; run the same "
                "command again with a smaller --nprocs or on a machine with more memory"
            )
        return {"result": None, "traceback": traceback.format_exception(error), "taskid": taskid}

    def _submit_job(self, node: Any, **options: Any) -> int:
        try:
            return super()._submit_job(node, **options)  # type: ignore[no-any-return]
        except BrokenProcessPool:
            # Those who died have been reported; the others go on with new workers.
            self.pool = self._start_pool()
            return super()._submit_job(node, **options)  # type: ignore[no-any-return]
