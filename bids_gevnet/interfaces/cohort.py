"""Nodes of the group level that say who is studied: cohort, store, split.

Each is a thin shell around a function of `bids_gevnet.learn`. What a node reads is among its
inputs, so that Nipype repeats exactly what a change touches.
"""

from pathlib import Path
from typing import Any

from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    Directory,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.bids.writing import write_json
from bids_gevnet.errors import InputError
from bids_gevnet.interfaces.study_files import read_cohort_file, read_settings
from bids_gevnet.layout import OutputLayout, WorkLayout


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
            selection=read_settings(self.inputs.selection).selection,
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

        cohort = read_cohort_file(self.inputs.cohort)
        folders = [Path(folder) for folder in self.inputs.folders]
        refuse_copies(cohort.rows, folders)
        settings = read_settings(self.inputs.settings)
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
