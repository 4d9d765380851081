"""The command line of bids_gevnet, one small function per group of options.

No option has a default here: what the user did not write stays absent, so that the settings
file of `--config-file` can fill it, and `bids_gevnet.settings` the rest.
"""

import argparse
import dataclasses
import difflib
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

from bids_gevnet.bids.reading import read_json
from bids_gevnet.cli.completion import complete
from bids_gevnet.errors import InputError, printable
from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.nn.registry import ALL, find_network, scan_networks
from bids_gevnet.settings import (
    ALL_SHELLS,
    PAPER_TRAINING,
    AnalysisLevel,
    BiasCorrect,
    Classes,
    Correction,
    Denoise,
    Harmonisation,
    Masking,
    Precision,
    Protocol,
    Settings,
    TaskKind,
    Unring,
    absolute_derivatives,
    absolute_path,
    absolute_template,
    read_settings,
    split_derivatives,
)
from bids_gevnet.versions import __version__

Action = Literal["run", "dry-run", "reports-only", "boilerplate-only", "qc-only"]

_DESCRIPTION = """\
Learn from diffusion MRI in a way that respects its geometry.

participant  corrects each BIDS diffusion scan, takes it to MNI space and samples it on the
             sphere; with --model it also predicts its label.
group        trains CKN + GEVNet on all participants' spheres, evaluates it over folds and
             sites, and writes a report and a model.

Research use only: nothing here diagnoses anyone."""

_EPILOG = """\
exit codes: 0 all done; 1 something failed, each failure named; 2 wrong usage or unusable
input; 70 memory ran out, or an error that was not foreseen; 130, 143 stopped by a signal."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked command line; all its paths are absolute."""

    bids_dir: Path
    output_dir: Path
    level: AnalysisLevel
    action: Action
    settings: Settings
    remarks: tuple[str, ...] = ()

    @property
    def output(self) -> OutputLayout:
        """Where what the run leaves is."""
        return OutputLayout(self.output_dir)

    @property
    def work(self) -> WorkLayout:
        """Where intermediate files are: `--work-dir`, or a folder of the output."""
        return WorkLayout(self.settings.execution.work_dir or self.output_dir / "work")


def parse_request(argv: Sequence[str] | None = None) -> Request:
    """Parse a command line; argparse itself exits with 2 where it cannot."""
    here = Path.cwd()
    parser = build_parser()
    complete(parser)
    values: dict[str, Any] = {
        name: absolute_path(value, start=here) if isinstance(value, Path) else value
        for name, value in vars(parser.parse_args(argv)).items()
    }
    bids_dir, output_dir = values.pop("bids_dir"), values.pop("output_dir")
    level = cast("AnalysisLevel", values.pop("analysis_level"))
    action = cast("Action", values.pop("action", "run"))
    config_file = values.pop("config_file", None)
    values.pop("notrack", None)
    tables: dict[str, dict[str, Any]] = {} if config_file is None else read_settings(config_file)
    if "protocol" in values:  # a choice made now wins over what an earlier run left in its file
        tables["learning"] = {
            name: value
            for name, value in tables.get("learning", {}).items()
            if name not in PAPER_TRAINING
        }
    if "derivatives" in values:
        values["derivatives"] = [
            absolute_derivatives(text, start=here) for text in values["derivatives"]
        ]
    if "template" in values:
        values["template"] = absolute_template(values["template"], start=here)
    for name, value in values.items():
        plain = str(value) if isinstance(value, Path) else value
        tables.setdefault(_section_of(name), {})[name] = plain
    settings = _with_template_file(Settings.from_tables(tables, source="the command line"))
    _check_folders(bids_dir, output_dir, settings.execution.work_dir)
    _check_derivatives(output_dir, settings.selection.derivatives)
    _refuse_others_output(output_dir)
    if settings.learning.network != ALL:
        find_network(settings.learning.network, classifies_scans=True)
    return Request(
        bids_dir=bids_dir.resolve(),
        output_dir=output_dir.resolve(),
        level=level,
        action=action,
        settings=settings,
        remarks=() if config_file is None else _chosen_by_file(config_file, settings, values),
    )


_CHOOSING = (
    "participant_label",
    "exclude_participant_label",
    "participants_file",
    "session_label",
)


def _chosen_by_file(file: Path, settings: Settings, given: Collection[str]) -> tuple[str, ...]:
    """Say whom the settings of an earlier run choose: easily taken for those of everybody."""
    chosen = []
    for name in _CHOOSING:
        value = getattr(settings.selection, name)
        if value and name not in given:
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            chosen.append(f"--{name.replace('_', '-')} {printable(text)}")
    return (f"{file} chooses who takes part: {', '.join(chosen)}",) if chosen else ()


