"""FSL's topup, eddy and bet: where they are, how they are called, what they leave behind.

Nothing here runs a program. Options differ between releases of FSL 6, so those that are given
follow from the program's own help text. ``eddy_parameters`` has one row per volume: translation
x, y, z in mm, rotation about x, y, z in radians, then the eddy field.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.motion import HEAD_RADIUS_MM
from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_EDDY_NAME = re.compile(r"^eddy(?:_(?P<build>cpu|openmp|cuda(?P<cuda>\d+(?:\.\d+)?)?))?$")
_OPTION = re.compile(r"(?<![\w-])--([A-Za-z]\w*)")
_SUBCOMMAND = re.compile(r"\beddy\S*\s+diffusion\b")
TOPUP_STEP = 2
"""topup's default schedule halves the grid, so every axis must have an even number of voxels."""

WITHOUT_SUBSAMPLING = "b02b0_1.cnf"
"""Schedule of topup for odd grids; FSL 6.0.0 does not have it yet."""

HALF_SPHERE = 0.25
"""Length of the mean direction, half-way between a whole sphere (0) and a half (0.5). A table of
few directions with random signs may exceed it; a linear second level suits those as well."""


@dataclass(frozen=True)
class ProgramOptions:
    """What a program says that it can do.

    Attributes
    ----------
    names : frozenset of str
        Names of its long options, without dashes; empty where its help text has none.
    subcommand : str
        First argument that it wants; empty for none.
    """

    names: frozenset[str]
    subcommand: str = ""

    def has(self, name: str) -> bool:
        """Tell whether the program has an option."""
        return name in self.names

    @property
    def subcommands(self) -> list[str]:
        """The first arguments after the program's name."""
        return [self.subcommand] if self.subcommand else []


def wants_subcommand(help_text: str) -> bool:
    """Tell from the help text of eddy whether it wants `diffusion` as its first argument.

    Examples
    --------
    >>> wants_subcommand("Usage: eddy --monsoon  --imain ...")
    False
    >>> wants_subcommand("Usage: eddy diffusion --help or eddy fmri --help")
    True
    """
    has_images = "imain" in _OPTION.findall(help_text)
    return bool(_SUBCOMMAND.search(help_text)) or (
        not has_images and re.search(r"\bdiffusion\b", help_text) is not None
    )


def parse_help(help_text: str, subcommand: str = "") -> ProgramOptions:
    r"""Read the names of long options from a help text.

    Examples
    --------
    >>> sorted(parse_help("  --imain\tImages\n  -v,--verbose\n  --nthr=<n>").names)
    ['imain', 'nthr', 'verbose']
    """
    return ProgramOptions(frozenset(_OPTION.findall(help_text)), subcommand)


def covers_half_a_sphere(bvecs: NDArray[np.floating[Any]], *, limit: float = HALF_SPHERE) -> bool:
    r"""Tell whether directions lie on one side of the sphere.

    FSL's guide asks for a linear second level (``--slm=linear``) then: eddy fields are odd in g,
    and without opposite directions their mean cannot be told from motion. Uniform directions have
    :math:`|\langle g \rangle| = 0` on a whole sphere and 1/2 on a half.

    Parameters
    ----------
    bvecs : (n, 3) array
        Directions of one shell, in any axes; zero vectors do not count.
    limit : float
        Length of the mean direction above which they are one-sided.
    """
    lengths = np.linalg.norm(bvecs, axis=1)
    unit = bvecs[lengths > 0] / lengths[lengths > 0, None]
    return len(unit) > 0 and float(np.linalg.norm(unit.mean(axis=0))) > limit


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


def schedule_folder(environment: Mapping[str, str], program: Path) -> Path:
    """Return the folder of topup's schedules: in FSLDIR, else beside the program's folder."""
    fsl = environment.get("FSLDIR")
    return (Path(fsl) if fsl else program.parent.parent) / "etc" / "flirtsch"


