"""A group run as it lies on disk, made up without training: known folds, scores and gains.

Everything a group report reads is written here the way the app writes it; tables of results come
from the app's own evaluation of made-up scores.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bids_gevnet.bids.derivatives import DerivativeNames
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.facts.saliency import (
    AngleSaliency,
    ExplainedScan,
    RegionSaliency,
    SaliencyFacts,
)
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.learn.evaluate.predictions_table import calibrate
from bids_gevnet.learn.evaluate.scoring import evaluate_table
from bids_gevnet.learn.models.calibration import softmax
from bids_gevnet.learn.train.jobs import TrainOptions

SHAPE, DEGREES = (12, 14, 12), (0, 2, 4, 6)
AFFINE = np.array([[15.0, 0, 0, -82], [0, 15, 0, -115], [0, 0, 15, -75], [0, 0, 0, 1]])


@dataclass(frozen=True)
class MadeUp:
    """One made-up participant."""

    label: str
    group: str
    site: str
    age: float
    sex: str
    motion: float


@dataclass
class GroupStudy:
    """A cohort and how to write its files.

    `effect` moves the scores of the two classes apart, `site_gain` multiplies the amplitude of
    degree 0 at the second site, which the gains undo.
    """

    folder: Path
    groups: Sequence[str] = ("AD", "PD")
    sites: Sequence[str] = ("A", "B")
    people: int = 16
    networks: Sequence[str] = ("ckn2+gevnet",)
    folds: int = 4
    effect: float = 1.2
    site_gain: float = 1.2
    seed: int = 0
    pictures: bool = True
    who: list[MadeUp] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        for number in range(self.people):
            self.who.append(
                MadeUp(
                    f"{number + 1:03d}",
                    self.groups[number % len(self.groups)],
                    self.sites[number // len(self.groups) % len(self.sites)],
                    float(self.rng.uniform(55, 85)),
                    "FM"[int(self.rng.integers(2))],
                    float(self.rng.gamma(3, 0.08)),
                )
            )

    @property
    def task(self) -> str:
        return "first-v-second"

    def fold_of(self, number: int) -> int:
        return number // (len(self.groups) * len(self.sites)) % self.folds + 1

    def write(self) -> Path:
        """Write everything; returns the top folder."""
        for number, person in enumerate(self.who):
            self._write_derivatives(number, person)
        self._write_cohort()
        scores = {name: self._scores() for name in self.networks}
        for name in self.networks:
            self._write_models(name, scores[name])
        self._write_results(scores)
        write_text(self.folder / "logs/settings.toml", "[preprocessing]\nnside = 4\n")
        write_text(
            self.folder / "logs/settings-group.toml",
            '[learning]\nnetwork = "ckn2+gevnet"\ncovariates = ["age", "sex"]\n',
        )
        write_json(
            self.folder / "logs/run-group.json",
            {"command": ["bids_gevnet", "raw", "out", "group"], "seed": 0, "commit": "0123abc"},
        )
        return self.folder

    def _write_derivatives(self, number: int, person: MadeUp) -> None:
        names = DerivativeNames(
            output_dir=self.folder, entities={"sub": person.label}, resolution_mm=15.0
        )
        rng = np.random.default_rng((self.seed, number))
        write_json(names.native("desc-report_facts.json"), made_up_facts(person, rng))
        steps = "\n".join(f"{person.motion * x:.4f}" for x in (0.5, 1.0, 1.5))
        write_text(
            names.native("desc-confounds_timeseries.tsv"),
            f"framewise_displacement\nn/a\n{steps}\n",
        )
        write_text(self.folder / f"sub-{person.label}.html", "<!DOCTYPE html><title>x</title>")
        for ending in ("desc-preproc_dwi.nii.gz", "desc-brain_mask.nii.gz"):
            names.native(ending).touch()
        for ending in ("desc-preproc_dwi.nii.gz", "desc-healpix_dwi.nii.gz"):
            names.standard(ending).touch()
        if not self.pictures:
            return
        mask, b0 = head()
        write_image(names.native("dwiref.nii.gz"), b0 * rng.uniform(0.9, 1.1), AFFINE)
        write_text(
            names.native("from-dwi_to-MNI152NLin2009aSym_mode-image_xfm.txt"),
            "#Insight Transform File V1.0\n#Transform 0\nTransform: AffineTransform_double_3_3\n"
            "Parameters: 1 0 0 0 1 0 0 0 1 0 0 0\nFixedParameters: 0 0 0\n",
        )
        write_image(names.standard("desc-brain_mask.nii.gz"), mask, AFFINE)
        anisotropy = (0.4 * mask * rng.uniform(0.9, 1.1)).astype(np.float32)
        write_image(names.standard("model-tensor_param-fa_dwimap.nii.gz"), anisotropy, AFFINE)
        colours = anisotropy[..., None] * np.array([1.0, 0.0, 0.0], np.float32)
        write_image(names.standard("model-tensor_param-dec_dwimap.nii.gz"), colours, AFFINE)
        gain = self.site_gain if person.site == self.sites[-1] else 1.0
        for degree in DEGREES:
            energy = mask * (0.5 / (1 + degree)) * np.exp(rng.normal(0, 0.02))
            energy *= gain**2 if degree == 0 else 1.0
            path = names.standard(f"model-sh_param-rish{degree}_dwimap.nii.gz")
            write_image(path, energy.astype(np.float32), AFFINE)

    def _write_cohort(self) -> None:
        head_line = ["participant_id", "session_id", "scan", "diagnosis", "site", "age", "sex"]
        lines = [[*head_line, "mean_framewise_displacement", f"fold_{self.task}"]]
        for number, p in enumerate(self.who):
            cells = [f"sub-{p.label}", "n/a", f"sub-{p.label}", p.group, p.site, f"{p.age:.1f}"]
            lines.append([*cells, p.sex, f"{p.motion:.4f}", str(self.fold_of(number))])
        write_text(
            self.folder / "group_cohort.tsv", "".join("\t".join(row) + "\n" for row in lines)
        )

    def _truth(self) -> np.ndarray:
        return np.array([list(self.groups).index(person.group) for person in self.who])

    def _scores(self) -> np.ndarray:
        raw = self.rng.normal(0, 1, (self.people, len(self.groups)))
        raw[np.arange(self.people), self._truth()] += self.effect
        return raw

    def folder_of(self, network: str) -> Path:
        top = self.folder / "models" / self.task
        return top / network if len(self.networks) > 1 else top

    def _write_models(self, network: str, scores: np.ndarray) -> None:
        for fold in (*range(1, self.folds + 1), None):
            place = self.folder_of(network) / ("final" if fold is None else f"fold-{fold}")
            inside = [i for i in range(self.people) if fold is None or self.fold_of(i) != fold]
            write_json(place / "model.json", self._card(network, fold, inside))
            held_out = [
                {"scan": f"sub-{self.who[i].label}", "scores": scores[i].tolist()}
                for i in range(self.people)
                if i not in inside
            ]
            write_json(place / "held_out.json", {"scans": held_out})
            self._gains(fold).save(place / "harmonisation.npz")
            (place / "model.safetensors").write_bytes(f"{network} {fold}".encode())
            write_text(place / "environment.txt", "bids_gevnet 0.1.0\ntorch 2.10.0\n")
            rows = "".join(
                f"{e},0.001,{0.7 / e:.3f},{1 - 0.5 / e:.3f},{0.75 / e:.3f},{1 - 0.6 / e:.3f}\n"
                for e in range(1, 6)
            )
            write_text(
                place / "learning_curve.csv",
                "epoch,learning_rate,train_loss,train_accuracy,held_out_loss,held_out_accuracy\n"
                + rows,
            )
        if self.pictures:
            self._write_saliency(network)

    def _card(self, network: str, fold: int | None, inside: Sequence[int]) -> dict[str, Any]:
        return {
            "format": "bids_gevnet model 1",
            "network": network,
            "labels": list(self.groups),
            "task": self.task,
            "fold": fold,
            "nside": 4,
            "options": asdict(TrainOptions(network=network)),
            "participants": [self.who[i].label for i in inside],
            "fingerprints": [f"hash of {self.who[i].label}" for i in inside],
            "sites": sorted({self.who[i].site for i in inside}),
            "harmonised": True,
            "warnings": [f"Site {self.sites[0]} is small."],
            "digest": f"{network} {fold}",
        }

    def _gains(self, fold: int | None) -> RishGains:
        gains = np.ones((len(self.sites), *SHAPE, len(DEGREES)), np.float32)
        gains[-1, ..., 0] = 1 / self.site_gain * (1 + 1e-4 * (fold or 0))
        return RishGains(gains, tuple(sorted(self.sites)), DEGREES, 4, columns=("age",))

    def _write_saliency(self, network: str) -> None:
        mask, b0 = head()
        place = self.folder_of(network)
        z = (6 * b0 / b0.max()).astype(np.float32)
        p = np.where(z > 4.5, 0.01, 1.0).astype(np.float32)
        for name, values in (("saliency", z), ("saliency_p", p), ("sensitivity", z + mask)):
            write_image(place / f"{name}.nii.gz", values.astype(np.float32), AFFINE)
        facts = SaliencyFacts(
            task=self.task,
            network=network,
            labels=tuple(self.groups),
            scans=(ExplainedScan(scan="sub-001", fold=1, label=self.groups[0]),),
            people=self.people,
            held_out_scans=self.people,
            permutations=999,
            significant_voxels=int((p < 0.05).sum()),
            brain_voxels=int(mask.sum()),
            largest_z=float(z.max()),
            needed_z=4.5,
            p=0.01,
            peak_mm=(-28.0, -14.0, 30.0),
            explained_share=1.02,
            fold_agreement=0.71,
            untrained_agreement=0.05,
            sensitivity_fold_agreement=0.95,
            sensitivity_untrained_agreement=0.94,
            atlas="lobes",
            regions=tuple(
                RegionSaliency(
                    region=f"Region {i}",
                    voxels=40,
                    significant_voxels=max(0, 9 - i),
                    share=0.4 - 0.06 * i,
                    z=5.0 - i / 2,
                    p=min(1.0, 0.002 * 3**i),
                )
                for i in range(10)
            ),
            angles=tuple(
                AngleSaliency(
                    low=15.0 * i, high=15.0 * (i + 1), density=2 - i / 3, z=4 - i, p=0.02 * (i + 1)
                )
                for i in range(6)
            ),
        )
        write_json(place / "saliency.json", facts.to_json())

    def _write_results(self, scores: dict[str, np.ndarray]) -> None:
        folds = np.array([self.fold_of(i) for i in range(self.people)])
        rows = [
            (name, "network", "folds", folds, calibrate(own, self._truth(), folds)[0])
            for name, own in scores.items()
        ]
        site = np.array([list(self.sites).index(p.site) + 1 for p in self.who])
        rows.append((self.networks[0], "network", "leave-site-out", site, softmax(self._scores())))
        guesses = softmax(0.3 * self.rng.normal(size=(self.people, len(self.groups))))
        rows += [
            (name, "baseline", "folds", folds, guesses)
            for name in ("site", "motion", "age_sex", "rish")
        ]
        names = ["participant_id", "session_id", "scan", "task", "kind", "model", "scheme", "fold"]
        names += ["label", "predicted", "site", "age", "sex", "motion"]
        lines = ["\t".join([*names, *(f"prob_{group}" for group in self.groups)])]
        for model, kind, scheme, fold, chances in rows:
            for person, number, own in zip(self.who, fold, chances, strict=True):
                name = f"sub-{person.label}"
                cells = [name, "n/a", name, self.task, kind, model, scheme, str(number)]
                cells += [person.group, self.groups[int(own.argmax())], person.site]
                cells += [f"{person.age}", person.sex, f"{person.motion}"]
                lines.append("\t".join([*cells, *(repr(float(p)) for p in own)]))
        table = self.folder / "group_predictions.tsv"
        write_text(table, "\n".join(lines) + "\n")
        content = evaluate_table(table, resamples=50, permutations=99)
        write_json(
            self.folder / "group_metrics.json",
            content
            | {
                "target": "diagnosis",
                "training": [],
                "leave_site_out": [
                    {"task": self.task, "site": self.sites[0], "run": False, "reason": "too small"}
                ],
                "warnings": [],
            },
        )


def head() -> tuple[np.ndarray, np.ndarray]:
    """Brain mask and mean b0 of an ellipsoid, on the grid of the study."""
    index = np.stack(np.meshgrid(*[np.arange(n) for n in SHAPE], indexing="ij"), -1)
    world = index @ AFFINE[:3, :3].T + AFFINE[:3, 3]
    radius = np.linalg.norm((world - [0, -18, 8]) / [70, 85, 62], axis=-1)
    return radius < 1, np.where(radius < 1, 1000 * (1.2 - radius), 0).astype(np.float32)


def made_up_facts(person: MadeUp, rng: np.random.Generator) -> dict[str, Any]:
    """Facts of a scan, as the participant level leaves them."""
    return {
        "name": f"sub-{person.label}",
        "acquisition": [{"name": f"sub-{person.label}", "readout_s": 0.05}],
        "tools": {"correction": "ants", "masking": "otsu", "topup": False},
        "correction": [
            {
                "method": "ants",
                "largest_displacement_mm": float(rng.gamma(4, 0.4)),
                "outlier_slices": int(rng.poisson(2)),
            }
        ],
        "mask": {"method": "otsu", "volume_ml": float(rng.normal(1400, 90))},
        "registration": {
            "source": "b0",
            "template": "MNI152NLin2009aSym",
            "dice": float(rng.normal(0.96, 0.005)),
            "information": float(rng.normal(1.1, 0.01)),
        },
        "sphere": {
            "sampled": [{"b_value": 1000.0, "directions": 32}],
            "nside": 4,
            "residual_rms": 0.02,
        },
        "quality": {
            "snr_b0": float(rng.normal(28, 3)),
            "cnr": float(rng.normal(3.5, 0.3)),
            "tensor_residual": float(rng.normal(0.03, 0.003)),
            "neighbour_correlation": float(rng.normal(0.85, 0.02)),
            "mean_fa_white_matter": float(rng.normal(0.53, 0.02)),
        },
    }


def edit_json(path: Path, **changes: object) -> None:
    """Change some keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