def _with_template_file(settings: Settings) -> Settings:
    """Replace the name of a template by its file, so that nobody has to look for it again."""
    template = settings.preprocessing.template
    if template is None or template.is_absolute():
        return settings
    from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
    from bids_gevnet.bids.templates import find_template

    name = str(template)
    path = None if name == DEFAULT_TEMPLATE else find_template(name)
    preprocessing = dataclasses.replace(settings.preprocessing, template=path)
    return dataclasses.replace(settings, preprocessing=preprocessing)


_CHOICE = re.compile(r"invalid choice: '(.+?)' \(choose from (.+)\)")


class _Parser(argparse.ArgumentParser):
    """An argument parser that knows what a mistyped option was probably meant to be."""

    def error(self, message: str) -> NoReturn:
        """Add the nearest option or choice to argparse's sentence, and exit with 2."""
        known = [text for action in self._actions for text in action.option_strings]
        options = (word.split("=")[0].rstrip(":,") for word in message.split())
        slips = [(word, known) for word in options if word.startswith("--") and word not in known]
        choice = _CHOICE.search(message)
        if choice is not None:
            # Whether choices stand in quotes depends on the version of Python.
            slips.append((choice[1], [text.strip(" '") for text in choice[2].split(",")]))
        nearest = (difflib.get_close_matches(word, meant, n=1) for word, meant in slips)
        hints = [f"did you mean {near[0]}?" for near in nearest if near]
        super().error("; ".join([message, *hints]))


class _Shells(argparse.Action):
    """b-values, apart or joined by commas, or the word all."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        words = [word for value in values for word in value.split(",") if word]
        try:
            chosen = ALL_SHELLS if words == [ALL_SHELLS] else [float(word) for word in words]
        except ValueError:
            parser.error(f"argument --shell: expected b-values or all, found {' '.join(values)!r}")
        setattr(namespace, self.dest, chosen)


def build_parser() -> argparse.ArgumentParser:
    """Build the whole parser."""
    parser = _Parser(
        prog="bids_gevnet",
        # Positional arguments first: an option with several values would swallow them.
        usage="bids_gevnet BIDS_DIR OUTPUT_DIR {participant,group} [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _add_positionals(parser)
    _add_selection(parser)
    _add_execution(parser)
    _add_actions(parser)
    _add_preprocessing(parser)
    _add_learning(parser)
    return parser


def _section_of(name: str) -> str:
    """Find the section of a setting; names are unique across sections, which a test checks."""
    return next(section for section, table in Settings.names().items() if name in table)


def _default(name: str) -> Any:
    return getattr(getattr(Settings(), _section_of(name)), name)


def _check_folders(bids_dir: Path, output_dir: Path, work_dir: Path | None) -> None:
    if (
        work_dir is not None
        and work_dir.resolve().is_relative_to(bids_dir.resolve())
        and not work_dir.resolve().is_relative_to(output_dir.resolve())
    ):
        raise InputError(
            expected="a --work-dir outside of BIDS_DIR, which is never written to",
            found=str(work_dir),
            remedy="give a folder elsewhere, or leave --work-dir out to use OUTPUT_DIR/work",
        )
    if output_dir.resolve() == bids_dir.resolve():
        raise InputError(
            expected="an OUTPUT_DIR other than BIDS_DIR, which is never written to",
            found=f"{output_dir} for both",
            remedy=f"give for instance {bids_dir / 'derivatives' / 'bids_gevnet'}",
        )
    top, folder = bids_dir.resolve(), output_dir.resolve()
    if folder.is_relative_to(top) and folder.relative_to(top).parts[0] != "derivatives":
        raise InputError(
            expected="an OUTPUT_DIR outside of BIDS_DIR, or in its folder derivatives",
            found=f"{output_dir}, whose files would be taken for raw data",
            remedy=f"give for instance {bids_dir / 'derivatives' / 'bids_gevnet'}",
        )
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(
            expected="a folder for OUTPUT_DIR",
            found=f"the file {output_dir}",
            remedy="give another path",
        )


def _refuse_others_output(output_dir: Path) -> None:
    """Refuse a folder whose description, which is written again, says that it is somebody's."""
    path = output_dir / "dataset_description.json"
    if not path.exists():
        return
    makers = read_json(path).get("GeneratedBy")
    names = [
        str(maker.get("Name"))
        for maker in (makers if isinstance(makers, list) else [])
        if isinstance(maker, dict)
    ]
    if "bids_gevnet" not in names:
        raise InputError(
            expected="an OUTPUT_DIR that is new, or that this app has written",
            found=f"a dataset of {', '.join(names) or 'somebody else'} in {output_dir}",
            remedy="give a folder of its own",
        )


