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
    isdefined,
    traits,
)

from bids_gevnet.bids.gradient_files import read_gradient_table
from bids_gevnet.dwi.coherence import Coherence, check_coherence
from bids_gevnet.dwi.conform import ras_order
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.quality import assess_quality, shell_snrs, tensor_misfit
from bids_gevnet.dwi.shells import Shells, choose_shell, find_shells, mean_volume
from bids_gevnet.facts import GradientCheck, QualityFacts, ShellSignal
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
    kept = traits.List(traits.Int(), desc="numbers of the runs that were used; all by default")
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
        tables = list(
            zip(self.inputs.raw_images, self.inputs.raw_bvals, self.inputs.raw_bvecs, strict=True)
        )
        kept = self.inputs.kept if isdefined(self.inputs.kept) else range(len(tables))
        signals = shell_signals(series.data, mask, shells, quality.tensor_residual)
        facts = QualityFacts(
            **_rounded(dataclasses.asdict(quality)),
            shell_signals=signals.shell_signals,
            noise_from=signals.noise_from,
            gradient_checks=tuple(
                gradient_check(self._coherence(mask, *map(Path, paths)))
                if number in kept
                else GradientCheck(text="the run was left out")
                for number, paths in enumerate(tables)
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


def shell_signals(
    data: npt.NDArray[Any], mask: npt.NDArray[np.bool_], shells: Shells, residual: float | None
) -> QualityFacts:
    """Measure signal to noise of the b0s and of each shell; nothing where noise is not known."""
    snrs, measured = shell_snrs(data, mask, shells, residual)
    if all(snr is None for snr in snrs):
        return QualityFacts()
    parts = [(0.0, len(shells.b0)), *((s.b_value, len(s.volumes)) for s in shells.shells)]
    signals = tuple(
        ShellSignal(
            b_value=round(b_value, 1), volumes=count, snr=None if snr is None else round(snr, 2)
        )
        for (b_value, count), snr in zip(parts, snrs, strict=True)
        if count
    )
    return QualityFacts(shell_signals=signals, noise_from="b0" if measured else "misfit")


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
        outcome=coherence.outcome,
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
