"""Write the methods text of the group level: what ran, or what would run.

Facts come from model cards, metrics and tables on disk; before a first run they come from the
settings. What is not known leaves its sentence out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bids_gevnet.dwi.shells import name_shells
from bids_gevnet.facts import ScanFacts
from bids_gevnet.learn.cohort.number_checks import choose_kind
from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.saliency_maps import MAX_SCANS
from bids_gevnet.learn.evaluate.significance import PERMUTATIONS
from bids_gevnet.learn.models.files import read_card
from bids_gevnet.nn.registry import ALL, scan_networks
from bids_gevnet.report.group.results import as_list, as_map
from bids_gevnet.report.group.study_files import StudyFiles
from bids_gevnet.report.methods_text import Methods, describe_methods, with_references
from bids_gevnet.report.networks import has_kernel_network, network_sentence
from bids_gevnet.settings import PAPER_TRAINING, Settings
from bids_gevnet.versions import __version__


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """What the sentences depend on; None or empty where it is not known."""

    participants: int | None = None
    scans: int | None = None
    sites: int | None = None
    labels: tuple[str, ...] = ()
    target: str = ""
    tasks: int | None = None
    folds: int | None = None
    networks: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    harmonised: bool | None = None
    reference_site: str | None = None
    covariates: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    leave_site_out: bool = False
    adapted: bool = False
    intervals: frozenset[str] = frozenset()
    resamples: int | None = None
    permutations: int | None = None
    saliency: bool = False
    b_values: tuple[float, ...] = ()
    external: Mapping[str, Any] = field(default_factory=dict)
    number: bool = False
    unit: str = ""
    guessed: bool = False


def facts_of_run(study: StudyFiles) -> GroupFacts:
    """Gather the facts of a run from what it left."""
    metrics = study.metrics
    models = study.models
    cards = [model.card for model in models]
    training = [as_map(entry) for entry in as_list(metrics.get("training"))]
    final = next((m for m in models if m.fold is None and m.gains is not None), None)
    schemes = [
        scheme
        for task in map(as_map, as_list(metrics.get("tasks")))
        for model in map(as_map, as_list(task.get("models")))
        for scheme in as_map(model.get("schemes"))
    ]
    references = {str(e["reference_site"]) for e in training if e.get("reference_site")}
    return GroupFacts(
        participants=len({scan.participant for scan in study.scans}) or None,
        scans=len(study.scans) or None,
        sites=len(study.sites) or None,
        labels=study.labels,
        target=study.target,
        tasks=len({model.task for model in models}) or None,
        folds=max((model.fold or 0 for model in models), default=0) or None,
        networks=tuple(dict.fromkeys(model.network for model in models)),
        options=as_map(cards[0].get("options")) if cards else {},
        harmonised=any(card.get("harmonised") is True for card in cards) if cards else None,
        reference_site=next(iter(references)) if len(references) == 1 else None,
        covariates=final.gains.columns if final and final.gains else (),
        baselines=tuple(
            str(entry.get("title", "")) for entry in map(as_map, as_list(metrics.get("baselines")))
        ),
        leave_site_out="leave-site-out" in schemes,
        adapted="leave-site-out-adapted" in schemes,
        intervals=frozenset(_interval_methods(metrics.get("tasks"))),
        resamples=_count(metrics.get("resamples")),
        permutations=_count(metrics.get("permutations")),
        saliency=any((m.folder.parent / "saliency.json").is_file() for m in models),
        b_values=tuple(b for b in as_list(cards[0].get("b_values")) if isinstance(b, float))
        if cards
        else (),
        external=study.external,
        number=study.is_regression,
        unit=str(metrics.get("unit") or ""),
        guessed=bool(as_list(metrics.get("remarks"))),
    )


def planned_facts(
    settings: Settings, *, labels: Sequence[str], target: str, unit: str = ""
) -> GroupFacts:
    """Gather the facts of a run that has not been made yet.

    Parameters
    ----------
    settings : Settings
    labels : sequence of str
        Class or number of every participant.
    target : str
        Column they come from.
    unit : str
        Of a number, if it is known.
    """
    from bids_gevnet.learn.evaluate.baselines import BASELINES
    from bids_gevnet.learn.train.jobs import TrainOptions

    learning = settings.learning
    classes = tuple(sorted(set(labels)))
    if learning.model is not None:
        return _planned_validation(learning.model, labels, target)
    options = asdict(TrainOptions.from_settings(learning, settings.execution))
    people = {str(number): label for number, label in enumerate(labels)}
    kind, guess = choose_kind(learning.task, target, people)
    of_person = {"age_sex", "age", "sex"} - {"sex" if target == "age" else "age_sex"}
    return GroupFacts(
        participants=len(labels) or None,
        scans=len(labels) or None,
        labels=classes,
        target=target,
        folds=learning.folds,
        networks=scan_networks() if learning.network == ALL else (learning.network,),
        options=options,
        harmonised=learning.harmonisation == "rish",
        reference_site=learning.reference_site,
        covariates=learning.covariates,
        baselines=tuple(
            baseline.title
            for name, baseline in BASELINES.items()
            if not baseline.needs_several and name not in of_person
        ),
        leave_site_out=learning.leave_site_out is True,
        adapted=learning.adapt and learning.leave_site_out is True,
        intervals=_planned_intervals(number=kind == REGRESSION),
        saliency=True,
        number=kind == REGRESSION,
        unit=unit,
        guessed=bool(guess),
    )


def _planned_intervals(*, number: bool) -> frozenset[str]:
    of_numbers = {"fisher", "bootstrap", "bootstrap_paired"}
    return frozenset(of_numbers if number else set(_INTERVALS) - of_numbers | {"bootstrap"})


def _planned_validation(model: Path, labels: Sequence[str], target: str) -> GroupFacts:
    """Gather the facts of a finished model that is going to be validated."""
    card = read_card(model)
    known = [label for label in labels if card.is_regression or label in card.labels]
    return GroupFacts(
        participants=len(known) or None,
        scans=len(known) or None,
        labels=tuple(sorted(set(known))),
        target=target,
        intervals=_planned_intervals(number=card.is_regression),
        number=card.is_regression,
        unit=card.unit,
        external={
            "network": card.network,
            "training_participants": len(card.participants),
            "trained_on": card.dataset,
        },
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _interval_methods(node: Any) -> Iterable[str]:
    """Names of all interval methods that occur anywhere below."""
    if isinstance(node, Mapping):
        method = node.get("method")
        if isinstance(method, str):
            yield method
        for value in node.values():
            yield from _interval_methods(value)
    elif isinstance(node, list) and node and isinstance(node[0], Mapping):
        for value in node:
            yield from _interval_methods(value)


def describe_group(facts: GroupFacts, scans: Sequence[ScanFacts] = ()) -> Methods:
    """Choose the sentences, after those of the participant level.

    Parameters
    ----------
    facts : GroupFacts
    scans : sequence of ScanFacts
    """
    first = describe_methods(scans).paragraphs if scans else ()
    parts = (
        ("Cohort and folds", _cohort),
        ("Harmonisation", _harmonisation),
        ("Network and training", _training),
        ("Evaluation", _evaluation),
        ("Explanation", _explanation),
    )
    second = tuple((heading, text) for heading, write in parts if (text := " ".join(write(facts))))
    return with_references((*first, *second))


def _cohort(facts: GroupFacts) -> Iterable[str]:
    if facts.participants and facts.labels:
        many = f" ({facts.scans} scans)" if facts.scans != facts.participants else ""
        sites = f" from {facts.sites} site{'s' if facts.sites != 1 else ''}" if facts.sites else ""
        yield (
            _number_cohort(facts, f"{facts.participants} participants{many}{sites}")
            if facts.number
            else f"{facts.participants} participants{many}{sites} were classified by "
            f"{facts.target} ({', '.join(facts.labels)}) with bids_gevnet {__version__}."
        )
    if facts.folds and facts.number:
        yield (
            f"Predictions were tested by {facts.folds}-fold cross-validation, stratified by "
            f"quantiles of {facts.target} and, where every quantile had enough participants at "
            "every site, by site; all scans of a participant were in the same fold. "
            f"Harmonisation, normalisation, the standardisation of {facts.target} and everything "
            "else that is fitted was fitted to the training participants of each fold only."
        )
    elif facts.folds:
        yield (
            f"Every classification was tested by {facts.folds}-fold cross-validation, stratified "
            "by class and, where every class had enough participants at every site, by site; all "
            "scans of a participant were in the same fold. Harmonisation, normalisation and "
            "everything else that is fitted was fitted to the training participants of each fold "
            "only."
        )
    if facts.external:
        yield (
            f"A finished model ({facts.external.get('network')}, trained on "
            f"{facts.external.get('training_participants')} participants of "
            f"{facts.external.get('trained_on') or 'another dataset'}) was applied as it is: "
            f"nothing was fitted to {'the labels of ' * bool(facts.external.get('adapted'))}these "
            "participants, and whoever was in its training data was left out."
        )
        yield from _external_harmonisation(facts.external)
    if facts.leave_site_out:
        yield "In addition, models were trained without a site and tested on it."
    if facts.adapted:
        yield f"They were tested once more with the site adapted to: {_ADAPTED}"


_ADAPTED = (
    "its gains were estimated from its unlabelled scans, as the difference of their mean "
    "logarithmic RISH features, given covariates, from those of the harmonised training scans, "
    "shrunk by its standard error. Where the mix of diagnoses differs from the training data's, "
    "this removes a part of the difference between diagnoses as well."
)


def _number_cohort(facts: GroupFacts, people: str) -> str:
    unit = f" ({facts.unit})" if facts.unit else ""
    why = ""
    if facts.guessed:
        why = ", which was taken for a number because it has many different values"
    return (
        f"The number {facts.target}{unit} of {people} was predicted from their scans "
        f"(regression{why}) with bids_gevnet {__version__}."
    )


def _external_harmonisation(model: Mapping[str, Any]) -> Iterable[str]:
    adapted = [as_map(entry) for entry in as_list(model.get("adapted"))]
    for entry in adapted:
        yield (
            f"Site {entry.get('site')}, unknown to the model, was adapted to with "
            f"{entry.get('people')} people: {_ADAPTED}"
        )
    if model.get("harmonised") is True:
        own = {str(entry.get("site")) for entry in adapted}
        names = [str(site) for site in as_list(model.get("harmonised_sites"))]
        if own and own >= set(names):
            return
        sites = ", ".join(name for name in names if name not in own)
        yield (
            f"Scans of {sites} were harmonised with the gains of the model; others were taken as "
            "they are."
            if sites
            else "The model's harmonisation knows none of the sites: scans were taken as they are."
        )


def _harmonisation(facts: GroupFacts) -> Iterable[str]:
    if facts.harmonised is None:
        return
    if not facts.harmonised:
        yield "Sites were not harmonised."
        return
    covariates = f", accounting for {', '.join(facts.covariates)}" if facts.covariates else ""
    aim = f"the site {facts.reference_site}" if facts.reference_site else "their mean [@midrish]"
    yield (
        "Sites were harmonised by scaling rotation invariant spherical harmonics [@rish] of the "
        "samples in template space, with gains from a linear model of their logarithm in every "
        f"voxel [@rishglm]{covariates}; sites were brought to {aim}. Gains were shrunk towards 1 "
        "by their uncertainty and left at 1 for sites with too few training participants."
    )


def _shells(facts: GroupFacts) -> Iterable[str]:
    if len(facts.b_values) > 1:
        apart = ", each harmonised with gains of its own" if facts.harmonised else ""
        kernel = [name for name in facts.networks if has_kernel_network(name)]
        white = "; kernel networks saw them decorrelated over training volumes" if kernel else ""
        yield (
            f"The shells ({name_shells(facts.b_values)}) were channels of the network's "
            f"input{apart}{white}."
        )


def _training(facts: GroupFacts) -> Iterable[str]:
    known = [name for name in facts.networks if network_sentence(name)]
    if len(known) == 1:
        yield network_sentence(known[0])
    elif known:
        yield f"{len(known)} networks were compared: {', '.join(known)}."
        yield from (network_sentence(name).replace("The network", name, 1) for name in known)
    yield from _shells(facts)
    options = facts.options
    if known and {"epochs", "samples_per_class"} <= set(options):
        subject = "It was" if len(known) == 1 else "Each was"
        yield (
            f"{subject} trained with PyTorch [@torch] for {options['epochs']} epochs of "
            + (
                f"{2 * options['samples_per_class']} samples, filled up by mixup [@mixup] of "
                f"scans and their {facts.target}, where scans with near values were mixed more "
                "often [@cmixup]."
                if facts.number
                else f"{options['samples_per_class']} samples per class, filled up by mixup "
                "[@mixup] of scans of the same class."
            )
        )
        yield from _part_of_brain(options)
    if known and {"learning_rate", "final_rate", "weight_decay", "batch_size"} <= set(options):
        rate, last = options["learning_rate"], options["final_rate"]
        if isinstance(rate, int | float) and isinstance(last, int | float):
            yield (
                f"{_loss(facts)} was minimised with Adam [@adam], batches of "
                f"{options['batch_size']}, a learning rate falling exponentially from {rate:g} to "
                f"{rate * last:g} and a weight decay of {options['weight_decay']:g}; random seed "
                f"{options.get('seed', 'unknown')}."
            )
        yield from _protocol(options)
    if known and isinstance(options.get("init_model"), str):
        yield (
            "Training started from the weights of a trained model (SHA-256 "
            f"{options['init_model'][:12]}); nobody it was trained on is in this study, and its "
            "last layers were kept where classes or target are the same."
        )
    if known and not facts.number:
        yield (
            "Scores of a fold were turned into probabilities with a temperature [@temperature] "
            "fitted to the held-out scores of the other folds."
        )


def _loss(facts: GroupFacts) -> str:
    if not facts.number:
        return "Cross entropy"
    return (
        f"The mean squared error of {facts.target}, standardised by the training scans of the "
        "fold,"
    )


def _part_of_brain(options: Mapping[str, Any]) -> Iterable[str]:
    """Say how much of each brain a training step saw, if not all of it."""
    part = options.get("voxels_per_step")
    if isinstance(part, int | float) and part != 1:
        size = f"{100 * part:g} %" if part < 1 else f"{part:g} voxels"
        yield (
            f"Each training sample showed about {size} of the brain, in blocks drawn anew for "
            "every sample that took all regions in turn, with the margin the network's filters "
            "need (brains of few voxels were cut into fewer blocks, or shown whole); statistics "
            "of the normalisations [@renorm] and mean features were estimated for the whole "
            "brain, and every prediction was made from whole scans."
        )


def _protocol(options: Mapping[str, Any]) -> Iterable[str]:
    """Say how the training differs from the paper's, and why."""
    paper = {name: PAPER_TRAINING[name] for name in ("epochs", "learning_rate")}
    if all(options.get(name) == value for name, value in paper.items()):
        yield (
            "Epochs and learning rate are those of the GEVNet paper [@gevnet], which gives "
            "neither the batch size nor how fast the rate decays."
        )
    else:
        yield (
            f"The GEVNet paper [@gevnet] has {paper['epochs']} epochs and a learning rate of "
            f"{paper['learning_rate']:g}; at that rate Adam moves a weight by less than a "
            "hundredth in the whole training, which is too little for a study of this size."
        )


