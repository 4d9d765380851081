"""Sample shells of a scan in template space on the sphere, and map their RISH features."""

from collections.abc import Sequence
from dataclasses import replace
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

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.sampling import sample_shells
from bids_gevnet.dwi.shells import Shell, Shells
from bids_gevnet.facts import ShellFacts, SphereFacts
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.rish import rish_features
from bids_gevnet.interfaces.series import read_mask, read_series, write_facts
from bids_gevnet.settings import ALL_SHELLS, B0_THRESHOLD
from bids_gevnet.sphere.resampling import DEFAULT_KERNEL, DEFAULT_SMOOTHING

SAMPLE_STEP = 1 / 16384
"""S/b0 lies between 0 and 1, give or take an overshoot: 16-bit steps that are far below noise."""


class SampleSphereInputSpec(BaseInterfaceInputSpec):
    """A scan in template space."""

    image = File(exists=True, mandatory=True, desc="series in template space")
    gradients = File(exists=True, mandatory=True, desc="gradients rotated into template space")
    mask = File(exists=True, mandatory=True, desc="brain in template space")
    nside = traits.Int(4, usedefault=True, desc="HEALPix resolution")
    shells = traits.List(traits.Float(), desc="b-values asked for; none for the default")
    all_shells = traits.Bool(desc="whether to take every shell")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class SampleSphereOutputSpec(TraitedSpec):
    """Samples and invariants."""

    samples = File(exists=True, desc="S/b0 at the distinct HEALPix points, shell after shell")
    rish = traits.List(File(exists=True), desc="one file per degree, a volume per shell")
    degrees = traits.List(traits.Int(), desc="the degrees of the maps")
    facts = File(exists=True, desc="SphereFacts of the scan")


class SampleSphere(SimpleInterface):
    """Choose shells, divide by b0, resample to HEALPix and map RISH, in brain voxels only."""

    input_spec = SampleSphereInputSpec
    output_spec = SampleSphereOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder, nside = Path(runtime.cwd), self.inputs.nside
        series = read_series(self.inputs.image, self.inputs.gradients)
        mask, _ = read_mask(self.inputs.mask)
        wanted = tuple(self.inputs.shells or ()) or None
        on_sphere = sample_shells(
            series.data,
            series.bvals,
            series.bvecs_ras,
            mask,
            nside=nside,
            wanted=ALL_SHELLS if self.inputs.all_shells else wanted,
            b0_threshold=self.inputs.b0_threshold,
        )
        samples = np.concatenate([shell.samples for shell in on_sphere], axis=1)
        lmax, degrees = fit_limits(nside)
        features = np.stack(
            [
                rish_features(shell.samples, nside=nside, degrees=degrees, lmax=lmax)
                for shell in on_sphere
            ],
            axis=-1,
        )  # (n_voxels, n_degrees, n_shells)
        if len(on_sphere) == 1:
            features = features[..., 0]  # maps of one shell have three dimensions
        self._results["samples"] = _write(folder / "healpix.nii", samples, mask, series.affine)
        self._results["rish"] = [
            _write(folder / f"rish{degree}.nii", features[:, i], mask, series.affine, scale=None)
            for i, degree in enumerate(degrees)
        ]
        self._results["degrees"] = list(degrees)
        facts = replace(
            sampling_facts(
                [shell.shell for shell in on_sphere],
                on_sphere[0].shells,
                nside,
                series.bvecs_ras,
            ),
            voxels=int(mask.sum()),
            residual_rms=round(_root_mean_square([s.residual_rms for s in on_sphere]), 5),
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime


def sampling_facts(
    chosen: Sequence[Shell],
    shells: Shells,
    nside: int,
    bvecs: npt.NDArray[np.float64],
) -> SphereFacts:
    """Say how shells are sampled, as far as gradients and settings decide it."""
    return SphereFacts(
        sampled=tuple(_shell_facts(shell, bvecs) for shell in chosen),
        shells=tuple(_shell_facts(shell, bvecs) for shell in shells.shells),
        b0_volumes=int(shells.b0.size),
        nside=nside,
        kernel=DEFAULT_KERNEL,
        smoothing=DEFAULT_SMOOTHING,
        degrees=fit_limits(nside)[1],
    )


def _shell_facts(shell: Shell, bvecs: npt.NDArray[np.float64]) -> ShellFacts:
    return ShellFacts(b_value=round(shell.b_value, 1), directions=shell.n_directions(bvecs))


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _write(
    path: Path,
    values: Any,
    mask: Any,
    affine: Any,
    *,
    scale: float | None = SAMPLE_STEP,
) -> str:
    volume = np.zeros((*mask.shape, *values.shape[1:]), np.float32)
    volume[mask] = values
    write_image(path, volume, affine, scale=scale)
    return str(path)
