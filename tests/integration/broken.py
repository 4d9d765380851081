"""Broken and unusual inputs: what is done to sub-01 of a dataset of two, and what is said of it.

Each case is a way to change the dataset and the words that have to be in what is printed.
"""

import gzip
import json
import os
import shutil
import struct

import nibabel as nib
import numpy as np

ESCAPE = "\x1b[31m"


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


def fieldmap_is(damage):
    def add_and_damage(dataset):
        fieldmap(PhaseEncodingDirection="j-")(dataset)
        damage(dataset.root / "sub-01" / "fmap" / "sub-01_dir-PA_epi.nii.gz")

    return add_and_damage


def point_to_nothing(path):
    path.unlink()
    path.symlink_to("../../.git/annex/objects/gone.nii.gz")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


def fieldmap_for_nobody(dataset):
    fieldmap()(dataset)
    (dataset.root / "sub-01" / "fmap" / "sub-01_dir-PA_epi.json").unlink()


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
    "fieldmap with 5": (fieldmap(PhaseEncodingDirection=5), ["found 5 for", "_epi.nii.gz"]),
    "fieldmap link to nothing": (fieldmap_is(point_to_nothing), ["_epi.nii.gz", "a link to"]),
    "fieldmap truncated": (fieldmap_is(truncate), ["_epi.nii.gz", "copy or convert the file"]),
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


def huge_readout(dataset):
    text = dataset.dwi(".json").read_text().replace("0.05", "1" + "0" * 400)
    dataset.dwi(".json").write_text(text)


def t1w_is(damage):
    def add_and_damage(dataset):
        path = dataset.root / "sub-01" / "anat" / "sub-01_T1w.nii.gz"
        path.parent.mkdir()
        nib.save(nib.Nifti1Image(np.ones((9, 9, 9)), np.eye(4)), path)
        damage(path)

    return add_and_damage


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


def rename(dataset, label):
    """Give sub-01 another label, its files included."""
    folder = (dataset.root / "sub-01").rename(dataset.root / f"sub-{label}")
    for path in list(folder.glob("dwi/sub-01*")):
        path.rename(path.with_name(path.name.replace("sub-01", f"sub-{label}")))


def plus_sign(dataset):
    rename(dataset, "01+b")


ACCEPTED = {
    "readout of 10^400 s": (huge_readout, ["note: TotalReadoutTime of 1000", "passed over"]),
    "readout in milliseconds": (sidecar(TotalReadoutTime=50), ["TotalReadoutTime of 50 s is not"]),
    "fieldmap for nobody": (fieldmap_for_nobody, ["_epi.nii.gz is not used", "IntendedFor"]),
    "T1w link to nothing": (
        t1w_is(point_to_nothing),
        ["sub-01_T1w.nii.gz is not used", "a link to"],
    ),
    "T1w truncated": (t1w_is(truncate), ["note: sub-01_T1w.nii.gz is not used", "truncated"]),
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
    "a plus sign in the label": (plus_sign, ["sub-01+b"]),
    "no phase encoding": (no_phase_encoding, ["phase encoding unknown"]),
}


def copy_as(label):
    return lambda dataset: shutil.copytree(dataset.root / "sub-01", dataset.root / f"sub-{label}")


MISLABELLED = {
    "sub-01_old beside sub-01": (copy_as("01_old"), ["sub-01_old  [cannot be processed]"]),
    "a blank in a label": (copy_as("a b"), ["a label of letters, digits and plus signs"]),
    "an umlaut in a label": (copy_as("ä"), ["a label of letters, digits and plus signs"]),
    "a dot in a label": (copy_as("x.y"), ["a label of letters, digits and plus signs"]),
    "control characters in a label": (
        copy_as(f"{ESCAPE}x"),
        ["a label of letters, digits and plus signs"],
    ),
}
"""Folders beside those of sub-01 and sub-02, which are processed all the same."""
