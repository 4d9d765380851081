r"""Show what harmonisation did to held-out scans: energy of each degree, before and after.

A gain g multiplies the part of degree l of the signal, so its energy becomes

    RISH_l'(v) = g_l(v)^2 RISH_l(v),

and the maps of the participant level together with the gains of a model are all that is needed.
Every scan is taken with the gains of the fold it was tested in, which were fitted without it.

How much of the differences between scans is explained by the site is the adjusted R^2 of a
one-way analysis of variance of log mean energy (Ezekiel; epsilon squared), 0 where it is negative.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from bids_gevnet.bids.derivatives import BRAIN_MASK, rish_ending
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.report.figures.brain import Box, ColourMap, bounding_box, draw_map
from bids_gevnet.report.figures.drawing import (
    FOREGROUND,
    PALETTE,
    SOFT,
    figure,
    plain_label,
    to_svg,
)
from bids_gevnet.report.group.cohort import spread_evenly
from bids_gevnet.report.group.limits import LIMITS
from bids_gevnet.report.group.study_files import CohortScan, FoldModel, StudyFiles
from bids_gevnet.report.scan_files import ScanFiles, Volume, read_volume

Floats = npt.NDArray[np.float64]

_MOST_VOXELS = 60_000
"""A mean over the brain needs no more; gains of many folds then fit in memory."""

_MOST_KEPT = 500
_MOST_SITES_DRAWN = 3
_MOST_SITES_CHARTED = 24
_NO_CHANGE = 1e-4
_LEAST_REACH = 5.0  # per cent at the ends of the colours
_POSITIONS = ((2, -10.0), (2, 8.0), (2, 26.0), (2, 44.0), (1, -18.0), (0, 2.0))


@dataclass(frozen=True)
class SiteEffect:
    """Mean energies of the scans of one task, before and after.

    Attributes
    ----------
    degrees : tuple of int
    sites : list of str
        Of each scan.
    before, after : (n_scans, n_shells * n_degrees) array
        Log mean energy over the brain: all degrees of the first shell, then of the next.
    shells : tuple of str
        What distinguishes the shells, for people; one empty name where there is one shell.
    of : int
        Held-out scans; more than those measured where there are very many.
    """

    degrees: tuple[int, ...]
    sites: list[str]
    before: Floats
    after: Floats
    shells: tuple[str, ...] = ("",)
    of: int = 0

    @property
    def dots(self) -> bool:
        """Whether every scan is drawn, and not only where most of a site's are."""
        return len(self.sites) <= LIMITS.energies

    @property
    def changed(self) -> bool:
        """Whether harmonisation changed anything."""
        return bool(np.abs(self.after - self.before).max(initial=0.0) > _NO_CHANGE)

    def explained(self, which: str, degree: int, shell: int = 0) -> float | None:
        """Share of the differences that goes with the site."""
        values = self.before if which == "before" else self.after
        return explained_by_site(values[:, self.column(degree, shell)], self.sites)

    def column(self, degree: int, shell: int) -> int:
        """Which column of the energies is of a degree and shell."""
        return shell * len(self.degrees) + self.degrees.index(degree)


def explained_by_site(values: Floats, sites: Sequence[str]) -> float | None:
    """Compute the adjusted R^2 of a one-way analysis of variance; None where undefined."""
    groups = sorted(set(sites))
    n, k = len(values), len(groups)
    total = float(((values - values.mean()) ** 2).sum()) if n else 0.0
    if k < 2 or n - k < 1 or total <= 0:
        return None
    names = np.array(sites)
    parts = [values[names == group] for group in groups]
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    return max(0.0, 1 - (within / (n - k)) / (total / (n - 1)))


class RishReader:
    """Energy maps of scans on a coarse choice of voxels.

    Parameters
    ----------
    scans : sequence of CohortScan
    most_kept : int
        Scans whose maps stay in memory, about a megabyte each, for the next task; others are
        read again.
    """

    def __init__(self, scans: Sequence[CohortScan], *, most_kept: int = _MOST_KEPT) -> None:
        self._scans = {scan.scan: scan for scan in scans}
        self._most_kept = most_kept
        self._maps: dict[tuple[str, tuple[int, ...], int], Floats | None] = {}

    def site(self, scan: str) -> str:
        """Site of a scan."""
        return self._scans[scan].site

    def __contains__(self, scan: str) -> bool:
        return scan in self._scans

    def read(self, scan: str, degrees: Sequence[int], shells: int = 1) -> Floats | None:
        """Energies (n_voxels, n_shells * n_degrees), zero outside the brain; None if missing."""
        key = (scan, tuple(degrees), shells)
        if key in self._maps:
            return self._maps[key]
        files = self._scans[scan].files
        maps = None if files is None else _read_maps(files, degrees, shells)
        if len(self._maps) < self._most_kept:
            self._maps[key] = maps
        return maps


