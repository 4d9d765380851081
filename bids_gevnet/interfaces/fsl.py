"""Run FSL's eddy and bet; topup is in `bids_gevnet.interfaces.topup`.

Nipype has its own; they look for program names that recent FSL no longer has and write one file
per volume in places. These run the command lines of `bids_gevnet.dwi.fsl`.
"""

from collections.abc import Sequence
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

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.fsl import (
    EddyBinary,
    EddyOutput,
    bet_arguments,
    covers_half_a_sphere,
    eddy_arguments,
    parse_eddy,
)
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, bvecs_ras_to_fsl, voxel_sizes
from bids_gevnet.dwi.motion import displacement_mm, rigid_parameters
from bids_gevnet.dwi.phase_encoding import acquisition_rows, conformed_vector
from bids_gevnet.dwi.shells import mean_volume
from bids_gevnet.facts import (
    CorrectionFacts,
    EncodingTrial,
    MaskFacts,
    Susceptibility,
    SusceptibilityField,
)
from bids_gevnet.interfaces.confounds import write_confounds
from bids_gevnet.interfaces.correction import eddy_displacement_mm
from bids_gevnet.interfaces.fsl_programs import ask_options, run_program
from bids_gevnet.interfaces.masking import mask_volume_ml
from bids_gevnet.interfaces.quality import misfit_of_series
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_mask,
    read_series,
    to_rows,
    write_facts,
    write_gradients,
    write_series,
)
from bids_gevnet.settings import B0_THRESHOLD


class EddyInputSpec(BaseInterfaceInputSpec):
    """Conformed runs on one grid and how each was acquired, one list entry per run."""

    program = File(exists=True, mandatory=True, desc="the eddy executable")
    # Nipype's own name: it runs one node that says so per GPU at a time.
    use_gpu = traits.Bool(False, usedefault=True, desc="whether it is a CUDA build")
    images = traits.List(File(exists=True), mandatory=True, desc="conformed series")
    gradients = traits.List(File(exists=True), mandatory=True, desc="gradients in world RAS")
    mask = File(exists=True, mandatory=True, desc="brain, in the corrected b0 where topup ran")
    raw_images = traits.List(
        File(exists=True), mandatory=True, desc="the runs as they lie in the dataset"
    )
    directions = traits.List(
        traits.Str(), mandatory=True, desc="BIDS PhaseEncodingDirection of the raw images"
    )
    readout_s = traits.List(traits.Float(), mandatory=True, desc="total readout times")
    topup_base = traits.Str(desc="prefix of topup's output, if it ran")
    why_no_topup = traits.Enum(
        "no_opposite_b0",
        "unknown_direction",
        "no_topup",
        usedefault=True,
        desc="why it did not, if it did not",
    )
    encoding_trials = traits.List(traits.Dict(), desc="EncodingTrials that topup made")
    field = traits.Dict(desc="SusceptibilityField that topup found")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to offer")


class EddyOutputSpec(TraitedSpec):
    """The corrected runs, aligned with each other, one list entry each."""

    corrected = traits.List(File(exists=True), desc="corrected series")
    rotated = traits.List(File(exists=True), desc="rotated gradients, world RAS")
    confounds = traits.List(File(exists=True), desc="motion against the first b0 of all runs")
    facts = traits.List(File(exists=True), desc="CorrectionFacts")


