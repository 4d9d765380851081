"""
Reading a subject report
========================

For somebody with ``sub-001.html`` open and five minutes. The report below is real: it was made
when this page was built.
"""

# sphinx_gallery_thumbnail_path = "_static/subject_report.png"
from tutorial_tools import Report, study

# %%
# Twelve simulated people went through both levels with these commands.
output = study()

# %%
# The report
# ----------
# Scroll in it. Read from the top:
#
# 1. **Errors and warnings** come first, the most serious on top. None is a good sign, not a
#    proof. These phantoms have a warning: voxels of 9 mm are too coarse to check gradients by.
# 2. **Template**: is it a brain, upright, inside the template's outline? Everything after that
#    depends on it.
# 3. **Motion**: peaks in framewise displacement are single jumps; a slope is drift. Volumes with
#    many outlier slices moved while they were measured.
# 4. **Sphere**: rings are measurements, the surface is what was sampled from them. They should
#    lie on each other; the residual says how far they do not.
# 5. **Methods**: a text for your paper, with references, about what really ran.
Report(min(output.glob("sub-*.html")))

# %%
# The same as numbers
# -------------------
# All that the report shows is in a JSON file, for your own plots.
import json

facts = json.loads(next(output.rglob("*_desc-report_facts.json")).read_text(encoding="utf-8"))
print(json.dumps(facts["registration"], indent=2))
