"""Run FSL's topup: the susceptibility field from b0s with opposite phase encoding."""

import os
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
    traits,
)

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.fsl import WITHOUT_SUBSAMPLING, schedule_folder, topup_arguments
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.phase_encoding import Relation, acquisition_rows, conformed_vector
from bids_gevnet.errors import ParticipantError
from bids_gevnet.interfaces.correction import field_facts, trial_facts
from bids_gevnet.interfaces.fsl_programs import ask_options, run_program
from bids_gevnet.interfaces.series import read_image
from bids_gevnet.settings import B0_THRESHOLD


class TopupInputSpec(BaseInterfaceInputSpec):
    """b0s with different phase encoding."""

    program = File(exists=True, mandatory=True, desc="the topup executable")
    images = traits.List(File(exists=True), mandatory=True, desc="raw images, the run's own first")
    bvals = traits.List(traits.Str(), mandatory=True, desc="their bval files, '' where all are b0")
    directions = traits.List(traits.Str(), mandatory=True, desc="BIDS PhaseEncodingDirection")
    certain = traits.List(
        traits.Bool(),
        desc="whether each relates to the first as its direction says (default: all do); else "
        "equal and opposite are tried",
    )
    readout_s = traits.List(traits.Float(), mandatory=True, desc="total readout times")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to offer")


class TopupOutputSpec(TraitedSpec):
    """The susceptibility field."""

    base = traits.Str(desc="prefix that eddy takes; empty where no b0 turned out to be opposite")
    unwarped = File(exists=True, desc="corrected b0s")
    trials = traits.List(traits.Dict(), desc="EncodingTrials of b0s of unknown encoding")
    field = traits.Dict(desc="SusceptibilityField, as the first image sees it")


class Topup(SimpleInterface):
    """Estimate the susceptibility field from b0s with opposite phase encoding."""

    input_spec = TopupInputSpec
    output_spec = TopupOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        base = folder / "topup"
        volumes, encodings, affine = self._select()
        write_image(folder / "b0s.nii.gz", np.stack(volumes, axis=-1), affine)
        acqp, index = acquisition_rows(encodings)
        np.savetxt(folder / "acqp.txt", acqp[index - 1], fmt="%g")
        if len(acqp) > 1:
            self._estimate(folder, base, volumes[0].shape)
            self._results |= {"base": str(base), "unwarped": f"{base}_unwarped.nii.gz"}
            self._results["field"] = self._describe_field(base, volumes, encodings, affine)
        elif self._results["trials"]:
            self._results |= {"base": "", "unwarped": str(folder / "b0s.nii.gz"), "field": {}}
        else:
            raise ParticipantError(
                expected="b0s with opposite phase encoding on one grid",
                found=f"{len(volumes)} of {len(self.inputs.images)} images on the grid of the run",
                remedy="leave the others out with --bids-filter-file",
            )
        return runtime

    def _select(
        self,
    ) -> tuple[
        list[npt.NDArray[np.float32]],
        list[tuple[tuple[int, int, int], float]],
        npt.NDArray[np.float64],
    ]:
        """Read a b0 of each image on the grid of the first, with encoding and readout time."""
        volumes: list[npt.NDArray[np.float32]] = []
        encodings: list[tuple[tuple[int, int, int], float]] = []
        affine = np.eye(4)
        trials = []
        certain = self.inputs.certain or [True] * len(self.inputs.images)
        for image, bval, direction, readout, known in zip(
            self.inputs.images,
            self.inputs.bvals,
            self.inputs.directions,
            self.inputs.readout_s,
            certain,
            strict=True,
        ):
            data, raw_affine = read_image(image)
            conformed = conform(_first_b0(data, bval, self.inputs.b0_threshold), raw_affine)
            volume = conformed.data.astype(np.float32)
            vector = conformed_vector(direction, raw_affine)
            if not volumes:
                affine = conformed.affine
            elif volume.shape != volumes[0].shape:
                continue
            if not known:
                from bids_gevnet.dwi.polarity import try_both

                first, first_s = encodings[0]
                axis = int(np.argmax(np.abs(first)))
                trial = try_both(volumes[0], volume, affine, axis, readout_ratio=readout / first_s)
                trials.append(trial_facts(Path(image).name, trial).to_json())
                if trial.relation is not Relation.OPPOSITE:
                    continue
                vector = (-first[0], -first[1], -first[2])
            volumes.append(volume)
            encodings.append((vector, readout))
        self._results["trials"] = trials
        return volumes, encodings, affine

    def _estimate(self, folder: Path, base: Path, shape: tuple[int, ...]) -> None:
        program = Path(self.inputs.program)
        schedules = schedule_folder(os.environ, program)
        run_program(
            topup_arguments(
                program,
                folder / "b0s.nii.gz",
                folder / "acqp.txt",
                base,
                shape,
                options=ask_options(program),
                has_odd_schedule=(schedules / WITHOUT_SUBSAMPLING).exists(),
                threads=self.inputs.num_threads,
            ),
            folder,
        )

    def _describe_field(
        self,
        base: Path,
        volumes: Sequence[npt.NDArray[np.float32]],
        encodings: Sequence[tuple[tuple[int, int, int], float]],
        affine: npt.NDArray[np.float64],
    ) -> dict[str, Any]:
        """Say how the field displaces the first image, and how it brings two b0s together."""
        vector, seconds = encodings[0]
        axis = int(np.argmax(np.abs(vector)))
        hz, _ = read_image(f"{base}_fieldmap.nii.gz")
        unwarped, _ = read_image(f"{base}_unwarped.nii.gz")
        other = next(i for i, (v, _) in enumerate(encodings) if v != vector)
        head = unwarped[..., 0] > unwarped[..., 0].mean()
        before = np.corrcoef(volumes[0][head], volumes[other][head])[0, 1]
        after = np.corrcoef(unwarped[..., 0][head], unwarped[..., other][head])[0, 1]
        from bids_gevnet.dwi.model_corrector.susceptibility import Susceptibility as Field

        mm_per_hz = vector[axis] * seconds * voxel_sizes(affine)[axis]
        field = Field(
            (np.asarray(hz) * mm_per_hz).astype(np.float32), np.eye(4), float(before), float(after)
        )
        return field_facts(field, volumes[0]).to_json()


def _first_b0(data: npt.NDArray[Any], bval: str, b0_threshold: float) -> npt.NDArray[Any]:
    if data.ndim == 3:
        return data
    first = int(np.argmax(read_bval(Path(bval)) <= b0_threshold)) if bval else 0
    return np.asarray(data[..., first])
