import shutil
from pathlib import Path

import pytest
from fsl_stubs import write_stub

from bids_gevnet.bids.query import find_participants
from bids_gevnet.cli.graph import draw_graph
from bids_gevnet.dwi.phase_encoding import DUMMY_READOUT_S
from bids_gevnet.errors import InputError
from bids_gevnet.facts import ScanFacts, ScannerFacts, ToolFacts
from bids_gevnet.interfaces.correction import CorrectSeries
from bids_gevnet.interfaces.motion import EstimateMotion
from bids_gevnet.interfaces.template_grid import output_grid
from bids_gevnet.settings import PreprocessingSettings, SelectionSettings
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.participant import init_participant_wf, init_participants_wf
from bids_gevnet.workflows.scan import STAGES, PredictionPlan
from bids_gevnet.workflows.tools import choose_tools

LEARNED = ("harmonise", "predict")
COARSE = PreprocessingSettings(output_resolution=10)


@pytest.fixture
def no_fsl(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def build(dataset, tmp_path, settings=COARSE, predictions=None):
    participants = find_participants(dataset.root, SelectionSettings(), b0_threshold=50)
    context = ScanContext(
        output_dir=tmp_path / "out",
        grid=output_grid(settings),
        settings=settings,
        tools=choose_tools(settings, gpu=False),
        threads=2,
    )
    return init_participants_wf(
        [
            init_participant_wf(participant, context, predictions or {})
            for participant in participants
        ],
        tmp_path / "work",
    )


def nodes_of(workflow, ending):
    names = [name for name in workflow.list_node_names() if name.endswith(ending)]
    return [workflow.get_node(name) for name in names]


def copy_run(dataset, direction, encoding):
    folder = dataset.dwi("").parent
    for source in folder.glob("sub-01_dwi.*"):
        shutil.copy(source, folder / source.name.replace("_dwi", f"_dir-{direction}_dwi"))
    sidecar = folder / f"sub-01_dir-{direction}_dwi.json"
    sidecar.write_text(f'{{"PhaseEncodingDirection": "{encoding}", "TotalReadoutTime": 0.05}}')


def test_pip_only_stages(dataset, tmp_path, no_fsl):
    names = build(dataset, tmp_path).list_node_names()
    stages = {name.split(".")[-1] for name in names if name.startswith("sub_01.")}
    assert {"conform", "motion", "join", "mask", "register", "standard", "sphere"} <= stages
    assert not {"eddy", "topup"} & stages


def test_every_node_that_works_declares_memory(dataset, tmp_path, no_fsl):
    workflow = build(dataset, tmp_path)
    plumbing = ("outputnode", "gather")
    for name in workflow.list_node_names():
        last = name.split(".")[-1]
        if last not in plumbing and not last.startswith("merge_"):
            node = workflow.get_node(name)
            assert node._mem_gb is not None, name
            assert node.n_procs <= 2, name


def test_eddy_is_found_under_its_new_names(dataset, tmp_path, no_fsl):
    write_stub(no_fsl, "eddy_cpu", "eddy")
    workflow = build(dataset, tmp_path)
    assert len(nodes_of(workflow, ".eddy")) == 2
    assert not nodes_of(workflow, ".topup")
    assert nodes_of(workflow, ".eddy")[0].inputs.readout_s == [0.05]


def test_opposite_runs_feed_topup_and_go_into_one_call_of_eddy(dataset, tmp_path, no_fsl):
    write_stub(no_fsl, "eddy", "eddy")
    write_stub(no_fsl, "topup", "topup")
    for direction, encoding in (("AP", "j-"), ("PA", "j")):
        copy_run(dataset, direction, encoding)
    for path in dataset.dwi("").parent.glob("sub-01_dwi.*"):
        path.unlink()
    workflow = build(dataset, tmp_path)
    (topup,) = nodes_of(workflow, ".topup")
    assert topup.inputs.directions == ["j-", "j"]
    eddy, of_the_other_participant = nodes_of(workflow, ".eddy")
    assert eddy.inputs.directions == ["j-", "j"]
    assert len(of_the_other_participant.inputs.directions) == 1
    joins = [n for n in workflow.list_node_names() if "sub_01" in n and n.endswith("join")]
    assert len(joins) == 1


def test_a_dummy_readout_time_is_not_set_against_a_real_one(dataset, tmp_path, no_fsl):
    write_stub(no_fsl, "eddy", "eddy")
    write_stub(no_fsl, "topup", "topup")
    copy_run(dataset, "AP", "j-")
    copy_run(dataset, "PA", "j")
    for path in dataset.dwi("").parent.glob("sub-01_dwi.*"):
        path.unlink()
    sidecar = dataset.dwi("").parent / "sub-01_dir-PA_dwi.json"
    sidecar.write_text('{"PhaseEncodingDirection": "j"}')
    shorter = dataset.dwi("").parent / "sub-01_dir-AP_dwi.json"
    shorter.write_text('{"PhaseEncodingDirection": "j-", "TotalReadoutTime": 0.03}')
    workflow = build(dataset, tmp_path)
    for node in (nodes_of(workflow, ".topup")[0], nodes_of(workflow, ".eddy")[0]):
        assert node.inputs.readout_s == [0.03, 0.03]


def test_a_direction_that_nobody_tells_is_tried_both_ways(dataset, tmp_path, no_fsl):
    write_stub(no_fsl, "eddy", "eddy")
    write_stub(no_fsl, "topup", "topup")
    copy_run(dataset, "AP", "j-")
    dataset.dwi(".json").write_text('{"PhaseEncodingAxis": "j"}')
    workflow = build(dataset, tmp_path)
    assert len(nodes_of(workflow, ".eddy")) == 3
    for topup in nodes_of(workflow, ".topup"):
        assert topup.inputs.certain == [True, False]
    assert len(nodes_of(workflow, ".topup")) == 2


@pytest.mark.parametrize("sidecar", ['{"PhaseEncodingAxis": "i"}', "{}"])
def test_another_axis_or_one_that_nobody_tells_is_never_tried(dataset, tmp_path, no_fsl, sidecar):
    copy_run(dataset, "AP", "j-")
    dataset.dwi(".json").write_text(sidecar)
    for node in nodes_of(build(dataset, tmp_path), ".motion"):
        assert node.inputs.opposite_images == []


def test_what_is_known_to_be_opposite_comes_before_what_may_be(dataset, tmp_path, no_fsl):
    copy_run(dataset, "AP", "j-")
    copy_run(dataset, "PA", "j")
    dataset.dwi(".json").write_text('{"PhaseEncodingAxis": "j"}')
    nodes = {
        Path(node.inputs.raw_image).name: node.inputs
        for node in nodes_of(build(dataset, tmp_path), ".motion")
    }
    known = nodes["sub-01_dir-AP_dwi.nii.gz"]
    assert [Path(p).name for p in known.opposite_images] == ["sub-01_dir-PA_dwi.nii.gz"]
    assert known.opposite_certain == [True]
    assert nodes["sub-01_dwi.nii.gz"].opposite_certain == [False, False]


def test_our_own_model_corrects_where_there_is_no_fsl(dataset, tmp_path, no_fsl):
    for direction, encoding in (("AP", "j-"), ("PA", "j")):
        copy_run(dataset, direction, encoding)
    nodes = nodes_of(build(dataset, tmp_path), ".motion")
    assert all(isinstance(node.interface, CorrectSeries) for node in nodes)
    opposite = {
        Path(node.inputs.raw_image).name: [Path(p).name for p in node.inputs.opposite_images]
        for node in nodes
    }
    assert set(opposite["sub-01_dir-AP_dwi.nii.gz"]) == {
        "sub-01_dwi.nii.gz",
        "sub-01_dir-PA_dwi.nii.gz",
    }
    assert opposite["sub-02_dwi.nii.gz"] == []


def two_shells_of_four(dataset):
    dataset.dwi(".bval").write_text("0 0 500 500 500 500 1000 1000 1000 1000\n")


def test_few_directions_are_registered_rigidly_and_the_reason_is_said(dataset, tmp_path, no_fsl):
    two_shells_of_four(dataset)
    first, second = nodes_of(build(dataset, tmp_path), ".motion")
    assert isinstance(first.interface, EstimateMotion)
    assert "largest shell has 4 directions" in first.inputs.reason
    assert isinstance(second.interface, CorrectSeries)
    assert first.inputs.enabled


def test_the_model_does_what_it_can_where_it_is_asked_for(dataset, tmp_path, no_fsl):
    two_shells_of_four(dataset)
    settings = PreprocessingSettings(output_resolution=10, correction="model")
    nodes = nodes_of(build(dataset, tmp_path, settings), ".motion")
    assert all(isinstance(node.interface, CorrectSeries) for node in nodes)


@pytest.mark.parametrize("sidecar", ["{}", '{"PhaseEncodingAxis": "i"}'])
def test_missing_phase_encoding_and_readout_do_not_stop_the_model(
    dataset, tmp_path, no_fsl, sidecar
):
    copy_run(dataset, "AP", "j-")
    dataset.dwi(".json").write_text(sidecar)
    nodes = nodes_of(build(dataset, tmp_path), ".motion")
    found = {Path(node.inputs.raw_image).name: node.inputs for node in nodes}
    guessed = found["sub-01_dwi.nii.gz"]
    assert guessed.direction == ("i" if "Axis" in sidecar else "j")
    assert guessed.readout_s == DUMMY_READOUT_S
    assert guessed.opposite_images == []


def test_a_dummy_readout_is_not_compared_with_a_real_one(dataset, tmp_path, no_fsl):
    copy_run(dataset, "AP", "j-")
    sidecar = dataset.dwi("").parent / "sub-01_dir-AP_dwi.json"
    sidecar.write_text('{"PhaseEncodingDirection": "j-", "TotalReadoutTime": 0.03}')
    dataset.dwi(".json").write_text('{"PhaseEncodingDirection": "j"}')
    nodes = nodes_of(build(dataset, tmp_path), ".motion")
    ratios = [
        other / node.inputs.readout_s for node in nodes for other in node.inputs.opposite_readout_s
    ]
    assert ratios == [1.0, 1.0]


def test_ants_is_there_for_who_wants_it(dataset, tmp_path, no_fsl):
    settings = PreprocessingSettings(output_resolution=10, correction="ants")
    nodes = nodes_of(build(dataset, tmp_path, settings), ".motion")
    assert nodes
    assert all(isinstance(node.interface, EstimateMotion) for node in nodes)


def test_bet_is_used_where_it_is(dataset, tmp_path, no_fsl):
    program = write_stub(no_fsl, "bet", "bet")
    mask = nodes_of(build(dataset, tmp_path), "sub_01.mask")[0]
    assert mask.inputs.program == str(program)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (PreprocessingSettings(correction="eddy"), "--correction model"),
        (PreprocessingSettings(masking="bet"), "--masking otsu"),
    ],
)
def test_missing_fsl_is_said_when_asked_for(no_fsl, settings, message):
    with pytest.raises(InputError, match=message):
        choose_tools(settings)


