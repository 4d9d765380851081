"""Nipype graphs, one builder a file.

Read in this order: `tools` and `context` (what builders are given), `participant`, `scan`,
`correction` and `eddy` (from the outside in), `cleaning_plan` and `correction_plan` (what is
decided beforehand, without Nipype), `planned_facts` (what they would do), `group`.
"""
