"""The report of a scan with two shells on the sphere."""

import json

import nibabel as nib
import numpy as np

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.report.subject.page import build_subject_report


def _repeat(path, axis_exists):
    """Give a file of one shell a second one, half as strong."""
    image = nib.load(path)
    data = image.get_fdata(dtype=np.float32)
    parts = (data, data / 2)
    both = np.concatenate(parts, -1) if axis_exists else np.stack(parts, -1)
    write_image(path, both, image.affine)


def test_every_shell_has_its_glyphs_and_maps(derivatives):
    (samples,) = derivatives.rglob("*_desc-healpix_dwi.nii.gz")
    _repeat(samples, axis_exists=True)
    for path in derivatives.rglob("*_param-rish*_dwimap.nii.gz"):
        _repeat(path, axis_exists=False)
    (path,) = derivatives.rglob("*_desc-report_facts.json")
    facts = json.loads(path.read_text())
    facts["sphere"]["sampled"] = [{"b_value": b, "directions": 32} for b in (1000.0, 3000.0)]
    write_json(path, facts)
    text = build_subject_report(derivatives, "01").read_text(encoding="utf-8")
    assert "Shells on the sphere" in text
    assert "b = 1000, 3000" in text
    for b in (1000, 3000):
        assert text.count(f"Most anisotropic, b = {b}") == 1
        for degree in (0, 2, 4, 6):
            assert f"<h4>b = {b}, degree {degree}</h4>" in text
    assert "<h4>Degree 0</h4>" not in text
    assert "The shells at b = 1000 s/mm² (32 directions) and b = 3000 s/mm²" in text
