"""Correct a run without FSL: motion, eddy currents, outlier slices and susceptibility."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.conform import Conformed, conform, ras_order
from bids_gevnet.dwi.gradients import rotate_bvecs
from bids_gevnet.dwi.motion import displacement_mm, rigid_parameters
from bids_gevnet.dwi.phase_encoding import Relation, reorder_phase_encoding
from bids_gevnet.dwi.shells import Shells, find_shells
from bids_gevnet.facts import CorrectionFacts, EncodingTrial, OutlierSlice, SusceptibilityField
from bids_gevnet.interfaces.confounds import write_confounds
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_series,
    to_rows,
    write_facts,
    write_gradients,
)
from bids_gevnet.interfaces.warps import save_warps
from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bids_gevnet.dwi.correction import Anatomy, OppositeB0
    from bids_gevnet.dwi.model_corrector.corrector import Correction
    from bids_gevnet.dwi.model_corrector.susceptibility import Susceptibility as Field
    from bids_gevnet.dwi.polarity import Trial

_MOST_LISTED = 200
_MOST_PIXELS = 48


class CorrectSeriesInputSpec(BaseInterfaceInputSpec):
    """A conformed run, how it was acquired, and b0s with the opposite phase encoding."""

    image = File(exists=True, mandatory=True, desc="conformed series")
    gradients = File(exists=True, mandatory=True, desc="gradients in world RAS")
    raw_image = File(exists=True, mandatory=True, desc="the run as it lies in the dataset")
    direction = traits.Str(mandatory=True, desc="BIDS PhaseEncodingDirection of the raw image")
    slice_direction = traits.Str("k", usedefault=True, desc="BIDS SliceEncodingDirection")
    readout_s = traits.Float(0.05, usedefault=True, desc="total readout time")
    opposite_images = traits.List(File(exists=True), desc="raw images, opposite encoding")
    opposite_bvals = traits.List(traits.Str(), desc="their bval files, '' where all are b0")
    opposite_readout_s = traits.List(traits.Float(), desc="their total readout times")
    opposite_certain = traits.List(
        traits.Bool(),
        desc="whether each is known to be opposite (default: all are); else both ways are tried",
    )
    t1w = File(exists=True, desc="T1w to estimate the field from where there are none")
    why_no_opposite = traits.Enum(
        "no_opposite_b0",
        "unknown_direction",
        usedefault=True,
        desc="why there are none, if there are none",
    )
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="volumes at a time")
    # Nipype's own name: it runs one node that says so per GPU at a time.
    use_gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU, if torch finds it")


class CorrectSeriesOutputSpec(TraitedSpec):
    """How each volume was displaced, and the series without its outlier slices."""

    image = File(exists=True, desc="raw series, outlier slices replaced, not yet resampled")
    transforms = File(exists=True, desc="warp of every volume, to be applied when resampling")
    gradients = File(exists=True, desc="rotated gradients")
    confounds = File(exists=True, desc="motion, eddy currents and outlier slices per volume")
    facts = File(exists=True, desc="CorrectionFacts of the run")


class CorrectSeries(SimpleInterface):
    """Estimate motion, eddy currents, outlier slices and susceptibility; nothing is resampled."""

    input_spec = CorrectSeriesInputSpec
    output_spec = CorrectSeriesOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        import torch

        from bids_gevnet.dwi.correction import estimate_correction
        from bids_gevnet.dwi.model_corrector.corrector import DiffusionSeries

        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        _, raw_affine = read_image(self.inputs.raw_image)
        axis, slice_axis = (
            "ijk".index(reorder_phase_encoding(direction, *ras_order(raw_affine))[0])
            for direction in (self.inputs.direction, self.inputs.slice_direction)
        )
        shells = find_shells(series.bvals, b0_threshold=self.inputs.b0_threshold)
        estimate = estimate_correction(
            DiffusionSeries(
                series.data, series.affine, series.bvals, series.bvecs_ras, shells, axis,
                slice_axis,
            ),
            self._opposite_b0s(),
            acquired_b0=self._acquired_b0(shells),
            anatomy=self._anatomy() if isdefined(self.inputs.t1w) else None,
            n_threads=self.inputs.num_threads,
            device="cuda" if self.inputs.use_gpu and torch.cuda.is_available() else "cpu",
        )  # fmt: skip
        self._write(folder, series, estimate.correction, slice_axis)
        outcome = estimate.outcome
        if outcome == "no_opposite_b0":
            outcome = self.inputs.why_no_opposite
        facts = replace(
            correction_facts(estimate.correction, shells),
            susceptibility=outcome,
            encoding_trials=tuple(trial_facts(*trial) for trial in estimate.trials),
            field_from_t1w=isdefined(self.inputs.t1w) and outcome == "corrected",
        )
        if estimate.field is not None:
            first = shells.b0[0] if shells.b0.size else 0
            head = np.asarray(series.data[..., first], dtype=np.float32)
            facts = replace(facts, field=field_facts(estimate.field, head))
        self._results["facts"] = write_facts(folder, facts)
        return runtime

    def _opposite_b0s(self) -> "Iterator[OppositeB0]":
        """Read the first b0 of each image with the opposite encoding, one at a time."""
        from bids_gevnet.dwi.correction import OppositeB0

        if not self.inputs.opposite_images:
            return
        _, raw_affine = read_image(self.inputs.raw_image)
        conformed = conform(np.zeros(read_shape(self.inputs.raw_image), np.uint8), raw_affine)
        for image, bval, readout, certain in zip(
            self.inputs.opposite_images,
            self.inputs.opposite_bvals,
            self.inputs.opposite_readout_s,
            self.inputs.opposite_certain or [True] * len(self.inputs.opposite_images),
            strict=True,
        ):
            other = self._first_b0(image, bval)
            ratio = readout / self.inputs.readout_s
            if other is None:
                yield OppositeB0(None, np.eye(4), ratio)
                continue
            start = other.old_to_new @ np.linalg.inv(conformed.old_to_new)
            yield OppositeB0(other.data, start, ratio, certain, Path(image).name)

    def _acquired_b0(self, shells: Shells) -> npt.NDArray[Any] | None:
        """Read the b0 that opposite ones are compared with from the raw image, as those are.

        One or two volumes of a field map cannot be denoised, so the run's are taken as acquired.
        """
        if not (self.inputs.opposite_images and shells.b0.size):
            return None
        data, affine = read_image(self.inputs.raw_image)
        return conform(np.asarray(data[..., shells.b0[0]]), affine).data

    def _anatomy(self) -> "Anatomy":
        """Read the T1w; headers say where it lies."""
        from bids_gevnet.dwi.correction import Anatomy

        _, raw_affine = read_image(self.inputs.raw_image)
        conformed = conform(np.zeros(read_shape(self.inputs.raw_image), np.uint8), raw_affine)
        data, affine = read_image(self.inputs.t1w)
        volume = np.asarray(data if data.ndim == 3 else data[..., 0])
        return Anatomy(volume, affine, np.asarray(np.linalg.inv(conformed.old_to_new)))

    def _first_b0(self, image: str, bval: str) -> Conformed | None:
        data, affine = read_image(image)
        if data.ndim == 3:
            return conform(data, affine)
        b0 = np.flatnonzero(read_bval(Path(bval)) <= self.inputs.b0_threshold) if bval else [0]
        return conform(np.asarray(data[..., int(b0[0])]), affine) if len(b0) else None

    def _write(
        self, folder: Path, series: Series, correction: "Correction", slice_axis: int
    ) -> None:
        from bids_gevnet.dwi.correction import fill_series

        self._results["image"] = self.inputs.image
        if correction.replacements:
            filled = fill_series(series.data, correction.replacements, slice_axis)
            write_image(folder / "dwi.nii", filled, series.affine)
            self._results["image"] = str(folder / "dwi.nii")
        self._results["transforms"] = str(save_warps(folder / "warps.npz", [correction.warp]))
        turned = rotate_bvecs(series.bvecs_ras, correction.warp.transforms)
        self._results["gradients"] = str(
            write_gradients(folder / "gradients.tsv", series.bvals, turned)
        )
        self._results["confounds"] = str(
            write_confounds(
                folder / "confounds.tsv",
                rigid_parameters(correction.warp.transforms),
                correction.outliers.sum(axis=1),
                eddy_displacement_mm(correction.warp.eddy),
            )
        )


def read_shape(path: str | Path) -> tuple[int, int, int]:
    """Return the spatial shape of an image."""
    data, _ = read_image(path)
    x, y, z = data.shape[:3]
    return x, y, z


def eddy_displacement_mm(eddy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    r"""Return the displacement by eddy currents, root mean square over a ball of 50 mm.

    Over the unit ball the means of squares are 1 for the constant, 1/5 for x, 3/35 for x² and
    1/35 for xy; the constant and squares also mix, with 1/5, and squares among each other with
    1/35.

    Parameters
    ----------
    eddy : (n, 10) array
        Terms of :mod:`bids_gevnet.dwi.model_corrector.warp`.

    Returns
    -------
    displacement_mm : (n,) array
    """
    gram = np.diag([1.0, *[1 / 5] * 3, *[3 / 35] * 3, *[1 / 35] * 3])
    gram[0, 4:7] = gram[4:7, 0] = 1 / 5
    gram[4:7, 4:7] += (1 - np.eye(3)) / 35
    return np.asarray(np.sqrt(np.einsum("ni,ij,nj->n", eddy, gram, eddy)))


def correction_facts(correction: "Correction", shells: Shells) -> CorrectionFacts:
    """Say what the model-based corrector did, except for susceptibility."""
    from bids_gevnet.dwi.model_corrector.corrector import FEWEST_FOR_EDDY

    warp = correction.warp
    outliers = np.argwhere(correction.outliers)
    # On smaller shells neither eddy currents nor outlier slices are looked for.
    complete = any(len(shell.volumes) >= FEWEST_FOR_EDDY for shell in shells.shells)
    return CorrectionFacts(
        method="model",
        note=correction.note,
        largest_displacement_mm=round(float(displacement_mm(warp.transforms).max()), 3),
        eddy_currents=complete,
        largest_eddy_mm=round(float(eddy_displacement_mm(warp.eddy).max()), 3),
        eddy_terms_mm=to_rows(np.round(warp.eddy, 4)),
        phase_encoding_axis="i" if warp.axis == 0 else "j" if warp.axis == 1 else "k",
        outlier_slices=len(outliers) if complete else None,
        outliers=tuple(
            OutlierSlice(
                volume=int(k), slice=int(z), z_score=round(float(correction.z_scores[k, z]), 2)
            )
            for k, z in outliers[:_MOST_LISTED]
        ),
        slice_z_scores=to_rows(np.round(correction.z_scores, 1)) if complete else (),
    )


def trial_facts(name: str, trial: "Trial") -> EncodingTrial:
    """Say how a b0 of unknown phase encoding compares with that of the run."""
    return EncodingTrial(
        image=name,
        as_equal=_rounded(trial.as_equal),
        as_opposite=_rounded(trial.as_opposite),
        opposite=trial.relation is Relation.OPPOSITE,
    )


def _rounded(correlation: float) -> float | None:
    return round(correlation, 4) if np.isfinite(correlation) else None


def field_facts(field: "Field", head: npt.NDArray[np.float32]) -> SusceptibilityField:
    """Describe a susceptibility field; `head` (X, Y, Z) is a volume that shows where it is."""
    main_part = _main_part(head > head.mean())
    where = np.unravel_index(int(np.argmax(np.abs(field.field) * main_part)), head.shape)
    return SusceptibilityField(
        largest_mm=round(float(np.percentile(np.abs(field.field), 99.9)), 2),
        correlation_before=round(float(field.correlation_before), 4),
        correlation_after=round(float(field.correlation_after), 4),
        planes_mm=tuple(to_rows(np.round(plane, 1)) for plane in _planes(field.field, where)),
        head=tuple(to_rows(plane > 0.5) for plane in _planes(main_part, where)),
    )


def _main_part(head: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Keep the largest solid part of a mask: eyes and skin hang on to the brain by threads."""
    from scipy import ndimage

    parts, count = ndimage.label(ndimage.binary_opening(head, iterations=2))
    if not count:
        return head.astype(np.float32)
    largest = 1 + int(np.argmax(np.bincount(parts.ravel())[1:]))
    return np.asarray(ndimage.binary_fill_holes(parts == largest), dtype=np.float32)


def _planes(
    volume: npt.NDArray[np.float32], where: tuple[np.intp, ...]
) -> list[npt.NDArray[np.float64]]:
    """Return the sagittal, coronal and axial plane through a voxel, coarse enough to print."""
    planes = [np.take(volume, where[axis], axis=axis) for axis in range(3)]
    steps = [max(1, max(plane.shape) // _MOST_PIXELS) for plane in planes]
    return [
        plane[::step, ::step].astype(np.float64) for plane, step in zip(planes, steps, strict=True)
    ]
