"""What a person looks at: the report of a participant and that of a study.

Read in this order:

- `scan_files`: the files of a scan that a report is made of;
- `correction_methods`, `networks`, `references`: words and citations, one entry each;
- `alerts`: what a person has to know first; `methods_text`: what ran, in sentences;
- `figures`: pictures that more than one report draws; `page`: the look they share;
- `subject`, `group`: the reports.
"""
