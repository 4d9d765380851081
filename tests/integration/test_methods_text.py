"""The methods text of real runs, on a tiny phantom, for every way a scan can go.

Corrections run each on its own data; what comes behind them runs twice in full, with pip packages
alone and with stand-ins for FSL. No fact is made up.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from bundles import bundles
from fsl_stubs import write_stub
from nilearn.datasets import load_mni152_brain_mask, load_mni152_template
from nilearn.image import resample_img
from nipype.pipeline import engine as pe

from bids_gevnet.bids.derivatives import BRAIN_MASK, CONFOUNDS, SAMPLES, prediction_ending
from bids_gevnet.bids.query import find_participants
from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.bids.scans import find_scans as join_runs
from bids_gevnet.cli.execute import configure
from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl
from bids_gevnet.facts import CorrectionFacts, QualityFacts, ScanFacts
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.interfaces.quality import MeasureQuality
from bids_gevnet.interfaces.series import Series, read_facts, write_series
from bids_gevnet.interfaces.template_grid import output_grid
from bids_gevnet.learn.cohort.scan_rows import mean_motion
from bids_gevnet.learn.models.files import ModelCard, build_network, write_model
from bids_gevnet.learn.models.prediction import predict
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.dataset import write_cohort
from bids_gevnet.report.alerts import collect_alerts
from bids_gevnet.report.methods_text import describe_methods
from bids_gevnet.report.scan_files import ScanFiles, find_scans
from bids_gevnet.settings import ExecutionSettings, PreprocessingSettings, SelectionSettings
from bids_gevnet.workflows.context import ScanContext
from bids_gevnet.workflows.correction import init_correction_wf
from bids_gevnet.workflows.eddy import init_eddy_wf
from bids_gevnet.workflows.participant import init_participant_wf, init_participants_wf
from bids_gevnet.workflows.planned_facts import planned_facts
from bids_gevnet.workflows.scan import PredictionPlan
from bids_gevnet.workflows.tools import Tools, choose_tools

PROGRAMS = {"eddy": "eddy_cpu", "topup": "topup", "bet": "bet"}
SITE = "A"


def text_of(*scans: ScanFacts) -> str:
    return " ".join(text for _, text in describe_methods(scans).paragraphs)


def write_template(folder: Path) -> Path:
    """Write nilearn's template with voxels so large that registration takes seconds."""
    for load, ending, interpolation in (
        (load_mni152_template, "T1w", "continuous"),
        (load_mni152_brain_mask, "desc-brain_mask", "nearest"),
    ):
        image = resample_img(
            load(resolution=2), np.diag([10.0, 10, 10]), interpolation=interpolation,
            copy_header=True, force_resample=True,
        )  # fmt: skip
        nib.save(image, folder / f"tpl-Coarse_{ending}.nii.gz")
    return folder / "tpl-Coarse_T1w.nii.gz"


