"""Write the files of derivatives that are more than a copy: samples, gradients, transforms."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import gradient_files, sidecar
from bids_gevnet.bids.writing import SCANNER, write_image, write_json, write_text
from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl
from bids_gevnet.facts import SphereFacts
from bids_gevnet.interfaces.series import read_image, read_mask
from bids_gevnet.interfaces.sphere import SAMPLE_STEP
from bids_gevnet.sphere.resampling import distinct_directions

FloatArray = npt.NDArray[np.float64]

_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_CONFOUNDS = {
    "framewise_displacement": {
        "Description": "Sum of absolute changes of the six motion parameters since the volume "
        "before, rotations as arcs on a sphere of 50 mm",
        "Units": "mm",
    },
    **{
        f"trans_{axis}": {
            "Description": f"Translation along {axis} (RAS, about the centre of the volume) that "
            "leads from the volume to the reference",
            "Units": "mm",
        }
        for axis in "xyz"
    },
    **{
        f"rot_{axis}": {
            "Description": f"Rotation about {axis} (RAS, counterclockwise) that leads from the "
            "volume to the reference",
            "Units": "rad",
        }
        for axis in "xyz"
    },
    "outlier_slices": {"Description": "Slices replaced by their prediction"},
    "eddy_displacement": {
        "Description": "Displacement by eddy currents, root mean square over a ball of 50 mm",
        "Units": "mm",
    },
}


def image_centre(mask: str) -> FloatArray:
    """Return the centre of an image in world RAS mm (3,), for a transform to turn about."""
    data, affine = read_image(mask)
    middle = (np.array(data.shape[:3]) - 1) / 2
    return np.asarray(affine[:3, :3] @ middle + affine[:3, 3])


def to_itk_text(to_template: FloatArray, centre: FloatArray) -> str:
    r"""Write an affine as ITK text, as `antsApplyTransforms` takes it.

    ITK resamples by asking where a point of the output lies in the input, in LPS: the file
    holds the inverse of `to_template`, (4, 4) in world RAS mm. With the fixed parameters c it
    means :math:`x \mapsto A (x - c) + c + t`; c is `centre`, (3,) in world RAS mm, so that t
    is how far the middle of the template moves.
    """
    inverse = _LPS @ np.linalg.inv(to_template) @ _LPS
    matrix, fixed = inverse[:3, :3], _LPS[:3, :3] @ centre
    moved = matrix @ fixed + inverse[:3, 3] - fixed
    numbers = " ".join(f"{value:.12g}" for value in (*matrix.ravel(), *moved))
    return (
        "#Insight Transform File V1.0\n#Transform 0\n"
        "Transform: AffineTransform_double_3_3\n"
        f"Parameters: {numbers}\n"
        f"FixedParameters: {' '.join(f'{value:.12g}' for value in fixed)}\n"
    )


def describe_samples(sphere: SphereFacts) -> dict[str, Any]:
    """Say in a sidecar how samples are ordered, and in which frame their directions are."""
    several = len(sphere.b_values) > 1
    return {
        "Description": "A b0 that is 1 in the brain, then the diffusion signal as a fraction of "
        "b0 at the distinct HEALPix points: of each opposite pair the pixel with the smaller "
        "index, in increasing order" + (", for one shell after the other" if several else ""),
        "Nside": sphere.nside,
        "Ordering": "NESTED",
        "AntipodalPairs": True,
        "DirectionsFrame": "world RAS of the template: x to the right, y anterior, z superior; "
        "HEALPix colatitude is measured from z, longitude from x towards y. The bvec file has "
        "the same directions along the axes of the image",
        "Kernel": f"{sphere.kernel}, smoothing {sphere.smoothing}",
        "BValue": sphere.b_values if several else next(iter(sphere.b_values), None),
        "SkullStripped": True,
    }


def write_samples(
    target: Path,
    source: str,
    mask: str,
    about: dict[str, Any],
    code: int = SCANNER,
    *,
    nside: int,
    b_values: Sequence[float],
) -> None:
    """Write samples on the sphere as an ordinary diffusion series that any program opens.

    They are fractions of b0, so the b0 that goes before them is 1 in the brain.

    Parameters
    ----------
    target : Path
        The image; the gradient table and the sidecar are put beside it.
    source : str
        (X, Y, Z, k 6 nside^2) image of samples, shell after shell, directions in world RAS.
    mask : str
        (X, Y, Z) image of the brain.
    about : dict
        Content of the sidecar.
    code : int
        What the world is.
    nside : int
    b_values : sequence of float
        Of the k shells.
    """
    samples, affine = read_image(source)
    brain, _ = read_mask(mask)
    directions = distinct_directions(nside)
    bvals = np.array([0.0, *np.repeat(b_values, len(directions))])
    bvecs = np.vstack([np.zeros(3), *[directions] * len(b_values)])
    write_gradient_files(target, bvals, bvecs, affine)
    data = np.concatenate([brain[..., None].astype(np.float32), samples], axis=-1)
    write_image(target, data, affine, scale=SAMPLE_STEP, code=code)
    write_json(sidecar(target), about)


def write_gradient_files(
    target: Path, bvals: FloatArray, bvecs_ras: FloatArray, affine: FloatArray
) -> None:
    """Write the bval and bvec files of an image, directions along its axes as FSL has them."""
    bval, bvec = gradient_files(target)
    fsl = bvecs_ras_to_fsl(bvecs_ras, affine) + 0.0  # no negative zeros
    rows = "\n".join(" ".join(f"{value:.6f}" for value in row) for row in fsl.T)
    write_text(bvec, rows + "\n")
    write_text(bval, " ".join(f"{value:g}" for value in bvals) + "\n")


def write_confound_files(table: Path, source: str) -> None:
    """Write the table of confounds, and a sidecar that says what its columns are."""
    text = Path(source).read_text(encoding="utf-8")
    columns = text.split("\n", 1)[0].split("\t")
    write_text(table, text)
    write_json(sidecar(table), {column: _CONFOUNDS[column] for column in columns})
