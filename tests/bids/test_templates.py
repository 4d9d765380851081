"""Templates by name: only what TemplateFlow has on this machine is used."""

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.templates import find_template
from bids_gevnet.cli.parser import parse_request
from bids_gevnet.errors import InputError
from bids_gevnet.interfaces.template_grid import load_template, output_grid
from bids_gevnet.settings import PreprocessingSettings

NAME = "MNI152NLin2009cAsym"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A stand-in for TemplateFlow's folder, named as fMRIPrep finds it: a head with its mask."""
    folder = tmp_path / "templateflow" / f"tpl-{NAME}"
    folder.mkdir(parents=True)
    head = np.full((20, 24, 20), 50.0, np.float32)
    brain = np.zeros(head.shape, np.uint8)
    brain[5:15, 6:18, 5:15] = 1
    for resolution, mm in (("01", 8.0), ("02", 9.0)):
        affine = np.diag([mm, mm, mm, 1.0])
        affine[:3, 3] = -mm * 10
        for ending, data in (("T1w", head + brain), ("desc-brain_mask", brain)):
            path = folder / f"tpl-{NAME}_res-{resolution}_{ending}.nii.gz"
            nib.save(nib.Nifti1Image(data, affine), path)
    # As in TemplateFlow's own folder: other images whose names end alike.
    (folder / f"tpl-{NAME}_res-02_desc-brain_T1w.nii.gz").write_bytes(b"")
    monkeypatch.setenv("TEMPLATEFLOW_HOME", str(tmp_path / "templateflow"))
    return folder


def test_a_name_becomes_the_file_at_2_mm(home):
    path = find_template(NAME)
    assert path == home / f"tpl-{NAME}_res-02_T1w.nii.gz"
    loaded = load_template(path)
    assert loaded.label == NAME
    assert loaded.mask.sum() == 10 * 12 * 10
    grid = output_grid(PreprocessingSettings(template=path, output_resolution=9))
    assert grid.label == NAME


def test_the_command_line_takes_a_name_or_a_file(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    positional = ["data", "out", "participant", "--template"]
    named = parse_request([*positional, NAME]).settings.preprocessing.template
    assert named == home / f"tpl-{NAME}_res-02_T1w.nii.gz"
    relative = parse_request([*positional, "my/template.nii.gz"]).settings.preprocessing.template
    assert relative == tmp_path / "my/template.nii.gz"
    (tmp_path / "word").touch()
    file = parse_request([*positional, "word"]).settings.preprocessing.template
    assert file == tmp_path / "word"
    assert (
        parse_request([*positional, "MNI152NLin2009aSym"]).settings
        == parse_request(positional[:3]).settings
    )


def test_a_settings_file_may_hold_a_name(home, tmp_path):
    config = tmp_path / "settings.toml"
    config.write_text(f'[preprocessing]\ntemplate = "{NAME}"\n')
    request = parse_request(["data", "out", "participant", "--config-file", str(config)])
    assert request.settings.preprocessing.template == find_template(NAME)


@pytest.mark.parametrize("lost", ["T1w", "desc-brain_mask"])
def test_what_was_not_fetched_is_not_downloaded(home, lost):
    for path in home.glob(f"*_res-0?_{lost}.nii.gz"):
        path.write_bytes(b"")  # as TemplateFlow's skeleton has them
    with pytest.raises(InputError, match=r"not fetched.*Nothing is downloaded"):
        find_template(NAME)


def test_a_name_that_is_not_there(home):
    with pytest.raises(InputError, match="tpl-MNI152NLin6Asym"):
        find_template("MNI152NLin6Asym")
