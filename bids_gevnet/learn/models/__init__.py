"""Trained models: what lies in their folder, what they predict, how sure they are.

Read in this order:

- `files`: the model folder, checked field by field when it is read;
- `calibration`: scores into probabilities;
- `prediction`: a new scan and a trained model;
- `newcomers`: a whole cohort and a trained model, without those it was trained on.
"""
