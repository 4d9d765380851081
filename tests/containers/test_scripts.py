"""The scripts for clusters and checks: syntax, and what they do where SLURM is a few lines of sh.

`make check-slurm` runs them on a real SLURM; here `sbatch` and `scontrol` write down how they were
called.
"""

import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

CONTAINERS = Path(__file__).parents[2] / "containers"
SLURM = CONTAINERS / "slurm"
SCRIPTS = sorted([*CONTAINERS.glob("*.sh"), *SLURM.glob("*.sh"), *SLURM.glob("*.sbatch")])
JOBS = sorted(SLURM.glob("*.sbatch"))

OPTIONS = {
    "job-name": r"[\w-]+",
    "time": r"\d\d:\d\d:\d\d",
    "nodes": r"\d+",
    "ntasks": r"\d+",
    "ntasks-per-node": r"\d+",
    "cpus-per-task": r"\d+",
    "mem": r"\d+G",
    "signal": r"B:USR1@\d+",
    "requeue": "",
    "open-mode": "append",
}
"""Options of sbatch that the jobs use, and what their values look like."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_it(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def job_options(path: Path) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", path.read_text(), re.MULTILINE)
    return dict(lines)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_options_are_sbatchs_own(path: Path) -> None:
    text = path.read_text()
    options = job_options(path)
    assert len(options) == text.count("#SBATCH")
    for name, value in options.items():
        assert re.fullmatch(OPTIONS[name], value), f"--{name}={value}"
    # A line of SBATCH after the first command is a comment to sbatch.
    first = next(line for line in text.splitlines() if line and not line.startswith("#"))
    assert "#SBATCH" not in text[text.index(first) :]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_jobs_survive_their_time_limit(path: Path) -> None:
    options = job_options(path)
    assert options["signal"].startswith("B:USR1@")
    assert "requeue" in options
    assert options["open-mode"] == "append"


def test_training_gets_less_time_to_stop_than_slurm_leaves() -> None:
    text = (SLURM / "group.sbatch").read_text()
    limit = int(job_options(SLURM / "group.sbatch")["signal"].split("@")[1])
    match = re.search(r"--shutdown-timeout (\d+)", text)
    assert match is not None
    assert int(match[1]) < limit
    assert "SIGUSR1" in text


def executable(path: Path, text: str) -> None:
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """Surroundings in which sbatch and scontrol write down how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    calls.touch()
    executable(folder / "sbatch", f'echo "$*" >>{calls}\nwc -l <{calls}\n')
    # Like SLURM, it ends the shell that asks for its own job to be requeued.
    executable(folder / "scontrol", f'echo "$*" >>{calls}\nkill -KILL $PPID\n')
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return kept | {"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls)}


def calls(cluster: Mapping[str, str]) -> list[str]:
    return Path(cluster["CALLS"]).read_text().splitlines()


def submit(
    cluster: Mapping[str, str], *arguments: Path | str, **extra: str
) -> subprocess.CompletedProcess[str]:
    command = [str(SLURM / "submit.sh"), *map(str, arguments)]
    return subprocess.run(
        command, env=dict(cluster) | extra, capture_output=True, text=True, check=False
    )


def make_dataset(root: Path, count: int) -> Path:
    for i in range(count):
        (root / "data" / f"sub-{i:03d}").mkdir(parents=True)
    (root / "data" / "code").mkdir(parents=True)
    return root / "data"


def test_training_waits_for_the_participants(cluster: dict[str, str], tmp_path: Path) -> None:
    data = make_dataset(tmp_path, 3)
    done = submit(cluster, data, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    array, group = calls(cluster)
    assert "--array=1-3%50" in array
    assert array.endswith("participant.sbatch")
    assert "--dependency=afterok:1 --kill-on-invalid-dep=yes" in group
    assert group.endswith("group.sbatch")
    listed = (tmp_path / "out/logs/slurm/participants.txt").read_text().split()
    assert listed == ["000", "001", "002"]


def test_training_may_wait_for_the_end_of_participants_whatever_it_was(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    data = make_dataset(tmp_path, 2)
    assert submit(cluster, data, tmp_path / "out", AFTER="afterany").returncode == 0
    assert "--dependency=afterany:1 " in calls(cluster)[1]


def test_one_level_alone_and_options_of_the_cluster(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    data = make_dataset(tmp_path, 1)
    extra = {"LEVELS": "group", "GROUP_SBATCH": "--nodes=4 --gpus-per-node=8"}
    assert submit(cluster, data, tmp_path / "out", **extra).returncode == 0
    (group,) = calls(cluster)
    assert "--nodes=4 --gpus-per-node=8" in group
    assert "--dependency" not in group


def test_more_participants_than_tasks_are_shared_out(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    """Every participant is in exactly one task of the array."""
    data = make_dataset(tmp_path, 7)
    submit(cluster, data, tmp_path / "out", MAX_TASKS="3", AT_ONCE="2", LEVELS="participant")
    assert "--array=1-3%2" in calls(cluster)[0]
    executable(tmp_path / "bin/srun", 'echo "$* on $SRUN_CPUS_PER_TASK cores" >>"$CALLS"\n')
    surroundings = cluster | {
        "SCRIPTS": str(SLURM),
        "BIDS_DIR": str(data),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "WORK_DIR": str(tmp_path / "work"),
        "PARTICIPANTS": str(tmp_path / "out/logs/slurm/participants.txt"),
        "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "4",
    }
    job = str(SLURM / "participant.sbatch")
    for task in (1, 2, 3):
        own = surroundings | {"SLURM_ARRAY_TASK_ID": str(task)}
        subprocess.run(["bash", job], env=own, check=True, timeout=60)
    text = "\n".join(calls(cluster))
    labels = re.findall(r"--participant-label (\S+)", text)
    assert sorted(labels) == [f"{i:03d}" for i in range(7)]
    assert len(set(re.findall(r"--work-dir (\S+)", text))) == 7
    assert len(re.findall(r"--nprocs 4 .*on 4 cores", text)) == 7


@pytest.mark.parametrize("gpus", ["", "4"])
@pytest.mark.parametrize("sif", ["", "/images/app.sif"])
def test_group_job_prepares_trains_and_collects(
    cluster: dict[str, str], tmp_path: Path, gpus: str, sif: str
) -> None:
    executable(tmp_path / "bin/srun", 'echo "$*" | tr "\\n" " " >>"$CALLS"; echo >>"$CALLS"\n')
    executable(tmp_path / "bin/scontrol", "echo gpu07\necho gpu08\n")
    surroundings = cluster | {
        "SCRIPTS": str(SLURM),
        "BIDS_DIR": "/data",
        "OUTPUT_DIR": "/out",
        "WORK_DIR": "/work dir",
        "SIF": sif,
        "GROUP_OPTIONS": "--folds 3",
        "PROCESSES_PER_NODE": gpus or "2",
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
    }
    surroundings |= {"SLURM_GPUS_ON_NODE": gpus} if gpus else {}
    job = ["bash", str(SLURM / "group.sbatch")]
    subprocess.run(job, env=surroundings, check=True, timeout=60)
    prepare, train, collect = calls(cluster)
    level = f"/data /out group --work-dir /work dir --resume --devices {gpus or 'cpu:2'}"
    assert f"python -m bids_gevnet.cli.group_jobs {level}" in prepare
    assert "--folds 3" in prepare
    assert f"torchrun --nnodes 2 --nproc-per-node {gpus or '2'} --master-addr gpu07" in train
    command = (
        r"-m bids_gevnet\.learn\.train\.process /work dir/group/jobs\.json --threads [1-9]\d*$"
    )
    assert re.search(command, train.rstrip())
    assert f"bids_gevnet {level}" in collect
    for call in (prepare, train, collect):
        inside = "apptainer exec --nv --cleanenv --bind /data:/data:ro --bind /out" in call
        assert inside == bool(sif)


def test_variables_of_the_node_reach_the_container(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    """Rank and GPUs are the node's own, and --cleanenv would keep them out."""
    executable(
        tmp_path / "bin/srun",
        "while [[ $1 = --* ]]; do shift; done\n"
        'SLURM_NODEID=1 SLURMD_NODENAME=gpu08 CUDA_VISIBLE_DEVICES=2,3 "$@"\n',
    )
    executable(
        tmp_path / "bin/apptainer",
        '[[ $* != *torchrun* ]] || env | grep ^APPTAINERENV_ | sort >>"$CALLS"\n',
    )
    surroundings = cluster | {
        "SCRIPTS": str(SLURM),
        "BIDS_DIR": "/data",
        "OUTPUT_DIR": "/out",
        "WORK_DIR": "/out/work",
        "SIF": "/images/app.sif",
        "MASTER_ADDR": "gpu07",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "2",
    }
    job = ["bash", str(SLURM / "group.sbatch")]
    subprocess.run(job, env=surroundings, check=True, timeout=60)
    expected = ["APPTAINERENV_CUDA_VISIBLE_DEVICES=2,3", "APPTAINERENV_PET_NODE_RANK=1"]
    assert calls(cluster) == expected


def test_wrong_usage(cluster: dict[str, str], tmp_path: Path) -> None:
    done = submit(cluster)
    assert done.returncode == 2
    assert "BIDS_DIR OUTPUT_DIR" in done.stderr
    done = submit(cluster, make_dataset(tmp_path, 0), tmp_path / "out")
    assert done.returncode == 2
    assert "no sub-*" in done.stderr
    assert calls(cluster) == []


STEP = """
set -euo pipefail
. {folder}/settings.sh
. {folder}/step.sh
run_step {command}
echo finished
"""


def start_job(cluster: Mapping[str, str], command: str, **extra: str) -> subprocess.Popen[str]:
    surroundings = dict(cluster) | {"SLURM_JOB_ID": "7"} | extra
    script = STEP.format(folder=SLURM, command=command)
    return subprocess.Popen(
        ["bash", "-c", script],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_exit_code_of_a_step_is_the_jobs(cluster: dict[str, str]) -> None:
    with start_job(cluster, "true") as job:
        assert job.communicate(timeout=60)[0] == "finished\n"
        assert job.returncode == 0
    with start_job(cluster, "bash -c 'exit 3'") as job:
        assert job.communicate(timeout=60)[0] == ""
        assert job.returncode == 3
    assert calls(cluster) == []


@pytest.mark.parametrize(
    ("extra", "name"),
    [({}, "7"), ({"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, "5_2")],
)
def test_signal_reaches_the_step_and_the_job_goes_back_into_the_queue(
    cluster: dict[str, str], tmp_path: Path, extra: dict[str, str], name: str
) -> None:
    ready, stopped = tmp_path / "ready", tmp_path / "stopped"
    executable(
        tmp_path / "bin/training",
        f"trap 'sleep 0.3; touch {stopped}; exit 1' USR1\ntouch {ready}\n"
        "while true; do sleep 0.05; done\n",
    )
    with start_job(cluster, "training", **extra) as job:
        wait_until(ready)
        job.send_signal(signal.SIGUSR1)
        output = job.communicate(timeout=60)[0]
    assert stopped.exists(), "the job went before its step had written its checkpoint"
    assert calls(cluster) == [f"requeue {name}"]
    assert "finished" not in output
    assert "restart 1" in output


def test_restarts_come_to_an_end(cluster: dict[str, str], tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    executable(
        tmp_path / "bin/training",
        f"trap 'exit 1' USR1\ntouch {ready}\nwhile true; do sleep 0.05; done\n",
    )
    extra = {"MAX_RESTARTS": "2", "SLURM_RESTART_COUNT": "2"}
    with start_job(cluster, "training", **extra) as job:
        wait_until(ready)
        job.send_signal(signal.SIGUSR1)
        assert "giving up" in job.communicate(timeout=60)[0]
        assert job.returncode == 1
    assert calls(cluster) == []


def test_plugin_file_names_nipypes_plugin() -> None:
    table = tomllib.loads((SLURM / "nipype.toml").read_text(encoding="utf-8"))
    assert table["plugin"] == "SLURM"
    arguments = table["plugin_args"]["sbatch_args"].split()
    assert all(re.fullmatch(OPTIONS[a[2:].split("=")[0]], a.split("=")[1]) for a in arguments)


@pytest.mark.parametrize("name", ["container", "apptainer", "slurm"])
def test_a_check_that_cannot_run_says_so_and_does_not_pass(name: str, tmp_path: Path) -> None:
    """Neither root nor apt-get: one of the two is missing wherever the tests run."""
    for tool in ("bash", "dirname", "id"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    done = subprocess.run(
        [str(tmp_path / "bash"), str(CONTAINERS / f"check_{name}.sh")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 77
    assert "skipped: " in done.stdout


def common(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a few lines as a check would, without waiting between attempts."""
    head = f". {CONTAINERS}/common.sh\nsleep() {{ :; }}\ncd {folder}\n"
    return subprocess.run(
        ["bash", "-c", head + script], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (1, 0), (2, 1)])
def test_a_mirror_may_fail_once(tmp_path: Path, failures: int, code: int) -> None:
    fetch = f'fetch() {{ echo x >>tries; [ "$(wc -l <tries)" -gt {failures} ]; }}\n'
    done = common(fetch + "twice log fetch && pass fetched || fail 'not fetched'", tmp_path)
    assert done.returncode == code
    assert (tmp_path / "tries").read_text().count("x") == min(failures + 1, 2)


@pytest.mark.parametrize(
    ("line", "network"),
    [
        ("E: Failed to fetch http://mirror/x.deb  Connection timed out", True),
        ("E: Unable to connect to mirror:http:", True),
        ("W: Temporary failure resolving 'mirror'", True),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.", True),
        ("ERROR: HTTP error 503 while getting https://index/x.whl", True),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", False),
        ("ERROR: No matching distribution found for torch==9.9", False),
        ("E: Unable to locate package python9", False),
        ("bids-gevnet 0.1.0 requires tqdm, which is not installed.", False),
    ],
)
def test_only_the_network_excuses_a_build_that_failed(
    tmp_path: Path, line: str, network: bool
) -> None:
    (tmp_path / "log").write_text(f"Collecting numpy\n{line}\n")
    verdict = "if unreachable log; then skip network; fi; fail build"
    assert common(verdict, tmp_path).returncode == (77 if network else 1)
    # What a second attempt of pip mended does not excuse what came much later.
    with (tmp_path / "log").open("a") as stream:
        stream.write("Collecting another package\n" * 20 + "SyntaxError: invalid syntax\n")
    assert common(verdict, tmp_path).returncode == 1


def test_cleaning_up_does_not_change_the_verdict(tmp_path: Path) -> None:
    script = "tidy() { echo tidied; false; }\nmake_scratch name 0 tidy\n"
    for line, code in (("exit 0", 0), ("skip reason", 77), ("fail reason", 1)):
        done = common(f"CHECK_TMP={tmp_path}\n{script}{line}", tmp_path)
        assert (done.returncode, "tidied" in done.stdout) == (code, True)
        assert "line" not in done.stdout
    assert list(tmp_path.iterdir()) == []
