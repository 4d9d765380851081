"""Read the files of samples: which of their volumes are samples and which is the b0."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import gradient_files
from bids_gevnet.bids.gradient_files import read_bval


def sample_volumes(image: Path, n_volumes: int) -> npt.NDArray[np.intp]:
    """Return the numbers of the volumes that are samples on the sphere: all but the b0.

    Parameters
    ----------
    image : Path
        A file of samples; without b-values beside it every volume is one.
    n_volumes : int
    """
    bval, _ = gradient_files(image)
    if not bval.is_file():
        return np.arange(n_volumes)
    return np.flatnonzero(read_bval(bval) > 0)
