"""Plan the correction of runs, from their settings and sidecars; without Nipype."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bids_gevnet.bids.gradient_files import read_bval
from bids_gevnet.bids.records import DiffusionRun, FieldmapRun
from bids_gevnet.dwi.phase_encoding import Relation, relate
from bids_gevnet.dwi.shells import MIN_DIRECTIONS, find_shells
from bids_gevnet.facts import CorrectionMethod, Susceptibility
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class OppositeImage:
    """An image with the opposite phase encoding, or possibly so: a field map, or another run.

    Attributes
    ----------
    image : Path
    bval : str
        Its bval file; empty where every volume is a b0.
    metadata : mapping
        Its sidecar.
    direction : str
        Its phase encoding.
    certain : bool
        Whether it is known to be opposite; otherwise equal and opposite are tried.
    """

    image: Path
    bval: str
    metadata: Mapping[str, Any]
    direction: str
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionPlan:
    """How a run will be corrected.

    Attributes
    ----------
    run : DiffusionRun
    method : {"eddy", "model", "ants", "none"}
    reason : str
        Why the method that was chosen for all runs is ruled out for this one; empty otherwise.
    eddy_currents : bool
        Whether eddy currents will be estimated.
    opposite : tuple of OppositeImage
    susceptibility : str
        "corrected" if a field will be estimated, "to_be_tried" if the images have to tell whether
        one can be, else why not.
    field_from_t1w : bool
        Whether it will be estimated from the T1w.
    """

    run: DiffusionRun
    method: CorrectionMethod
    reason: str
    eddy_currents: bool
    opposite: tuple[OppositeImage, ...]
    susceptibility: Susceptibility
    field_from_t1w: bool = False


def plan_corrections(
    runs: Sequence[DiffusionRun],
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
) -> tuple[CorrectionPlan, ...]:
    """Decide how to correct the runs of a scan.

    Parameters
    ----------
    runs : sequence of DiffusionRun
        Of the scan.
    siblings : sequence of DiffusionRun
        All runs of the session; those with the opposite encoding show the distortion.
    settings : PreprocessingSettings
    tools : Tools
    """
    plans = tuple(_plan_run(run, siblings, settings, tools) for run in runs)
    if tools.correction == "eddy" and any(p.susceptibility == "corrected" for p in plans):
        # One call of eddy corrects all of them, and a field in Hz holds for any encoding.
        return tuple(replace(plan, susceptibility="corrected") for plan in plans)
    return plans


def _plan_run(
    run: DiffusionRun,
    siblings: Sequence[DiffusionRun],
    settings: PreprocessingSettings,
    tools: Tools,
) -> CorrectionPlan:
    """Decide how to correct a run, whatever the others of its scan need."""
    method, reason = tools.correction, ""
    too_few = _too_few_directions(run, settings) if method == "model" else ""
    if too_few and settings.correction == "auto":
        method, reason = "ants", too_few
    opposite = _opposite_images(run, siblings)
    susceptibility: Susceptibility = "corrected"
    if method not in {"eddy", "model"}:
        susceptibility = "not_supported"
    elif not opposite:
        from_t1w = settings.use_syn_sdc and method == "model" and run.t1w is not None
        unknown: Susceptibility = (
            "unknown_direction" if run.encoding.is_guess else "no_opposite_b0"
        )
        susceptibility = "corrected" if from_t1w and not run.encoding.is_guess else unknown
    elif method == "eddy" and tools.topup is None:
        susceptibility = "no_topup"
    elif not opposite[0].certain:
        susceptibility = "to_be_tried"
    return CorrectionPlan(
        run=run,
        method=method,
        reason=reason,
        eddy_currents=method in {"eddy", "model"} and not too_few,
        opposite=opposite,
        susceptibility=susceptibility,
        field_from_t1w=susceptibility == "corrected" and not opposite,
    )


def _too_few_directions(run: DiffusionRun, settings: PreprocessingSettings) -> str:
    """Say why volumes cannot be predicted from each other; nothing where they can."""
    shells = find_shells(read_bval(run.bval), b0_threshold=settings.b0_threshold)
    most = max((shell.n_volumes for shell in shells.shells), default=0)
    if most >= MIN_DIRECTIONS:
        return ""
    return (
        f"the largest shell has {most} directions, and predicting volumes from each other takes "
        f"{MIN_DIRECTIONS}; they were registered rigidly instead, without eddy currents"
    )


def _opposite_images(
    run: DiffusionRun, siblings: Sequence[DiffusionRun]
) -> tuple[OppositeImage, ...]:
    """Find the images of the session with the opposite phase encoding.

    Where none is known to be, those that may be: with the same axis, and a sign nobody tells. An
    axis that nobody tells is not tried: a field along a wrong one explains too much.
    """
    others: list[DiffusionRun | FieldmapRun] = [
        *run.fieldmaps,
        *(sibling for sibling in siblings if sibling != run),
    ]
    relations = [(other, relate(run.encoding, other.encoding)) for other in others]
    known = [other for other, relation in relations if relation is Relation.OPPOSITE]
    axis = run.encoding.direction[0]
    possible = [
        other
        for other, relation in relations
        if relation is Relation.UNKNOWN
        and other.encoding.direction[0] == axis
        and not (run.encoding.axis_is_guess or other.encoding.axis_is_guess)
    ]
    return tuple(
        OppositeImage(
            image=other.image,
            bval=str(other.bval) if isinstance(other, DiffusionRun) else "",
            metadata=other.metadata,
            direction=other.encoding.direction,
            certain=bool(known),
        )
        for other in known or possible
    )
