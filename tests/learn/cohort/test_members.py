"""From derivatives and tables to a cohort, and what is said of those that do not fit."""

import shutil
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.members import Cohort, read_cohort, write_cohort
from bids_gevnet.learn.cohort.tables import MAX_CELL, MAX_ROWS


def read(study: Any, **options: Any) -> Cohort:
    return read_cohort(study.output_dir, study.bids_dir, **({"folds": 2} | options))


def test_rows_hold_what_the_files_say(make_study: Any) -> None:
    study = make_study(per_class=3)
    cohort = read(study)
    assert [row.participant for row in cohort.rows] == [p.label for p in study.people]
    for row, person in zip(cohort.rows, study.people, strict=True):
        assert (row.label, row.site, row.sex) == (person.group, person.site, person.sex)
        assert row.age == pytest.approx(person.age, abs=0.06)
        assert row.covariates == {"age": row.age, "sex": row.sex}
        assert row.motion is not None
        assert 0.05 < row.motion < 0.3
    assert cohort.nside == 2
    assert cohort.voxel_mm == pytest.approx(6)
    assert cohort.labels == ("AD", "PD")


def test_site_comes_from_the_scanner_without_a_column(make_study: Any) -> None:
    study = make_study(per_class=2)
    study.write_participants(site=False)
    assert {row.site for row in read(study).rows} == {"Maker_Model A_3", "Maker_Model B_3"}


def test_sessions_table_goes_before_participants(make_study: Any, person_class: Any) -> None:
    people = [
        person_class("01", "AD", "A", 70, "F", ("pre", "post")),
        person_class("02", "PD", "A", 71, "M", ("pre",)),
        person_class("03", "PD", "B", 72, "M"),
        person_class("04", "AD", "B", 73, "F"),
    ]
    study = make_study(people=people)
    table = study.bids_dir / "sub-01" / "sub-01_sessions.tsv"
    table.write_text("session_id\tage\tsite\nses-pre\t60\tn/a\nses-post\t65\tC\n")
    rows = {(row.participant, row.session): row for row in read(study).rows}
    assert rows["01", "pre"].age == 60
    assert rows["01", "post"].age == 65
    assert rows["01", "pre"].site == "A"
    assert rows["01", "post"].site == "C"
    assert rows["02", "pre"].age == 71


def test_missing_derivatives_are_named(make_study: Any) -> None:
    study = make_study(per_class=3)
    shutil.rmtree(study.output_dir / "sub-001")
    with pytest.raises(InputError, match=r"none for sub-001\b"):
        read(study)
    chosen = read(study, participants=["sub-000", "002", "100", "101"])
    assert [row.participant for row in chosen.rows] == ["000", "002", "100", "101"]


def test_participant_without_diffusion_scans_is_no_error(make_study: Any) -> None:
    study = make_study(per_class=3)
    shutil.rmtree(study.output_dir / "sub-001")
    shutil.rmtree(study.bids_dir / "sub-001")
    assert len(read(study).rows) == 5


def test_missing_label_is_named(make_study: Any) -> None:
    study = make_study(per_class=3)
    study.write_participants(drop="102")
    with pytest.raises(InputError, match=r"diagnosis.*none for sub-102"):
        read(study)


def test_one_class_is_refused(make_study: Any) -> None:
    with pytest.raises(InputError, match=r"only 'AD'.*sub-000, sub-001"):
        read(make_study(per_class=2, classes=("AD",)))


def test_too_few_people_for_the_folds(make_study: Any) -> None:
    study = make_study(per_class=3)
    with pytest.raises(InputError, match=r"3 of 'AD' \(sub-000.*lower --folds to 3"):
        read(study, folds=5)


def test_another_grid_is_named(make_study: Any) -> None:
    study = make_study(per_class=3)
    names = study.names("100")
    affine = np.diag([6.0, 6, 6, 1])
    write_image(
        names.standard("desc-healpix_dwi.nii.gz"), np.zeros((8, 9, 7, 24), np.float32), affine
    )
    write_image(names.standard("desc-brain_mask.nii.gz"), np.ones((8, 9, 7), bool), affine)
    with pytest.raises(InputError, match="another grid for sub-100"):
        read(study)


