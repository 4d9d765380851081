"""From derivatives and tables to a cohort, and what is said of those that do not fit."""

import json
import shutil
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.bids.selection import EXCLUDED, NOT_ASKED_FOR
from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.left_out import (
    NO_DERIVATIVES,
    NO_ROW,
    NO_SCAN,
    SESSION_NOT_ASKED_FOR,
    UNREADABLE,
    no_label,
)
from bids_gevnet.learn.cohort.members import (
    Cohort,
    cohort_from_json,
    cohort_to_json,
    read_cohort,
    write_cohort,
)
from bids_gevnet.learn.cohort.tables import MAX_CELL, MAX_ROWS
from bids_gevnet.settings import SelectionSettings


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


def reasons(cohort: Cohort) -> dict[str, str]:
    return {entry.scan: entry.reason for entry in cohort.left_out}


def test_those_without_derivatives_are_left_out_and_named(make_study: Any) -> None:
    study = make_study(per_class=3)
    shutil.rmtree(study.output_dir / "sub-001")
    cohort = read(study)
    assert [row.participant for row in cohort.rows] == ["000", "002", "100", "101", "102"]
    assert reasons(cohort) == {"sub-001": NO_DERIVATIVES}
    # Somebody who was never scanned is another matter.
    shutil.rmtree(study.bids_dir / "sub-001")
    assert reasons(read(study)) == {"sub-001": NO_SCAN}


def test_a_complete_cohort_leaves_nobody_out(make_study: Any) -> None:
    cohort = read(make_study(per_class=2))
    assert cohort.left_out == ()
    assert cohort.warnings == ()


@pytest.mark.parametrize("cell", ["n/a", "N/A", "NA", "na", "NaN", "nan", "None", "", "  ", '" "'])
def test_cells_without_a_value_are_no_class(make_study: Any, cell: str) -> None:
    study = make_study(per_class=3)
    table = study.bids_dir / "participants.tsv"
    table.write_text(table.read_text().replace("sub-102\tPD", f"sub-102\t{cell}"))
    cohort = read(study)
    assert cohort.labels == ("AD", "PD")
    assert reasons(cohort) == {"sub-102": no_label("diagnosis")}


@pytest.mark.parametrize("label", ["none", "Nan", "NAS", "nonec"])
def test_words_that_only_look_missing_are_classes(make_study: Any, label: str) -> None:
    study = make_study(per_class=2)
    table = study.bids_dir / "participants.tsv"
    table.write_text(table.read_text().replace("\tPD\t", f"\t{label}\t"))
    assert read(study).labels == tuple(sorted(("AD", label)))


@pytest.mark.parametrize(
    ("one", "other"),
    [("AD", "ad"), ("1", "1.0"), ("01", "1"), ("early  AD", "early AD"), ("Straße", "STRASSE")],
)
def test_two_spellings_of_one_class_are_refused(make_study: Any, one: str, other: str) -> None:
    study = make_study(per_class=3, classes=("AD", "PD", "VaD"))
    table = study.bids_dir / "participants.tsv"
    text = table.read_text().replace("\tAD\t", f"\t{one}\t").replace("\tPD\t", f"\t{other}\t")
    table.write_text(text.replace(f"sub-102\t{other}", f"sub-102\t{one}"))
    with pytest.raises(InputError) as caught:
        read(study)
    assert f"{one!r} (4 participants)" in caught.value.found
    assert f"{other!r} (2 participants)" in caught.value.found
    assert "'VaD'" not in caught.value.found


def test_different_classes_are_not_taken_for_one(make_study: Any) -> None:
    study = make_study(per_class=2, classes=("1", "10", "A1"))
    assert read(study).labels == ("1", "10", "A1")


def test_blanks_and_quotes_are_trimmed_and_said(make_study: Any, person_class: Any) -> None:
    people = [person_class("01", "AD", "A", 70, "F", ("pre",))]
    people += [person_class(f"0{i}", g, "A", 70, "F") for i, g in enumerate(("AD", "PD", "PD"), 2)]
    study = make_study(people=people)
    table = study.bids_dir / "participants.tsv"
    text = table.read_text().replace("sub-02\tAD", " \"sub-02\" \t'AD'")
    table.write_text(text.replace("sub-03\tPD", "sub-03\t PD "))
    sessions = study.bids_dir / "sub-01" / "sub-01_sessions.tsv"
    sessions.write_text('session_id\tdiagnosis\nses-pre\t"AD"\n')
    cohort = read(study)
    assert cohort.left_out == ()
    assert {row.participant: row.label for row in cohort.rows} == {
        "01": "AD", "02": "AD", "03": "PD", "04": "PD",
    }  # fmt: skip
    assert cohort.warnings == (
        "Blanks or quotes around participant_id were removed for sub-02.",
        "Blanks or quotes around diagnosis were removed for sub-01, sub-02, sub-03.",
    )


def test_an_id_repeated_but_for_blanks_is_refused(make_study: Any) -> None:
    study = make_study(per_class=2)
    table = study.bids_dir / "participants.tsv"
    table.write_text(table.read_text().replace("sub-001", "sub-000 "))
    with pytest.raises(InputError, match="several for sub-000"):
        read(study)


def test_a_scan_without_a_row_is_named(make_study: Any) -> None:
    study = make_study(per_class=4)
    table = study.bids_dir / "participants.tsv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith("sub-101")))
    shutil.rmtree(study.output_dir / "sub-102")
    table.write_text(table.read_text().replace("sub-102", "sub-l02"))
    cohort = read(study)
    assert reasons(cohort) == {"sub-101": NO_ROW, "sub-102": NO_ROW, "sub-l02": NO_SCAN}


def test_options_choose_participants_and_sessions(make_study: Any, person_class: Any) -> None:
    people = [
        person_class(f"{i:02d}", "AD" if i % 2 else "PD", "A", 70, "F", ("pre", "post"))
        for i in range(8)
    ]
    study = make_study(people=people)
    shutil.rmtree(study.output_dir / "sub-06" / "ses-post")
    cohort = read(
        study,
        selection=SelectionSettings(
            exclude_participant_label=("sub-07",),
            participant_label=tuple(f"{i:02d}" for i in range(1, 8)),
            session_label=("ses-post",),
        ),
    )
    assert [row.scan for row in cohort.rows] == [f"sub-{i:02d}_ses-post" for i in range(1, 6)]
    assert reasons(cohort) == {
        "sub-00": NOT_ASKED_FOR,
        "sub-07": EXCLUDED,
        "sub-06_ses-post": NO_DERIVATIVES,
        **{f"sub-{i:02d}_ses-pre": SESSION_NOT_ASKED_FOR for i in range(1, 7)},
    }


def test_what_is_left_out_survives_json(make_study: Any) -> None:
    study = make_study(per_class=3)
    shutil.rmtree(study.output_dir / "sub-001")
    study.write_participants(drop="102")
    cohort = read(study)
    assert len(cohort.left_out) == 2
    again = cohort_from_json(json.loads(json.dumps(cohort_to_json(cohort))))
    assert again.left_out == cohort.left_out
    assert again.rows == cohort.rows


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
def test_broken_sidecar_is_left_out_and_named(make_study: Any, content: str) -> None:
    study = make_study(per_class=3)
    study.names("001").standard("desc-healpix_dwi.json").write_text(content)
    assert reasons(read(study)) == {"sub-001": UNREADABLE}


@pytest.mark.parametrize("kind", ["desc-healpix_dwi", "desc-brain_mask"])
@pytest.mark.parametrize("content", [None, b"", b"\x1f\x8b\x08"])
def test_truncated_image_is_left_out_and_named(
    make_study: Any, kind: str, content: bytes | None
) -> None:
    study = make_study(per_class=3)
    path = study.names("001").standard(f"{kind}.nii.gz")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    absent = content is None and kind == "desc-healpix_dwi"
    assert reasons(read(study)) == {"sub-001": NO_DERIVATIVES if absent else UNREADABLE}


def test_who_is_missing_is_said_where_a_rule_breaks(make_study: Any) -> None:
    study = make_study(per_class=2)
    shutil.rmtree(study.output_dir / "sub-001")
    with pytest.raises(InputError) as caught:
        read(study)
    assert "1 of 'AD' (sub-000); left out are" in caught.value.found
    assert "sub-001" in caught.value.found
    # Fewer folds cannot help one person.
    assert "lower --folds" not in caught.value.remedy
    assert "--exclude-participant-label" in caught.value.remedy


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
        ("sub-000\tAD\nsub-000\tPD\n", "several for sub-000"),
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
    with pytest.raises(InputError, match=r"column age.*--task regression"):
        read(make_study(per_class=12), target="age", folds=2, task="classification")


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
    assert {len(line.split("\t")) for line in lines} == {10}  # one for the source
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
    cohort = read(study)
    assert "stranger" not in {row.participant for row in cohort.rows}
    assert reasons(cohort) == {"sub-stranger": NO_ROW}


def _say_b_value(study: Any, label: str, b_value: Any) -> None:
    path = study.names(label).standard("desc-healpix_dwi.json")
    write_json(path, json.loads(path.read_text()) | {"BValue": b_value})


def test_a_shell_that_all_share_is_known(make_study: Any) -> None:
    study = make_study(per_class=2)
    assert (read(study).b_values, read(study).shells) == ((), 1)
    for number, person in enumerate(study.people):
        _say_b_value(study, person.label, 990 + 10 * number)
    cohort = read(study)
    assert cohort.b_values == (1005,)
    assert cohort_from_json(json.loads(json.dumps(cohort_to_json(cohort)))).b_values == (1005,)


def test_one_shell_of_differing_b_values_is_pooled_with_a_warning(make_study: Any) -> None:
    study = make_study(per_class=2)
    for number, person in enumerate(study.people):
        _say_b_value(study, person.label, 800 + 100 * number)
    cohort = read(study)
    assert cohort.b_values == ()
    assert any("from 800 to 1100 s/mm²" in text for text in cohort.warnings)


def test_a_scan_without_a_shell_of_the_others_is_named(make_study: Any) -> None:
    study = make_study(per_class=2)
    for number, person in enumerate(study.people):
        if number == 2:
            _say_b_value(study, person.label, 1000)
            continue
        _say_b_value(study, person.label, [1000, 3000])
        path = study.names(person.label).standard("desc-healpix_dwi.nii.gz")
        image = nib.load(path)
        twice = np.concatenate([image.get_fdata()] * 2, axis=3)
        write_image(path, twice, image.affine, scale=1 / 16384)
    with pytest.raises(InputError, match=f"near b = 3000 in sub-{study.people[2].label}"):
        read(study)
    with_two = {"exclude_participant_label": (study.people[2].label,)}
    cohort = read(study, selection=SelectionSettings(**with_two), folds=1)
    assert (cohort.b_values, cohort.shells) == ((1000, 3000), 2)


def write_source(study: Any, label: str, **source: str) -> None:
    folder = study.output_dir / f"sub-{label}" / "dwi"
    (image,) = folder.glob("*_desc-healpix_dwi.nii.gz")
    name = image.name.split("_space-")[0]
    write_json(folder / f"{name}_desc-report_facts.json", {"name": name, "source": source})


def test_several_sources_are_named_with_their_classes(make_study: Any, tmp_path: Any) -> None:
    study = make_study(per_class=2)
    assert {row.source for row in read(study).rows} == {"raw"}
    assert not [text for text in read(study).warnings if "sources" in text]
    patients = [person for person in study.people if person.group == "AD"]
    for person in patients:
        write_source(study, person.label, pipeline="qsiprep", title="QSIPrep", version="1.0.1")
    cohort = read(study)
    (warning,) = [text for text in cohort.warnings if "sources" in text]
    assert "QSIPrep 1.0.1: 2 AD, 0 PD; raw: 0 AD, 2 PD" in warning
    assert cohort_from_json(json.loads(json.dumps(cohort_to_json(cohort)))).rows == cohort.rows
    write_cohort(tmp_path / "group_cohort.tsv", cohort, {})
    header, *rows = (tmp_path / "group_cohort.tsv").read_text().splitlines()
    assert "source" in header.split("\t")
    assert sum("QSIPrep 1.0.1" in row.split("\t") for row in rows) == 2
