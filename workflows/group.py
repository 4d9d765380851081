"""The group level: cohort, store and split; a branch per model; then what all models say together.

    cohort -> store (per scan) -> split -> [harmonise -> train -> test] per fold, left-out site and
    final model -> collect -> evaluate -> cards and report, with saliency and refit beside
    evaluate

Which models there are follows from the cohort, which is read when the workflow is built
(`bids_gevnet.learn.train.planning.plan_study`). Any Nipype plugin runs the graph; branches do not
wait for each other.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from nipype.interfaces import utility as niu
from nipype.pipeline import engine as pe

from bids_gevnet.errors import InputError
from bids_gevnet.interfaces.cohort import ReadCohort, SplitCohort, StoreScan
from bids_gevnet.interfaces.evaluation import (
    CollectPredictions,
    EvaluatePredictions,
    MapSaliency,
    RefitHarmonisation,
    WriteModelCards,
)
from bids_gevnet.interfaces.models import FitHarmonisation, TestModel, TrainModel
from bids_gevnet.interfaces.report import BuildGroupReport
from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.learn.cohort.members import Cohort
from bids_gevnet.learn.evaluate.regions import names_file
from bids_gevnet.learn.evaluate.saliency_maps import explained_network
from bids_gevnet.learn.models.files import (
    MODEL_CARD,
    WEIGHTS,
    damaged_files,
    has_changed_text,
    read_card,
)
from bids_gevnet.learn.train.outputs import HELD_OUT
from bids_gevnet.learn.train.planning import PlannedModel, StudyPlan
from bids_gevnet.learn.train.torchrun import Devices
from bids_gevnet.settings import SelectionSettings, Settings, to_toml

GROUP_STAGES: Mapping[str, str] = {
    "cohort": "cohort",
    "store": "reading scans",
    "split": "folds and sites",
    "harmonise": "harmonisation",
    "train": "training",
    "test": "held-out predictions",
    "collect": "baselines and calibration",
    "evaluate": "evaluation",
    "saliency": "saliency",
    "refit": "leakage check",
    "cards": "model cards",
    "report": "report",
}
"""Names of nodes, as a person would call them."""


@dataclass(frozen=True, kw_only=True)
class StudyContext:
    """What every node of the group level may need to know.

    Parameters
    ----------
    bids_dir : Path
    output : OutputLayout
    work : WorkLayout
    settings : Settings
    cohort : Cohort
        As read when the workflow is built.
    plan : StudyPlan
    devices : Devices
    """

    bids_dir: Path
    output: OutputLayout
    work: WorkLayout
    settings: Settings
    cohort: Cohort
    plan: StudyPlan
    devices: Devices

    @property
    def deciding_settings(self) -> str:
        """Settings that decide the models, as TOML: not where they are trained or from whence."""
        learning = dataclasses.replace(
            self.settings.learning, devices="auto", resume=False, model=None, atlas=None
        )
        seed = self.settings.execution.random_seed
        return to_toml(
            Settings(
                learning=learning,
                execution=dataclasses.replace(Settings().execution, random_seed=seed),
            )
        )

    @property
    def deciding_selection(self) -> str:
        """Settings that decide who is in the cohort, as TOML: not how the dataset is indexed."""
        unchanged = SelectionSettings()
        return to_toml(
            Settings(
                selection=dataclasses.replace(
                    self.settings.selection,
                    bids_filter_file=unchanged.bids_filter_file,
                    bids_database_dir=unchanged.bids_database_dir,
                    skip_bids_validation=unchanged.skip_bids_validation,
                )
            )
        )


def init_group_wf(study: StudyContext) -> pe.Workflow:
    """Build the workflow of the group level."""
    workflow = init_split_only_wf(study)
    prepare = workflow.get_node("prepare")
    models = [init_model_wf(study, model, i) for i, model in enumerate(study.plan.models)]
    for number, model_wf in enumerate(models):
        workflow.connect(prepare, ("outputnode.jobs", _pick, number), model_wf, "inputnode.job")
    gather_weights = pe.Node(niu.Merge(len(models)), name="gather_weights")
    for number, model_wf in enumerate(models, start=1):
        workflow.connect(model_wf, "outputnode.weights", gather_weights, f"in{number}")
    tested = [
        model_wf
        for model, model_wf in zip(study.plan.models, models, strict=True)
        if model.split.fold is not None
    ]
    gather_scores = pe.Node(niu.Merge(len(tested)), name="gather_scores")
    for number, model_wf in enumerate(tested, start=1):
        workflow.connect(model_wf, "outputnode.scores", gather_scores, f"in{number}")
    output_dir = str(study.output.root)
    missing = not all(
        path.is_file() for path in (study.output.cohort_table, study.output.predictions_table)
    )
    collect = pe.Node(
        CollectPredictions(output_dir=output_dir, settings=study.deciding_settings),
        name="collect",
        # Nipype does not see that somebody removed what a node wrote outside of its folder.
        overwrite=missing or None,
        mem_gb=2.0,
    )
    evaluate = pe.Node(
        EvaluatePredictions(output_dir=output_dir, seed=study.settings.execution.random_seed),
        name="evaluate",
        overwrite=(missing or not study.output.metrics_file.is_file()) or None,
        mem_gb=1.0,
    )
    described = all(
        _is_described(study.output.models / model.folder)
        for model in study.plan.models
        if model.split.fold is None
    )
    cards = pe.Node(
        WriteModelCards(output_dir=output_dir), name="cards", overwrite=not described or None
    )
    report = _report_node(study)
    workflow.connect([
        (prepare, collect, [
            ("outputnode.cohort", "cohort"),
            ("outputnode.jobs_file", "jobs_file"),
        ]),
        (gather_scores, collect, [("out", "scores")]),
        (gather_weights, collect, [("out", "weights")]),
        (collect, evaluate, [("predictions", "predictions"), ("about", "about")]),
        (gather_weights, cards, [("out", "weights")]),
        (evaluate, cards, [("metrics", "metrics")]),
        (evaluate, report, [("metrics", "metrics")]),
    ])  # fmt: skip
    _connect_explanations(workflow, study, dict(zip(study.plan.models, models, strict=True)))
    return workflow


def init_split_only_wf(study: StudyContext) -> pe.Workflow:
    """Build the group level up to the training jobs, for clusters that train them by srun.

    Its nodes are those of the whole workflow, which then finds them finished.
    """
    workflow = pe.Workflow(name="group", base_dir=str(study.work.root))
    workflow.add_nodes([init_prepare_wf(study)])
    return workflow


def init_prepare_wf(study: StudyContext) -> pe.Workflow:
    """Build what comes before training: the cohort, its store, and the jobs.

    Outputs
    -------
    cohort
        File with one row per scan.
    jobs
        One file per model, in the order of the plan.
    jobs_file
        All of them in one file.
    """
    workflow = pe.Workflow(name="prepare")
    learning = study.settings.learning
    rows = study.cohort.rows
    cohort = pe.Node(
        ReadCohort(
            output_dir=str(study.output.root),
            bids_dir=str(study.bids_dir),
            tables=_tables(study),
            derivatives=[str(path) for row in rows for path in (row.image, row.mask)],
            target=learning.target or "",
            task=learning.task,
            site=learning.site or "",
            covariates=list(learning.covariates),
            folds=learning.folds,
            selection=study.deciding_selection,
            left_out=[f"{entry.scan}: {entry.reason}" for entry in study.cohort.left_out],
            init_model=str(learning.init_model or ""),
        ),
        name="cohort",
        run_without_submitting=True,
    )
    store = pe.MapNode(
        StoreScan(store=str(study.work.store)),
        iterfield=["image", "mask"],
        name="store",
        overwrite=not study.work.store.is_dir() or None,
        mem_gb=1.0,
    )
    split = pe.Node(
        SplitCohort(
            settings=study.deciding_settings,
            models=[str(model.folder) for model in study.plan.models],
            output_dir=str(study.output.root),
            work_dir=str(study.work.root),
            **_start(study),
        ),
        name="split",
        overwrite=not study.work.jobs_file.is_file() or None,
        run_without_submitting=True,
    )
    outputnode = pe.Node(
        niu.IdentityInterface(fields=["cohort", "jobs", "jobs_file"]), name="outputnode"
    )
    workflow.connect([
        (cohort, store, [
            ("images", "image"),
            ("masks", "mask"),
            ("nside", "nside"),
            ("voxel_mm", "voxel_mm"),
        ]),
        (cohort, split, [("cohort", "cohort")]),
        (store, split, [("folder", "folders")]),
        (cohort, outputnode, [("cohort", "cohort")]),
        (split, outputnode, [("jobs", "jobs"), ("jobs_file", "jobs_file")]),
    ])  # fmt: skip
    return workflow


def init_model_wf(study: StudyContext, model: PlannedModel, number: int) -> pe.Workflow:
    """Build the branch of one model: harmonise, train, test.

    Parameters
    ----------
    study : StudyContext
    model : PlannedModel
    number : int
        Place in the plan, from 0.

    Inputs
    ------
    job

    Outputs
    -------
    job, weights
    scores
        Of held-out people; not set for the final model, which has none.
    """
    workflow = pe.Workflow(name=model.node_name)
    devices = study.devices
    n_procs = min(study.settings.execution.processes, devices.processes * devices.threads)
    inputnode = pe.Node(niu.IdentityInterface(fields=["job"]), name="inputnode")
    outputnode = pe.Node(
        niu.IdentityInterface(fields=["job", "weights", "scores"]), name="outputnode"
    )
    folder = study.output.models / model.folder
    train = pe.Node(
        TrainModel(
            processes=devices.processes,
            threads=devices.threads,
            gpu=devices.gpu,
            resume=study.settings.learning.resume,
            number=number + 1,
            total=len(study.plan.models),
        ),
        name="train",
        overwrite=not _is_intact(folder) or None,
        n_procs=n_procs,
        mem_gb=2.0 * devices.processes,
    )
    workflow.connect([
        (inputnode, train, [("job", "job")]),
        (inputnode, outputnode, [("job", "job")]),
        (train, outputnode, [("weights", "weights")]),
    ])  # fmt: skip
    if study.settings.learning.harmonisation != "none":
        harmonise = pe.Node(FitHarmonisation(), name="harmonise", mem_gb=2.0)
        workflow.connect([
            (inputnode, harmonise, [("job", "job")]),
            (harmonise, train, [("gains", "gains")]),
        ])  # fmt: skip
    if model.split.fold is not None:
        test = pe.Node(
            TestModel(threads=n_procs, gpu=devices.gpu),
            name="test",
            overwrite=not (folder / HELD_OUT).is_file() or None,
            n_procs=n_procs,
            mem_gb=2.0,
        )
        workflow.connect([
            (inputnode, test, [("job", "job")]),
            (train, test, [("weights", "weights")]),
            (test, outputnode, [("scores", "scores")]),
        ])  # fmt: skip
    return workflow


def _connect_explanations(
    workflow: pe.Workflow, study: StudyContext, branches: Mapping[PlannedModel, pe.Workflow]
) -> None:
    """Add saliency and the leakage check of every task; the report waits for them."""
    report = workflow.get_node("report")
    made: list[tuple[pe.Node, str]] = []
    for task in study.plan.tasks:
        for network in study.plan.networks:
            folds = [
                model
                for model in study.plan.models
                if (model.task, model.network) == (task, network)
                and model.split.fold is not None
                and model.split.site is None
            ]
            name = folds[0].node_name.rsplit("_fold_", 1)[0]
            if network == explained_network(study.plan.networks):
                made.append((_connect_saliency(workflow, study, folds, branches, name), "maps"))
            if study.settings.learning.harmonisation != "none":
                made.append((_connect_refit(workflow, study, folds[0], branches, name), "check"))
    gather = pe.Node(niu.Merge(len(made)), name="gather_explanations")
    for number, (node, output) in enumerate(made, start=1):
        workflow.connect(node, output, gather, f"in{number}")
    workflow.connect(gather, "out", report, "explanations")


def _connect_saliency(
    workflow: pe.Workflow,
    study: StudyContext,
    folds: Sequence[PlannedModel],
    branches: Mapping[PlannedModel, pe.Workflow],
    name: str,
) -> pe.Node:
    maps = study.output.models / folds[0].folder.parent / "saliency.json"
    saliency = pe.Node(
        MapSaliency(gpu=study.devices.gpu, **_atlas(study.settings.learning.atlas)),
        name=f"saliency_{name}",
        overwrite=not maps.is_file() or None,
        n_procs=study.settings.execution.processes,
        mem_gb=4.0,
    )
    for field, source in (("jobs", "job"), ("weights", "weights")):
        gather = pe.Node(niu.Merge(len(folds)), name=f"gather_{field}_{name}")
        for number, model in enumerate(folds, start=1):
            workflow.connect(branches[model], f"outputnode.{source}", gather, f"in{number}")
        workflow.connect(gather, "out", saliency, field)
    return saliency


def _atlas(path: Path | None) -> dict[str, str]:
    """Name the files of an atlas, if one was given."""
    if path is None:
        return {}
    names = names_file(path)
    return {"atlas": str(path)} | ({"atlas_names": str(names)} if names.is_file() else {})


def _connect_refit(
    workflow: pe.Workflow,
    study: StudyContext,
    fold: PlannedModel,
    branches: Mapping[PlannedModel, pe.Workflow],
    name: str,
) -> pe.Node:
    check = study.output.models / fold.folder.parent / "harmonisation_check.json"
    refit = pe.Node(
        RefitHarmonisation(),
        name=f"refit_{name}",
        overwrite=not check.is_file() or None,
        mem_gb=2.0,
    )
    workflow.connect([
        (branches[fold], refit, [("outputnode.job", "job"), ("outputnode.weights", "weights")])
    ])  # fmt: skip
    return refit


def _report_node(study: StudyContext) -> pe.Node:
    return pe.Node(
        BuildGroupReport(output_dir=str(study.output.root)),
        name="report",
        # It shows derivatives of all participants and when the study ran: always anew.
        overwrite=True,
        n_procs=study.settings.execution.processes,
        mem_gb=4.0,
    )


def _start(study: StudyContext) -> dict[str, str]:
    """Name the weights that training starts from, if there are any."""
    model = study.settings.learning.init_model
    return {} if model is None else {"init_weights": str(model / WEIGHTS)}


def _is_described(folder: Path) -> bool:
    """Whether a final model has its card for people, as it was written."""
    try:
        return MODEL_CARD in read_card(folder).files and not has_changed_text(folder)
    except InputError:
        return False


def _is_intact(folder: Path) -> bool:
    try:
        return not damaged_files(folder)
    except InputError:
        return False


def _tables(study: StudyContext) -> list[str]:
    """List the tables that labels and covariates come from."""
    people = sorted({row.participant for row in study.cohort.rows})
    sessions = [
        path
        for person in people
        for path in (study.bids_dir / f"sub-{person}").glob(f"sub-{escape(person)}_sessions.tsv")
    ]
    described = study.bids_dir / "participants.json"
    tables = [study.bids_dir / "participants.tsv", *([described] if described.is_file() else [])]
    return [str(path) for path in (*tables, *sessions)]


def _pick(items: list[str], number: int) -> str:
    return items[number]
