"""The group level's last words on the terminal."""

import json

import pytest

from bids_gevnet.cli.group import summary


def value(number, low=0.4, high=0.9):
    return {"value": number, "low": low, "high": high, "method": "wilson"}


def scheme(number):
    return {
        "pooled": {"balanced_accuracy": value(number), "roc_auc": value(None)},
        "permutation": {"balanced_accuracy": {"p": 0.0123}},
    }


@pytest.fixture
def content():
    models = [
        {"kind": "network", "model": "n", "title": "CKN2 + GEVNet"},
        {"kind": "baseline", "model": "site", "title": "Site alone"},
    ]
    for number, model in enumerate(models):
        model["schemes"] = {"folds": scheme(0.75 - number / 10), "leave-site-out": scheme(0.55)}
    return {
        "tasks": [
            {
                "title": "AD v. PD",
                "kind": "classification",
                "figure": "balanced_accuracy",
                "n_participants": 12,
                "chance": 0.5,
                "models": models,
                "headline": {"sentence": "AD and PD differ.", "numbers": "By 0.75 (0.4 to 0.9)."},
            }
        ],
        "leave_site_out": [{"task": "t", "site": "A", "run": True, "reason": None}],
        "warnings": [],
    }


@pytest.fixture
def say(tmp_path):
    def run(content):
        (tmp_path / "group_metrics.json").write_text(json.dumps(content))
        text = summary(tmp_path)
        return text, [line for line in text.splitlines() if str(tmp_path) not in line]

    return run


def test_network_baselines_and_sites_with_intervals(say, content):
    text, lines = say(content)
    network = next(line for line in lines if "CKN2" in line)
    assert " ".join(network.split()) == "CKN2 + GEVNet 0.75 [0.40, 0.90] n/a p = 0.012"
    assert "    Site alone           0.65 [0.40, 0.90]" in text
    assert text.index("each site by models") < text.index("0.55 [0.40, 0.90]")
    assert text.endswith(
        "Research use only; not for diagnosis.\n\nAD and PD differ.\n  By 0.75 (0.4 to 0.9)."
    )


def test_the_model_for_new_scans_is_named_with_its_folder(say, content, tmp_path):
    text, _ = say(content | {"training": [{"task": "t", "model": "models/t/final"}]})
    assert f"\nTrained on everybody, for --model: {tmp_path}/models/t/final\n" in text


def test_why_no_site_was_left_out(say, content):
    content["leave_site_out"] = [{"task": "t", "site": "A", "run": False, "reason": "too few"}]
    assert "No site was left out: A: too few" in say(content)[0]


def test_who_was_left_out_is_counted_and_named(say, content):
    scans = [f"sub-{i:02d}" for i in range(12)]
    content["left_out"] = [
        {"participant": s[4:], "scan": s, "reason": "no diagnosis"} for s in scans
    ]
    text, lines = say(content)
    assert "Left out: 12" in text
    assert "12 (sub-00, sub-01" in text
    assert "and 4 more): no diagnosis" in " ".join(text.split())
    assert max(map(len, lines)) <= 79


def test_narrow_and_harmless_whatever_the_labels_are(say, content):
    content["tasks"][0]["title"] = "\x1b[31mred\x07 v. " + "long " * 40
    content["tasks"][0]["models"][0]["title"] = "name " * 20
    content["tasks"][0]["headline"] = {
        "sentence": "\x1b[31mred\x07 differs " * 20, "numbers": "\x07" + "0.5 " * 60
    }  # fmt: skip
    content["warnings"] = ["beware \x1b]0;title\x07 " + "of this " * 30, "x" * 300]
    text, lines = say(content)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert max(map(len, lines)) <= 79


def test_a_number_has_its_error_in_its_unit(say, content):
    (task,) = content["tasks"]
    task |= {"title": "age", "kind": "regression", "figure": "correlation", "unit": "year"}
    task["chance"] = 0.0
    figures = {"correlation": value(0.6), "mae": value(4.25, 3.5, 5.0), "guessing_mae": 6.1}
    for model in task["models"]:
        test = {"correlation": {"p": 0.0005}}
        model["schemes"] = {"folds": {"pooled": figures, "permutation": test}}
    text, lines = say(content)
    assert "correlation          mean absolute error (year)" in text
    network = next(line for line in lines if "CKN2" in line)
    assert "0.60 [0.40, 0.90]    4.25 [3.50, 5.00]    p < 0.001" in network
    assert " ".join(next(line for line in lines if "guessing" in line).split()) == (
        "guessing 0.00 6.10"
    )
    assert max(map(len, lines)) <= 79
