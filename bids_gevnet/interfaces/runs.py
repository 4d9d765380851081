"""Join the corrected runs of a scan and resample them in the space of the first."""

from dataclasses import dataclass
from functools import cached_property
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
from bids_gevnet.dwi.coherence import check_coherence
from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl, rotate_bvecs
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.motion import align_means, displacement_mm
from bids_gevnet.dwi.run_agreement import (
    Comparison,
    angle_between,
    b0_correlation,
    choose_group,
    group_runs,
    main_directions,
)
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import JoinFacts, LeftOutRun
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


_SAYS = {
    "fits": "the gradient table fits as well: it may show another person",
    "wrong": "the gradient table looks wrong",
    "undecided": "the gradient table could not be checked",
}


@dataclass(frozen=True)
class _AlignedRuns:
    """Runs in the space of the first, one list entry each."""

    runs: list[Series]
    placements: "list[npt.NDArray[np.float64] | Warp]"
    natives: list[npt.NDArray[np.float32]]
    references: list[npt.NDArray[np.float32]]
    apart_mm: tuple[float, ...]

    @cached_property
    def brain(self) -> npt.NDArray[np.bool_] | None:
        """Brain of the first; whether there is one at all is the concern of the mask."""
        try:
            return brain_mask(self.references[0], self.runs[0].affine)
        except ParticipantError:
            return None


class JoinRunsInputSpec(BaseInterfaceInputSpec):
    """Corrected runs of one scan, one list entry each."""

    images = traits.List(File(exists=True), mandatory=True, desc="series before resampling")
    gradients = traits.List(File(exists=True), mandatory=True, desc="rotated gradients")
    confounds = traits.List(File(exists=True), mandatory=True, desc="motion tables")
    transforms = traits.List(
        File(exists=True), desc="where volumes belong: rigid or warps; none after eddy"
    )
    old_to_new = traits.List(desc="rows: world of each raw run to the conformed one")
    names = traits.List(traits.Str(), mandatory=True, desc="of the runs, for messages")
    aligned = traits.Bool(False, usedefault=True, desc="whether eddy has aligned the runs already")
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
    kept = traits.List(traits.Int(), desc="numbers of the runs that were used, from 0")
    old_to_new = traits.List(desc="rows: of the first run that was used")
    facts = File(exists=True, desc="JoinFacts of the scan")


