"""
From a BIDS scan to spheres
===========================

For somebody who wants to know what each stage of the participant level did to a scan. We simulate
one, run the app on it, and look at what lies in the output folder.
"""

import textwrap

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
from tutorial_tools import run, scratch

# %%
# A dataset
# ---------
# ``bids_gevnet_phantom`` writes a BIDS dataset of simulated heads. Motion, eddy currents, fibres
# and masks are known; the truth lies in ``sourcedata/truth``.
run("bids_gevnet_phantom one --groups AD --per-group 1 --sites 1 --voxel-mm 6 --directions 24")

# %%
# What would run
# --------------
# A dry run reads the data, says what it would do with them, and writes nothing.
run("bids_gevnet one derivatives participant --dry-run --skip-bids-validation")

# %%
# The run
# -------
# One line per finished stage. Give the same command again and nothing is repeated.
run("bids_gevnet one derivatives participant --output-resolution 6 --skip-bids-validation")

# %%
# What each stage did
# -------------------
# Beside the reports lies a text for the methods section of a paper, about what really ran.
text = (scratch() / "derivatives" / "CITATION.md").read_text(encoding="utf-8")
print("\n".join(textwrap.fill(line, 88) for line in text.split("## References")[0].splitlines()))

# %%
# Correction
# ----------
# Each volume was compared with a prediction of itself, made from all others. The table of
# confounds has the motion that was found; what was simulated is in ``sourcedata/truth``.
folder = scratch() / "derivatives" / "sub-001" / "dwi"
confounds = np.genfromtxt(
    next(folder.glob("*_desc-confounds_timeseries.tsv")), names=True, missing_values="n/a"
)
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for name in ("trans_x", "trans_y", "trans_z"):
    axes[0].plot(confounds[name], label=name)
for name in ("rot_x", "rot_y", "rot_z"):
    axes[1].plot(np.degrees(confounds[name]), label=name)
for axis, unit in zip(axes, ("mm", "degrees"), strict=True):
    axis.set(xlabel="volume", ylabel=unit)
    axis.legend()
plt.show()

# %%
# Template space
# --------------
# Correction and registration are applied in one interpolation. Every participant's brain is now
# in the same place.
series = nib.load(next(folder.glob("*space-*_desc-preproc_dwi.nii.gz")))
mask = nib.load(next(folder.glob("*space-*_desc-brain_mask.nii.gz"))).get_fdata() > 0
b0 = series.dataobj[..., 0]
middle = [size // 2 for size in b0.shape]
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, plane in zip(axes, range(3), strict=True):
    axis.imshow(np.take(b0, middle[plane], plane).T, origin="lower", cmap="gray")
    axis.contour(np.take(mask, middle[plane], plane).T, [0.5], colors="tab:orange", linewidths=1)
    axis.axis("off")
plt.show()

# %%
# The sphere
# ----------
# In each voxel the signal, divided by the b0, is sampled at the same points of the sphere for
# every scanner. A point and its opposite hold the same value, so one of each pair is stored. The
# file is an ordinary diffusion series with bval and bvec beside it: its first volume is a b0 of 1.
samples = nib.load(next(folder.glob("*_desc-healpix_dwi.nii.gz")))
print(samples.shape[:3], "voxels, a b0 and", samples.shape[3] - 1, "points each")

values = samples.get_fdata()[mask][:, 1:]
spread = values.std(axis=1) / values.mean(axis=1)
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
axis.hist(spread, bins=60)
axis.set(xlabel="spread over directions, relative to the mean", ylabel="voxels")
plt.show()

# %%
# Voxels with a large spread have fibres in one direction; where it is small, the signal is the
# same in every direction. That picture over the sphere, voxel by voxel, is what the networks
# learn from.
