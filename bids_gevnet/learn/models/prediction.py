"""Predict a new scan with a trained model: probabilities or a number, and how far to trust them.

The two steps are functions of their own, because they are nodes of their own in the participant
workflow: `harmonise_scan` scales the samples as the model's training data were scaled, `classify`
asks the network. `predict` does both.

A prediction for somebody the model was trained on is no prediction. Such a person is recognised
by the scan's content, or by dataset and label together (or the label alone, if either side does
not know its dataset), and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.bids.derivatives import CONFOUNDS
from bids_gevnet.bids.samples import sample_volumes
from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.bids.writing import write_text
from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.learn.cohort.scan_rows import dataset_name, mean_motion, scan_name, scan_site
from bids_gevnet.learn.cohort.store import fingerprint, mean_log_rish, to_half, to_volume
from bids_gevnet.learn.cohort.tables import tsv_cell
from bids_gevnet.learn.models.calibration import softmax
from bids_gevnet.learn.models.files import Model, load_harmonisation, load_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.gains import RishGains
    from bids_gevnet.learn.models.files import ModelCard

_GRID_TOLERANCE_MM = 0.05


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model says about a scan.

    Parameters
    ----------
    probabilities : dict of label to float
        Calibrated; they add up to 1. Empty for a number.
    label : str
        The most probable class; for a number, the column that is predicted.
    value : float or None
        The number; None for classes.
    unit : str
        Of the number, if the model knows it.
    typical_error : float or None
        How far off the models of the folds were on average, in people they had not seen.
    task, network : str
    warnings : tuple of str
        Where the scan lies outside of what the model was trained on.

    Examples
    --------
    >>> chances = {"AD": 0.7, "PD": 0.3}
    >>> Prediction(probabilities=chances, label="AD", task="AD-v-PD", network="ckn2").warnings
    ()
    """

    probabilities: dict[str, float]
    label: str
    task: str
    network: str
    warnings: tuple[str, ...] = field(default=())
    value: float | None = None
    unit: str = ""
    typical_error: float | None = None


def predict(
    model: Path | Model,
    samples: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    *,
    affine: NDArray[np.floating[Any]] | None = None,
    site: str = "",
    participant: str = "",
    dataset: str = "",
    motion: float | None = None,
) -> Prediction:
    """Predict the class, or the number, of one scan.

    Parameters
    ----------
    model : Path or Model
        Folder with model.json, or what `load_model` read from it.
    samples : (X, Y, Z, n_shells * 6 nside^2) array
        S/b0 at the distinct HEALPix points, shell after shell in increasing order of b.
    mask : (X, Y, Z) bool array
        Brain.
    affine : (4, 4) array, optional
        Voxel to template mm, to check against the model's.
    site : str
        As the model's training data name it; a scan from any other is not harmonised.
    participant : str
        Label, with or without "sub-": whoever the model was trained on is refused. Without it
        only the very scans it was trained on are recognised.
    dataset : str
        Name of the dataset the scan is from.
    motion : float, optional
        Mean framewise displacement in mm.

    Examples
    --------
    >>> from bids_gevnet.learn import Model, ModelCard
    >>> from bids_gevnet.nn import build
    >>> card = ModelCard(
    ...     network="ckn2", labels=("AD", "PD"), task="AD-v-PD", fold=None, nside=1,
    ...     shape=(4, 4, 4), affine=tuple(map(tuple, np.eye(4).tolist())), temperature=1.0,
    ...     options={}, participants=("01",), fingerprints=(), dataset="", sites=("here",),
    ...     max_motion=None, rish_low=(-9.0, -99.0), rish_high=(9.0, 9.0), harmonised=False,
    ...     warnings=(), digest="")
    >>> model = Model(build("ckn2", nside=1).eval(), card, None)
    >>> scan, mask = np.full((4, 4, 4, 6), 0.5), np.ones((4, 4, 4), bool)
    >>> prediction = predict(model, scan, mask, site="here", participant="02")
    >>> list(prediction.probabilities), round(sum(prediction.probabilities.values()), 6)
    (['AD', 'PD'], 1.0)
    """
    harmonised = harmonise_scan(
        model,
        samples,
        mask,
        affine=affine,
        site=site,
        participant=participant,
        dataset=dataset,
    )
    return classify(model, harmonised.values, mask, site=site, motion=motion)


@dataclass(frozen=True)
class HarmonisedScan:
    """Samples as a network takes them.

    Attributes
    ----------
    values : (n_voxels, n_shells * 6 nside^2) array of float32
        S/b0 in the order of ``mask.nonzero()``.
    scaled : bool
        Whether the model has gains for the scan's site, so that values were scaled.
    """

    values: NDArray[np.float32]
    scaled: bool


