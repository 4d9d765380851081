r"""Motion, eddy currents and lost slices of a diffusion series, estimated together.

What FSL's eddy does, from pip packages: each volume is compared with a prediction of itself made
from all others of its shell (`volume_prediction`), so contrast never has to match
between gradients. From coarse to fine, again and again:

1. read every volume through its present estimate, in one interpolation of the raw data with the
   Jacobian (`warp`);
2. predict each from the others;
3. one Gauss-Newton step for motion and eddy terms of every volume
   (`motion_and_eddy_step`), whose eddy part is replaced by a linear model of the gradients
   (`eddy_over_gradients`);
4. between levels, find slices that lost their signal and replace them
   (`outlier_slices`).

At the end the positions of all volumes, in the order of acquisition, tell motion from what follows
the gradients (`motion_over_time`).

b0s move rigidly among each other. The mean of each shell is brought to the mean b0 by mutual
information, as contrast differs between shells. The first b0 is the reference.

Not done, and FSL's eddy can: motion within a volume (slice to volume), the change of the
susceptibility field with the pose of the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.dwi.gradients import rotate_bvecs, voxel_sizes
from bids_gevnet.dwi.mask import brain_mask, grow_mask, head_mask
from bids_gevnet.dwi.model_corrector.eddy_over_gradients import (
    fit_eddy_model,
    follow_gradients,
    gradient_drive,
)
from bids_gevnet.dwi.model_corrector.motion_and_eddy_step import (
    N_RIGID,
    Brain,
    Lattice,
    Level,
    Step,
    Workers,
    gauss_newton_step,
    move,
    read_through,
    rigid_vector,
    single_threaded,
)
from bids_gevnet.dwi.model_corrector.motion_over_time import (
    UNKNOWN_MM,
    Positions,
    separate_motion,
)
from bids_gevnet.dwi.model_corrector.outlier_slices import (
    Losses,
    find_outliers,
    predict_slices,
    sum_slices,
)
from bids_gevnet.dwi.model_corrector.volume_prediction import Predictor, mean_of_others_matrix
from bids_gevnet.dwi.model_corrector.warp import Field, still_warp
from bids_gevnet.dwi.motion import LARGEST_MOTION_MM, align_means, displacement_mm
from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.dwi.model_corrector.outlier_slices import Replacements
    from bids_gevnet.dwi.model_corrector.warp import Warp
    from bids_gevnet.dwi.shells import Shells

LEVELS = (
    Level(6.0, 9.0, 5, caution=10.0),
    Level(4.0, 5.0, 4, caution=3.0),
    Level(3.0, 3.0, 2, caution=1.0, quadratic=True),
)

CLASSES = 6
"""Of voxels, from those that vary least over the directions to those that vary most."""

MARGIN_MM = 6.0
FEWEST_FOR_EDDY = 6
"""Volumes a shell needs before eddy terms are estimated on it; with fewer only motion is."""

_SMALLEST_SPREAD = 0.3
_SAMPLE = 3000
_SEED = 6
_FEWEST_VOXELS = 8
_MASK_VOLUMES, _LINK_VOLUMES = 8, 16
"""Volumes that are averaged for a mask and for the link between shells: enough of them."""


@dataclass(frozen=True)
class DiffusionSeries:
    """A conformed series with all that its correction needs to know.

    Attributes
    ----------
    data : (X, Y, Z, n) array
    affine : (4, 4) array
        Axis-aligned and centred (:func:`bids_gevnet.dwi.conform.conform`).
    bvals : (n,) array
    bvecs_ras : (n, 3) array
    shells : Shells
    axis : int
        Voxel axis of the phase encoding.
    slice_axis : int
        Voxel axis across slices.
    """

    data: NDArray[Any]
    affine: NDArray[np.float64]
    bvals: NDArray[np.float64]
    bvecs_ras: NDArray[np.float64]
    shells: Shells
    axis: int = 1
    slice_axis: int = 2


@dataclass(frozen=True)
class Correction:
    """What was found.

    Attributes
    ----------
    warp : Warp
    outliers : (n, slices) array of bool
    z_scores : (n, slices) array
        How far the signal of each slice is from its prediction.
    replacements : mapping of (int, int) to 2D array
        (volume, slice) to the raw slice as predicted; put there by :func:`fill_slices`.
    note : str
        What a reader of the report should know; empty when all went well.
    """

    warp: Warp
    outliers: NDArray[np.bool_]
    z_scores: NDArray[np.float64]
    replacements: Replacements
    note: str = ""


def correct_series(
    series: DiffusionSeries,
    field: NDArray[np.float32] | None = None,
    *,
    levels: Sequence[Level] = LEVELS,
    n_threads: int = 1,
    device: torch.device | str = "cpu",
) -> Correction:
    """Estimate motion, eddy fields and lost slices of a series.

    Parameters
    ----------
    series : DiffusionSeries
    field : (X, Y, Z) array, optional
        Susceptibility displacement, mm along the positive phase-encoding axis
        (`susceptibility`).
    levels : sequence of Level
        From coarse to fine.
    n_threads : int
        Volumes at a time; the result does not depend on it.
    device : torch.device
        Where tensors live.

    Returns
    -------
    correction : Correction
        Apply it with `warp.resample_warped` to the raw data with
        the lost slices filled.
    """
    if min(series.data.shape[:3]) < _FEWEST_VOXELS:
        shape = (series.data.shape[3], series.data.shape[series.slice_axis])
        return Correction(
            still_warp(shape[0], series.axis, field),
            np.zeros(shape, bool),
            np.zeros(shape),
            {},
            f"nothing was estimated: an axis has fewer than {_FEWEST_VOXELS} voxels",
        )
    with single_threaded():
        return _Estimator(series, field, Workers(n_threads, device)).run(levels)


def fill_slices(volume: NDArray[Any], k: int, replacements: Replacements, slice_axis: int) -> Any:
    """Return volume k with its lost slices replaced; the volume itself if there are none."""
    lost = [z for (v, z) in replacements if v == k]
    if not lost:
        return volume
    filled = np.array(volume, dtype=np.float32)
    view = np.moveaxis(filled, slice_axis, 0)
    for z in lost:
        view[z] = replacements[k, z]
    return filled


class _Estimator:
    """The state of an estimation: the present warp and the slices that are replaced."""

    def __init__(
        self, series: DiffusionSeries, field: NDArray[np.float32] | None, workers: Workers
    ) -> None:
        self.series = series
        self.workers = workers
        self.sizes = voxel_sizes(series.affine)
        self.field = None if field is None else Field(field, self.sizes, workers.device)
        count, slices = series.data.shape[3], series.data.shape[series.slice_axis]
        self.warp = still_warp(count, series.axis, field)
        self.replacements: Replacements = {}
        self.outliers = np.zeros((count, slices), bool)
        self.z_scores = np.zeros((count, slices))
        shells = series.shells
        self.groups = [g for g in (shells.b0, *(s.volumes for s in shells.shells)) if g.size]
        self.weighted = [g for g in self.groups if g is not shells.b0]
        threshold = float(series.bvals[shells.b0].max()) if shells.b0.size else -1.0
        self.variance = np.full((count, N_RIGID), UNKNOWN_MM**2)
        if shells.b0.size == 1:
            self.variance[shells.b0] = 0
        self.drive = gradient_drive(series.bvals, series.bvecs_ras, threshold)

    def run(self, levels: Sequence[Level]) -> Correction:
        """Go through the levels and split motion from eddy currents at the end."""
        for number, level in enumerate(levels):
            lattice = Lattice(self.series.data.shape, self.sizes, level, self.workers.device)
            coefficients = self._coefficients(lattice)
            inner = self._brain(lattice, coefficients)
            affine = np.diag([*lattice.spacing, 1.0])
            brain = Brain(lattice, grow_mask(inner, affine, MARGIN_MM))
            for _ in range(level.iterations):
                self._iterate(level, lattice, brain, coefficients)
            is_last = number == len(levels) - 1
            if number == 0 or is_last:
                self._link(lattice, coefficients)
            if number > 0 or is_last:
                self._find_lost_slices(lattice, brain, coefficients, inner)
        return self._finish()

    # ------------------------------------------------------------------ reading volumes

    def _raw(self, k: int) -> torch.Tensor:
        volume = np.asarray(self.series.data[..., k], dtype=np.float32)
        volume = fill_slices(volume, k, self.replacements, self.series.slice_axis)
        return torch.as_tensor(np.ascontiguousarray(volume), device=self.workers.device)

    def _coefficients(self, lattice: Lattice) -> list[torch.Tensor]:
        def one(k: int) -> torch.Tensor:
            return lattice.sampler.coefficients(self._raw(k))

        return self.workers.map(one, range(len(self.warp.motion)))

    def _read(
        self,
        coefficients: Sequence[torch.Tensor],
        lattice: Lattice,
        volumes: NDArray[np.intp],
        brain: Brain | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read volumes in the reference, (g, v) values and (g, v) whether they were seen.

        At the points of the brain, or at all of the lattice.
        """
        warp = self.warp
        points = lattice.points() if brain is None else brain.points
        field = None if self.field is None else self.field.on_grid(lattice.positions)
        if field is not None and brain is not None:
            field = field.select(brain.near)

        def one(k: int) -> tuple[torch.Tensor, torch.Tensor]:
            return read_through(
                coefficients[k], lattice, points, warp.motion[k], warp.eddy[k], warp.axis, field
            )

        read = self.workers.map(one, volumes)
        values, valid = (torch.stack(part) for part in zip(*read, strict=True))
        # What one volume did not see is taken from the others, or they would follow a hole.
        mean = (values * valid).sum(dim=0) / valid.sum(dim=0).clamp(min=1)
        return torch.where(valid, values, mean), valid

    def _mean(
        self, coefficients: Sequence[torch.Tensor], lattice: Lattice, volumes: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        values, _ = self._read(coefficients, lattice, volumes)
        return np.asarray(values.mean(dim=0).cpu().numpy().reshape(lattice.shape))

    def _brain(
        self, coefficients_on: Lattice, coefficients: Sequence[torch.Tensor]
    ) -> NDArray[np.bool_]:
        lattice = coefficients_on
        affine = np.diag([*lattice.spacing, 1.0])
        b0, weighted = (
            self._mean(coefficients, lattice, _some(group, _MASK_VOLUMES))
            for group in (self.groups[0], self.groups[-1])
        )
        try:
            return brain_mask(b0, affine, weighted)
        except ParticipantError:
            return head_mask(b0, affine, 0.0)  # small heads, phantoms, parts of a brain

    # ------------------------------------------------------------------ estimating

    def _predict(
        self, volumes: NDArray[np.intp], values: torch.Tensor, caution: float
    ) -> torch.Tensor:
        """Predict each volume of a group from the others, (g, v).

        Voxels are sorted into classes by how much they vary over the volumes, and each class is
        predicted in its own way. In grey matter and at the edge of the brain, where directions
        do not matter, the mean of the others is expected: what varies there is misplaced.
        """
        if volumes is self.series.shells.b0:
            return _like(mean_of_others_matrix(len(volumes)), values) @ values
        predictor = self._predictor(volumes)
        order = torch.argsort(values.std(dim=0))
        predicted = torch.empty_like(values)
        for part in torch.tensor_split(order, CLASSES):
            matrix = predictor.matrix(_sample(values[:, part], _SAMPLE // CLASSES), caution)
            predicted[:, part] = _like(matrix, values) @ values[:, part]
        return predicted

    def _predictor(self, volumes: NDArray[np.intp]) -> Predictor:
        transforms = self.warp.transforms[volumes]
        return Predictor(rotate_bvecs(self.series.bvecs_ras[volumes], transforms))

    def _iterate(
        self,
        level: Level,
        lattice: Lattice,
        brain: Brain,
        coefficients: Sequence[torch.Tensor],
    ) -> None:
        """Take one step with every volume."""
        rigid: list[tuple[int, Step]] = []
        full: list[tuple[int, int, Step]] = []
        for number, volumes in enumerate(self.groups):
            if len(volumes) < 2:
                continue
            values, valid = self._read(coefficients, lattice, volumes, brain)
            predicted = self._predict(volumes, values, level.caution)
            is_b0 = volumes is self.series.shells.b0
            terms = None if is_b0 or len(volumes) < FEWEST_FOR_EDDY else level.terms
            spread = None if terms is None else _spread(values - predicted, valid)

            def one(
                i: int,
                values: torch.Tensor = values,
                valid: torch.Tensor = valid,
                predicted: torch.Tensor = predicted,
                spread: torch.Tensor | None = spread,
                volumes: NDArray[np.intp] = volumes,
                terms: slice | None = terms,
            ) -> Step:
                return gauss_newton_step(
                    values[i], valid[i], predicted[i], brain,
                    self.warp.motion[volumes[i]], self.warp.axis, terms,
                    spread=spread,
                )  # fmt: skip

            steps = self.workers.map(one, range(len(volumes)))
            if terms is None:
                # Everyone moves at once: a full step would make two volumes change places.
                share = 1 - 1 / len(volumes)
                rigid += [
                    (int(k), replace(step, delta=share * step.delta))
                    for k, step in zip(volumes, steps, strict=True)
                ]
            else:
                full += [(int(k), number, step) for k, step in zip(volumes, steps, strict=True)]
        self._update(level, rigid, full)

    def _update(
        self,
        level: Level,
        rigid: Sequence[tuple[int, Step]],
        full: Sequence[tuple[int, int, Step]],
    ) -> None:
        motion, eddy = self.warp.motion.copy(), self.warp.eddy.copy()
        for k, step in rigid:
            motion[k] = move(motion[k], step.delta)
            self.variance[k] = step.rigid_variance
        if full:
            volumes = np.array([k for k, _, _ in full])
            shell = np.unique([number for _, number, _ in full], return_inverse=True)[1]
            steps = [step for _, _, step in full]
            now = eddy[volumes, level.terms]
            found = now + np.stack([step.delta[N_RIGID:] for step in steps])
            noise = np.stack([step.variance[N_RIGID:] for step in steps])
            model = fit_eddy_model(found, self.drive[volumes], shell, noise)
            for k, step, delta in zip(
                volumes, steps, follow_gradients(steps, now, model), strict=True
            ):
                motion[k] = move(motion[k], delta[:N_RIGID])
                eddy[k, level.terms] += delta[N_RIGID:]
                self.variance[k] = step.rigid_variance
        self.warp = replace(self.warp, motion=motion, eddy=eddy)

    def _link(self, lattice: Lattice, coefficients: Sequence[torch.Tensor]) -> None:
        """Bring the mean of each shell to the mean b0, and everything to the first b0."""
        affine = np.diag([*lattice.spacing, 1.0])
        affine[:3, 3] = -lattice.spacing * (np.array(lattice.shape) - 1) / 2
        motion = self.warp.motion.copy()
        first = self._mean(coefficients, lattice, _some(self.groups[0], _LINK_VOLUMES))
        for group in self.groups[1:]:
            mean = self._mean(coefficients, lattice, _some(group, _LINK_VOLUMES))
            to_first = align_means(mean, first, affine)
            motion[group] = motion[group] @ np.linalg.inv(to_first)
        motion = motion @ np.linalg.inv(motion[self.groups[0][0]])
        self.warp = replace(self.warp, motion=motion)

    def _settle(self) -> None:
        """Tell motion from the constant eddy term and from errors that follow the gradients."""
        axis, group = self.warp.axis, np.zeros(len(self.warp.motion), np.intp)
        for number, volumes in enumerate(self.groups):
            group[volumes] = number
        motion, eddy = self.warp.motion.copy(), self.warp.eddy.copy()
        motion[:, axis, 3] += eddy[:, 0]
        positions = Positions(rigid_vector(motion), self.variance, group, self.drive, axis)
        vectors, eddy[:, 0] = separate_motion(positions)
        motion = np.stack([move(np.eye(4), vector) for vector in vectors])
        motion = motion @ np.linalg.inv(motion[self.groups[0][0]])
        self.warp = replace(self.warp, motion=motion, eddy=eddy)

    # ------------------------------------------------------------------ lost slices

    def _find_lost_slices(
        self,
        lattice: Lattice,
        brain: Brain,
        coefficients: Sequence[torch.Tensor],
        inner: NDArray[np.bool_],
    ) -> None:
        """Look for lost slices in the raw data and replace them by their prediction."""
        found: Replacements = {}
        for volumes in self.weighted:
            if len(volumes) < FEWEST_FOR_EDDY:
                continue
            values, _ = self._read(coefficients, lattice, volumes, brain)
            matrix = self._predictor(volumes).matrix(_sample(values, _SAMPLE))
            predicted = _like(matrix, values) @ values

            def one(
                i: int,
                predicted: torch.Tensor = predicted,
                volumes: NDArray[np.intp] = volumes,
            ) -> NDArray[np.float64]:
                k = int(volumes[i])
                raw = np.asarray(self.series.data[..., k], dtype=np.float32)
                volume = brain.to_volume(predicted[i], lattice)
                return sum_slices(
                    raw, volume, inner, lattice, self.sizes, self.warp.select([k]),
                    self.series.slice_axis, self.field,
                )  # fmt: skip

            sums = np.stack(self.workers.map(one, range(len(volumes))), axis=1)  # (3, g, slices)
            outlier, z_score = find_outliers(Losses(*sums))
            self.outliers[volumes], self.z_scores[volumes] = outlier, z_score
            found |= predict_slices(
                outlier, volumes, matrix, self._raw, self.sizes, self.warp,
                self.series.slice_axis, self.field, self.workers,
            )  # fmt: skip
        changed = {k for k, _ in {*found, *self.replacements}}
        self.replacements = found
        for k in sorted(changed):
            coefficients[k].copy_(lattice.sampler.coefficients(self._raw(k)))

    def _finish(self) -> Correction:
        self._settle()
        motion, eddy = self.warp.motion.copy(), self.warp.eddy.copy()
        failed = displacement_mm(motion) > LARGEST_MOTION_MM
        motion[failed], eddy[failed] = np.eye(4), 0
        notes = []
        if few := [len(g) for g in self.weighted if len(g) < FEWEST_FOR_EDDY]:
            notes.append(
                f"eddy currents and lost slices were not looked for on shells of fewer than "
                f"{FEWEST_FOR_EDDY} volumes ({', '.join(map(str, few))})"
            )
        if failed.any():
            listed = ", ".join(map(str, np.flatnonzero(failed)))
            notes.append(f"no position was found for volumes {listed}; left as they were")
        return Correction(
            replace(self.warp, motion=motion, eddy=eddy),
            self.outliers,
            self.z_scores,
            self.replacements,
            "; ".join(notes),
        )


def _spread(errors: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation of each voxel's errors (g, v) over the volumes, (v,)."""
    squares = (errors.square() * valid).sum(dim=0) / valid.sum(dim=0).clamp(min=1)
    # Voxels that happen to agree are not to be trusted more than a few times the usual.
    return squares.sqrt().clamp(min=_SMALLEST_SPREAD * float(squares.sqrt().median()) + 1e-12)


def _like(matrix: NDArray[np.float64], values: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(matrix, dtype=values.dtype, device=values.device)


def _sample(values: torch.Tensor, most: int) -> NDArray[np.float64]:
    """Return values (g, v) at some random voxels."""
    order = np.random.default_rng(_SEED).permutation(values.shape[1])
    chosen = torch.as_tensor(np.sort(order[:most]), device=values.device)
    return np.asarray(values[:, chosen].double().cpu().numpy())


def _some(volumes: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return at most so many volumes, spread over all."""
    if len(volumes) <= most:
        return volumes
    return np.asarray(volumes[np.linspace(0, len(volumes) - 1, most).astype(int)])
