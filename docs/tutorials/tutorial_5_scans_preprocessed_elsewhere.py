"""
Starting from scans that were preprocessed elsewhere
====================================================

For labs that have run QSIPrep, FSL's eddy, the HCP pipelines or this app before. Correcting a scan
twice harms it, so what was done is taken as it is.
"""

import json

from tutorial_tools import run, scratch, study

study()

# %%
# Say where the derivatives are
# -----------------------------
# Here they are our own, from another tutorial. For QSIPrep write
# ``--derivatives qsiprep=/path/to/qsiprep``; a derivatives folder may also stand in place of
# BIDS_DIR. The dry run says what is found for each participant, and what is missing.
PEOPLE = "--participant-label 001 002"
run(f"bids_gevnet cohort again participant {PEOPLE} --derivatives out --dry-run")

# %%
# Run
# ---
# Conforming, correction, cleaning and masking are skipped; the transform to the template is used
# again. What is left takes seconds: another resolution costs no new correction.
run(f"bids_gevnet cohort again participant {PEOPLE} --derivatives out --output-resolution 16")

# %%
# What was taken from where
# -------------------------
# The facts of each scan, its report and the methods text say so, and at the group level a mixture
# of sources is listed as a possible confound.
path = next((scratch() / "again").rglob("*_desc-report_facts.json"))
print(json.dumps(json.loads(path.read_text(encoding="utf-8"))["source"], indent=2))