def test_gpu_build_only_where_there_is_a_gpu(no_fsl):
    write_stub(no_fsl, "eddy_cuda10.2", "eddy")
    write_stub(no_fsl, "eddy_cuda11.0", "eddy")
    assert choose_tools(COARSE, gpu=False).eddy is None
    assert choose_tools(COARSE, gpu=True).eddy.path.name == "eddy_cuda11.0"


def test_the_graph_is_drawn_without_graphviz(dataset, tmp_path, no_fsl):
    plan = PredictionPlan(model=tmp_path, site="A", dataset="x")
    workflow = build(dataset, tmp_path, predictions={"sub-01": plan})
    picture = draw_graph(workflow.get_node("sub_01"), tmp_path / "logs").read_text()
    for stage in ("conform", "motion", "mask", "sphere", "derivatives", "report", *LEARNED):
        assert f"<!-- {stage} -->" in picture
    other = draw_graph(workflow.get_node("sub_02"), tmp_path / "logs").read_text()
    assert not any(f"<!-- {stage} -->" in other for stage in LEARNED)


def test_harmonisation_comes_before_prediction(dataset, tmp_path, no_fsl):
    plan = PredictionPlan(model=tmp_path, site="A", dataset="x")
    workflow = build(dataset, tmp_path, predictions={"sub-01": plan})
    scan = workflow.get_node("sub_01.sub_01")
    edges = {
        (before.name, after.name): {name for _, name in data["connect"]}
        for before, after, data in scan._graph.edges(data=True)
    }
    assert edges["sphere", "harmonise"] == {"samples"}
    assert edges["harmonise", "predict"] == {"samples", "harmonised"}
    assert edges["predict", "derivatives"] == {"prediction", "prediction_facts"}
    assert ("sphere", "predict") not in edges
    assert set(LEARNED) <= set(STAGES)


