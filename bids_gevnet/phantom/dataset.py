"""Write a cohort as BIDS, with its truth under ``sourcedata/truth``.

Files are the same bytes for the same settings: NIfTI is compressed without a time stamp, and
nothing written depends on the number of threads. ``dataset_description.json`` is written last
and a marker file first, so that a cohort whose writing was interrupted is not taken for a
dataset and can be told from somebody else's files.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.phantom.anatomy import blurred_template
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.simulation import simulate_participant
from bids_gevnet.versions import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from bids_gevnet.phantom.cohort import ParticipantSpec
    from bids_gevnet.phantom.settings import PhantomSettings
    from bids_gevnet.phantom.simulation import Scan

GENERATOR = "bids_gevnet_phantom"
INCOMPLETE_MARKER = ".bids_gevnet_phantom_incomplete"
_PEPOLAR = "pepolar_fmap"
_TOP_LEVEL = frozenset(
    {
        "dataset_description.json",
        "participants.tsv",
        "participants.json",
        "README",
        "sourcedata",
        INCOMPLETE_MARKER,
    }
)
_README = """\
# Phantom cohort of bids_gevnet

Simulated diffusion MRI with known truth; nobody was scanned. Made by `bids_gevnet_phantom`,
version {version}, from the MNI template that nilearn ships (MNI152NLin2009aSym).

Each head has its own pose, size, age and sex, moves during the scan, and is distorted by eddy
currents. Sites differ in gain per spherical-harmonic degree, number of directions, b-values,
voxel size, voxel axes and noise. Groups differ in microstructure (crossing angle in one region,
dispersion in another, both without any change of the direction-averaged signal) and in atrophy,
unless these effects were switched off.

What was simulated stands in `sourcedata/truth`: settings.json, and per participant motion,
eddy parameters, pose, brain mask, tissue, fibre directions and fractions, regions of the
effects, gains of the site, dropped slices and the off-resonance field. Frames, units and signs
are explained in `sourcedata/truth/README`.
"""


def write_cohort(
    out: Path,
    settings: PhantomSettings,
    *,
    overwrite: bool = False,
    threads: int = 1,
    progress: Callable[[ParticipantSpec], None] | None = None,
) -> tuple[ParticipantSpec, ...]:
    """Simulate a cohort and write it.

    Parameters
    ----------
    out : Path
        New or empty folder, or an earlier phantom with `overwrite`.
    settings : PhantomSettings
    overwrite : bool
        Replace an earlier phantom.
    threads : int
        Participants simulated at once; does not change what is written.
    progress : callable, optional
        Called with each participant that has been written, in order.

    Returns
    -------
    tuple of ParticipantSpec
        Who was written.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from bids_gevnet.phantom import tiny_settings
    >>> with TemporaryDirectory() as folder:
    ...     people = write_cohort(Path(folder) / "cohort", tiny_settings(groups=("AD",)))
    ...     sorted(path.name for path in (Path(folder) / "cohort").glob("sub-*"))
    ['sub-001']
    """
    prepare_folder(out, overwrite=overwrite)
    specs = plan_cohort(settings)
    blurred_template(settings.voxel_mm)  # once, before threads ask for it at the same time

    def write_one(spec: ParticipantSpec) -> ParticipantSpec:
        write_scan(out, simulate_participant(settings, spec))
        return spec

    with ThreadPoolExecutor(max_workers=max(1, threads)) as pool:
        pending = [pool.submit(write_one, spec) for spec in specs]
        try:
            for future in pending:
                spec = future.result()
                if progress is not None:
                    progress(spec)
        except BaseException:
            # Leaving the pool would first finish everyone else.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    _write_top_level(out, settings, specs)
    (out / INCOMPLETE_MARKER).unlink()
    return specs


def prepare_folder(out: Path, *, overwrite: bool) -> None:
    """Make `out` an empty folder with the marker in it, or refuse to touch what is there."""
    if out.exists() and not out.is_dir():
        raise InputError(
            expected="a folder to write the phantom cohort to",
            found=f"a file at {out}",
            remedy="choose another name for OUT",
        )
    present = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else []
    if present:
        if not is_phantom(out):
            raise InputError(
                expected="a new or empty folder for the phantom cohort",
                found=f"{out} with other files in it ({', '.join(present[:3])})",
                remedy="choose another OUT; nothing was changed",
            )
        if not overwrite:
            raise InputError(
                expected="a new or empty folder for the phantom cohort",
                found=f"an earlier phantom cohort in {out}",
                remedy="choose another OUT, or add --overwrite to replace it",
            )
        _remove_phantom(out, present)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / INCOMPLETE_MARKER).touch()
    except OSError as error:
        raise InputError(
            expected="a folder that can be written to",
            found=f"{out}: {error.strerror}",
            remedy="choose another OUT or change its permissions",
        ) from error


def is_phantom(out: Path) -> bool:
    """Whether the folder was written by :func:`write_cohort`, even if incompletely."""
    if (out / INCOMPLETE_MARKER).exists():
        return True
    try:
        description = json.loads((out / "dataset_description.json").read_text("utf-8"))
        generators = description.get("GeneratedBy", [])
        return any(entry.get("Name") == GENERATOR for entry in generators)
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def write_scan(out: Path, scan: Scan) -> None:
    """Write one participant, images first, then the truth."""
    label = f"sub-{scan.spec.label}"
    direction = f"_dir-{scan.site.direction_label}" if scan.reverse_b0 is not None else ""
    stem = f"{label}{direction}_dwi"
    folder = out / label / "dwi"
    folder.mkdir(parents=True, exist_ok=True)
    write_nifti(folder / f"{stem}.nii.gz", _as_int16(scan.data), scan.affine)
    (folder / f"{stem}.bval").write_text(_rows([scan.bvals], "%g"), "utf-8")
    (folder / f"{stem}.bvec").write_text(_rows(scan.bvecs_fsl.T, "%.8f"), "utf-8")
    # The b0s of the run are one half of the pair that gives the field.
    paired = scan.reverse_b0 is not None
    pepolar = {"B0FieldIdentifier": _PEPOLAR, "B0FieldSource": _PEPOLAR} if paired else {}
    _write_json(folder / f"{stem}.json", {**_dwi_sidecar(scan), **pepolar})
    if scan.reverse_b0 is not None:
        _write_reverse(out, scan, scan.reverse_b0, f"{label}/dwi/{stem}.nii.gz")
    if scan.t1w is not None and scan.t1w_affine is not None:
        folder = out / label / "anat"
        folder.mkdir(exist_ok=True)
        write_nifti(folder / f"{label}_T1w.nii.gz", _as_int16(scan.t1w), scan.t1w_affine)
        sequence = {"EchoTime": 0.003, "FlipAngle": 9, "MRAcquisitionType": "3D"}
        _write_json(folder / f"{label}_T1w.json", {**_scanner_metadata(scan), **sequence})
    _write_truth(out / "sourcedata" / "truth" / label, label, scan)


def write_nifti(path: Path, data: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write an image whose bytes depend on its content alone."""
    import nibabel as nib

    image = nib.Nifti1Image(data, affine)
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1)
    image.header.set_xyzt_units("mm", "sec")
    path.write_bytes(gzip.compress(image.to_bytes(), compresslevel=4, mtime=0))


