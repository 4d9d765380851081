"""The picture of glyphs shows white matter, also where no fibres cross."""

import base64
import io

import nibabel as nib
import numpy as np
from PIL import Image

from bids_gevnet.bids.derivatives import SAMPLES
from bids_gevnet.report.scan_files import find_scans
from bids_gevnet.report.subject.crossings import show_crossings
from bids_gevnet.report.subject.sections import read_template_space
from bids_gevnet.sphere.resampling import distinct_directions


def fibre_along(axis):
    """S/b0 at b = 1000 s/mm² of one fibre, on the sphere."""
    cosine = distinct_directions(4) @ axis
    return np.exp(-1.0 * (0.3 + 1.4 * cosine**2)).astype(np.float32)


def fill_with(scan, signal):
    """Give every voxel of a scan's brain the same samples."""
    path = scan.standard(SAMPLES)
    image = nib.load(path)
    data = np.asarray(image.dataobj)
    filled = np.where((data != 0).any(axis=3)[..., None], signal, 0).astype(np.float32)
    nib.save(nib.Nifti1Image(filled, image.affine), path)


def glyph_pixels(view):
    picture = base64.b64decode(view.field.by_direction.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(picture))).astype(float)


def test_one_fibre_everywhere_is_drawn_in_the_slice_of_most_white_matter(derivatives):
    (scan,) = find_scans(derivatives, "01")
    fill_with(scan, fibre_along([0.96, 0.16, 0.23]))
    view = show_crossings(scan, read_template_space(scan, 50.0))
    assert view.crossing == 0
    assert view.voxels > 0
    red, green, blue = glyph_pixels(view).reshape(-1, 3).sum(axis=0)
    assert red > max(green, blue) > 0  # and not an empty picture


def test_two_fibres_everywhere_are_counted(derivatives):
    (scan,) = find_scans(derivatives, "01")
    two = (fibre_along([1.0, 0.0, 0.0]) + fibre_along([0.0, 0.0, 1.0])) / 2
    fill_with(scan, two)
    view = show_crossings(scan, read_template_space(scan, 50.0))
    assert view.crossing > 0.5 * view.voxels
