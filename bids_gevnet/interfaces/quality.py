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
from bids_gevnet.dwi.quality import assess_quality, tensor_misfit
from bids_gevnet.dwi.shells import choose_shell, find_shells
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
    """A corrected scan, and its first run before correction."""

    image = File(exists=True, mandatory=True, desc="corrected series")
    gradients = File(exists=True, mandatory=True, desc="its gradients")
    mask = File(exists=True, mandatory=True, desc="brain")
    raw_image = File(exists=True, mandatory=True, desc="first run as it lies in the dataset")
    raw_bval = File(exists=True, mandatory=True, desc="its b-values")
    raw_bvec = File(exists=True, mandatory=True, desc="its gradient vectors")
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
            gradient_check=gradient_check(self._coherence(mask)),
        )
        self._results["facts"] = write_facts(Path(runtime.cwd), facts)
        return runtime

    def _coherence(self, mask: npt.NDArray[np.bool_]) -> Coherence:
        """Check the table of the raw run, so that its file can be fixed."""
        data, affine = read_image(self.inputs.raw_image)
        table = read_gradient_table(
            Path(self.inputs.raw_image),
            Path(self.inputs.raw_bval),
            Path(self.inputs.raw_bvec),
            n_volumes=data.shape[3],
            b0_threshold=self.inputs.b0_threshold,
        )
        shells = find_shells(table.bvals, b0_threshold=self.inputs.b0_threshold)
        volumes = np.sort(np.concatenate([shells.b0, choose_shell(shells).volumes]))
        return check_coherence(
            np.nan_to_num(data[..., volumes]),
            to_raw_axes(mask, affine),
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
