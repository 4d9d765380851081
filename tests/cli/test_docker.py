"""The Docker wrapper, with a program in place of docker that tells what it was given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bids_gevnet.cli.docker import container_command, main, mounts_of

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def dataset(tmp_path, monkeypatch) -> Path:
    """A folder with data, which is also where the command is typed."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def run_wrapper(
    arguments: list[str], *, path: Path, cwd: Path
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bids_gevnet.cli.docker", *arguments]
    environment = os.environ | {"PATH": f"{path}:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_container_gets_the_arguments_untouched_and_its_exit_code_is_kept(dataset):
    put_program(dataset / "bin", "docker", 'for word; do echo "$word"; done; exit 7')
    arguments = [
        "data",
        "results/out",
        "participant",
        "--participant-label",
        "01",
        "--nprocs",
        "2",
    ]
    done = run_wrapper(
        ["--image", "somewhere/image:3", *arguments], path=dataset / "bin", cwd=dataset
    )
    assert done.returncode == 7
    words = done.stdout.splitlines()
    assert words[words.index("somewhere/image:3") + 1 :] == arguments
    assert words[words.index("--workdir") + 1] == str(dataset)
    assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert f"{dataset}/data:{dataset}/data:ro" in words
    assert f"{dataset}/results/out:{dataset}/results/out" in words
    assert "--gpus" not in words


def test_podman_takes_dockers_place_and_without_either_there_is_a_sentence(dataset, monkeypatch):
    monkeypatch.setenv("PATH", str(dataset / "bin"))
    assert main(["data", "out", "group"]) == 2
    put_program(dataset / "bin", "podman", "exit 0")
    put_program(dataset / "bin", "nvidia-smi", "exit 0")
    arguments = ["data", "out", "group"]
    command = container_command(arguments, image="image", engine=None, gpus="auto")
    assert command[0] == str(dataset / "bin" / "podman")
    assert command[command.index("--gpus") + 1] == "all"
    command = container_command(arguments, image="image", engine="podman", gpus="none")
    assert "--gpus" not in command
    put_program(dataset / "bin", "docker", "exit 0")
    command = container_command(arguments, image="image", engine=None, gpus="none")
    assert command[0] == str(dataset / "bin" / "docker")


def test_paths_of_options_and_of_the_settings_file_are_mounted(dataset):
    elsewhere = dataset / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "template.nii.gz").touch()
    (elsewhere / "who.txt").write_text("01\n", encoding="utf-8")
    settings = elsewhere / "settings.toml"
    settings.write_text('[selection]\nparticipants_file = "who.txt"\n', encoding="utf-8")
    (dataset / "linked").symlink_to(dataset / "data")
    arguments = ["linked", "out", "participant", "--config-file", "elsewhere/settings.toml"]
    arguments += ["-w", "scratch", "--template", "elsewhere/template.nii.gz"]
    mounts = mounts_of(arguments)
    for read in ("linked", "elsewhere/settings.toml", "elsewhere/template.nii.gz"):
        assert f"{dataset}/{read}:{dataset}/{read}:ro" in mounts
    assert f"{elsewhere}/who.txt:{elsewhere}/who.txt:ro" in mounts
    for written in ("out", "scratch"):
        assert f"{dataset}/{written}:{dataset}/{written}" in mounts
        assert (dataset / written).is_dir()  # made here, so that it does not belong to root


def test_output_inside_the_dataset_is_mounted_after_it(dataset):
    mounts = mounts_of(["data", "data/derivatives/gevnet", "participant"])
    inside = f"{dataset}/data/derivatives/gevnet"
    assert mounts.index(f"{dataset}/data:{dataset}/data:ro") < mounts.index(f"{inside}:{inside}")


def test_what_cannot_be_mounted_or_parsed_ends_with_2(dataset, capsys):
    (dataset / "a:b").mkdir()
    put_program(dataset / "bin", "docker", "exit 0")
    assert main(["a:b", "out", "participant"]) == 2
    assert "colon" in capsys.readouterr().err
    assert not (dataset / "out").exists()
    with pytest.raises(SystemExit, match="2"):
        main(["data", "out", "participant", "--no-such-option"])


def test_the_command_can_be_shown_instead(dataset, monkeypatch, capsys):
    put_program(dataset / "bin", "docker", "exit 1")
    monkeypatch.setenv("PATH", str(dataset / "bin"))
    assert main(["--print-command", "data", "out", "participant"]) == 0
    assert capsys.readouterr().out.startswith(f"{dataset}/bin/docker run --rm")