def _check_derivatives(output_dir: Path, derivatives: Sequence[str]) -> None:
    if output_dir.resolve() in {split_derivatives(text)[1].resolve() for text in derivatives}:
        raise InputError(
            expected="an OUTPUT_DIR other than the folders of --derivatives, which are never "
            "written to",
            found=f"{output_dir} for both",
            remedy="give a new folder for OUTPUT_DIR",
        )


def _add_positionals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bids_dir", metavar="BIDS_DIR", type=Path, help="the BIDS dataset, raw or preprocessed"
    )
    parser.add_argument(
        "output_dir", metavar="OUTPUT_DIR", type=Path, help="where the derivatives go"
    )
    parser.add_argument(
        "analysis_level",
        metavar="{participant,group}",
        choices=get_args(AnalysisLevel),
        help="which level to run",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which data")
    group.add_argument(
        "--participant-label",
        "--participant_label",
        nargs="+",
        metavar="LABEL",
        help='participants to process, with or without "sub-" (default: all)',
    )
    group.add_argument(
        "--exclude-participant-label",
        "--exclude_participant_label",
        nargs="+",
        metavar="LABEL",
        help="participants to leave out, at either level",
    )
    group.add_argument(
        "--participants-file",
        "--participants_file",
        type=Path,
        metavar="FILE",
        help="labels of participants to process, one a line; or a table (TSV) with participant_id "
        "and a column include or exclude, filled with yes or no",
    )
    group.add_argument(
        "--session-label",
        "--session_label",
        nargs="+",
        metavar="LABEL",
        help='sessions to process, with or without "ses-" (default: all)',
    )
    group.add_argument(
        "--derivatives",
        nargs="+",
        action="extend",
        metavar="[NAME=]DIR",
        help="scans that were preprocessed before, by QSIPrep, FSL eddy, the HCP or UK Biobank "
        "pipeline or this app (NAME: qsiprep, fsl_eddy, hcp, ukb, bids_gevnet; default: as the "
        "dataset says): correction and masking are skipped and their results taken",
    )
    group.add_argument(
        "--mask-derivatives",
        type=Path,
        metavar="DIR",
        help="brain masks to use, as sub-X/[ses-Y/]dwi/*_desc-brain_mask.nii.gz (default: one "
        "beside the scan, else the brain is masked here)",
    )
    group.add_argument(
        "--skip-bids-validation",
        "--skip_bids_validation",
        action="store_true",
        help="do not ask the BIDS validator first",
    )
    group.add_argument(
        "--bids-filter-file",
        type=Path,
        metavar="FILE",
        help='JSON with pybids queries for "dwi", "t1w" and "fmap"',
    )
    group.add_argument(
        "--bids-database-dir",
        type=Path,
        metavar="DIR",
        help="keep pybids' index here and use it again; delete it when the dataset changes",
    )


def _add_execution(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to run")
    group.add_argument(
        "-w",
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="intermediate files, kept for restarts (default: OUTPUT_DIR/work)",
    )
    group.add_argument(
        "--nprocs",
        "--n-cpus",
        "--n_cpus",
        "--nthreads",
        type=int,
        metavar="N",
        help="processes at once (default: all cores)",
    )
    group.add_argument(
        "--omp-nthreads",
        "--omp_nthreads",
        type=int,
        metavar="N",
        help="threads per process (default: at most 8)",
    )
    group.add_argument(
        "--mem-mb", "--mem_mb", "--mem", type=int, metavar="MB", help="memory to plan with"
    )
    group.add_argument(
        "--notrack",
        action="store_true",
        help="accepted for compatibility: nothing is ever tracked or sent",
    )
    group.add_argument(
        "--use-plugin", type=Path, metavar="FILE", help="TOML or YAML naming a Nipype plugin"
    )
    group.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help="settings as TOML, for instance those an earlier run left in OUTPUT_DIR/logs; the "
        "command line wins over the file, and paths in the file count from its folder",
    )
    group.add_argument(
        "--stop-on-first-crash", action="store_true", help="stop all at the first failure"
    )
    group.add_argument(
        "--clean-workdir", action="store_true", help="delete the work directory afterwards"
    )
    group.add_argument(
        "--resource-monitor",
        action="store_true",
        help="record time and memory of each stage in OUTPUT_DIR/logs and the subject reports",
    )
    group.add_argument(
        "--write-graph", action="store_true", help="draw the workflow into OUTPUT_DIR/logs"
    )
    group.add_argument(
        "--random-seed",
        type=int,
        metavar="N",
        help=f"same seed, same result (default: {_default('random_seed')})",
    )
    group.add_argument("-v", "--verbose", action="count", help="say more; -vv says all")


def _add_actions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("instead of running").add_mutually_exclusive_group()
    for action, text in (
        ("dry-run", "show what would run and write nothing"),
        ("reports-only", "build the reports again from what is on disk"),
        ("boilerplate-only", "write the methods text and nothing else"),
        ("qc-only", "group: write group_qc.html, to look at all scans and rate them"),
    ):
        group.add_argument(
            f"--{action}", dest="action", action="store_const", const=action, help=text
        )
    parser.add_argument("--version", action="version", version=f"bids_gevnet {__version__}")


def _add_preprocessing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("participant level")
    _add_cleaning(group)
    group.add_argument(
        "--correction",
        choices=get_args(Correction),
        help="motion and eddy currents: FSL eddy, our own model of them, ANTs (motion only), or "
        f"none (default: {_default('correction')}, eddy where FSL is installed, else the model)",
    )
    group.add_argument(
        "--use-syn-sdc",
        "--use_syn_sdc",
        action="store_true",
        help="where there is no b0 with the opposite phase encoding, estimate the susceptibility "
        "field by registering the b0 to the T1w along the phase-encoding axis (ANTs SyN); with "
        "--correction model",
    )
    group.add_argument(
        "--masking",
        choices=get_args(Masking),
        help=f"brain mask: FSL bet, or DIPY's Otsu (default: {_default('masking')})",
    )
    group.add_argument(
        "--shell",
        nargs="+",
        action=_Shells,
        metavar="B",
        help="b-value in s/mm² of the shell on the sphere, several of them (1000 3000), or all "
        "that the scans share; networks take several as channels (default: the one nearest to "
        "1000; with --model those of the model)",
    )
    group.add_argument(
        "--b0-threshold",
        type=float,
        metavar="B",
        help=f"largest b-value of a b0 (default: {_default('b0_threshold'):g})",
    )
    group.add_argument(
        "--output-resolution",
        type=float,
        metavar="MM",
        help=f"voxel size in MNI space (default: {_default('output_resolution'):g})",
    )
    group.add_argument(
        "--crop-margin",
        type=float,
        metavar="MM",
        help="room left around the template's brain when cropping "
        f"(default: {_default('crop_margin'):g})",
    )
    group.add_argument(
        "--nside",
        type=int,
        metavar="N",
        help=f"HEALPix resolution, 12 N² points (default: {_default('nside')})",
    )
    group.add_argument(
        "--fallback-total-readout-time",
        type=float,
        metavar="S",
        help="readout time where the metadata have none",
    )
    group.add_argument(
        "--template",
        metavar="FILE|NAME",
        help="T1-weighted template NIfTI, or the name of one that TemplateFlow has on this "
        "machine, such as MNI152NLin2009cAsym; nothing is downloaded (default: "
        "MNI152NLin2009aSym, from nilearn)",
    )


def _add_cleaning(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--denoise",
        choices=get_args(Denoise),
        help="before anything else, by DIPY: MP-PCA, Patch2Self, or none "
        f"(default: {_default('denoise')}, which the report explains for each run)",
    )
    group.add_argument(
        "--unring",
        choices=get_args(Unring),
        help="remove Gibbs ringing, by DIPY "
        f"(default: {_default('unring')}, where all of k-space was acquired, the scanner did not "
        "interpolate and MP-PCA did not run)",
    )
    group.add_argument(
        "--bias-correct",
        choices=get_args(BiasCorrect),
        help="divide by the bias field of the mean b0, by ANTs' N4 "
        f"(default: {_default('bias_correct')}, which does not, because S/b0 and tensors stay the "
        "same)",
    )


def _add_learning(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("group level and prediction")
    group.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="folder of a trained model. participant: predict with it; group: train nothing, and "
        "validate it on this labelled dataset, without fitting anything",
    )
    group.add_argument(
        "--harmonisation",
        choices=get_args(Harmonisation),
        help=f"across sites (default: {_default('harmonisation')})",
    )
    group.add_argument(
        "--target",
        metavar="COLUMN",
        help="column of participants.tsv to predict, with classes or with a number such as an age "
        "or a clinical score (default: diagnosis, else group; with --model, what it predicts)",
    )
    group.add_argument(
        "--task",
        choices=get_args(TaskKind),
        help="tell classes apart, or predict a number (default: "
        f"{_default('task')}: a column of numbers with more than ten different values, or with "
        "more than five that fewer than three people share on average, is a number)",
    )
    group.add_argument(
        "--site", metavar="COLUMN", help="column with the site (default: from the scanner)"
    )
    group.add_argument(
        "--reference-site",
        metavar="NAME",
        help="site that harmonisation brings the others to (default: the mean of all sites)",
    )
    group.add_argument(
        "--adapt",
        action="store_true",
        help="harmonise sites that a model was not trained on from their unlabelled scans, 3 "
        "people or more of each. participant --model: from scans of the site that are already in "
        "OUTPUT_DIR; group --model: from those that are scored; group: also tests every left-out "
        "site adapted. Where a site's mix of diagnoses differs from the training data's, this "
        "removes a part of the difference between diagnoses, too",
    )
    group.add_argument(
        "--covariates",
        nargs="*",
        metavar="COLUMN",
        help=f"columns that harmonisation keeps (default: {' '.join(_default('covariates'))})",
    )
    group.add_argument(
        "--classes",
        choices=get_args(Classes),
        help="tell apart every pair of labels, or all labels at once "
        f"(default: {_default('classes')}; all with more than five labels)",
    )
    group.add_argument(
        "--leave-site-out",
        action=argparse.BooleanOptionalAction,
        help="also train without each site in turn and test on it (default: where at least two "
        "sites can be left out)",
    )
    group.add_argument(
        "--atlas",
        type=Path,
        metavar="FILE",
        help="label image in template space whose regions saliency is tabulated by, with names in "
        "a TSV beside it, columns index and name (default: lobes by planes in MNI space)",
    )
    _add_training(group)


def _part_of_brain(text: str) -> float | str:
    """Read a fraction or a number of voxels; `settings` says what is wrong with other words."""
    try:
        return float(text)
    except ValueError:
        return text


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--network",
        metavar="NAME",
        help=f"{', '.join(scan_networks())}, or {ALL} (default: {_default('network')})",
    )
    group.add_argument(
        "--strides",
        nargs=4,
        type=int,
        metavar="N",
        help="pooling of the four layers of the kernel network; their product is how many voxels "
        "become one along each axis, smaller for voxels far above 2 mm "
        f"(default: {' '.join(map(str, _default('strides')))})",
    )
    group.add_argument(
        "--protocol",
        choices=get_args(Protocol),
        help=f"paper: {PAPER_TRAINING['epochs']} epochs at {PAPER_TRAINING['learning_rate']:g}, "
        f"{PAPER_TRAINING['folds']} folds and {PAPER_TRAINING['samples_per_class']} samples per "
        "class, whole brains, as the paper has them; the default takes few steps at a high rate, "
        "because at the paper's rate the weights hardly move in the few thousand steps of a small "
        "study. Options below win over either",
    )
    group.add_argument(
        "--init-model",
        type=Path,
        metavar="DIR",
        help="folder of a trained model of the same network, grid and shells whose weights "
        "training starts from; its last layers start anew where classes or target differ, and "
        "people it was trained on are left out (default: random weights)",
    )
    for option, kind, text in (
        ("folds", int, "parts to test in turn"),
        ("epochs", int, "times through the samples"),
        ("samples-per-class", int, "mixup up to this many; twice as many for a number"),
        ("batch-size", int, "samples per step, over all processes"),
        ("learning-rate", float, "at the first step; it falls to a tenth"),
    ):
        group.add_argument(
            f"--{option}",
            type=kind,
            metavar="N" if kind is int else "RATE",
            help=f"{text} (default: {_default(option.replace('-', '_'))})",
        )
    group.add_argument(
        "--voxels-per-step",
        type=_part_of_brain,
        metavar="PART|N|all",
        help="how much of each brain a training step sees, in blocks drawn anew for every sample: "
        "a fraction up to 1, a number of voxels, or all. Fewer take less time for the same "
        "answer, as every region comes in turn; validation, prediction and saliency always see "
        "everything, and so does the training of networks of other packages "
        f"(default: {_default('voxels_per_step')})",
    )
    group.add_argument(
        "--devices",
        metavar="auto|N|cpu:N",
        help=f"GPUs, or CPU processes (default: {_default('devices')})",
    )
    group.add_argument(
        "--precision",
        choices=get_args(Precision),
        help=f"(default: {_default('precision')}: float32 everywhere)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="resume half-trained models from their last checkpoint",
    )
