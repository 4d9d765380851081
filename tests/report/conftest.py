"""Derivatives of a phantom to report on, and a browser to look at the reports with.

The browser is driven through Chromium's debugging pipe: messages in JSON, ended by a zero byte,
over two file descriptors, so that no package is needed. Tests that use it are skipped where no
Chromium is installed; everything else about the pages is checked without one.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bids_gevnet.bids.derivatives import DerivativeNames
from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.dwi.gradients import bvecs_ras_to_fsl, rotate_bvecs
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.dwi.registration import brain_box
from bids_gevnet.dwi.shells import choose_shell, divide_by_b0, find_shells, mean_volume
from bids_gevnet.dwi.tensor import tensor_maps
from bids_gevnet.harmonisation.rish import DEGREES, rish_features
from bids_gevnet.phantom import tiny_settings
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.simulation import Scan, simulate_participant
from bids_gevnet.sphere.resampling import distinct_directions, resample, resampling_matrix

RESOLUTION_MM = 9.0

# Chromium reads from descriptor 3 and writes to 4: put our pipes there, by way of numbers that
# are surely neither.
_LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number, inheritable=True)
os.execv(sys.argv[3], sys.argv[3:])
"""
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="session")
def phantom_scan() -> Scan:
    settings = tiny_settings(outliers=0.2)
    return simulate_participant(settings, plan_cohort(settings)[0])


@pytest.fixture(scope="session")
def pristine(phantom_scan: Scan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Derivatives of one participant, made from the truth of the phantom: do not change them."""
    folder = tmp_path_factory.mktemp("pristine")
    write_derivatives(folder, "01", phantom_scan)
    return folder


@pytest.fixture
def derivatives(pristine: Path, tmp_path: Path) -> Path:
    """A copy that a test may break in any way."""
    return Path(shutil.copytree(pristine, tmp_path / "out"))


def write_derivatives(
    output_dir: Path, label: str, scan: Scan, session: str | None = None
) -> None:
    """Write what the participant level writes, with the true motion and pose."""
    entities = {"sub": label} | ({"ses": session} if session else {})
    names = DerivativeNames(output_dir=output_dir, entities=entities, resolution_mm=RESOLUTION_MM)
    still = np.linalg.inv(scan.truth.motion_matrices)
    bvecs = rotate_bvecs(scan.bvecs_ras, still)
    shells = find_shells(scan.bvals)
    native = resample_series(scan.data, scan.affine, still, scan.data.shape[:3], scan.affine)
    _write_series(names.native("desc-preproc_dwi.nii.gz"), native, scan.affine, scan.bvals, bvecs)
    write_image(names.native("dwiref.nii.gz"), mean_volume(native, shells.b0), scan.affine)
    write_image(names.native("desc-brain_mask.nii.gz"), scan.truth.mask, scan.affine)
    means = [mean_volume(scan.data, v) for v in (shells.b0, shells.shells[0].volumes)]
    write_image(names.native("desc-uncorrected_dwiref.nii.gz"), np.stack(means, -1), scan.affine)
    _write_tensor(names.native, native, scan.truth.mask, scan.affine, scan.bvals, bvecs)
    _write_confounds(names, scan)
    sphere = _write_standard(names, scan, native, bvecs)
    write_json(names.native("desc-report_facts.json"), _facts(names.prefix, scan, sphere))
    write_text(output_dir / "logs" / "settings.toml", "[preprocessing]\nb0_threshold = 50.0\n")
    write_json(
        output_dir / "dataset_description.json",
        {"GeneratedBy": [{"Name": "bids_gevnet", "Container": {"Tag": "lab/bids_gevnet:1"}}]},
    )


def _write_series(path: Path, data: Any, affine: Any, bvals: Any, bvecs_ras: Any) -> None:
    write_image(path, data, affine)
    stem = path.name.removesuffix(".nii.gz")
    rows = bvecs_ras_to_fsl(bvecs_ras, affine).T
    text = "\n".join(" ".join(f"{value:.6f}" for value in row) for row in rows)
    write_text(path.with_name(f"{stem}.bvec"), text + "\n")
    write_text(path.with_name(f"{stem}.bval"), " ".join(f"{b:g}" for b in bvals) + "\n")


def _write_tensor(
    path: Callable[[str], Path], data: Any, mask: Any, affine: Any, bvals: Any, bvecs: Any
) -> None:
    maps = tensor_maps(data, mask, bvals, bvecs, b0_threshold=50.0)
    for name in ("fa", "dec"):
        write_image(path(f"model-tensor_param-{name}_dwimap.nii.gz"), maps[name], affine)


def _write_confounds(names: DerivativeNames, scan: Scan) -> None:
    motion = scan.truth.motion
    weights = np.array([1, 1, 1, 50, 50, 50])
    steps = np.abs(np.diff(motion, axis=0)) @ weights
    outliers = np.zeros(len(motion), int)
    for volume, _, _ in scan.truth.dropped:
        outliers[volume] += 1
    header = "framewise_displacement trans_x trans_y trans_z rot_x rot_y rot_z outlier_slices"
    lines = [header.replace(" ", "\t")]
    for step, row, count in zip(["n/a", *steps], motion, outliers, strict=True):
        lines.append("\t".join(map(str, (step, *row, count))))
    write_text(names.native("desc-confounds_timeseries.tsv"), "\n".join(lines) + "\n")


def _write_standard(names: DerivativeNames, scan: Scan, native: Any, bvecs: Any) -> dict[str, Any]:
    from nilearn.datasets import load_mni152_brain_mask

    template = load_mni152_brain_mask(resolution=2)
    shape, affine = brain_box(
        np.asarray(template.dataobj) > 0, np.asarray(template.affine), RESOLUTION_MM
    )
    to_template = np.linalg.inv(scan.truth.pose)
    data = resample_series(native, scan.affine, to_template, shape, affine)
    inside = resample_series(
        scan.truth.mask[..., None].astype(np.float32), scan.affine, to_template, shape, affine,
        order=1,
    )[..., 0] > 0.5  # fmt: skip
    turned = rotate_bvecs(bvecs, to_template)
    _write_series(names.standard("desc-preproc_dwi.nii.gz"), data, affine, scan.bvals, turned)
    write_image(names.standard("desc-brain_mask.nii.gz"), inside, affine)
    _write_tensor(names.standard, data, inside, affine, scan.bvals, turned)
    shells = find_shells(scan.bvals)
    shell = choose_shell(shells)
    fraction = divide_by_b0(data[inside][:, shell.volumes], mean_volume(data, shells.b0)[inside])
    directions = turned[shell.volumes]
    samples = resample(fraction, resampling_matrix(directions, distinct_directions(4)))
    back = resample(samples, resampling_matrix(distinct_directions(4), directions))
    _write_inside(names.standard("desc-healpix_dwi.nii.gz"), samples, inside, affine)
    features = rish_features(samples)
    for column, degree in enumerate(DEGREES):
        path = names.standard(f"model-sh_param-rish{degree}_dwimap.nii.gz")
        _write_inside(path, features[:, column], inside, affine)
    return {
        "sampled": [{"b_value": shell.b_value, "directions": shell.n_volumes}],
        "b0_volumes": int(shells.b0.size),
        "nside": 4,
        "kernel": "thin_plate_spline",
        "smoothing": 0.1,
        "degrees": list(DEGREES),
        "voxels": int(inside.sum()),
        "residual_rms": float(np.sqrt(np.mean((back - fraction) ** 2))),
    }


def _write_inside(path: Path, values: Any, inside: Any, affine: Any) -> None:
    volume = np.zeros((*inside.shape, *values.shape[1:]), np.float32)
    volume[inside] = values
    write_image(path, volume, affine)


def _facts(name: str, scan: Scan, sphere: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "acquisition": [
            {
                "name": name,
                "scanner": {"manufacturer": "Simulated", "field_strength_t": 3},
                "phase_encoding": "j",
                "phase_encoding_source": "j, a guess: the sidecar has no PhaseEncodingDirection",
                "phase_encoding_is_guess": True,
                "readout_s": 0.05,
                "readout_source": "0.05 s, a dummy: the sidecar has no usable readout time",
                "readout_is_dummy": True,
                "fieldmaps": [],
                "t1w": None,
            }
        ],
        "tools": {"correction": "ants", "masking": "otsu", "topup": False},
        "conform": [
            {
                "shape": list(scan.data.shape),
                "voxel_mm": [float(size) for size in np.atleast_1d(scan.site.voxel_mm)],
                "not_finite": 0,
                "bvals": scan.bvals.tolist(),
                "bvecs_ras": scan.bvecs_ras.tolist(),
            }
        ],
        "correction": [
            {"method": "ants", "susceptibility": "not_supported", "largest_displacement_mm": 2.5}
        ],
        "join": {"runs": 1, "apart_mm": [0.0]},
        "mask": {"method": "otsu", "volume_ml": 1432.1},
        "bias": {"corrected": False},
        "registration": {
            "source": "b0",
            "template": "MNI152NLin2009aSym",
            "dice": 0.968,
            "information": 1.099,
            "rival": 0.42,
            "edges": 0.61,
            "retried": False,
            "poor": False,
            "text": "registration good",
            "coverage": 0.991,
        },
        "standard": {"without_data": 12, "lost_volumes": 0},
        "sphere": sphere,
        "quality": {
            "snr_b0": 29.4,
            "cnr": 2.81,
            "tensor_residual": 0.0353,
            "neighbour_correlation": 0.93,
            "mean_fa_white_matter": None,
            "gradient_checks": [{"text": "the gradient table fits", "outcome": "fits"}],
        },
    }


class Browser:
    """A headless Chromium with one page.

    Attributes
    ----------
    problems : list of str
        Everything the page complained about: exceptions, console errors, blocked content.
    requests : list of str
        Addresses that the page asked for, without data URIs.
    """

    def __init__(self, program: str, home: Path) -> None:
        to_child, self._writer = os.pipe()
        self._reader, from_child = os.pipe()
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            f"--user-data-dir={home}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _LAUNCHER, str(to_child), str(from_child), *command],
            pass_fds=(to_child, from_child),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._ids = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self._events: list[str] = []
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._reader, 1 << 20)
            if not piece:
                raise RuntimeError("Chromium closed the pipe")
            self._rest += piece
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith("data:"):
                self.requests.append(url)

    def open(self, path: Path, *, width: int = 1400, height: int = 1000, **media: str) -> None:
        """Open a file in a window of some size; `media` are CSS media features."""
        self.problems.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [{"name": k.replace("_", "-"), "value": v} for k, v in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript in the page; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, as a person at the keyboard does."""
        codes = {"Enter": 13, " ": 32, "Tab": 9, "Home": 36, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def assert_sound(self, report: Path) -> None:
        """Check the open report: no complaint, no request, every picture there, no overflow."""
        assert self.problems == []
        assert self.requests == [report.as_uri()]
        broken = self.evaluate(
            "Promise.all([...document.querySelectorAll('img')].map(i => i.src)"
            ".concat([...document.querySelectorAll('image')].map(i => i.href.baseVal))"
            ".map(src => new Promise(done => { const i = new Image(); i.onload = () => done(0);"
            "i.onerror = () => done(1); i.src = src; })))"
            ".then(results => results.reduce((a, b) => a + b, 0) + (results.length ? 0 : 1))"
        )
        assert broken == 0
        # Nothing sticks out to the right: a phone would have to scroll sideways.
        assert self.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def screenshot(self, path: Path) -> Path:
        """Keep a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        answer = self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def wait_for(self, expression: str, seconds: float = 10.0) -> bool:
        """Wait until an expression is true; tell whether it became so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(expression):
                return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        """End Chromium."""
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=30)
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH: install chromium to test the reports in a browser")
    opened = Browser(CHROMIUM, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of the reports go: BIDS_GEVNET_SCREENSHOTS, or a temporary folder."""
    wanted = os.environ.get("BIDS_GEVNET_SCREENSHOTS")
    return Path(wanted).resolve() if wanted else tmp_path_factory.mktemp("screenshots")


@pytest.fixture(scope="session")
def group_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group run with two networks and a checked harmonisation: do not change it."""
    from report.group_study import GroupStudy

    study = GroupStudy(tmp_path_factory.mktemp("group") / "out", networks=("ckn2", "ckn2+gevnet"))
    folder = study.write()
    for network in study.networks:
        facts = {"digest": f"{network} 1", "fold": 1, "scans": 12, "largest_difference": 0.0}
        write_json(study.folder_of(network) / "harmonisation_check.json", facts)
    return folder


@pytest.fixture(scope="session")
def group_report(group_output: Path) -> Path:
    """Its report."""
    from bids_gevnet.report.group.page import build_group_report

    return build_group_report(group_output)
