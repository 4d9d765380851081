"""Write the methods text: what ran, in sentences a paper can use, with citations.

Every sentence depends on a fact of the scans; what did not run is not described, and a fact that
is missing leaves its sentence out. Scans that differ are described together, each way with the
number of runs that took it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.dwi.phase_encoding import LEAST_SHARE_EXPLAINED
from bids_gevnet.facts import CorrectionFacts, ScanFacts, ShellFacts, SphereFacts
from bids_gevnet.report.cleaning_methods import cleaning_sentences
from bids_gevnet.report.correction_methods import FIELD_FROM_T1W, METHODS
from bids_gevnet.report.networks import network_sentence
from bids_gevnet.report.references import REFERENCES, Reference
from bids_gevnet.versions import __version__

PIPELINES = {"qsiprep": "qsiprep", "hcp": "hcp", "ukb": "ukb", "fsl_eddy": "fsl,eddy"}
"""What to cite for a pipeline that preprocessed scans."""

_CITE = re.compile(r"\[@([a-z,]+)\]")


@dataclass(frozen=True, slots=True)
class Methods:
    """A methods text.

    Attributes
    ----------
    paragraphs : tuple of (str, str)
        Heading and text; a citation is `[@key]` or `[@key,key]`.
    references : mapping of str to Reference
        What is cited, in the order in which it is.
    """

    paragraphs: tuple[tuple[str, str], ...]
    references: Mapping[str, Reference]

    def number(self, text: str) -> str:
        """Replace citation keys by the numbers of the list."""
        order = list(self.references)

        def numbers(match: re.Match[str]) -> str:
            cited = sorted(order.index(key) + 1 for key in match.group(1).split(","))
            return "[" + ", ".join(map(str, cited)) + "]"

        return _CITE.sub(numbers, text)


def methods_text(scans: Sequence[ScanFacts]) -> str:
    """Write the methods of some scans as Markdown; any fact may be missing."""
    return to_markdown(describe_methods(scans))


def to_markdown(methods: Methods) -> str:
    """Write a methods text as Markdown, with numbered references."""
    lines = ["# Methods", ""]
    for heading, text in methods.paragraphs:
        lines += [f"## {heading}", "", methods.number(text), ""]
    lines += ["## References", ""]
    for number, reference in enumerate(methods.references.values(), start=1):
        lines.append(f"{number}. {reference.text} <{reference.url}>")
    return "\n".join(lines) + "\n"


def describe_methods(scans: Sequence[ScanFacts]) -> Methods:
    """Choose the sentences and citations for what ran."""
    parts: tuple[tuple[str, Callable[[Sequence[ScanFacts]], Iterable[str]]], ...] = (
        ("Overview", _overview),
        ("Cleaning", lambda scans: cleaning_sentences(scans, _share)),
        ("Motion and distortions", _correction),
        ("Brain mask and template", _space),
        ("Sampling on the sphere", _sphere),
        ("Diffusion tensor", _tensor),
        ("Quality measures", _quality),
        ("Prediction", _prediction),
    )
    paragraphs = tuple(
        (heading, text) for heading, write in parts if (text := " ".join(write(scans)))
    )
    return with_references(paragraphs)


def with_references(paragraphs: tuple[tuple[str, str], ...]) -> Methods:
    """Add the list of what is cited, in the order in which it is."""
    keys = [
        key
        for _, text in paragraphs
        for match in _CITE.finditer(text)
        for key in match.group(1).split(",")
    ]
    return Methods(paragraphs, {key: REFERENCES[key] for key in dict.fromkeys(keys)})


def _share(count: int, total: int, noun: str = "runs") -> str:
    """Say how many, where it is not all."""
    return "" if count == total else f" ({count} of {total} {noun})"


def _overview(scans: Sequence[ScanFacts]) -> Iterable[str]:
    yield (
        f"Diffusion MRI organised as BIDS [@bids] was processed with bids_gevnet {__version__}, "
        "a BIDS App [@bidsapps] built on Nipype [@nipype], which prepares scans for gauge "
        "equivariant Volterra networks [@gevnet]."
    )
    yield from _sources(scans)
    if count := sum(bool(scan.join.left_out) for scan in scans):
        yield (
            "Runs whose b0s or main directions disagree were kept apart, and only those with a "
            "gradient table that fits the white matter were used"
            f"{_share(count, len(scans), 'scans')}."
        )
    joined = [scan for scan in scans if scan.join.joined]
    by_eddy = [scan for scan in joined if any(run.method == "eddy" for run in scan.correction)]
    if by_eddy:
        yield (
            "Runs of one session on the same grid and with the same shells were scaled to the "
            "same mean b0 and corrected together"
            f"{_share(len(by_eddy), len(joined), 'scans with several runs')}."
        )
    if len(joined) > len(by_eddy):
        yield (
            "Runs of one session on the same grid and with the same shells were corrected "
            "separately, aligned rigidly to the first by their mean b0 and joined"
            f"{_share(len(joined) - len(by_eddy), len(joined), 'scans with several runs')}."
        )


def _sources(scans: Sequence[ScanFacts]) -> Iterable[str]:
    """Say which pipelines had preprocessed the scans, and what was taken from each."""
    named: Counter[tuple[str, str]] = Counter()
    taken: dict[tuple[str, str], dict[str, None]] = {}
    for source in (scan.source for scan in scans if scan.source.pipeline):
        key = (source.pipeline, str(source))
        named[key] += 1
        taken.setdefault(key, {}).update(dict.fromkeys(source.taken))
    for (pipeline, title), count in named.items():
        citation = f" [@{PIPELINES[pipeline]}]" if pipeline in PIPELINES else ""
        phrases = list(taken[pipeline, title]) or ["the corrected series"]
        listed = " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))
        yield (
            f"Scans had been preprocessed by {title}{citation}"
            f"{_share(count, len(scans), 'scans')}, from which were taken: {listed}."
        )


def _correction(scans: Sequence[ScanFacts]) -> Iterable[str]:
    runs = [run for scan in scans for run in scan.correction if run.method is not None]
    for method, words in METHODS.items():
        chosen = [run for run in runs if run.method == method]
        reduced = sum(bool(words.without_eddy) and run.eddy_currents is False for run in chosen)
        corrected = [run for run in chosen if run.susceptibility == "corrected"]
        from_t1w = sum(run.field_from_t1w is True for run in corrected)
        for sentence, count in (
            (words.sentence, len(chosen) - reduced),
            (words.without_eddy, reduced),
            (words.susceptibility, len(corrected) - from_t1w),
            (FIELD_FROM_T1W, from_t1w),
        ):
            if count:
                yield sentence.format(share=_share(count, len(runs)))
    yield from _uncorrected_susceptibility(runs)
    if any(METHODS[run.method].rotates_gradients for run in runs if run.method):
        yield (
            "Gradient directions were rotated with each volume [@rotate]. Framewise displacement "
            "was computed as by Power et al. [@power], with rotations as arcs on a sphere of "
            "50 mm radius."
        )
    yield from _fallbacks(scans)


def _uncorrected_susceptibility(runs: Sequence[CorrectionFacts]) -> Iterable[str]:
    """Say where a method that can correct susceptibility did not."""
    able = [run for run in runs if run.method and METHODS[run.method].susceptibility]
    tried = sum(bool(run.encoding_trials) or run.susceptibility == "to_be_tried" for run in able)
    if tried:
        yield (
            "Where the metadata do not tell whether the phase encodings of two b0 images are "
            "equal or opposite, the images were compared both ways, after rigid alignment and "
            "with a susceptibility field, and taken as opposite if the field explained more than "
            f"{LEAST_SHARE_EXPLAINED:.0%} of what separates them{_share(tried, len(runs))}."
        )
    count = sum(run.susceptibility not in {None, "corrected", "to_be_tried"} for run in able)
    if count:
        yield f"Susceptibility distortions were not corrected{_share(count, len(runs))}."


def _fallbacks(scans: Sequence[ScanFacts]) -> Iterable[str]:
    runs = [run for scan in scans for run in scan.acquisition]
    if dummies := sum(run.readout_is_dummy is True for run in runs):
        yield (
            "The total readout time was not in the metadata and was replaced by a dummy value"
            f"{_share(dummies, len(runs))}."
        )
    if guesses := sum(run.phase_encoding_is_guess is True for run in runs):
        yield (
            "The phase-encoding direction was not fully stated in the metadata and was assumed"
            f"{_share(guesses, len(runs))}."
        )


def _space(scans: Sequence[ScanFacts]) -> Iterable[str]:
    masks = Counter(scan.mask.method for scan in scans)
    if count := masks["bet"]:
        yield (
            "The brain was extracted from the mean b0 with BET of FSL [@fsl,bet]"
            f"{_share(count, len(scans), 'scans')}."
        )
    if count := masks["otsu"]:
        yield (
            "The brain was masked by a threshold derived from Otsu's [@otsu] on the combined "
            "mean b0 and mean diffusion-weighted volume, corrected for shading with N4 "
            "[@nfour], followed by morphological opening and closing"
            f"{_share(count, len(scans), 'scans')}."
        )
    if count := sum(scan.mask.refined is True for scan in scans):
        yield (
            "After the registration the mask was made again with the template's brain as a prior"
            f"{_share(count, len(scans), 'scans')}."
        )
    if count := masks["given"]:
        yield f"The brain mask was given with the scan{_share(count, len(scans), 'scans')}."
    yield from _registration([scan for scan in scans if scan.registration.source is not None])


def _registration(scans: Sequence[ScanFacts]) -> Iterable[str]:
    """Describe the registration of scans that were registered."""
    if not scans:
        return
    sources = Counter(scan.registration.source for scan in scans)
    if count := sources["T1w"]:
        yield (
            "The mean b0 was registered rigidly to the participant's T1-weighted image, and that "
            f"by an affine transform to the template{_share(count, len(scans), 'scans')}, with "
            "ANTs [@ants,antsx]."
        )
    if count := sources["b0"]:
        yield (
            "The mean b0 was registered to the template by an affine transform with ANTs "
            f"[@ants,antsx]{_share(count, len(scans), 'scans')}."
        )
    if count := sources["transform"]:
        left_out = [s.registration.nonlinear_mm for s in scans if s.registration.nonlinear_mm]
        residual = f", which leaves out {max(left_out):.1f} mm at most" if left_out else ""
        yield (
            "The registration of the pipeline that preprocessed the scan was taken, as the affine "
            f"transform that fits it best over the brain{residual}"
            f"{_share(count, len(scans), 'scans')}."
        )
    templates = sorted({scan.registration.template for scan in scans} - {""})
    if templates == [DEFAULT_TEMPLATE]:
        yield f"The template was {DEFAULT_TEMPLATE} [@mni] as distributed with Nilearn [@nilearn]."
    elif templates:
        cited = " [@mni]" if all(name.startswith("MNI152NLin2009") for name in templates) else ""
        yield f"The template was {', '.join(templates)}{cited}."
    yield from _interpolation(scans)


def _interpolation(scans: Sequence[ScanFacts]) -> Iterable[str]:
    """Say how often the data were interpolated on their way to the template."""
    runs = [run for scan in scans for run in scan.correction if run.method is not None]
    resampled = sum(METHODS[run.method].interpolates for run in runs if run.method)
    if resampled < len(runs) or not runs:
        yield (
            "All transforms were concatenated and the data interpolated once"
            f"{_share(len(runs) - resampled, len(runs))}."
        )
    if resampled:
        yield (
            "The corrected data were interpolated once more, to the template"
            f"{_share(resampled, len(runs))}."
        )
    yield (
        "Gradient directions were rotated by the rotation of the affine's polar decomposition "
        "[@rotate]."
    )


def _sphere(scans: Sequence[ScanFacts]) -> Iterable[str]:
    spheres = [scan.sphere for scan in scans if scan.sphere != SphereFacts()]
    if not spheres:
        return
    subject = _shells(spheres)
    sizes = {s.nside for s in spheres if s.nside is not None}
    grid = "".join(f" with {12 * n**2} points (nside {n})" for n in sizes if len(sizes) == 1)
    yield (
        f"{subject} divided by the mean b0 and resampled, voxel by voxel, to the "
        f"HEALPix grid{grid} [@healpix,healpy] by spherical radial basis function "
        f"interpolation{_kernel(spheres)}, with every measurement at both g and -g."
    )
    degrees = {s.degrees for s in spheres if s.degrees}
    if len(degrees) == 1:
        yield (
            f"The energy of the even spherical-harmonic degrees up to {max(*degrees.pop(), 0)} "
            "of the result was mapped (rotation invariant spherical harmonics, RISH [@rish])."
        )


def _shells(spheres: Sequence[SphereFacts]) -> str:
    """Name the shells that were sampled, with their verb; several are listed one by one."""
    counts = {len(s.sampled) for s in spheres if s.sampled}
    if len(counts) > 1:
        return f"Between {min(counts)} and {max(counts)} shells of each scan were"
    named = [
        _shell([s.sampled[number] for s in spheres if s.sampled])
        for number in range(max(counts, default=1))
    ]
    if len(named) == 1:
        return f"{'The shell at' if named[0].startswith(' b') else 'One shell'}{named[0]} was"
    listed = f"{','.join(named[:-1])} and{named[-1]}"
    return f"The shells at{listed} were each"


def _shell(facts: Sequence[ShellFacts]) -> str:
    b_values = [shell.b_value for shell in facts if shell.b_value is not None]
    directions = [shell.directions for shell in facts if shell.directions is not None]
    where = f" b = {_range(b_values)} s/mm²" if b_values else ""
    return where + (f" ({_range(directions)} directions)" if directions else "")


def _kernel(spheres: Sequence[SphereFacts]) -> str:
    kernels = sorted({s.kernel.replace("_", " ") for s in spheres} - {""})
    smoothings = sorted({s.smoothing for s in spheres if s.smoothing is not None})
    if len(kernels) != 1:
        return ""
    smoothing = f", smoothing {smoothings[0]:g}" if len(smoothings) == 1 else ""
    return f" ({kernels[0]} kernel{smoothing})"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def _tensor(scans: Sequence[ScanFacts]) -> Iterable[str]:
    b_values = [scan.tensor.b_value for scan in scans if scan.tensor.b_value is not None]
    if b_values:
        yield (
            f"Diffusion tensors were fitted to the b0 volumes and the shell at b = "
            f"{_range(b_values)} s/mm² by weighted least squares with DIPY [@dipy], in the scan's "
            "own space and in template space; fractional anisotropy and mean, axial and radial "
            "diffusivity were mapped."
        )


def _quality(scans: Sequence[ScanFacts]) -> Iterable[str]:
    outcomes = Counter(scan.quality.gradient_check.outcome for scan in scans)
    outcomes.pop(None, None)
    total = outcomes.total()
    if checked := total - outcomes["undecided"]:
        yield (
            "The gradient table was checked by the coherence of the main directions of diffusion "
            "tensors, fitted with DIPY [@dipy], over flips and permutations of its axes "
            f"[@coherence]{_share(checked, total, 'scans')}."
        )
    if count := outcomes["wrong"]:
        yield (
            "Another arrangement of its axes fitted better, and the table was left as it is"
            f"{_share(count, total, 'scans')}."
        )
    if count := outcomes["undecided"]:
        yield (
            "The gradient table could not be checked against white matter, because no arrangement "
            f"of its axes was clearly ahead{_share(count, total, 'scans')}."
        )


def _prediction(scans: Sequence[ScanFacts]) -> Iterable[str]:
    predictions = [scan.prediction for scan in scans if scan.prediction is not None]
    if not predictions:
        return
    if count := sum(prediction.harmonised is True for prediction in predictions):
        yield (
            "The samples were harmonised with the gains that the model has for the scan's site "
            f"[@rish,rishglm]{_share(count, len(predictions), 'scans')}."
        )
    for network, count in Counter(prediction.network for prediction in predictions).items():
        name = f"the network {network}" if network else "a trained network"
        share = _share(count, len(predictions), "scans")
        yield " ".join(
            filter(None, (f"Scans were classified by {name}{share}.", network_sentence(network)))
        )
    yield "The prediction is for research use only and not for diagnosis."
