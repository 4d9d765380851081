"""The group level: training is one node, because PyTorch's own launcher spreads the work."""

from collections.abc import Sequence
from pathlib import Path

from nipype.pipeline import engine as pe

from bids_gevnet.interfaces.learning import TrainGroup
from bids_gevnet.interfaces.report import BuildGroupReport
from bids_gevnet.settings import Settings, to_toml


def init_group_wf(
    *,
    bids_dir: Path,
    output_dir: Path,
    work_dir: Path,
    settings: Settings,
    participants: Sequence[str],
) -> pe.Workflow:
    """Build the workflow of the group level.

    Parameters
    ----------
    bids_dir, output_dir, work_dir : Path
    settings : Settings
    participants : sequence of str
        Labels to train on; all if empty.
    """
    workflow = pe.Workflow(name="group", base_dir=str(work_dir))
    train = pe.Node(
        TrainGroup(
            output_dir=str(output_dir),
            bids_dir=str(bids_dir),
            settings=to_toml(settings),
            participants=list(participants),
        ),
        name="train",
        # The node cannot see which derivatives it reads: it always runs, and training itself
        # knows what is finished.
        overwrite=True,
        n_procs=settings.execution.processes,
        mem_gb=4.0,
    )
    report = pe.Node(
        BuildGroupReport(
            output_dir=str(output_dir),
            jobs_file=str(work_dir / "group" / "jobs.json"),
        ),
        name="report",
        overwrite=True,  # it reads far more than the file it waits for
        n_procs=settings.execution.processes,
        mem_gb=4.0,
    )
    workflow.connect([(train, report, [("metrics", "metrics")])])
    return workflow
