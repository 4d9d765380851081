"""FSL's topup, eddy and bet: where they are, how they are called, what they leave behind.

Nothing here runs a program. Names and arguments follow FSL 6; ``eddy_parameters`` has one row
per volume: translation x, y, z in mm, rotation about x, y, z in radians, then the eddy field.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_EDDY_NAME = re.compile(r"^eddy(?:_(?P<build>cpu|openmp|cuda(?P<cuda>\d+(?:\.\d+)?)?))?$")
TOPUP_STEP = 2
"""topup's default schedule halves the grid, so every axis must have an even number of voxels."""


@dataclass(frozen=True)
class EddyBinary:
    """An eddy executable that was found.

    Attributes
    ----------
    path : Path
    uses_gpu : bool
        GPU builds take one CPU thread whatever they are offered.
    """

    path: Path
    uses_gpu: bool

    def threads(self, offered: int) -> int:
        """Return the number of CPU threads to ask for."""
        return 1 if self.uses_gpu else max(1, offered)


def _executables(search_path: str) -> list[Path]:
    found = []
    for folder in filter(None, search_path.split(os.pathsep)):
        try:
            entries = sorted(Path(folder).iterdir())
        except OSError:
            continue  # PATH often names folders that do not exist or cannot be read
        found += [entry for entry in entries if entry.is_file() and os.access(entry, os.X_OK)]
    return found


def _cuda_version(path: Path) -> tuple[int, ...]:
    digits = re.findall(r"\d+", path.name)
    return tuple(map(int, digits))


def find_eddy(search_path: str, *, gpu: bool = False) -> EddyBinary | None:
    """Find eddy on a PATH, whatever it is called there.

    Parameters
    ----------
    search_path : str
        The value of PATH.
    gpu : bool
        Whether a GPU may be used. Without one CUDA builds fail and are not considered.

    Returns
    -------
    binary : EddyBinary or None
        A GPU build (newest CUDA first) if allowed and present; else eddy_cpu, eddy_openmp, eddy.
    """
    cpu: dict[str, Path] = {}
    cuda: list[Path] = []
    for path in _executables(search_path):
        match = _EDDY_NAME.match(path.name)
        if match is None:
            continue
        if (match["build"] or "").startswith("cuda"):
            cuda.append(path)
        else:
            cpu.setdefault(path.name, path)
    if gpu and cuda:
        return EddyBinary(max(cuda, key=_cuda_version), uses_gpu=True)
    # Plain `eddy` comes last: in recent FSL it is a script that may pick a CUDA build itself.
    for name in ("eddy_cpu", "eddy_openmp", "eddy"):
        if name in cpu:
            return EddyBinary(cpu[name], uses_gpu=False)
    return None


def find_tool(name: str, search_path: str) -> Path | None:
    """Find another FSL program (topup, bet, ...) on a PATH."""
    matches = (path for path in _executables(search_path) if path.name == name)
    return next(matches, None)


