"""``participant --model --adapt``: gains for new sites, from the scans in OUTPUT_DIR."""

import dataclasses
import logging
from pathlib import Path

import pytest
from learn.conftest import AFFINE, NSIDE, SHAPE, Study, make_people

from bids_gevnet.cli.adaptation import plan_adaptation
from bids_gevnet.cli.parser import Request, parse_request
from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.gains import load_gains
from bids_gevnet.harmonisation.glm import fit_rish_glm
from bids_gevnet.learn.cohort.members import read_cohort
from bids_gevnet.learn.cohort.store import store_scan
from bids_gevnet.learn.models.files import ModelCard, build_network, write_model
from bids_gevnet.learn.models.prediction import harmonise_scan

DEGREES = fit_limits(NSIDE)[1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four people at each of two sites, and a model that was trained at others."""
    root = tmp_path_factory.mktemp("adapt")
    study = Study(root, make_people(4, ("AD", "PD"), ("A", "B")), effect=0.8, seed=0)
    cohort = read_cohort(study.output_dir, study.bids_dir, folds=1)
    maps = [
        store_scan(
            root / "store", row.image, row.mask, nside=NSIDE, voxel_mm=cohort.voxel_mm
        ).log_rish
        for row in cohort.rows
    ]
    gains = fit_rish_glm(
        maps,
        participants=[row.participant for row in cohort.rows],
        sites=["X"] * len(maps),
        nside=NSIDE,
        degrees=DEGREES,
    )
    card = ModelCard(
        network="ckn2",
        labels=("AD", "PD"),
        task="AD-v-PD",
        fold=None,
        nside=NSIDE,
        shape=SHAPE,
        affine=tuple(map(tuple, AFFINE.tolist())),
        temperature=1.0,
        options={},
        participants=("x01",),
        fingerprints=(),
        dataset="Another study",
        sites=("X",),
        max_motion=None,
        rish_low=(-99.0,) * len(DEGREES),
        rish_high=(99.0,) * len(DEGREES),
        harmonised=True,
        warnings=(),
        digest="",
    )
    write_model(root / "model", build_network("ckn2", 2, NSIDE), card, gains)
    known = dataclasses.replace(gains, sites=("A",))
    write_model(root / "knows-a", build_network("ckn2", 2, NSIDE), card, known)
    return root


def ask(root: Path, tmp_path: Path, *options: str, model: str = "model") -> Request:
    (tmp_path / "work").mkdir(exist_ok=True)
    command = [str(root / "raw"), str(root / "derivatives"), "participant"]
    command += ["--model", str(root / model), "--work-dir", str(tmp_path / "work"), *options]
    return parse_request(command)


def test_every_site_that_the_model_does_not_know_gets_gains(root, tmp_path):
    plan = plan_adaptation(ask(root, tmp_path, "--adapt"))
    assert set(plan.sentences) == {"A", "B"}
    assert "unlabelled scans of 4 people" in plan.sentences["B"]
    gains = load_gains(plan.gains)
    assert gains.sites == ("X", "A", "B")
    cohort = read_cohort(root / "derivatives", root / "raw", folds=1)
    row = next(row for row in cohort.rows if row.site == "B")
    import nibabel as nib

    samples, mask = (nib.load(path).get_fdata() for path in (row.image, row.mask))
    scan = harmonise_scan(
        root / "model", samples, mask > 0, site="B", participant="new", adapted=gains
    )
    assert scan.scaled == gains.corrects("B")


def test_who_is_predicted_now_does_not_decide_what_a_site_is_adapted_to(root, tmp_path):
    everybody = plan_adaptation(ask(root, tmp_path, "--adapt")).digest
    one = plan_adaptation(ask(root, tmp_path, "--adapt", "--participant-label", "000")).digest
    assert one == everybody is not None


def test_diagnoses_are_not_read(root, tmp_path):
    before = plan_adaptation(ask(root, tmp_path, "--adapt")).digest
    table = root / "raw" / "participants.tsv"
    text = table.read_text()
    table.write_text(text.replace("AD", "xx").replace("PD", "AD").replace("xx", "PD"))
    try:
        assert plan_adaptation(ask(root, tmp_path, "--adapt")).digest == before
    finally:
        table.write_text(text)


def test_nothing_is_planned_unless_it_is_asked_for(root, tmp_path):
    plan = plan_adaptation(ask(root, tmp_path))
    assert plan.gains is None
    assert plan.digest is None


def test_sites_that_the_model_knows_are_left_to_it(root, tmp_path):
    plan = plan_adaptation(ask(root, tmp_path, "--adapt", model="knows-a"))
    assert set(plan.sentences) == {"B"}


def test_a_first_run_with_adapt_is_refused_with_the_way_to_go(root, tmp_path):
    request = ask(root, tmp_path, "--adapt")
    empty = dataclasses.replace(request, output_dir=tmp_path / "empty")
    with pytest.raises(InputError, match="without --adapt first"):
        plan_adaptation(empty)


def test_scans_on_another_grid_are_named_and_not_used(root, tmp_path, caplog):
    image = next((root / "derivatives" / "sub-000" / "dwi").glob("*_desc-healpix_dwi.json"))
    text = image.read_text()
    image.write_text(text.replace("2", "4"))
    try:
        with caplog.at_level(logging.WARNING, "bids_gevnet"):
            plan = plan_adaptation(ask(root, tmp_path, "--adapt"))
    finally:
        image.write_text(text)
    assert "sub-000 is not used for --adapt" in caplog.text
    assert "unlabelled scans of 3 people" in plan.sentences["A"]
