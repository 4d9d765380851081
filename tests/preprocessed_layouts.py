"""Phantom scans laid out and named as QSIPrep, FSL eddy, HCP and UK Biobank leave them.

Every writer takes the raw phantom of a participant whose head lay still, so that a perfect
correction changes nothing: what the app makes of the raw scan and of the derivative must agree.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

from bids_gevnet.bids.gradient_files import read_bval, read_bvec
from bids_gevnet.dwi.ants_linear import load_ants
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, bvecs_ras_to_fsl, rotate_bvecs

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True)
class RawScan:
    """A raw phantom scan with its truth."""

    label: str
    image: nib.Nifti1Image
    bvals: np.ndarray
    bvecs_ras: np.ndarray
    mask: nib.Nifti1Image
    template_to_scanner: np.ndarray

    @property
    def n_volumes(self) -> int:
        return len(self.bvals)


def read_raw(cohort: Path, label: str) -> RawScan:
    image = nib.load(cohort / f"sub-{label}/dwi/sub-{label}_dwi.nii.gz")
    base = cohort / f"sub-{label}/dwi/sub-{label}_dwi"
    truth = cohort / f"sourcedata/truth/sub-{label}"
    return RawScan(
        label,
        image,
        read_bval(base.with_suffix(".bval")),
        bvecs_fsl_to_ras(read_bvec(base.with_suffix(".bvec")), image.affine),
        nib.load(next(truth.glob("*mask*.nii.gz"))),
        np.array(json.loads(next(truth.glob("*pose*.json")).read_text())["TemplateToScanner"]),
    )


def reoriented(image: nib.Nifti1Image, axes: str) -> nib.Nifti1Image:
    """The same image with its voxel axes along others; nothing is interpolated."""
    turn = ornt_transform(io_orientation(image.affine), axcodes2ornt(tuple(axes)))
    return image.as_reoriented(turn)


def _save(image: nib.Nifti1Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)


def _save_gradients(bval: Path, bvec: Path, bvals: np.ndarray, bvecs: np.ndarray) -> None:
    bval.parent.mkdir(parents=True, exist_ok=True)
    bval.write_text(" ".join(f"{b:g}" for b in bvals) + "\n")
    np.savetxt(bvec, bvecs.T, fmt="%.8f")


def write_composite(path: Path, fixed_to_moving: np.ndarray, *, bump_mm: float = 0.0) -> None:
    """Write a composite of an affine and a displacement field, as ANTs does for QSIPrep.

    The field is a wave of height `bump_mm` along x, of no net shift.
    """
    lps = LPS @ fixed_to_moving @ LPS
    ants = load_ants()
    affine = ants.new_ants_transform(
        precision="float",
        dimension=3,
        transform_type="AffineTransform",
        parameters=[*lps[:3, :3].ravel(), *lps[:3, 3]],
    )
    wave = bump_mm * np.sin(2 * np.pi * np.arange(30) / 6)
    field = np.zeros((30, 30, 30, 3), np.float32)
    field[..., 0] = wave[:, None, None]
    image = ants.from_numpy(field, origin=[-120.0] * 3, spacing=[8.0] * 3, has_components=True)
    warp = ants.transform_from_displacement_field(image)
    path.parent.mkdir(parents=True, exist_ok=True)
    ants.write_transform(ants.compose_ants_transforms([warp, affine]), str(path))


def describe(root: Path, name: str, version: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    description = {
        "Name": f"{name} output",
        "BIDSVersion": "1.1.1",
        "DatasetType": "derivative",
        "GeneratedBy": [{"Name": name, "Version": version}],
    }
    (root / "dataset_description.json").write_text(json.dumps(description))


def write_qsiprep(root: Path, scan: RawScan, *, session: str = "", transform: bool = True) -> Path:
    """Write a participant as QSIPrep 1 does: LPS+, directions along the voxel axes, ACPC.

    The head is moved by a pose of its own, as its alignment to the commissures would be. Returns
    the series.
    """
    describe(root, "qsiprep", "1.0.1")
    subject = root / f"sub-{scan.label}"
    folder = subject / f"ses-{session}" / "dwi" if session else subject / "dwi"
    prefix = f"sub-{scan.label}_ses-{session}" if session else f"sub-{scan.label}"
    # Of the scanner to ACPC: such that voxels lie along the axes and nothing is interpolated.
    acpc = conform(np.asarray(scan.image.dataobj), scan.image.affine).old_to_new
    acpc[:3, 3] += (5.0, -12.0, 20.0)
    bvecs_ras = rotate_bvecs(scan.bvecs_ras, acpc)
    moved = nib.Nifti1Image(np.asarray(scan.image.dataobj), acpc @ scan.image.affine)
    image = reoriented(moved, "LPS")
    series = folder / f"{prefix}_space-ACPC_desc-preproc_dwi.nii.gz"
    _save(image, series)
    voxel = bvecs_ras * (-1, -1, 1)
    base = str(series).removesuffix(".nii.gz")
    _save_gradients(Path(f"{base}.bval"), Path(f"{base}.bvec"), scan.bvals, voxel)
    table = np.column_stack([bvecs_ras, scan.bvals])
    np.savetxt(f"{base}.b", table, fmt=["%.8f", "%.8f", "%.8f", "%d"])
    Path(f"{base}.json").write_text(json.dumps({"Manufacturer": "Siemens"}))
    mask = nib.Nifti1Image(np.asarray(scan.mask.dataobj), acpc @ scan.mask.affine)
    _save(reoriented(mask, "LPS"), folder / f"{prefix}_space-ACPC_desc-brain_mask.nii.gz")
    reference = nib.Nifti1Image(np.asarray(image.dataobj[..., 0]), image.affine)
    _save(reference, folder / f"{prefix}_space-ACPC_dwiref.nii.gz")
    motion = "trans_x trans_y trans_z rot_x rot_y rot_z eddy_stdevs original_file"
    names = f"framewise_displacement {motion} grad_x grad_y grad_z bval"
    rows = [names.replace(" ", "\t")]
    for n, b in enumerate(scan.bvals):
        step = "n/a" if n == 0 else f"{0.1 + 0.01 * (n % 5):.3f}"
        rows.append(
            f"{step}\t0.1\t0\t0\t0.001\t0\t0\t1.5\tsub-{scan.label}_dwi.nii.gz\t0\t0\t0\t{b}"
        )
    (folder / f"{prefix}_desc-confounds_timeseries.tsv").write_text("\n".join(rows) + "\n")
    (folder / f"{prefix}_space-ACPC_desc-image_qc.tsv").write_text(
        "raw_neighbor_corr\traw_num_bad_slices\tt1_neighbor_corr\tt1_num_bad_slices\tmean_fd\t"
        "max_fd\tt1_dice_distance\tCNR0_mean\tfile_name\n"
        f"0.71\t2.0\t0.79\t0.0\t0.12\t0.14\t0.93\t6.5\t{series.name}\n"
    )
    anat = subject / "anat"
    anat.mkdir(parents=True, exist_ok=True)
    if transform:
        name = f"sub-{scan.label}_from-ACPC_to-MNI152NLin2009cAsym_mode-image_xfm.h5"
        write_composite(anat / name, acpc @ scan.template_to_scanner)
    (root / f"sub-{scan.label}.html").write_text("<html></html>")
    return series


def write_hcp(root: Path, scan: RawScan, *, name: str = "") -> Path:
    """Write a participant as the HCP pipeline does: LAS, FSL's directions; returns the series."""
    folder = root / (name or scan.label) / "T1w" / "Diffusion"
    image = reoriented(scan.image, "LAS")
    _save(image, folder / "data.nii.gz")
    _save(reoriented(scan.mask, "LAS"), folder / "nodif_brain_mask.nii.gz")
    fsl = bvecs_ras_to_fsl(scan.bvecs_ras, image.affine)
    _save_gradients(folder / "bvals", folder / "bvecs", scan.bvals, fsl)
    _write_eddy_texts(folder / "eddylogs" / "eddy_unwarped_images", fsl)
    return folder / "data.nii.gz"


