"""Up to how many scans a report shows each of them; of more it shows pages, bars or a part."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers of scans from which a section no longer grows with the cohort.

    Parameters
    ----------
    rows : int
        The whole table of participants stands in the page; of more, it is shown page by page.
    dots : int
        Every scan is a dot in the plots of quality; of more, bars count them and outliers are
        dots.
    tiles : int
        Pictures of scans, at most: outliers first.
    averaged : int
        Scans that mean maps are over, at most: more make no sharper mean, and each takes a part
        of a second.
    measured : int
        Held-out scans that the effect of sites is measured on, at most.
    energies : int
        Scans up to which each is a dot in the chart of that effect.
    """

    rows: int = 1000
    dots: int = 1500
    tiles: int = 500
    averaged: int = 1000
    measured: int = 2000
    energies: int = 600


LIMITS = Limits()
