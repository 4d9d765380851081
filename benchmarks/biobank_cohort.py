"""A cohort of tiny simulated derivatives, written in a minute: for biobank.py.

Every scan has its own samples, facts and confounds; pictures and maps, which only the reports
read, are hard links to those of its site. A tenth of the people have two sessions. One in two
hundred has a damaged image, as many have no label, and as many moved a lot.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    CONFOUNDS,
    FACTS,
    MEAN_B0,
    SAMPLES,
    SERIES,
    DerivativeNames,
    rish_ending,
    sidecar,
    tensor_ending,
    transform_ending,
)
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.sphere.resampling import distinct_directions

NSIDE, SHAPE, VOXEL_MM = 1, (9, 10, 9), 18.0
AFFINE = np.array([[18.0, 0, 0, -72], [0, 18, 0, -100], [0, 0, 18, -62], [0, 0, 0, 1]])
SITES = 25
CLASSES = ("control", "patient")
RARE = 200
"""One in so many is damaged, has no label, or moved."""
EFFECT = 0.02

GRID = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij"), axis=-1)
BRAIN = np.linalg.norm(GRID, axis=-1) < 1.02
TRANSFORM = (
    "#Insight Transform File V1.0\n#Transform 0\nTransform: AffineTransform_double_3_3\n"
    "Parameters: 1 0 0 0 1 0 0 0 1 0 0 0\nFixedParameters: 0 0 0\n"
)


@dataclass(frozen=True)
class Scan:
    """One scan of the cohort."""

    number: int
    label: str
    session: str | None
    group: str
    site: int
    age: float
    sex: str

    @property
    def entities(self) -> dict[str, str]:
        """Entities of its file names."""
        return {"sub": self.label} | ({"ses": self.session} if self.session else {})

    @property
    def name(self) -> str:
        """What its file names begin with."""
        return "_".join(f"{key}-{value}" for key, value in self.entities.items())

    def is_rare(self, kind: int) -> bool:
        """Whether something happened to this person: 0 damaged, 1 no label, 2 moved."""
        return self.number % RARE == 17 + 50 * kind


def plan_scans(participants: int, seed: int) -> Iterator[Scan]:
    """List the scans, person by person."""
    rng = np.random.default_rng(seed)
    for number in range(participants):
        age, sex = float(rng.uniform(45, 80)), "FM"[int(rng.integers(2))]
        group, site = CLASSES[int(rng.random() < 0.4)], int(SITES * rng.random() ** 1.5)
        for session in ("1", "2") if number % 10 == 3 else (None,):
            yield Scan(number, f"{number:06d}", session, group, site, age, sex)


def write_dataset(folder: Path, participants: int, seed: int) -> int:
    """Write the raw dataset's tables and names, and the derivatives; return the scans."""
    bids_dir, output = folder / "raw", folder / "out"
    scans = list(plan_scans(participants, seed))
    write_json(bids_dir / "dataset_description.json", {"Name": "Biobank", "BIDSVersion": "1.10.0"})
    people = {scan.number: scan for scan in scans}.values()
    rows = ["participant_id\tdiagnosis\tsite\tage\tsex"]
    for scan in people:
        label = "n/a" if scan.is_rare(1) else scan.group
        rows.append(f"sub-{scan.label}\t{label}\tsite{scan.site:02d}\t{scan.age:.1f}\t{scan.sex}")
    write_text(bids_dir / "participants.tsv", "\n".join(rows) + "\n")
    write_text(output / "logs" / "settings.toml", "[preprocessing]\nnside = 1\n")
    for site in range(SITES):
        _write_pictures(folder / "pictures" / f"{site}", np.random.default_rng((seed, site)), site)
    directions = distinct_directions(NSIDE)
    for scan in scans:
        _write_scan(
            folder,
            scan,
            directions,
            np.random.default_rng((seed, int(scan.session or 0), scan.number + 1)),
        )
    for scan in people:
        if not scan.is_rare(0):
            _write_manifest(output, scan.label)
    return len(scans)


def _write_pictures(folder: Path, rng: np.random.Generator, site: int) -> None:
    """Write what the scans of a site share: brain, mean b0, tensor and RISH maps, transform."""
    radius = np.linalg.norm(GRID, axis=-1)
    b0 = np.where(BRAIN, 1000 * (1.3 - radius), 0) * rng.uniform(0.9, 1.1)
    fa = np.where(BRAIN, 0.4 * rng.uniform(0.9, 1.1), 0)
    maps: dict[str, Any] = {
        MEAN_B0: b0,
        BRAIN_MASK: BRAIN,
        tensor_ending("fa"): fa,
        tensor_ending("dec"): fa[..., None] * np.array([1.0, 0, 0]),
    }
    for degree in (0, 2):
        energy = np.where(BRAIN, 0.5 / (1 + degree), 0) * (1 + 0.02 * (site % 5))
        maps[rish_ending(degree)] = energy
    for name, data in maps.items():
        stored = data if data.dtype == np.bool_ else data.astype(np.float32)
        write_image(folder / name, stored, AFFINE)
    write_text(folder / "transform", TRANSFORM)
    write_json(folder / "sidecar", {"Nside": NSIDE, "Ordering": "NESTED", "BValue": [1000.0]})
    (folder / "empty").touch()