@dataclass
class Lab:
    """A dataset of one participant with everything, and runs on copies of it."""

    folder: Path

    @cached_property
    def cohort(self) -> Path:
        phantom = tiny_settings(
            groups=("AD",), sites=1, directions=6, voxel_mm=10.0, reverse_b0=True, t1w=True
        )
        write_cohort(self.folder / "cohort", phantom)
        return self.folder / "cohort"

    @cached_property
    def template(self) -> Path:
        return write_template(self.folder)

    def settings(self, **options: object) -> PreprocessingSettings:
        return PreprocessingSettings(output_resolution=12, template=self.template, **options)

    def tools(self, settings: PreprocessingSettings, programs: tuple[str, ...]) -> Tools:
        """Choose tools as if only these programs of FSL were installed."""
        search = self.folder / "-".join(("bin", *programs))
        search.mkdir(exist_ok=True)
        for kind in programs:
            write_stub(search, PROGRAMS[kind], kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(search))
            return choose_tools(settings, gpu=False)

    def participant(self, name: str, change: Callable[[Path], None] | None) -> Participant:
        data = Path(shutil.copytree(self.cohort, self.folder / name / "data"))
        if change is not None:
            change(data / "sub-001")
        (found,) = find_participants(data, SelectionSettings(), b0_threshold=50)
        assert found.usable, found.problems
        return found

    def context(self, name: str, settings: PreprocessingSettings, tools: Tools) -> ScanContext:
        return ScanContext(
            output_dir=self.folder / name / "out",
            grid=output_grid(settings),
            settings=settings,
            tools=tools,
            threads=1,
        )

    def plan(self, participant: Participant, context: ScanContext, network: str = "") -> ScanFacts:
        (scan,) = join_runs(participant, b0_threshold=50)
        return planned_facts(
            scan, siblings=participant.runs, settings=context.settings, tools=context.tools,
            network=network,
        )  # fmt: skip

    def correct(
        self,
        name: str,
        programs: tuple[str, ...] = (),
        change: Callable[[Path], None] | None = None,
        **options: object,
    ) -> tuple[ScanFacts, ScanFacts]:
        """Correct every run; return what was planned and what happened."""
        settings = self.settings(**options)
        participant = self.participant(name, change)
        context = self.context(name, settings, self.tools(settings, programs))
        planned = self.plan(participant, context)
        folder, runs = self.folder / name, participant.runs
        if context.tools.correction == "eddy":
            build = partial(init_eddy_wf, runs)
            facts = self._run_correction(build, context, runs, folder / "correct")
        else:
            facts = [
                fact
                for number, run in enumerate(runs)
                for fact in self._run_correction(
                    partial(init_correction_wf, run), context, runs, folder / f"correct_{number}"
                )
            ]
        return planned, replace(planned, correction=tuple(facts))

    def _run_correction(
        self,
        build: Callable[..., pe.Workflow],
        context: ScanContext,
        runs: Sequence[DiffusionRun],
        folder: Path,
    ) -> list[CorrectionFacts]:
        workflow = build(context, siblings=runs, mem_gb=0.1, name=folder.name)
        workflow.base_dir = str(folder.parent)
        execute(workflow)
        paths = [*folder.glob("motion/facts.json"), *sorted(folder.glob("eddy/run_*/facts.json"))]
        return [read_facts(path, CorrectionFacts) for path in paths]


def execute(workflow: pe.Workflow) -> None:
    configure(workflow, ExecutionSettings(), crash_dir=Path(workflow.base_dir))
    workflow.run(plugin="Linear")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


def without_fieldmap(subject: Path) -> None:
    shutil.rmtree(subject / "fmap")


def without_sidecar(subject: Path) -> None:
    """Neither a sidecar nor a name that tells the direction."""
    for path in subject.glob("dwi/*.json"):
        path.unlink()
    for path in list(subject.glob("dwi/*_dir-*")):
        path.rename(path.with_name(re.sub(r"_dir-[A-Za-z0-9]+", "", path.name)))


def fieldmap_on_another_grid(subject: Path) -> None:
    (path,) = subject.glob("fmap/*.nii.gz")
    image = nib.load(path)
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj)[:-1], image.affine), path)


def fieldmap_like_the_run(subject: Path) -> None:
    """An opposite b0 that is not distorted the other way: there is nothing to gain."""
    (path,) = subject.glob("fmap/*.nii.gz")
    (series,) = subject.glob("dwi/*.nii.gz")
    image = nib.load(series)
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj)[..., 0], image.affine), path)


