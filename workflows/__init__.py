"""Nipype graphs, one builder a file.

Read in this order: `tools` and `context` (what builders are given), `participant`, `scan`,
`correction` and `eddy` (from the outside in), `planned_facts` (what they would do), `group`.
"""
