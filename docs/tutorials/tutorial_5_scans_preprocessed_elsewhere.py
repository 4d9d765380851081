"""
Starting from scans that were preprocessed elsewhere
====================================================

For labs that have run QSIPrep, FSL's eddy, the HCP or UK Biobank pipelines, or this app before.
Correcting a scan twice harms it, so what was done is taken as it is.
"""

import json

import matplotlib.pyplot as plt
import nibabel as nib
from tutorial_tools import lay_out_as_qsiprep, run, scratch, show_tree

# %%
# The derivatives
# ---------------
# Two simulated people whose heads lay still, with the names, axes and gradient tables that
# QSIPrep gives its results.
run(
    "bids_gevnet_phantom raw --groups AD,PD --per-group 1 --sites 1 --voxel-mm 7 --directions 16 "
    "--no-motion --no-eddy"
)
lay_out_as_qsiprep("raw", "qsiprep")
show_tree("qsiprep/sub-001")

# %%
# What would be taken
# -------------------
# ``--derivatives`` says which pipeline made them and where they are; BIDS_DIR stays the raw
# dataset. The dry run says what is found for each participant, and what is missing.
run("bids_gevnet raw from_qsiprep participant --derivatives qsiprep=qsiprep --dry-run")

# %%
# Run
# ---
# Conforming, denoising, correction and masking are skipped, and QSIPrep's transform to the
# template is used again. What is left, resampling and the sphere, takes seconds.
run(
    "bids_gevnet raw from_qsiprep participant --derivatives qsiprep=qsiprep "
    "--output-resolution 12 --skip-bids-validation"
)

# %%
# The result
# ----------
# The same files as from raw scans. On the left the b0 in template space, on the right one
# direction of the sphere.
folder = scratch() / "from_qsiprep" / "sub-001" / "dwi"
series = nib.load(next(folder.glob("*space-MNI*_desc-preproc_dwi.nii.gz")))
samples = nib.load(next(folder.glob("*_desc-healpix_dwi.nii.gz")))
figure, axes = plt.subplots(1, 2, figsize=(6, 3.4), layout="constrained")
for axis, image, volume in ((axes[0], series, 0), (axes[1], samples, 1)):
    middle = image.shape[2] // 2
    axis.imshow(image.dataobj[:, :, middle, volume].T, origin="lower", cmap="gray")
    axis.axis("off")
plt.show()

# %%
# What was taken from where
# -------------------------
# The facts of each scan, its report and the methods text say so, and at the group level a mixture
# of sources is listed as a possible confound.
path = next((scratch() / "from_qsiprep").rglob("*_desc-report_facts.json"))
print(json.dumps(json.loads(path.read_text(encoding="utf-8"))["source"], indent=2))

# %%
# The results of this app are taken in the same way (``--derivatives bids_gevnet=DIR``): another
# resolution costs no new correction. :doc:`/methods/preprocessed` has a row for each pipeline.