def small_shells(subject: Path) -> None:
    """Make two runs whose shells are too small apart and large enough together."""
    two_runs(subject)
    for path, (first, second) in zip(
        sorted(subject.glob("dwi/*.bval")), ((500, 1000), (1000, 500)), strict=True
    ):
        bvals = path.read_text().split()
        weighted = [i for i, b in enumerate(bvals) if float(b) > 50]
        for place, volume in enumerate(weighted):
            bvals[volume] = str(first if place < len(weighted) // 2 else second)
        path.write_text(" ".join(bvals) + "\n")


def two_runs(subject: Path) -> None:
    for path in list(subject.glob("dwi/*")):
        for number in (1, 2):
            name = path.name.replace("_dwi", f"_run-{number}_dwi")
            shutil.copy(path, path.with_name(name))
        path.unlink()
    name_runs(subject)


def name_runs(subject: Path) -> None:
    """Tell the field map which runs it is meant for."""
    (sidecar,) = subject.glob("fmap/*.json")
    about = json.loads(sidecar.read_text())
    runs = [f"bids::sub-001/dwi/{path.name}" for path in sorted(subject.glob("dwi/*.nii.gz"))]
    sidecar.write_text(json.dumps(about | {"IntendedFor": runs}))


FSL = ("eddy", "topup")
MODEL = "prediction from the others of its shell"
BY_TOPUP, BY_MODEL = "by topup of FSL [@topup]", "after the idea of topup [@topup]"
NOT_CORRECTED = "Susceptibility distortions were not corrected"
CASES = {
    # name: programs, change, options, method, susceptibility, sentences that are there
    "eddy_and_topup": (FSL, None, {}, "eddy", "corrected", ("eddy of FSL", BY_TOPUP)),
    "eddy_without_topup": (
        FSL[:1], None, {}, "eddy", "no_topup", ("eddy of FSL", NOT_CORRECTED),
    ),
    "eddy_without_opposite": (
        FSL, without_fieldmap, {}, "eddy", "no_opposite_b0", ("eddy of FSL", NOT_CORRECTED),
    ),
    "eddy_without_sidecar": (
        FSL, without_sidecar, {}, "eddy", "unknown_direction",
        ("eddy of FSL", NOT_CORRECTED, "a dummy value", "was assumed"),
    ),
    "model": ((), None, {}, "model", "corrected", (MODEL, BY_MODEL)),
    "model_without_sidecar": (
        (), without_sidecar, {}, "model", "unknown_direction",
        (MODEL, NOT_CORRECTED, "a dummy value", "was assumed"),
    ),
    "model_another_grid": (
        (), fieldmap_on_another_grid, {}, "model", "another_grid", (MODEL, NOT_CORRECTED),
    ),
    "model_no_improvement": (
        (), fieldmap_like_the_run, {"denoise": "none", "unring": "none"}, "model",
        "no_improvement", (MODEL, NOT_CORRECTED),
    ),
    "model_small_shells": (
        (), small_shells, {"correction": "model"}, "model", "corrected",
        ("eddy currents and outlier slices were not looked for", BY_MODEL),
    ),
    "rigid_small_shells": (
        (), small_shells, {}, "ants", "not_supported", ("rigid registration of every volume",),
    ),
    "none": (
        FSL, None, {"correction": "none"}, "none", "not_supported",
        ("Neither motion nor distortions were corrected.",),
    ),
}  # fmt: skip
EVERY_SENTENCE = {
    "eddy of FSL", MODEL, BY_TOPUP, BY_MODEL, NOT_CORRECTED, "a dummy value", "was assumed",
    "rigid registration of every volume", "Neither motion nor distortions were corrected.",
    "eddy currents and outlier slices were not looked for",
}  # fmt: skip
SURPRISES = {"model_another_grid", "model_no_improvement"}
"""What only the images can tell."""


@pytest.fixture(scope="module")
def corrections(lab: Lab) -> Callable[[str], tuple[ScanFacts, ScanFacts]]:
    done: dict[str, tuple[ScanFacts, ScanFacts]] = {}

    def get(name: str) -> tuple[ScanFacts, ScanFacts]:
        if name not in done:
            programs, change, options, *_ = CASES[name]
            done[name] = lab.correct(name, programs, change, **options)
        return done[name]

    return get


@pytest.mark.parametrize("name", CASES)
def test_the_text_says_how_a_run_was_corrected_and_nothing_else(corrections, name):
    *_, method, susceptibility, sentences = CASES[name]
    _, facts = corrections(name)
    for run in facts.correction:
        assert (run.method, run.susceptibility) == (method, susceptibility)
    text = text_of(facts)
    expected = set(sentences) | ({MODEL} if name == "model_small_shells" else set())
    assert {sentence for sentence in EVERY_SENTENCE if sentence in text} == expected


@pytest.mark.parametrize("name", [name for name in CASES if name not in SURPRISES])
def test_the_plan_reads_like_the_run(corrections, name):
    planned, facts = corrections(name)
    assert text_of(planned) == text_of(facts)


@pytest.mark.parametrize("name", CASES)
def test_alerts_and_text_agree(corrections, name, tmp_path):
    _, facts = corrections(name)
    text = text_of(facts)
    alerts = " ".join(a.text for a in collect_alerts(ScanFiles(tmp_path, "x", facts), None))
    not_corrected = any(
        words in alerts for words in ("were not corrected", "Neither motion nor distortions")
    )
    assert not_corrected == (facts.correction[0].susceptibility != "corrected")
    assert ("susceptibility-induced field was estimated" in text) != not_corrected


def make_model(lab: Lab, folder: Path, network: str, settings: PreprocessingSettings) -> Path:
    """Write a model with random weights, on the grid of the settings, with gains for one site."""
    torch.manual_seed(0)
    grid = output_grid(settings)
    gains = np.full((1, *grid.shape, 4), 1.3, np.float32)
    card = ModelCard(
        network=network, labels=("AD", "PD"), task="AD-v-PD", fold=None, nside=4,
        shape=grid.shape, affine=tuple(map(tuple, grid.affine_rows)), temperature=1.7, options={},
        participants=("999",), fingerprints=(), dataset="x", sites=(SITE,), max_motion=None,
        rish_low=(-99.0,) * 4, rish_high=(99.0,) * 4, harmonised=True, warnings=(), digest="",
    )  # fmt: skip
    write_model(
        folder, build_network(network, 2, 4), card, RishGains(gains, (SITE,), (0, 2, 4, 6), 4)
    )
    return folder


@dataclass(frozen=True)
class Run:
    """A run in full: what was planned, what is on disk, and with which model."""

    planned: ScanFacts
    scan: ScanFiles
    model: Path | None


def run_in_full(
    lab: Lab,
    name: str,
    programs: tuple[str, ...],
    change: Callable[[Path], None],
    network: str = "",
    **options: object,
) -> Run:
    settings = lab.settings(**options)
    participant = lab.participant(name, change)
    context = lab.context(name, settings, lab.tools(settings, programs))
    (scan,) = join_runs(participant, b0_threshold=50)
    model = make_model(lab, lab.folder / name / "model", network, settings) if network else None
    plan = None if model is None else PredictionPlan(model=model, site=SITE, dataset="new")
    plans = {} if plan is None else {scan.name: plan}
    workflow = init_participants_wf(
        [init_participant_wf(participant, context, plans)], lab.folder / name / "work"
    )
    execute(workflow)
    (files,) = find_scans(context.output_dir, "001")
    return Run(lab.plan(participant, context, network), files, model)


def without_t1w(subject: Path) -> None:
    shutil.rmtree(subject / "anat")


@pytest.fixture(scope="module")
def pip_only(lab: Lab) -> Run:
    """One run, without FSL, T1w and correction, and a prediction by a network."""
    options = {"correction": "none"}
    return run_in_full(lab, "pip_only", (), without_t1w, "ckn1+deepsphere", **options)


@pytest.fixture(scope="module")
def with_fsl(lab: Lab) -> Run:
    """Two runs that are joined, with FSL and T1w."""
    return run_in_full(lab, "with_fsl", ("eddy", "topup", "bet"), two_runs)


def test_all_facts_can_be_read_back(pip_only, with_fsl):
    for run in (pip_only, with_fsl):
        assert run.scan.is_finished
        assert run.scan.facts.unread == ()
        assert ScanFacts.read(run.scan.facts.to_json()) == run.scan.facts


def test_pip_packages_alone(pip_only):
    text = text_of(pip_only.scan.facts)
    for sentence in (
        "threshold derived from Otsu's",
        "The mean b0 was registered to the template",
        "The template was Coarse.",
        "the data interpolated once.",
        "(6 directions)",
        "192 points (nside 4)",
        "degrees up to 6",
        "The gradient table could not be checked",
    ):
        assert sentence in text
    for absent in ("[@fsl", "T1-weighted", "joined", "[@mni]", "table was checked", "once more"):
        assert absent not in text


def test_fsl_and_t1w_and_two_runs(with_fsl):
    facts = with_fsl.scan.facts
    text = text_of(facts)
    assert [run.susceptibility for run in facts.correction] == ["corrected"] * 2
    for sentence in (
        "BET of FSL",
        "were scaled to the same mean b0 and corrected together.",
        "to the participant's T1-weighted image",
        # eddy has interpolated already
        "The corrected data were interpolated once more, to the template.",
    ):
        assert sentence in text
    for absent in ("Otsu", "interpolated once.", "research use"):
        assert absent not in text


def test_before_a_run_the_text_is_what_the_run_will_say(pip_only, with_fsl):
    for run in (pip_only, with_fsl):
        planned, real = (
            dict(describe_methods([facts]).paragraphs) for facts in (run.planned, run.scan.facts)
        )
        assert list(planned) == list(real)
        # Whether the model has gains for the site is known when they are read, and whether white
        # matter tells if the gradient table fits when it is looked at.
        for surprise in ("Prediction", "Quality measures"):
            planned.pop(surprise, None)
            real.pop(surprise, None)
        assert planned == real


def test_the_text_names_the_network_that_predicted(pip_only):
    text = text_of(pip_only.scan.facts)
    assert "Scans were classified by the network ckn1+deepsphere." in text
    assert "DeepSphere [@deepsphere]" in text
    assert "harmonised with the gains that the model has for the scan's site" in text
    # Named in the overview, as what scans are prepared for, and nowhere else.
    assert text.count("[@gevnet]") == 1


def test_the_table_is_named_after_the_network(pip_only):
    tables = [path.name for path in pip_only.scan.folder.glob("*_prediction.tsv")]
    assert tables == [f"{pip_only.scan.name}_{prediction_ending('ckn1+deepsphere')}"]
    assert tables[0].endswith("_model-ckn1deepsphere_prediction.tsv")


def test_two_nodes_give_what_one_function_gives(pip_only):
    scan = pip_only.scan
    image = nib.load(scan.standard(SAMPLES))
    arguments = {
        "samples": image.get_fdata(dtype=np.float32)[..., 1:],  # after the b0
        "mask": np.asarray(nib.load(scan.standard(BRAIN_MASK)).dataobj) > 0,
        "affine": image.affine,
        "participant": "001",
        "dataset": "new",
        "motion": mean_motion(scan.native(CONFOUNDS)),
    }
    expected = predict(pip_only.model, **arguments, site=SITE)
    facts = scan.facts.prediction
    assert facts.probabilities == expected.probabilities
    assert (facts.label, facts.network) == (expected.label, expected.network)
    assert facts.harmonised is True
    # Negative control: without the gains of the site the answer is another one.
    other = predict(pip_only.model, **arguments, site="nowhere")
    assert facts.probabilities != other.probabilities


def test_a_gradient_table_that_can_be_checked(tmp_path):
    """Thin bundles tell; a wrong table is called wrong and not just checked."""
    data, affine, bvals, bvecs_ras = bundles()
    nib.save(nib.Nifti1Image(data, affine), tmp_path / "raw.nii.gz")
    brain = (data[..., 0] > 300).astype(np.uint8)
    nib.save(nib.Nifti1Image(brain, affine), tmp_path / "m.nii")
    image, gradients = write_series(tmp_path, Series(data, affine, bvals, bvecs_ras))
    np.savetxt(tmp_path / "bval", bvals[None], fmt="%g")
    outcomes = {}
    for name, order in (("right", [0, 1, 2]), ("wrong", [0, 2, 1])):
        folder = tmp_path / name
        folder.mkdir()
        bvecs = bvecs_ras_to_fsl(bvecs_ras, affine)
        np.savetxt(folder / "bvec", bvecs.T[order], fmt="%.6f")
        outputs = MeasureQuality(
            image=str(image), gradients=str(gradients), mask=str(tmp_path / "m.nii"),
            raw_images=[str(tmp_path / "raw.nii.gz")], raw_bvals=[str(tmp_path / "bval")],
            raw_bvecs=[str(folder / "bvec")],
        ).run(cwd=str(folder)).outputs  # fmt: skip
        outcomes[name] = ScanFacts(quality=read_facts(outputs.facts, QualityFacts))
    right, wrong = text_of(outcomes["right"]), text_of(outcomes["wrong"])
    assert "The gradient table was checked" in right
    assert "could not be checked" not in right + wrong
    assert "fitted better" not in right
    assert "Another arrangement of its axes fitted better" in wrong
    assert "(1 of 2 scans)" in text_of(*outcomes.values())


def test_scans_that_differ_are_counted(corrections):
    scans = [corrections(name)[1] for name in ("none", "none", "eddy_and_topup")]
    text = text_of(*scans)
    assert "Neither motion nor distortions were corrected (2 of 3 runs)." in text
    assert "and corrected in the same interpolation (1 of 3 runs)." in text
    assert os.environ["PATH"]  # tools were looked for elsewhere, and PATH is as it was
