"""The answer of a study in a sentence: what can be told, by what, and what the network adds.

Confounds come first where they win: what site, motion, or age and sex alone tell says
nothing about the brain. Every claim rests on a test that allows for how many models and tasks
were looked at (`contest`); where nothing can be claimed, the sentence says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.learn.evaluate.baselines import BASELINES
from bids_gevnet.learn.evaluate.contest import (
    Contender,
    expected_of_best,
    network_against_simple,
    strongest,
    tested_together,
)
from bids_gevnet.learn.evaluate.intervals import NOTHING
from bids_gevnet.learn.evaluate.number_scores import HeldOutNumbers
from bids_gevnet.learn.evaluate.permutation import holm, p_text
from bids_gevnet.learn.evaluate.wording import Wording, of_groups, of_number, with_unit
from bids_gevnet.learn.evaluate.yardsticks import OF_CLASSES, Yardstick, compare, yardstick_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bids_gevnet.learn.evaluate.curves import HeldOut
    from bids_gevnet.learn.evaluate.intervals import Value


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The models of one task, tested.

    Parameters
    ----------
    task : str
    labels : tuple of str
        The classes, or the column whose number is predicted.
    networks, simple, confounds : lists of Contender
    reason : str or None
        Why models of the scans could not be tested within sites.
    expected : Value
        Balanced accuracy, or mean absolute error, to expect of the best model of the scans in
        other people.
    against : str
        "adds", "worse" or "neither": the best network beside the simple models.
    averages_worse : bool
        Whether the best model does better than every model of averages over directions.
    tasks : int
        How many tasks p-values are corrected for.
    elsewhere : dict of str to Value
        Figure of each model at sites left out of training.
    unit : str
        Of a number, if it is known.
    yardstick : Yardstick
        How predictions are judged.
    """

    task: str
    labels: tuple[str, ...]
    networks: list[Contender]
    simple: list[Contender]
    confounds: list[Contender]
    reason: str | None
    expected: Value
    against: str
    averages_worse: bool
    tasks: int
    elsewhere: dict[str, Value]
    unit: str = ""
    yardstick: Yardstick = OF_CLASSES

    @property
    def of_scans(self) -> list[Contender]:
        """Models that see the scans."""
        return [*self.networks, *self.simple]

    @property
    def chance(self) -> float:
        """Figure of guessing."""
        return self.yardstick.chance(self.labels)

    @property
    def is_regression(self) -> bool:
        """Whether a number is predicted."""
        return self.yardstick.kind == REGRESSION

    @property
    def words(self) -> Wording:
        """How to speak of what is predicted."""
        return of_number(self.labels[0]) if self.is_regression else of_groups(self.labels)

    @property
    def best(self) -> Contender | None:
        """The strongest model of the scans."""
        return strongest(self.of_scans)

    @property
    def network(self) -> Contender | None:
        """The strongest network."""
        return strongest(self.networks)

    @property
    def averages(self) -> list[Contender]:
        """Models of averages over directions, to which a crossing of fibres is invisible."""
        return _averages(self.simple)

    @property
    def confound(self) -> Contender | None:
        """The strongest confound that is better than chance."""
        return strongest([c for c in self.confounds if c.above(self.chance)])


def run_contest(
    task: str,
    contenders: Sequence[Contender],
    *,
    elsewhere: dict[str, Value],
    resamples: int,
    permutations: int,
    seed: int,
    unit: str = "",
) -> Contest:
    """Test the models of a task on its folds.

    Parameters
    ----------
    task : str
    contenders : sequence of Contender
        On the same scans.
    elsewhere : dict of str to Value
    resamples, permutations, seed : int
    unit : str
        Of a number that is predicted.
    """
    options: dict[str, Any] = {"count": permutations, "seed": seed}
    of_scans, reason = tested_together(
        [c for c in contenders if c.kind != "confound"], confounds=False, **options
    )
    confounds, _ = tested_together(
        [c for c in contenders if c.kind == "confound"], confounds=True, **options
    )
    networks = [c for c in of_scans if c.kind == "network"]
    simple = [c for c in of_scans if c.kind == "simple"]
    network = strongest(networks)
    against = "neither"
    if network is not None:
        against = network_against_simple(network, simple, networks=len(networks), **options)
    averages_worse = _beats_averages(strongest(of_scans), networks, simple, **options)
    return Contest(
        task=task,
        labels=contenders[0].held_out.labels if contenders else (),
        networks=networks,
        simple=simple,
        confounds=confounds,
        reason=reason,
        expected=expected_of_best(of_scans, count=resamples, seed=seed) if of_scans else NOTHING,
        against=against,
        averages_worse=averages_worse,
        tasks=1,
        elsewhere=elsewhere,
        unit=unit,
        yardstick=yardstick_of(contenders[0].held_out) if contenders else OF_CLASSES,
    )


def _averages(simple: Sequence[Contender]) -> list[Contender]:
    return [c for c in simple if c.model in BASELINES and BASELINES[c.model].maps == "md"]


