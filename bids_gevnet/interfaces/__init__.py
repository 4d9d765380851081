"""Nipype interfaces: files in, files out, each a thin shell around a function.

In the order in which a scan meets them:

1. `series`, `warps`, `confounds`: how a scan and its corrections lie on disk between nodes;
2. `conform`, then `correction` (the model-based corrector), `motion` (ANTs) or `topup` and
   `fsl` (`fsl_programs` runs their programs);
3. `masking`, `runs` (the runs of a scan joined), `template_grid`, `template`, `resampling`;
4. `sphere`, `quality`, `prediction`;
5. `derivatives` and `report` write what is left of a scan.

The group level: `cohort`, `models`, `evaluation`, with `study_files` between them, and `report`.
"""