def harmonise_scan(
    model: Path | Model,
    samples: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    *,
    affine: NDArray[np.floating[Any]] | None = None,
    site: str,
    participant: str,
    dataset: str = "",
    adapted: RishGains | None = None,
) -> HarmonisedScan:
    """Scale a scan with the gains of its site, after checking that the model may see it.

    Parameters are those of `predict`, and

    adapted : RishGains, optional
        The model's gains with those of sites it was not trained on.
    """
    card, gains = model[1:] if isinstance(model, Model) else load_harmonisation(model)
    gains = gains if adapted is None else adapted
    _check_grid(card, samples, mask, affine)
    brain = to_half(samples[mask])
    _refuse_training(card, participant, dataset, fingerprint(brain, mask))
    if gains is None:
        return HarmonisedScan(brain.astype(np.float32), scaled=False)
    return HarmonisedScan(gains.apply(brain, site, mask), scaled=gains.corrects(site))


def classify(
    model: Path | Model,
    values: NDArray[np.float32],
    mask: NDArray[np.bool_],
    *,
    site: str,
    motion: float | None = None,
    adaptation: str = "",
) -> Prediction:
    """Give the probabilities, or the number, of a harmonised scan.

    Parameters
    ----------
    model : Path or Model
        Folder with model.json, or a model that was read from one.
    values : (n_voxels, n_shells * 6 nside^2) array
        As `harmonise_scan` returns them.
    mask : (X, Y, Z) bool array
        Brain.
    site : str
        As the model's training data name it.
    motion : float, optional
        Mean framewise displacement in mm.
    adaptation : str
        How the scan's site, which the model was not trained on, was harmonised.
    """
    network, card, _ = model if isinstance(model, Model) else load_model(model)
    volume, voxels = to_volume(values, mask)
    with torch.no_grad():
        scores = network(volume[None], voxels[None])[0].double().numpy()
    warnings = (
        *([adaptation] if adaptation else []),
        *out_of_range(card, site=None if adaptation else site, motion=motion, values=values),
    )
    if card.is_regression:
        number = card.number(float(scores[0]))
        return Prediction(
            probabilities={},
            label=card.labels[0],
            task=card.task,
            network=card.network,
            warnings=(*warnings, *_beyond_training(card, number)),
            value=number,
            unit=card.unit,
            typical_error=card.typical_error,
        )
    chances = [float(p) for p in softmax(scores, card.temperature)]
    return Prediction(
        probabilities=dict(zip(card.labels, chances, strict=True)),
        label=card.labels[int(np.argmax(chances))],
        task=card.task,
        network=card.network,
        warnings=warnings,
    )


def _beyond_training(card: ModelCard, number: float) -> Iterator[str]:
    if not card.target_low <= number <= card.target_high:
        yield (
            f"The predicted {card.labels[0]} ({number:.4g}) is outside the range of the training "
            f"data ({card.target_low:.4g} to {card.target_high:.4g})."
        )


def predict_scan(
    model_dir: Path, image: Path, mask: Path, *, bids_dir: Path, site_column: str | None = None
) -> Prediction:
    """Predict the class or number of a scan from what the participant level wrote.

    Parameters
    ----------
    model_dir : Path
    image : Path
        Samples in template space; the table of confounds is looked for beside it.
    mask : Path
        Brain mask in template space.
    bids_dir : Path
        The raw dataset, for the site.
    site_column : str, optional
        Column of participants.tsv with the site.
    """
    import nibabel as nib

    entities, _ = split_name(image)
    loaded = nib.load(image)
    confounds = image.with_name(f"{scan_name(image)}_{CONFOUNDS}")
    samples = loaded.get_fdata(dtype=np.float32)
    return predict(
        model_dir,
        samples[..., sample_volumes(image, samples.shape[-1])],
        np.asarray(nib.load(mask).dataobj) > 0,
        affine=loaded.affine,
        site=scan_site(bids_dir, entities, site_column),
        participant=entities["sub"],
        dataset=dataset_name(bids_dir),
        motion=mean_motion(confounds),
    )


def out_of_range(
    card: ModelCard,
    *,
    site: str | None,
    motion: float | None,
    values: NDArray[np.float32],
) -> tuple[str, ...]:
    """Say where a scan is unlike all that the model was trained on.

    Parameters
    ----------
    card : ModelCard
    site : str or None
        None where sites are looked at elsewhere.
    motion : float or None
        Mean framewise displacement in mm.
    values : (n_voxels, n_shells * 6 nside^2) array
        Harmonised samples in the brain.
    """
    warnings = []
    if site is not None and site not in card.sites:
        warnings.append(
            f"The site {site} is not among those the model was trained on: its scans could not be "
            "harmonised."
        )
    if motion is not None and card.max_motion is not None and motion > card.max_motion:
        warnings.append(
            f"The head moved more ({motion:.2f} mm on average) than in any scan the model was "
            f"trained on ({card.max_motion:.2f} mm)."
        )
    energies = mean_log_rish(values, nside=card.nside)
    for name, energy, low, high in zip(
        _energy_names(card), energies, card.rish_low, card.rish_high, strict=True
    ):
        if not low <= energy <= high:
            warnings.append(
                f"The energy of {name} of the signal ({np.exp(energy):.3g}) is outside "
                f"the range of the training scans ({np.exp(low):.3g} to {np.exp(high):.3g})."
            )
    return tuple(warnings)


