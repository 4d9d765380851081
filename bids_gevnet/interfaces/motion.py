"""Estimate head motion without FSL: register every volume rigidly with ANTs."""

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

from bids_gevnet.dwi.gradients import rotate_bvecs
from bids_gevnet.dwi.motion import displacement_mm, estimate_motion, rigid_parameters
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.facts import CorrectionFacts
from bids_gevnet.interfaces.confounds import write_confounds
from bids_gevnet.interfaces.series import read_series, write_facts, write_gradients
from bids_gevnet.settings import B0_THRESHOLD


class EstimateMotionInputSpec(BaseInterfaceInputSpec):
    """A conformed run."""

    image = File(exists=True, mandatory=True, desc="conformed series")
    gradients = File(exists=True, mandatory=True, desc="gradients in world RAS")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    enabled = traits.Bool(True, usedefault=True, desc="False leaves every volume where it is")
    reason = traits.Str("", usedefault=True, desc="why a better method was ruled out")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="volumes at a time")


class EstimateMotionOutputSpec(TraitedSpec):
    """Where each volume belongs."""

    transforms = File(exists=True, desc="(n, 4, 4): volume to reference, world mm")
    gradients = File(exists=True, desc="rotated gradients")
    confounds = File(exists=True, desc="motion per volume")
    facts = File(exists=True, desc="CorrectionFacts of the run")


class EstimateMotion(SimpleInterface):
    """Register every volume rigidly with ANTs; nothing is interpolated yet."""

    input_spec = EstimateMotionInputSpec
    output_spec = EstimateMotionOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        transforms = np.tile(np.eye(4), (len(series.bvals), 1, 1))
        notes = [self.inputs.reason]
        if self.inputs.enabled:
            shells = find_shells(series.bvals, b0_threshold=self.inputs.b0_threshold)
            motion = estimate_motion(
                series.data, series.affine, shells, n_procs=self.inputs.num_threads
            )
            transforms = motion.transforms
            notes.append(motion.note)
        np.save(folder / "transforms.npy", transforms)
        self._results["transforms"] = str(folder / "transforms.npy")
        turned = rotate_bvecs(series.bvecs_ras, transforms)
        self._results["gradients"] = str(
            write_gradients(folder / "gradients.tsv", series.bvals, turned)
        )
        self._results["confounds"] = str(
            write_confounds(folder / "confounds.tsv", rigid_parameters(transforms))
        )
        facts = CorrectionFacts(
            method="ants" if self.inputs.enabled else "none",
            note="; ".join(filter(None, notes)),
            largest_displacement_mm=round(float(displacement_mm(transforms).max()), 3),
            eddy_currents=False,
            susceptibility="not_supported",
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime
