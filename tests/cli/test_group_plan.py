"""What the group level says before it trains: exit code, sentence, and nothing left on disk.

Every case goes through the command line, mostly as a dry run, which does all checks of a run.
"""

import gzip
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from learn.conftest import Person, Study, make_people

from bids_gevnet.bids.manifest import write_manifest
from bids_gevnet.cli.group_jobs import main as write_jobs
from bids_gevnet.cli.run import main
from bids_gevnet.errors import InputError
from bids_gevnet.learn.cohort.copies import refuse_copies
from bids_gevnet.learn.cohort.members import read_cohort
from bids_gevnet.learn.cohort.store import store_scan, stored_bytes
from bids_gevnet.learn.train.effort import plan_effort
from bids_gevnet.learn.train.jobs import read_jobs
from bids_gevnet.learn.train.planning import plan_study
from bids_gevnet.settings import LearningSettings

SMALL = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--network", "ckn2")
HERE = ("--devices", "cpu:1", "--nprocs", "1", "--no-leave-site-out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight people whose participant level is done; to be copied."""
    root = tmp_path_factory.mktemp("finished")
    Study(root, make_people(4, ("AD", "PD"), ("A", "B")), effect=0.8, seed=0)
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run set what libraries read, and forget it afterwards."""
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run(
    root: Path, capsys: pytest.CaptureFixture[str], *options: str, level: str = "group"
) -> tuple[int, str]:
    code = main([str(root / "raw"), str(root / "derivatives"), level, *options])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def plan(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Do a dry run, which writes nothing and needs no work directory."""
    before, folders = content_of(root), sorted(root.rglob("*"))
    code, printed = run(root, capsys, "--dry-run", "-w", "/proc/none", *options)
    assert "Traceback" not in printed
    assert content_of(root) == before
    assert sorted(root.rglob("*")) == folders
    return code, printed


def table(replacements: Mapping[str, str]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / "raw" / "participants.tsv"
        text = path.read_text()
        for old, new in replacements.items():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)

    return damage


def unfinished(*labels: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for label in labels:
            shutil.rmtree(root / "derivatives" / f"sub-{label}")

    return damage


def encoded(change: Callable[[str], bytes]) -> Callable[[Path], None]:
    """Write participants.tsv as another program would."""

    def damage(root: Path) -> None:
        path = root / "raw" / "participants.tsv"
        path.write_bytes(change(path.read_text()))

    return damage


def series_renamed(root: Path) -> None:
    """Give a raw series another name than that of which the derivatives were made."""
    (samples,) = (root / "derivatives" / "sub-102").rglob("*desc-healpix_dwi.nii.gz")
    facts = samples.with_name("sub-102_desc-report_facts.json")
    facts.write_text(json.dumps({"acquisition": [{"name": "sub-102"}]}))
    raw = root / "raw" / "sub-102" / "dwi"
    (raw / "sub-102_dwi.nii.gz").rename(raw / "sub-102_run-1_dwi.nii.gz")


def no_longer_there(root: Path) -> None:
    """Remove a participant's raw scans after they were processed."""
    series_renamed(root)
    shutil.rmtree(root / "raw" / "sub-102")


def nothing(_root: Path) -> None:
    """Leave the study as it is."""


def who(content: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / "who.tsv").write_text(content)

    return damage


LEFT_OUT = {
    "everybody is there": (nothing, (), "8 participants with 8 scans", "left out: 0"),
    "one participant is unfinished": (
        unfinished("001"),
        (),
        "7 participants",
        "sub-001: no derivatives",
    ),
    "two are unfinished": (
        unfinished("001", "101"),
        (),
        "6 participants",
        "2 (sub-001, sub-101): no derivatives",
    ),
    "one has no label": (
        table({"sub-102\tPD": "sub-102\tNaN"}),
        (),
        "7 participants",
        "sub-102: no diagnosis",
    ),
    "NA for a label": (
        table({"sub-102\tPD": "sub-102\tNA"}),
        (),
        "7 participants",
        "sub-102: no diagnosis",
    ),
    "N/A for a label": (
        table({"sub-102\tPD": "sub-102\tN/A"}),
        (),
        "7 participants",
        "sub-102: no diagnosis",
    ),
    "a series was renamed after it had been processed": (
        series_renamed,
        (),
        "7 participants",
        "sub-102: made from series that the dataset no longer has",
    ),
    "a participant's scans were removed after they had been processed": (
        no_longer_there,
        (),
        "8 participants",
        "The dataset no longer has diffusion images of sub-102",
    ),
    "a table that Windows wrote": (
        encoded(lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()),
        (),
        "8 participants",
        "left out: 0",
    ),
    "labels joined by commas": (
        nothing,
        ("--exclude-participant-label", "sub-003,103"),
        "6 participants",
        "2 (sub-003, sub-103): excluded",
    ),
    "one has no row in participants.tsv": (
        table({"sub-102\t": "sub-x02\t"}),
        (),
        "7 participants",
        "sub-102: no row in participants.tsv",
    ),
    "blanks and quotes around labels": (
        table({"sub-102\tPD": " sub-102\t'PD'"}),
        (),
        "8 participants",
        "Blanks or quotes around diagnosis were removed for sub-102",
    ),
    "two are excluded": (
        nothing,
        ("--exclude-participant-label", "sub-003", "103"),
        "6 participants",
        "2 (sub-003, sub-103): excluded",
    ),
    "four are asked for": (
        nothing,
        ("--participant-label", "000", "001", "100", "101"),
        "4 participants",
        "4 (sub-002, sub-003, sub-102, sub-103): not among those asked for",
    ),
    "a table of whom to exclude": (
        who("participant_id\texclude\nsub-003\tyes\nsub-000\tno\n"),
        ("--participants-file", "{root}/who.tsv"),
        "7 participants",
        "sub-003: excluded",
    ),
    "a list of whom to take": (
        who("000\n001\n100\n101\n"),
        ("--participants-file", "{root}/who.tsv"),
        "4 participants",
        "not among those asked for",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_study_goes_on_with_those_who_are_there(
    root: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    damage, options, counted, named = LEFT_OUT[case]
    damage(root)
    filled = [option.format(root=root) for option in options]
    code, printed = plan(root, capsys, "--folds", "2", *filled)
    assert code == 0
    assert counted in printed
    assert named in printed


REFUSED = {
    "one class": (table({"\tPD\t": "\tAD\t"}), (), "at least two different values"),
    "only one class is there": (unfinished("100", "101", "102", "103"), (), "only 'AD'"),
    "a model that is not there": (
        nothing,
        ("--model", "models/AD-v-PD/final"),
        "give the folder of a model",
    ),
    "more folds than people": (nothing, ("--folds", "5"), "lower --folds to 4"),
    "one person of a class": (
        unfinished("101", "102", "103"),
        (),
        "a class of one person cannot be trained on and tested",
    ),
    "nobody is finished": (
        unfinished(*(f"{k}0{i}" for k in range(2) for i in range(4))),
        (),
        "run the participant level first",
    ),
    "no OUTPUT_DIR": (lambda root: shutil.rmtree(root / "derivatives"), (), "participant first"),
    "a class in two spellings": (
        table({"sub-102\tPD": "sub-102\tpd"}),
        (),
        "'PD' (3 participants) and 'pd' (1 participant), which are probably the same",
    ),
    "a class as 1 and as 1.0": (
        table({"\tPD\t": "\t1\t", "sub-102\t1": "sub-102\t1.0"}),
        (),
        "'1' (3 participants) and '1.0' (1 participant), which are probably the same",
    ),
    "no participants.tsv": (
        lambda root: (root / "raw" / "participants.tsv").unlink(),
        (),
        "participants.tsv at the top of the dataset",
    ),
    "an empty participants.tsv": (encoded(lambda _: b""), (), "found an empty file"),
    "semicolons in participants.tsv": (
        encoded(lambda text: text.replace("\t", ";").encode()),
        (),
        "separate columns by tabs",
    ),
    "participants.tsv in UTF-16": (
        encoded(lambda text: text.encode("utf-16")),
        (),
        "it is not text in UTF-8, from byte 1 on",
    ),
    "two rows of one participant": (
        table({"sub-102\tPD": "sub-103\tPD"}),
        (),
        "one row per participant",
    ),
    "an unknown label": (nothing, ("--participant-label", "77"), "77, which the dataset does not"),
    "an unknown label to exclude": (
        nothing,
        ("--exclude-participant-label", "77"),
        "for --exclude-participant-label; found 77",
    ),
    "an unknown session": (nothing, ("--session-label", "pre"), "for --session-label; found pre"),
    "everybody excluded": (
        nothing,
        ("--participant-label", "000", "--exclude-participant-label", "000"),
        "at least one participant who is asked for",
    ),
    "no such participants file": (
        nothing,
        ("--participants-file", "{root}/who.tsv"),
        "No such file",
    ),
    "a participants file with an unclear answer": (
        who("participant_id\tinclude\nsub-000\tperhaps\n"),
        ("--participants-file", "{root}/who.tsv"),
        "'perhaps' for include in line 2",
    ),
    "an unknown network": (nothing, ("--network", "ckn9"), "ckn9"),
    "an unknown reference site": (nothing, ("--reference-site", "Z"), "a site of the cohort"),
    "more GPUs than there are": (nothing, ("--devices", "77"), "77"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_a_rule_would_break_the_dry_run_and_the_run_say_so(
    root: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    damage, options, sentence = REFUSED[case]
    damage(root)
    filled = ["--folds", "2", *(option.format(root=root) for option in options)]
    code, printed = plan(root, capsys, *filled)
    assert code == 2
    assert sentence in printed
    assert "What to do" in printed
    before = sorted(root.rglob("*"))
    assert run(root, capsys, *filled) == (code, printed)
    assert sorted(root.rglob("*")) == before


def test_sessions_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = [
        Person(f"0{i}", "AD" if i % 2 else "PD", "A", 70, "F", ("pre", "post")) for i in range(4)
    ]
    Study(tmp_path, people, effect=0.8, seed=0)
    assert "4 participants with 8 scans" in plan(tmp_path, capsys, "--folds", "2")[1]
    code, printed = plan(tmp_path, capsys, "--folds", "2", "--session-label", "ses-pre")
    assert code == 0
    assert "4 participants with 4 scans" in printed
    assert "sub-00_ses-post, sub-01_ses-post" in printed
    assert "session not asked for" in printed


def test_the_dry_run_says_what_will_be_trained(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--folds", "2", "--epochs", "3", "--samples-per-class", "10", "--batch-size", "8")
    code, printed = plan(root, capsys, *options, "--network", "ckn2")
    assert code == 0
    assert "AD v. PD: 2 folds, of 4, 4 participants" in printed
    assert printed.count("left out in turn") == 2
    # Two folds, two sites and the final model; three batches of the 20 samples of each epoch.
    assert "models to train: 5 of ckn2" in printed
    assert "steps per model: 9" in printed
    assert "scans through a network, over all models: 300" in printed


def test_the_dry_run_says_how_long_training_takes(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content_of(root)
    code, printed = plan(root, capsys, *SMALL, *HERE, "--voxels-per-step", "0.5")
    assert code == 0
    assert "training takes less than a minute on this machine" in " ".join(printed.split())
    assert "(1 CPU process, by a timed step)" in " ".join(printed.split())
    assert "more than a day" not in printed
    assert content_of(root) == before


def test_beyond_a_day_it_says_what_to_change(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--folds", "2", "--epochs", "9999999", "--network", "ckn2", *HERE)
    code, printed = plan(root, capsys, *options)
    assert code == 0
    assert "more than a day" in printed
    assert "would make it" in printed


def test_a_run_says_how_long_it_trains_unless_all_is_trained(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal and in its log; a second run has nothing to train."""
    for number in (1, 2):
        assert run(root, capsys, *SMALL, *HERE)[0] == 0
        logs = sorted((root / "derivatives" / "logs").glob("group-*.log"))
        said = sum("training takes " in path.read_text() for path in logs)
        assert (len(logs), said) == (number, 1)


def test_a_truncated_mask_does_not_stop_the_dry_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mask,) = (root / "derivatives" / "sub-000").rglob("*space-*_desc-brain_mask.nii.gz")
    mask.write_bytes(mask.read_bytes()[:-20])
    assert plan(root, capsys, "--folds", "2")[0] == 0


def test_somebody_whose_samples_were_deleted_is_not_left_out_in_silence(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    derivatives = root / "derivatives"
    image = next(derivatives.rglob("*desc-healpix_dwi.nii.gz"))
    label = image.parents[1].name.removeprefix("sub-")
    manifest = derivatives / "logs" / "manifests" / f"sub-{label}.json"
    write_manifest(manifest, derivatives, label, made_from="")
    assert plan(root, capsys, *SMALL, *HERE)[0] == 0
    image.unlink()
    code, printed = plan(root, capsys, *SMALL, *HERE)
    assert code == 2
    assert f"missing or changed files of 1 participant: sub-{label}: " in printed
    assert f"run the participant level again with --participant-label {label}" in printed
    code, printed = plan(root, capsys, *SMALL, *HERE, "--exclude-participant-label", label)
    assert code == 0
    assert "7 participants with 7 scans would be studied" in printed


def test_a_target_that_is_not_there_is_to_be_chosen_among_those_that_are(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = plan(root, capsys, *SMALL, *HERE, "--target", "Diagnosis")
    assert code == 2
    assert "found the columns participant_id, diagnosis" in printed
    assert "choose one of them for --target, spelled as it is there" in printed


def test_columns_of_age_and_sex_with_other_names_are_noticed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table({"age": "Alter", "sex": "Geschlecht"})(root)
    code, printed = plan(root, capsys, *SMALL, *HERE)
    assert code == 0
    assert "no columns age and sex: harmonisation does not account for them" in printed
    assert "Nobody's age or sex is known" in printed
    code, printed = plan(root, capsys, *SMALL, *HERE, "--covariates", "Alter", "Geschlecht")
    assert "no column" not in printed
    assert "name columns that hold them age and sex, as BIDS does" in printed
    table({"Alter": "age", "Geschlecht": "gender"})(root)
    assert "Nobody's age" not in plan(root, capsys, *SMALL, *HERE)[1]


def test_the_dry_run_shows_the_settings_that_the_level_reads(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed = plan(root, capsys, *SMALL, *HERE)
    assert "output_resolution" not in printed  # scans are on the grid that they were made on
    assert "samples_per_class = 2" in printed


def test_planned_disk_is_what_the_store_takes(root: Path) -> None:
    cohort = read_cohort(root / "derivatives", root / "raw", folds=2)
    stored = [
        store_scan(root / "store", row.image, row.mask, nside=cohort.nside, voxel_mm=6.0)
        for row in cohort.rows
    ]
    learning = LearningSettings(folds=2, network="ckn2")
    effort = plan_effort(cohort, plan_study(cohort, learning, seed=0), learning)
    on_disk = sum(p.stat().st_size for scan in stored for p in scan.folder.glob("*.npy"))
    headers = 128 * 3 * len(stored)
    assert effort.store_bytes + headers == on_disk
    assert stored_bytes(stored[0].mask, nside=cohort.nside) * 8 == effort.store_bytes


def test_who_is_missing_is_in_the_summary_the_metrics_and_the_report(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished("001")(root)
    table({"sub-102\tPD": "sub-102\tNA"})(root)
    code, printed = run(root, capsys, *SMALL, *HERE)
    assert code == 0
    assert "Left out: 2\n" in printed
    report = (root / "derivatives" / "group_report.html").read_text()
    metrics = (root / "derivatives" / "group_metrics.json").read_text()
    for text in (printed, report, metrics):
        assert "sub-001" in text
        assert "no derivatives (the participant level has not finished, or failed)" in text
        assert "sub-102" in text
    # Somebody else goes missing: the list is new though nobody was added.
    shutil.rmtree(root / "raw" / "sub-001")
    code, printed = run(root, capsys, *SMALL, *HERE)
    assert code == 0
    assert "sub-001: no diffusion scan in the dataset" in printed


def test_jobs_for_a_cluster_are_of_those_who_are_there(
    root: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """After participants of which some failed (AFTER=afterany), training has its jobs."""
    unfinished("001")(root)
    options = ["--exclude-participant-label", "103", *SMALL, *HERE]
    assert write_jobs([str(root / "raw"), str(root / "derivatives"), "group", *options]) == 0
    jobs = read_jobs(Path(capsys.readouterr().out.splitlines()[-1]))
    trained = {scan.participant for job in jobs for scan in job.training}
    assert trained == {"000", "002", "003", "100", "101", "102"}
    assert "left out: sub-001: no derivatives" in caplog.text
    assert "left out: sub-103: excluded" in caplog.text


@pytest.mark.parametrize("sessions", [False, True])
def test_copies_of_an_image_are_named_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sessions: bool
) -> None:
    people = [
        Person(f"0{i}", "AD" if i % 2 else "PD", "A", 70, "F", ("pre", "post") if sessions else ())
        for i in range(4)
    ]
    study = Study(tmp_path, people, effect=0.8, seed=0)
    source, target = (
        (study.names("01", "post"), study.names("01", "pre"))
        if sessions
        else (study.names("00"), study.names("03"))
    )
    for kind in ("desc-healpix_dwi.nii.gz", "desc-brain_mask.nii.gz"):
        shutil.copy(source.standard(kind), target.standard(kind))
    code, printed = run(tmp_path, capsys, *SMALL, *HERE)
    assert code == 1
    assert f"the same one in {source.prefix} = {target.prefix}." in printed
    assert ("--session-label" if sessions else "--exclude-participant-label") in printed
    assert not (tmp_path / "derivatives" / "models").exists()


def test_the_same_content_in_other_files_is_a_copy(root: Path) -> None:
    """Compressed anew, the bytes differ and the image does not."""
    cohort = read_cohort(root / "derivatives", root / "raw", folds=2)
    first, second = cohort.rows[0], cohort.rows[5]
    for source, target in ((first.image, second.image), (first.mask, second.mask)):
        target.write_bytes(gzip.compress(gzip.decompress(source.read_bytes()), compresslevel=1))
    folders = [
        store_scan(root / "store", row.image, row.mask, nside=cohort.nside, voxel_mm=6.0).folder
        for row in cohort.rows
    ]
    assert folders[0] != folders[5]
    with pytest.raises(InputError, match=rf"{first.scan} = {second.scan}\b"):
        refuse_copies(cohort.rows, folders)
    others = [i for i in range(len(folders)) if i != 5]
    refuse_copies([cohort.rows[i] for i in others], [folders[i] for i in others])