def topup_arguments(
    program: Path,
    b0s: Path,
    acqp: Path,
    out_base: Path,
    shape: Sequence[int],
    *,
    options: ProgramOptions,
    has_odd_schedule: bool = True,
    threads: int = 1,
) -> list[str]:
    """Return the command line of topup.

    Parameters
    ----------
    program, b0s, acqp, out_base : Path
        The executable, the 4D file of b0s, its acquisition parameters and the output prefix.
    shape : sequence of int
        Grid of the b0s: with an odd axis a schedule without subsampling is needed.
    options : ProgramOptions
        What this topup can do.
    has_odd_schedule : bool
        Whether this FSL has ``WITHOUT_SUBSAMPLING``; else the plain one is told not to subsample.
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
        f"--config={WITHOUT_SUBSAMPLING if odd and has_odd_schedule else 'b02b0.cnf'}",
        f"--out={out_base}",
        f"--fout={out_base}_fieldmap",
        f"--iout={out_base}_unwarped",
    ]
    if odd and not has_odd_schedule:
        arguments.append("--subsamp=1")
    if threads > 1 and options.has("nthr"):
        arguments.append(f"--nthr={threads}")
    return arguments


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
    options: ProgramOptions,
    topup_base: Path | None = None,
    threads: int = 1,
    linear_second_level: bool = False,
    seed: int = 20,
) -> list[str]:
    """Return the command line of eddy.

    Parameters
    ----------
    binary : EddyBinary
    data, mask, bvals, bvecs, acqp, index, out_base : Path
        Inputs, and the prefix of all outputs.
    options : ProgramOptions
        What this eddy can do. Outlier slices are replaced, eddy's own test for shells, which
        refuses jittered b-values, is skipped, and the seed is set where it can.
    topup_base : Path, optional
        Prefix given to topup, when it ran.
    threads : int
        Offered; GPU builds take one.
    linear_second_level : bool
        Model eddy fields as linear in the gradient, for one-sided schemes.
    seed : int
        Fixes the voxels that the Gaussian process is trained on: same result on every run.

    Returns
    -------
    arguments : list of str
    """
    arguments = [
        *(str(binary.path), *options.subcommands),
        *(f"--imain={data}", f"--mask={mask}", f"--bvals={bvals}", f"--bvecs={bvecs}"),
        *(f"--acqp={acqp}", f"--index={index}", f"--out={out_base}"),
    ]
    if topup_base is not None:
        arguments.append(f"--topup={topup_base}")
    count = binary.threads(threads)
    wanted = {
        "repol": "--repol",
        "data_is_shelled": "--data_is_shelled",
        "initrand": f"--initrand={seed}",
        "slm": "--slm=linear" if linear_second_level else "",
        "nthr": f"--nthr={count}" if count > 1 else "",
    }
    return [*arguments, *(word for name, word in wanted.items() if word and options.has(name))]


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
        As eddy writes them; `transforms` has the convention of this project.
    field_hz : (n, 10) array or None
        Quadratic eddy field: x, y, z, x², y², z², xy, xz, yz in mm from the centre, constant;
        None where eddy used another model.
    bvecs_fsl : (n, 3) array
        Rotated directions in the axes of the bvec file.
    outlier_slices : (n,) array of int
        Replaced slices per volume.
    """

    translations_mm: NDArray[np.float64]
    rotations_rad: NDArray[np.float64]
    field_hz: NDArray[np.float64] | None
    bvecs_fsl: NDArray[np.float64]
    outlier_slices: NDArray[np.intp]

    @property
    def transforms(self) -> NDArray[np.float64]:
        r"""Return the transforms from each volume to the reference, world RAS mm, (n, 4, 4).

        eddy's matrix :math:`R = R_x R_y R_z` leads from the reference to the volume, turns
        clockwise for positive angles, about the centre of the volume, and its x axis runs to the
        left. With :math:`F = \mathrm{diag}(-1, 1, 1)` ours is :math:`F R^{-1} F`, for a conformed
        image (RAS, origin in the centre).
        """
        from scipy.spatial.transform import Rotation

        flip = np.diag([-1.0, 1.0, 1.0])
        # Clockwise about x, y, z in turn, the last one first: intrinsic angles, negated.
        forward = Rotation.from_euler("XYZ", -self.rotations_rad).as_matrix()
        back = flip @ np.swapaxes(forward, 1, 2) @ flip
        result = np.tile(np.eye(4), (len(back), 1, 1))
        result[:, :3, :3] = back
        result[:, :3, 3] = -np.einsum("nij,nj->ni", back, self.translations_mm @ flip)
        return result

    def eddy_terms_mm(self, mm_per_hz: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the displacement by eddy currents in mm at 50 mm from the centre, up to sign.

        Parameters
        ----------
        mm_per_hz : (n,) array
            Displacement of each volume for a field of 1 Hz: readout time in seconds times the
            voxel size along the phase encoding in mm.

        Returns
        -------
        terms : (n, 10) array or None
            Constant, x, y, z, x², y², z², xy, xz, yz.
        """
        if self.field_hz is None:
            return None
        at_radius = HEAD_RADIUS_MM ** np.array([0, *[1] * 3, *[2] * 6])
        constant_first = np.roll(self.field_hz, 1, axis=1)
        return np.asarray(constant_first * at_radius * mm_per_hz[:, None])


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
    field = motion[:, 6:] if motion.shape[1] == 16 else None
    return EddyOutput(motion[:, :3], motion[:, 3:6], field, bvecs.T, outliers)