def write_ukb(root: Path, scan: RawScan, *, name: str, rotated: bool = True) -> Path:
    """Write a participant as the zip files of UK Biobank have it; returns the series."""
    folder = root / name / "dMRI" / "dMRI"
    image = reoriented(scan.image, "LAS")
    _save(image, folder / "data.nii.gz")
    _save(image, folder / "data_ud.nii.gz")
    _save(reoriented(scan.mask, "LAS"), folder / "nodif_brain_mask_ud.nii.gz")
    fsl = bvecs_ras_to_fsl(scan.bvecs_ras, image.affine)
    _save_gradients(folder / "bvals", folder / "bvecs", scan.bvals, fsl)
    if rotated:
        _write_eddy_texts(folder / "data", fsl)
    return folder / "data_ud.nii.gz"


def write_fsl_eddy(
    root: Path, scan: RawScan, *, out: str = "eddy_corrected", session: str = ""
) -> Path:
    """Write what eddy leaves, in the axes of the raw scan; returns the series."""
    folder = root / f"sub-{scan.label}" / (f"ses-{session}/dwi" if session else "dwi")
    _save(scan.image, folder / f"{out}.nii.gz")
    fsl = bvecs_ras_to_fsl(scan.bvecs_ras, scan.image.affine)
    _write_eddy_texts(folder / out, fsl)
    (folder / "bvals").write_text(" ".join(f"{b:g}" for b in scan.bvals) + "\n")
    _save(scan.mask, folder / "nodif_brain_mask.nii.gz")
    return folder / f"{out}.nii.gz"


def _write_eddy_texts(base: Path, bvecs_fsl: np.ndarray) -> None:
    count = len(bvecs_fsl)
    base.parent.mkdir(parents=True, exist_ok=True)
    parameters = np.zeros((count, 16))
    parameters[:, 0] = 0.2 * (np.arange(count) % 2)  # 0.2 mm along x from volume to volume
    np.savetxt(f"{base}.eddy_parameters", parameters)
    np.savetxt(f"{base}.eddy_rotated_bvecs", bvecs_fsl.T, fmt="%.8f")
    flags = np.zeros((count, 4), int)
    flags[3, 1] = 1
    heading = "One row per scan, one column per slice. Outlier: 1, Non-outlier: 0"
    np.savetxt(f"{base}.eddy_outlier_map", flags, fmt="%d", header=heading, comments="")
