"""Applying gains, and files that are not what they claim."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.gains import RishGains, load_gains
from bids_gevnet.harmonisation.rish import rish_features
from bids_gevnet.sphere.harmonics import degree_projectors

SHAPE = (3, 4, 2)


@pytest.fixture
def gains() -> RishGains:
    rng = np.random.default_rng(0)
    values = rng.uniform(0.7, 1.4, (2, *SHAPE, 4)).astype(np.float32)
    return RishGains(
        gains=values,
        sites=("A", "<b>;rm -rf"),
        reference="A",
        association=0.3,
        columns=("age",),
        warnings=("Site B is small.",),
    )


def test_apply_is_the_sum_of_projectors(gains: RishGains) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(*SHAPE, 96))
    projectors = degree_projectors(4)
    parts = np.einsum("lpq,xyzq->xyzlp", projectors, x)
    rest = x - parts.sum(axis=3)
    expected = rest + np.einsum("xyzl,xyzlp->xyzp", gains.gains[0], parts)
    np.testing.assert_allclose(gains.apply(x, "A"), expected, atol=2e-5)


def test_energy_of_each_degree_changes_by_the_square(gains: RishGains) -> None:
    x = np.random.default_rng(2).normal(size=(*SHAPE, 96))
    before, after = rish_features(x), rish_features(gains.apply(x, "<b>;rm -rf"))
    np.testing.assert_allclose(after, gains.gains[1] ** 2 * before, rtol=2e-4)


def test_masked_and_full_agree(gains: RishGains) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(*SHAPE, 96)).astype(np.float16)
    mask = rng.random(SHAPE) > 0.4
    masked, full = gains.apply(x[mask], "A", mask), gains.apply(x, "A")[mask]
    np.testing.assert_allclose(masked, full, atol=1e-5)


def test_unknown_site_is_left_as_it_is(gains: RishGains) -> None:
    x = np.random.default_rng(4).normal(size=(*SHAPE, 96)).astype(np.float32)
    assert not gains.knows("C")
    np.testing.assert_array_equal(gains.apply(x, "C"), x)


def test_another_grid_is_refused(gains: RishGains) -> None:
    with pytest.raises(InputError, match="output resolution"):
        gains.apply(np.zeros((5, 5, 5, 96)), "A")


def test_file_brings_everything_back(gains: RishGains, tmp_path: Path) -> None:
    path = tmp_path / "harmonisation.npz"
    gains.save(path)
    loaded = load_gains(path)
    np.testing.assert_array_equal(loaded.gains, gains.gains)
    for name in ("sites", "degrees", "nside", "reference", "association", "columns", "warnings"):
        assert getattr(loaded, name) == getattr(gains, name)


def test_each_shell_has_gains_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    values = rng.uniform(0.7, 1.4, (1, *SHAPE, 8)).astype(np.float32)
    both = RishGains(values, ("A",), b_values=(1000.0, 3000.0))
    x = rng.normal(size=(*SHAPE, 192))
    apart = [
        RishGains(part, ("A",)).apply(samples, "A")
        for part, samples in zip(np.split(values, 2, -1), np.split(x, 2, -1), strict=True)
    ]
    # Not to the last bit: matrix products of other shapes add in another order.
    np.testing.assert_allclose(both.apply(x, "A"), np.concatenate(apart, -1), atol=2e-6)
    mask = rng.random(SHAPE) > 0.4
    np.testing.assert_allclose(both.apply(x[mask], "A", mask), both.apply(x, "A")[mask], atol=1e-5)
    both.save(tmp_path / "gains.npz")
    assert load_gains(tmp_path / "gains.npz").b_values == (1000.0, 3000.0)
    with pytest.raises(InputError, match="1 shell"):
        RishGains(values, ("A",))


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('code of the file was run')",))


def _archive(gains: object, facts: object) -> bytes:
    stream = io.BytesIO()
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    np.savez(stream, gains=gains, facts=np.frombuffer(text, np.uint8))  # type: ignore[arg-type]
    return stream.getvalue()


GOOD = {
    "format": "bids_gevnet RISH gains 1",
    "sites": ["A"],
    "degrees": [0],
    "nside": 4,
    "reference": None,
    "fwhm_mm": 10.0,
    "association": 0.0,
    "columns": [],
    "warnings": [],
}
ONES = np.ones((1, 2, 2, 2, 1), np.float32)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        b"\x80\x04\x95 a pickle",
        _archive(np.array([Evil()], dtype=object), GOOD),
        _archive(ONES, b"{"),
        _archive(ONES, []),
        _archive(ONES, GOOD | {"format": "other"}),
        _archive(ONES, GOOD | {"sites": [["nested"]]}),
        _archive(ONES, GOOD | {"sites": ["A", "B"]}),
        _archive(ONES, GOOD | {"nside": 10**9}),
        _archive(ONES, GOOD | {"more": 1}),
        _archive(ONES * np.nan, GOOD),
        _archive(ONES * -1, GOOD),
        _archive(np.ones(3), GOOD),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "harmonisation.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="written by bids_gevnet"):
        load_gains(path)


def test_the_good_file_of_these_tests_is_good(tmp_path: Path) -> None:
    path = tmp_path / "harmonisation.npz"
    path.write_bytes(_archive(ONES, GOOD))
    assert load_gains(path).sites == ("A",)


def test_archive_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    facts = io.BytesIO()
    np.save(facts, np.frombuffer(json.dumps(GOOD).encode(), np.uint8))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gains.npy", header.getvalue())
        archive.writestr("facts.npy", facts.getvalue())
    with pytest.raises(InputError, match="written by bids_gevnet"):
        load_gains(path)
