r"""Linear registration with ANTs, on arrays with world RAS affines.

ITK works in LPS: :math:`x_\mathrm{LPS} = L x_\mathrm{RAS}`, L = diag(-1, -1, 1, 1). It returns the
map from fixed to moving points, :math:`x_m = C(x_f - c) + c + t`; this module returns its inverse
in RAS, ``moving_to_fixed``: where a point of the moving image lies in the fixed one.

The result is the same on every run: the seed is fixed, and with one thread sums are taken in one
order. A rigid start is written into the header of the moving image; one with shear and the answer
pass through a temporary folder that is gone afterwards.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_SEED = 20


@dataclass(frozen=True)
class Schedule:
    """How a registration runs, from coarse to fine.

    Attributes
    ----------
    kind : str
        "Rigid" or "Affine".
    metric : str
        "MI", "CC", "GC" or "MeanSquares"; ``parameter`` is its number of bins or radius.
    sampling : float
        Fraction of voxels the metric looks at; 1 takes all.
    iterations, shrink, smoothing_mm : tuple
        One entry per level.
    step : float
        Gradient step.
    """

    kind: str
    metric: str
    parameter: int
    sampling: float
    iterations: tuple[int, ...]
    shrink: tuple[int, ...]
    smoothing_mm: tuple[float, ...]
    step: float = 0.1
    tolerance: float = 1e-6
    window: int = 10


def load_ants() -> Any:
    """Import ANTs with one thread, unless the user asks for more: the only way to import it here.

    ITK looks for its number of threads once, when it first works on an image. With several, the
    sums of a metric depend on their order, and a transform on the run, by hundredths of a mm.
    """
    os.environ.setdefault("ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "1")
    import ants  # noqa: TID251 - here

    return ants


def to_ants_image(data: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    """Wrap an array as an ANTs image with the right geometry.

    Parameters
    ----------
    data : (X, Y, Z) array
    affine : (4, 4) array
        Voxel to world RAS.

    Returns
    -------
    image : ants.ANTsImage
    """
    ants = load_ants()
    lps = _LPS @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    # ANTs takes masks by the address of their bytes: anything but bytes would be misread.
    stored = np.uint8 if data.dtype == np.bool_ else np.float32
    return ants.from_numpy(
        np.ascontiguousarray(data, dtype=stored),
        origin=lps[:3, 3].tolist(),
        spacing=spacing.tolist(),
        direction=lps[:3, :3] / spacing,
    )


def n4_field(
    contrast: NDArray[Any], affine: NDArray[np.float64], inside: NDArray[np.bool_], **options: Any
) -> NDArray[np.float32]:
    """Estimate the bias field of an image with N4, one positive number per voxel to divide by.

    Parameters
    ----------
    contrast : (X, Y, Z) array
    affine : (4, 4) array
    inside : (X, Y, Z) array of bool
        Where it is estimated.
    **options
        Of `ants.n4_bias_field_correction`.
    """
    ants = load_ants()
    field = ants.n4_bias_field_correction(
        to_ants_image(contrast, affine),
        # N4 reads the numbers of its mask as floats: bytes would be taken for others in memory.
        mask=to_ants_image(inside.astype(np.float32), affine),
        return_bias_field=True,
        **options,
    )
    return np.asarray(field.numpy(), np.float32)


def read_itk_matrix(path: str | Path) -> NDArray[np.float64]:
    """Read an ITK matrix transform as a 4 x 4 RAS matrix from fixed to moving points."""
    ants = load_ants()
    transform = ants.read_transform(str(path))
    parameters = np.asarray(transform.parameters, dtype=np.float64)
    centre = np.asarray(transform.fixed_parameters, dtype=np.float64)
    lps = np.eye(4)
    lps[:3, :3] = parameters[:9].reshape(3, 3)
    lps[:3, 3] = parameters[9:] + centre - lps[:3, :3] @ centre
    return np.asarray(_LPS @ lps @ _LPS)


def apply_itk_transform(path: str | Path, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take points of the fixed image to the moving one by an ITK transform of any kind.

    Parameters
    ----------
    path : str or Path
        Matrix, displacement field or composite (``.h5``), as antsApplyTransforms takes it; a
        broken file ends the process, so check it before.
    points : (n, 3) array
        World RAS, mm, in the fixed image: where it would resample to.

    Returns
    -------
    points : (n, 3) array
        World RAS, mm, in the moving image.
    """
    import pandas as pd

    lps = np.diag(_LPS)[:3]
    ants = load_ants()
    table = pd.DataFrame(points * lps, columns=list("xyz"))
    moved = ants.apply_transforms_to_points(3, table, [str(path)])
    return np.asarray(moved[["x", "y", "z"]].to_numpy(np.float64) * lps)


