"""The verdict on registrations to the template: false alarms and misses.

    python benchmarks/accuracy.py --only registration [--real-data FOLDER] [--cases SCAN ...]
    python benchmarks/accuracy.py --only registration --parts displaced|headers
    python benchmarks/accuracy.py --only registration --parts held-out [--seeds 21 22]

Every scan is registered as it is, and with a header that is wrong by a known amount: the head
turned, flipped, shrunk or stretched. What comes out is right within 6 mm of the result that stands
for the truth (phantoms: the truth itself; real scans: the registration without a fault, looked
at), wrong beyond 10 mm. *Displaced* moves that transform by a known amount and asks for the
verdict alone. One of two phantoms has its contrast brought down to that of real b0s, noise of 6 %
and a dark middle.

*Held-out* is *displaced* on heads that no limit was ever chosen on: phantoms of other seeds and
heads of the second simulator (`ball_and_sticks`), both with the contrast of real b0s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import nibabel
import numpy as np
from ball_and_sticks import Head as Anatomy
from ball_and_sticks import brain_at, image_at, onto_template
from scipy.spatial.transform import Rotation

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.mask import brain_mask, shading_of_head
from bids_gevnet.dwi.registration import flatten_shading, register_to_template
from bids_gevnet.dwi.registration_quality import Registration, Volume, judge
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.errors import ParticipantError
from bids_gevnet.interfaces.template_grid import load_template
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant

if TYPE_CHECKING:
    from pathlib import Path

    from correction_scores import Show

RIGHT_MM, WRONG_MM = 6.0, 10.0
REAL_CONTRAST = 0.35
"""Power of the phantoms' intensities that looks like a real b0."""

HELD_OUT = (21, 22)
"""Seeds that no limit was chosen on."""


def turn(x_deg: float = 0, y_deg: float = 0, z_deg: float = 0) -> np.ndarray:
    """Return a rotation about the world axes."""
    matrix = np.eye(4)
    angles = (x_deg, y_deg, z_deg)
    matrix[:3, :3] = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    return matrix


HEADERS = {
    "as it is": np.eye(4),
    "turned by 40 degrees about x": turn(40),
    "turned by 90 degrees about x": turn(90),
    "back to front": turn(0, 0, 180),
    "flipped front to back": np.diag([1.0, -1.0, 1.0, 1.0]),
    "0.6 times the size": np.diag([0.6, 0.6, 0.6, 1.0]),
}


@dataclass(frozen=True)
class Head:
    """A mean b0 with its brain, and its true transform to the template where that is known."""

    name: str
    volume: Volume
    to_template: np.ndarray | None


def registration_verdicts(
    show: Show,
    folder: Path | None,
    voxel_mm: float,
    names: tuple[str, ...] = (),
    parts: tuple[str, ...] = (),
    seeds: tuple[int, ...] = HELD_OUT,
) -> None:
    """Print verdicts of every head, and the sums."""
    loaded = load_template(None)
    template = Volume(loaded.image, loaded.affine, loaded.mask)
    if "held-out" in parts:
        held_out_verdicts(show, voxel_mm, seeds, template)
        return
    heads = [*phantom_heads(voxel_mm, names), *(real_heads(folder, names) if folder else [])]
    verdicts: list[tuple[bool, bool]] = []
    displaced: list[tuple[str, bool]] = []
    for head in heads:
        truth = head.to_template
        if truth is None:
            truth = register_to_template(head.volume, template).moving_to_fixed
        if not parts or "headers" in parts:
            verdicts += header_verdicts(show, head, truth, template)
        if not parts or "displaced" in parts:
            displaced += displaced_verdicts(truth, head.volume, template)
    sums(show, verdicts, displaced)


def held_out_verdicts(
    show: Show, voxel_mm: float, seeds: tuple[int, ...], template: Volume
) -> None:
    """Print verdicts on heads that no limit was chosen on, each kind by itself."""
    for kind, make_head in {"phantoms": phantom_head, "second simulator": anatomy_head}.items():
        displaced: list[tuple[str, bool]] = []
        for seed in seeds:
            head = make_head(seed, voxel_mm)
            displaced += displaced_verdicts(head.to_template, head.volume, template)
        sums(show, [], displaced, f"{kind} {', '.join(map(str, seeds))}, {voxel_mm:g} mm")


def header_verdicts(
    show: Show, head: Head, truth: np.ndarray, template: Volume
) -> list[tuple[bool, bool]]:
    """Register with wrong headers; return whether the result is wrong and is called poor."""
    verdicts = []
    for plant, header in HEADERS.items():
        moved = replace(head.volume, affine=header @ head.volume.affine)
        found = register_to_template(moved, template)
        error = error_mm(found.moving_to_fixed @ header, truth, head.volume)
        show(f"{head.name}, {plant}: error of the affine", words(found, error), "-")
        if error < RIGHT_MM or error > WRONG_MM:
            verdicts.append((error > WRONG_MM, found.is_poor))
    return verdicts


def displaced_verdicts(
    truth: np.ndarray, volume: Volume, template: Volume
) -> list[tuple[str, bool]]:
    """Ask for the verdict on transforms that are wrong by a known amount."""
    moving, fixed = flatten_shading(volume), flatten_shading(template)
    index = np.argwhere(fixed.mask).mean(axis=0)
    centre = fixed.affine[:3, :3] @ index + fixed.affine[:3, 3]
    verdicts = [("as they are", np.eye(4))]
    for axis, letter in enumerate("xyz"):
        for shift_mm in (2.0, 4.0, 8.0, 12.0, 20.0):
            move = np.eye(4)
            move[axis, 3] = shift_mm
            verdicts.append((f"moved by {shift_mm:g} mm", move))
        for angle in (2.5, 5.0, 10.0, 15.0, 20.0):
            move = turn(**{f"{letter}_deg": angle})
            move[:3, 3] = centre - move[:3, :3] @ centre
            verdicts.append((f"turned by {angle:g} degrees", move))
    return [(name, judge(move @ truth, moving, fixed).is_poor) for name, move in verdicts]


def sums(
    show: Show,
    verdicts: list[tuple[bool, bool]],
    displaced: list[tuple[str, bool]],
    heads: str = "all",
) -> None:
    """Print how many verdicts are wrong."""
    if verdicts:
        sum_headers(show, verdicts)
    for name in dict.fromkeys(name for name, _ in displaced):
        called = [poor for other, poor in displaced if other == name]
        show(f"{heads}: right ones {name}, called poor", f"{sum(called)} of {len(called)}", "-")


def sum_headers(show: Show, verdicts: list[tuple[bool, bool]]) -> None:
    """Print false alarms and misses of registrations with wrong headers."""
    alarms = sum(poor for wrong, poor in verdicts if not wrong)
    right = sum(not wrong for wrong, _ in verdicts)
    misses = sum(not poor for wrong, poor in verdicts if wrong)
    show("all: false alarms", f"{alarms} of {right} right registrations", "0")
    show("all: misses", f"{misses} of {len(verdicts) - right} wrong registrations", "0")


def words(found: Registration, error: float) -> str:
    """Say what came out."""
    return (
        f"{error:.1f} mm, {'poor' if found.is_poor else 'good'}"
        f"{' after a second try' if found.retried else ''} (overlap {found.dice:.3f}, rival "
        f"{found.rival:.2f}, borders {found.edges:.2f}, size {found.sizes[0]:.2f} to "
        f"{found.sizes[1]:.2f}, information {found.information:.3f})"
    )


def error_mm(found: np.ndarray, truth: np.ndarray, volume: Volume) -> float:
    """Return the mean distance in the brain."""
    index = np.argwhere(volume.mask)[::37]
    points = np.c_[index, np.ones(len(index))] @ volume.affine.T
    return float(np.linalg.norm((points @ (found - truth).T)[:, :3], axis=1).mean())


def phantom_heads(voxel_mm: float, names: tuple[str, ...] = ()) -> list[Head]:
    """Return a phantom as it is and one with the contrast of a real b0."""
    heads = [(0, 1.0), (1, REAL_CONTRAST)]
    return [
        phantom_head(seed, voxel_mm, contrast)
        for seed, contrast in heads
        if not names or phantom_name(seed, voxel_mm, contrast) in names
    ]


