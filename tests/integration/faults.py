"""Faults of the machine and hostile files: what is done, and what must come of it.

Each is a function that prepares a place, runs the command line there and returns how it ended.
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conftest import make_tiny_dataset
from learn.conftest import Study, make_people

from bids_gevnet.bids.manifest import write_manifest
from bids_gevnet.cli.locks import locked
from bids_gevnet.cli.run import main
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

STRANGER = 12345
"""A user who is not us."""
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")
"""Take away what lets the superuser read and write everybody's files."""
FAST = ("--output-resolution", "12", "--correction", "none", "--skip-bids-validation")
SMALL = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--network", "ckn2")
HERE = ("--devices", "cpu:1", "--no-leave-site-out")


class Ended(NamedTuple):
    """Exit code and all that was printed."""

    code: int
    said: str


@dataclass(frozen=True)
class Place:
    """A folder of its own: two raw participants, and a study whose participant level is done."""

    folder: Path

    @property
    def raw(self) -> Path:
        return self.folder / "data"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def derivatives(self) -> Path:
        return self.folder / "study" / "derivatives"

    def command(self, level: str, *options: str) -> list[str]:
        """Write the command line of a level."""
        raw, out, usual = (
            (self.raw, self.out, FAST)
            if level == "participant"
            else (self.folder / "study" / "raw", self.derivatives, (*SMALL, *HERE))
        )
        command = [sys.executable, "-m", "bids_gevnet.cli.start", str(raw), str(out), level]
        return [*command, *usual, *options, "--work-dir", str(self.work), "--nprocs", "1"]

    def participant(self, *options: str, before: Sequence[str] = ()) -> Ended:
        return self._run("participant", options, before)

    def group(self, *options: str, before: Sequence[str] = ()) -> Ended:
        return self._run("group", options, before)

    def _run(self, level: str, options: Sequence[str], before: Sequence[str]) -> Ended:
        command = [*before, *self.command(level, *options)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return Ended(done.returncode, done.stdout + done.stderr)


def make_place(folder: Path) -> Place:
    """Write both datasets into an empty folder."""
    place = Place(folder)
    make_tiny_dataset(place.raw)
    Study(folder / "study", make_people(2, ("AD", "PD"), ("A", "B")), effect=0.8, seed=0)
    return place


def put_a_head_in(place: Place) -> None:
    """Replace the raw dataset, whose scans are too small for a head, by a phantom."""
    shutil.rmtree(place.raw)
    write_cohort(place.raw, tiny_settings(groups=("AD",), per_group=1, sites=1))


def left_on_disk(place: Place, level: str) -> str:
    """Say in words what is in the output folder."""
    out = place.out if level == "participant" else place.derivatives
    kinds = {
        "derivatives": any(out.glob("sub-*/**/*_dwi.nii.gz")),
        "reports": any(out.glob("sub-*.html")),
        "models": any(out.glob("models/**/model.safetensors")),
        "the group report": (out / "group_report.html").is_file(),
        "logs": any(p.is_file() and "locks" not in p.parts for p in out.glob("logs/**/*")),
    }
    return ", ".join(kind for kind, there in kinds.items() if there) or "nothing"


def full(folder: Path, size: str) -> tuple[str, ...]:
    """Run what follows where a folder is a disk of so many bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = f"mount -t tmpfs -o size={size} tmpfs '{folder}' && exec \"$@\""
    return ("unshare", "--mount", "sh", "-c", mount, "sh")


def give_away(path: Path, mode: int = 0o755) -> None:
    os.chown(path, STRANGER, STRANGER)
    path.chmod(mode)


# Participant level


def full_work_directory(place: Place) -> Ended:
    return place.participant(before=full(place.work, "100k"))


def full_output(place: Place) -> Ended:
    return place.participant(before=full(place.out, "8k"))


def output_of_another_user(place: Place) -> Ended:
    place.out.mkdir()
    give_away(place.out)
    return place.participant(before=AS_ANYBODY)


def logs_of_another_user(place: Place) -> Ended:
    (place.out / "logs").mkdir(parents=True)
    give_away(place.out / "logs")
    return place.participant(before=AS_ANYBODY)


def lock_of_another_user(place: Place) -> Ended:
    locks = place.out / "logs" / "locks"
    locks.mkdir(parents=True)
    (locks / "sub-01.lock").touch()
    give_away(locks / "sub-01.lock", 0o600)
    return place.participant(before=AS_ANYBODY)


def derivatives_of_another_user(place: Place) -> Ended:
    (place.out / "sub-01" / "dwi").mkdir(parents=True)
    give_away(place.out / "sub-01" / "dwi")
    return place.participant("--participant-label", "01", before=AS_ANYBODY)


def derivatives_are_a_link(place: Place) -> Ended:
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    place.out.mkdir()
    (place.out / "sub-01").symlink_to(elsewhere)
    ended = place.participant("--participant-label", "01")
    assert not list(elsewhere.iterdir())
    return ended


def scans_that_may_not_be_read(place: Place) -> Ended:
    give_away(place.raw / "sub-01" / "dwi", 0o700)
    return place.participant("--dry-run", before=AS_ANYBODY)


def a_file_that_may_not_be_read(place: Place) -> Ended:
    give_away(place.raw / "sub-01" / "dwi" / "sub-01_dwi.bval", 0o600)
    return place.participant("--dry-run", before=AS_ANYBODY)


def two_runs_at_once(place: Place) -> Ended:
    with locked(place.out / "logs" / "locks", ["sub-01"]):
        return place.participant()


def turned_bit(place: Place) -> Ended:
    """Turn a bit of an image between two stages, so that neither time nor size tells of it."""
    put_a_head_in(place)
    first = place.participant()
    assert first.code == 0, first.said
    series = next((place.out / "sub-001").rglob("*space-*_desc-preproc_dwi.nii.gz"))
    right = series.read_bytes()
    (image,) = (place.work / "participant").rglob("conform/dwi.nii")
    before, content = image.stat(), bytearray(image.read_bytes())
    content[-2] ^= 0x40
    image.write_bytes(content)
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    series.unlink()
    ended = place.participant()
    assert series.read_bytes() == right
    return ended


def memory(level: str, megabytes: int) -> Callable[[Place], Ended]:
    def run(place: Place) -> Ended:
        before = ("prlimit", f"--as={megabytes * 10**6}")
        return getattr(place, level)(before=before)  # type: ignore[no-any-return]

    return run


def hostile(option: str, name: str, content: bytes) -> Callable[[Place], Ended]:
    def run(place: Place) -> Ended:
        (place.folder / name).write_bytes(content)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([
                *(str(place.raw), str(place.out), "participant", "--dry-run", *FAST),
                *(option, str(place.folder / name)),
            ])  # fmt: skip
        return Ended(code, said.getvalue())

    return run


# Group level


def two_groups_at_once(place: Place) -> Ended:
    with locked(place.derivatives / "logs" / "locks", ["group"]):
        return place.group()


def lock_left_behind(place: Place) -> Ended:
    locks = place.derivatives / "logs" / "locks"
    locks.mkdir(parents=True)
    (locks / "group.lock").write_text("pid 1 on another-host\n")
    return place.group()


def truncated_derivative(place: Place) -> Ended:
    manifest = place.derivatives / "logs" / "manifests" / "sub-001.json"
    write_manifest(manifest, place.derivatives, "001", made_from="")
    (image,) = (place.derivatives / "sub-001").rglob("*desc-healpix_dwi.nii.gz")
    image.write_bytes(image.read_bytes()[:-100])
    return place.group()


def full_group_work_directory(place: Place) -> Ended:
    return place.group(before=full(place.work, "100k"))


def group_logs_of_another_user(place: Place) -> Ended:
    (place.derivatives / "logs").mkdir()
    give_away(place.derivatives / "logs")
    return place.group(before=AS_ANYBODY)


def damaged_checkpoint(place: Place) -> Ended:
    first = place.group()
    assert first.code == 0, first.said
    shutil.rmtree(place.derivatives / "models")
    for job in (place.work / "group" / "jobs").rglob("job.json"):
        (job.parent / "checkpoint.safetensors").write_bytes(b"\x08" + bytes(200))
    return place.group("--resume")


def damaged_intermediate(place: Place) -> Ended:
    first = place.group()
    assert first.code == 0, first.said
    for record in (place.work / "group").rglob("result_evaluate.pklz"):
        content = bytearray(record.read_bytes())
        content[len(content) // 2] ^= 0xFF
        record.write_bytes(content)
    return place.group()


class Fault(NamedTuple):
    """A fault, the level it strikes, and what must come of it."""

    level: str
    run: Callable[[Place], Ended]
    code: int
    sentence: Sequence[str]
    left: str
    needs_root: bool = False
    slow: bool = False


_BOMB = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
)
_HOSTILE = {
    "settings file that is no text": (
        "--config-file", "x.toml", b"\x00\xff", "not text in UTF-8, from byte 2 on"),
    "settings file nested 100,000 deep": (
        "--config-file", "x.toml", b"a = " + b"[" * 100_000, "nested too deeply"),
    "settings file of 8 MB": ("--config-file", "x.toml", b"# x\n" * (1 << 21), "more than"),
    "settings file with a number of 5000 digits": (
        "--config-file", "x.toml", b"[execution]\nnprocs = " + b"1" * 5000,
        "a number of more digits than"),
    "settings file with a word for a number": (
        "--config-file", "x.toml", b"[execution]\nnprocs = 'many'", "a whole number for nprocs"),
    "settings file with a null character": (
        "--config-file", "x.toml", b'[execution]\nwork_dir = "\\u0000"', "a null character"),
    "plugin file that is no text": (
        "--use-plugin", "x.yml", b"\x00\xff", "not text in UTF-8"),
    "plugin file that asks for code to be run": (
        "--use-plugin", "x.yml", b"!!python/object/apply:os.abort []", "--use-plugin"),
    "plugin file that unfolds without end": (
        "--use-plugin", "x.yml", f"{_BOMB}\nplugin: *a39\n".encode(), "a plugin of Nipype"),
    "plugin that does not exist": (
        "--use-plugin", "x.yml", b"plugin: NoSuch", "found 'NoSuch'"),
    "plugin arguments that are a number": (
        "--use-plugin", "x.yml", b"plugin: Linear\nplugin_args: 7", "a table plugin_args"),
    "filter file that is no text": (
        "--bids-filter-file", "x.json", b"\x00\xff", "not text in UTF-8"),
    "filter file nested 100,000 deep": (
        "--bids-filter-file", "x.json", b"[" * 100_000, "nested too deeply"),
    "filter file with an unknown entity": (
        "--bids-filter-file", "x.json", b'{"dwi": {"nosuch": "x"}}',
        "('nosuch' is not a recognized entity). What to do"),
    "filter file with a broken pattern": (
        "--bids-filter-file", "x.json", b'{"dwi": {"suffix": "(", "regex_search": true}}',
        "'(' for suffix, which is not a regular expression"),
    "filter file with an argument of pybids": (
        "--bids-filter-file", "x.json", b'{"dwi": {"return_type": "object"}}',
        "return_type: an argument of pybids, not an entity"),
}  # fmt: skip

FAULTS = {
    "the work directory is full": Fault("participant", full_work_directory, 1,
        ["room on the disk for", "resumes from here"], "logs", needs_root=True),
    "OUTPUT_DIR is on a full disk": Fault("participant", full_output, 1,
        ["room on the disk for", "resumes from here"], "nothing", needs_root=True),
    "OUTPUT_DIR belongs to another user": Fault("participant", output_of_another_user, 2,
        ["can be written to for OUTPUT_DIR"], "nothing", needs_root=True),
    "the logs belong to another user": Fault("participant", logs_of_another_user, 1,
        ["permission to read and write", "ask the owner"], "nothing", needs_root=True),
    "a lock belongs to another user": Fault("participant", lock_of_another_user, 1,
        ["permission to read and write", "sub-01.lock"], "nothing", needs_root=True),
    "a participant's folder belongs to another user": Fault(
        "participant", derivatives_of_another_user, 1,
        ["sub-01: Expected permission to read and write"], "nothing", needs_root=True),
    "a participant's folder in OUTPUT_DIR is a link elsewhere": Fault(
        "participant", derivatives_are_a_link, 1,
        ["sub-01: Expected a folder of its own", "remove the link"], "nothing"),
    "a participant's scans may not be read": Fault("participant", scans_that_may_not_be_read, 1,
        ["1 of 2 participants", "Expected permission to read"], "nothing", needs_root=True),
    "a table of gradients may not be read": Fault("participant", a_file_that_may_not_be_read, 1,
        ["1 of 2 participants", "permission to read"], "nothing", needs_root=True),
    "another run is on the same participant": Fault("participant", two_runs_at_once, 2,
        ["no other run on sub-01", "wait for it"], "nothing"),
    "a bit of an intermediate image has turned on the disk": Fault("participant", turned_bit, 0,
        ["is damaged or was changed, so that stage runs again"], "derivatives, reports, logs",
        slow=True),
    "300 MB of memory": Fault("participant", memory("participant", 300), 70,
        ["a limit of 300 MB", "more memory"], "nothing"),
    **{
        name: Fault("participant", hostile(option, file, content), 2,
                    [sentence, "What to do"], "nothing")
        for name, (option, file, content, sentence) in _HOSTILE.items()
    },
    "another group run is on the same study": Fault("group", two_groups_at_once, 2,
        ["no other run on group"], "derivatives"),
    "a lock file left by a run that died on another host": Fault("group", lock_left_behind, 0,
        ["Report:"], "derivatives, models, the group report, logs", slow=True),
    "a derivative was truncated": Fault("group", truncated_derivative, 2,
        ["sub-001: sub-001/dwi/sub-001_space", "run the participant level again"],
        "derivatives, logs"),
    "the work directory of the group is full": Fault("group", full_group_work_directory, 1,
        ["room on the disk for", "What to do"], "derivatives, logs", needs_root=True),
    "the logs of the group belong to another user": Fault("group", group_logs_of_another_user, 1,
        ["permission to read and write", "ask the owner"], "derivatives", needs_root=True),
    "300 MB of memory at the group level": Fault("group", memory("group", 300), 70,
        ["a limit of 300 MB", "more memory"], "derivatives"),
    "checkpoints are damaged": Fault("group", damaged_checkpoint, 0,
        ["is damaged", "starts from the beginning"],
        "derivatives, models, the group report, logs", slow=True),
    "an intermediate file is damaged": Fault("group", damaged_intermediate, 0,
        ["that stage runs again"], "derivatives, models, the group report, logs", slow=True),
}  # fmt: skip