def facts_of(workflow):
    """Facts that the workflow of sub-01 knows before it runs."""
    (node,) = nodes_of(workflow, "sub_01.derivatives")
    return ScanFacts.read(node.inputs.facts)


def test_what_is_known_early_reaches_the_derivatives(dataset, tmp_path, no_fsl):
    dataset.dwi(".json").write_text(
        '{"Manufacturer": "Maker", "MagneticFieldStrength": 3, "EstimatedTotalReadoutTime": 0.04}'
    )
    facts = facts_of(build(dataset, tmp_path))
    (run,) = facts.acquisition
    assert facts.unread == ()
    assert str(run.scanner) == "Maker, 3 T"
    assert run.phase_encoding_is_guess
    assert (run.readout_s, run.readout_is_dummy, run.readout_is_fallback) == (0.04, False, True)
    assert facts.tools == ToolFacts(correction="model", masking="otsu", topup=False)


@pytest.mark.parametrize("strength", ["NaN", "true", '"3T"', "null", "[3]"])
def test_a_scanner_that_the_sidecar_garbles_is_not_known(dataset, tmp_path, no_fsl, strength):
    dataset.dwi(".json").write_text(f'{{"MagneticFieldStrength": {strength}}}')
    facts = facts_of(build(dataset, tmp_path))
    assert facts.acquisition[0].scanner == ScannerFacts()
    assert facts.unread == ()
