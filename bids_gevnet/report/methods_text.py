"""The methods text: what really ran, in sentences a paper can use, with citations.

Every sentence depends on a fact of the scans; what did not run is not described, and a fact that
is missing leaves its sentence out. Scans that differ are described together, each way with the
number of runs that took it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bids_gevnet.report.facts import Facts, clean_facts
from bids_gevnet.report.references import REFERENCES, Reference
from bids_gevnet.versions import __version__

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
            found = sorted(order.index(key) + 1 for key in match.group(1).split(","))
            return "[" + ", ".join(map(str, found)) + "]"

        return _CITE.sub(numbers, text)


def methods_text(facts: Facts | Sequence[Facts]) -> str:
    """Write the methods of one scan or several as Markdown.

    Parameters
    ----------
    facts : mapping or sequence of mapping
        As in `*_desc-report_facts.json`; any part may be missing.
    """
    return to_markdown(describe_methods(facts))


def to_markdown(methods: Methods) -> str:
    """Write a methods text as Markdown, with numbered references."""
    lines = ["# Methods", ""]
    for heading, text in methods.paragraphs:
        lines += [f"## {heading}", "", methods.number(text), ""]
    lines += ["## References", ""]
    for number, reference in enumerate(methods.references.values(), start=1):
        lines.append(f"{number}. {reference.text} <{reference.url}>")
    return "\n".join(lines) + "\n"


def describe_methods(facts: Facts | Sequence[Facts]) -> Methods:
    """Choose the sentences and citations for what ran."""
    raw = [facts] if isinstance(facts, Mapping) else facts
    scans = [clean_facts(scan) for scan in raw]
    parts: tuple[tuple[str, Callable[[Sequence[Facts]], Iterable[str]]], ...] = (
        ("Overview", _overview),
        ("Motion and distortions", _correction),
        ("Brain mask and template", _space),
        ("Sampling on the sphere", _sphere),
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


def _part(scan: Facts, key: str) -> Facts:
    part: Facts = scan.get(key, {})
    return part


def _runs(scans: Sequence[Facts], key: str) -> list[Facts]:
    return [run for scan in scans for run in scan.get(key, [])]


def _share(count: int, total: int, noun: str = "runs") -> str:
    """Say how many, where it is not all."""
    return "" if count == total else f" ({count} of {total} {noun})"


def _overview(scans: Sequence[Facts]) -> Iterable[str]:
    yield (
        f"Diffusion MRI organised as BIDS [@bids] was processed with bids_gevnet {__version__}, "
        "a BIDS App [@bidsapps] built on Nipype [@nipype], which prepares scans for gauge "
        "equivariant Volterra networks [@gevnet]."
    )
    if any(_part(scan, "join").get("joined") for scan in scans):
        yield (
            "Runs of one session on the same grid and with the same shells were corrected apart, "
            "aligned rigidly to the first by their mean b0 and joined."
        )


def _methods_of(scans: Sequence[Facts]) -> Counter[str]:
    runs = _runs(scans, "correction")
    if runs:
        return Counter(str(run.get("method")) for run in runs)
    return Counter(str(_part(scan, "tools").get("correction")) for scan in scans)


def _correction(scans: Sequence[Facts]) -> Iterable[str]:
    methods = _methods_of(scans)
    total = sum(methods.values())
    if count := methods["eddy"]:
        yield (
            "Head motion and eddy currents were estimated and corrected, and slices with lost "
            "signal replaced by their prediction, with eddy of FSL"
            f" [@fsl,eddy,outliers]{_share(count, total)}."
        )
        corrected = sum(run.get("susceptibility") is True for run in _runs(scans, "correction"))
        if corrected:
            yield (
                "The susceptibility-induced field was estimated from b0 images with opposite "
                f"phase encoding by topup [@topup] and corrected in the same interpolation"
                f"{_share(corrected, total)}."
            )
    if count := methods["ants"]:
        yield (
            "Head motion was corrected by rigid registration of every volume with ANTs "
            f"[@ants,antsx]{_share(count, total)}: b0 volumes to the first b0, diffusion-weighted "
            "volumes to the mean of their shell, by mutual information. This corrects neither "
            "eddy currents nor susceptibility distortions nor lost slices."
        )
    if count := methods["model"]:
        yield (
            "Head motion and an eddy-current field along the phase-encoding axis were estimated "
            "together, by comparing every volume with its prediction from the others of its "
            f"shell{_share(count, total)}, after the idea of eddy [@eddy,outliers]; slices with "
            "lost signal were replaced by their prediction, and all was applied in one "
            "interpolation with the Jacobian. Motion within a volume was not modelled."
        )
    if count := methods["none"]:
        yield f"Neither motion nor distortions were corrected{_share(count, total)}."
    if methods["eddy"] or methods["ants"] or methods["model"]:
        yield (
            "Gradient directions were rotated with each volume [@rotate]. Framewise displacement "
            "was computed as by Power et al. [@power], with rotations as arcs on a sphere of "
            "50 mm radius."
        )
    runs = _runs(scans, "acquisition")
    if dummies := sum(run.get("readout_is_dummy") is True for run in runs):
        yield (
            "The total readout time was not in the metadata and was replaced by a dummy value"
            f"{_share(dummies, len(runs))}."
        )
    if guesses := sum(run.get("phase_encoding_is_guess") is True for run in runs):
        yield (
            "The phase-encoding direction was not fully stated in the metadata and was assumed"
            f"{_share(guesses, len(runs))}."
        )


def _space(scans: Sequence[Facts]) -> Iterable[str]:
    masks = Counter(
        str(_part(scan, "mask").get("method") or _part(scan, "tools").get("masking"))
        for scan in scans
    )
    if count := masks["bet"]:
        yield (
            "The brain was extracted from the mean b0 with BET of FSL [@fsl,bet]"
            f"{_share(count, len(scans), 'scans')}."
        )
    if count := masks["otsu"]:
        yield (
            "The brain was masked by a threshold derived from Otsu's [@otsu] on the combined "
            "mean b0 and mean diffusion-weighted volume, followed by morphological opening and "
            f"closing{_share(count, len(scans), 'scans')}."
        )
    sources = Counter(str(_part(scan, "registration").get("source")) for scan in scans)
    known = sum(sources[source] for source in ("b0", "T1w"))
    if count := sources["T1w"]:
        yield (
            "The mean b0 was registered rigidly to the participant's T1-weighted image, and that "
            f"by an affine transform to the template{_share(count, known, 'scans')}, with ANTs "
            "[@ants,antsx]."
        )
    if count := sources["b0"]:
        yield (
            "The mean b0 was registered to the template by an affine transform with ANTs "
            f"[@ants,antsx]{_share(count, known, 'scans')}."
        )
    if not known:
        return
    templates = sorted(
        {str(_part(scan, "registration").get("template", "")) for scan in scans} - {""}
    )
    if not templates or templates == ["MNI152NLin2009aSym"]:
        yield (
            "The template was MNI152NLin2009aSym [@mni] as distributed with Nilearn [@nilearn]."
        )
    else:
        yield f"The template was {', '.join(templates)}."
    yield (
        "All transforms were concatenated and the data interpolated once; gradient directions "
        "were rotated by the rotation of the affine's polar decomposition [@rotate]."
    )


def _sphere(scans: Sequence[Facts]) -> Iterable[str]:
    found = [sphere for scan in scans if (sphere := _part(scan, "sphere"))]
    if not found:
        return
    b_values = [float(s["b_value"]) for s in found if "b_value" in s]
    directions = [int(s["directions"]) for s in found if "directions" in s]
    shell = f"The shell at b = {_range(b_values)} s/mm²" if b_values else "One shell"
    count = f" ({_range(directions)} directions)" if directions else ""
    sizes = sorted({int(s["nside"]) for s in found if "nside" in s})
    grid = ""
    if len(sizes) == 1:
        grid = f" with {12 * sizes[0] ** 2} points (nside {sizes[0]})"
    yield (
        f"{shell}{count} was divided by the mean b0 and resampled, voxel by voxel, to the "
        f"HEALPix grid{grid} [@healpix,healpy] by spherical radial basis function "
        f"interpolation{_kernel(found)}, with every measurement at both g and -g."
    )
    # A coarse grid allows fewer harmonics: (l + 1)(l + 2) / 2 up to degree l on 6 nside² points.
    points = 6 * min(sizes, default=4) ** 2
    highest = max(l for l in (0, 2, 4, 6) if (l + 1) * (l + 2) / 2 <= points)  # noqa: E741
    yield (
        f"The energy of the even spherical-harmonic degrees up to {highest} of the result was "
        "mapped (rotation invariant spherical harmonics, RISH [@rish])."
    )


def _kernel(found: Sequence[Facts]) -> str:
    kernels = sorted({s["kernel"].replace("_", " ") for s in found if "kernel" in s})
    smoothings = sorted({float(s["smoothing"]) for s in found if "smoothing" in s})
    if len(kernels) != 1:
        return ""
    smoothing = f", smoothing {smoothings[0]:g}" if len(smoothings) == 1 else ""
    return f" ({kernels[0]} kernel{smoothing})"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def _quality(scans: Sequence[Facts]) -> Iterable[str]:
    found = [quality for scan in scans if (quality := _part(scan, "quality"))]
    if any("coherence" in quality for quality in found):
        yield (
            "The gradient table was checked by the coherence of the main directions of diffusion "
            "tensors, fitted with DIPY [@dipy], over flips and permutations of its axes "
            "[@coherence]."
        )


def _prediction(scans: Sequence[Facts]) -> Iterable[str]:
    found = [prediction for scan in scans if (prediction := _part(scan, "prediction"))]
    if found:
        yield (
            "The samples were classified with a network that combines a convolutional kernel "
            "network [@ckn] across voxels and a gauge equivariant Volterra network [@gevnet] "
            "within each. The prediction is for research use only and not for diagnosis."
        )
