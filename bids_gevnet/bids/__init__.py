"""BIDS datasets in, BIDS derivatives out.

Read in this order:

1. `records`: participants and their diffusion runs, as typed records;
2. `query`: from a dataset to these records, with `sidecars` (the inheritance principle),
   `gradient_files` and `images` (what is wrong with them), and `validation`; `preprocessed` does
   the same for scans that another pipeline has corrected;
3. `scans`: which runs of a session are one scan; `participants`: who carries which label;
4. `derivatives`: names and sidecars of what is written; `writing` writes files whole or not at
   all, `reading` survives those that are missing or damaged.
"""
