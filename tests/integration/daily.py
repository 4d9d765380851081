"""What happens to output, runs and disks on an ordinary day, and what must come of it.

As in `faults`, each is a function that prepares a place, runs the command line there and returns
how it ended.
"""

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from integration.faults import Ended, Fault, Place, make_place, put_a_head_in

from bids_gevnet.cli.locks import locked, using
from bids_gevnet.layout import WorkLayout

ALL_OF_IT = "derivatives, reports, logs"
TRAINED = "derivatives, models, the group report, logs"
AGAIN = "missing or changed since it was made, so it is made again"
STOPPED = "stopped by a signal; the same command resumes"
UNFORESEEN = """\
import bids_gevnet.bids.query as query

def find_participants(*_, **__):
    return 1 / 0

query.find_participants = find_participants
"""
"""Run when Python starts: a mistake in a program that has none of this kind."""


@cache
def _processed() -> Path:
    """Process one participant, once for all cases that begin after that."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = make_place(folder)
    put_a_head_in(place)
    ended = place.participant()
    assert ended.code == 0, ended.said
    shutil.rmtree(place.work)
    return place.folder


def put_a_finished_participant_in(place: Place) -> None:
    """Put a dataset of one participant and all that was made of it in place of the raw dataset."""
    shutil.rmtree(place.raw)
    shutil.copytree(_processed() / "data", place.raw)
    shutil.copytree(_processed() / "out", place.out)
    description = place.out / "dataset_description.json"  # it says where the raw dataset is
    text = description.read_text(encoding="utf-8")
    description.write_text(text.replace(str(_processed() / "data"), str(place.raw)))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "logs" not in path.parts
    }


# Participant level: output that is not what it was


def _samples(place: Place) -> Path:
    (samples,) = (place.out / "sub-001").rglob("*desc-healpix_dwi.nii.gz")
    return samples


def damaged_output(damage: Callable[[Place], object]) -> Callable[[Place], Ended]:
    def run(place: Place) -> Ended:
        put_a_finished_participant_in(place)
        before = tree(place.out)
        damage(place)
        assert tree(place.out) != before
        ended = place.participant()
        after = tree(place.out)
        assert after.keys() == before.keys()
        # A report says when it was made.
        assert {name for name in before if after[name] != before[name]} <= {"sub-001.html"}
        return ended

    return run


def copied_output(place: Place) -> Ended:
    """Take OUTPUT_DIR to another machine, without the times of its files."""
    put_a_finished_participant_in(place)
    for path in place.out.rglob("*"):
        os.utime(path, (1, 1))
    before = tree(place.out)
    ended = place.participant("-v")
    assert tree(place.out) == before
    assert not list(place.work.glob("participant/sub_*"))
    return ended


def replaced_scan(place: Place) -> Ended:
    """Put another scan in place of one, of the same size: the same volumes in another order."""
    put_a_finished_participant_in(place)
    import nibabel as nib

    (image,) = place.raw.glob("sub-001/dwi/*_dwi.nii.gz")
    plain = image.with_suffix("")
    loaded = nib.load(image)
    volumes = np.asarray(loaded.dataobj)
    nib.save(nib.Nifti1Image(volumes, loaded.affine, loaded.header), plain)
    image.unlink()
    first = place.participant()
    assert first.code == 0, first.said
    size = plain.stat().st_size
    turned = np.ascontiguousarray(volumes[..., ::-1])
    nib.save(nib.Nifti1Image(turned, loaded.affine, loaded.header), plain)
    assert plain.stat().st_size == size
    return place.participant()


def output_of_others(content: dict[str, object]) -> Callable[[Place], Ended]:
    """Give a folder for OUTPUT_DIR in which somebody else's dataset is."""

    def run(place: Place) -> Ended:
        place.out.mkdir()
        (place.out / "dataset_description.json").write_text(json.dumps(content))
        (place.out / "README.md").write_text("Mine.")
        before = tree(place.out)
        ended = place.participant()
        assert tree(place.out) == before
        return ended

    return run


def lock_of_a_dead_run(place: Place) -> Ended:
    put_a_finished_participant_in(place)
    (place.out / "logs" / "locks" / "sub-001.lock").write_text("pid 1 on another-host\n")
    return place.participant()


