"""``python -m bids_gevnet.cli.group_jobs BIDS_DIR OUTPUT_DIR group ...``: jobs, not training.

For clusters: takes the command line of the group level, writes its training jobs and prints where
they are. torchrun or srun then trains them on several nodes
(``-m bids_gevnet.learn.train.process JOBS.json``), and the group level itself with `--resume`,
which finds every model finished, writes tables and report. containers/slurm/group.sbatch does all
three.
"""

import sys
from collections.abc import Sequence

from bids_gevnet.cli.environment import prepare_environment, quieten_libraries
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
    """Read the cohort, fill the store and write the jobs; return the path of their file."""
    execution = request.settings.execution
    work_dir = (execution.work_dir or request.output_dir / "work").resolve()
    prepare_environment(work_dir, verbose=execution.verbose)
    from bids_gevnet.learn.evaluate.collection import prepare_group

    chosen = request.settings.selection.participant_label
    with locked(request.output_dir / "logs" / "locks", ["group"]):
        plan = prepare_group(
            request.output_dir,
            request.bids_dir,
            request.settings.learning,
            execution,
            participants=[label.removeprefix("sub-") for label in chosen],
        )
    return str(plan.jobs_file)


def _refuse_unusable(request: Request) -> None:
    if request.level != "group" or request.action != "run":
        raise InputError(
            expected="a command line that runs the group level",
            found=f"{request.level}, {request.action}",
            remedy="give BIDS_DIR OUTPUT_DIR group and the options of the training",
        )
    if not request.output_dir.is_dir():
        raise InputError(
            expected="the OUTPUT_DIR of the participant level",
            found=f"no folder {request.output_dir}",
            remedy=f"run bids_gevnet {request.bids_dir} {request.output_dir} participant first",
        )


if __name__ == "__main__":
    sys.exit(main())
