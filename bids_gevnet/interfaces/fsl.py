"""Run FSL's topup, eddy and bet.

Nipype has its own; they look for program names that recent FSL no longer has and write one file
per volume in places. These run the command lines of `bids_gevnet.dwi.fsl`.
"""

import functools
import os
import subprocess
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

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.writing import write_image, write_text
from bids_gevnet.dwi.conform import conform, ras_order
from bids_gevnet.dwi.fsl import (
    WITHOUT_SUBSAMPLING,
    EddyBinary,
    ProgramOptions,
    bet_arguments,
    covers_half_a_sphere,
    eddy_arguments,
    fsl_environment,
    parse_eddy,
    parse_help,
    schedule_folder,
    topup_arguments,
    wants_subcommand,
)
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, bvecs_ras_to_fsl, voxel_sizes
from bids_gevnet.dwi.motion import displacement_mm, rigid_parameters
from bids_gevnet.dwi.phase_encoding import PhaseEncoding, acquisition_rows, reorder_phase_encoding
from bids_gevnet.dwi.shells import mean_volume
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import CorrectionFacts, MaskFacts
from bids_gevnet.interfaces.confounds import write_confounds
from bids_gevnet.interfaces.correction import eddy_displacement_mm
from bids_gevnet.interfaces.masking import mask_volume_ml
from bids_gevnet.interfaces.quality import misfit_of_series
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_mask,
    read_series,
    write_facts,
    write_gradients,
)
from bids_gevnet.settings import B0_THRESHOLD

_TAIL = 2000
"""Characters of a failed program's output that go into the message."""

_HELP_S = 60
"""Seconds that a program may take to print its help text."""


def run_program(arguments: Sequence[str], folder: Path) -> None:
    """Run an external program in a folder, keep its output in a log, and raise if it fails."""
    name = Path(arguments[0]).name
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=fsl_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    write_text(folder / f"{name}.log", " ".join(arguments) + "\n" + done.stdout)
    if done.returncode:
        tail = " ".join(done.stdout[-_TAIL:].split()) or "nothing printed"
        raise ParticipantError(
            expected=f"{name} to end well",
            found=f"exit code {done.returncode}: {tail}",
            remedy=f"read {folder / f'{name}.log'}; --correction model works without FSL",
        )


def ask_options(program: Path) -> ProgramOptions:
    """Ask a program for its help text, and read from it what the program can do.

    The answer is kept for as long as the file does not change.
    """
    return _ask_options(program, program.stat().st_mtime_ns)


@functools.cache
def _ask_options(program: Path, _modified_ns: int) -> ProgramOptions:
    text = _help_text(program)
    if wants_subcommand(text):
        return parse_help(_help_text(program, "diffusion"), "diffusion")
    return parse_help(text)


