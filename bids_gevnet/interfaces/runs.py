"""Join the corrected runs of a scan and resample them in the space of the first."""

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

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.gradients import rotate_bvecs
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.motion import align_means, displacement_mm
from bids_gevnet.dwi.run_agreement import LARGEST_ANGLE_DEG, angle_between, main_directions
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import JoinFacts
from bids_gevnet.interfaces.confounds import read_confounds, write_confounds
from bids_gevnet.interfaces.series import (
    Series,
    read_series,
    write_facts,
    write_gradients,
    write_series,
)
from bids_gevnet.interfaces.warps import (
    is_still,
    link_run,
    load_placements,
    resample_placed,
    save_placements,
)
from bids_gevnet.settings import B0_THRESHOLD

_MOST_VOXELS = 20000
"""Voxels whose main directions are compared: enough for a median."""

if TYPE_CHECKING:
    from bids_gevnet.dwi.model_corrector.warp import Warp


class JoinRunsInputSpec(BaseInterfaceInputSpec):
    """Corrected runs of one scan, one list entry each."""

    images = traits.List(File(exists=True), mandatory=True, desc="series before resampling")
    gradients = traits.List(File(exists=True), mandatory=True, desc="rotated gradients")
    confounds = traits.List(File(exists=True), mandatory=True, desc="motion tables")
    transforms = traits.List(
        File(exists=True), desc="where volumes belong: rigid or warps; none after eddy"
    )
    names = traits.List(traits.Str(), mandatory=True, desc="of the runs, for messages")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to use")


class JoinRunsOutputSpec(TraitedSpec):
    """One scan."""

    image = File(exists=True, desc="all volumes, before resampling")
    gradients = File(exists=True, desc="gradients in the space of the first run")
    transforms = File(exists=True, desc="where volumes belong, in the space of the first run")
    confounds = File(exists=True, desc="motion of all volumes")
    native = File(exists=True, desc="all volumes, resampled in the space of the first run")
    reference = File(exists=True, desc="their mean b0")
    facts = File(exists=True, desc="JoinFacts of the scan")


