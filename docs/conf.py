"""Settings of the documentation; `make docs` builds it, with warnings as errors."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.append(str(HERE.parent / "tests"))  # where phantoms are laid out as QSIPrep's results

# Tutorials run the app: one thread a process, no screen, nothing from the network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")

from measured_figures import write_measured_figures
from method_figures import write_method_figures
from reference_pages import write_reference_pages

from bids_gevnet.versions import __version__

project = "bids_gevnet"
author = "The bids_gevnet developers"
copyright = author  # noqa: A001 - the name that Sphinx reads
release = version = __version__

extensions = [
    "local_links",
    "mathml",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "unbroken_options",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "_ext", "tutorials/*.md", "gallery/**/*.ipynb", "gallery/**/*.py"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/tutorial_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": 1,
}

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "bids_gevnet"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def setup(app: object) -> None:
    """Write the pages and pictures that follow from the code before Sphinx looks for sources."""
    del app
    write_reference_pages(HERE / "reference" / "generated")
    write_method_figures(HERE / "methods" / "generated")
    write_measured_figures(HERE / "methods" / "generated")