def _write_reverse(
    out: Path, scan: Scan, reverse_b0: NDArray[np.float32], intended_for: str
) -> None:
    """Write the b0 with opposite phase encoding as a BIDS fieldmap of the diffusion run."""
    label = f"sub-{scan.spec.label}"
    folder = out / label / "fmap"
    folder.mkdir(exist_ok=True)
    opposite = {"AP": "PA", "PA": "AP"}[scan.site.direction_label]
    stem = f"{label}_dir-{opposite}_epi"
    flipped = "j-" if scan.site.polarity > 0 else "j"
    write_nifti(folder / f"{stem}.nii.gz", _as_int16(reverse_b0), scan.affine)
    _write_json(
        folder / f"{stem}.json",
        {
            **_dwi_sidecar(scan),
            "PhaseEncodingDirection": flipped,
            "IntendedFor": [f"bids::{intended_for}"],
            "B0FieldIdentifier": _PEPOLAR,
        },
    )


def _scanner_metadata(scan: Scan) -> dict[str, Any]:
    return {
        "Manufacturer": "Simulated",
        "ManufacturersModelName": f"Phantom {scan.site.name}",
        "MagneticFieldStrength": scan.site.tesla,
        "DeviceSerialNumber": f"phantom-{scan.site.name}",
        "StationName": f"phantom-{scan.site.name}",
        "SoftwareVersions": f"{GENERATOR} {__version__}",
        "InstitutionName": f"Site {scan.site.name}",
    }


def _dwi_sidecar(scan: Scan) -> dict[str, Any]:
    return {
        **_scanner_metadata(scan),
        "PhaseEncodingDirection": scan.site.phase_encoding,
        "TotalReadoutTime": round(scan.site.readout_s, 6),
        "EffectiveEchoSpacing": scan.site.echo_spacing_s,
        "EchoTime": 0.085,
        "RepetitionTime": 8.0,
        "FlipAngle": 90,
        "MRAcquisitionType": "2D",
        "ScanningSequence": ["SE", "EP"],
        "PulseSequenceType": "Simulated spin-echo EPI",
    }


