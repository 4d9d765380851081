"""The report of a study, group_report.html.

Read in this order:

- `study_files`: what the group level left on disk;
- `page`: builds the report from the sections: `cohort` (with `participants`, `mosaic` and
  `quality_strips`), `results` (with `charts` and `networks_compared`), `harmonisation`,
  `saliency`, `leakage_audit`;
- `limits`: up to how many scans each is shown;
- `alerts`: what a person has to know first;
- `methods`: the methods text of the group level.
"""
