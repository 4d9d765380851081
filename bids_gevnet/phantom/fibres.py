"""A smooth fibre field with crossings, as a function of template position.

First fibre a(y): arcs from hemisphere to hemisphere, left-right at the midline and upright at
the sides, bent forwards in front and backwards behind. Second direction: front to back, made
orthogonal to a. With m, n the bisectors of the two, the fibres at crossing angle theta are

    u1 = cos(theta / 2) m + sin(theta / 2) n,    u2 = cos(theta / 2) m - sin(theta / 2) n

(``fibre_directions``), so theta is exact everywhere and changing it turns both fibres about
their common bisector. The share of the second fibre (``second_fibre_share``) is 1/2 in the
crossing region, 1 low at the sides of the brain (association fibres) and 0 elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.phantom.effects import BASE_DISPERSION, CROSSING_ANGLE_DEG

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.phantom.effects import TissueState

    Floats = NDArray[np.floating[Any]]

CROSSING_CENTRE_MM = (27.0, -14.0, 30.0)
DISPERSION_CENTRE_MM = (28.0, -60.0, 16.0)
REGION_RADIUS_MM = 20.0


def region_weight(points: Floats, centre: tuple[float, float, float]) -> Floats:
    """Weight of a two-sided region: 1 inside, falling smoothly to 0 at its edge.

    Parameters
    ----------
    points : (..., 3) array
        Template mm.
    centre : tuple of float
        Centre on the right; the left one mirrors it.

    Returns
    -------
    (...) array
    """
    mirrored = np.stack([np.abs(points[..., 0]), points[..., 1], points[..., 2]], axis=-1)
    radius = np.linalg.norm(mirrored - np.asarray(centre), axis=-1) / REGION_RADIUS_MM
    weight: Floats = np.exp(-(radius**6))
    return weight


def crossing_region(points: Floats) -> Floats:
    """Weight of the region in which two fibre populations cross."""
    return region_weight(points, CROSSING_CENTRE_MM)


def dispersion_region(points: Floats) -> Floats:
    """Weight of the region whose dispersion differs between groups."""
    return region_weight(points, DISPERSION_CENTRE_MM)


def fibre_directions(points: Floats, state: TissueState) -> tuple[Floats, Floats]:
    """Directions of both fibre populations.

    Parameters
    ----------
    points : (..., 3) array
        Template mm.
    state : TissueState

    Returns
    -------
    first, second : (..., 3) array
        Unit vectors in template axes.
    """
    x, y, _ = np.moveaxis(points, -1, 0)
    lift = np.deg2rad(75) * np.tanh(x / 35)
    bend = np.deg2rad(25) * np.sin(y / 45) * np.tanh(x / 25)
    arc = np.stack(
        [np.cos(lift) * np.cos(bend), np.cos(lift) * np.sin(bend), -np.sin(lift)], axis=-1
    )
    forward = np.array([0.0, 1.0, 0.0]) - arc[..., 1:2] * arc
    forward = forward / np.linalg.norm(forward, axis=-1, keepdims=True)
    # Bisectors of the two orthogonal directions.
    middle = (arc + forward) / np.sqrt(2)
    across = (arc - forward) / np.sqrt(2)
    change = state.crossing_angle_deg - CROSSING_ANGLE_DEG
    half = np.deg2rad(CROSSING_ANGLE_DEG + change * crossing_region(points))[..., None] / 2
    return np.cos(half) * middle + np.sin(half) * across, (
        np.cos(half) * middle - np.sin(half) * across
    )


def second_fibre_share(points: Floats) -> Floats:
    """Share of the white matter that belongs to the second fibre, 0 to 1."""
    x, _, z = np.moveaxis(points, -1, 0)
    low_lateral = 1 / (1 + np.exp(-(np.abs(x) - 30 - 1.5 * (z - 2)) / 5))
    crossing = crossing_region(points)
    share: Floats = 0.5 * crossing + low_lateral * (1 - crossing)
    return share


def dispersion(points: Floats, state: TissueState) -> Floats:
    """Fraction of fibres without preferred direction, 0 to 1."""
    change: Floats = (state.dispersion - BASE_DISPERSION) * dispersion_region(points)
    return np.clip(BASE_DISPERSION + state.dispersion_everywhere + change, 0, 1)
