"""Nodes of the group level, from the cohort to held-out figures.

Each is a thin shell around a function of `bids_gevnet.learn`. What a node reads is among its
inputs, so that Nipype repeats exactly what a change touches. Files of one model (its job,
harmonisation, checkpoint, weights, scores) lie where its job says, and belong to the job whose
digest they carry: nodes, and training processes on a cluster, find what the others finished.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    Directory,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.writing import write_json
from bids_gevnet.errors import InputError, StoppedError
from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.settings import Settings


class ReadCohortInputSpec(BaseInterfaceInputSpec):
    """A study whose participants are done."""

    output_dir = Directory(exists=True, mandatory=True, desc="where the participant level wrote")
    bids_dir = Directory(exists=True, mandatory=True, desc="the dataset, for labels and scanners")
    tables = traits.List(File(exists=True), desc="participants.tsv, its JSON, every sessions.tsv")
    derivatives = traits.List(File(exists=True), desc="samples and masks of every scan")
    target = traits.Str(desc="column with the class or number")
    task = traits.Str("auto", usedefault=True, desc="whether it holds classes or a number")
    site = traits.Str(desc="column with the site")
    covariates = traits.List(traits.Str(), desc="columns that harmonisation keeps")
    folds = traits.Int(mandatory=True, desc="people that every class needs")
    selection = traits.Str(desc="who is taken and who is left out, as TOML")
    left_out = traits.List(traits.Str(), desc="who is left out, so that a change is noticed")
    init_model = traits.Str(desc="model to start from: whoever it was trained on is left out")


class ReadCohortOutputSpec(TraitedSpec):
    """Who is studied."""

    cohort = File(exists=True, desc="one row per scan, with label, site and covariates")
    images = traits.List(File(exists=True), desc="samples of every scan")
    masks = traits.List(File(exists=True), desc="brain mask of every scan")
    nside = traits.Int(desc="HEALPix resolution of the samples")
    voxel_mm = traits.Float(desc="edge of a voxel")


class ReadCohort(SimpleInterface):
    """Join derivatives and participants.tsv."""

    input_spec = ReadCohortInputSpec
    output_spec = ReadCohortOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.cohort.members import cohort_to_json, read_cohort
        from bids_gevnet.learn.models.newcomers import choose_newcomers

        cohort = read_cohort(
            Path(self.inputs.output_dir),
            Path(self.inputs.bids_dir),
            target=self.inputs.target or None,
            task=self.inputs.task,
            site=self.inputs.site or None,
            covariates=tuple(self.inputs.covariates),
            folds=self.inputs.folds,
            selection=_read_settings(self.inputs.selection).selection,
        )
        if self.inputs.init_model:
            model = Path(self.inputs.init_model)
            cohort = choose_newcomers(cohort, model, folds=self.inputs.folds)
        path = Path(runtime.cwd) / "cohort.json"
        write_json(path, cohort_to_json(cohort))
        self._results["cohort"] = str(path)
        self._results["images"] = [str(row.image) for row in cohort.rows]
        self._results["masks"] = [str(row.mask) for row in cohort.rows]
        self._results["nside"] = cohort.nside
        self._results["voxel_mm"] = cohort.voxel_mm
        return runtime


class StoreScanInputSpec(BaseInterfaceInputSpec):
    """One scan."""

    image = File(exists=True, mandatory=True, desc="spherical samples in template space")
    mask = File(exists=True, mandatory=True, desc="brain in template space")
    nside = traits.Int(mandatory=True, desc="HEALPix resolution of the samples")
    voxel_mm = traits.Float(mandatory=True, desc="edge of a voxel")
    store = traits.Str(mandatory=True, desc="folder of the store")


class StoreScanOutputSpec(TraitedSpec):
    """Its place in the store."""

    folder = Directory(exists=True, desc="named by the content of the scan")


class StoreScan(SimpleInterface):
    """Put a scan into the store: brain voxels only, as training reads them."""

    input_spec = StoreScanInputSpec
    output_spec = StoreScanOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.cohort.store import store_scan

        stored = store_scan(
            Path(self.inputs.store),
            Path(self.inputs.image),
            Path(self.inputs.mask),
            nside=self.inputs.nside,
            voxel_mm=self.inputs.voxel_mm,
        )
        self._results["folder"] = str(stored.folder)
        return runtime


class SplitCohortInputSpec(BaseInterfaceInputSpec):
    """A cohort in the store."""

    cohort = File(exists=True, mandatory=True, desc="from ReadCohort")
    folders = traits.List(Directory(exists=True), mandatory=True, desc="each scan in the store")
    settings = traits.Str(mandatory=True, desc="what decides the models, as TOML")
    models = traits.List(traits.Str(), mandatory=True, desc="folders of the models, in order")
    init_weights = File(exists=True, desc="weights to start from, so that a change is noticed")
    output_dir = traits.Str(mandatory=True, desc="where models go")
    work_dir = traits.Str(mandatory=True, desc="where jobs and checkpoints go")


class SplitCohortOutputSpec(TraitedSpec):
    """What is to be trained."""

    jobs = traits.List(File(exists=True), desc="one job per model, in the order of the plan")
    jobs_file = File(exists=True, desc="all jobs in one file")


class SplitCohort(SimpleInterface):
    """Divide the scans into training and test scans of every model."""

    input_spec = SplitCohortInputSpec
    output_spec = SplitCohortOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.cohort.copies import refuse_copies
        from bids_gevnet.learn.models.newcomers import refuse_trained_on
        from bids_gevnet.learn.train.jobs import TrainOptions, write_jobs
        from bids_gevnet.learn.train.planning import make_jobs, plan_study

        cohort = _read_cohort(self.inputs.cohort)
        folders = [Path(folder) for folder in self.inputs.folders]
        refuse_copies(cohort.rows, folders)
        settings = _read_settings(self.inputs.settings)
        if settings.learning.init_model is not None:
            refuse_trained_on(cohort.rows, folders, settings.learning.init_model)
        plan = plan_study(cohort, settings.learning, seed=settings.execution.random_seed)
        if [str(model.folder) for model in plan.models] != list(self.inputs.models):
            raise InputError(
                expected="the cohort that this run was planned for",
                found="another one: the dataset or its derivatives changed meanwhile",
                remedy="run the same command again when nothing else writes there",
            )
        work = WorkLayout(Path(self.inputs.work_dir))
        jobs = make_jobs(
            cohort,
            plan,
            folders,
            TrainOptions.from_settings(settings.learning, settings.execution),
            output=OutputLayout(Path(self.inputs.output_dir)),
            work=work,
            init_model=settings.learning.init_model,
        )
        paths = [Path(job.work_dir) / "job.json" for job in jobs]
        for path, job in zip(paths, jobs, strict=True):
            write_jobs(path, [job])
        write_jobs(work.jobs_file, jobs)
        self._results["jobs"] = [str(path) for path in paths]
        self._results["jobs_file"] = str(work.jobs_file)
        return runtime


class FitHarmonisationInputSpec(BaseInterfaceInputSpec):
    """One model to train."""

    job = File(exists=True, mandatory=True, desc="its job")


class FitHarmonisationOutputSpec(TraitedSpec):
    """What harmonises its scans."""

    gains = File(exists=True, desc="gains per site, fitted to the training scans alone")


class FitHarmonisation(SimpleInterface):
    """Fit the harmonisation of one model to its training scans."""

    input_spec = FitHarmonisationInputSpec
    output_spec = FitHarmonisationOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.train.distributed import Processes
        from bids_gevnet.learn.train.trainer import fit_harmonisation, gains_file

        job = _read_job(self.inputs.job)
        fit_harmonisation(job, Processes())
        self._results["gains"] = str(gains_file(job))
        return runtime


class TrainModelInputSpec(BaseInterfaceInputSpec):
    """One model to train."""

    job = File(exists=True, mandatory=True, desc="its job")
    gains = File(exists=True, desc="its harmonisation")
    processes = traits.Int(1, usedefault=True, nohash=True, desc="training processes")
    threads = traits.Int(1, usedefault=True, nohash=True, desc="threads of each process")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="a GPU for each process")
    resume = traits.Bool(False, usedefault=True, nohash=True, desc="from the last checkpoint")
    number = traits.Int(1, usedefault=True, nohash=True, desc="its number, for people")
    total = traits.Int(1, usedefault=True, nohash=True, desc="models of the study, for people")


class TrainModelOutputSpec(TraitedSpec):
    """The trained model."""

    weights = File(exists=True, desc="model.safetensors in the folder of the model")


class TrainModel(SimpleInterface):
    """Train one model, in this process or by torchrun in several."""

    input_spec = TrainModelInputSpec
    output_spec = TrainModelOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.models.files import WEIGHTS
        from bids_gevnet.learn.train.distributed import TrainingInterrupted
        from bids_gevnet.learn.train.outputs import is_trained
        from bids_gevnet.learn.train.torchrun import Devices, train
        from bids_gevnet.learn.train.trainer import checkpoint_file

        job = _read_job(self.inputs.job)
        if not self.inputs.resume:
            checkpoint_file(job).unlink(missing_ok=True)
        devices = Devices(
            processes=self.inputs.processes, gpu=self.inputs.gpu, threads=self.inputs.threads
        )
        try:
            if not is_trained(job):  # by an earlier run, or on other nodes of a cluster
                train(
                    Path(self.inputs.job),
                    devices,
                    test=False,
                    first=self.inputs.number,
                    total=self.inputs.total,
                )
        except TrainingInterrupted as error:
            # Not a failure of this node: the whole workflow has to stop.
            raise StoppedError(str(error)) from None
        self._results["weights"] = str(Path(job.model_dir) / WEIGHTS)
        return runtime


class TestModelInputSpec(BaseInterfaceInputSpec):
    """A trained model."""

    __test__ = False
    job = File(exists=True, mandatory=True, desc="its job")
    weights = File(exists=True, mandatory=True, desc="its weights")
    threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to use")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU")


class TestModelOutputSpec(TraitedSpec):
    """What it says about people it was not trained on."""

    __test__ = False
    scores = File(exists=True, desc="held_out.json in the folder of the model")


class TestModel(SimpleInterface):
    """Score the people that a model was not trained on."""

    __test__ = False
    input_spec = TestModelInputSpec
    output_spec = TestModelOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.train.distributed import Processes, single_device
        from bids_gevnet.learn.train.held_out import score_held_out
        from bids_gevnet.learn.train.process import limited_threads

        processes = Processes(device=single_device(gpu=self.inputs.gpu))
        with limited_threads(self.inputs.threads):
            scores = score_held_out(_read_job(self.inputs.job), processes)
        self._results["scores"] = str(scores)
        return runtime


class CollectPredictionsInputSpec(BaseInterfaceInputSpec):
    """A study whose models are trained and tested."""

    cohort = File(exists=True, mandatory=True, desc="from ReadCohort")
    jobs_file = File(exists=True, mandatory=True, desc="all jobs, from SplitCohort")
    settings = traits.Str(mandatory=True, desc="what decides the models, as TOML")
    scores = traits.List(File(exists=True), mandatory=True, desc="held-out scores of every split")
    weights = traits.List(File(exists=True), mandatory=True, desc="weights of every model")
    output_dir = traits.Str(mandatory=True, desc="where the tables go")


class CollectPredictionsOutputSpec(TraitedSpec):
    """Tables of the study."""

    cohort_table = File(exists=True, desc="group_cohort.tsv")
    predictions = File(exists=True, desc="group_predictions.tsv")
    about = File(exists=True, desc="facts of the training, for the metrics")
    models = traits.List(Directory(exists=True), desc="folders of the final models")


class CollectPredictions(SimpleInterface):
    """Gather held-out predictions, fit baselines to the same splits, calibrate final models."""

    input_spec = CollectPredictionsInputSpec
    output_spec = CollectPredictionsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.collection import Study, collect_predictions
        from bids_gevnet.learn.train.jobs import read_jobs
        from bids_gevnet.learn.train.planning import plan_study

        cohort = _read_cohort(self.inputs.cohort)
        settings = _read_settings(self.inputs.settings)
        plan = plan_study(cohort, settings.learning, seed=settings.execution.random_seed)
        output = OutputLayout(Path(self.inputs.output_dir))
        collected = collect_predictions(
            Study(cohort, plan, read_jobs(Path(self.inputs.jobs_file))),
            output,
            reference_site=settings.learning.reference_site,
        )
        about = Path(runtime.cwd) / "about.json"
        write_json(about, collected.about)
        self._results["cohort_table"] = str(output.cohort_table)
        self._results["predictions"] = str(output.predictions_table)
        self._results["about"] = str(about)
        self._results["models"] = [str(path) for path in collected.models]
        return runtime


class ScoreCohortInputSpec(BaseInterfaceInputSpec):
    """A labelled cohort in the store, and a finished model."""

    cohort = traits.Str(mandatory=True, desc="who is scored, as JSON")
    folders = traits.List(Directory(exists=True), mandatory=True, desc="each scan in the store")
    model = traits.Str(mandatory=True, desc="folder of the model")
    weights = File(exists=True, mandatory=True, desc="its weights, so that a change is noticed")
    card = File(exists=True, mandatory=True, desc="its model.json, for the same reason")
    output_dir = traits.Str(mandatory=True, desc="where the tables go")
    adapt = traits.Bool(False, usedefault=True, desc="harmonise new sites without labels")
    threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to use")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU")


class ScoreCohortOutputSpec(TraitedSpec):
    """Tables of the validation."""

    predictions = File(exists=True, desc="group_predictions.tsv")
    about = File(exists=True, desc="facts of the model, for the metrics")


class ScoreCohort(SimpleInterface):
    """Score people whom a finished model has never seen; nothing is fitted to labels."""

    input_spec = ScoreCohortInputSpec
    output_spec = ScoreCohortOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.cohort.members import cohort_from_json
        from bids_gevnet.learn.evaluate.external import score_cohort
        from bids_gevnet.learn.train.distributed import Processes, single_device
        from bids_gevnet.learn.train.process import limited_threads

        output = OutputLayout(Path(self.inputs.output_dir))
        with limited_threads(self.inputs.threads):
            about = score_cohort(
                cohort_from_json(json.loads(self.inputs.cohort)),
                [Path(folder) for folder in self.inputs.folders],
                Path(self.inputs.model),
                output,
                Processes(device=single_device(gpu=self.inputs.gpu)),
                adapt=self.inputs.adapt,
            )
        path = Path(runtime.cwd) / "about.json"
        write_json(path, about)
        self._results["predictions"] = str(output.predictions_table)
        self._results["about"] = str(path)
        return runtime


class EvaluatePredictionsInputSpec(BaseInterfaceInputSpec):
    """Held-out predictions."""

    predictions = File(exists=True, mandatory=True, desc="group_predictions.tsv")
    about = File(exists=True, mandatory=True, desc="facts of the training")
    seed = traits.Int(mandatory=True, desc="of bootstrap and permutations")
    output_dir = traits.Str(mandatory=True, desc="where the metrics go")


class EvaluatePredictionsOutputSpec(TraitedSpec):
    """What they are worth."""

    metrics = File(exists=True, desc="group_metrics.json")


class EvaluatePredictions(SimpleInterface):
    """Turn the table of predictions into figures with intervals."""

    input_spec = EvaluatePredictionsInputSpec
    output_spec = EvaluatePredictionsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.predictions_table import write_headlines, write_metrics

        output = OutputLayout(Path(self.inputs.output_dir))
        about = json.loads(Path(self.inputs.about).read_text(encoding="utf-8"))
        content = write_metrics(
            output.metrics_file, Path(self.inputs.predictions), about, seed=self.inputs.seed
        )
        write_headlines(output.headline_table, content)
        self._results["metrics"] = str(output.metrics_file)
        return runtime


class WriteModelCardsInputSpec(BaseInterfaceInputSpec):
    """A study whose figures are known."""

    weights = traits.List(File(exists=True), desc="weights: a model trained again lost its card")
    metrics = File(exists=True, mandatory=True, desc="group_metrics.json")
    output_dir = traits.Str(mandatory=True, desc="where the models are")


class WriteModelCardsOutputSpec(TraitedSpec):
    """What people read about the models."""

    cards = traits.List(File(exists=True), desc="MODEL_CARD.md of every final model")


class WriteModelCards(SimpleInterface):
    """Describe every final model for people, with its figures."""

    input_spec = WriteModelCardsInputSpec
    output_spec = WriteModelCardsOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.model_card import write_model_cards

        metrics = json.loads(Path(self.inputs.metrics).read_text(encoding="utf-8"))
        written = write_model_cards(Path(self.inputs.output_dir), metrics)
        self._results["cards"] = [str(path) for path in written]
        return runtime


class MapSaliencyInputSpec(BaseInterfaceInputSpec):
    """Models of one task, trained and tested."""

    jobs = traits.List(File(exists=True), mandatory=True, desc="jobs of the folds of one network")
    weights = traits.List(File(exists=True), mandatory=True, desc="weights of their models")
    atlas = File(exists=True, desc="label image of regions, in template space")
    atlas_names = File(exists=True, desc="names of its labels, so that a change is noticed")
    gpu = traits.Bool(False, usedefault=True, nohash=True, desc="on a GPU")


class MapSaliencyOutputSpec(TraitedSpec):
    """What the predictions rest on."""

    maps = traits.List(File(exists=True), desc="saliency.json beside the models")


class MapSaliency(SimpleInterface):
    """Map what held-out predictions rest on, over the brain and over directions."""

    input_spec = MapSaliencyInputSpec
    output_spec = MapSaliencyOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.saliency_maps import write_saliency_maps
        from bids_gevnet.learn.train.distributed import single_device

        written = write_saliency_maps(
            [_read_job(path) for path in self.inputs.jobs],
            atlas=Path(self.inputs.atlas) if isdefined(self.inputs.atlas) else None,
            device=single_device(gpu=self.inputs.gpu),
        )
        self._results["maps"] = [str(path) for path in written]
        return runtime


class RefitHarmonisationInputSpec(BaseInterfaceInputSpec):
    """A fold whose model is trained."""

    job = File(exists=True, mandatory=True, desc="its job")
    weights = File(exists=True, mandatory=True, desc="weights of its model")


class RefitHarmonisationOutputSpec(TraitedSpec):
    """Whether anything leaked."""

    check = File(exists=True, desc="harmonisation_check.json beside the models")


class RefitHarmonisation(SimpleInterface):
    """Fit the harmonisation again from the training scans alone, for the leakage audit."""

    input_spec = RefitHarmonisationInputSpec
    output_spec = RefitHarmonisationOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        from bids_gevnet.learn.evaluate.leakage_refit import check_harmonisation

        self._results["check"] = str(check_harmonisation(_read_job(self.inputs.job)))
        return runtime


def _read_settings(text: str) -> Settings:
    return Settings.from_tables(tomllib.loads(text), source="the settings of the node")


def _read_cohort(path: str) -> Any:
    from bids_gevnet.learn.cohort.members import cohort_from_json

    return cohort_from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def _read_job(path: str) -> Any:
    from bids_gevnet.learn.train.jobs import read_jobs

    (job,) = read_jobs(Path(path))
    return job
