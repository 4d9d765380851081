"""A small study as the participant level leaves it: derivatives of simulated participants.

One fibre per voxel along a fixed smooth field; the class changes the fibre's anisotropy in half of
the brain, and so does age where a study has an effect of it; the site multiplies degrees,
everybody has a little noise of their own.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bids_gevnet.bids.derivatives import DerivativeNames
from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.layout import OutputLayout, WorkLayout
from bids_gevnet.learn.cohort.members import Cohort, read_cohort
from bids_gevnet.learn.cohort.store import store_scan
from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.collection import Collected, collect_predictions
from bids_gevnet.learn.evaluate.collection import Study as TrainedStudy
from bids_gevnet.learn.evaluate.predictions_table import write_metrics
from bids_gevnet.learn.train.distributed import Processes, StopRequest
from bids_gevnet.learn.train.held_out import score_held_out
from bids_gevnet.learn.train.jobs import JobScan, TrainJob, TrainOptions
from bids_gevnet.learn.train.planning import StudyPlan, make_jobs, plan_study
from bids_gevnet.learn.train.progress import TrainingProgress
from bids_gevnet.learn.train.trainer import train_job
from bids_gevnet.settings import ExecutionSettings, LearningSettings
from bids_gevnet.sphere.resampling import distinct_directions

NSIDE = 2
SHAPE = (8, 9, 8)
AFFINE = np.diag([6.0, 6.0, 6.0, 1.0])


@dataclass(frozen=True)
class Person:
    label: str
    group: str
    site: str
    age: float
    sex: str
    sessions: tuple[str, ...] = ()


def brain() -> np.ndarray:
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij"), axis=-1)
    mask: np.ndarray = np.linalg.norm(grid, axis=-1) < 1.05
    return mask


def signal(group: float, site: int, rng: np.random.Generator, *, effect: float) -> np.ndarray:
    """S/b0 of one scan: (X, Y, Z, 6 nside^2) array, zero outside the brain."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij"), axis=-1)
    fibre = np.stack([np.cos(grid[..., 1]), np.sin(grid[..., 0]), 0.5 + 0 * grid[..., 2]], -1)
    fibre /= np.linalg.norm(fibre, axis=-1, keepdims=True)
    along = 1.4 - effect * group * (grid[..., 0] > 0)
    cosine = fibre @ distinct_directions(NSIDE).T
    values = np.exp(-0.3 - along[..., None] * cosine**2)
    mean = values.mean(axis=-1, keepdims=True)
    values = mean * (1 + 0.1 * site) + (values - mean) * (1 - 0.15 * site)
    values += rng.normal(0, 0.02, values.shape) + rng.normal(0, 0.01)
    return np.where(brain()[..., None], values, 0)


class Study:
    """A raw dataset of text files and its derivatives."""

    def __init__(
        self,
        root: Path,
        people: Sequence[Person],
        *,
        effect: float,
        seed: int,
        age_effect: float = 0.0,
    ) -> None:
        self.bids_dir, self.output_dir = root / "raw", root / "derivatives"
        self.people, self.effect, self.age_effect = tuple(people), effect, age_effect
        self.groups = sorted({person.group for person in people})
        self.sites = sorted({person.site for person in people})
        self.rng = np.random.default_rng(seed)
        description = {"Name": "Study of the tests", "BIDSVersion": "1.10.0"}
        write_json(self.bids_dir / "dataset_description.json", description)
        self.write_participants()
        for person in people:
            self.add_derivatives(person)

    def write_participants(self, *, site: bool = True, drop: str = "") -> None:
        names = ["participant_id", "diagnosis", *(["site"] if site else []), "age", "sex"]
        lines = ["\t".join(names)]
        for p in self.people:
            cells = [f"sub-{p.label}", p.group if p.label != drop else "n/a"]
            cells += [*([p.site] if site else []), f"{p.age:.1f}", p.sex]
            lines.append("\t".join(cells))
        (self.bids_dir / "participants.tsv").write_text("\n".join(lines) + "\n", "utf-8")

    def names(self, label: str, session: str | None = None) -> DerivativeNames:
        entities = {"sub": label} | ({"ses": session} if session else {})
        return DerivativeNames(output_dir=self.output_dir, entities=entities, resolution_mm=6.0)

    def add_derivatives(self, person: Person) -> None:
        for session in person.sessions or (None,):
            names = self.names(person.label, session)
            values = signal(
                self.groups.index(person.group) + self.age_effect * (person.age - 70) / 10,
                self.sites.index(person.site),
                self.rng,
                effect=self.effect,
            )
            image = names.standard("desc-healpix_dwi.nii.gz")
            write_image(image, values, AFFINE, scale=1 / 16384)
            write_json(
                names.standard("desc-healpix_dwi.json"), {"Nside": NSIDE, "Ordering": "NESTED"}
            )
            write_image(names.standard("desc-brain_mask.nii.gz"), brain(), AFFINE)
            motion = self.rng.uniform(0.05, 0.3, 4)
            rows = ["framewise_displacement", "n/a", *(f"{m:.4f}" for m in motion)]
            names.native("desc-confounds_timeseries.tsv").write_text("\n".join(rows) + "\n")
            raw = self.bids_dir / names.folder.relative_to(self.output_dir)
            raw.mkdir(parents=True)
            (raw / f"{names.prefix}_dwi.nii.gz").touch()
            sidecar = {
                "Manufacturer": "Maker",
                "ManufacturersModelName": f"Model {person.site}",
                "MagneticFieldStrength": 3,
            }
            (raw / f"{names.prefix}_dwi.json").write_text(json.dumps(sidecar))


MakeStudy = Callable[..., Study]


def make_people(per_class: int, classes: Sequence[str], sites: Sequence[str]) -> list[Person]:
    rng = np.random.default_rng(0)
    return [
        Person(
            label=f"{k}{i:02d}",
            group=group,
            site=sites[(i + k) % len(sites)],
            age=float(rng.uniform(60, 80)),
            sex="FM"[int(rng.integers(2))],
        )
        for k, group in enumerate(classes)
        for i in range(per_class)
    ]


@pytest.fixture
def make_study(tmp_path: Path) -> MakeStudy:
    def make(
        per_class: int = 4,
        classes: Sequence[str] = ("AD", "PD"),
        sites: Sequence[str] = ("A", "B"),
        *,
        effect: float = 0.8,
        seed: int = 0,
        people: Sequence[Person] | None = None,
        folder: str = "study",
        age_effect: float = 0.0,
    ) -> Study:
        everybody = people or make_people(per_class, classes, sites)
        root = tmp_path / folder
        return Study(root, everybody, effect=effect, seed=seed, age_effect=age_effect)

    return make


@dataclass(frozen=True)
class Planned:
    """A study up to its training jobs, as the first nodes of the workflow leave it."""

    output: OutputLayout
    cohort: Cohort
    plan: StudyPlan
    jobs: list[TrainJob]


@dataclass(frozen=True)
class Result:
    """A study that was trained and evaluated."""

    output: OutputLayout
    cohort: Cohort
    collected: Collected
    metrics: dict[str, Any]


def plan_jobs(
    study: Study,
    settings: LearningSettings,
    execution: ExecutionSettings,
    options: TrainOptions | None = None,
) -> Planned:
    """Read, plan and store a study in this process."""
    cohort = read_cohort(
        study.output_dir,
        study.bids_dir,
        target=settings.target,
        task=settings.task,
        folds=settings.folds,
    )
    plan = plan_study(cohort, settings, seed=execution.random_seed)
    output, work = OutputLayout(study.output_dir), WorkLayout(study.output_dir / "work")
    folders = [
        store_scan(
            work.store, row.image, row.mask, nside=cohort.nside, voxel_mm=cohort.voxel_mm
        ).folder
        for row in cohort.rows
    ]
    chosen = TrainOptions.from_settings(settings, execution, start=options)
    return Planned(
        output,
        cohort,
        plan,
        make_jobs(cohort, plan, folders, chosen, output=output, work=work),
    )