_INTERVALS = {
    "wilson": "Wilson's [@wilson] for proportions",
    "mover": "recovered from those of the recalls [@mover] for balanced accuracy",
    "mover_paired": "the paired version [@paired] for differences between models",
    "newcombe": "Newcombe's [@newcombe] for areas under the ROC curve",
    "boyd": "a binomial one [@boyd] for average precision",
    "fisher": "Fisher's [@fisher] for correlations",
    "bootstrap_paired": "a paired bootstrap over participants for differences between models",
    "bootstrap": "a percentile bootstrap over participants for all others",
}


def _evaluation(facts: GroupFacts) -> Iterable[str]:
    used = [text for name, text in _INTERVALS.items() if name in facts.intervals]
    several = (facts.tasks or 1) > 1
    if used:
        yield (
            "Measures of held-out predictions were computed with scikit-learn [@sklearn]. "
            f"Intervals are at 95 %, with participants as the unit: {'; '.join(used)}."
        )
    if facts.permutations:
        yield (
            f"Whether predictions and {facts.target if facts.number else 'labels'} go together "
            + ("(their correlation) " if facts.number else "")
            + "within sites was tested by exchanging "
            f"labels among the participants of a site {facts.permutations} times "
            "[@permutation,neverzero]"
            + (
                "."
                if facts.external
                else ", with distances from chance divided by the root of two, because "
                "cross-validation counts every pair of participants twice."
            )
        )
    if facts.permutations and not facts.external:
        yield (
            "The p-value of the best model allows for the number of models by the maximum over "
            "all of them in every permutation [@maxt]"
            + (" and for the number of classifications after Holm [@holm]" if several else "")
            + "; what it would reach in other participants was estimated by choosing it on "
            "bootstrap samples and testing it on those not drawn [@bbc]. Two models were compared "
            "by swapping them for participants at random."
        )
    if facts.baselines:
        yield (
            f"On the same folds, {'ridge' if facts.number else 'logistic'} regressions show what "
            "is reached without the network: "
            f"{', '.join(name[:1].lower() + name[1:] for name in facts.baselines)}."
        )
    if any(name.startswith("Voxelwise") for name in facts.baselines):
        yield (
            f"Voxelwise models are {'linear' if facts.number else 'logistic'} regressions with a "
            "quadratic penalty on FA, MD (of a "
            "tensor fitted to the spherical samples) and RISH maps, fitted in their dual form; a "
            "participant's scans were averaged, voxels standardised and the penalty chosen by "
            "cross-validation within the training participants of a fold."
        )
    if any("ComBat" in name for name in facts.baselines):
        yield (
            "ComBat [@combat,combatdti] was fitted to the training participants of a fold, with "
            f"{facts.target if facts.number else 'diagnosis'} and covariates in its model, and "
            "applied to everybody by site alone; people of a site without training participants "
            "were left as they are."
        )
    if facts.sites and facts.sites > 1 and facts.number:
        yield f"The association of site and {facts.target} is given as their correlation ratio."
    elif facts.sites and facts.sites > 1 and len(facts.labels) > 1:
        yield (
            "The association of site and diagnosis is given as bias-corrected Cramér's V "
            "[@cramer]."
        )


def _explanation(facts: GroupFacts) -> Iterable[str]:
    if facts.saliency:
        yield (
            "What predictions rest on was mapped by integrated gradients [@integrated] of the "
            f"scores of at most {MAX_SCANS} held-out scans a task, by the network trained without "
            "them and against the mean training scan. The contributions of voxels, of regions and "
            "of directions by their angle to the local fibre were tested by exchanging labels "
            f"among held-out people within fold and site ({PERMUTATIONS} times), with the largest "
            "statistic correcting for their number [@maxt] and distances from chance divided "
            "by the root of two, as above; only what is significant at 5 % is drawn, with Nilearn "
            "[@nilearn]. Maps were compared with those of untrained networks [@sanity]."
        )
