"""Take what another pipeline has made: a corrected series, its motion, a brain mask."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.writing import write_image, write_text
from bids_gevnet.dwi.conform import conform, reorder_axes, replace_not_finite
from bids_gevnet.dwi.fsl import parse_eddy
from bids_gevnet.dwi.gradients import (
    axis_directions,
    bvecs_fsl_to_ras,
    bvecs_ras_to_fsl,
    bvecs_voxel_to_ras,
    rotate_bvecs,
)
from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.motion import displacement_mm, rigid_parameters
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import CorrectionFacts, MaskFacts
from bids_gevnet.interfaces.conform import conform_facts, read_run
from bids_gevnet.interfaces.confounds import MOTION, write_confounds
from bids_gevnet.interfaces.masking import mask_volume_ml
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_mask,
    write_facts,
    write_series,
)
from bids_gevnet.settings import B0_THRESHOLD

_LARGEST_TURN_RAD = 1e-3
"""A header whose axes are this near to the world's is axis-aligned but for rounding."""


class TakeSeriesInputSpec(BaseInterfaceInputSpec):
    """A preprocessed series."""

    image = File(exists=True, mandatory=True, desc="4D diffusion series, corrected")
    bval = File(exists=True, mandatory=True, desc="b-values")
    bvec = File(exists=True, mandatory=True, desc="gradient vectors after correction")
    bvec_axes = traits.Enum("fsl", "voxel", usedefault=True, desc="axes of the vectors")
    confounds = File(exists=True, desc="table of motion per volume")
    eddy_base = traits.Str(desc="what the names of FSL eddy's text files begin with")
    program = traits.Str(mandatory=True, desc="pipeline and version, for the report")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class TakeSeriesOutputSpec(TraitedSpec):
    """The series as the next stages take it."""

    image = File(exists=True, desc="series with RAS axes, in the world it came in")
    gradients = File(exists=True, desc="b-values and directions in world RAS")
    bvec_fsl = File(exists=True, desc="directions in FSL's axes of the image as it came")
    confounds = File(exists=True, desc="motion per volume, as far as it is known")
    old_to_new = traits.List(desc="rows of the transform from the old to the new world, mm")
    conform_facts = File(exists=True, desc="ConformFacts of the series")
    correction_facts = File(exists=True, desc="CorrectionFacts of the series")


class TakeSeries(SimpleInterface):
    """Bring a preprocessed series into the form of a corrected run; nothing is interpolated.

    Axis-aligned images keep their world, so that all the pipeline left beside them still fits;
    oblique ones are conformed as raw scans are.
    """

    input_spec = TakeSeriesInputSpec
    output_spec = TakeSeriesOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        data, affine, table = read_run(self.inputs)
        to_ras = bvecs_voxel_to_ras if self.inputs.bvec_axes == "voxel" else bvecs_fsl_to_ras
        bvecs_ras = to_ras(table.bvecs, affine)
        self._results["bvec_fsl"] = str(_write_bvec(folder, bvecs_ras_to_fsl(bvecs_ras, affine)))
        series, old_to_new, not_finite = _to_ras_axes(data, affine, table.bvals, bvecs_ras)
        image, gradients = write_series(folder, series)
        self._results["image"] = str(image)
        self._results["gradients"] = str(gradients)
        self._results["old_to_new"] = old_to_new.tolist()
        (folder / "conform").mkdir()
        self._results["conform_facts"] = write_facts(
            folder / "conform", conform_facts(series, data.shape, not_finite)
        )
        confounds, correction_facts = self._motion(folder, len(table.bvals))
        self._results["confounds"] = str(confounds)
        self._results["correction_facts"] = write_facts(folder, correction_facts)
        return runtime

    def _motion(self, folder: Path, n_volumes: int) -> tuple[Path, CorrectionFacts]:
        """Read the motion that the pipeline estimated; without it the table says n/a."""
        path = folder / "confounds.tsv"
        facts = CorrectionFacts(method="preprocessed", program=self.inputs.program)
        if isdefined(self.inputs.confounds):
            columns = read_motion_table(Path(self.inputs.confounds), n_volumes)
            write_text(path, columns.to_csv(sep="\t", index=False, na_rep="n/a",
                                            float_format="%.6f"))  # fmt: skip
            return path, facts
        texts = _eddy_texts(self.inputs.eddy_base) if isdefined(self.inputs.eddy_base) else None
        # Where a pipeline has averaged pairs of volumes, eddy's files speak of others.
        if texts is None or len(texts[0].split("\n")) - 1 != n_volumes:
            empty = pd.DataFrame({"framewise_displacement": np.full(n_volumes, np.nan)})
            write_text(path, empty.to_csv(sep="\t", index=False, na_rep="n/a"))
            return path, facts
        parsed = parse_eddy(*texts, n_volumes)
        outliers = parsed.outlier_slices if texts[2] is not None else None
        write_confounds(path, rigid_parameters(parsed.transforms), outliers)
        return path, CorrectionFacts(
            method="preprocessed",
            program=self.inputs.program,
            largest_displacement_mm=round(float(displacement_mm(parsed.transforms).max()), 3),
            outlier_slices=None if outliers is None else int(outliers.sum()),
        )