def _beats_averages(
    best: Contender | None,
    networks: Sequence[Contender],
    simple: Sequence[Contender],
    **options: Any,
) -> bool:
    """Whether the best model is better than all averages over directions.

    The sentence may be said of a network or of a simple model: each kind has half of the 5 %, and
    shares it among the models that the best was chosen from.
    """
    averages = _averages(simple)
    if best is None or not averages:
        return False
    sizes = {"network": len(networks), "simple": len(simple) - len(averages)}
    kinds = sum(size > 0 for size in sizes.values())
    rivals = max(1, kinds * sizes[best.kind])
    return network_against_simple(best, averages, networks=rivals, **options) == "adds"


def correct_for_tasks(contests: Sequence[Contest]) -> list[Contest]:
    """Correct the p-values of all tasks for their number, after Holm by the best of each task."""
    raw = {
        i: contest.best.p
        for i, contest in enumerate(contests)
        if contest.best is not None and contest.best.p is not None
    }
    after = list(contests)
    for i, p in zip(raw, holm(list(raw.values())), strict=True):
        factor = p / raw[i]
        after[i] = replace(
            contests[i],
            networks=[_times(c, factor) for c in contests[i].networks],
            simple=[_times(c, factor) for c in contests[i].simple],
            tasks=len(raw),
        )
    return after


def _times(contender: Contender, factor: float) -> Contender:
    return replace(contender, p=None if contender.p is None else min(1.0, factor * contender.p))


def headline(contest: Contest) -> dict[str, Any]:
    """Say what a task found: level, sentence, a line of numbers, and what they rest on.

    Returns
    -------
    headline : dict
        ``level`` ("good", "warning" or "note"), ``sentence``, ``numbers`` and, for programs,
        ``told_apart``, ``best``, ``confound``, ``network``, ``network_adds``, ``difference``.
    """
    best, confound, network = contest.best, contest.confound, contest.network
    level, sentence = _sentence(contest)
    rival = strongest(contest.simple)
    gap = NOTHING
    if network is not None and rival is not None:
        gap = compare(network.held_out, rival.held_out)
    return {
        "level": level,
        "sentence": sentence,
        "numbers": _numbers(contest, rival, gap),
        "told_apart": level == "good" or (best is not None and best.above(contest.chance)),
        "best": None if best is None else best.model,
        "best_p": None if best is None else best.p,
        "expected": contest.expected,
        "confound": None if confound is None else confound.model,
        "network": None if network is None else network.model,
        "network_adds": contest.against,
        "simple": None if rival is None else rival.model,
        "difference": gap,
        "models_compared": len(contest.of_scans),
        "tasks": contest.tasks,
    }


def _sentence(contest: Contest) -> tuple[str, str]:
    """Give level and sentence."""
    words = contest.words
    best, confound = contest.best, contest.confound
    if best is None or best.value["value"] is None:
        return "note", words.no_results
    if contest.reason is not None and len(set(best.held_out.sites.tolist())) > 1:
        return "warning", f"Careful: {words.undecided}."
    if confound is not None:
        return "warning", _confounded(contest, best, confound)
    if not best.above(contest.chance):
        return "note", (
            f"{_first_upper(contest, words.not_told)}: no model of the scans, "
            f"{'network or simpler' if contest.networks else 'however simple'}, was "
            "distinguishable from chance."
        )
    return "good", (
        f"{_first_upper(contest, words.told)}, best by {_what(best)}{_how_far(contest, best)}"
        f"{_network_clause(contest, best)}."
    )


def _confounded(contest: Contest, best: Contender, confound: Contender) -> str:
    """Write the sentence of a study in which a confound tells the groups apart."""
    instead = BASELINES[confound.model].lesson
    verb = "tell" if " and " in instead else "tells"
    start = f"Careful: {instead} alone {verb} {contest.words.confound}"
    if not best.above(contest.chance):
        return f"{start}; no difference in the scans was found beyond that."
    if confound.model == "site":
        how = "within sites the scans still do"  # labels are exchanged within sites
    elif (compare(best.held_out, confound.held_out)["low"] or 0.0) > 0:
        how = "the scans do better"
    else:
        return (
            f"{start}, and the scans are not clearly better at it: the result may be about "
            f"{instead} and not about {contest.words.instead}."
        )
    return (
        f"{start}; {how}, best by {_what(best)}{_how_far(contest, best)}"
        f"{_network_clause(contest, best)}."
    )


def _first_upper(contest: Contest, text: str) -> str:
    """Begin a sentence; the names of groups stay as they are."""
    return text[:1].upper() + text[1:] if contest.is_regression else text


def _how_far(contest: Contest, best: Contender) -> str:
    """Say how good the best model is, as the reader asks first."""
    if not contest.is_regression:
        return f", {contest.yardstick.name} {_say(best.value)}"
    error = best.error["value"]
    if error is None:
        return ""
    return f", off by {with_unit(f'{error:.3g}', contest.unit)} on average"


def _what(model: Contender) -> str:
    if model.kind == "network":
        return f"the network ({model.title})"
    baseline = BASELINES.get(model.model)
    if baseline is not None and baseline.maps:
        return f"a linear model of whole-brain maps ({model.title})"
    return f"a few numbers per scan ({model.title})"


