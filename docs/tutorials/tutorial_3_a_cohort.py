"""
A cohort, from participants.tsv to the group report
===================================================

For somebody with two groups and a question. Twelve simulated people of two groups and two
scanners stand in for yours.
"""

# sphinx_gallery_thumbnail_path = "_static/group_report.png"
import pandas as pd
from tutorial_tools import TRAINING, Report, run, scratch, study

output = study()

# %%
# Who is in the study
# -------------------
# Labels come from ``participants.tsv``: the column ``diagnosis``, else ``group``, or the one
# that ``--target`` names. People without a label or without a finished scan are left out and
# named.
print(pd.read_csv(scratch() / "cohort" / "participants.tsv", sep="\t").head())

# %%
# What will be trained
# --------------------
# The dry run says how many models, which folds and sites, and about how long.
run(f"bids_gevnet cohort out group --dry-run {TRAINING}")

# %%
# The report
# ----------
# Its first sentence is the answer. How to read on:
#
# * **An interval** says how much the figure would vary between cohorts of this size. With
#   twelve people it is wide, and nothing but more people makes it narrow.
# * **The lines beside the network** say what site, motion, age and sex reach alone. If site does
#   as well as the network, the network may have learned the scanner.
# * **Harmonisation** removes differences between scanners that are the same for everybody. Where
#   all patients were scanned at one site it cannot know what is scanner and what is disease, and
#   says so.
# * **Left-out sites** answer what a reader of your paper will ask: would it work at ours?
#
# This cohort is small and was trained for seconds, so do not expect much of the figures.
Report(output / "group_report.html")

# %%
# The figures come from one table
# -------------------------------
# Compute your own from it.
table = pd.read_csv(output / "group_predictions.tsv", sep="\t")
right = table["label"] == table["predicted"]
print(right.groupby([table["task"], table["model"], table["scheme"]]).mean().round(2))
