"""The original MNIST files, and their images on an icosphere, with one rotation per image."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.ndimage import gaussian_filter

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.icosphere_grid import icosphere
from mnist.stereographic import project_images, random_rotations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
SOURCES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/ and "
    "https://storage.googleapis.com/cvdf-datasets/mnist/"
)
SIDE = 28
ROTATION_SEED = 20
"""The rotations belong to the data: they are the same in every training."""


def read_idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read an array from an idx file of bytes, gzipped or not."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            break
    else:
        raise InputError(
            expected=f"the MNIST file {name}.gz or {name}",
            found=f"neither in {folder}",
            remedy=f"give --data a folder with the four standard files, which are at {SOURCES}",
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(path, str(error)) from None
    # Big-endian: two zero bytes, 8 for unsigned bytes, number of axes; then the length of each.
    if content[:3] != b"\0\0\x08":
        raise _broken(path, f"a file that begins with {content[:3].hex(' ') or 'nothing'}")
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if len(values) != shape.prod():
        raise _broken(path, f"{len(values)} values for the shape {tuple(shape.tolist())}")
    return values.reshape(shape)


def _broken(path: Path, found: str) -> InputError:
    return InputError(
        expected=f"an idx file of unsigned bytes in {path}",
        found=found,
        remedy=f"fetch it again; the standard files are at {SOURCES}",
    )


@dataclass(frozen=True, kw_only=True)
class SphericalDigits:
    """Images of one split on the sphere, projected when they are asked for.

    Parameters
    ----------
    images : (n, 28, 28) array of uint8
    labels : (n,) array of uint8
    level : int
        Of the icosphere.
    edge : float
        Degrees from the pole to the middles of the image's sides.
    blur : float
        Standard deviation of the Gaussian, in pixels, that takes away what lies between points.
    seed : tuple of int
        Of the rotations.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    level: int
    edge: float
    blur: float
    seed: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, n: int) -> SphericalDigits:
        """Give the first n images; each keeps its rotation."""
        return replace(self, images=self.images[:n], labels=self.labels[:n])

    @cached_property
    def rotations(self) -> NDArray[np.float64]:
        """One rotation per image: (n, 3, 3) array."""
        return random_rotations(len(self), self.seed)

    def signals(self, which: Sequence[int], *, rotated: bool) -> NDArray[np.float32]:
        """Sample some images on the icosphere, values from 0 to 2: (n, 1, n_points) array.

        Strokes cover a fifth of the image: a scale of 2 has about unit variance on it, which is
        what products of responses want.
        """
        chosen = np.asarray(which)
        images = self.images[chosen].astype(np.float32) / 127.5
        signals = project_images(
            gaussian_filter(images, (0, self.blur, self.blur), mode="constant"),
            icosphere(self.level).points,
            edge=self.edge,
            rotations=self.rotations[chosen] if rotated else None,
        )
        return signals[:, None]


def load_digits(
    folder: Path, split: str, *, level: int, edge: float, blur: float
) -> SphericalDigits:
    """Read one split of the standard files, "train" or "test"."""
    images, labels = (read_idx(folder, name) for name in FILES[split])
    if images.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1 or labels.max(initial=0) > 9:
        raise InputError(
            expected=f"images of {SIDE} x {SIDE} pixels and as many labels from 0 to 9",
            found=f"shapes {images.shape} and {labels.shape} in {folder}",
            remedy=f"fetch the standard files again, from {SOURCES}",
        )
    seed = (ROTATION_SEED, sorted(FILES).index(split))
    return SphericalDigits(
        images=images, labels=labels, level=level, edge=edge, blur=blur, seed=seed
    )


def fingerprint(digits: SphericalDigits) -> str:
    """Short digest of images and labels."""
    return hashlib.sha256(digits.images.tobytes() + digits.labels.tobytes()).hexdigest()[:16]
