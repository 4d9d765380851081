"""Models on disk: weights as safetensors, everything else as JSON, gains as plain arrays.

    model.safetensors   weights and running statistics
    model.json          `ModelCard`
    harmonisation.npz   gains per site, if the model harmonises
    environment.txt     versions of what trained it
    MODEL_CARD.md       the same for people, with its figures; final models only

None of these can hold code. A folder from somebody else is checked before it is used: the card
field by field, the network by its name among those installed, the weights by name and shape.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.bids.writing import replacing, write_json, write_text
from bids_gevnet.compiled.library import level
from bids_gevnet.errors import BidsGevnetError, InputError, describe_unreadable
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.learn.cohort.tasks import CLASSIFICATION, REGRESSION
from bids_gevnet.nn.registry import find_network, scan_networks
from bids_gevnet.settings import DEFAULT_STRIDES
from bids_gevnet.versions import __version__, list_versions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.nn.compound import ScanNetwork

WEIGHTS = "model.safetensors"
GAINS = "harmonisation.npz"
MODEL_CARD = "MODEL_CARD.md"
CHANGED_TEXT = f"{MODEL_CARD} of the model is missing or was changed since it was written"
_FORMAT = "bids_gevnet model 1"
_MAX_CARD = 64 * 1024**2
_MAX_WEIGHTS = 1024**3
MAX_SHELLS = 64
"""More than any scheme of shells has: a card with more is none of ours."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What a model is and what it was trained on.

    Parameters
    ----------
    network : str
        Name in the registry of networks.
    labels : tuple of str
        Classes in the order of the outputs, or the column whose number is predicted.
    task : str
        Which labels are told apart, such as AD-v-PD.
    fold : int or None
        None for the model trained on everybody.
    nside : int
        Of the HEALPix grid.
    shape : tuple of int
        Voxels of the grid.
    affine : tuple of tuples of float
        Grid to template mm.
    temperature : float
        Scores are divided by it before the softmax.
    options : dict
        How it was trained.
    participants : tuple of str
        Who it was trained on.
    fingerprints : tuple of str
        Hashes of the scans it was trained on.
    dataset : str
        Name of the dataset they are from.
    sites : tuple of str
        Where they were scanned.
    max_motion : float or None
        Largest mean framewise displacement among them, in mm.
    rish_low, rish_high : tuple of float
        Range of the log mean energy of each degree after harmonisation.
    harmonised : bool
        Whether scans are harmonised before the network sees them.
    warnings : tuple of str
        What harmonisation and training warned of.
    digest : str
        Of the training job.
    app_version : str
        Version that trained it.
    strides : tuple of 4 int
        Pooling of the kernel network's layers; models of earlier versions have the default.
    b_values : tuple of float
        Of the shells it takes, in s/mm²; empty for one shell whose b-value differed between the
        training scans or was not written down.
    files : dict of str to str
        SHA-256 of the other files of the folder; models of earlier versions have none.
    kind : str
        "classification", or "regression" for a model that predicts a number.
    unit : str
        Of that number, if it is known.
    target_mean, target_sd : float
        Of the training scans: the number is target_mean + target_sd times the output.
    target_low, target_high : float
        Range of the number in training.
    typical_error : float or None
        Mean absolute error of the models of the folds in people they had not seen; None for a
        model that is not final.

    Examples
    --------
    >>> import numpy as np
    >>> card = ModelCard(
    ...     network="ckn2", labels=("AD", "PD"), task="AD-v-PD", fold=None, nside=1,
    ...     shape=(4, 4, 4), affine=tuple(map(tuple, np.eye(4).tolist())), temperature=1.0,
    ...     options={}, participants=("01",), fingerprints=(), dataset="", sites=("here",),
    ...     max_motion=None, rish_low=(-9.0, -99.0), rish_high=(9.0, 9.0), harmonised=False,
    ...     warnings=(), digest="")
    >>> card.strides
    (2, 1, 2, 1)
    """

    network: str
    labels: tuple[str, ...]
    task: str
    fold: int | None
    nside: int
    shape: tuple[int, ...]
    affine: tuple[tuple[float, ...], ...]
    temperature: float
    options: dict[str, Any]
    participants: tuple[str, ...]
    fingerprints: tuple[str, ...]
    dataset: str
    sites: tuple[str, ...]
    max_motion: float | None
    rish_low: tuple[float, ...]
    rish_high: tuple[float, ...]
    harmonised: bool
    warnings: tuple[str, ...]
    digest: str
    app_version: str = __version__
    strides: tuple[int, ...] = DEFAULT_STRIDES
    b_values: tuple[float, ...] = ()
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    kind: str = CLASSIFICATION
    unit: str = ""
    target_mean: float = 0.0
    target_sd: float = 1.0
    target_low: float = 0.0
    target_high: float = 0.0
    typical_error: float | None = None

    def __post_init__(self) -> None:
        outputs: dict[str, range] = {CLASSIFICATION: range(2, 1001), REGRESSION: range(1, 2)}
        sensible = (
            len(self.labels) in outputs.get(self.kind, ())
            and self.target_sd > 0
            and self.target_low <= self.target_high
            and self.nside in {1, 2, 4, 8, 16, 32}
            and len(self.shape) == 3
            and all(0 < n <= 2000 for n in self.shape)
            and [len(row) for row in self.affine] == [4] * 4
            and 0 < self.temperature < 1e6
            and len(self.strides) == len(DEFAULT_STRIDES)
            and all(1 <= stride <= 8 for stride in self.strides)
            and len(self.b_values) <= MAX_SHELLS
            and all(0 < b < 1e6 for b in self.b_values)
            and list(self.b_values) == sorted(set(self.b_values))
            and len(self.rish_low) == len(self.rish_high)
            and set(self.files) <= {WEIGHTS, GAINS, MODEL_CARD}
            and all(isinstance(text, str) for text in self.files.values())
        )
        if not sensible:
            raise ValueError("a model card with impossible values")

    @property
    def shells(self) -> int:
        """How many shells the network takes."""
        return max(1, len(self.b_values))

    @property
    def is_regression(self) -> bool:
        """Whether the model predicts a number."""
        return self.kind == REGRESSION

    def number(self, score: Any) -> Any:
        """Turn the output of the network, or an array of outputs, into what it stands for."""
        return self.target_mean + self.target_sd * score


class Model(NamedTuple):
    """A trained model in memory, as `load_model` reads it.

    Attributes
    ----------
    network : ScanNetwork
        In evaluation mode.
    card : ModelCard
    gains : RishGains or None
        None if the model does not harmonise.

    Examples
    --------
    >>> Model._fields
    ('network', 'card', 'gains')
    """

    network: ScanNetwork
    card: ModelCard
    gains: RishGains | None


def write_model(
    folder: Path, network: nn.Module, card: ModelCard, gains: RishGains | None
) -> None:
    """Write a model folder; the card comes last and says that the rest is there."""
    from safetensors.torch import save_file

    tensors = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
    with replacing(folder / WEIGHTS) as part:
        save_file(tensors, part)
    if gains is not None:
        with replacing(folder / GAINS) as part, part.open("wb") as stream:
            gains.save(stream)
    else:
        (folder / GAINS).unlink(missing_ok=True)
    environment = list_versions() | {"kernels": level()}
    versions = "".join(f"{name} {number}\n" for name, number in environment.items())
    write_text(folder / "environment.txt", versions)
    names = (WEIGHTS, *([GAINS] if gains is not None else []))
    hashes = {name: hash_file(folder / name) for name in names}
    write_card(folder, dataclasses.replace(card, files=hashes))


def damaged_files(folder: Path) -> list[str]:
    """Name the files a model needs that are missing or not what was written."""
    card = read_card(folder)
    hashes = card.files or dict.fromkeys([WEIGHTS, *([GAINS] if card.harmonised else [])], "")
    return [
        name
        for name, expected in hashes.items()
        if name != MODEL_CARD  # a changed text changes no prediction: see `has_changed_text`
        and (not (folder / name).is_file() or (expected and hash_file(folder / name) != expected))
    ]


def has_changed_text(folder: Path) -> bool:
    """Whether the card for people is missing or not what was written; its figures may be wrong."""
    expected = read_card(folder).files.get(MODEL_CARD)
    path = folder / MODEL_CARD
    return expected is not None and not (path.is_file() and hash_file(path) == expected)


def write_card(folder: Path, card: ModelCard) -> None:
    """Write model.json."""
    write_json(folder / "model.json", {"format": _FORMAT} | dataclasses.asdict(card))


def read_card(folder: Path) -> ModelCard:
    """Read and check model.json."""
    path = folder / "model.json"
    try:
        if path.stat().st_size > _MAX_CARD:
            raise ValueError(f"{path.stat().st_size} bytes")  # noqa: TRY301
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ValueError("another format")  # noqa: TRY301
        hints = get_type_hints(ModelCard)
        if unknown := set(content) - set(hints):
            raise ValueError(f"unknown fields {sorted(unknown)[:3]}")  # noqa: TRY301
        card = ModelCard(**{name: _typed(value, hints[name]) for name, value in content.items()})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            expected=f"a model written by bids_gevnet in {folder}",
            found="no model.json there"
            if isinstance(error, FileNotFoundError)
            else f"something else in model.json ({describe_unreadable(error)})",
            remedy="give the folder of a model, for instance models/<task>/final",
        ) from None
    if card.network not in scan_networks():
        raise InputError(
            expected=f"a model written by bids_gevnet in {folder}, of a network that is installed",
            found=f"the network {card.network!r}, which no installed package provides",
            remedy=f"install the package that does; installed are {', '.join(scan_networks())}",
        )
    return card


def load_model(folder: Path) -> Model:
    """Read a model folder; anything that does not fit is refused, and nothing in it is run.

    Parameters
    ----------
    folder : Path
        With model.json, for instance models/<task>/final of a study.

    Returns
    -------
    model : Model

    Examples
    --------
    >>> import numpy as np
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> card = ModelCard(
    ...     network="ckn2", labels=("AD", "PD"), task="AD-v-PD", fold=None, nside=1,
    ...     shape=(4, 4, 4), affine=tuple(map(tuple, np.eye(4).tolist())), temperature=1.0,
    ...     options={}, participants=("01",), fingerprints=(), dataset="", sites=("here",),
    ...     max_motion=None, rish_low=(-9.0, -99.0), rish_high=(9.0, 9.0), harmonised=False,
    ...     warnings=(), digest="")
    >>> with TemporaryDirectory() as folder:
    ...     write_model(Path(folder), build_network("ckn2", 2, 1), card, None)
    ...     load_model(Path(folder)).card.labels
    ('AD', 'PD')
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    card, gains = load_harmonisation(folder)
    path = folder / WEIGHTS
    try:
        if path.stat().st_size > _MAX_WEIGHTS:
            raise ValueError(f"{path.stat().st_size} bytes of weights")  # noqa: TRY301
        network = build_network(
            card.network, len(card.labels), card.nside, card.strides, shells=card.shells
        )
        network.load_state_dict(load_file(path))
    except (OSError, ValueError, RuntimeError, SafetensorError, BidsGevnetError) as error:
        raise InputError(
            expected=f"weights of {card.network} in {path}",
            found=f"something else ({error})",
            remedy="use the model folder as it was written",
        ) from None
    network.eval()
    return Model(network, card, gains)


