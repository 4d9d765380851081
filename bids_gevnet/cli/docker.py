"""``bids_gevnet-docker``: the same command line, run in the container image.

Every folder and file the command names is mounted under the path it has on this machine, so that
the arguments go into the container untouched, relative paths and settings files included.
"""

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from bids_gevnet.cli.completion import complete
from bids_gevnet.cli.parser import build_parser, parse_request
from bids_gevnet.errors import BidsGevnetError, InputError, explain_disk_error
from bids_gevnet.settings import absolute_path
from bids_gevnet.versions import __version__

DEFAULT_IMAGE = f"bids_gevnet:{__version__}"
Engine = Literal["docker", "podman"]
Gpus = Literal["auto", "all", "none"]

_DESCRIPTION = """\
Run bids_gevnet in its container: the folders of the command line are mounted, and the output
belongs to you. All other options are those of bids_gevnet (see bids_gevnet --help)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by the container; return an exit code where that is not to be."""
    parser = build_wrapper_parser()
    complete(build_parser(), parser)
    options, arguments = parser.parse_known_args(argv)
    try:
        command = container_command(
            arguments, image=options.image, engine=options.engine, gpus=options.gpus
        )
    except BidsGevnetError as error:
        print(f"bids_gevnet-docker: {error}", file=sys.stderr)
        return error.exit_code
    if not options.print_command:
        # Signals and the exit code are then the container's own.
        os.execv(command[0], command)  # noqa: S606  # nosec B606
    print(shlex.join(command))
    return 0


def build_wrapper_parser() -> argparse.ArgumentParser:
    """Build the parser of what is the wrapper's own."""
    parser = argparse.ArgumentParser(
        prog="bids_gevnet-docker",
        usage="bids_gevnet-docker [--image NAME] [--engine WHICH] [--gpus WHICH] "
        "[--print-command] BIDS_DIR OUTPUT_DIR {participant,group} [options of bids_gevnet]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--image", default=DEFAULT_IMAGE, help=f"the image to run (default: {DEFAULT_IMAGE})"
    )
    parser.add_argument(
        "--engine",
        choices=get_args(Engine),
        help="what runs the image (default: docker where it is installed, else podman)",
    )
    parser.add_argument(
        "--gpus",
        choices=get_args(Gpus),
        default="auto",
        help="GPUs the container sees (default: auto, all where nvidia-smi is installed)",
    )
    parser.add_argument(
        "--print-command", action="store_true", help="show the command instead of running it"
    )
    return parser


def container_command(
    arguments: Sequence[str], *, image: str, engine: Engine | None, gpus: Gpus
) -> list[str]:
    """Return the command that runs `arguments` in the container, its program by its full path."""
    engines = get_args(Engine) if engine is None else (engine,)
    program = next(filter(None, map(shutil.which, engines)), None)
    if program is None:
        raise InputError(
            expected=f"{' or '.join(engines)} on this machine",
            found="none in PATH",
            remedy="install one of them, run bids_gevnet without a container, or see "
            "containers/README.md for Apptainer",
        )
    with_gpus = gpus == "all" or (gpus == "auto" and shutil.which("nvidia-smi") is not None)
    return [
        program,
        "run",
        "--rm",
        *(["--tty"] if sys.stdout.isatty() else []),
        *(["--userns", "keep-id"] if Path(program).name == "podman" and os.getuid() else []),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *("--network", "none"),
        *("--shm-size", "1g"),  # processes that train together share memory through /dev/shm
        *(["--gpus", "all"] if with_gpus else []),
        *(part for mount in mounts_of(arguments) for part in ("--volume", mount)),
        *("--workdir", str(Path.cwd())),
        image,
        *arguments,
    ]


def mounts_of(arguments: Sequence[str]) -> list[str]:
    """List what the run reads and, without ``:ro``, writes; makes the folders it writes to.

    A folder that Docker had to make would belong to root. Links are mounted under their own
    names, because those are what the command line holds.
    """
    settings = parse_request(arguments).settings
    named = vars(build_parser().parse_args(arguments))
    here = Path.cwd()
    written = {
        absolute_path(path, start=here)
        for path in (
            named["output_dir"],
            settings.execution.work_dir,
            settings.selection.bids_database_dir,
        )
        if path is not None
    }
    read = {
        absolute_path(path, start=here)
        for path in (named["bids_dir"], named.get("config_file"), *_paths_in(settings))
        if path is not None
    } - written
    for path in sorted(read | written):
        if ":" in str(path):
            raise InputError(
                expected="paths without a colon, which separates the two sides of a mount",
                found=str(path),
                remedy="rename it, or give a link without a colon",
            )
    for folder in written:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_disk_error(error, folder) or error from error
    return [
        *(f"{path}:{path}:ro" for path in sorted(read) if path.exists()),
        *(f"{path}:{path}" for path in sorted(written)),
    ]


def _paths_in(value: object) -> Iterator[Path]:
    """Find every path in settings, however deep it stands."""
    if isinstance(value, Path):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _paths_in(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _paths_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _paths_in(part)


if __name__ == "__main__":
    sys.exit(main())