class Eddy(SimpleInterface):
    """Correct motion, eddy currents and outliers of all runs of a scan with one call of eddy."""

    input_spec = EddyInputSpec
    output_spec = EddyOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        runs = [
            read_series(image, gradients)
            for image, gradients in zip(self.inputs.images, self.inputs.gradients, strict=True)
        ]
        vectors = self._vectors()
        acqp, index = acquisition_rows(
            [
                (vector, seconds)
                for run, vector, seconds in zip(runs, vectors, self.inputs.readout_s, strict=True)
                for _ in run.bvals
            ]
        )
        np.savetxt(folder / "acqp.txt", acqp, fmt="%g")
        np.savetxt(folder / "index.txt", index[None], fmt="%d")
        bvals = np.concatenate([run.bvals for run in runs])
        bvecs_ras = np.concatenate([run.bvecs_ras for run in runs])
        np.savetxt(folder / "bvals", bvals[None], fmt="%g")
        np.savetxt(folder / "bvecs", bvecs_ras_to_fsl(bvecs_ras, runs[0].affine).T, fmt="%.8f")
        base, program = folder / "eddy", Path(self.inputs.program)
        run_program(
            eddy_arguments(
                EddyBinary(program, uses_gpu=self.inputs.use_gpu),
                data=self._write_input(folder, runs),
                mask=Path(self.inputs.mask),
                bvals=folder / "bvals",
                bvecs=folder / "bvecs",
                acqp=folder / "acqp.txt",
                index=folder / "index.txt",
                out_base=base,
                options=ask_options(program),
                linear_second_level=covers_half_a_sphere(
                    bvecs_ras[bvals > self.inputs.b0_threshold]
                ),
                topup_base=Path(self.inputs.topup_base) if self._has_topup() else None,
                threads=self.inputs.num_threads,
            ),
            folder,
        )
        self._collect(folder, base, runs, vectors)
        return runtime

    def _vectors(self) -> list[tuple[int, int, int]]:
        """Return the phase encoding of each run in the axes of the conformed images."""
        affines = (read_image(path)[1] for path in self.inputs.raw_images)
        return [
            conformed_vector(direction, affine)
            for direction, affine in zip(self.inputs.directions, affines, strict=True)
        ]

    def _write_input(self, folder: Path, runs: Sequence[Series]) -> Path:
        """Put all runs into one file, scaled to the brightness of the first; one alone is one."""
        if len(runs) == 1:
            return Path(self.inputs.images[0])
        b0s = [
            mean_volume(run.data, np.flatnonzero(run.bvals <= self.inputs.b0_threshold))
            for run in runs
        ]
        scales = [brightness(b0s[0]) / brightness(b0) for b0 in b0s]
        scaled = [
            np.asarray(run.data, dtype=np.float32) * np.float32(scale)
            for run, scale in zip(runs, scales, strict=True)
        ]
        write_image(folder / "runs.nii", np.concatenate(scaled, axis=3), runs[0].affine)
        return folder / "runs.nii"

    def _has_topup(self) -> bool:
        return isdefined(self.inputs.topup_base) and bool(self.inputs.topup_base)

    def _collect(
        self,
        folder: Path,
        base: Path,
        runs: Sequence[Series],
        vectors: Sequence[tuple[int, int, int]],
    ) -> None:
        outlier_map = Path(f"{base}.eddy_outlier_map")
        bvals = np.concatenate([run.bvals for run in runs])
        parsed = parse_eddy(
            Path(f"{base}.eddy_parameters").read_text(encoding="utf-8"),
            Path(f"{base}.eddy_rotated_bvecs").read_text(encoding="utf-8"),
            outlier_map.read_text(encoding="utf-8") if outlier_map.exists() else None,
            len(bvals),
        )
        bvecs_ras = bvecs_fsl_to_ras(parsed.bvecs_fsl, runs[0].affine)
        sizes = voxel_sizes(runs[0].affine)
        mm_per_hz = np.concatenate(
            [
                np.full(len(run.bvals), seconds * sizes[np.argmax(np.abs(vector))])
                for run, seconds, vector in zip(runs, self.inputs.readout_s, vectors, strict=True)
            ]
        )
        terms = parsed.eddy_terms_mm(mm_per_hz)
        corrected, _ = read_image(f"{base}.nii.gz")
        self._results |= {"corrected": [], "rotated": [], "confounds": [], "facts": []}
        ends = np.cumsum([len(run.bvals) for run in runs])
        for number, (run, end) in enumerate(zip(runs, ends, strict=True), start=1):
            own = folder / f"run_{number}"
            own.mkdir(exist_ok=True)
            part = slice(int(end) - len(run.bvals), int(end))
            after = Series(corrected[..., part], run.affine, run.bvals, bvecs_ras[part])
            if len(runs) == 1:
                image = Path(f"{base}.nii.gz")
                gradients = write_gradients(own / "gradients.tsv", after.bvals, after.bvecs_ras)
            else:
                image, gradients = write_series(own, after)
            self._results["corrected"].append(str(image))
            self._results["rotated"].append(str(gradients))
            own_terms = None if terms is None else terms[part]
            confounds = write_confounds(
                own / "confounds.tsv",
                rigid_parameters(parsed.transforms)[part],
                parsed.outlier_slices[part],
                None if own_terms is None else eddy_displacement_mm(own_terms),
            )
            self._results["confounds"].append(str(confounds))
            facts = self._facts(run, after, parsed, part, own_terms)
            self._results["facts"].append(write_facts(own, facts))

    def _facts(
        self,
        before: Series,
        after: Series,
        parsed: EddyOutput,
        part: slice,
        terms: npt.NDArray[np.float64] | None,
    ) -> CorrectionFacts:
        """Say what eddy did to one run, which is a part of all volumes."""
        moved_mm = displacement_mm(parsed.transforms[part])
        trials = tuple(EncodingTrial.from_json(t)[0] for t in self.inputs.encoding_trials or ())
        field = self.inputs.field if self._has_topup() else None
        return CorrectionFacts(
            method="eddy",
            program=Path(self.inputs.program).name,
            largest_displacement_mm=round(float(moved_mm.max()), 3),
            eddy_currents=True,
            largest_eddy_mm=None
            if terms is None
            else round(float(eddy_displacement_mm(terms).max()), 3),
            eddy_terms_mm=() if terms is None else to_rows(np.round(terms, 4)),
            outlier_slices=int(parsed.outlier_slices[part].sum()),
            misfit_before=self._misfit(before),
            misfit_after=self._misfit(after),
            susceptibility=self._susceptibility(),
            encoding_trials=trials,
            field=SusceptibilityField.from_json(field)[0] if field else None,
        )

    def _susceptibility(self) -> Susceptibility:
        if self._has_topup():
            return "corrected"
        outcome: Susceptibility = (
            "same_direction" if self.inputs.encoding_trials else self.inputs.why_no_topup
        )
        return outcome

    def _misfit(self, series: Series) -> float | None:
        """Return the misfit of the tensor on one shell in the brain."""
        mask, _ = read_mask(self.inputs.mask)
        return misfit_of_series(series, mask, self.inputs.b0_threshold)


