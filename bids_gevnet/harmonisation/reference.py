r"""What harmonised training scans look like, kept so that a new site can be brought to it.

Fitted together with the gains (`bids_gevnet.harmonisation.glm`): the mean over training people of
:math:`y + 2 \log g`, which is the log RISH map after harmonisation; the effects of covariates; and
the variance between people that is left. One column per degree and shell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.design import Value

    Floats = NDArray[np.float64]

_ARRAYS = ("mean", "effects", "variance", "level_variance", "leverage")


@dataclass(frozen=True)
class Covariate:
    """How a column of the design was made from a covariate.

    Attributes
    ----------
    name : str
    level : str or None
        The category whose indicator the column is; None for a number.
    centre, scale : float
        Column = (value - centre) / scale.
    """

    name: str
    level: str | None
    centre: float
    scale: float = 1.0

    def column(self, values: Sequence[Value]) -> Floats:
        """Encode values as in training; 0, the mean, where one is missing or of another kind."""
        return np.array([self._encode(value) for value in values])

    def _encode(self, value: Value) -> float:
        if value is None:
            return 0.0
        if self.level is not None:
            return (float(str(value) == self.level) - self.centre) / self.scale
        if isinstance(value, str) or not np.isfinite(value):
            return 0.0
        return (float(value) - self.centre) / self.scale


@dataclass(frozen=True)
class Reference:
    """Harmonised training scans, as one linear model per voxel sees them.

    Attributes
    ----------
    inside : (X, Y, Z) bool array
        Voxels that nearly all training scans have.
    mean : (n_voxels, n_columns) array
        Log RISH, for a person with the mean diagnosis and covariates of the training data.
    effects : (n_covariates, n_voxels, n_columns) array
    variance : (n_voxels, n_columns) array
        Between people, about that model.
    level_variance : (n_columns,) array
        The same of each scan's mean over the brain.
    leverage : (n_covariates,) array
        Diagonal of :math:`(X^T X)^+`.
    people : int
        Trained on.
    covariates : tuple of Covariate
    """

    inside: NDArray[np.bool_]
    mean: Floats
    effects: Floats
    variance: Floats
    level_variance: Floats
    leverage: Floats
    people: int
    covariates: tuple[Covariate, ...] = ()

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Plain facts and arrays, as files hold them."""
        arrays: dict[str, NDArray[Any]] = {
            f"training_{name}": np.asarray(getattr(self, name), np.float32) for name in _ARRAYS
        }
        arrays["training_inside"] = self.inside
        facts = {"people": self.people, "covariates": [asdict(c) for c in self.covariates]}
        return facts, arrays

    def encode(self, values: Mapping[str, Sequence[Value]], scans: int) -> Floats:
        """Encode covariates of new scans: (n_scans, n_covariates) array."""
        columns = [each.column(values.get(each.name, [None] * scans)) for each in self.covariates]
        return np.stack(columns, axis=1) if columns else np.zeros((scans, 0))

    def unknown(self, values: Mapping[str, Sequence[Value]]) -> tuple[str, ...]:
        """Name the covariates that none of the new scans has."""
        names = dict.fromkeys(each.name for each in self.covariates)
        return tuple(n for n in names if all(value is None for value in values.get(n, [None])))


def reference_from_arrays(
    facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> Reference:
    """Read what `Reference.to_arrays` made; anything else is a ValueError.

    Parameters
    ----------
    facts : mapping
    arrays : mapping
        Of a NumPy archive.
    """
    covariates = tuple(Covariate(**entry) for entry in facts["covariates"])
    values = {name: np.asarray(arrays[f"training_{name}"], np.float64) for name in _ARRAYS}
    inside = np.asarray(arrays["training_inside"], bool)
    shape = (int(inside.sum()), values["mean"].shape[-1])
    fits = (
        inside.ndim == 3
        and values["mean"].shape == values["variance"].shape == shape
        and values["effects"].shape == (len(covariates), *shape)
        and values["level_variance"].shape == shape[1:]
        and values["leverage"].shape == (len(covariates),)
        and all(np.isfinite(each).all() for each in values.values())
        and (values["variance"] >= 0).all()
        and isinstance(facts["people"], int)
        and facts["people"] > 0
        and all(_is_sound(covariate) for covariate in covariates)
    )
    if not fits:
        raise ValueError("a reference whose parts do not fit each other")
    return Reference(inside=inside, people=facts["people"], covariates=covariates, **values)


def _is_sound(covariate: Covariate) -> bool:
    numbers = (covariate.centre, covariate.scale)
    return (
        isinstance(covariate.name, str)
        and (covariate.level is None or isinstance(covariate.level, str))
        and all(isinstance(n, int | float) and bool(np.isfinite(n)) for n in numbers)
        and covariate.scale > 0
    )
