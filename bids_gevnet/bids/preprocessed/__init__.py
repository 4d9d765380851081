"""Scans that another pipeline has preprocessed: found, checked, and described as typed records.

Read in this order:

- `record`: what is known of a preprocessed scan, and of the dataset it comes from;
- `qsiprep`, `fsl_eddy`, `trees` (HCP and UK Biobank) and `own`: one small reader per pipeline,
  each with the interface of `record.Reader`;
- `sources`: which folders are meant, and which reader reads them;
- `query`: from these folders to participants, as `bids.query` does from raw data.

A reader names files and says what their numbers mean (in which axes gradients are); it changes
nothing. A new pipeline is a new reader and a line in `sources.READERS`.
"""