def write_itk_matrix(path: str | Path, fixed_to_moving: NDArray[np.float64]) -> None:
    """Write a 4 x 4 RAS matrix from fixed to moving points as an ITK transform."""
    ants = load_ants()
    lps = _LPS @ fixed_to_moving @ _LPS
    transform = ants.new_ants_transform(
        precision="float",
        dimension=3,
        transform_type="AffineTransform",
        parameters=[*lps[:3, :3].ravel().tolist(), *lps[:3, 3].tolist()],
    )
    ants.write_transform(transform, str(path))


def register(
    fixed: Any,
    moving: NDArray[Any],
    moving_affine: NDArray[np.float64],
    schedule: Schedule,
    *,
    start: NDArray[np.float64] | None = None,
    affine_start: NDArray[np.float64] | None = None,
    fixed_mask: Any = None,
    moving_mask: Any = None,
) -> NDArray[np.float64]:
    """Register one volume to another.

    Parameters
    ----------
    fixed : ants.ANTsImage
        From :func:`to_ants_image`; made once for many moving volumes.
    moving : (X, Y, Z) array
    moving_affine : (4, 4) array
        Voxel to world RAS.
    schedule : Schedule
    start : (4, 4) array, optional
        First guess of ``moving_to_fixed``, without shear.
    affine_start : (4, 4) array, optional
        The same with shear, which no header can hold.
    fixed_mask, moving_mask : ants.ANTsImage, optional
        Where the metric looks. Points beyond the field of view of the moving image never count.

    Returns
    -------
    moving_to_fixed : (4, 4) array
        World RAS, mm.
    """
    ants = load_ants()
    pointer = ants.internal.get_pointer_string
    guess = np.eye(4) if start is None else start
    image = to_ants_image(moving, guess @ moving_affine)
    with tempfile.TemporaryDirectory(prefix="bids_gevnet-") as folder:
        prefix = str(Path(folder) / "reg")
        # Always a regular sample, even of all points: ANTs' dense mode visits the whole volume,
        # mask or not, and takes five to ten times as long.
        metric = (
            f"{schedule.metric}[{pointer(fixed)},{pointer(image)},1,"
            f"{schedule.parameter},Regular,{schedule.sampling:g}]"
        )
        initial = "identity"
        if affine_start is not None:
            initial = str(Path(folder) / "start.mat")
            write_itk_matrix(initial, np.asarray(np.linalg.inv(affine_start)))
        arguments = [
            *("-d", "3", "-r", initial, "-m", metric),
            *("-t", f"{schedule.kind}[{schedule.step}]"),
            *("-c", f"[{_levels(schedule.iterations)},{schedule.tolerance},{schedule.window}]"),
            *("-f", _levels(schedule.shrink), "-s", f"{_levels(schedule.smoothing_mm)}mm"),
            *("-u", "0", "-z", "1", "--float", "1", "--random-seed", str(_SEED)),
            *("-o", prefix, "-v", "0"),
        ]
        if fixed_mask is not None:
            other = "NA" if moving_mask is None else pointer(moving_mask)
            arguments += ["-x", f"[{pointer(fixed_mask)},{other}]"]
        try:
            ants.registration(arguments, None)
        except RuntimeError as error:
            raise ParticipantError(
                expected="two volumes that ANTs can register",
                found=str(error),
                remedy="look at the volumes; a wrong header or an empty volume is likely",
            ) from error
        fixed_to_moving = read_itk_matrix(f"{prefix}0GenericAffine.mat")
    return np.asarray(np.linalg.inv(fixed_to_moving) @ guess)


def _levels(values: tuple[float, ...]) -> str:
    return "x".join(f"{value:g}" for value in values)
