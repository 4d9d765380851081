"""Nipype's local processes, made safe: no fork of a threaded program, no wait for the dead.

Nipype's own MultiProc plugin forks the running program, and a fork copies the locks of threads
but not the threads: numerical libraries that have already worked in parallel may then wait for
ever. It also never learns of a worker that was killed, say by a system out of memory.
"""

import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
from nipype.pipeline.plugins.multiproc import (
    MultiProcPlugin,
    process_initializer,
    run_node,
)

from bids_gevnet.child_processes import end_with_parent, holding_signals
from bids_gevnet.cli.intermediates import seal_stage

_START_METHOD = "forkserver"
_PRELOADED = (
    *("bids_gevnet.workflows.participant", "ants", "dipy.reconst.dti", "nilearn.image"),
    *("torch", "healpy"),
)
"""What nearly every node needs: imported once, by the server that all workers are forked from."""


class WorkerKilledError(RuntimeError):
    """A worker process ended without an answer."""


def start_server() -> None:
    """Start the server that workers are forked from, which goes on to import what they need.

    Called early, it does so while the program still plans; a second call does nothing.
    """
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    # Ctrl-C reaches all processes of a terminal; workers leave it to the program.
    resource_tracker.ensure_running()  # before, because it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which is inherited
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(folder: str) -> None:
    process_initializer(folder)
    end_with_parent()


def _run_node(node: Any, updatehash: bool, task: int) -> dict[str, Any]:  # noqa: FBT001
    """Run a node and note what its files are, so that damage to them is found later."""
    result: dict[str, Any] = run_node(node, updatehash, task)
    if result["traceback"] is None:
        seal_stage(Path(node.output_dir()))
    return result


class LocalProcessesPlugin(MultiProcPlugin):  # type: ignore[misc]
    """MultiProc whose workers come from a server without threads, and whose death is noticed."""

    pool: ProcessPoolExecutor

    def __init__(self, plugin_args: Mapping[str, Any] | None = None) -> None:
        self._owners: dict[str, int] = {}
        """Name of a participant or model to its turn."""
        self._turns = np.empty(0, np.intp)
        """Turn of every node, in Nipype's order."""
        self._threads: dict[int, int] = {}
        """Threads that a node would use if all cores were free."""
        start_server()
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
        turn = self._turn()
        ordered = sorted((int(job) for job in jobids), key=lambda job: (self._turns[job], job))
        if self._free_cores(self.pending_tasks) == 0:
            ordered = [job for job in ordered if self._turns[job] == turn]
        self._fit_threads(ordered)
        return ordered

    def _turn(self) -> int:
        """Return whose turn it is: the first who is not finished."""
        new = self.procs[len(self._turns) :]  # those of a MapNode are added on the way
        if new:
            owners = (".".join(str(node.fullname).split(".")[:2]) for node in new)
            turns = [self._owners.setdefault(owner, len(self._owners)) for owner in owners]
            self._turns = np.append(self._turns, turns)
        return int(self._turns[~self.proc_done | self.proc_pending].min())

    def _fit_threads(self, jobs: Sequence[int]) -> None:
        """Choose the threads of nodes that can use any number of them.

        The participant whose turn it is gets all that were asked for, even while a short stage of
        the next is still running: an hour-long stage would otherwise keep to the one core that
        was free when it began. Until that stage ends there are more threads than cores; nothing
        new is started meanwhile. Everybody else gets the cores that are free.
        """
        free = int(self._check_resources(self.pending_tasks)[1])
        turn = self._turn()
        for job in jobs:
            node = self.procs[job]
            if hasattr(node.inputs, "num_threads"):
                wanted = self._threads.setdefault(job, int(node.n_procs))
                node.n_procs = max(1, min(wanted, free))
                if self._turns[job] == turn:
                    node.inputs.num_threads = wanted

    def _check_resources(self, running_tasks: Any) -> Any:
        """Return free memory, cores and GPUs; cores that others than the first hold are his.

        Others only fill cores that the participant whose turn it is leaves idle. A stage of his
        never waits until one of theirs has ended: it starts, and they share the cores meanwhile.
        """
        cores = self._free_cores(running_tasks)
        memory_gb, _, gpus = super()._check_resources(running_tasks)
        if running_tasks and cores == 0:
            turn = self._turn()
            cores = self._free_cores(
                [task for task in running_tasks if self._turns[task[1]] == turn]
            )
        return memory_gb, cores, gpus

    def _free_cores(self, running_tasks: Any) -> int:
        """Count cores that no node uses: each by its threads, not by the cores it found."""
        for _, job in running_tasks:
            if job in self._threads:
                self.procs[job].n_procs = self.procs[job].inputs.num_threads
        return int(super()._check_resources(running_tasks)[1])

    def _start_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            # Started when they are needed: with stages of others, more than there are cores.
            max_workers=2 * self.processors,
            initializer=_start_worker,
            initargs=(self._standing_place(),),
            mp_context=multiprocessing.get_context(_START_METHOD),
        )

    def _standing_place(self) -> str:
        """Choose the folder workers stand in, where Nipype leaves records of time and memory."""
        settings = os.environ.get("NIPYPE_CONFIG_DIR", "")
        return settings if Path(settings).is_dir() and settings else str(self._cwd)

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

    def _submit_job(self, node: Any, updatehash: bool = False) -> int:  # noqa: FBT001, FBT002
        # A worker may be started here. Stopped half-way it would know neither what to do nor
        # that it is to end, and nobody else would know of it.
        with holding_signals():
            self._taskid += 1
            task = partial(_run_node, node, updatehash, self._taskid)
            try:
                future = self.pool.submit(task)
            except BrokenProcessPool:
                # Those who died have been reported; the others go on with new workers.
                self.pool = self._start_pool()
                future = self.pool.submit(task)
            future.add_done_callback(self._async_callback)
            self._task_obj[self._taskid] = future
            return int(self._taskid)
