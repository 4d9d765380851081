"""Describe in words how a run was cleaned: for the table, the alerts and the methods text."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from bids_gevnet.facts import CleaningFacts, DenoisingMethod, ScanFacts

TITLES: Mapping[DenoisingMethod, str] = {
    "mppca": "MP-PCA (DIPY)",
    "patch2self": "Patch2Self (DIPY)",
    "none": "none",
}

_SENTENCES: Mapping[DenoisingMethod, str] = {
    "mppca": "Noise was removed by Marchenko-Pastur principal component analysis of local patches "
    "[@mppca] with DIPY [@dipy]{share}, before anything was interpolated.",
    "patch2self": "Noise was removed by Patch2Self [@patchtoself], with every volume predicted by "
    "ordinary least squares from the others, with DIPY [@dipy]{share}, before anything was "
    "interpolated.",
}


def describe_denoising(run: CleaningFacts) -> str:
    """Say in a phrase how a run was denoised, and why not; empty where it is not known."""
    if run.denoising is None:
        return ""
    reason = f": {run.denoising_reason}" if run.denoising_reason else ""
    return f"{TITLES[run.denoising]}{reason}"


def describe_unringing(run: CleaningFacts) -> str:
    """Say in a phrase whether Gibbs ringing was removed; empty where it is not known."""
    if run.unringing is None:
        return ""
    reason = f": {run.unringing_reason}" if run.unringing_reason else ""
    done = "removed by subvoxel shifts (DIPY)" if run.unringing else f"not removed{reason}"
    partial = run.partial_fourier
    if run.unringing and partial is not None and partial < 1:
        return f"{done}; {partial:.0%} of k-space was acquired, and some ringing stays"
    return done


def cleaning_sentences(
    scans: Sequence[ScanFacts], share: Callable[[int, int, str], str]
) -> Iterable[str]:
    """Write the sentences of the methods text: what was done, and why something was not.

    Parameters
    ----------
    scans : sequence of ScanFacts
    share : callable
        Says how many of all there are of something, where it is not all.
    """
    runs = [run for scan in scans for run in scan.cleaning]

    def of_runs(count: int) -> str:
        return share(count, len(runs), "runs")

    def of_scans(count: int) -> str:
        return share(count, len(scans), "scans")

    methods = Counter(run.denoising for run in runs)
    for method, sentence in _SENTENCES.items():
        if methods[method]:
            yield sentence.format(share=of_runs(methods[method]))
    left = [run.denoising_reason for run in runs if run.denoising == "none"]
    yield from _left_out("Noise was not removed", left, of_runs)
    if count := sum(run.unringing is True for run in runs):
        yield (
            "Gibbs ringing was removed by local subvoxel shifts [@unring] with DIPY [@dipy]"
            f"{of_runs(count)}."
        )
    left = [run.unringing_reason for run in runs if run.unringing is False]
    yield from _left_out("Gibbs ringing was not removed", left, of_runs)
    if count := sum(scan.bias.corrected is True for scan in scans):
        yield (
            "The bias field was estimated from the mean corrected b0 with N4 [@nfour] of ANTs "
            f"[@antsx], and all volumes were divided by it{of_scans(count)}."
        )
    left = [scan.bias.reason for scan in scans if scan.bias.corrected is False]
    yield from _left_out("The bias field was not corrected", left, of_scans)


def _left_out(sentence: str, reasons: Sequence[str], share: Callable[[int], str]) -> Iterable[str]:
    """Say what was left out, once for each reason; an option that asked for it is none."""
    for reason, count in Counter(reasons).items():
        why = f": {reason}" if reason and not reason.startswith("--") else ""
        yield f"{sentence}{share(count)}{why}."
