"""Names of derivatives: as BIDS allows them, and spelled in one place."""

import json
import re
from pathlib import Path

import pytest

import bids_gevnet
from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    CONFOUNDS,
    SAMPLES,
    SERIES,
    UNCORRECTED,
    DerivativeNames,
    gradient_files,
    prediction_ending,
    rish_ending,
    sidecar,
    transform_ending,
)
from bids_gevnet.bids.description import write_description
from bids_gevnet.nn.registry import scan_networks
from bids_gevnet.versions import code_url


@pytest.mark.parametrize("network", [*scan_networks(), "my net/../x", "+", ""])
def test_a_prediction_is_named_after_its_network(network):
    assert re.fullmatch(r"model-[A-Za-z0-9]+_prediction\.tsv", prediction_ending(network))


def test_networks_do_not_share_a_name():
    assert len({prediction_ending(network) for network in scan_networks()}) == len(scan_networks())
    assert prediction_ending("ckn2+gevnet") == "model-ckn2gevnet_prediction.tsv"


def test_predictions_of_this_scan_are_found_and_no_other(tmp_path):
    names = DerivativeNames(output_dir=tmp_path, entities={"sub": "01"})
    other = DerivativeNames(output_dir=tmp_path, entities={"sub": "01", "run": "1"})
    names.folder.mkdir(parents=True)
    tables = [names.native(prediction_ending(network)) for network in ("ckn2", "gevnet")]
    for path in (*tables, other.native(prediction_ending("ckn2")), names.native(CONFOUNDS)):
        path.touch()
    assert names.predictions() == tables


def test_files_beside_a_file():
    image = Path("a.b/sub-1_desc-preproc_dwi.nii.gz")
    assert sidecar(image) == Path("a.b/sub-1_desc-preproc_dwi.json")
    assert sidecar(Path(f"x_{CONFOUNDS}")).name == "x_desc-confounds_timeseries.json"
    bval, bvec = gradient_files(image)
    assert (bval.suffixes, bvec.suffixes) == ([".bval"], [".bvec"])


def test_the_validator_is_told_of_what_bids_has_no_name_for(tmp_path):
    write_description(tmp_path, tmp_path)
    ignored = (tmp_path / ".bidsignore").read_text().splitlines()
    unnamed = (rish_ending(4), prediction_ending("ckn2"), UNCORRECTED, transform_ending("X"))
    for name in unnamed:
        assert any(Path(f"sub-1_{name}").match(pattern) for pattern in ignored), name
    for name in (SERIES, SAMPLES, BRAIN_MASK, str(sidecar(Path(SAMPLES)))):
        assert not any(Path(f"sub-1_{name}").match(pattern) for pattern in ignored), name


def test_the_dataset_says_who_made_it_from_what(tmp_path):
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    source = {
        "Name": "A {study}",
        "Authors": ["A. Author"],
        "License": "CC0",
        "DatasetDOI": "doi:1",
    }
    (raw / "dataset_description.json").write_text(json.dumps(source))
    write_description(out, raw)
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["Authors"] == ["A. Author"]
    assert description["SourceDatasets"] == [{"URL": raw.as_uri(), "DOI": "doi:1"}]
    assert description["GeneratedBy"][0].get("CodeURL", "") == code_url()
    readme = (out / "README.md").read_text()
    assert "A {study}" in readme
    assert f"S_M_{SAMPLES}" in readme


def test_endings_are_spelled_in_one_place():
    source = Path(bids_gevnet.__file__).parent
    endings = r"desc-(preproc|healpix|confounds|report)|_dwimap\.nii|_mode-image|_prediction\.tsv"
    places = {
        path.relative_to(source).as_posix()
        for path in [*source.rglob("*.py"), *source.rglob("*.j2")]
        if re.search(endings, path.read_text(encoding="utf-8"))
    }
    # What QSIPrep writes is spelled where it is read.
    assert places - {"bids/preprocessed/qsiprep.py"} == {"bids/derivatives.py"}