def test_shifted_grid_is_named(make_study: Any) -> None:
    study = make_study(per_class=3)
    path = study.names("101").standard("desc-healpix_dwi.nii.gz")
    image = nib.load(path)
    affine = image.affine.copy()
    affine[0, 3] += 2
    write_image(path, np.asarray(image.dataobj), affine)
    with pytest.raises(InputError, match="another grid for sub-101"):
        read(study)


def test_two_resolutions_are_named(make_study: Any) -> None:
    study = make_study(per_class=3)
    path = study.names("101").standard("desc-healpix_dwi.nii.gz")
    path.rename(path.with_name(path.name.replace("res-6", "res-2")))
    with pytest.raises(InputError, match="res-2: sub-101"):
        read(study)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"Nside": []}', '{"Nside": 3}'])
def test_broken_sidecar_is_named(make_study: Any, content: str) -> None:
    study = make_study(per_class=2)
    study.names("001").standard("desc-healpix_dwi.json").write_text(content)
    with pytest.raises(InputError, match="sub-001"):
        read(study)


def test_truncated_image_is_named(make_study: Any) -> None:
    study = make_study(per_class=2)
    study.names("001").standard("desc-healpix_dwi.nii.gz").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(InputError, match="sub-001"):
        read(study)


def test_changing_diagnosis_is_refused(make_study: Any, person_class: Any) -> None:
    people = [person_class("01", "AD", "A", 70, "F", ("pre", "post"))]
    people += [person_class(f"0{i}", g, "A", 70, "F") for i, g in enumerate(("AD", "PD", "PD"), 2)]
    study = make_study(people=people)
    table = study.bids_dir / "sub-01" / "sub-01_sessions.tsv"
    table.write_text("session_id\tdiagnosis\nses-post\tPD\n")
    with pytest.raises(InputError, match="several over the sessions of sub-01"):
        read(study)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sub-000\tAD\n" * (MAX_ROWS + 2), "more than 100000 rows"),
        ("sub-000\t" + "x" * (MAX_CELL + 1) + "\n", "a cell of"),
        ("sub-000\t" + "x" * 10_000_000 + "\n", "a cell of"),
        ("sub-000\tAD\nsub-000\tPD\n", "several for 000"),
    ],
)
def test_absurd_tables_are_refused(make_study: Any, text: str, named: str) -> None:
    study = make_study(per_class=2)
    (study.bids_dir / "participants.tsv").write_text(f"participant_id\tdiagnosis\n{text}")
    with pytest.raises(InputError, match=named):
        read(study)


def test_unknown_site_column(make_study: Any) -> None:
    with pytest.raises(InputError, match="a column scanner"):
        read(make_study(per_class=2), site="scanner")


def test_continuous_target_is_no_class(make_study: Any) -> None:
    with pytest.raises(InputError, match="column age"):
        read(make_study(per_class=12), target="age", folds=2)


def test_hostile_text_stays_text(make_study: Any, person_class: Any, tmp_path: Any) -> None:
    evil = "../../x;$(rm)<script>"
    people = [
        person_class(f"0{i}", g, evil, 70, evil) for i, g in enumerate((evil, evil, "PD", "PD"))
    ]
    cohort = read(make_study(people=people))
    assert {row.site for row in cohort.rows} == {evil}
    path = tmp_path / "group_cohort.tsv"
    write_cohort(path, cohort, {"t": {"00": 1}})
    lines = path.read_text().splitlines()
    assert {len(line.split("\t")) for line in lines} == {9}
    assert lines[1].split("\t")[3] == evil


def test_no_derivatives_at_all(make_study: Any) -> None:
    study = make_study(per_class=2)
    shutil.rmtree(study.output_dir)
    with pytest.raises(InputError, match="run the participant level first"):
        read(study)


def test_derivatives_of_people_outside_the_table_are_left(make_study: Any) -> None:
    study = make_study(per_class=3)
    stranger = study.names("stranger")
    write_json(stranger.standard("desc-healpix_dwi.json"), {"Nside": 2})
    write_image(stranger.standard("desc-healpix_dwi.nii.gz"), np.zeros((2, 2, 2, 24)), np.eye(4))
    assert "stranger" not in {row.participant for row in read(study).rows}
