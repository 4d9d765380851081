"""Every example of a docstring, the README and the page on the library gives what it says."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import bids_gevnet
from bids_gevnet.phantom import simulate

ROOT = Path(bids_gevnet.__file__).parent
PAGES = ("README.md", "docs/start/library.md")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    """Names of the modules that have an example, found without importing any."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(ROOT.parent).with_suffix("").parts
            found.append(".".join(part for part in parts if part != "__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_a_module(name):
    module = import_module(name)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=FLAGS)
    report: list[str] = []
    for example in finder.find(module, name):
        runner.run(example, out=report.append)
    assert runner.tries > 0
    assert not runner.failures, "".join(report)


def test_the_examples_of_the_pages_run(tmp_path, monkeypatch):
    scan = simulate(directions=8)
    nib.save(nib.Nifti1Image(scan.data, scan.affine), tmp_path / "dwi.nii.gz")
    np.savetxt(tmp_path / "dwi.bval", scan.bvals[None], fmt="%g")
    np.savetxt(tmp_path / "dwi.bvec", scan.bvecs_fsl.T)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks: dict[str, str] = {}
    for page in PAGES:
        text = (ROOT.parent / page).read_text(encoding="utf-8")
        blocks |= dict.fromkeys(re.findall(r"```python\n(.*?)```", text, re.DOTALL), page)
    assert len(blocks) == 3  # the first is on both pages
    for block, page in blocks.items():
        exec(compile(block, page, "exec"), names)
    corrected = nib.load(tmp_path / "corrected.nii.gz")
    assert corrected.shape == scan.data.shape
    assert np.loadtxt(tmp_path / "corrected.bvec").shape == (3, len(scan.bvals))
    assert names["accuracy"] > 0.9