# Participant level: runs


def shared_work_directory(place: Place) -> Ended:
    """Let a run on a participant of the same label, of another dataset, use the work directory."""
    work = WorkLayout(place.work)
    with using(work), locked(work.locks("participant"), ["sub-01"]):
        return place.participant()


def damaged_inside(place: Place) -> Ended:
    """Flip bytes in the middle of a compressed image, of which no header tells."""
    put_a_finished_participant_in(place)
    shutil.copytree(place.raw / "sub-001", place.raw / "sub-002")
    for path in list((place.raw / "sub-002").rglob("sub-001*")):
        path.rename(path.with_name(path.name.replace("sub-001", "sub-002")))
    (image,) = place.raw.glob("sub-002/dwi/*_dwi.nii.gz")
    content = bytearray(image.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 64)
    content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
    image.write_bytes(content)
    ended = place.participant()
    assert "1 of 2 participants done" in ended.said
    return ended


def late_failure(place: Place) -> Ended:
    """Let the last stage fail: the name of one of its files is taken by a folder."""
    put_a_head_in(place)
    (place.out / "sub-001" / "dwi" / "sub-001_desc-brain_mask.json" / "mine").mkdir(parents=True)
    ended = place.participant()
    report = (place.out / "sub-001.html").read_text()
    assert "sub-001_desc-brain_mask.json" in report
    return ended


def unforeseen(place: Place) -> Ended:
    guard = place.folder / "guard"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(UNFORESEEN)
    paths = os.pathsep.join([str(guard), *filter(None, [os.environ.get("PYTHONPATH")])])
    place.out.mkdir()
    ended = place.participant(before=("env", f"PYTHONPATH={paths}"))
    (kept,) = (place.out / "logs").glob("error-*.txt")
    assert "ZeroDivisionError" in kept.read_text()
    return ended