def read_motion_table(path: Path, n_volumes: int) -> pd.DataFrame:
    """Read framewise displacement and motion from the confounds of a pipeline.

    QSIPrep and this app call the columns alike. A scan that QSIPrep averaged from a pair of
    series has two of each, of which the larger displacement counts.

    Returns
    -------
    table : DataFrame
        One row per volume; all n/a where the file has another number of rows.
    """
    try:
        table = pd.read_csv(path, sep="\t", na_values=["n/a"])
    except (OSError, ValueError) as error:
        raise ParticipantError(
            expected=f"a table of confounds in {path}",
            found=str(error)[:200],
            remedy="restore the file, or remove it to go on without the motion",
        ) from None
    motion = pd.DataFrame({"framewise_displacement": np.full(n_volumes, np.nan)})
    if len(table) != n_volumes:
        return motion
    name = "framewise_displacement"
    steps = [column for column in (name, f"{name}_1", f"{name}_2") if column in table]
    if steps:
        numbers = table[steps].apply(pd.to_numeric, errors="coerce")
        motion[name] = numbers.max(axis=1)
    known = [column for column in (*MOTION, "outlier_slices", "eddy_displacement")
             if column in table]  # fmt: skip
    for column in known:
        motion[column] = pd.to_numeric(table[column], errors="coerce")
    return motion


def _eddy_texts(base: str) -> tuple[str, str, str | None] | None:
    """Read eddy's parameters, rotated directions and map of outliers, if they are there."""
    parameters, rotated, outliers = (
        Path(f"{base}.eddy_{name}") for name in ("parameters", "rotated_bvecs", "outlier_map")
    )
    if not (parameters.is_file() and rotated.is_file()):
        return None
    return (
        parameters.read_text(encoding="utf-8").strip() + "\n",
        rotated.read_text(encoding="utf-8"),
        outliers.read_text(encoding="utf-8") if outliers.is_file() else None,
    )


def _to_ras_axes(
    data: npt.NDArray[Any],
    affine: npt.NDArray[np.float64],
    bvals: npt.NDArray[np.float64],
    bvecs_ras: npt.NDArray[np.float64],
) -> tuple[Series, npt.NDArray[np.float64], int]:
    """Order the axes; take the rotation out of an oblique header as for raw scans."""
    turned, ordered = reorder_axes(data, affine)
    if np.abs(axis_directions(ordered) - np.eye(3)).max() <= _LARGEST_TURN_RAD:
        cleaned, count = replace_not_finite(np.ascontiguousarray(turned))
        return Series(cleaned, ordered, bvals, bvecs_ras), np.eye(4), count
    conformed = conform(data, affine)
    turned_bvecs = rotate_bvecs(bvecs_ras, conformed.old_to_new)
    series = Series(conformed.data, conformed.affine, bvals, turned_bvecs)
    return series, conformed.old_to_new, conformed.n_not_finite


def _write_bvec(folder: Path, bvecs_fsl: npt.NDArray[np.float64]) -> Path:
    path = folder / "fsl.bvec"
    rows = "\n".join(" ".join(f"{value:.8f}" for value in row) for row in bvecs_fsl.T)
    write_text(path, rows + "\n")
    return path


class TakeMaskInputSpec(BaseInterfaceInputSpec):
    """A mask of somebody else, and the scan it is for."""

    mask = File(exists=True, mandatory=True, desc="brain, in the world of the scan as it came")
    image = File(exists=True, mandatory=True, desc="series on whose grid the mask is wanted")
    old_to_new = traits.List(
        mandatory=True, desc="rows: world of the scan as it came to that of the series"
    )


class TakeMaskOutputSpec(TraitedSpec):
    """A brain mask."""

    mask = File(exists=True, desc="brain")
    facts = File(exists=True, desc="MaskFacts of the scan")


class TakeMask(SimpleInterface):
    """Put a given brain mask on the grid of a scan."""

    input_spec = TakeMaskInputSpec
    output_spec = TakeMaskOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        given, given_affine = read_mask(self.inputs.mask)
        series, affine = read_image(self.inputs.image)
        x, y, z = series.shape[:3]
        mask = (
            resample_volume(
                given.astype(np.float32),
                given_affine,
                np.array(self.inputs.old_to_new),
                (x, y, z),
                affine,
                order=1,
            )
            > 0.5
        )
        if not mask.any():
            raise ParticipantError(
                expected="a brain mask in the field of view of the scan",
                found=f"none of {self.inputs.mask} in it",
                remedy="check that the mask has the header of the scan",
            )
        write_image(folder / "mask.nii", mask, affine)
        self._results["mask"] = str(folder / "mask.nii")
        facts = MaskFacts(
            method="given",
            source=Path(self.inputs.mask).name,
            volume_ml=mask_volume_ml(mask, affine),
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime
