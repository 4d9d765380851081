"""Who is finished: not after a change of settings or files, and the reason is said."""

import logging

import pytest

from bids_gevnet.bids.query import find_participants
from bids_gevnet.cli.finished import Finisher
from bids_gevnet.cli.parser import parse_request
from bids_gevnet.cli.run import main
from bids_gevnet.workflows.tools import choose_tools


@pytest.fixture
def finisher(dataset):
    """Ask for the first participant of a dataset, with options."""

    def ask(*options):
        out = dataset.root.parent / "out"
        request = parse_request([str(dataset.root), str(out), "participant", *options])
        settings = request.settings
        (first, _) = find_participants(
            dataset.root,
            selection=settings.selection,
            b0_threshold=settings.preprocessing.b0_threshold,
        )
        tools = choose_tools(settings.preprocessing)
        return Finisher(request, {"sub_01": first}, tools), first

    return ask


def test_a_participant_is_finished_until_its_settings_change(finisher, caplog):
    asked, first = finisher()
    assert not asked.is_finished(first)
    assert caplog.messages == []  # a first run has nothing to explain
    folder = asked.request.output_dir / "sub-01"
    folder.mkdir(parents=True)
    (folder / "scan.nii.gz").write_bytes(b"scan")
    asked.seal("sub_01")
    assert asked.is_finished(first)
    other, first = finisher("--output-resolution", "4")
    with caplog.at_level(logging.WARNING):
        assert not other.is_finished(first)
    assert "sub-01: finished before" in caplog.text
    assert "with other settings" in caplog.text
    (folder / "scan.nii.gz").unlink()
    caplog.clear()
    assert not asked.is_finished(first)
    assert "sub-01: missing or changed since it was made" in caplog.text


def test_an_image_of_the_same_size_and_other_content_is_noticed(finisher, dataset, caplog):
    """As a scan that was converted again, into a file that is not compressed, always is."""
    asked, first = finisher()
    asked.seal("sub_01")
    assert asked.is_finished(first)
    image = dataset.dwi(".nii.gz")
    content = image.read_bytes()
    image.write_bytes(content)  # a new time, and nothing else
    assert asked.is_finished(first)
    image.write_bytes(content[:-9] + bytes(9))
    assert not asked.is_finished(first)
    assert "sub-01: its input has changed since it was made" in caplog.text
    assert "sub-01_dwi.nii.gz" in caplog.text


def test_the_dry_run_says_who_is_finished_and_why_others_are_not(finisher, dataset, capsys):
    asked, _ = finisher()
    report = asked.request.output_dir / "sub-01.html"
    report.parent.mkdir()
    report.write_text("report")
    asked.seal("sub_01")
    command = [str(dataset.root), str(asked.request.output_dir), "participant", "--dry-run"]
    command += ["--skip-bids-validation"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "1 of 2 participants would be processed, 1 finished before" in said
    assert "sub-01  [finished before]" in said
    report.unlink()
    assert main(command) == 0
    assert "2 of 2 participants would be processed:" in capsys.readouterr().out
