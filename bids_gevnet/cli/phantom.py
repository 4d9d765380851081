"""``bids_gevnet_phantom OUT``: write a simulated multi-site cohort with known truth."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bids_gevnet.cli.completion import complete
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.versions import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.phantom.cohort import ParticipantSpec

_DEFAULT = PhantomSettings()
_DESCRIPTION = """\
Write a small simulated diffusion MRI cohort as a BIDS dataset, to try bids_gevnet without data.

Everything that was simulated (motion, eddy currents, brain mask, fibres, poses, site gains) is
kept under OUT/sourcedata/truth. The same options give the same bytes."""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the phantom command."""
    parser = argparse.ArgumentParser(
        prog="bids_gevnet_phantom",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="new or empty folder")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an earlier phantom cohort in OUT"
    )
    parser.add_argument(
        "--nprocs",
        type=_positive,
        default=None,
        metavar="N",
        help="participants simulated at once (default: processors available)",
    )
    _add_cohort_options(parser)
    _add_effect_options(parser)
    _add_scan_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = build_parser()
    complete(parser)
    options = parser.parse_args(argv)
    try:
        settings = settings_from_options(options)
        _write(options.out, settings, overwrite=options.overwrite, threads=options.nprocs)
    except BidsGevnetError as error:
        print(f"bids_gevnet_phantom: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(
            f"bids_gevnet_phantom: writing failed: {error}. What to do: make room or choose "
            "another OUT, then run again with --overwrite.",
            file=sys.stderr,
        )
        return 1
    return 0


def settings_from_options(options: argparse.Namespace) -> PhantomSettings:
    """Turn parsed options into checked settings."""
    micro = options.effects in {"both", "micro"}
    macro = options.effects in {"both", "macro"}
    return PhantomSettings(
        groups=tuple(name.strip() for name in options.groups.split(",")),
        per_group=options.per_group,
        sites=options.sites,
        voxel_mm=options.voxel_mm,
        seed=options.seed,
        directions=options.directions,
        b_values=options.b_values,
        snr=options.snr,
        micro_effect=options.micro_effect if micro else 0.0,
        macro_effect=options.macro_effect if macro else 0.0,
        anisotropy_effect=options.anisotropy_effect,
        shell_effect=options.shell_effect,
        age_effect=options.age_effect,
        site_effect=not options.no_site_effect,
        motion_mm=0.0 if options.no_motion else options.motion_mm,
        motion_deg=0.0 if options.no_motion else options.motion_deg,
        eddy=0.0 if options.no_eddy else options.eddy,
        outliers=options.outliers,
        reverse_b0=options.reverse_b0,
        t1w=options.t1w,
    )


def _write(out: Path, settings: PhantomSettings, *, overwrite: bool, threads: int | None) -> None:
    from bids_gevnet.phantom.dataset import write_cohort

    total = settings.per_group * len(settings.groups)

    def report(spec: ParticipantSpec) -> None:
        site = chr(ord("A") + spec.site)
        print(f"[{spec.index + 1}/{total}] sub-{spec.label} {spec.diagnosis} site {site}")

    write_cohort(
        out,
        settings,
        overwrite=overwrite,
        threads=threads or len(os.sched_getaffinity(0)),
        progress=report,
    )
    print(f"Phantom cohort in {out} (participants: {total}); its truth in sourcedata/truth.")


def _add_cohort_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cohort")
    group.add_argument(
        "--groups",
        default=",".join(_DEFAULT.groups),
        metavar="A,B,...",
        help="names of the diagnoses (default: %(default)s)",
    )
    _add_number(group, "--per-group", int, _DEFAULT.per_group, "participants in each group")
    _add_number(group, "--sites", int, _DEFAULT.sites, "scanners")
    _add_number(group, "--seed", int, _DEFAULT.seed, "same seed, same bytes")


def _add_effect_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("differences between groups and sites")
    group.add_argument(
        "--effects",
        choices=("both", "micro", "macro", "none"),
        default="both",
        help="micro: crossing angle and dispersion of fibres, with the direction-averaged signal "
        "unchanged; macro: atrophy (default: %(default)s)",
    )
    _add_number(group, "--micro-effect", float, _DEFAULT.micro_effect, "strength, 0 to 2")
    _add_number(group, "--macro-effect", float, _DEFAULT.macro_effect, "strength, 0 to 2")
    _add_number(
        group,
        "--anisotropy-effect",
        float,
        _DEFAULT.anisotropy_effect,
        "strength, 0 to 2, of more dispersed fibres in all white matter",
    )
    _add_number(
        group,
        "--shell-effect",
        float,
        _DEFAULT.shell_effect,
        "strength, 0 to 2, of a difference that shells show together and none alone",
    )
    _add_number(
        group,
        "--age-effect",
        float,
        _DEFAULT.age_effect,
        "strength, 0 to 10, of ageing in everybody: ventricles widen by 0.2 %% a year at 1",
    )
    group.add_argument(
        "--no-site-effect", action="store_true", help="sites differ in their name only"
    )


def _add_scan_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scans")
    _add_number(group, "--voxel-mm", float, _DEFAULT.voxel_mm, "voxel size at the first site")
    _add_number(group, "--directions", int, _DEFAULT.directions, "directions per shell")
    group.add_argument(
        "--b-values",
        type=_numbers,
        default=_DEFAULT.b_values,
        metavar="B,...",
        help="one per shell, in s/mm2 (default: 1000)",
    )
    _add_number(group, "--snr", float, _DEFAULT.snr, "of white matter at b=0; inf for no noise")
    _add_number(group, "--motion-mm", float, _DEFAULT.motion_mm, "largest translation per axis")
    _add_number(group, "--motion-deg", float, _DEFAULT.motion_deg, "largest rotation per axis")
    _add_number(group, "--eddy", float, _DEFAULT.eddy, "strength of eddy-current distortion")
    group.add_argument("--no-motion", action="store_true", help="heads lie still")
    group.add_argument("--no-eddy", action="store_true", help="no eddy-current distortion")
    _add_number(
        group, "--outliers", float, _DEFAULT.outliers, "probability that a volume loses a slice"
    )
    group.add_argument(
        "--reverse-b0",
        action="store_true",
        help="susceptibility distortion, and a b0 with the opposite phase encoding in fmap/",
    )
    group.add_argument("--t1w", action="store_true", help="add a T1-weighted image")


def _add_number(
    group: argparse._ArgumentGroup, flag: str, kind: type[int | float], default: float, text: str
) -> None:
    group.add_argument(
        flag, type=kind, default=default, metavar="N", help=f"{text} (default: %(default)s)"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, found {text!r}")
    return number


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers as in 1000,2000, found {text!r}"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
