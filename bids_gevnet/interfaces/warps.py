"""Read, write and apply the displacement of every volume: rigid transforms or full warps.

Rigid corrections leave a stack of transforms (``.npy``: volume to reference, world mm), the
model-based one also distortions (``.npz``: one `Warp` per run). Both are applied together with
the next resampling, so that raw data are interpolated once.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bids_gevnet.dwi.interpolation import resample_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.dwi.model_corrector.warp import Warp
    from bids_gevnet.interfaces.series import Series

FloatArray = npt.NDArray[np.float64]


def save_warps(path: Path, warps: "Sequence[Warp]") -> Path:
    """Write the warps of the runs of a scan."""
    arrays: dict[str, npt.NDArray[np.float64] | npt.NDArray[np.float32]] = {}
    for number, warp in enumerate(warps):
        arrays[f"motion_{number}"] = warp.motion
        arrays[f"eddy_{number}"] = warp.eddy
        arrays[f"link_{number}"] = warp.link
        arrays[f"axis_{number}"] = np.array(float(warp.axis))
        if warp.field is not None:
            arrays[f"field_{number}"] = warp.field
    np.savez(path, allow_pickle=False, **arrays)
    return path


def load_placements(path: str | Path) -> "list[FloatArray | Warp]":
    """Read what a correction left: one stack of transforms, or one warp per run."""
    loaded = np.load(path)
    if isinstance(loaded, np.ndarray):
        return [loaded]
    from bids_gevnet.dwi.model_corrector.warp import Warp

    with loaded:
        count = sum(name.startswith("motion_") for name in loaded.files)
        return [
            Warp(
                loaded[f"motion_{number}"],
                loaded[f"eddy_{number}"],
                int(loaded[f"axis_{number}"]),
                loaded[f"field_{number}"] if f"field_{number}" in loaded.files else None,
                loaded[f"link_{number}"],
            )
            for number in range(count)
        ]


def save_placements(folder: Path, placements: "Sequence[FloatArray | Warp]") -> Path:
    """Write the placements of all runs of a scan into one file."""
    from bids_gevnet.dwi.model_corrector.warp import Warp, still_warp

    if not any(isinstance(placement, Warp) for placement in placements):
        path = folder / "transforms.npy"
        np.save(path, np.concatenate([p for p in placements if isinstance(p, np.ndarray)]))
        return path
    warps = [
        p
        if isinstance(p, Warp)
        else replace(still_warp(len(p), 1), motion=np.asarray(np.linalg.inv(p)))
        for p in placements
    ]
    return save_warps(folder / "warps.npz", warps)


def link_run(placement: "FloatArray | Warp", link: FloatArray) -> "FloatArray | Warp":
    """Compose the placement of a run with a further rigid transform, world mm."""
    if isinstance(placement, np.ndarray):
        return np.asarray(link @ placement)
    return replace(placement, link=np.asarray(link @ placement.link))


def is_still(placement: "FloatArray | Warp") -> bool:
    """Tell whether every volume stays where it is."""
    return isinstance(placement, np.ndarray) and np.array_equal(
        placement, np.broadcast_to(np.eye(4), placement.shape)
    )


def resample_placed(
    series: "Series",
    placements: "Sequence[FloatArray | Warp]",
    to_target: FloatArray,
    target_shape: tuple[int, int, int],
    target_affine: FloatArray,
    *,
    n_threads: int = 1,
) -> npt.NDArray[np.float32]:
    """Interpolate all volumes once, through their placement and on to a grid.

    Parameters
    ----------
    series : Series
        Volumes of all runs, one after the other.
    placements : sequence of (n, 4, 4) array or Warp
        Of the runs; together they have as many volumes as the series.
    to_target : (4, 4) array
        World of the scan to world of the target.
    target_shape : (int, int, int)
    target_affine : (4, 4) array
    n_threads : int

    Returns
    -------
    resampled : (X', Y', Z', n) array of float32
    """
    result = np.empty((*target_shape, len(series.bvals)), np.float32)
    start = 0
    for placement in placements:
        count = len(placement) if isinstance(placement, np.ndarray) else len(placement.motion)
        data, out = series.data[..., start : start + count], result[..., start : start + count]
        start += count
        if isinstance(placement, np.ndarray):
            resample_series(
                data,
                series.affine,
                to_target @ placement,
                target_shape,
                target_affine,
                n_threads=n_threads,
                out=out,
            )
            continue
        from bids_gevnet.dwi.model_corrector.warp import resample_warped

        resample_warped(
            data,
            series.affine,
            placement,
            to_target,
            target_shape,
            target_affine,
            n_threads=n_threads,
            out=out,
        )
    return result
