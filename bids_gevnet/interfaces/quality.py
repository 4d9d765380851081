"""Measure the quality of a corrected scan, and check its gradient table."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.bids.gradient_files import read_gradient_table
from bids_gevnet.dwi.coherence import Coherence, check_coherence
from bids_gevnet.dwi.conform import ras_order
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.quality import assess_quality, tensor_misfit
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.facts import GradientCheck, QualityFacts
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_mask,
    read_series,
    write_facts,
)
from bids_gevnet.settings import B0_THRESHOLD

_MOST_VOXELS = 20000
"""Voxels that a misfit is measured in: enough for a median."""


class MeasureQualityInputSpec(BaseInterfaceInputSpec):
    """A corrected scan, and its runs before correction, one list entry each."""

    image = File(exists=True, mandatory=True, desc="corrected series")
    gradients = File(exists=True, mandatory=True, desc="its gradients")
    mask = File(exists=True, mandatory=True, desc="brain")
    raw_images = traits.List(
        File(exists=True), mandatory=True, desc="runs as they lie in the dataset"
    )
    raw_bvals = traits.List(File(exists=True), mandatory=True, desc="their b-values")
    raw_bvecs = traits.List(File(exists=True), mandatory=True, desc="their gradient vectors")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class MeasureQualityOutputSpec(TraitedSpec):
    """Facts for the report."""

    facts = File(exists=True, desc="QualityFacts of the scan")


class MeasureQuality(SimpleInterface):
    """Measure SNR, CNR and misfit of the tensor; check whether the gradient table fits."""

    input_spec = MeasureQualityInputSpec
    output_spec = MeasureQualityOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        series = read_series(self.inputs.image, self.inputs.gradients)
        mask, _ = read_mask(self.inputs.mask)
        shells = find_shells(series.bvals, b0_threshold=self.inputs.b0_threshold)
        quality = assess_quality(
            series.data, mask, series.bvals, series.bvecs_ras, shells, choose_shell(shells)
        )
        facts = QualityFacts(
            **_rounded(dataclasses.asdict(quality)),
            gradient_checks=tuple(
                gradient_check(self._coherence(mask, Path(image), Path(bval), Path(bvec)))
                for image, bval, bvec in zip(
                    self.inputs.raw_images,
                    self.inputs.raw_bvals,
                    self.inputs.raw_bvecs,
                    strict=True,
                )
            ),
        )
        self._results["facts"] = write_facts(Path(runtime.cwd), facts)
        return runtime

    def _coherence(
        self, mask: npt.NDArray[np.bool_], image: Path, bval: Path, bvec: Path
    ) -> Coherence:
        """Check the table of a raw run, so that its file can be fixed."""
        data, affine = read_image(image)
        table = read_gradient_table(
            image, bval, bvec, n_volumes=data.shape[3], b0_threshold=self.inputs.b0_threshold
        )
        shells = find_shells(table.bvals, b0_threshold=self.inputs.b0_threshold)
        shell = choose_shell(shells)
        volumes = np.sort(np.concatenate([shells.b0, shell.volumes]))
        brain = to_raw_axes(mask, affine)
        if brain.shape != data.shape[:3]:  # a further run on a grid of its own
            weighted = mean_volume(data, shell.volumes)
            brain = brain_mask(mean_volume(data, shells.b0), affine, weighted)
        return check_coherence(
            np.nan_to_num(data[..., volumes]),
            brain,
            affine,
            table.bvals[volumes],
            table.bvecs[volumes],
            b0_threshold=self.inputs.b0_threshold,
        )


def misfit_of_series(
    series: Series, mask: npt.NDArray[np.bool_], b0_threshold: float
) -> float | None:
    """Return the misfit of the tensor on the shell that is sampled; None where it says nothing."""
    shells = find_shells(series.bvals, b0_threshold=b0_threshold)
    volumes = np.sort(np.concatenate([shells.b0, choose_shell(shells).volumes]))
    voxels = np.argwhere(mask)
    voxels = voxels[:: max(1, len(voxels) // _MOST_VOXELS)]
    signal = np.asarray(series.data[tuple(voxels.T)])[:, volumes]
    misfit = tensor_misfit(
        np.nan_to_num(signal),
        series.bvals[volumes],
        series.bvecs_ras[volumes],
        b0_threshold=b0_threshold,
    )
    return None if misfit is None else round(misfit, 5)


def gradient_check(coherence: Coherence) -> GradientCheck:
    """Say what the coherence of white matter tells about the gradient table."""
    if coherence.n_voxels == 0:
        return GradientCheck(outcome="undecided", text=str(coherence), voxels=0)
    return GradientCheck(
        outcome="fits" if coherence.identity_is_best else "wrong",
        text=str(coherence),
        score=round(float(coherence.scores[0]), 4),
        best_score=round(float(coherence.scores.max()), 4),
        voxels=coherence.n_voxels,
    )


def _rounded(numbers: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 5) for name, value in numbers.items()}


def to_raw_axes(
    conformed: npt.NDArray[np.bool_], raw_affine: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Undo the reordering of axes that conforming did.

    Parameters
    ----------
    conformed : (X, Y, Z) array
    raw_affine : (4, 4) array
        Of the image before it was conformed.

    Returns
    -------
    raw : array
        In the axes of the raw image.
    """
    axes, signs = ras_order(raw_affine)
    flipped = np.flip(conformed, [axis for axis, sign in enumerate(signs) if sign < 0])
    return np.transpose(flipped, np.argsort(axes))
