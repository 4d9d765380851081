"""Check that saliency shows where the groups of a phantom cohort truly differ.

    python benchmarks/learning.py --effect micro --strength 1.6 --groups AD DLB PD --per-group 12
        --folds 3 --networks ckn2+gevnet --seed 11 --folder FOLDER
    python benchmarks/saliency.py --folder FOLDER --write

The networks that learning.py (one command, two lines above) trained in a folder are explained on
the people they were not trained on. The atlas has the two regions that truly differ, cut out of
the lobes of the template: fibres cross at another angle in DLB in one, and disperse more in PD in
the other. For every pair of groups the page says which region comes first, where the highest
voxel is, and how much maps agree: of two folds, with networks before training, and between pairs
of groups whose regions differ. Beside them stand plain gradients, which know no diagnosis.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path

import nibabel as nib
import numpy as np
from pages import RESULTS, current_commit, write_page

from bids_gevnet.facts.saliency import SaliencyFacts
from bids_gevnet.learn.evaluate.regions import names_file, template_regions
from bids_gevnet.learn.evaluate.saliency_evidence import mean_correlation
from bids_gevnet.learn.evaluate.saliency_maps import write_saliency_maps
from bids_gevnet.learn.train.jobs import TrainJob, read_jobs
from bids_gevnet.phantom.anatomy import grid_points
from bids_gevnet.phantom.fibres import (
    CROSSING_CENTRE_MM,
    DISPERSION_CENTRE_MM,
    crossing_region,
    dispersion_region,
)

PAGE = RESULTS / "saliency.md"
TRUTH = {"DLB": ("Crossing", CROSSING_CENTRE_MM), "PD": ("Dispersion", DISPERSION_CENTRE_MM)}


def write_truth(path: Path, job: TrainJob) -> None:
    """Write an atlas of the lobes with the regions that truly differ cut out of them."""
    affine = np.array(job.affine)
    lobes = template_regions(job.shape, affine)
    labels, names = lobes.labels.astype(np.int16), list(lobes.names)
    points = grid_points(job.shape, affine)
    for name, region in (("Crossing", crossing_region), ("Dispersion", dispersion_region)):
        names.append(name)
        labels[region(points) > 0.5] = len(names)
    nib.save(nib.Nifti1Image(labels, affine), path)
    rows = "".join(f"{number}\t{name}\n" for number, name in enumerate(names, 1))
    names_file(path).write_text(f"index\tname\n{rows}", encoding="utf-8")


def true_regions(labels: tuple[str, ...]) -> dict[str, tuple[float, float, float]]:
    """Regions in which two groups differ, and where their centres are."""
    return dict(TRUTH[label] for label in labels if label in TRUTH)


def describe(facts: SaliencyFacts) -> str:
    """One row: what truly differs, what comes first, where the highest voxel is."""
    truth = true_regions(facts.labels)
    order = [row.region for row in facts.regions]
    ranks = ", ".join(str(order.index(name) + 1) for name in truth)
    first = facts.regions[0]
    peak = np.array([abs(facts.peak_mm[0]), *facts.peak_mm[1:]])
    away = min(float(np.linalg.norm(peak - np.array(centre))) for centre in truth.values())
    found = [row.region for row in facts.regions if (row.p or 1) < 0.05]
    return (
        f"| {' v. '.join(facts.labels)} | {' and '.join(truth)} | {ranks} of {len(order)} "
        f"| {first.region} (z {first.z:.1f}, p = {first.p:.3f}) | {', '.join(found) or 'none'} "
        f"| {facts.significant_voxels} of {facts.brain_voxels} | {away:.0f} mm |"
    )


def agreements(found: dict[Path, SaliencyFacts]) -> list[str]:
    """Correlations of maps, tested contributions beside plain gradients."""
    rows = []
    for facts in found.values():
        name = " v. ".join(facts.labels)
        pairs = (
            ("two folds", facts.fold_agreement, facts.sensitivity_fold_agreement),
            (
                "before and after training",
                facts.untrained_agreement,
                facts.sensitivity_untrained_agreement,
            ),
        )
        rows += [f"| {name}, {what} | {one:.2f} | {other:.2f} |" for what, one, other in pairs]
    for (one, a), (other, b) in combinations(found.items(), 2):
        cells = []
        for image in ("saliency.nii.gz", "sensitivity.nii.gz"):
            maps = [nib.load(path.with_name(image)).get_fdata() for path in (one, other)]
            both = (maps[0] != 0) & (maps[1] != 0)
            cells.append(f"{mean_correlation([m[both] for m in maps]):.2f}")
        rows.append(
            f"| {' v. '.join(a.labels)} and {' v. '.join(b.labels)} | {' | '.join(cells)} |"
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of benchmarks/learning.py")
    parser.add_argument("--network", default="ckn2+gevnet")
    parser.add_argument("--write", action="store_true", help=f"write results/{PAGE.name}")
    options = parser.parse_args()
    study = options.folder / options.network
    jobs = read_jobs(study / "work" / "group" / "jobs.json")
    atlas = options.folder / "truth.nii.gz"
    write_truth(atlas, jobs[0])
    found = {}
    for path in write_saliency_maps(jobs, atlas=atlas):
        found[path], _ = SaliencyFacts.from_json(json.loads(path.read_text(encoding="utf-8")))
    cohort = json.loads((options.folder / "cohort.json").read_text(encoding="utf-8"))
    people = ", ".join(str(facts.people) for facts in found.values())
    head = (
        "| groups | truly differ | rank of these regions | first region | regions with p < 0.05 "
        "| significant voxels | highest voxel from the nearest true centre |"
    )
    about = (
        f"Commit {current_commit()}, seed {cohort['seed']}. Phantoms, not patients: {people} "
        f"people explained, microscopic effect {cohort['micro_effect']:g} times its standard "
        f"size, {cohort['resolution_mm']:g} mm, {options.network}."
    )
    commands, _, purpose = (__doc__ or "").split("\n\n", 1)[1].partition("\n\n")
    text = "\n".join(
        [
            "# Saliency of phantoms with known regions",
            "",
            commands,
            "",
            about,
            "",
            purpose.strip(),
            "",
            head,
            "|---|---|---|---|---|---|---|",
            *(describe(facts) for facts in found.values()),
            "",
            "| correlation over voxels of the maps of | tested contributions | plain gradients |",
            "|---|---|---|",
            *agreements(found),
            "",
        ]
    )
    print(text)
    if options.write:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
