"""Draw the README's picture of the data flow from a real run on the phantom.

bids_gevnet_phantom cohort --voxel-mm 3 --per-group 1
bids_gevnet cohort out participant --participant-label 001 --output-resolution 3
python benchmarks/figures/data_flow.py cohort out
"""

import sys
from pathlib import Path

import healpy
import matplotlib as mpl
import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np

from bids_gevnet.sphere.resampling import expand

mpl.use("agg")
STEPS = (
    ("BIDS scan", "one diffusion volume"),
    ("corrected, masked", "motion, eddy currents; brain"),
    ("MNI space", "one interpolation"),
    ("sphere per voxel", "192 HEALPix points"),
    ("invariants", "RISH, harmonisation"),
    ("network", "CKN across voxels,\nGEVNet within each"),
)
INK = "#1f2933"


def load(path: Path) -> np.ndarray:
    return np.asarray(nib.load(path).dataobj)


def show_slice(axis: plt.Axes, volume: np.ndarray, *, outline: np.ndarray | None = None) -> None:
    k = volume.shape[2] // 2
    high = np.percentile(volume, 99.5)
    axis.imshow(volume[:, :, k].T, origin="lower", cmap="gray", vmin=0, vmax=high)
    if outline is not None:
        axis.contour(outline[:, :, k].T, levels=[0.5], colors="#e69f00", linewidths=1.2)


def show_sphere(axis: plt.Axes, samples: np.ndarray) -> None:
    values = expand(samples[None], 4)[0]
    points = np.stack(healpy.pix2vec(4, np.arange(192), nest=True), axis=-1)
    turn = np.array([[0.8, -0.6, 0], [0.36, 0.48, 0.8], [-0.48, -0.64, 0.6]])
    x, y, depth = (points @ turn.T).T
    front = depth > -0.15
    order = np.argsort(depth[front])
    size = 26 + 46 * (depth[front] + 1) / 2
    axis.scatter(
        x[front][order], y[front][order], s=size[order], c=values[front][order], cmap="cividis"
    )
    axis.add_patch(plt.Circle((0, 0), 1.06, fill=False, color=INK, lw=0.8))
    axis.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")


def show_network(axis: plt.Axes) -> None:
    axis.set(xlim=(0, 1), ylim=(0, 1))
    for height, text, colour in (
        (0.70, "CKN", "#0072b2"),
        (0.42, "GEVNet", "#d55e00"),
        (0.14, "report, model", "#009e73"),
    ):
        axis.text(
            0.5, height + 0.06, text, ha="center", va="center", color="white", fontsize=11,
            bbox={"boxstyle": "round,pad=0.5", "fc": colour, "ec": "none"},
        )  # fmt: skip
    for top in (0.665, 0.385):
        axis.annotate(
            "", (0.5, top - 0.06), (0.5, top + 0.02), arrowprops={"arrowstyle": "->", "color": INK}
        )


def main() -> None:
    raw, out = Path(sys.argv[1]), Path(sys.argv[2])
    native = out / "sub-001/dwi"
    standard = next(native.glob("*_desc-healpix_dwi.nii.gz")).name.split("_desc-")[0]
    samples = load(native / f"{standard}_desc-healpix_dwi.nii.gz")[..., 1:]  # after the b0
    energy = load(native / f"{standard}_model-sh_param-rish2_dwimap.nii.gz")
    brightest = np.unravel_index(np.argmax(energy), energy.shape)
    figure, axes = plt.subplots(1, 6, figsize=(15, 3.3), dpi=110)
    show_slice(axes[0], load(raw / "sub-001/dwi/sub-001_dwi.nii.gz")[..., 5])
    show_slice(
        axes[1],
        load(native / "sub-001_dwiref.nii.gz"),
        outline=load(native / "sub-001_desc-brain_mask.nii.gz"),
    )
    show_slice(
        axes[2],
        load(native / f"{standard}_desc-preproc_dwi.nii.gz")[..., 0],
        outline=load(native / f"{standard}_desc-brain_mask.nii.gz"),
    )
    show_sphere(axes[3], samples[brightest])
    axes[4].imshow(energy[:, :, energy.shape[2] // 2].T, origin="lower", cmap="cividis")
    show_network(axes[5])
    for axis, (title, text) in zip(axes, STEPS, strict=True):
        axis.set_xticks([])
        axis.set_yticks([])
        for side in axis.spines.values():
            side.set_visible(False)
        axis.set_title(title, fontsize=12, color=INK, fontweight="bold")
        axis.set_xlabel(text, fontsize=10, color=INK)
    for axis in axes[:-1]:
        axis.annotate(
            "", (1.16, 0.5), (1.02, 0.5), xycoords="axes fraction",
            arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.5},
        )  # fmt: skip
    figure.subplots_adjust(left=0.01, right=0.99, top=0.87, bottom=0.16, wspace=0.18)
    target = Path(__file__).with_name("data_flow.png")
    figure.savefig(target, facecolor="white", metadata={"Software": None})
    print(target)


if __name__ == "__main__":
    main()
