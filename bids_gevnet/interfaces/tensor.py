"""Map the diffusion tensor of a scan, in its own space or in that of the template."""

from collections.abc import Mapping
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
from bids_gevnet.dwi.shells import Shells, find_shells
from bids_gevnet.dwi.tensor import choose_tensor_shell, tensor_maps
from bids_gevnet.facts import TensorFacts
from bids_gevnet.interfaces.series import read_mask, read_series, write_facts
from bids_gevnet.settings import B0_THRESHOLD

TENSOR_MAPS: Mapping[str, Mapping[str, Any]] = {
    "fa": {"Description": "Fractional anisotropy", "Units": "arbitrary"},
    "md": {"Description": "Mean diffusivity", "Units": "mm^2/s"},
    "ad": {"Description": "Axial diffusivity, the largest eigenvalue", "Units": "mm^2/s"},
    "rd": {
        "Description": "Radial diffusivity, the mean of the two smaller eigenvalues",
        "Units": "mm^2/s",
    },
    "dec": {
        "Description": "Directionally encoded colours: red, green and blue are the right-left, "
        "anterior-posterior and superior-inferior component of the main direction times "
        "fractional anisotropy, from 0 to 1",
        "OrientationEncoding": {"EncodingAxis": 3, "Reference": "xyz", "Type": "dec"},
        "Units": "arbitrary",
    },
}
"""Maps that are written, with what their sidecars say about them alone."""


class FitTensorInputSpec(BaseInterfaceInputSpec):
    """A corrected scan in any space."""

    image = File(exists=True, mandatory=True, desc="series")
    gradients = File(exists=True, mandatory=True, desc="its gradients in world RAS")
    mask = File(exists=True, mandatory=True, desc="brain")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class FitTensorOutputSpec(TraitedSpec):
    """Maps of the tensor."""

    maps = traits.List(File(exists=True), desc="in the order of TENSOR_MAPS; 0 outside the brain")
    facts = File(exists=True, desc="TensorFacts of the scan")


class FitTensor(SimpleInterface):
    """Fit tensors to the b0s and one shell by weighted least squares, in brain voxels only."""

    input_spec = FitTensorInputSpec
    output_spec = FitTensorOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        mask, _ = read_mask(self.inputs.mask)
        threshold = self.inputs.b0_threshold
        maps = tensor_maps(
            series.data, mask, series.bvals, series.bvecs_ras, b0_threshold=threshold
        )
        for name in TENSOR_MAPS:
            write_image(folder / f"{name}.nii", maps[name], series.affine)
        self._results["maps"] = [str(folder / f"{name}.nii") for name in TENSOR_MAPS]
        shells = find_shells(series.bvals, b0_threshold=threshold)
        facts = tensor_facts(shells, series.bvecs_ras)
        self._results["facts"] = write_facts(folder, facts)
        return runtime


def tensor_facts(shells: Shells, bvecs: npt.NDArray[np.float64]) -> TensorFacts:
    """Say what tensors are fitted to; without a table every volume counts as a direction."""
    shell = choose_tensor_shell(shells)
    return TensorFacts(b_value=round(shell.b_value, 1), directions=shell.n_directions(bvecs))


def describe_map(name: str, facts: TensorFacts) -> dict[str, Any]:
    """Say in the words of BIDS what a map of the tensor is and how it was fitted."""
    return {
        **TENSOR_MAPS[name],
        "Model": {
            "Description": "Diffusion tensor",
            "Parameters": {"FitMethod": "WLS", "BValues": [0, facts.b_value]},
            "URL": "https://dipy.org",
        },
        "OutsideOfBrain": 0,
    }
