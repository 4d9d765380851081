"""What a run was asked to do: frozen, checked, and the same on the command line and in TOML.

A `Settings` object holds one frozen section per concern; builders and functions receive the
section they need and nothing else. Defaults live here and nowhere else. The same fields can
be written to and read from TOML, one table per section, so that any run can be repeated from
the file it leaves in its output.
"""

import dataclasses
import difflib
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from bids_gevnet.errors import InputError, describe_unreadable

AnalysisLevel = Literal["participant", "group"]
Correction = Literal["auto", "eddy", "model", "ants", "none"]
Denoise = Literal["auto", "mppca", "patch2self", "none"]
Unring = Literal["auto", "on", "none"]
BiasCorrect = Literal["auto", "on", "none"]
Masking = Literal["auto", "bet", "otsu"]
Harmonisation = Literal["rish", "none"]
Precision = Literal["auto", "float32", "bfloat16"]
Classes = Literal["pairs", "all"]
TaskKind = Literal["auto", "classification", "regression"]
Protocol = Literal["default", "paper"]
ShellChoice = tuple[float, ...] | Literal["all"] | None
"""b-values in s/mm² of the shells on the sphere, all that a scan has, or None: one near 1000."""

LARGEST_FILE = 1 << 20
"""Bytes of a settings file; one with every setting has two thousand."""
ALL_SHELLS: Literal["all"] = "all"
"""What ``--shell`` calls every shell of a scan."""
B0_THRESHOLD = 50.0
"""Largest b-value of a b0, in s/mm², unless the user gives another."""
DEFAULT_NETWORK = "ckn2+gevnet"
"""The paper's best: shown and explained first where several networks are compared."""
DEFAULT_STRIDES = (2, 1, 2, 1)
"""Pooling of the kernel network's four layers, as in the paper, unless the user gives another."""

PAPER_TRAINING: Mapping[str, Any] = types.MappingProxyType(
    {
        "folds": 5,
        "epochs": 15,
        "samples_per_class": 400,
        "learning_rate": 1e-5,
        "voxels_per_step": "all",
    }
)
"""What the paper states of its training on scans and ``--protocol`` decides. Adam, weight decay
and mixup are the same in both protocols; the paper gives neither batch size nor rate of decay."""


def available_cpus() -> int:
    """Cores this process may use, which on a cluster node are fewer than the node has."""
    return len(os.sched_getaffinity(0))


def _require(condition: bool, *, option: str, expected: str, found: object) -> None:  # noqa: FBT001
    if not condition:
        raise InputError(
            expected=f"{expected} for {option}",
            found=repr(found),
            remedy=f"give {option} another value",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """Which part of the dataset to look at, and how to index it."""

    participant_label: tuple[str, ...] = ()
    exclude_participant_label: tuple[str, ...] = ()
    participants_file: Path | None = None
    session_label: tuple[str, ...] = ()
    bids_filter_file: Path | None = None
    bids_database_dir: Path | None = None
    skip_bids_validation: bool = False
    derivatives: tuple[str, ...] = ()
    mask_derivatives: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """How to run: resources, work directory, what to do on failure."""

    work_dir: Path | None = None
    nprocs: int = 0
    omp_nthreads: int = 0
    mem_mb: int = 0
    use_plugin: Path | None = None
    write_graph: bool = False
    stop_on_first_crash: bool = False
    clean_workdir: bool = False
    resource_monitor: bool = False
    random_seed: int = 0
    verbose: int = 0

    def __post_init__(self) -> None:
        for option, value in (
            ("--nprocs", self.nprocs),
            ("--omp-nthreads", self.omp_nthreads),
            ("--mem-mb", self.mem_mb),
            ("--random-seed", self.random_seed),
        ):
            _require(value >= 0, option=option, expected="a number from 0 up", found=value)
        _require(
            self.random_seed < 2**32,
            option="--random-seed",
            expected="a number below 2^32",
            found=self.random_seed,
        )

    @property
    def processes(self) -> int:
        """Processes to run at once; 0 in `nprocs` means every core we may use."""
        return self.nprocs or available_cpus()

    @property
    def threads(self) -> int:
        """Threads one process may use; 0 in `omp_nthreads` means all, eight at most."""
        return self.omp_nthreads or min(self.processes, 8)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessingSettings:
    """From the scan to spherical samples in MNI space."""

    denoise: Denoise = "auto"
    unring: Unring = "auto"
    bias_correct: BiasCorrect = "auto"
    correction: Correction = "auto"
    use_syn_sdc: bool = False
    masking: Masking = "auto"
    shell: ShellChoice = None
    b0_threshold: float = B0_THRESHOLD
    output_resolution: float = 2.0
    crop_margin: float = 4.0
    nside: int = 4
    fallback_total_readout_time: float | None = None
    template: Path | None = None

    def __post_init__(self) -> None:
        chosen = self.shell if isinstance(self.shell, tuple) else None
        _require(
            chosen is None or (bool(chosen) and min(chosen) > self.b0_threshold),
            option="--shell",
            expected=f"b-values in s/mm² above the b0 threshold ({self.b0_threshold:g}), or all",
            found=self.shell,
        )
        _require(
            chosen is None or len(set(chosen)) == len(chosen),
            option="--shell",
            expected="every b-value once",
            found=self.shell,
        )
        _require(
            0 <= self.b0_threshold <= 200,
            option="--b0-threshold",
            expected="a b-value between 0 and 200 s/mm²",
            found=self.b0_threshold,
        )
        _require(
            0.5 <= self.output_resolution <= 20,
            option="--output-resolution",
            expected="a voxel size between 0.5 and 20 mm",
            found=self.output_resolution,
        )
        _require(
            0 <= self.crop_margin <= 50,
            option="--crop-margin",
            expected="a margin between 0 and 50 mm",
            found=self.crop_margin,
        )
        _require(
            self.nside in {1, 2, 4, 8, 16, 32},
            option="--nside",
            expected="a power of two from 1 to 32",
            found=self.nside,
        )
        readout = self.fallback_total_readout_time
        _require(
            readout is None or 0 < readout < 1,
            option="--fallback-total-readout-time",
            expected="a time in seconds between 0 and 1",
            found=readout,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """Labels, network, training; and the model a new scan is predicted with."""

    model: Path | None = None
    init_model: Path | None = None
    harmonisation: Harmonisation = "rish"
    target: str | None = None
    task: TaskKind = "auto"
    site: str | None = None
    reference_site: str | None = None
    adapt: bool = False
    covariates: tuple[str, ...] = ("age", "sex")
    classes: Classes = "pairs"
    network: str = DEFAULT_NETWORK
    strides: tuple[int, ...] = DEFAULT_STRIDES
    folds: int = 5
    leave_site_out: bool | None = None
    atlas: Path | None = None
    protocol: Protocol = "default"
    epochs: int = 12
    samples_per_class: int = 64
    batch_size: int = 8
    voxels_per_step: float | Literal["all"] = "all"
    learning_rate: float = 3e-3
    devices: str = "auto"
    precision: Precision = "auto"
    resume: bool = False

    def __post_init__(self) -> None:
        _require(
            len(self.strides) == len(DEFAULT_STRIDES)
            and all(1 <= stride <= 8 for stride in self.strides),
            option="--strides",
            expected="4 numbers from 1 to 8",
            found=self.strides,
        )
        _require(self.folds >= 2, option="--folds", expected="at least 2", found=self.folds)
        _require(self.epochs >= 1, option="--epochs", expected="at least 1", found=self.epochs)
        _require(
            self.samples_per_class >= 1,
            option="--samples-per-class",
            expected="at least 1",
            found=self.samples_per_class,
        )
        _require(
            1 <= self.batch_size <= 4096,
            option="--batch-size",
            expected="a number from 1 to 4096",
            found=self.batch_size,
        )
        _require(
            self.voxels_per_step == "all" or self.voxels_per_step > 0,
            option="--voxels-per-step",
            expected="a fraction of the brain up to 1, a number of voxels, or all",
            found=self.voxels_per_step,
        )
        _require(
            0 < self.learning_rate <= 1,
            option="--learning-rate",
            expected="a number above 0 and at most 1",
            found=self.learning_rate,
        )
        _require(
            self.reference_site is None or self.harmonisation == "rish",
            option="--reference-site",
            expected="--harmonisation rish",
            found=self.harmonisation,
        )
        _require(
            not self.adapt or self.harmonisation == "rish",
            option="--adapt",
            expected="--harmonisation rish",
            found=self.harmonisation,
        )
        _require(
            self.model is None or self.init_model is None,
            option="--init-model",
            expected="no --model, with which nothing is trained,",
            found=str(self.model),
        )
        count = self.devices.removeprefix("cpu:")
        _require(
            self.devices == "auto" or (count.isdecimal() and int(count) > 0),
            option="--devices",
            expected="auto, a number of GPUs, or cpu:N",
            found=self.devices,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that a run was asked to do, but for the three positional arguments."""

    selection: SelectionSettings = SelectionSettings()
    execution: ExecutionSettings = ExecutionSettings()
    preprocessing: PreprocessingSettings = PreprocessingSettings()
    learning: LearningSettings = LearningSettings()

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, object]], *, source: str) -> Self:
        """Build settings from nested plain values, as TOML or the command line gives them.

        Parameters
        ----------
        tables : mapping
            Section name to field name to value; what is missing keeps its default, or gets what
            the protocol of the training says.
        source : str
            Where the values come from, for error messages.
        """
        sections: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(cls)}
        for name, table in tables.items():
            _require_known(name, sections, kind="a section", source=source)
            if not isinstance(table, Mapping):
                raise InputError(
                    expected=f"a table [{name}] in {source}",
                    found=f"the value {table!r}",
                    remedy=f"put the settings under a line [{name}]",
                )
            chosen = PAPER_TRAINING if table.get("protocol") == "paper" else {}
            sections[name] = _section_from_table(
                type(sections[name]), {**chosen, **table}, source=source
            )
        return cls(**sections)

    @classmethod
    def names(cls) -> dict[str, tuple[str, ...]]:
        """Names of the settings, section by section."""
        sections: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(cls)}
        return {
            name: tuple(field.name for field in dataclasses.fields(section))
            for name, section in sections.items()
        }

    @classmethod
    def path_names(cls) -> frozenset[str]:
        """Names of the settings that hold a path."""
        return frozenset(
            name
            for field in dataclasses.fields(cls)
            for name, hint in typing.get_type_hints(type(field.default)).items()
            if Path in (hint, *get_args(hint))
        )

    def to_tables(self) -> dict[str, dict[str, Any]]:
        """Give nested plain values without the unset ones: TOML has no null."""
        return {
            section: {
                name: _plain(value)
                for name in names
                if (value := getattr(getattr(self, section), name)) is not None
            }
            for section, names in self.names().items()
        }


def absolute_path(path: Path | str, *, start: Path) -> Path:
    """Make a path absolute, counted from a folder; `~` is the user's home."""
    return Path(os.path.normpath(start / Path(path).expanduser()))


def split_derivatives(text: str) -> tuple[str, Path]:
    """Split a value of `--derivatives` into the name of a pipeline, if it has one, and a path.

    >>> split_derivatives("qsiprep=/data/derivatives/qsiprep")
    ('qsiprep', PosixPath('/data/derivatives/qsiprep'))
    """
    name, is_named, path = text.partition("=")
    return (name, Path(path)) if is_named and re.fullmatch(r"[\w-]+", name) else ("", Path(text))


def absolute_derivatives(text: str, *, start: Path) -> str:
    """Make the path in a value of `--derivatives` absolute, counted from a folder."""
    name, path = split_derivatives(text)
    absolute = absolute_path(path, start=start)
    return f"{name}={absolute}" if name else str(absolute)


def absolute_template(text: str, *, start: Path) -> str:
    """Make the path of a template absolute; a bare word that is no file is the name of one."""
    path = absolute_path(text, start=start)
    return text if re.fullmatch(r"[A-Za-z0-9]+", text) and not path.exists() else str(path)


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """Read a settings file, checked; relative paths in it count from the file's own folder."""
    tables = read_toml(path)
    Settings.from_tables(tables, source=str(path))
    paths, start = Settings.path_names(), path.parent

    def absolute(name: str, value: Any) -> Any:
        if name == "derivatives":
            return [absolute_derivatives(text, start=start) for text in value]
        if name == "template":
            return absolute_template(value, start=start)
        return str(absolute_path(value, start=start)) if name in paths else value

    return {
        section: {name: absolute(name, value) for name, value in table.items()}
        for section, table in tables.items()
    }


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a settings file; unknown names are found by `Settings.from_tables`."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ValueError(f"more than {LARGEST_FILE} bytes")  # noqa: TRY301
        if b"\\u0000" in content:
            raise ValueError("a null character, which no setting has")  # noqa: TRY301
        return tomllib.loads(content.decode())
    except OSError as error:
        raise InputError(
            expected="a readable settings file",
            found=f"{path} ({error.strerror})",
            remedy="check the path given to --config-file",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            expected=f"TOML in {path}",
            found=describe_unreadable(error),
            remedy="correct the file, or start from the settings.toml of an earlier run",
        ) from None


def to_toml(settings: Settings, *, without: Collection[str] = ()) -> str:
    """Write settings as TOML that `read_toml` and `Settings.from_tables` turn back.

    Parameters
    ----------
    settings : Settings
    without : collection of str
        Tables to leave out.
    """
    import tomli_w

    tables = settings.to_tables()
    return tomli_w.dumps({name: tables[name] for name in tables if name not in without})


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def _require_known(name: str, known: Mapping[str, object], *, kind: str, source: str) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(known)}"
    raise InputError(
        expected=f"the name of {kind} in {source}",
        found=repr(name),
        remedy=f"correct or remove it; {hint}",
    )


def _section_from_table(section: type, table: Mapping[str, object], *, source: str) -> object:
    hints = typing.get_type_hints(section)
    values = {}
    for name, value in table.items():
        _require_known(name, hints, kind=f"a setting of {section.__name__}", source=source)
        try:
            values[name] = _convert(value, hints[name])
        except TypeError as error:
            raise InputError(
                expected=f"{error} for {name} in {source}",
                found=repr(value),
                remedy="correct the value",
            ) from None
    return section(**values)


def _convert_any(value: object, hints: Sequence[Any]) -> object:
    """Turn a plain value into the first of several types that takes it."""
    wanted = []
    for hint in hints:
        try:
            return _convert(value, hint)
        except TypeError as error:
            wanted.append(str(error))
    raise TypeError(" or ".join(wanted))


def _convert_list(value: object, kind: Any) -> tuple[object, ...]:
    """Turn a list, or one number where several may stand (shell = 1000), into a tuple."""
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, str) or not isinstance(value, Sequence):
        words = {str: "a list of words", int: "a list of whole numbers"}
        raise TypeError(words.get(kind, "a list of numbers"))
    return tuple(_convert(item, kind) for item in value)


def _convert(value: object, hint: Any) -> object:
    """Turn a plain value into the type a field declares; a TypeError names what it wants."""
    if get_origin(hint) in (types.UnionType, typing.Union):
        options = [option for option in get_args(hint) if option is not type(None)]
        return None if value is None else _convert_any(value, options)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise TypeError(f"one of {', '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        return _convert_list(value, get_args(hint)[0])
    if hint is Path:
        return Path(str(_convert(value, str)))
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
        raise TypeError(names[hint])
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError("a finite number")
    return value
