"""What a person looks at: the reports of participants and studies.

Read in this order:

1. `facts` and `scan_files`: what the stages left on disk, whatever is missing or broken;
2. `figures`: pictures that more than one report draws;
3. `methods_text` with `references`, and `alerts`: what ran, and what to know first;
4. `subject` and `group`: the two reports, as `page` and the templates lay them out.
"""