def brightness(b0: npt.NDArray[np.floating[Any]]) -> float:
    """Return the mean of a b0 in the head: of the voxels that are brighter than the average."""
    return float(b0[b0 > b0.mean()].mean())


class BetInputSpec(BaseInterfaceInputSpec):
    """A series whose b0s bet looks at."""

    program = File(exists=True, mandatory=True, desc="the bet executable")
    image = File(exists=True, mandatory=True, desc="series")
    gradients = File(exists=True, mandatory=True, desc="its gradients")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class BetOutputSpec(TraitedSpec):
    """A brain mask."""

    mask = File(exists=True, desc="brain")
    facts = File(exists=True, desc="MaskFacts of the scan")


class Bet(SimpleInterface):
    """Mask the brain with FSL bet on the mean b0."""

    input_spec = BetInputSpec
    output_spec = BetOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        b0 = mean_volume(series.data, np.flatnonzero(series.bvals <= self.inputs.b0_threshold))
        write_image(folder / "b0.nii.gz", b0, series.affine)
        run_program(
            bet_arguments(Path(self.inputs.program), folder / "b0.nii.gz", folder / "brain"),
            folder,
        )
        mask, affine = read_mask(folder / "brain_mask.nii.gz")
        write_image(folder / "mask.nii", mask, affine)
        self._results["mask"] = str(folder / "mask.nii")
        facts = MaskFacts(method="bet", volume_ml=mask_volume_ml(mask, affine))
        self._results["facts"] = write_facts(folder, facts)
        return runtime
