"""
Predicting new scans
====================

For somebody with a trained model and a scan it has not seen.
"""

import matplotlib.pyplot as plt
import pandas as pd
from tutorial_tools import PREPROCESSING, run, scratch, study

output = study()

# %%
# A model is a folder
# -------------------
# ``models/<task>/final`` was trained on everybody; the others belong to folds. It holds weights,
# a harmonisation and ``model.json``, and no code: it is safe to open a model from somebody else.
folder = output / "models" / "AD-v-PD" / "final"
for path in sorted(folder.iterdir()):
    print(f"{path.stat().st_size:10,} bytes  {path.name}")

# %%
# A person nobody has seen
# ------------------------
# From one of the two scanners, with the settings of the training data.
run(
    "bids_gevnet_phantom new --groups AD --per-group 1 --sites 1 --voxel-mm 9 --directions 16 "
    "--effects both --seed 77"
)
run(f"bids_gevnet new predicted participant {PREPROCESSING} --model out/models/AD-v-PD/final")

# %%
# A row for each group, with its probability and what to be careful about.
(table,) = (scratch() / "predicted").rglob("*_prediction.tsv")
rows = pd.read_csv(table, sep="\t")
print(rows[["task", "label", "probability"]].to_string(index=False))
print("warnings:", *rows["warnings"].dropna().unique(), sep="\n  ")

figure, axis = plt.subplots(figsize=(5, 1.6), layout="constrained")
axis.barh(rows["label"], rows["probability"])
axis.axvline(0.5, color="0.5", linestyle=":")
axis.set(xlim=(0, 1), xlabel="probability")
plt.show()

# %%
# Probabilities are calibrated on held-out people. The column of warnings says why a prediction
# may not be trusted: a site that was not in the training data, more motion than any scan in it,
# a signal outside its range. A scan of somebody the model was trained on is refused. Nothing of
# this is a diagnosis.
