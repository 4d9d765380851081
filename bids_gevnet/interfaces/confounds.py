"""Read and write the table of confounds: motion, eddy currents and outlier slices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from bids_gevnet.bids.writing import write_text
from bids_gevnet.dwi.motion import framewise_displacement

MOTION = ("trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z")


def write_confounds(
    path: Path,
    parameters: npt.NDArray[np.float64],
    outlier_slices: npt.NDArray[np.integer[Any]] | None = None,
    eddy_displacement: npt.NDArray[np.float64] | None = None,
    *,
    starts: Sequence[int] = (0,),
) -> Path:
    """Write motion, framewise displacement and outlier slices as BIDS writes time series.

    Parameters
    ----------
    path : Path
    parameters : (n, 6) array
        Translations in mm, rotations in radians.
    outlier_slices : (n,) array of int, optional
        Slices that were replaced by their prediction.
    eddy_displacement : (n,) array, optional
        By eddy currents, root mean square over the head, mm.
    starts : sequence of int
        First volume of each run. Nothing comes before it, and motion is told against the first b0
        of its own run: framewise displacement is not defined there.
    """
    table = pd.DataFrame(parameters, columns=list(MOTION))
    displacement = framewise_displacement(parameters)
    displacement[list(starts)] = np.nan
    table.insert(0, "framewise_displacement", displacement)
    if outlier_slices is not None:
        table["outlier_slices"] = outlier_slices
    if eddy_displacement is not None:
        table["eddy_displacement"] = eddy_displacement
    write_text(path, table.to_csv(sep="\t", index=False, na_rep="n/a", float_format="%.6f"))
    return path


def read_confounds(path: str | Path) -> pd.DataFrame:
    """Read a table that `write_confounds` wrote."""
    return pd.read_csv(path, sep="\t", na_values=["n/a"])
