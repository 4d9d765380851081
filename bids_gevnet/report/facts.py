"""The notes of the stages, with everything that is not of the kind it should be left out.

Reports are built from what lies on disk, from any version and after any accident; cleaning the
notes once, here, lets everything behind rely on their types.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, Any]
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not _is_flag(value) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not _is_flag(value) and value >= 0


def _is_positive(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


RUN_KINDS: Mapping[str, Mapping[str, Check]] = {
    "acquisition": {
        "name": _is_text,
        "scanner": _is_mapping,
        "phase_encoding": _is_text,
        "phase_encoding_source": _is_text,
        "phase_encoding_is_guess": _is_flag,
        "readout_s": _is_number,
        "readout_source": _is_text,
        "readout_is_dummy": _is_flag,
        "fieldmaps": _is_list_of(_is_text),
        "t1w": _is_text,
        "notes": _is_list_of(_is_text),
    },
    "conform": {
        "shape": _is_list_of(_is_count),
        "voxel_mm": _is_list_of(_is_number),
        "not_finite": _is_count,
        "bvals": _is_list_of(_is_number),
        "bvecs_ras": _is_list_of(_is_list_of(_is_number)),
    },
    "correction": {
        "method": _is_text,
        "note": _is_text,
        "largest_displacement_mm": _is_number,
        "outlier_slices": _is_count,
        "program": _is_text,
        "susceptibility": _is_flag,
    },
}
"""Parts with one entry per run."""

SCAN_KINDS: Mapping[str, Mapping[str, Check]] = {
    "tools": {"correction": _is_text, "masking": _is_text, "topup": _is_flag},
    "join": {"runs": _is_count, "apart_mm": _is_list_of(_is_number), "joined": _is_flag},
    "mask": {"method": _is_text, "volume_ml": _is_number},
    "registration": {
        "source": _is_text,
        "template": _is_text,
        "dice": _is_number,
        "information": _is_number,
        "poor": _is_flag,
        "text": _is_text,
        "warning": _is_text,
    },
    "sphere": {
        "b_value": _is_number,
        "directions": _is_positive,
        "shells": _is_list_of(_is_list_of(_is_number)),
        "b0_volumes": _is_count,
        "nside": _is_positive,
        "kernel": _is_text,
        "smoothing": _is_number,
        "voxels": _is_count,
        "residual_rms": _is_number,
    },
    "quality": {"warnings": _is_list_of(_is_text)},
    "prediction": {},
}
"""Parts with one entry per scan."""


def clean_facts(raw: Any) -> dict[str, Any]:
    """Keep what is of the right kind, and parts this module does not know as they are.

    Parameters
    ----------
    raw : any
        Content of `*_desc-report_facts.json`.
    """
    if not isinstance(raw, Mapping):
        return {}
    facts: dict[str, Any] = {}
    for part, value in raw.items():
        if part in RUN_KINDS:
            runs = value if isinstance(value, list) else []
            facts[part] = [_clean(run, RUN_KINDS[part]) for run in runs]
        elif part in SCAN_KINDS:
            facts[part] = _clean(value, SCAN_KINDS[part])
        else:
            facts[part] = value
    return facts


def _clean(raw: Any, kinds: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        return {}
    return {
        key: value
        for key, value in raw.items()
        if value is not None and (key not in kinds or kinds[key](value))
    }
