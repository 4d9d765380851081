"""The group workflow: what it connects, and that a second run repeats what changed and no more."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from learn.conftest import Study, make_people

from bids_gevnet.cli.execute import configure, read_failures, run_workflow
from bids_gevnet.cli.group import plan_group_level
from bids_gevnet.cli.parser import parse_request
from bids_gevnet.workflows.group import init_group_wf

OPTIONS = ("--folds", "2", "--epochs", "1", "--samples-per-class", "2", "--network", "ckn2")
HERE = ("--devices", "cpu:1", "--nprocs", "1", "--no-leave-site-out")


def build(study: Study, *options: str) -> Any:
    request = parse_request(
        [str(study.bids_dir), str(study.output_dir), "group", *OPTIONS, *HERE, *options]
    )
    return init_group_wf(plan_group_level(request))


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIPYPE_CONFIG_DIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")


@pytest.fixture
def run(tmp_path: Path, surroundings: None) -> Callable[..., list[str]]:
    """Run the group level; list the nodes that did something."""

    def run_level(study: Study, *options: str, plugin: str = "Linear") -> list[str]:
        workflow = build(study, *options)
        begun = {path: path.stat().st_mtime_ns for path in results(study)}
        crash_dir = tmp_path / "crash"
        crash_dir.mkdir(exist_ok=True)
        request = parse_request([str(study.bids_dir), str(study.output_dir), "group"])
        configure(workflow, request.settings.execution, crash_dir=crash_dir)
        arguments = {"n_procs": 2} if plugin == "MultiProc" else {}
        run_workflow(workflow, plugin=plugin, crash_dir=crash_dir, arguments=arguments)
        assert read_failures(crash_dir, {}) == []
        return sorted(
            str(path.parent.relative_to(study.output_dir / "work/group"))
            for path in results(study)
            if begun.get(path) != path.stat().st_mtime_ns
        )

    return run_level


def results(study: Study) -> list[Path]:
    nodes = (study.output_dir / "work/group").rglob("result_*.pklz")
    return [path for path in nodes if "gather" not in str(path) and "mapflow" not in str(path)]


def weights(study: Study) -> dict[str, bytes]:
    models = study.output_dir / "models"
    return {
        str(path.relative_to(models)): path.read_bytes()
        for path in sorted(models.rglob("model.safetensors"))
    }


def make_study(root: Path, classes: tuple[str, ...] = ("AD", "PD"), per_class: int = 2) -> Study:
    return Study(root, make_people(per_class, classes, ("A", "B")), effect=0.8, seed=0)


def test_every_model_is_a_branch(tmp_path: Path, surroundings: None) -> None:
    workflow = build(make_study(tmp_path))
    names = set(workflow.list_node_names())
    for split in ("fold_1", "fold_2", "final"):
        assert {f"AD_v_PD_{split}.{stage}" for stage in ("harmonise", "train")} <= names
        assert (f"AD_v_PD_{split}.test" in names) == (split != "final")
    assert {"prepare.cohort", "prepare.store", "prepare.split", "collect", "evaluate"} <= names
    assert {"saliency_AD_v_PD", "refit_AD_v_PD", "report"} <= names
    order = [node.fullname for node in workflow._create_flat_graph().nodes()]
    assert len(order) == len(set(order))


def test_without_harmonisation_there_is_no_such_node(tmp_path: Path, surroundings: None) -> None:
    names = build(make_study(tmp_path), "--harmonisation", "none").list_node_names()
    assert not any("harmonise" in name or "refit" in name for name in names)


def test_a_second_run_repeats_what_changed_and_no_more(
    tmp_path: Path, run: Callable[..., list[str]]
) -> None:
    people = make_people(3, ("AD", "DLB", "PD", "VaD"), ("A", "B"))
    few = [person for person in people if person.label[0] == "0" or person.label[-1] != "2"]
    study = Study(tmp_path, few, effect=0.8, seed=0)
    first = run(study)
    assert sum(name.endswith("/train") for name in first) == 6 * 3
    before = weights(study)
    assert run(study) == ["report"]

    # A damaged model and a missing one are made again, the same as they were.
    damaged, missing = (study.output_dir / "models/AD-v-PD" / n for n in ("fold-1", "final"))
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    (missing / "model.json").unlink()
    again = run(study)
    assert {name for name in again if name.endswith("/train")} == {
        "AD_v_PD_fold_1/train",
        "AD_v_PD_final/train",
    }
    assert weights(study) == before
    assert "MODEL_CARD.md" in json.loads((missing / "model.json").read_text())["files"]

    # Somebody's diagnosis changes: only tasks that know the person, before or after.
    study.people = tuple(
        type(p)(**(vars(p) | {"group": "DLB"})) if p.label == "000" else p for p in study.people
    )
    study.write_participants()
    third = run(study)
    assert not any(name.startswith("PD_v_VaD") for name in third)
    assert {name.split("_fold")[0] for name in third if name.endswith("fold_1/train")} == {
        "AD_v_DLB", "AD_v_PD", "AD_v_VaD", "DLB_v_PD", "DLB_v_VaD",
    }  # fmt: skip


def test_models_side_by_side_are_those_of_one_after_the_other(
    tmp_path: Path, run: Callable[..., list[str]]
) -> None:
    alone, together = make_study(tmp_path / "alone"), make_study(tmp_path / "together")
    run(alone)
    run(together, plugin="MultiProc")
    assert weights(alone) == weights(together)
    tables = [study.output_dir / "group_predictions.tsv" for study in (alone, together)]
    assert tables[0].read_bytes() == tables[1].read_bytes()


def test_a_dataset_that_changes_meanwhile_is_noticed(tmp_path: Path, surroundings: None) -> None:
    study = make_study(tmp_path, per_class=3)
    workflow = build(study)
    study.people = tuple(
        type(p)(**(vars(p) | {"group": "new"})) if p.label[0] == "1" else p for p in study.people
    )
    study.write_participants()
    crash_dir = tmp_path / "crash"
    crash_dir.mkdir()
    request = parse_request([str(study.bids_dir), str(study.output_dir), "group"])
    configure(workflow, request.settings.execution, crash_dir=crash_dir)
    run_workflow(workflow, plugin="Linear", crash_dir=crash_dir)
    (failure,) = read_failures(crash_dir, {})
    assert failure.stage == "split"
    assert "changed meanwhile" in failure.message
    assert not (study.output_dir / "models").exists()