def _energy_names(card: ModelCard) -> list[str]:
    """Name the energies of a scan: degree by degree, shell after shell."""
    names = [f"degree {degree}" for degree in fit_limits(card.nside)[1]]
    if card.shells == 1:
        return names
    return [f"{name} at b = {b:.0f}" for b in card.b_values for name in names]


def write_prediction(path: Path, prediction: Prediction) -> None:
    """Write the table of a prediction: one row per class, or one for a number."""
    notes = " ".join(prediction.warnings) or None
    if prediction.value is not None:
        about = {
            "task": prediction.task,
            "network": prediction.network,
            "target": prediction.label,
            "value": prediction.value,
            "unit": prediction.unit or None,
            "typical_error": prediction.typical_error,
            "warnings": notes,
        }
        rows = [list(about), [tsv_cell(cell) for cell in about.values()]]
        write_text(path, "".join("\t".join(row) + "\n" for row in rows))
        return
    lines = [("task", "network", "label", "probability", "warnings")]
    for label, chance in prediction.probabilities.items():
        cells = (prediction.task, prediction.network, label, chance, notes)
        lines.append(tuple(tsv_cell(cell) for cell in cells))  # type: ignore[arg-type]
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


def check_planned_grid(
    card: ModelCard, *, shape: tuple[int, ...], affine: NDArray[np.floating[Any]], nside: int
) -> None:
    """Refuse a model of another grid than scans are going to be put on.

    Parameters
    ----------
    card : ModelCard
    shape : tuple of int
        Voxels of the planned grid.
    affine : (4, 4) array
        Voxel to template mm.
    nside : int
    """
    if (shape, nside) == (card.shape, card.nside) and _same_place(card, affine):
        return
    mm, planned_mm = (float(np.abs(matrix[0][0])) for matrix in (card.affine, affine))
    raise InputError(
        expected=f"scans on the grid of the model, {'x'.join(map(str, card.shape))} voxels of "
        f"{mm:g} mm at nside {card.nside}",
        found=f"settings that give {'x'.join(map(str, shape))} voxels of {planned_mm:g} mm at "
        f"nside {nside}" + ("" if shape != card.shape else ", or another place in the template"),
        remedy="give the --template, --output-resolution, --crop-margin and --nside of the "
        "model's training data, or another --model",
    )


def _same_place(card: ModelCard, affine: NDArray[np.floating[Any]]) -> bool:
    difference = np.abs(np.asarray(affine) - np.asarray(card.affine)).max()
    return bool(difference <= _GRID_TOLERANCE_MM)


def _check_grid(
    card: ModelCard,
    samples: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    affine: NDArray[np.floating[Any]] | None,
) -> None:
    expected = (*card.shape, card.shells * 6 * card.nside**2)
    moved = affine is not None and not _same_place(card, affine)
    if samples.shape != expected or mask.shape != card.shape or moved:
        raise InputError(
            expected=f"a scan on the model's grid, {expected}",
            found=f"samples {samples.shape} and mask {mask.shape}"
            + (", in another place" if moved else ""),
            remedy="process the scan with the template, resolution, shells and nside of the "
            "training data",
        )
    if not mask.any():
        raise ParticipantError(
            expected="a brain mask", found="an empty one", remedy="check the masking of this scan"
        )


def seen_in_training(card: ModelCard, participant: str, dataset: str, content: str = "") -> bool:
    """Whether somebody was in a model's training data, by name or by the content of the scan.

    Parameters
    ----------
    card : ModelCard
    participant : str
        Label, with or without "sub-".
    dataset : str
        Name of the dataset; where either side does not know its own, the label alone decides.
    content : str
        Fingerprint of the scan, if it is known.
    """
    label = participant.removeprefix("sub-")
    same_dataset = not card.dataset or not dataset or card.dataset == dataset
    return content in card.fingerprints or (same_dataset and label in card.participants)


def _refuse_training(card: ModelCard, participant: str, dataset: str, content: str) -> None:
    if seen_in_training(card, participant, dataset, content):
        raise ParticipantError(
            expected="a participant the model has not seen",
            found=f"sub-{participant.removeprefix('sub-')}, who was in its training data",
            remedy="take the held-out result of group_predictions.tsv for this participant",
        )
