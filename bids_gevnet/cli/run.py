"""The command `bids_gevnet`: parse, check, run, and say how it ended."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bids_gevnet.cli.logs import close_log_files, save_traceback, start_logging
from bids_gevnet.cli.parser import Request, parse_request
from bids_gevnet.cli.signals import stopping_on_signals
from bids_gevnet.crash_files import explain_shortage, tells_of_memory
from bids_gevnet.errors import (
    BidsGevnetError,
    InputError,
    StoppedError,
    WorkflowBuildError,
    explain_disk_error,
    printable,
)
from bids_gevnet.settings import ALL_SHELLS, PreprocessingSettings

_NO_MEMORY = (
    "bids_gevnet: stopped because memory ran out. What to do: run it where there is more memory, "
    "with fewer --nprocs or a coarser --output-resolution\n"
)

log = logging.getLogger("bids_gevnet")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    request: Request | None = None
    try:
        with stopping_on_signals():
            request = parse_request(argv)
            return _run(request)
    except BidsGevnetError as error:
        print(f"bids_gevnet: {error}", file=sys.stderr)
        return error.exit_code
    except StoppedError as stop:
        print(f"bids_gevnet: {stop}", file=sys.stderr)
        return stop.exit_code
    except BrokenPipeError:
        return 1  # whoever read our output has gone
    except Exception as error:  # noqa: BLE001 - the last resort: a sentence, not a traceback
        return _tell_unforeseen(error, request)


def _run(request: Request) -> int:
    # Late, like all imports that bring more than the standard library.
    from bids_gevnet.cli.environment import quieten_libraries, require_memory
    from bids_gevnet.cli.execute import choose_plugin

    require_memory()
    start_logging(request.settings.execution.verbose)
    quieten_libraries()
    for remark in request.remarks:
        log.warning("%s", remark)
    choose_plugin(request.settings.execution)  # what is wrong with its file is said now
    try:
        return _run_group(request) if request.level == "group" else _run_participant(request)
    finally:
        close_log_files()


def _tell_unforeseen(error: Exception, request: Request | None) -> int:
    """Say in a sentence what nobody has said yet; return the exit code."""
    try:
        return _explain(error, request)
    except (MemoryError, SystemError):  # not enough to say what happened, or to raise that
        sys.stderr.write(_NO_MEMORY)
        return WorkflowBuildError.exit_code


def _explain(error: Exception, request: Request | None) -> int:
    if isinstance(error, OSError):
        explained = explain_disk_error(error, error.filename2 or error.filename or "a file")
        if explained is not None:
            print(f"bids_gevnet: {explained}", file=sys.stderr)
            return explained.exit_code
    kept = save_traceback(error, request.output if request is not None else None)
    text = printable(" ".join(f"{type(error).__name__}: {error}".split())[:500]).rstrip(": ")
    remedy = explain_shortage(text) or "report it with that file"
    why = "memory ran out" if tells_of_memory(text) else "of an error that was not foreseen"
    print(
        f"bids_gevnet: stopped because {why} ({text}). What to do: {remedy}; details: {kept}",
        file=sys.stderr,
    )
    return WorkflowBuildError.exit_code


def _validate(request: Request) -> None:
    """Stop at errors that concern the whole dataset; name those of single participants.

    What one participant's files lack must not keep the others waiting: whether they can be
    used all the same is for our own checks to say.
    """
    from bids_gevnet.bids.validation import name_issues, validate_dataset

    if request.settings.selection.skip_bids_validation:
        return
    errors = [issue for issue in validate_dataset(request.bids_dir) if issue.severity == "error"]
    for line in name_issues(errors):
        log.warning("BIDS validator: %s", line)
    of_dataset = [issue for issue in errors if issue.concerns_everybody]
    if of_dataset:
        raise InputError(
            expected="a valid BIDS dataset",
            found=f"{len(of_dataset)} error(s), the first: {of_dataset[0]}",
            remedy="fix them, or give --skip-bids-validation if you know they do not matter",
        )


def _run_participant(request: Request) -> int:
    if request.action == "qc-only":
        raise InputError(
            expected="the group level for --qc-only",
            found="the participant level, whose reports show one participant each",
            remedy=f"run bids_gevnet {request.bids_dir} {request.output_dir} group --qc-only",
        )
    from bids_gevnet.bids.preprocessed.query import find_preprocessed
    from bids_gevnet.bids.preprocessed.sources import find_sources
    from bids_gevnet.bids.query import check_description, find_participants
    from bids_gevnet.bids.scans import require_same_shells
    from bids_gevnet.cli.plan import describe_participants

    if request.action == "reports-only":
        from bids_gevnet.cli.reports import rebuild_reports

        return rebuild_reports(request)
    sources = find_sources(request.bids_dir, request.settings.selection.derivatives)
    if sources:
        _refuse_corrections(request.settings.preprocessing)
    else:
        check_description(request.bids_dir)
        _validate(request)
    from bids_gevnet.cli.participant import (
        check_model,
        check_output_folders,
        check_steps,
        run_participants,
        warn_of_empty_resolution,
    )

    card = check_model(request.settings)
    if card is not None:
        request = _take_model_shells(request, card.b_values)
    settings = request.settings
    find = partial(find_preprocessed, datasets=sources) if sources else find_participants
    participants = find(  # nosec B604  # a shell of b-values
        request.bids_dir,
        selection=settings.selection,
        b0_threshold=settings.preprocessing.b0_threshold,
        shell=settings.preprocessing.shell,
    )
    if settings.preprocessing.shell == ALL_SHELLS:
        require_same_shells(participants, b0_threshold=settings.preprocessing.b0_threshold)
    participants = check_output_folders(request.output_dir, participants)
    participants = check_steps(settings.preprocessing, participants)
    if card is None:
        warn_of_empty_resolution(settings.preprocessing, participants)
    if request.action == "dry-run":
        from bids_gevnet.cli.finished import find_finished

        finished = find_finished(request, participants)
        print(describe_participants(participants, settings, finished))
        return int(not all(participant.usable for participant in participants))
    if request.action == "boilerplate-only":
        from bids_gevnet.cli.reports import write_boilerplate

        return write_boilerplate(request, participants)
    return run_participants(request, participants)


def _refuse_corrections(settings: PreprocessingSettings) -> None:
    """Refuse to do again what a pipeline has done to preprocessed scans."""
    wanted = {
        f"--correction {settings.correction}": settings.correction not in {"auto", "none"},
        f"--denoise {settings.denoise}": settings.denoise not in {"auto", "none"},
        "--unring on": settings.unring == "on",
        "--bias-correct on": settings.bias_correct == "on",
        "--use-syn-sdc": settings.use_syn_sdc,
    }
    for option, is_wanted in wanted.items():
        if is_wanted:
            raise InputError(
                expected="preprocessed scans to be taken as they are",
                found=f"{option}, which is for raw scans",
                remedy=f"leave {option} out, or give the raw dataset without --derivatives",
            )


def _take_model_shells(request: Request, b_values: tuple[float, ...]) -> Request:
    """Sample the shells that a model was trained on; another choice of --shell is refused."""
    from bids_gevnet.dwi.shells import name_shells, same_shells

    preprocessing = request.settings.preprocessing
    chosen = preprocessing.shell
    if not b_values:
        return request  # the b-values of its training scans differed, or nobody wrote them down
    if isinstance(chosen, tuple) and not same_shells(chosen, b_values):
        raise InputError(
            expected=f"the shells of the model, {name_shells(b_values)}, for --shell",
            found=name_shells(chosen),
            remedy="leave --shell out: the model says which shells it takes",
        )
    sampled = replace(preprocessing, shell=b_values)  # nosec B604  # shells of b-values
    return replace(request, settings=replace(request.settings, preprocessing=sampled))


def _run_group(request: Request) -> int:
    from bids_gevnet.bids.participants import read_participants, target_column
    from bids_gevnet.bids.preprocessed.sources import is_derivative
    from bids_gevnet.bids.query import check_description

    if request.action == "reports-only":
        from bids_gevnet.cli.reports import rebuild_reports

        return rebuild_reports(request)
    if not is_derivative(request.bids_dir):
        check_description(request.bids_dir)
    if request.action == "qc-only":
        from bids_gevnet.cli.quality import write_quality

        return write_quality(request)
    if request.settings.learning.model is not None:
        from bids_gevnet.cli.validation import with_target_of_model

        request = with_target_of_model(request)
    table = read_participants(request.bids_dir)
    column = target_column(list(table.columns), request.settings.learning.target)
    if request.action == "boilerplate-only":
        from bids_gevnet.cli.reports import write_group_boilerplate

        return write_group_boilerplate(request, table, column)
    from bids_gevnet.cli.group import read_study, run_group_level

    if request.action == "dry-run":
        from bids_gevnet.cli.plan import describe_study, describe_validation

        if request.settings.learning.model is not None:
            from bids_gevnet.cli.validation import read_validation

            scored, card = read_validation(request)
            print(describe_validation(scored, card, request.settings))
            return 0
        cohort, plan, devices = read_study(request)
        print(describe_study(cohort, plan, request.settings, devices))
        return 0
    return run_group_level(request)


if __name__ == "__main__":
    sys.exit(main())
