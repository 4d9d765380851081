"""``python -m bids_gevnet.cli.group_jobs BIDS_DIR OUTPUT_DIR group ...``: jobs, not training.

For clusters: takes the command line of the group level, writes its training jobs and prints where
they are. torchrun or srun then trains them on several nodes
(``-m bids_gevnet.learn.train.process JOBS.json``), and the group level itself with `--resume`,
which finds every model finished, writes tables and report. containers/slurm/group.sbatch does all
three.
"""

import sys
from collections.abc import Sequence

from bids_gevnet.cli.environment import quieten_libraries
from bids_gevnet.cli.group import plan_group_level
from bids_gevnet.cli.locks import locked
from bids_gevnet.cli.parser import Request, parse_request
from bids_gevnet.errors import BidsGevnetError, InputError


def main(argv: Sequence[str] | None = None) -> int:
    """Write the jobs and print the path of their file; return the exit code."""
    try:
        request = parse_request(argv)
        _refuse_unusable(request)
        quieten_libraries()
        print(write_group_jobs(request))
    except BidsGevnetError as error:
        print(f"bids_gevnet: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def write_group_jobs(request: Request) -> str:
    """Run the group level up to its training jobs; return the path of their file."""
    study = plan_group_level(request)
    from bids_gevnet.cli.execute import (
        IN_ORDER,
        configure,
        make_crash_dir,
        read_failures,
        run_workflow,
    )
    from bids_gevnet.workflows.group import init_split_only_wf

    with (
        locked(request.output.locks, ["group"]),
        locked(request.work.locks("group"), ["group"]),
    ):
        workflow = init_split_only_wf(study)
        crash_dir = make_crash_dir(request.work)
        configure(workflow, request.settings.execution, crash_dir=crash_dir)
        run_workflow(workflow, plugin=IN_ORDER, crash_dir=crash_dir)
    for failure in read_failures(crash_dir, {}):
        raise BidsGevnetError(
            expected="training jobs for this study",
            found=f"{failure.stage}: {failure.message}",
            remedy=f"see {failure.crash_file}",
        )
    return str(request.work.jobs_file)


def _refuse_unusable(request: Request) -> None:
    if request.level != "group" or request.action != "run":
        raise InputError(
            expected="a command line that runs the group level",
            found=f"{request.level}, {request.action}",
            remedy="give BIDS_DIR OUTPUT_DIR group and the options of the training",
        )
    if request.settings.learning.model is not None:
        raise InputError(
            expected="a study that trains its models",
            found="--model, with which nothing is trained",
            remedy="run bids_gevnet itself with --model; it needs one node",
        )


if __name__ == "__main__":
    sys.exit(main())
