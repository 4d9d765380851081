"""The group workflow: training first, then the report, both always."""

from pathlib import Path

from bids_gevnet.settings import ExecutionSettings, Settings
from bids_gevnet.workflows.group import init_group_wf


def test_report_waits_for_training(tmp_path: Path) -> None:
    workflow = init_group_wf(
        bids_dir=tmp_path / "raw",
        output_dir=tmp_path / "out",
        work_dir=tmp_path / "work",
        settings=Settings(execution=ExecutionSettings(nprocs=3)),
        participants=("01",),
    )
    train, report = (workflow.get_node(name) for name in ("train", "report"))
    edges = [(a.name, b.name, data["connect"]) for a, b, data in workflow._graph.edges(data=True)]
    assert edges == [("train", "report", [("metrics", "metrics")])]
    for node in (train, report):
        assert node.overwrite
        assert node.n_procs == 3
    assert report.inputs.jobs_file == str(tmp_path / "work" / "group" / "jobs.json")
    assert train.inputs.participants == ["01"]