class JoinRuns(SimpleInterface):
    """Align runs to the first by their b0s, put them in one file, and resample them once.

    Runs that disagree are not joined: those whose gradient tables fit are used.
    """

    input_spec = JoinRunsInputSpec
    output_spec = JoinRunsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        runs = [
            read_series(image, gradients)
            for image, gradients in zip(self.inputs.images, self.inputs.gradients, strict=True)
        ]
        kept = tuple(range(len(runs)))
        aligned = self._align(runs, self._transforms(runs))
        compared = self._compare(aligned)
        groups = group_runs(
            np.array([[pair.agree for pair in row] for row in compared] or [[True]])
        )
        left_out: tuple[LeftOutRun, ...] = ()
        if len(groups) > 1:
            kept, left_out = self._keep_apart(aligned, compared, groups)
            placements = self._transforms(runs)
            aligned = self._align([runs[i] for i in kept], [placements[i] for i in kept])
            compared = self._compare(aligned)
        self._write(folder, aligned, kept)
        angles = [compared[0][i].angle_deg for i in range(1, len(kept))] if compared else []
        facts = JoinFacts(
            runs=len(kept),
            apart_mm=aligned.apart_mm,
            angles_deg=tuple(round(angle, 1) for angle in angles if angle is not None),
            left_out=left_out,
        )
        self._results["facts"] = write_facts(folder, facts)
        self._results["kept"] = list(kept)
        if isdefined(self.inputs.old_to_new):
            self._results["old_to_new"] = self.inputs.old_to_new[kept[0]]
        return runtime

    def _align(
        self, runs: list[Series], placements: "list[npt.NDArray[np.float64] | Warp]"
    ) -> "_AlignedRuns":
        """Move every run to the first by their mean b0s."""
        runs, placements = list(runs), list(placements)
        natives = [
            self._resample(run, t, runs[0]) for run, t in zip(runs, placements, strict=True)
        ]
        references = [self._mean_b0(n, run) for n, run in zip(natives, runs, strict=True)]
        apart = [0.0]
        for i in range(1, 1 if self.inputs.aligned else len(runs)):
            link = align_means(references[i], references[0], runs[0].affine)
            placements[i] = link_run(placements[i], link)
            natives[i] = self._resample(runs[i], placements[i], runs[0])
            references[i] = self._mean_b0(natives[i], runs[i])
            apart.append(round(float(displacement_mm(link[None])[0]), 3))
            turned = rotate_bvecs(runs[i].bvecs_ras, link)
            runs[i] = Series(runs[i].data, runs[i].affine, runs[i].bvals, turned)
        apart_mm = () if self.inputs.aligned else tuple(apart)
        return _AlignedRuns(runs, placements, natives, references, apart_mm)

    def _mean_b0(self, native: npt.NDArray[np.float32], run: Series) -> npt.NDArray[np.float32]:
        return mean_volume(native, np.flatnonzero(run.bvals <= self.inputs.b0_threshold))

    def _compare(self, aligned: "_AlignedRuns") -> list[list[Comparison]]:
        """Compare every run with every other; empty where there is nothing to compare."""
        brain = aligned.brain
        if len(aligned.runs) < 2 or brain is None:
            return []
        index = np.argwhere(brain)
        voxels = tuple(index[:: max(1, len(index) // _MOST_VOXELS)].T)
        directions = []
        for run, native in zip(aligned.runs, aligned.natives, strict=True):
            volumes = self._one_shell(run)
            directions.append(
                main_directions(
                    native[voxels][:, volumes],
                    run.bvals[volumes],
                    run.bvecs_ras[volumes],
                    b0_threshold=self.inputs.b0_threshold,
                )
            )
        return [
            [
                Comparison(angle_between(first, other), b0_correlation(b0, other_b0, brain))
                for other, other_b0 in zip(directions, aligned.references, strict=True)
            ]
            for first, b0 in zip(directions, aligned.references, strict=True)
        ]

    def _one_shell(self, run: Series) -> npt.NDArray[np.intp]:
        shells = find_shells(run.bvals, b0_threshold=self.inputs.b0_threshold)
        return np.sort(np.concatenate([shells.b0, choose_shell(shells).volumes]))

    def _keep_apart(
        self,
        aligned: "_AlignedRuns",
        compared: list[list[Comparison]],
        groups: list[tuple[int, ...]],
    ) -> tuple[tuple[int, ...], tuple[LeftOutRun, ...]]:
        """Return the runs whose tables fit, and why the others are left out."""
        outcomes, names = self._check_tables(aligned), self.inputs.names
        chosen = choose_group(groups, outcomes)
        if chosen is None:
            one, other = groups[0][0], groups[1][0]
            raise ParticipantError(
                expected="runs of one scan that show the same head with the same main directions",
                found=f"{compared[one][other]} of {names[one]} and {names[other]}: the gradient "
                "table of one of them is wrong, or they show different people, and white matter "
                "does not tell which run is right",
                remedy="leave one of them out with --bids-filter-file; the report of each "
                "alone says whether its gradient table fits",
            )
        return chosen, tuple(
            LeftOutRun(
                name=names[i],
                reason=f"{compared[i][chosen[0]]} set it apart from {names[chosen[0]]}, whose "
                f"gradient table fits the white matter; of this run, {_SAYS[outcomes[i]]}",
            )
            for i in range(len(names))
            if i not in chosen
        )

    def _check_tables(self, aligned: "_AlignedRuns") -> list[str]:
        """Tell of each run whether its gradient table fits the white matter."""
        outcomes: list[str] = []
        for run, native in zip(aligned.runs, aligned.natives, strict=True):
            volumes, affine = self._one_shell(run), aligned.runs[0].affine
            outcomes.append(
                check_coherence(
                    native[..., volumes],
                    np.ones(native.shape[:3], bool) if aligned.brain is None else aligned.brain,
                    affine,
                    run.bvals[volumes],
                    bvecs_ras_to_fsl(run.bvecs_ras[volumes], affine),
                    b0_threshold=self.inputs.b0_threshold,
                ).outcome
            )
        return outcomes

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

    def _write(self, folder: Path, aligned: "_AlignedRuns", kept: tuple[int, ...]) -> None:
        runs, natives = aligned.runs, aligned.natives
        bvals = np.concatenate([run.bvals for run in runs])
        bvecs = np.concatenate([run.bvecs_ras for run in runs])
        if len(runs) == 1:
            # Nothing to join: the file of the only run will do, without a copy of gigabytes.
            self._results["image"] = self.inputs.images[kept[0]]
            gradients = write_gradients(folder / "gradients.tsv", bvals, bvecs)
        else:
            data = np.concatenate([np.asarray(run.data) for run in runs], axis=3)
            image, gradients = write_series(folder, Series(data, runs[0].affine, bvals, bvecs))
            self._results["image"] = str(image)
        self._results["gradients"] = str(gradients)
        self._results["transforms"] = str(save_placements(folder, aligned.placements))
        native = natives[0] if len(natives) == 1 else np.concatenate(natives, axis=3)
        write_image(folder / "native.nii", native, runs[0].affine)
        self._results["native"] = str(folder / "native.nii")
        b0 = mean_volume(native, np.flatnonzero(bvals <= self.inputs.b0_threshold))
        write_image(folder / "b0.nii", b0, runs[0].affine)
        self._results["reference"] = str(folder / "b0.nii")
        if len(runs) == 1:
            self._results["confounds"] = self.inputs.confounds[kept[0]]
            return
        tables = [read_confounds(self.inputs.confounds[i]) for i in kept]
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
                starts=np.cumsum([0, *map(len, tables[:-1])]).tolist(),
            )
        )
