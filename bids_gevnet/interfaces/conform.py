"""Conform a run: axes in RAS order, centred header, gradients in world RAS."""

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

from bids_gevnet.bids.gradient_files import GradientTable, read_gradient_table
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, rotate_bvecs, voxel_sizes
from bids_gevnet.facts import ConformFacts
from bids_gevnet.interfaces.series import Series, read_image, to_rows, write_facts, write_series
from bids_gevnet.settings import B0_THRESHOLD


class ConformInputSpec(BaseInterfaceInputSpec):
    """Files of one BIDS run."""

    image = File(exists=True, mandatory=True, desc="4D diffusion series")
    bval = File(exists=True, mandatory=True, desc="FSL-style b-values")
    bvec = File(exists=True, mandatory=True, desc="FSL-style gradient vectors")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class ConformOutputSpec(TraitedSpec):
    """The conformed run."""

    image = File(exists=True, desc="series with RAS axes and centred header")
    gradients = File(exists=True, desc="b-values and directions in world RAS")
    old_to_new = traits.List(desc="rows of the transform from the old to the new world, mm")
    facts = File(exists=True, desc="ConformFacts of the run")


class Conform(SimpleInterface):
    """Axis-align and centre a run without interpolation."""

    input_spec = ConformInputSpec
    output_spec = ConformOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        data, affine, table = read_run(self.inputs)
        conformed = conform(data, affine)
        bvecs = rotate_bvecs(bvecs_fsl_to_ras(table.bvecs, affine), conformed.old_to_new)
        series = Series(conformed.data, conformed.affine, table.bvals, bvecs)
        image, gradients = write_series(folder, series)
        self._results["image"] = str(image)
        self._results["gradients"] = str(gradients)
        self._results["old_to_new"] = conformed.old_to_new.tolist()
        facts = conform_facts(series, data.shape, conformed.n_not_finite)
        self._results["facts"] = write_facts(folder, facts)
        return runtime


def read_run(
    inputs: Any,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64], GradientTable]:
    """Read the image, bval and bvec that a node was given: voxels, affine and gradients."""
    data, affine = read_image(inputs.image)
    table = read_gradient_table(
        Path(inputs.image),
        Path(inputs.bval),
        Path(inputs.bvec),
        n_volumes=data.shape[3],
        b0_threshold=inputs.b0_threshold,
    )
    # What the scanner computed from the other volumes follows them, and has no gradient.
    return data[..., : len(table.bvals)], affine, table


def conform_facts(series: Series, shape: tuple[int, ...], not_finite: int) -> ConformFacts:
    """State what a run is like after conforming; `shape` is that of the image as it was read."""
    return ConformFacts(
        shape=tuple(shape),
        voxel_mm=tuple(np.round(voxel_sizes(series.affine), 4).tolist()),
        not_finite=not_finite,
        bvals=tuple(series.bvals.tolist()),
        bvecs_ras=to_rows(np.round(series.bvecs_ras, 5)),
    )