def phantom_name(seed: int, voxel_mm: float, contrast: float) -> str:
    return f"phantom {seed}{' of low contrast' if contrast < 1 else ''}, {voxel_mm:g} mm"


def phantom_head(seed: int, voxel_mm: float, contrast: float = REAL_CONTRAST) -> Head:
    """Return a phantom in some pose, as it is or with the contrast of a real b0."""
    settings = PhantomSettings(
        per_group=1,
        voxel_mm=voxel_mm,
        directions=6,
        eddy=0.0,
        motion_mm=0.0,
        motion_deg=0.0,
        pose_deg=15.0,
        pose_size=0.15,
        seed=seed,
    )
    scan = simulate_participant(settings, plan_cohort(settings)[0])
    image = conform(scan.data, scan.affine)
    brain = conform(scan.truth.mask, scan.affine).data
    b0 = mean_volume(image.data, find_shells(scan.bvals).b0)
    b0 = like_a_real_b0(b0, brain) if contrast < 1 else b0
    truth = np.linalg.inv(image.old_to_new @ scan.truth.pose)
    name = phantom_name(seed, voxel_mm, contrast)
    return Head(name, Volume(b0, image.affine, brain), truth)


def anatomy_head(seed: int, voxel_mm: float) -> Head:
    """Return a head of the second simulator in some pose, with the contrast of a real b0."""
    rng = np.random.default_rng([seed, 21])
    anatomy = Anatomy(rng)
    pose = turn(*rng.uniform(-15.0, 15.0, 3))
    shape = np.rint(np.array([204.0, 234.0, 186.0]) / voxel_mm).astype(int)
    affine = np.diag([*[voxel_mm] * 3, 1.0])
    affine[:3, 3] = -voxel_mm * (shape - 1) / 2
    grid = np.indices(shape).reshape(3, -1).T @ affine[:3, :3].T + affine[:3, 3]
    places = grid @ pose[:3, :3].T
    brain = brain_at(anatomy, places).reshape(shape)
    b0 = image_at(anatomy, places, voxel_mm).reshape(shape)
    volume = Volume(like_a_real_b0(b0, brain), affine, brain)
    return Head(f"second simulator {seed}, {voxel_mm:g} mm", volume, onto_template(anatomy) @ pose)


def like_a_real_b0(b0: np.ndarray, brain: np.ndarray) -> np.ndarray:
    """Bring down contrast, darken the middle, add noise."""
    middle = float(np.median(b0[brain]))
    lower = middle * (np.maximum(b0, 1e-6) / middle) ** REAL_CONTRAST
    flat = np.where(b0 > 0.15 * middle, lower, 0)
    centre = np.array(b0.shape) / 2
    index = np.moveaxis(np.indices(b0.shape), 0, -1)
    radius = np.linalg.norm((index - centre) / centre, axis=-1)
    noise = np.random.default_rng(0).normal(scale=0.06 * middle, size=b0.shape)
    return np.abs(flat * (0.35 + 0.65 * np.clip(radius, 0, 1.2)) + noise).astype(np.float32)


def real_heads(folder: Path, names: tuple[str, ...] = ()) -> list[Head]:
    """Return the mean b0 of every real scan with a brain."""
    heads = []
    for path in sorted(folder.glob("sub-*/dwi/*_dwi.nii.gz")):
        name = path.name.removesuffix("_dwi.nii.gz")
        if names and name not in names:
            continue
        image = nibabel.load(path)
        data = np.nan_to_num(np.asarray(image.dataobj, dtype=np.float32))
        shells = find_shells(read_bval(path.with_name(path.name.replace(".nii.gz", ".bval"))))
        b0 = mean_volume(data, shells.b0)
        weighted = mean_volume(data, choose_shell(shells).volumes)
        try:
            shading = shading_of_head(b0, image.affine, weighted)
            mask = brain_mask(b0 / shading, image.affine, weighted / shading)
        except ParticipantError:
            continue
        moved = conform(b0, image.affine)
        brain = conform(mask, image.affine).data
        heads.append(Head(name, Volume(moved.data, moved.affine, brain), None))
    return heads