class JoinRuns(SimpleInterface):
    """Align runs to the first by their b0s, put them in one file, and resample them once."""

    input_spec = JoinRunsInputSpec
    output_spec = JoinRunsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        runs = [
            read_series(image, gradients)
            for image, gradients in zip(self.inputs.images, self.inputs.gradients, strict=True)
        ]
        per_run = self._transforms(runs)
        natives = [self._resample(run, t, runs[0]) for run, t in zip(runs, per_run, strict=True)]
        b0s = [np.flatnonzero(run.bvals <= self.inputs.b0_threshold) for run in runs]
        references = [mean_volume(n, b0) for n, b0 in zip(natives, b0s, strict=True)]
        apart = [0.0]
        for i in range(1, len(runs)):
            link = align_means(references[i], references[0], runs[0].affine)
            per_run[i] = link_run(per_run[i], link)
            natives[i] = self._resample(runs[i], per_run[i], runs[0])
            apart.append(round(float(displacement_mm(link[None])[0]), 3))
            turned = rotate_bvecs(runs[i].bvecs_ras, link)
            runs[i] = Series(runs[i].data, runs[i].affine, runs[i].bvals, turned)
        angles = self._check_agreement(runs, natives, references[0]) if len(runs) > 1 else ()
        self._write(folder, runs, per_run, natives)
        facts = JoinFacts(runs=len(runs), apart_mm=tuple(apart), angles_deg=angles)
        self._results["facts"] = write_facts(folder, facts)
        return runtime

    def _check_agreement(
        self,
        runs: list[Series],
        natives: list[npt.NDArray[np.float32]],
        b0: npt.NDArray[np.floating[Any]],
    ) -> tuple[float, ...]:
        """Compare the main directions of further runs with the first's; refuse what differs."""
        try:
            brain = np.argwhere(brain_mask(b0, runs[0].affine))
        except ParticipantError:
            return ()  # whether there is a brain at all is the concern of the mask
        voxels = tuple(brain[:: max(1, len(brain) // _MOST_VOXELS)].T)
        found = []
        for run, native in zip(runs, natives, strict=True):
            shells = find_shells(run.bvals, b0_threshold=self.inputs.b0_threshold)
            volumes = np.sort(np.concatenate([shells.b0, choose_shell(shells).volumes]))
            found.append(
                main_directions(
                    native[voxels][:, volumes],
                    run.bvals[volumes],
                    run.bvecs_ras[volumes],
                    b0_threshold=self.inputs.b0_threshold,
                )
            )
        angles = [angle_between(found[0], other) for other in found[1:]]
        for name, angle in zip(self.inputs.names[1:], angles, strict=True):
            if angle is not None and angle > LARGEST_ANGLE_DEG:
                raise ParticipantError(
                    expected="runs of one scan with the same main directions in white matter",
                    found=f"a median angle of {angle:.0f} degrees between {self.inputs.names[0]} "
                    f"and {name}: the gradient table of one of them is wrong, or they show "
                    "different people",
                    remedy="leave one of them out with --bids-filter-file; the report of each "
                    "alone says whether its gradient table fits",
                )
        return tuple(round(angle, 1) for angle in angles if angle is not None)

    def _transforms(self, runs: list[Series]) -> "list[npt.NDArray[np.float64] | Warp]":
        if isdefined(self.inputs.transforms) and self.inputs.transforms:
            return [load_placements(path)[0] for path in self.inputs.transforms]
        return [np.tile(np.eye(4), (len(run.bvals), 1, 1)) for run in runs]

    def _resample(
        self, run: Series, placement: "npt.NDArray[np.float64] | Warp", target: Series
    ) -> npt.NDArray[np.float32]:
        if is_still(placement):
            return np.asarray(run.data, dtype=np.float32)
        x, y, z = target.data.shape[:3]
        return resample_placed(
            run,
            [placement],
            np.eye(4),
            (x, y, z),
            target.affine,
            n_threads=self.inputs.num_threads,
        )

    def _write(
        self,
        folder: Path,
        runs: list[Series],
        placements: "list[npt.NDArray[np.float64] | Warp]",
        natives: list[npt.NDArray[np.float32]],
    ) -> None:
        bvals = np.concatenate([run.bvals for run in runs])
        bvecs = np.concatenate([run.bvecs_ras for run in runs])
        if len(runs) == 1:
            # Nothing to join: the file of the only run will do, without a copy of gigabytes.
            self._results["image"] = self.inputs.images[0]
            gradients = write_gradients(folder / "gradients.tsv", bvals, bvecs)
        else:
            data = np.concatenate([np.asarray(run.data) for run in runs], axis=3)
            image, gradients = write_series(folder, Series(data, runs[0].affine, bvals, bvecs))
            self._results["image"] = str(image)
        self._results["gradients"] = str(gradients)
        self._results["transforms"] = str(save_placements(folder, placements))
        native = natives[0] if len(natives) == 1 else np.concatenate(natives, axis=3)
        write_image(folder / "native.nii", native, runs[0].affine)
        self._results["native"] = str(folder / "native.nii")
        b0 = mean_volume(native, np.flatnonzero(bvals <= self.inputs.b0_threshold))
        write_image(folder / "b0.nii", b0, runs[0].affine)
        self._results["reference"] = str(folder / "b0.nii")
        tables = [read_confounds(path) for path in self.inputs.confounds]
        parameters = np.concatenate([table.iloc[:, 1:7].to_numpy() for table in tables])
        further = {
            name: np.concatenate([table[name].to_numpy() for table in tables])
            for name in ("outlier_slices", "eddy_displacement")
            if all(name in table for table in tables)
        }
        self._results["confounds"] = str(
            write_confounds(
                folder / "confounds.tsv",
                parameters,
                further.get("outlier_slices"),
                further.get("eddy_displacement"),
            )
        )