def fsl_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which FSL writes .nii.gz; Nipype otherwise sets plain NIFTI."""
    return {**environment, "FSLOUTPUTTYPE": "NIFTI_GZ"}


def topup_arguments(
    program: Path, b0s: Path, acqp: Path, out_base: Path, shape: Sequence[int], *, threads: int = 1
) -> list[str]:
    """Return the command line of topup.

    Parameters
    ----------
    program, b0s, acqp, out_base : Path
        The executable, the 4D file of b0s, its acquisition parameters and the output prefix.
    shape : sequence of int
        Grid of the b0s: with an odd axis the schedule without subsampling is needed.
    threads : int

    Returns
    -------
    arguments : list of str
    """
    odd = any(size % TOPUP_STEP for size in shape[:3])
    arguments = [
        str(program),
        f"--imain={b0s}",
        f"--datain={acqp}",
        f"--config={'b02b0_1.cnf' if odd else 'b02b0.cnf'}",
        f"--out={out_base}",
        f"--fout={out_base}_fieldmap",
        f"--iout={out_base}_unwarped",
    ]
    return [*arguments, f"--nthr={threads}"] if threads > 1 else arguments


def eddy_arguments(
    binary: EddyBinary,
    *,
    data: Path,
    mask: Path,
    bvals: Path,
    bvecs: Path,
    acqp: Path,
    index: Path,
    out_base: Path,
    topup_base: Path | None = None,
    threads: int = 1,
    replace_outliers: bool = True,
    is_shelled: bool = True,
    seed: int = 20,
) -> list[str]:
    """Return the command line of eddy.

    Parameters
    ----------
    binary : EddyBinary
    data, mask, bvals, bvecs, acqp, index, out_base : Path
        Inputs, and the prefix of all outputs.
    topup_base : Path, optional
        Prefix given to topup, when it ran.
    threads : int
        Offered; GPU builds take one.
    replace_outliers : bool
        Replace slices that lost signal by their prediction.
    is_shelled : bool
        Skip eddy's own test for shells, which refuses jittered b-values.
    seed : int
        Fixes the voxels that the Gaussian process is trained on: same result on every run.

    Returns
    -------
    arguments : list of str
    """
    arguments = [
        str(binary.path),
        *(f"--imain={data}", f"--mask={mask}", f"--bvals={bvals}", f"--bvecs={bvecs}"),
        *(f"--acqp={acqp}", f"--index={index}", f"--out={out_base}", f"--initrand={seed}"),
    ]
    if topup_base is not None:
        arguments.append(f"--topup={topup_base}")
    if replace_outliers:
        arguments.append("--repol")
    if is_shelled:
        arguments.append("--data_is_shelled")
    if (count := binary.threads(threads)) > 1:
        arguments.append(f"--nthr={count}")
    return arguments


def bet_arguments(
    program: Path, b0: Path, out_base: Path, *, fractional_intensity: float = 0.3
) -> list[str]:
    """Return the command line of bet for one b0 volume; bet on a 4D series differs by version."""
    return [str(program), str(b0), str(out_base), "-m", "-n", "-f", f"{fractional_intensity:g}"]


@dataclass(frozen=True)
class EddyOutput:
    """What eddy says about motion and outliers.

    Attributes
    ----------
    translations_mm, rotations_rad : (n, 3) array
    bvecs_fsl : (n, 3) array
        Rotated directions in the axes of the bvec file.
    outlier_slices : (n,) array of int
        Replaced slices per volume.
    """

    translations_mm: NDArray[np.float64]
    rotations_rad: NDArray[np.float64]
    bvecs_fsl: NDArray[np.float64]
    outlier_slices: NDArray[np.intp]


def _numbers(text: str, what: str) -> NDArray[np.float64]:
    try:
        rows = [
            [float(word) for word in line.split()] for line in text.splitlines() if line.strip()
        ]
        table = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise ParticipantError(
            expected=f"a table of numbers in {what}",
            found=str(error),
            remedy="look at eddy's log; it may have stopped early",
        ) from error
    return np.atleast_2d(table)


def parse_eddy(
    parameters: str, rotated_bvecs: str, outlier_map: str | None, n_volumes: int
) -> EddyOutput:
    """Read eddy's text outputs.

    Parameters
    ----------
    parameters : str
        Content of ``<out>.eddy_parameters``.
    rotated_bvecs : str
        Content of ``<out>.eddy_rotated_bvecs``.
    outlier_map : str, optional
        Content of ``<out>.eddy_outlier_map``: a heading, then a row of 0 and 1 per volume.
    n_volumes : int

    Returns
    -------
    output : EddyOutput
    """
    motion = _numbers(parameters, "eddy_parameters")
    bvecs = _numbers(rotated_bvecs, "eddy_rotated_bvecs")
    outliers = np.zeros(n_volumes, dtype=np.intp)
    if outlier_map is not None:
        flags = _numbers(outlier_map.partition("\n")[2], "eddy_outlier_map")
        outliers = np.sum(flags != 0, axis=1, dtype=np.intp)
    shapes = (len(motion), bvecs.shape, len(outliers))
    if motion.shape[1] < 6 or shapes != (n_volumes, (3, n_volumes), n_volumes):
        raise ParticipantError(
            expected=f"eddy outputs for {n_volumes} volumes",
            found=f"parameters {motion.shape}, rotated bvecs {bvecs.shape}, "
            f"outliers of {len(outliers)}",
            remedy="look at eddy's log; it may have stopped early",
        )
    return EddyOutput(motion[:, :3], motion[:, 3:6], bvecs.T, outliers)