def load_harmonisation(folder: Path) -> tuple[ModelCard, RishGains | None]:
    """Read the card of a model folder, and its gains if the model harmonises."""
    card = read_card(folder)
    if damaged := damaged_files(folder):
        raise InputError(
            expected=f"the files of the model in {folder} as they were written",
            found=f"{', '.join(damaged)} missing or changed",
            remedy="copy the whole folder again, or train the model again",
        )
    gains = load_gains(folder / GAINS) if card.harmonised else None
    if gains is not None and (
        (tuple(gains.shape), gains.nside, gains.shells) != (card.shape, card.nside, card.shells)
    ):
        raise InputError(
            expected=f"a harmonisation of {card.shells} shell(s) on the model's grid, "
            f"{card.shape}, nside {card.nside}",
            found=f"{gains.shells} shell(s) on {gains.shape}, nside {gains.nside}",
            remedy="use the model folder as it was written",
        )
    return card, gains


def build_network(
    name: str,
    classes: int,
    nside: int,
    strides: Sequence[int] = DEFAULT_STRIDES,
    *,
    shells: int = 1,
) -> ScanNetwork:
    """Build a network that classifies scans by its name.

    Parameters
    ----------
    name : str
    classes : int
        Outputs: 1 for a number.
    nside : int
    strides : sequence of 4 int
        Pooling of the kernel network's layers, if the network has one.
    shells : int
        Shells of the scans.
    """
    from bids_gevnet.nn.compound import ScanNetwork

    entry = find_network(name, classifies_scans=True)
    several = {"shells": shells} if shells > 1 else {}
    if several and not entry.takes("shells"):
        raise InputError(
            expected=f"scans with one shell for the network {name}",
            found=f"{shells} shells",
            remedy="choose one with --shell at the participant level, or another --network",
        )
    network = entry.build(classes=classes, nside=nside, strides=tuple(strides), **several)
    if not isinstance(network, ScanNetwork):
        raise InputError(
            expected=f"a bids_gevnet.nn.ScanNetwork from the builder of {name}",
            found=f"a {type(network).__name__}",
            remedy="derive the network from that class",
        )
    return network


def _typed(value: Any, hint: Any) -> Any:
    """Give a JSON value the type that a field declares, or refuse it."""
    if hint is Any:
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TypeError(f"a list was expected, not {type(value).__name__}")
        return tuple(_typed(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise TypeError(f"an object was expected, not {type(value).__name__}")
        return value
    options = get_args(hint) or (hint,)
    if float in options and type(value) is int:
        value = float(value)
    if type(value) not in options or (isinstance(value, float) and not math.isfinite(value)):
        raise TypeError(f"{value!r:.40} where {hint} was expected")
    return value