def _write_scan(
    folder: Path, scan: Scan, directions: np.ndarray, rng: np.random.Generator
) -> None:
    output = folder / "out"
    names = DerivativeNames(output_dir=output, entities=scan.entities, resolution_mm=VOXEL_MM)
    raw = folder / "raw" / names.folder.relative_to(output)
    for place in (names.folder, raw):
        place.mkdir(parents=True)
    shared = folder / "pictures" / f"{scan.site}"
    image = names.standard(SAMPLES)
    for place in (
        raw / f"{scan.name}_dwi.nii.gz",
        names.native(SERIES),
        names.standard(SERIES),
        names.native(tensor_ending("fa")),
    ):
        os.link(shared / "empty", place)
    os.link(shared / "sidecar", sidecar(image))
    os.link(shared / "transform", names.native(transform_ending(names.template)))
    for ending in (MEAN_B0, BRAIN_MASK):
        os.link(shared / ending, names.native(ending))
    for ending in (
        BRAIN_MASK,
        tensor_ending("fa"),
        tensor_ending("dec"),
        rish_ending(0),
        rish_ending(2),
    ):
        os.link(shared / ending, names.standard(ending))
    write_image(image, _samples(scan, directions, rng), AFFINE, scale=1 / 16384)
    if scan.is_rare(0):
        image.write_bytes(image.read_bytes()[:60])
    motion = float(rng.gamma(4, 0.04)) * (12 if scan.is_rare(2) else 1)
    steps = "\n".join(f"{motion * x:.4f}" for x in (0.5, 1.0, 1.5))
    names.native(CONFOUNDS).write_text(f"framewise_displacement\nn/a\n{steps}\n")
    names.native(FACTS).write_text(json.dumps(_facts(scan, motion, rng)))
    (output / f"sub-{scan.label}.html").write_text("<!DOCTYPE html><title>scan</title>")


def _samples(scan: Scan, directions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """S/b0: one fibre a voxel, weaker in part of the brain of patients; sites differ."""
    fibre = np.stack([np.cos(GRID[..., 1]), np.sin(GRID[..., 0]), 0.5 + 0 * GRID[..., 2]], -1)
    fibre /= np.linalg.norm(fibre, axis=-1, keepdims=True)
    along = 1.4 - EFFECT * CLASSES.index(scan.group) * (GRID[..., 0] > 0)
    values = np.exp(-0.3 - along[..., None] * (fibre @ directions.T) ** 2)
    mean = values.mean(axis=-1, keepdims=True)
    values = mean * (1 + 0.01 * (scan.site % 5)) + (values - mean) * (1 - 0.01 * (scan.site % 7))
    values += rng.normal(0, 0.02, values.shape) + rng.normal(0, 0.01)
    return np.where(BRAIN[..., None], values, 0)


def _facts(scan: Scan, motion: float, rng: np.random.Generator) -> dict[str, Any]:
    """Facts of a scan, as the participant level leaves them."""
    return {
        "name": scan.name,
        "acquisition": [{"name": scan.name, "readout_s": 0.05}],
        "tools": {"correction": "ants", "masking": "otsu", "topup": False},
        "correction": [
            {
                "method": "ants",
                "largest_displacement_mm": 4 * motion,
                "outlier_slices": int(rng.poisson(3)),
            }
        ],
        "mask": {"method": "otsu", "volume_ml": float(rng.normal(1400, 90))},
        "registration": {
            "source": "b0",
            "template": "MNI152NLin2009aSym",
            "dice": float(rng.normal(0.96, 0.005)),
            "information": float(rng.normal(1.1, 0.01)),
            "coverage": float(min(1.0, rng.normal(0.99, 0.004))),
        },
        "sphere": {
            "sampled": [{"b_value": 1000.0, "directions": 32}],
            "nside": NSIDE,
            "residual_rms": float(rng.normal(0.02, 0.002)),
        },
        "quality": {
            "snr_b0": float(rng.normal(28, 3)) - scan.site % 4,
            "cnr": float(rng.normal(3.5, 0.3)),
            "tensor_residual": float(rng.normal(0.03, 0.003)),
            "neighbour_correlation": float(rng.normal(0.85, 0.02)),
            "mean_fa_white_matter": float(rng.normal(0.53, 0.02)),
        },
    }


def _write_manifest(output: Path, label: str) -> None:
    """Write the list of a participant's files; hashes are not looked at while times agree."""
    paths = [*(output / f"sub-{label}").rglob("*.*"), output / f"sub-{label}.html"]
    files = {}
    for path in paths:
        status = path.stat()
        files[str(path.relative_to(output))] = {
            "size": status.st_size, "time_ns": status.st_mtime_ns, "sha256": "",
        }  # fmt: skip
    content = {"format": "bids_gevnet manifest 1", "made_from": "", "files": files}
    place = output / "logs" / "manifests" / f"sub-{label}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(content))
