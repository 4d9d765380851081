"""The card for people says what group_metrics.json and model.json say, and nothing else."""

import json
import re

import numpy as np
import pandas as pd

from bids_gevnet.bids.writing import write_json
from bids_gevnet.learn.evaluate.model_card import write_model_cards
from bids_gevnet.learn.evaluate.scoring import evaluate_table
from bids_gevnet.learn.models.files import (
    MODEL_CARD,
    ModelCard,
    build_network,
    damaged_files,
    has_changed_text,
    load_model,
    read_card,
    write_model,
)

CARD = ModelCard(
    network="ckn2",
    labels=("A|D", "PD"),
    task="AD-v-PD",
    fold=None,
    nside=1,
    shape=(4, 5, 6),
    affine=tuple(map(tuple, np.diag([8.0, 8.0, 8.0, 1.0]).tolist())),
    temperature=1.25,
    options={},
    participants=tuple(f"{i:02d}" for i in range(20)),
    fingerprints=tuple(f"hash {i}" for i in range(20)),
    dataset="A <b>study</b>",
    sites=("north", "south"),
    max_motion=0.456,
    rish_low=(-9.0, -9.0),
    rish_high=(9.0, 9.0),
    harmonised=False,
    warnings=("Site south is small.",),
    digest="d",
    b_values=(1000.0,),
)


def metrics() -> dict:
    people = [f"sub-{i:02d}" for i in range(20)]
    labels = ["A|D", "PD"] * 10
    chances = [0.9 if label == "A|D" else 0.2 for label in labels]
    chances[0], chances[1], chances[3] = 0.3, 0.6, 0.7
    rows = {
        "task": "AD-v-PD",
        "kind": "network",
        "model": "ckn2",
        "fold": [i // 4 + 1 for i in range(20)],
        "scan": people,
        "participant_id": people,
        "site": ["north"] * 12 + ["south"] * 8,
        "label": labels,
        "prob_A|D": chances,
        "prob_PD": [1 - chance for chance in chances],
    }
    folds, sites = (pd.DataFrame(rows | {"scheme": s}) for s in ("folds", "leave-site-out"))
    sites["prob_A|D"], sites["prob_PD"] = sites["prob_PD"], sites["prob_A|D"]
    content = evaluate_table(pd.concat([folds, sites]), resamples=20, permutations=99)
    training = [{"task": "AD-v-PD", "network": "ckn2", "model": "models/AD-v-PD/final"}]
    return content | {"training": training}


def test_figures_are_those_of_the_metrics(tmp_path):
    folder = tmp_path / "models/AD-v-PD/final"
    write_model(folder, build_network("ckn2", 2, 1), CARD, None)
    content = metrics()
    write_json(tmp_path / "group_metrics.json", content)
    stored = json.loads((tmp_path / "group_metrics.json").read_text())
    (path,) = write_model_cards(tmp_path, stored)
    assert path == folder / MODEL_CARD
    text = path.read_text()
    schemes = stored["tasks"][0]["models"][0]["schemes"]
    for key, name in (
        ("balanced_accuracy", "Balanced accuracy"),
        ("accuracy", "Accuracy"),
        ("roc_auc", "ROC AUC"),
        ("brier", "Brier score"),
    ):
        row = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
        said = [float(number) for number in re.findall(r"\d\.\d\d", row)]
        figures = [schemes[s]["pooled"][key] for s in ("folds", "leave-site-out")]
        assert said == [round(f[part], 2) for f in figures for part in ("value", "low", "high")]
    assert "10 participants (north: 6, south: 4)" in text
    assert "4 x 5 x 6 voxels of 8 mm" in text
    assert "0.46 mm of mean framewise displacement" in text
    assert "--output-resolution 8 --nside 1" in text
    assert "Research use only" in text
    assert "Site south is small." in text
    # Text of the dataset stays text.
    assert "<b>" not in text.replace("\\<", "")
    assert "A\\|D" in text


def test_the_card_is_hashed_but_a_changed_one_spoils_no_model(tmp_path):
    folder = tmp_path / "models/AD-v-PD/final"
    write_model(folder, build_network("ckn2", 2, 1), CARD, None)
    assert not has_changed_text(folder)
    write_model_cards(tmp_path, metrics())
    assert MODEL_CARD in read_card(folder).files
    assert not has_changed_text(folder)
    with (folder / MODEL_CARD).open("a") as stream:
        stream.write("It never fails.\n")
    assert has_changed_text(folder)
    assert damaged_files(folder) == []
    assert load_model(folder).card.labels == CARD.labels