def _write_truth(folder: Path, label: str, scan: Scan) -> None:
    """Write everything that is known of a scan."""
    folder.mkdir(parents=True, exist_ok=True)
    truth, affine = scan.truth, scan.affine
    images: dict[str, NDArray[Any]] = {
        "mask": truth.mask.astype(np.uint8),
        "tissue": truth.tissue,
        "fibres": truth.fibres.reshape(*truth.mask.shape, 6),
        "fractions": truth.fractions,
        "regions": truth.regions,
    }
    if truth.field_hz is not None:
        images["fieldhz"] = truth.field_hz
    for name, data in images.items():
        write_nifti(folder / f"{label}_{name}.nii.gz", data, affine)
    motion_names = ("trans_x", "trans_y", "trans_z", "rot_x", "rot_y", "rot_z")
    _write_tsv(folder / f"{label}_motion.tsv", motion_names, truth.motion)
    _write_tsv(folder / f"{label}_eddy.tsv", ("const_mm", "per_i", "per_j", "per_k"), truth.eddy)
    _write_tsv(folder / f"{label}_dropped.tsv", ("volume", "slice", "factor"), truth.dropped)
    _write_json(
        folder / f"{label}_pose.json",
        {"TemplateToScanner": truth.pose.tolist(), "Units": "mm", "Axes": "RAS"},
    )
    _write_json(
        folder / f"{label}_site.json",
        {
            "Site": scan.site.name,
            "Gains": dict(zip(("0", "2", "4"), truth.gains, strict=True)),
            "NoiseSigma": truth.noise_sigma,
            "EddyMatrix": scan.site.eddy_matrix.tolist(),
            "PhaseEncodingAxisRAS": scan.site.voxel_axes[:, 1].tolist(),
        },
    )
    _write_json(folder / f"{label}_state.json", dataclasses.asdict(truth.state))


def _write_top_level(
    out: Path, settings: PhantomSettings, specs: Sequence[ParticipantSpec]
) -> None:
    """Write what describes the dataset; dataset_description.json last."""
    import bids_gevnet.phantom as package

    truth = out / "sourcedata" / "truth"
    finite = dataclasses.asdict(settings)
    if math.isinf(settings.snr):
        finite["snr"] = None  # JSON has no infinity; null says: no noise
    _write_json(truth / "settings.json", finite)
    (truth / "README").write_text(f"{package.__doc__}", "utf-8")
    (out / "README").write_text(_README.format(version=__version__), "utf-8")
    _write_tsv(
        out / "participants.tsv",
        ("participant_id", "diagnosis", "site", "age", "sex"),
        [(f"sub-{s.label}", s.diagnosis, _site_name(s), f"{s.age:.1f}", s.sex) for s in specs],
    )
    _write_json(out / "participants.json", _participants_dictionary(settings))
    _write_json(
        out / "dataset_description.json",
        {
            # Another seed is other people: a model of one cohort may predict another.
            "Name": f"Phantom cohort of bids_gevnet, seed {settings.seed}",
            "BIDSVersion": "1.10.0",
            "DatasetType": "raw",
            "License": "CC0",
            "Authors": ["The bids_gevnet developers"],
            "Keywords": ["simulation", "diffusion MRI", "phantom"],
            "GeneratedBy": [{"Name": GENERATOR, "Version": __version__}],
        },
    )


def _participants_dictionary(settings: PhantomSettings) -> dict[str, Any]:
    groups = {
        name: "Simulated group" + (", without effect" if n == 0 else ", see sourcedata/truth")
        for n, name in enumerate(settings.groups)
    }
    return {
        "diagnosis": {"Description": "Simulated diagnosis", "Levels": groups},
        "site": {"Description": "Simulated scanner"},
        "age": {"Description": "Age of the participant", "Units": "year"},
        "sex": {"Description": "Sex", "Levels": {"F": "female", "M": "male"}},
    }


def _site_name(spec: ParticipantSpec) -> str:
    return chr(ord("A") + spec.site)


def _remove_phantom(out: Path, present: Sequence[str]) -> None:
    """Delete an earlier phantom, and only that."""
    foreign = [n for n in present if n not in _TOP_LEVEL and not n.startswith("sub-")]
    if (out / "sourcedata").is_dir():
        entries = (entry.name for entry in (out / "sourcedata").iterdir())
        foreign += [f"sourcedata/{name}" for name in entries if name != "truth"]
    if foreign:
        raise InputError(
            expected="nothing but an earlier phantom cohort in the folder to overwrite",
            found=f"{', '.join(sorted(foreign)[:3])} in {out}",
            remedy="move these away or choose another OUT; nothing was changed",
        )
    # The marker first: if this is interrupted the rest is still known to be a phantom.
    (out / INCOMPLETE_MARKER).touch()
    for name in present:
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif name != INCOMPLETE_MARKER:
            path.unlink()


def _as_int16(data: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.clip(np.rint(data), 0, np.iinfo(np.int16).max).astype(np.int16)


def _rows(rows: Iterable[Iterable[float]], form: str) -> str:
    return "".join(" ".join(form % value for value in row) + "\n" for row in rows)


def _write_tsv(path: Path, names: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    lines = ["\t".join(names)]
    lines += ["\t".join(_cell(value) for value in row) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _cell(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
