"""What happens when the input is broken: exit code, sentence and what is left on disk.

Every case damages sub-01 of a dataset of two and goes through the command line; sub-02 must be
processed whatever happened to sub-01.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import nibabel as nib
import numpy as np
import pytest

from bids_gevnet.cli.run import main
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort

ESCAPE = "\x1b[31m"


def content_of(folder: Path) -> dict[str, str]:
    """Hash of every regular file; links are compared by where they point."""
    return {
        str(path): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for top, _, names in os.walk(folder)
        for path in (Path(top) / name for name in names)
        if path.is_symlink() or path.is_file()
    }


def dry_run(dataset, capsys, *options):
    """Exit code and all that was printed; nothing may be written anywhere."""
    out = dataset.root.parent / "out"
    before = content_of(dataset.root.parent)
    code = main([str(dataset.root), str(out), "participant", "--dry-run", *options])
    assert content_of(dataset.root.parent) == before
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "Traceback" not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    return code, text


# Ways to damage a participant


def sidecar(**entries):
    def damage(dataset):
        content = json.loads(dataset.dwi(".json").read_text()) | entries
        dataset.dwi(".json").write_text(json.dumps(content))

    return damage


def no_phase_encoding(dataset, **entries):
    dataset.dwi(".json").write_text(json.dumps({"TotalReadoutTime": 0.05, **entries}))


def fieldmap(**entries):
    def damage(dataset):
        folder = dataset.root / "sub-01" / "fmap"
        folder.mkdir()
        image = nib.Nifti1Image(np.ones((6, 7, 5), np.int16), np.diag([2.0, 2, 2, 1]))
        nib.save(image, folder / "sub-01_dir-PA_epi.nii.gz")
        about = {"IntendedFor": "dwi/sub-01_dwi.nii.gz", **entries}
        (folder / "sub-01_dir-PA_epi.json").write_text(json.dumps(about))

    return damage


def header(offset, layout, *values):
    """Write values into the header on disk."""

    def damage(dataset):
        content = bytearray(gzip.decompress(dataset.dwi(".nii.gz").read_bytes()))
        struct.pack_into(layout, content, offset, *values)
        dataset.dwi(".nii.gz").write_bytes(gzip.compress(bytes(content)))

    return damage


def voxels(size_mm):
    def damage(dataset):
        image = nib.load(dataset.dwi(".nii.gz"))
        data = np.asarray(image.dataobj)
        nib.save(nib.Nifti1Image(data, np.diag([size_mm, 2, 2, 1.0])), dataset.dwi(".nii.gz"))

    return damage


def store(dtype):
    def damage(dataset):
        data = np.asarray(nib.load(dataset.dwi(".nii.gz")).dataobj).astype(dtype)
        nib.save(nib.Nifti1Image(data, np.diag([2.0, 2, 2, 1])), dataset.dwi(".nii.gz"))

    return damage


def wide_field_of_view(dataset):
    image = nib.Nifti1Image(np.ones((80, 7, 5, 10), np.uint8), np.diag([8.0, 2, 2, 1]))
    nib.save(image, dataset.dwi(".nii.gz"))


def scale_b_values(factor):
    def damage(dataset):
        bvals = np.loadtxt(dataset.dwi(".bval")) * factor
        np.savetxt(dataset.dwi(".bval"), [bvals], fmt="%g")

    return damage


def bomb(dataset):
    head = gzip.decompress(dataset.dwi(".nii.gz").read_bytes())[:352]
    dataset.dwi(".nii.gz").write_bytes(gzip.compress(head + bytes(1 << 26)))


def link(extension, target):
    def damage(dataset):
        dataset.dwi(extension).unlink()
        dataset.dwi(extension).symlink_to(target)

    return damage


def pipe(extension):
    def damage(dataset):
        dataset.dwi(extension).unlink()
        os.mkfifo(dataset.dwi(extension))

    return damage


def write(extension, text):
    return lambda dataset: dataset.dwi(extension).write_text(text)


def copy_series(dataset, old, new):
    for source in list(dataset.dwi("").parent.glob("sub-01_dwi.*")):
        shutil.copy(source, source.with_name(source.name.replace(old, new)))


def misnamed(dataset):
    copy_series(dataset, "sub-01_dwi", "foo_dwi")


def entity_without_value(dataset):
    copy_series(dataset, "_dwi", "_old_dwi")


def of_another_participant(dataset):
    copy_series(dataset, "sub-01", "sub-02")


def uncompressed_beside_it(dataset):
    nib.save(nib.load(dataset.dwi(".nii.gz")), dataset.dwi(".nii"))


def linked_as_a_second_run(dataset):
    copy_series(dataset, "_dwi", "_run-2_dwi")
    second = dataset.dwi("").parent / "sub-01_run-2_dwi.nii.gz"
    second.unlink()
    second.symlink_to(dataset.dwi(".nii.gz").name)


def phase_alone(dataset):
    copy_series(dataset, "_dwi", "_part-phase_dwi")
    for extension in (".nii.gz", ".bval", ".bvec", ".json"):
        dataset.dwi(extension).unlink()


def two_shells_of_four(dataset):
    dataset.dwi(".bval").write_text(" ".join(["0"] * 2 + ["1000"] * 4 + ["2000"] * 4))


REFUSED = {
    "phase encoding z": (sidecar(PhaseEncodingDirection="z"), ["i, i-, j, j-", "'z'"]),
    "phase encoding 5": (sidecar(PhaseEncodingDirection=5), ["found 5 for", "sub-01_dwi.nii.gz"]),
    "phase encoding list": (sidecar(PhaseEncodingDirection=["j"]), ["['j']"]),
    "fieldmap with z": (fieldmap(PhaseEncodingDirection="z"), ["'z' for", "sub-01_dir-PA_epi"]),
    "fieldmap with a list": (fieldmap(PhaseEncodingDirection=["j"]), ["['j']", "_epi.nii.gz"]),
    "slice direction z": (sidecar(SliceEncodingDirection="z"), ["SliceEncodingDirection", "'z'"]),
    "wrong magic": (header(344, "4s", b"XXXX"), ["a NIfTI image", "copy or convert"]),
    "unknown data code": (header(70, "<h", 9999), ["a NIfTI image", "sub-01_dwi.nii.gz"]),
    "float128": (header(70, "<hh", 1536, 128), ["1536 not supported", "copy or"]),
    "complex": (store(np.complex64), ["type complex64", "magnitude"]),
    "RGB": (header(70, "<hh", 128, 24), ["colours (RGB)", "store its magnitude"]),
    "NaN origin": (header(292, "<f", float("nan")), ["where the voxels are", "nan"]),
    "huge dimensions": (header(40, "<5h", 4, 200, 200, 200, 32000), ["truncated", "copy or"]),
    "gzip bomb": (bomb, ["as the header announces", "at least", "copy or convert"]),
    "voxels of 0.009 mm": (voxels(0.009), ["0.3 to 10 mm", "0.009 x 2 x 2 mm"]),
    "voxels of 900 mm": (voxels(900.0), ["0.3 to 10 mm", "900 x 2 x 2 mm"]),
    "wide field of view": (wide_field_of_view, ["600 mm at most", "640 x 14 x 10 mm"]),
    "b in ms/um2": (scale_b_values(1e-3), ["multiply by 1000 if they are in ms/µm²"]),
    "b in s/m2": (scale_b_values(1e6), ["divide by 1,000,000 if they are in s/m²"]),
    "deep sidecar": (write(".json", "[" * 100_000), ["JSON in", "nested too deeply"]),
    "endless sidecar": (link(".json", "/dev/zero"), ["sub-01_dwi.json", "no regular file"]),
    "endless gradients": (link(".bvec", "/dev/zero"), ["sub-01_dwi.bvec", "no regular file"]),
    "pipe for a table": (pipe(".bval"), ["sub-01_dwi.bval", "no regular file"]),
    "pipe for an image": (pipe(".nii.gz"), ["sub-01_dwi.nii.gz", "no regular file"]),
    "dangling link": (link(".nii.gz", "gone"), ["a link to a file that is not", "datalad get"]),
    "link out of reach": (link(".nii.gz", "/not/mounted/x.nii.gz"), ["mount the folder that"]),
    "misnamed series": (misnamed, ["a name such as sub-01_dwi.nii.gz", "foo_dwi.nii.gz"]),
    "entity without value": (entity_without_value, ["a name such as", "sub-01_old_dwi"]),
    "another's series": (of_another_participant, ["a name such as", "sub-01/dwi/sub-02_dwi"]),
    "nii beside nii.gz": (uncompressed_beside_it, ["every series once", "sub-01_dwi.nii and"]),
    "one series, two names": (linked_as_a_second_run, ["every series once", "_run-2_dwi.nii.gz"]),
    "phase without magnitude": (phase_alone, ["the magnitude images", "part-phase"]),
    "shells of four": (
        two_shells_of_four,
        ["a shell with at least 6 directions", "leave this scan out with"],
    ),
    "control characters": (write(".bval", f"{ESCAPE}0 0 x"), ["[31m0 0 x", "not a number"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_broken_one_is_named_and_the_other_goes_on(dataset, capsys, case):
    damage, sentence = REFUSED[case]
    damage(dataset)
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 1
    assert "1 of 2 participants would be processed" in printed
    assert "sub-01  [cannot be processed]" in printed
    assert "What to do:" in printed
    for text in sentence:
        assert text in printed


def huge_readout(dataset):
    text = dataset.dwi(".json").read_text().replace("0.05", "1" + "0" * 400)
    dataset.dwi(".json").write_text(text)


def t1w_link_to_nothing(dataset):
    folder = dataset.root / "sub-01" / "anat"
    folder.mkdir()
    (folder / "sub-01_T1w.nii.gz").symlink_to("../../.git/annex/objects/gone.nii.gz")


def t1w_truncated(dataset):
    folder = dataset.root / "sub-01" / "anat"
    folder.mkdir()
    nib.save(nib.Nifti1Image(np.ones((9, 9, 9)), np.eye(4)), folder / "sub-01_T1w.nii.gz")
    content = (folder / "sub-01_T1w.nii.gz").read_bytes()
    (folder / "sub-01_T1w.nii.gz").write_bytes(content[:-20])


def magnitude_and_phase(dataset):
    for part in ("mag", "phase"):
        copy_series(dataset, "_dwi", f"_part-{part}_dwi")
    for extension in (".nii.gz", ".bval", ".bvec", ".json"):
        dataset.dwi(extension).unlink()


def transposed(dataset):
    np.savetxt(dataset.dwi(".bvec"), np.loadtxt(dataset.dwi(".bvec")).T, fmt="%.6f")


def fifth_axis(dataset):
    image = nib.load(dataset.dwi(".nii.gz"))
    data = np.asarray(image.dataobj)[..., np.newaxis]
    nib.save(nib.Nifti1Image(data, image.affine), dataset.dwi(".nii.gz"))


def trace_at_the_end(dataset):
    image = nib.load(dataset.dwi(".nii.gz"))
    data = np.asarray(image.dataobj)
    nib.save(nib.Nifti1Image(data[..., [*range(10), 9]], image.affine), dataset.dwi(".nii.gz"))
    bvals = [*np.loadtxt(dataset.dwi(".bval")), 1000]
    np.savetxt(dataset.dwi(".bval"), [bvals], fmt="%g")
    bvecs = np.loadtxt(dataset.dwi(".bvec"))
    np.savetxt(dataset.dwi(".bvec"), np.hstack([bvecs, np.zeros((3, 1))]), fmt="%.6f")


def loops(dataset):
    (dataset.root / "sub-01" / "dwi" / "again").symlink_to("..")
    (dataset.root / "sub-01" / "all").symlink_to("../..")
    (dataset.root / "sub-02" / "all").symlink_to("../..")


def copies_beside_it(dataset):
    folder = dataset.dwi("").parent
    shutil.copytree(folder, folder / "backup")


def own_configuration(dataset):
    (dataset.root / "sub-01" / "layout_config.json").write_text("no JSON")


def three_digits(dataset):
    np.savetxt(dataset.dwi(".bvec"), np.loadtxt(dataset.dwi(".bvec")) * 0.9995, fmt="%.3f")


def sign_from_description(dataset):
    no_phase_encoding(
        dataset, PhaseEncodingAxis="j", SeriesDescription=f"dti{ESCAPE}_AP_SaveBySlc"
    )


ACCEPTED = {
    "readout of 10^400 s": (huge_readout, []),
    "T1w link to nothing": (t1w_link_to_nothing, ["sub-01_T1w.nii.gz is not used", "a link to"]),
    "T1w truncated": (t1w_truncated, ["note: sub-01_T1w.nii.gz is not used", "truncated"]),
    "magnitude and phase": (magnitude_and_phase, ["sub-01_part-phase_dwi.nii.gz is no magnitude"]),
    "transposed gradients": (transposed, ["note: sub-01_dwi.bvec has one row per volume"]),
    "fifth axis": (fifth_axis, ["note: sub-01_dwi.nii.gz has shape 6x7x5x10x1"]),
    "trace at the end": (trace_at_the_end, ["volume 10 (b = 1000)", "trace, ADC"]),
    "link loops": (loops, []),
    "copies in a folder below": (copies_beside_it, []),
    "a dataset that configures pybids": (own_configuration, []),
    "three digits": (three_digits, []),
    "sign from a description": (
        sign_from_description,
        ["sign from SeriesDescription (dti?[31m_AP_"],
    ),
    "no phase encoding": (no_phase_encoding, ["phase encoding unknown"]),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_can_be_put_right_is_noted_and_nothing_counts_twice(dataset, capsys, case):
    damage, notes = ACCEPTED[case]
    damage(dataset)
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 0, printed
    assert "2 of 2 participants would be processed" in printed
    assert printed.count("dwi.nii.gz, phase encoding") == 2
    for text in notes:
        assert text in printed


def test_all_at_once_and_with_the_validator(dataset, capsys):
    """One participant per case; the validator complains, and the whole ones still go on."""
    left_alone = {"another's series", "endless sidecar", "endless gradients", "pipe for a table",
                  "pipe for an image"}  # fmt: skip
    cases = {name: case for name, case in REFUSED.items() if name not in left_alone}
    template = dataset.root / "sub-01"
    shutil.move(template, dataset.root.parent / "kept")
    for number, (damage, _) in enumerate(cases.values(), start=10):
        shutil.copytree(dataset.root.parent / "kept", template)
        damage(dataset)
        label = f"sub-{number}"
        shutil.move(template, dataset.root / label)
        for path in list((dataset.root / label).rglob("sub-01*")):
            path.rename(path.with_name(path.name.replace("sub-01", label)))
        for path in (dataset.root / label).rglob("*_epi.json"):
            path.write_text(path.read_text().replace("sub-01", label))
        for path in (dataset.root / label).rglob("*"):
            if path.is_symlink() and str(path.readlink()).startswith("sub-01"):
                target = str(path.readlink()).replace("sub-01", label)
                path.unlink()
                path.symlink_to(target)
    labels = "".join(f"sub-{n}\tAD\n" for n in ["02", *range(10, 10 + len(cases))])
    (dataset.root / "participants.tsv").write_text("participant_id\tdiagnosis\n" + labels)
    code, printed = dry_run(dataset, capsys)
    assert code == 1
    assert f"1 of {len(cases) + 1} participants would be processed" in printed
    blocks = printed.split("\n  sub-")
    for number, (name, (_, sentence)) in enumerate(cases.items(), start=10):
        (block,) = [block for block in blocks if block.startswith(f"{number}  [cannot be")]
        for text in sentence:
            assert text.replace("sub-01", f"sub-{number}") in block, name


def test_a_copy_of_a_participant_does_not_join_the_original(dataset, capsys):
    shutil.copytree(dataset.root / "sub-01", dataset.root / "sub-01_old")
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 1
    assert "2 of 3 participants would be processed" in printed
    assert "sub-01_old  [cannot be processed]" in printed
    assert printed.count("sub-01_dwi.nii.gz, phase encoding") == 1
    chosen = ("--participant-label", "01", "--skip-bids-validation")
    code, printed = dry_run(dataset, capsys, *chosen)
    assert code == 0
    assert printed.count("sub-01_dwi.nii.gz, phase encoding") == 1


@pytest.mark.parametrize("label", ["a b", "ä", "x.y", f"{ESCAPE}x", "\udcff"])
def test_labels_that_bids_does_not_know_are_named(dataset, capsys, label):
    """What is no UTF-8 cannot be named at all, and stops nobody either."""
    shutil.copytree(dataset.root / "sub-01", dataset.root / f"sub-{label}")
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    if label == "\udcff":
        assert code == 0
        assert "2 of 2 participants" in printed
    else:
        assert code == 1
        assert "2 of 3 participants" in printed
        assert "a label of letters, digits and plus signs" in printed


def test_runs_of_unknown_sign_are_not_joined_and_that_is_said(dataset, capsys):
    no_phase_encoding(dataset, PhaseEncodingAxis="j")
    copy_series(dataset, "_dwi", "_run-2_dwi")
    code, printed = dry_run(dataset, capsys, "--skip-bids-validation")
    assert code == 0
    assert printed.count("note: not joined with the other runs of the session") == 2


# Real runs, on a tiny phantom


class Study(NamedTuple):
    """How a run ended, what it said, where it wrote, and how many volumes were measured."""

    code: int
    said: str
    out: Path
    n_volumes: int


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Run two participants: one unusual in every way that is accepted, one damaged inside."""
    folder = tmp_path_factory.mktemp("study")
    data, out = folder / "data", folder / "out"
    write_cohort(data, tiny_settings(groups=("AD", "PD"), sites=1))
    shutil.rmtree(data / "sourcedata")
    (data / "sub-001").rename(data / "sub-a+b")
    series = data / "sub-a+b" / "dwi"
    for path in list(series.iterdir()):
        path.rename(path.with_name(path.name.replace("sub-001", "sub-a+b")))
    stem = series / "sub-a+b_dwi"
    image = nib.load(f"{stem}.nii.gz")
    voxel_data = np.asarray(image.dataobj)
    with_trace = np.concatenate([voxel_data, voxel_data[..., -1:]], axis=3)[..., np.newaxis]
    nib.save(nib.Nifti1Image(with_trace, image.affine), f"{stem}.nii.gz")
    bvals, bvecs = np.loadtxt(f"{stem}.bval"), np.loadtxt(f"{stem}.bvec")
    np.savetxt(f"{stem}.bval", [[*bvals, 1000]], fmt="%g")
    np.savetxt(f"{stem}.bvec", np.vstack([bvecs.T, np.zeros(3)]), fmt="%.3f")
    (data / "sub-a+b" / "anat").mkdir()
    (data / "sub-a+b" / "anat" / "sub-a+b_T1w.nii.gz").symlink_to("gone.nii.gz")
    damaged = data / "sub-002" / "dwi" / "sub-002_dwi.nii.gz"
    content = bytearray(damaged.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
    damaged.write_bytes(content)
    before = content_of(data)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main([
            *(str(data), str(out), "participant", "--skip-bids-validation"),
            *("--output-resolution", "9", "--correction", "none", "--nprocs", "2"),
        ])  # fmt: skip
    assert content_of(data) == before
    return Study(code, said.getvalue(), out, len(bvals))


def test_a_damaged_gzip_fails_its_participant_with_a_sentence(study):
    assert study.code == 1
    assert not (study.out / "sub-002").exists()
    (line,) = [line for line in study.said.splitlines() if "sub-002" in line]
    assert "Expected an image that can be read to its end" in line
    assert "sub-002_dwi.nii.gz, whose content is damaged" in line
    assert "What to do: copy or convert the file again" in line


def test_the_unusual_one_is_processed_and_the_notes_reach_the_facts(study):
    out, n_volumes = study.out, study.n_volumes
    folder = out / "sub-a+b" / "dwi"
    assert nib.load(folder / "sub-a+b_desc-preproc_dwi.nii.gz").shape[3] == n_volumes
    assert len(np.loadtxt(folder / "sub-a+b_desc-preproc_dwi.bval")) == n_volumes
    facts = json.loads((folder / "sub-a+b_desc-report_facts.json").read_text())
    notes = " ".join(facts["acquisition"][0]["notes"])
    for text in ("T1w.nii.gz is not used", "one row per volume", "x1;", "trace, ADC"):
        assert text in notes
    assert "one row per volume" in (out / "sub-a+b.html").read_text()


def test_every_image_says_how_its_numbers_are_scaled(study):
    """Read by a reader that does not forgive: FSL multiplies integers by what is there."""
    images = [path for path in study.out.rglob("*.nii*") if path.is_file()]
    names = {path.name for path in images}
    assert {"dwi.nii", "native.nii", "mask.nii", "b0.nii"} <= names  # intermediates
    assert any(name.endswith("desc-brain_mask.nii.gz") for name in names)  # derivatives
    scaled = set()
    for path in images:
        content = path.read_bytes()
        head = gzip.decompress(content) if path.suffix == ".gz" else content
        slope, intercept = struct.unpack_from("<ff", head, 112)
        assert intercept == 0.0, path
        if slope != 1.0:
            assert 0 < slope < 1, path
            assert struct.unpack_from("<h", head, 70) == (4,), path
            scaled.add(path.name.removesuffix(".gz").removesuffix(".nii"))
    assert any(name.endswith("desc-healpix_dwi") for name in scaled)
    assert not any(name.endswith("mask") for name in scaled)


def test_nothing_half_written_is_left(study):
    assert not list(study.out.rglob("*.part"))