def signalled(level: str, number: signal.Signals, after: str) -> Callable[[Place], Ended]:
    """Send a signal when a line has been printed; Ctrl-C goes to all processes of a terminal."""

    def run(place: Place) -> Ended:
        if level == "participant":
            put_a_head_in(place)
        process = subprocess.Popen(
            place.command(level, *(["--epochs", "9999"] if level == "group" else [])),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if after in line:
                break
        time.sleep(1)
        send = os.killpg if number == signal.SIGINT else os.kill
        send(process.pid, number)
        said = process.communicate(timeout=60)[0]
        return Ended(process.returncode, "".join(lines) + said)

    return run


def with_files_of_the_user(level: str) -> Callable[[Place], Ended]:
    """Ask for a clean work directory where the user keeps something else."""

    def run(place: Place) -> Ended:
        if level == "participant":
            put_a_head_in(place)
        place.work.mkdir()
        (place.work / "thesis.txt").write_text("mine")
        ended = getattr(place, level)("--clean-workdir")
        assert [path.name for path in place.work.iterdir()] == ["thesis.txt"]
        return ended  # type: ignore[no-any-return]

    return run


def folder_of_the_user(place: Place) -> Ended:
    mine = place.work / "cache" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    ended = place.participant("--clean-workdir")
    assert [path.name for path in place.work.rglob("*")] == ["cache", "thesis.txt"]
    return ended


# Group level


def killed(place: Place) -> Ended:
    """Kill a training that is under way, then give the same command again."""
    ended = place.group("--epochs", "9999", before=("timeout", "--signal=KILL", "20"))
    assert ended.code in (128 + signal.SIGKILL, -signal.SIGKILL), ended.said
    return place.group()


def same_image_twice(place: Place) -> Ended:
    (source,) = (place.derivatives / "sub-001").rglob("*desc-healpix_dwi.nii.gz")
    (target,) = (place.derivatives / "sub-101").rglob("*desc-healpix_dwi.nii.gz")
    for kind in ("desc-healpix_dwi", "desc-brain_mask"):
        name = str(source).replace("desc-healpix_dwi", kind)
        shutil.copy(name, str(target).replace("desc-healpix_dwi", kind))
    return place.group()


DAILY = {
    "a derivative was truncated": Fault("participant",
        damaged_output(lambda place: os.truncate(_samples(place), 1000)), 0,
        [AGAIN, "1 of 1 participants done"], ALL_OF_IT, slow=True),
    "a derivative was deleted": Fault("participant",
        damaged_output(lambda place: _samples(place).unlink()), 0, [AGAIN], ALL_OF_IT, slow=True),
    "a report was deleted": Fault("participant",
        damaged_output(lambda place: (place.out / "sub-001.html").unlink()), 0, [AGAIN],
        ALL_OF_IT, slow=True),
    "the folder of a participant was deleted": Fault("participant",
        damaged_output(lambda place: shutil.rmtree(place.out / "sub-001")), 0, [AGAIN],
        ALL_OF_IT, slow=True),
    "OUTPUT_DIR comes from another machine, without its work directory": Fault("participant",
        copied_output, 0, ["sub-001: finished before, nothing to do"], ALL_OF_IT, slow=True),
    "a scan was replaced by another of the same size": Fault("participant", replaced_scan, 0,
        ["its input has changed since it was made"], ALL_OF_IT, slow=True),
    "OUTPUT_DIR is that of another pipeline": Fault("participant",
        output_of_others({"Name": "fMRIPrep", "GeneratedBy": [{"Name": "fMRIPrep"}]}), 2,
        ["a dataset of fMRIPrep in", "give a folder of its own"], "nothing"),
    "OUTPUT_DIR is another raw dataset": Fault("participant",
        output_of_others({"Name": "Raw", "BIDSVersion": "1.10.0"}), 2,
        ["a dataset of somebody else in", "give a folder of its own"], "nothing"),
    "a lock file of a run that died on another host": Fault("participant", lock_of_a_dead_run, 0,
        ["1 of 1 participants done"], ALL_OF_IT, slow=True),
    "bytes inside a compressed image are wrong": Fault("participant", damaged_inside, 1,
        ["sub-002_dwi.nii.gz, whose content is damaged", "copy or convert the file again"],
        ALL_OF_IT, slow=True),
    "the last stage fails": Fault("participant", late_failure, 1,
        ["sub-001: derivatives: Expected a file, or nothing yet", "found a folder of that name"],
        ALL_OF_IT, slow=True),
    "an error that nobody foresaw": Fault("participant", unforeseen, 70,
        ["of an error that was not foreseen (ZeroDivisionError: division by zero)",
         "report it with that file"], "logs"),
    "SIGTERM, as batch systems send it": Fault("participant",
        signalled("participant", signal.SIGTERM, "conform"), 143, [STOPPED], "logs", slow=True),
    "Ctrl-C": Fault("participant", signalled("participant", signal.SIGINT, "conform"), 130,
        [STOPPED], "logs", slow=True),
    "--clean-workdir where the user keeps files": Fault("participant",
        with_files_of_the_user("participant"), 0, ["participants done"], ALL_OF_IT, slow=True),
    "another study uses the work directory": Fault("participant", shared_work_directory, 2,
        ["no other run on sub-01 in", "another OUTPUT_DIR and --work-dir"], "nothing"),
    "a work directory in which the user keeps a folder cache": Fault("participant",
        folder_of_the_user, 2, ["cache, which it has not made", "give another folder"],
        "nothing"),
    "one image under two labels": Fault("group", same_image_twice, 1,
        ["the same one in sub-001 = sub-101", "--exclude-participant-label"],
        "derivatives, logs"),
    "SIGTERM while a model trains": Fault("group",
        signalled("group", signal.SIGTERM, "epoch"), 143, [STOPPED], "derivatives, logs",
        slow=True),
    "Ctrl-C while a model trains": Fault("group", signalled("group", signal.SIGINT, "epoch"), 130,
        [STOPPED], "derivatives, logs", slow=True),
    "kill -9 while a model trains, and the same command again": Fault("group", killed, 0,
        ["Report:"], TRAINED, slow=True),
    "--clean-workdir where the user keeps files of the group level": Fault("group",
        with_files_of_the_user("group"), 0, ["Report:"], TRAINED, slow=True),
}  # fmt: skip
"""Days in a lab, through the command line: exit code, sentence, what is left on disk."""