def run_study(study: Study, settings: LearningSettings, execution: ExecutionSettings) -> Result:
    """Train, test and evaluate a study in this process."""
    planned = plan_jobs(study, settings, execution)
    for job in planned.jobs:
        train_here(job)
    collected = collect_predictions(
        TrainedStudy(planned.cohort, planned.plan, planned.jobs),
        planned.output,
        reference_site=settings.reference_site,
    )
    metrics = write_metrics(
        planned.output.metrics_file,
        planned.output.predictions_table,
        collected.about,
        seed=execution.random_seed,
    )
    return Result(planned.output, planned.cohort, collected, metrics)


def make_jobs_of_study(
    root: Path,
    *,
    per_class: int = 3,
    network: str = "ckn2",
    strides: tuple[int, ...] = (2, 1, 2, 1),
    **options: object,
) -> list[TrainJob]:
    """Write a study and plan its training: two folds and the final model."""
    study = Study(root, make_people(per_class, ("AD", "PD"), ("A", "B")), effect=0.8, seed=0)
    settings = LearningSettings(
        folds=2,
        epochs=3,
        samples_per_class=5,
        batch_size=4,
        network=network,
        leave_site_out=False,
        strides=strides,
    )
    chosen = TrainOptions(**options)  # type: ignore[arg-type]
    return plan_jobs(study, settings, ExecutionSettings(nprocs=1), chosen).jobs


def train_here(job: TrainJob, stop: StopRequest | None = None) -> TrainingProgress:
    """Train a job in this process, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    progress = TrainingProgress(1, active=True)
    try:
        train_job(job, Processes(), stop or StopRequest(), progress)
        score_held_out(job, Processes())
    finally:
        torch.set_num_threads(before)
    return progress


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[TrainJob]:
    return make_jobs_of_study(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="session")
def trained(jobs: list[TrainJob]) -> TrainJob:
    """The first fold, trained without interruption."""
    train_here(jobs[0])
    return jobs[0]


@pytest.fixture
def elsewhere(jobs: list[TrainJob], tmp_path: Path) -> TrainJob:
    """The same job with empty folders of its own."""
    return replace(jobs[0], model_dir=str(tmp_path / "model"), work_dir=str(tmp_path / "work"))


def as_regression(job: TrainJob) -> TrainJob:
    """The same scans with their age to predict."""

    def scans(part: Sequence[JobScan]) -> tuple[JobScan, ...]:
        return tuple(replace(s, label=0, value=float(str(s.covariates["age"]))) for s in part)

    return replace(
        job,
        kind=REGRESSION,
        task="age",
        labels=("age",),
        unit="year",
        training=scans(job.training),
        testing=scans(job.testing),
    )


@pytest.fixture(name="as_regression", scope="session")
def _as_regression() -> Callable[[TrainJob], TrainJob]:
    return as_regression


@pytest.fixture
def person_class() -> type[Person]:
    return Person


@pytest.fixture(name="train_here", scope="session")
def _train_here() -> Callable[..., TrainingProgress]:
    return train_here


@pytest.fixture(name="make_jobs", scope="session")
def _make_jobs() -> Callable[..., list[TrainJob]]:
    return make_jobs_of_study


@pytest.fixture(name="plan_jobs", scope="session")
def _plan_jobs() -> Callable[..., Planned]:
    return plan_jobs


@pytest.fixture(name="run_study", scope="session")
def _run_study() -> Callable[..., Result]:
    return run_study


@pytest.fixture(scope="session")
def study_class() -> Callable[..., Study]:
    def make(root: Path, *, per_class: int, classes: Sequence[str], effect: float = 0.8) -> Study:
        return Study(root, make_people(per_class, classes, ("A", "B")), effect=effect, seed=0)

    return make