def _read_maps(files: ScanFiles, degrees: Sequence[int], shells: int) -> Floats | None:
    mask = read_volume(files.standard(BRAIN_MASK))
    if mask is None:
        return None
    columns = []
    for shell, degree in product(range(shells), degrees):
        volume = read_volume(files.standard(rish_ending(degree)), shell if shells > 1 else None)
        if volume is None or volume.data.shape != mask.data.shape:
            return None
        columns.append(thin_out(np.where(mask.data > 0.5, volume.data, 0.0)).ravel())
    return np.stack(columns, axis=1)


def thin_out(grid: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Keep every n-th voxel along each axis, so that at most some ten thousand stay."""
    n = int(np.prod(grid.shape[:3]))
    step = max(1, int(np.ceil((n / _MOST_VOXELS) ** (1 / 3))))
    return np.asarray(grid[::step, ::step, ::step], np.float32)


def measure_site_effect(
    folds: Sequence[FoldModel], reader: RishReader, *, most: int = LIMITS.measured
) -> SiteEffect | None:
    """Energies of every held-out scan of a task, before and after.

    Of more than `most` scans, as many are measured, spread evenly over the sites of each fold.
    """
    tested = sum(len(model.held_out) for model in folds)
    sites, before, after = [], [], []
    degrees: tuple[int, ...] = ()
    shells: tuple[str, ...] = ("",)
    for model in folds:
        gains = model.gains
        if gains is None:
            return None
        degrees, shells = gains.degrees, shell_names(gains)
        thin = [thin_out(site).reshape(-1, site.shape[-1]) for site in gains.gains]
        known = [scan for scan in model.held_out if scan in reader]
        share = -(-most * len(known) // max(tested, 1)) if tested > most else len(known)
        for place in spread_evenly([reader.site(scan) for scan in known], share):
            scan = known[place]
            energy = reader.read(scan, degrees, gains.shells)
            if energy is None:
                continue
            site = reader.site(scan)
            factor = thin[gains.sites.index(site)] if gains.knows(site) else np.ones_like(thin[0])
            if factor.shape != energy.shape:
                continue
            sites.append(site)
            before.append(_log_mean(energy))
            after.append(_log_mean(energy * factor.astype(np.float64) ** 2))
    if not sites:
        return None
    return SiteEffect(degrees, sites, np.array(before), np.array(after), shells, tested)


def shell_names(gains: RishGains) -> tuple[str, ...]:
    """Names of the shells that tell them apart: nothing where there is one."""
    return tuple(f"b = {b:.0f}" for b in gains.b_values) if gains.shells > 1 else ("",)


def _log_mean(energy: Floats) -> Floats:
    inside = energy[:, 0] > 0
    return np.asarray(np.log(np.maximum(energy[inside].mean(axis=0, dtype=np.float64), 1e-12)))


def draw_site_effect(effect: SiteEffect, *, name: str) -> Markup:
    """Draw the mean energy of every site and degree, before and after, as a difference in %."""
    sites = sorted(set(effect.sites))[:_MOST_SITES_CHARTED]
    site_of_scan = np.array(effect.sites)
    rows, columns = len(effect.shells), len(effect.degrees)
    height = rows * max(0.9 + 0.34 * len(sites), 1.7)
    with figure(6.8, height, nrows=rows, ncols=columns, sharey=True, squeeze=False) as (
        drawing,
        axes,
    ):
        for (shell, name_of_shell), degree in product(enumerate(effect.shells), effect.degrees):
            column = effect.column(degree, shell)
            ax = axes[shell][effect.degrees.index(degree)]
            _draw_degree(ax, effect, column, sites, site_of_scan, effect.before[:, column].mean())
            ax.set_title(f"Degree {degree}" + (f", {name_of_shell}" if name_of_shell else ""))
            ax.set_xlabel("%" if shell == rows - 1 else "")
        axes[0][0].set_yticks(range(len(sites)), [plain_label(site, 16) for site in sites])
        axes[0][0].invert_yaxis()
        axes[0][0].legend(
            *axes[0][0].get_legend_handles_labels(), loc="lower left", fontsize=9, labelcolor=SOFT,
            bbox_to_anchor=(0, 1.22 if len(sites) < 4 else 1.12), ncols=2, borderpad=0,
            handletextpad=0.3, columnspacing=1,
        )  # fmt: skip
        return to_svg(drawing, name, _describe(effect))


def _draw_degree(
    ax: Any,
    effect: SiteEffect,
    column: int,
    sites: Sequence[str],
    site_of_scan: Any,
    centre: float,
) -> None:
    for shift, values, colour, marker, label in (
        (-0.14, effect.before, PALETTE[1], "o", "before"),
        (0.14, effect.after, PALETTE[0], "D", "after"),
    ):
        first = True
        for row, site in enumerate(sites):
            percent = 100 * np.expm1(values[site_of_scan == site, column] - centre)
            heights = np.full(len(percent), row + shift)
            if not effect.dots:
                ends = np.percentile(percent, [5, 95])
                ax.plot(ends, heights[:1].repeat(2), "-", lw=1.2, color=colour, alpha=0.6)
            else:
                ax.plot(percent, heights, ".", ms=3, color=colour, alpha=0.45)
            ax.plot(
                [percent.mean()], [row + shift], marker, ms=5.5, color=colour,
                label=label if first else None,
            )  # fmt: skip
            first = False
    ax.axvline(0, color=SOFT, lw=0.8)
    ax.set_ylim(-0.6, len(sites) - 0.4)
    ax.tick_params(axis="y", length=0, labelcolor=FOREGROUND)


def _describe(effect: SiteEffect) -> str:
    parts = []
    for (shell, name), degree in product(enumerate(effect.shells), effect.degrees):
        before, after = (effect.explained(which, degree, shell) for which in ("before", "after"))
        if before is not None and after is not None:
            where = f"degree {degree}" + (f", {name}" if name else "")
            parts.append(f"{where}: {before:.0%} before, {after:.0%} after")
    told = "; ".join(parts) or "too few scans to say"
    return f"Mean energy of each degree by site. Explained by site: {told}."


@dataclass(frozen=True)
class GainMap:
    """Gains of one site and degree on the brain, and their mean as a change in %."""

    site: str
    degree: int
    mean: float
    picture: ColourMap


def draw_gains(
    model: FoldModel, mask: Volume, *, degrees: Sequence[int] = (0, 2)
) -> list[GainMap]:
    """Draw the gains of the sites that were changed most, as a change of the signal in %."""
    gains = model.gains
    box = bounding_box(mask)
    if gains is None or box is None or gains.shape != mask.data.shape:
        return []
    inside = mask.data > 0.5
    chosen = [degree for degree in degrees if degree in gains.degrees]
    departure = {
        site: float(np.abs(np.log(gains.gains[number][inside])).mean())
        for number, site in enumerate(gains.sites)
    }
    most = sorted((s for s in departure if departure[s] > _NO_CHANGE), key=lambda s: -departure[s])
    maps = {
        (site, degree, name): _percent(gains, site, shell * len(gains.degrees) + column)
        for site in most[:_MOST_SITES_DRAWN]
        for shell, name in enumerate(shell_names(gains))
        for degree in chosen
        for column in [gains.degrees.index(degree)]
    }
    reach = max(
        (float(np.percentile(np.abs(percent[inside]), 98)) for percent in maps.values()), default=0
    )
    return [
        _gain_map((site, degree, name), percent, mask, box, max(reach, _LEAST_REACH))
        for (site, degree, name), percent in maps.items()
    ]


def _percent(gains: RishGains, site: str, column: int) -> npt.NDArray[np.float32]:
    gain = gains.gains[gains.sites.index(site), ..., column]
    return np.asarray(100 * (gain - 1), np.float32)


def _gain_map(
    what: tuple[str, int, str],
    percent: npt.NDArray[np.float32],
    mask: Volume,
    box: Box,
    reach: float,
) -> GainMap:
    site, degree, shell = what
    positions = [(a, mm) for a, mm in _POSITIONS if box[0][a] < mm < box[1][a]]
    picture = draw_map(
        ", ".join(filter(None, (site, f"degree {degree}", shell))),
        Volume(percent, mask.affine),
        mask,
        box,
        positions=positions,
        colours="PuOr_r",
        limits=(-reach, reach),
    )
    return GainMap(site, degree, float(percent[mask.data > 0.5].mean()), picture)


def group_mask(study: StudyFiles) -> Volume | None:
    """Brain mask of the first scan in template space: the grid of the models, and a brain."""
    for scan in study.scans:
        if scan.files is not None:
            mask = read_volume(scan.files.standard(BRAIN_MASK))
            if mask is not None and (mask.data > 0.5).any():
                return mask
    return None


def why_unchanged(models: Sequence[FoldModel]) -> str:
    """Say why no signal was changed, as far as the models tell."""
    if all(len(model.names("sites")) < 2 for model in models):
        return "there was only one site"
    texts = " ".join(text for model in models for text in model.names("warnings"))
    reasons = []
    if "cannot be separated" in texts:
        reasons.append("site and diagnosis cannot be separated")
    if "could be harmonised" in texts or "Too few" in texts:
        reasons.append("there were too few people at the sites")
    return " and ".join(reasons) or "the sites do not differ by more than their uncertainty"


def harmonisation_warnings(models: Sequence[FoldModel]) -> Mapping[str, list[str]]:
    """Sentences of the fits, each with the models that had it."""
    warnings: dict[str, list[str]] = {}
    for model in models:
        where = "final" if model.fold is None else f"fold {model.fold}"
        for text in model.names("warnings"):
            warnings.setdefault(text, []).append(where)
    return warnings
