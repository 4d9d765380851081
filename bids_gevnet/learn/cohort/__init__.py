"""Who is studied: scans, labels and sites, their folds, and the store of their samples.

Read in this order:

- `members`: derivatives and participants.tsv joined into one row per scan (`scan_rows`, `tables`);
- `left_out`: who is not in the cohort, and why; `grids`, `class_checks`, `copies`: what a cohort
  has to fulfil before anything is trained;
- `tasks`: which classes are compared;
- `folds`, `site_splits`: who is tested by a network that never saw them;
- `store`: the scans as training reads them, brain voxels only.
"""
