"""Templates: files of a user, or those that TemplateFlow has on this machine.

A TemplateFlow template is a folder ``tpl-<name>`` in its home (``TEMPLATEFLOW_HOME``, or
``~/.cache/templateflow``). Only files that are there are used: the package would download what is
missing, which a cluster node cannot, and nobody has asked for.
"""

import os
import re
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.errors import InputError

_RESOLUTIONS = ("2", "1")
"""Names of resolutions in the order in which they are wanted: 2 mm is what registration uses."""

_SHIPPED_MM = 2
"""Resolution at which the shipped template is used; diffusion scans are no finer."""


@cache
def shipped_template() -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float64]]:
    """Load the template that nilearn ships, which needs no download.

    It is resampled, which takes half a second, and several stages of every scan need it: so it is
    kept for the next call.

    Returns
    -------
    image : (X, Y, Z) array
        T1-weighted; read-only, like the others.
    mask : (X, Y, Z) array of bool
        Its brain.
    affine : (4, 4) array
        Voxel to world.
    """
    from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

    image = load_mni152_template(resolution=_SHIPPED_MM)
    mask = load_mni152_brain_mask(resolution=_SHIPPED_MM)
    arrays = (
        np.array(image.dataobj, dtype=np.float32),
        np.asarray(mask.dataobj) > 0,
        np.array(image.affine, dtype=np.float64),
    )
    for array in arrays:
        array.flags.writeable = False
    return arrays


def template_label(path: Path) -> str:
    """Label of a template's space: what follows `tpl-` in its name, else its letters and digits.

    >>> template_label(Path("tpl-MNIPediatricAsym_cohort-1_T1w.nii.gz"))
    'MNIPediatricAsym'
    """
    named = re.match(r"tpl-([A-Za-z0-9]+)", path.name)
    return named.group(1) if named else re.sub(r"[^A-Za-z0-9]", "", path.name.split(".")[0])


def brain_mask_beside(path: Path) -> Path | None:
    """Return the brain mask that is named like a template, if there is one.

    `tpl-X_T1w.nii.gz` goes with `tpl-X_desc-brain_mask.nii.gz`.
    """
    mask = path.with_name(re.sub(r"_T1w(\.nii(\.gz)?)$", r"_desc-brain_mask\1", path.name))
    return mask if mask != path and mask.exists() else None


def templateflow_home() -> Path:
    """Folder in which TemplateFlow keeps its files."""
    stated = os.environ.get("TEMPLATEFLOW_HOME")
    return Path(stated) if stated else Path("~/.cache/templateflow").expanduser()


def find_template(name: str, home: Path | None = None) -> Path:
    """Return the T1-weighted image of a template that TemplateFlow has on this machine.

    Parameters
    ----------
    name : str
        For instance MNI152NLin2009cAsym.
    home : Path, optional
        TemplateFlow's folder, by default `templateflow_home()`.

    Raises
    ------
    InputError
        If there is no such template here, or it was not fetched.
    """
    home = home or templateflow_home()
    folder = home / f"tpl-{name}"
    images = sorted(folder.glob(f"tpl-{name}*_T1w.nii.gz"), key=_preference)
    images = [path for path in images if "desc" not in split_name(path)[0]]
    plain = [path for path in images if "cohort" not in split_name(path)[0]]
    whole = [path for path in plain if _is_fetched(path) and _is_fetched(brain_mask_beside(path))]
    if whole:
        return whole[0]
    if plain:
        found = f"{plain[0]} or its brain mask, which were not fetched"
    elif images:
        found = f"one for each cohort in {folder}"
    else:
        found = f"neither a file of that name nor {folder}"
    raise InputError(
        expected=f"a NIfTI file, or the name of a template that TemplateFlow has on this machine, "
        f"for --template {name}",
        found=found,
        remedy="give a file; or fetch the template where there is a network (pip install "
        f"'bids_gevnet[templateflow]', then templateflow.api.get('{name}', resolution=2, "
        "suffix=['T1w', 'mask'])) and set TEMPLATEFLOW_HOME to that folder. Nothing is downloaded "
        "here",
    )


def _preference(path: Path) -> tuple[int, str]:
    resolution = split_name(path)[0].get("res", "").lstrip("0")
    wanted = _RESOLUTIONS.index(resolution) if resolution in _RESOLUTIONS else len(_RESOLUTIONS)
    return wanted, path.name


def _is_fetched(path: Path | None) -> bool:
    """Tell files from the empty ones and dangling links that stand for what was not fetched."""
    return path is not None and path.is_file() and path.stat().st_size > 0
