"""Change what a scan left on disk."""

import json
from pathlib import Path

from bids_gevnet.bids.derivatives import FACTS, prediction_ending
from bids_gevnet.facts import PredictionFacts


def edit_facts(derivatives: Path, **changes: object) -> None:
    (path,) = derivatives.rglob(f"*_{FACTS}")
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | changes))


def add_prediction(derivatives: Path, network: str) -> Path:
    """Write what a prediction leaves: facts and a table, whose path is returned."""
    prediction = PredictionFacts(
        task="AD-DLB-PD",
        network=network,
        label="DLB",
        probabilities={"AD": 0.21, "DLB": 0.68, "PD": 0.11},
        harmonised=False,
        warnings=("The site Z is new.",),
    )
    edit_facts(derivatives, prediction=prediction.to_json())
    (facts,) = derivatives.rglob(f"*_{FACTS}")
    table = facts.with_name(f"sub-01_{prediction_ending(network)}")
    table.write_text("label\tprobability\n")
    return table


def drop_images(derivatives: Path) -> None:
    """Make a report quick; templates and alerts see every oddity all the same."""
    for image in derivatives.rglob("*.nii.gz"):
        if "desc-preproc_dwi" not in image.name or "space-" in image.name:
            image.unlink()