def _network_clause(contest: Contest, best: Contender) -> str:
    network = contest.network
    if network is None or not contest.simple:
        return ""
    if best.kind == "network":
        if contest.against == "adds":
            return "; it does better than every simpler model"
        if contest.averages_worse:
            return f"; {_blind(contest)}, but {_rival(contest)}"
        return f"; {_rival(contest)}"
    clause = "the network was not shown to add anything"
    if contest.yardstick.constant(network.held_out) is not None:
        clause = "the network has learned nothing"
    elif contest.against == "worse":
        clause = "the network does worse"
    elif not network.above(contest.chance):
        clause = "the network alone is not distinguishable from chance"
    return f"; {clause}; {_blind(contest)}" if contest.averages_worse else f"; {clause}"


def _rival(contest: Contest) -> str:
    """Say that the network was not shown to be better than one that is simpler."""
    rival = strongest(contest.simple)
    named = "" if rival is None else f" ({rival.title})"
    return f"the best simpler model{named} may do as well"


def _blind(contest: Contest) -> str:
    return f"averages over directions ({contest.averages[0].title}) do clearly worse"


def _numbers(contest: Contest, rival: Contender | None, gap: Value) -> str:
    best = contest.best
    if best is None:
        return ""
    parts = [*_best_parts(contest, best), *_network_parts(contest, best, rival, gap)]
    confound = contest.confound or strongest(contest.confounds)
    if confound is not None and confound.value["value"] is not None:
        said = f"{confound.title}, the strongest confound: {_say(confound.value)}"
        first = contest.confound is not None  # what wins is said first
        parts.insert(0 if first else len(parts), said)
    away = contest.elsewhere.get(best.model)
    if away is not None and away["value"] is not None:
        parts.append(f"{best.title} at sites left out of training: {_say(away)}")
    return "; ".join([*parts, _counts(contest, best.held_out)]) + "."


def _best_parts(contest: Contest, best: Contender) -> Iterator[str]:
    """Say what the best model reaches, and what is to be expected of it."""
    figure = f"{contest.yardstick.name} {_say(best.value)}, chance {contest.chance:.2f}"
    tested = "" if best.p is None else f", {p_text(best.p)}{_corrected(contest)}"
    yield f"{best.title}: {figure}{tested}"
    if best.error["value"] is not None:
        yield _errors(contest, best)
    several, expected = len(contest.of_scans) > 1, contest.expected["value"]
    if best.above(contest.chance) and several and expected is not None:
        text = f"{expected:.2f}"
        if contest.is_regression:
            text = "an error of " + with_unit(f"{expected:.3g}", contest.unit)
        yield (
            f"{text} expected in other people, allowing for the choice among "
            f"{len(contest.of_scans)} models"
        )
    elif best.needed is not None and best.needed <= 1:
        yield f"about {best.needed:.2f} would have been needed with this many people"


def _network_parts(
    contest: Contest, best: Contender, rival: Contender | None, gap: Value
) -> Iterator[str]:
    """Say what the network reaches, and how it compares with the best simple model."""
    network = contest.network
    if network is None:
        return
    if network is not best:
        constant = contest.yardstick.constant(network.held_out)
        yield f"{network.title}: {_say(network.value)}" + (f", it {constant}" if constant else "")
    if rival is None or gap["value"] is None:
        return
    if contest.is_regression:
        yield (
            f"error of {rival.title} minus that of {network.title}: "
            f"{with_unit(_say(gap, sign='+'), contest.unit)}; above 0 the network is better"
        )
    else:
        yield f"{network.title} minus {rival.title}: {_say(gap, sign='+')}"


def _errors(contest: Contest, best: Contender) -> str:
    """Say how far off the best model is, and how far one number for everybody would be."""
    truth = best.held_out.truth
    guess = float(np.abs(truth - np.median(truth)).mean())
    return (
        f"mean absolute error {with_unit(_say(best.error), contest.unit)}, "
        f"{guess:.2f} by one number for everybody"
    )


def _counts(contest: Contest, held_out: HeldOut | HeldOutNumbers) -> str:
    if isinstance(held_out, HeldOutNumbers):
        low, high = held_out.truth.min(), held_out.truth.max()
        span = with_unit(f"{low:g} to {high:g}", contest.unit)
        return f"{held_out.participants()} participants, {contest.labels[0]} {span}"
    return ", ".join(
        f"{held_out.participants(k)} {label}" for k, label in enumerate(contest.labels)
    )


def _corrected(contest: Contest) -> str:
    models = len(contest.of_scans)
    over = [f"{models} models"] if models > 1 else []
    over += [f"{contest.tasks} comparisons"] if contest.tasks > 1 else []
    return f" (corrected for {' and '.join(over)})" if over else ""


def _say(value: Value, sign: str = "") -> str:
    if value["value"] is None:
        return "n/a"
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:{sign}.2f}"
    return f"{value['value']:{sign}.2f} ({value['low']:{sign}.2f} to {value['high']:{sign}.2f})"
