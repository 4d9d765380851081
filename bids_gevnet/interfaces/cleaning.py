"""Clean a run before it is corrected, and its bias field once there is a mask."""

from pathlib import Path
from typing import Any

import numpy as np
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.cleaning import (
    Denoised,
    bias_field,
    denoise_mppca,
    denoise_patch2self,
    head_region,
    judge_residual,
    remove_ringing,
)
from bids_gevnet.dwi.conform import ras_order
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.phase_encoding import reorder_phase_encoding
from bids_gevnet.dwi.shells import find_shells, mean_volume
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import BiasFacts, NoiseFacts
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_mask,
    read_series,
    write_facts,
)
from bids_gevnet.settings import B0_THRESHOLD


class DenoiseInputSpec(BaseInterfaceInputSpec):
    """A conformed run."""

    image = File(exists=True, mandatory=True, desc="conformed series")
    gradients = File(exists=True, mandatory=True, desc="its gradients")
    method = traits.Enum("mppca", "patch2self", usedefault=True, desc="how to denoise")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="slabs at a time")


class DenoiseOutputSpec(TraitedSpec):
    """The denoised run and what was taken out of it."""

    image = File(exists=True, desc="denoised series")
    noise = File(exists=True, desc="standard deviation of the noise")
    residual = File(exists=True, desc="root mean square of what was removed")
    facts = File(exists=True, desc="NoiseFacts of the run")


class Denoise(SimpleInterface):
    """Denoise a run, and look for anatomy in what was removed."""

    input_spec = DenoiseInputSpec
    output_spec = DenoiseOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder, inputs = Path(runtime.cwd), self.inputs
        series = read_series(inputs.image, inputs.gradients)
        shells = find_shells(series.bvals, b0_threshold=inputs.b0_threshold)
        first = shells.b0 if shells.b0.size else np.arange(1)
        b0 = mean_volume(series.data, first)
        if inputs.method == "mppca":
            denoised = denoise_mppca(series.data, head_region(b0), n_threads=inputs.num_threads)
        else:
            denoised = denoise_patch2self(
                series.data, series.bvals, b0_threshold=inputs.b0_threshold
            )
        for name, values in (
            ("dwi", denoised.data),
            ("noise", denoised.noise),
            ("residual", denoised.residual),
        ):
            write_image(folder / f"{name}.nii", values, series.affine)
            self._results["image" if name == "dwi" else name] = str(folder / f"{name}.nii")
        self._results["facts"] = write_facts(folder, noise_facts(denoised, series, b0))
        return runtime


def noise_facts(denoised: Denoised, series: Series, b0: np.ndarray[Any, Any]) -> NoiseFacts:
    """Say how much was removed, and whether anatomy was among it."""
    try:
        brain = brain_mask(b0, series.affine)
    except ParticipantError:
        return NoiseFacts()  # whether there is a brain at all is the concern of the mask
    verdict = judge_residual(denoised, brain, series.affine)
    signal = np.maximum(denoised.data.mean(axis=3)[brain], 1e-9)
    removed = float(np.median(denoised.residual[brain] / signal))
    facts = NoiseFacts(
        sigma=round(float(np.median(denoised.noise[brain])), 4), removed=round(removed, 4)
    )
    if verdict is None:
        return facts
    return NoiseFacts(
        sigma=facts.sigma,
        removed=facts.removed,
        edge_correlation=round(verdict.correlation, 4),
        noise_correlation=round(verdict.noise_correlation, 4),
        anatomy=verdict.holds_anatomy,
    )


class UnringInputSpec(BaseInterfaceInputSpec):
    """A conformed run."""

    image = File(exists=True, mandatory=True, desc="conformed series, denoised or not")
    raw_image = File(exists=True, mandatory=True, desc="the run as it lies in the dataset")
    slice_direction = traits.Str("k", usedefault=True, desc="BIDS SliceEncodingDirection")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="volumes at a time")


class UnringOutputSpec(TraitedSpec):
    """The run without ringing."""

    image = File(exists=True, desc="series without Gibbs ringing")


class Unring(SimpleInterface):
    """Remove Gibbs ringing within the slices of a run."""

    input_spec = UnringInputSpec
    output_spec = UnringOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        path = Path(runtime.cwd) / "dwi.nii"
        data, affine = read_image(self.inputs.image)
        _, raw_affine = read_image(self.inputs.raw_image)
        direction = reorder_phase_encoding(self.inputs.slice_direction, *ras_order(raw_affine))
        cleaned = remove_ringing(
            data, "ijk".index(direction[0]), n_threads=self.inputs.num_threads
        )
        write_image(path, cleaned, affine)
        self._results["image"] = str(path)
        return runtime


class CorrectBiasInputSpec(BaseInterfaceInputSpec):
    """A corrected scan with its mask."""

    image = File(exists=True, mandatory=True, desc="corrected series")
    reference = File(exists=True, mandatory=True, desc="its mean b0")
    mask = File(exists=True, mandatory=True, desc="brain")


class CorrectBiasOutputSpec(TraitedSpec):
    """The scan divided by its bias field."""

    image = File(exists=True, desc="series over the field")
    reference = File(exists=True, desc="mean b0 over the field")
    field = File(exists=True, desc="the field; its median in the brain is 1")
    facts = File(exists=True, desc="BiasFacts of the scan")


class CorrectBias(SimpleInterface):
    """Divide a scan by the bias field of its mean b0."""

    input_spec = CorrectBiasInputSpec
    output_spec = CorrectBiasOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        data, affine = read_image(self.inputs.image)
        b0, _ = read_image(self.inputs.reference)
        brain, _ = read_mask(self.inputs.mask)
        field = bias_field(np.asarray(b0), brain, affine)
        corrected = np.asarray(data, dtype=np.float32) / field[..., None]
        for name, values in (
            ("image", corrected),
            ("reference", np.asarray(b0 / field)),
            ("field", field),
        ):
            write_image(folder / f"{name}.nii", values, affine)
            self._results[name] = str(folder / f"{name}.nii")
        low, high = np.percentile(field[brain], [1, 99])
        facts = BiasFacts(
            corrected=True, lowest=round(float(low), 3), highest=round(float(high), 3)
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime
