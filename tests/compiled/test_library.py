"""When the compiled kernels run, and what happens where they cannot."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from bids_gevnet.compiled import build as building
from bids_gevnet.compiled import library
from bids_gevnet.compiled.build import NoCompilerError, build, levels
from bids_gevnet.errors import InputError

compiled = pytest.mark.skipif(library.level() == "none", reason="no compiled kernels here")
ADD = (
    "import torch; from bids_gevnet.nn import CKN;"
    "from bids_gevnet.compiled.library import level;"
    "torch.manual_seed(0); print(level(), CKN()(torch.rand(1, 1, 8, 8, 8)).sum().item())"
)


def run(**environment: str) -> list[str]:
    """Instruction set and a number from a fresh process."""
    surroundings = {k: v for k, v in os.environ.items() if k != "BIDS_GEVNET_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-c", ADD],
        env=surroundings | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


@compiled
def test_the_environment_chooses_and_the_numbers_agree():
    best, number = run()
    none, reference = run(BIDS_GEVNET_KERNELS="none")
    assert (best, none) == (library.level(), "none")
    assert float(number) == pytest.approx(float(reference), rel=1e-5)


def test_a_choice_that_does_not_exist_is_an_error():
    with pytest.raises(InputError, match="unset BIDS_GEVNET_KERNELS"), library.use("v9"):
        pass


def test_only_float32_on_a_cpu_is_served():
    with library.use("none"):
        assert not library.serves(torch.zeros(1))
        assert "PyTorch" in library.describe()
    assert not library.serves(torch.zeros(1, dtype=torch.float64))
    assert not library.serves(torch.zeros(1, device="meta"))


@compiled
def test_a_library_made_from_other_sources_is_not_used(monkeypatch, tmp_path):
    old = tmp_path / "kernels.so"
    shutil.copy(library.LIBRARY, old)
    monkeypatch.setattr(library, "LIBRARY", old)
    assert library._load.__wrapped__() is not None
    monkeypatch.setattr(library, "digest", lambda: "0123456789abcdef")
    assert library._load.__wrapped__() is None
    for path, content in ((tmp_path / "broken.so", b"not a library"), (tmp_path / "no.so", None)):
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setattr(library, "LIBRARY", path)
        assert library._load.__wrapped__() is None


@pytest.mark.parametrize("command", ["/no/such/compiler", "false"])
def test_a_compiler_that_fails_leaves_nothing_behind(monkeypatch, tmp_path, command):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(NoCompilerError, match=command):
        build(tmp_path / "kernels.so")
    assert not list(tmp_path.iterdir())


def test_a_machine_without_a_compiler_says_so(monkeypatch, capsys):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert building.main() == 1
    assert "PyTorch takes their place: no C++ compiler" in capsys.readouterr().out


def test_only_the_x86_family_has_several_instruction_sets():
    assert list(levels("x86_64")) == ["baseline", "v3", "v4"]
    assert list(levels("aarch64")) == ["baseline"]


@compiled
def test_a_kernel_takes_contiguous_tensors_only():
    with pytest.raises(ValueError, match="contiguous"):
        library.pointer(torch.zeros(2, 3).t())