def _help_text(program: Path, *subcommand: str) -> str:
    """Return what `--help` prints: FSL's programs print it to either stream, with any code."""
    try:
        done = subprocess.run(
            [str(program), *subcommand, "--help"],
            env=fsl_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_HELP_S,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def _encoding_in_conformed_axes(
    direction: str, affine: npt.NDArray[np.float64]
) -> tuple[int, int, int]:
    turned = reorder_phase_encoding(direction, *ras_order(affine))
    return PhaseEncoding(turned, "").vector


class TopupInputSpec(BaseInterfaceInputSpec):
    """b0s with different phase encoding."""

    program = File(exists=True, mandatory=True, desc="the topup executable")
    images = traits.List(File(exists=True), mandatory=True, desc="raw images, the run's own first")
    bvals = traits.List(traits.Str(), mandatory=True, desc="their bval files, '' where all are b0")
    directions = traits.List(traits.Str(), mandatory=True, desc="BIDS PhaseEncodingDirection")
    readout_s = traits.List(traits.Float(), mandatory=True, desc="total readout times")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to offer")


class TopupOutputSpec(TraitedSpec):
    """The susceptibility field."""

    base = traits.Str(desc="prefix that eddy takes")
    unwarped = File(exists=True, desc="corrected b0s")


class Topup(SimpleInterface):
    """Estimate the susceptibility field from b0s with opposite phase encoding."""

    input_spec = TopupInputSpec
    output_spec = TopupOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        volumes: list[npt.NDArray[np.float32]] = []
        encodings = []
        affine = np.eye(4)
        for image, bval, direction, readout in zip(
            self.inputs.images,
            self.inputs.bvals,
            self.inputs.directions,
            self.inputs.readout_s,
            strict=True,
        ):
            data, raw_affine = read_image(image)
            b0 = _first_b0(data, bval, self.inputs.b0_threshold)
            conformed = conform(b0, raw_affine)
            if not volumes:
                affine = conformed.affine
            elif conformed.data.shape != volumes[0].shape:
                continue
            volumes.append(conformed.data.astype(np.float32))
            encodings.append((_encoding_in_conformed_axes(direction, raw_affine), readout))
        acqp, index = acquisition_rows(encodings)
        if len(acqp) < 2:
            raise ParticipantError(
                expected="b0s with opposite phase encoding on one grid",
                found=f"{len(volumes)} of {len(self.inputs.images)} images on the grid of the run",
                remedy="leave the others out with --bids-filter-file",
            )
        write_image(folder / "b0s.nii.gz", np.stack(volumes, axis=-1), affine)
        np.savetxt(folder / "acqp.txt", acqp[index - 1], fmt="%g")
        base, program = folder / "topup", Path(self.inputs.program)
        schedules = schedule_folder(os.environ, program)
        run_program(
            topup_arguments(
                program,
                folder / "b0s.nii.gz",
                folder / "acqp.txt",
                base,
                volumes[0].shape,
                options=ask_options(program),
                has_odd_schedule=(schedules / WITHOUT_SUBSAMPLING).exists(),
                threads=self.inputs.num_threads,
            ),
            folder,
        )
        self._results["base"] = str(base)
        self._results["unwarped"] = f"{base}_unwarped.nii.gz"
        return runtime


def _first_b0(data: npt.NDArray[Any], bval: str, b0_threshold: float) -> npt.NDArray[Any]:
    if data.ndim == 3:
        return data
    first = int(np.argmax(read_bval(Path(bval)) <= b0_threshold)) if bval else 0
    return np.asarray(data[..., first])


class EddyInputSpec(BaseInterfaceInputSpec):
    """A conformed run and how it was acquired."""

    program = File(exists=True, mandatory=True, desc="the eddy executable")
    uses_gpu = traits.Bool(False, usedefault=True, desc="whether it is a CUDA build")
    image = File(exists=True, mandatory=True, desc="conformed series")
    gradients = File(exists=True, mandatory=True, desc="gradients in world RAS")
    mask = File(exists=True, mandatory=True, desc="brain, in the corrected b0 where topup ran")
    raw_image = File(exists=True, mandatory=True, desc="the run as it lies in the dataset")
    direction = traits.Str(mandatory=True, desc="BIDS PhaseEncodingDirection of the raw image")
    readout_s = traits.Float(mandatory=True, desc="total readout time")
    topup_base = traits.Str(desc="prefix of topup's output, if it ran")
    why_no_topup = traits.Enum(
        "no_opposite_b0",
        "unknown_direction",
        "no_topup",
        usedefault=True,
        desc="why it did not, if it did not",
    )
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to offer")


class EddyOutputSpec(TraitedSpec):
    """The corrected run."""

    image = File(exists=True, desc="corrected series")
    gradients = File(exists=True, desc="rotated gradients in world RAS")
    confounds = File(exists=True, desc="motion per volume")
    facts = File(exists=True, desc="CorrectionFacts of the run")


class Eddy(SimpleInterface):
    """Correct motion, eddy currents and outliers with FSL eddy."""

    input_spec = EddyInputSpec
    output_spec = EddyOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        n_volumes = len(series.bvals)
        _, raw_affine = read_image(self.inputs.raw_image)
        vector = _encoding_in_conformed_axes(self.inputs.direction, raw_affine)
        acqp, index = acquisition_rows([(vector, self.inputs.readout_s)] * n_volumes)
        np.savetxt(folder / "acqp.txt", acqp, fmt="%g")
        np.savetxt(folder / "index.txt", index[None], fmt="%d")
        np.savetxt(folder / "bvals", series.bvals[None], fmt="%g")
        fsl = bvecs_ras_to_fsl(series.bvecs_ras, series.affine)
        np.savetxt(folder / "bvecs", fsl.T, fmt="%.8f")
        base, program = folder / "eddy", Path(self.inputs.program)
        run_program(
            eddy_arguments(
                EddyBinary(program, uses_gpu=self.inputs.uses_gpu),
                data=Path(self.inputs.image),
                mask=Path(self.inputs.mask),
                bvals=folder / "bvals",
                bvecs=folder / "bvecs",
                acqp=folder / "acqp.txt",
                index=folder / "index.txt",
                out_base=base,
                options=ask_options(program),
                linear_second_level=covers_half_a_sphere(
                    series.bvecs_ras[series.bvals > self.inputs.b0_threshold]
                ),
                topup_base=Path(self.inputs.topup_base) if self._has_topup() else None,
                threads=self.inputs.num_threads,
            ),
            folder,
        )
        self._collect(folder, base, series, voxel_sizes(series.affine)[np.argmax(np.abs(vector))])
        return runtime

    def _has_topup(self) -> bool:
        return isdefined(self.inputs.topup_base) and bool(self.inputs.topup_base)

    def _collect(self, folder: Path, base: Path, series: Series, voxel_mm: float) -> None:
        outlier_map = Path(f"{base}.eddy_outlier_map")
        parsed = parse_eddy(
            Path(f"{base}.eddy_parameters").read_text(encoding="utf-8"),
            Path(f"{base}.eddy_rotated_bvecs").read_text(encoding="utf-8"),
            outlier_map.read_text(encoding="utf-8") if outlier_map.exists() else None,
            len(series.bvals),
        )
        bvecs_ras = bvecs_fsl_to_ras(parsed.bvecs_fsl, series.affine)
        terms = parsed.eddy_terms_mm(self.inputs.readout_s, voxel_mm)
        eddy_mm = None if terms is None else eddy_displacement_mm(terms)
        self._results["image"] = f"{base}.nii.gz"
        self._results["gradients"] = str(
            write_gradients(folder / "gradients.tsv", series.bvals, bvecs_ras)
        )
        self._results["confounds"] = str(
            write_confounds(
                folder / "confounds.tsv",
                rigid_parameters(parsed.transforms),
                parsed.outlier_slices,
                eddy_mm,
            )
        )
        corrected, _ = read_image(self._results["image"])
        facts = CorrectionFacts(
            method="eddy",
            program=Path(self.inputs.program).name,
            largest_displacement_mm=round(float(displacement_mm(parsed.transforms).max()), 3),
            eddy_currents=True,
            largest_eddy_mm=None if eddy_mm is None else round(float(eddy_mm.max()), 3),
            outlier_slices=int(parsed.outlier_slices.sum()),
            misfit_before=self._misfit(series),
            misfit_after=self._misfit(Series(corrected, series.affine, series.bvals, bvecs_ras)),
            susceptibility="corrected" if self._has_topup() else self.inputs.why_no_topup,
        )
        self._results["facts"] = write_facts(folder, facts)

    def _misfit(self, series: Series) -> float | None:
        """Return the misfit of the tensor on one shell in the brain."""
        mask, _ = read_mask(self.inputs.mask)
        return misfit_of_series(series, mask, self.inputs.b0_threshold)


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
