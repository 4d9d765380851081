#!/usr/bin/env bash
# make check-slurm: a SLURM cluster of two nodes on this machine, and the scripts of
# containers/slurm on it: array job, dependencies, training on both nodes, a job killed in
# mid-training, a job at its time limit, a job that must fail, and Nipype's SLURM plugin.
#
# BIN: where bids_gevnet, python and torchrun are (default: .venv/bin).
. "$(dirname "$0")/common.sh"
need_root "a SLURM cluster"
BIN=$(cd "${BIN:-$repo/.venv/bin}" && pwd) || fail "no environment; run make install"
export PATH="$BIN:$PATH"
command -v bids_gevnet torchrun >/dev/null || fail "bids_gevnet is not installed in $BIN"
scratch=$(mktemp -d "${CHECK_TMP:-/var/tmp}/check-slurm.XXXXXX")
chmod 755 "$scratch"
daemons=()
stop_cluster() {
    [ ! -s "$scratch/slurm.conf" ] || scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
    local name
    for name in "${daemons[@]}"; do
        [ ! -s "$scratch/$name.pid" ] || kill "$(cat "$scratch/$name.pid")" 2>/dev/null || true
    done
    sleep 2
}
trap 'stop_cluster; rm -rf "$scratch"' EXIT

install_packages slurm-wlm munge

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
start_cluster() {
    local host node
    host=$(hostname -s)
    head -c 1024 /dev/urandom >"$scratch/munge.key"
    chmod 600 "$scratch/munge.key"
    mkdir "$scratch/state"
    cat >"$scratch/slurm.conf" <<CONF
ClusterName=check
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmUser=root
AuthInfo=socket=$scratch/munge.socket,cred_expire=10
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool-%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd-%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=3600
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=1 State=UNKNOWN
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=120 State=UP
CONF
    export SLURM_CONF="$scratch/slurm.conf"
    daemons=(munged)
    munged --force --key-file="$scratch/munge.key" --socket="$scratch/munge.socket" \
        --pid-file="$scratch/munged.pid" --log-file="$scratch/munged.log" \
        --seed-file="$scratch/munge.seed" || skip "munged does not start"
    daemons+=(slurmctld)
    slurmctld -c || skip "slurmctld does not start"
    for node in one two; do
        daemons+=("slurmd-$node")
        slurmd -c -N $node || skip "slurmd does not start"
    done
    for _ in $(seq 30); do
        [ "$(sinfo --noheader --states=idle --format=%D)" != 2 ] || return 0
        sleep 1
    done
    sinfo || true
    skip "the two nodes do not become idle"
}
start_cluster
sinfo
expect 0 "both nodes answer" srun --nodes=2 --ntasks-per-node=1 bash -c 'echo "$SLURM_NODEID $SLURMD_NODENAME"'
expect 3 "exit codes come through srun" srun --nodes=1 sh -c 'exit 3'

# state JOB: of the whole job, or the states of all tasks of an array.
state() { scontrol --oneliner show job "$1" | grep -o 'JobState=[A-Z_]*' | cut -d = -f 2 | sort -u | paste -sd ,; }
wait_for() { # wait_for JOB STATE
    local now
    while true; do
        now=$(state "$1")
        [ "$now" != "$2" ] || return 0
        case $now in
            *PENDING* | *RUNNING* | *COMPLETING* | *CONFIGURING* | *REQUEUE*) sleep 1 ;;
            *) return 1 ;;
        esac
    done
}
logs_of() { tail -n +1 "$1"/logs/slurm/*.log; }
number() { sed -n "s/^$1: job \([0-9]*\).*/\1/p" "$scratch/submitted"; }
submit() { # submit OUTPUT: leaves the job numbers in $array and $group
    "$repo/containers/slurm/submit.sh" "$scratch/data" "$1" | tee "$scratch/submitted"
    array=$(number participants)
    group=$(number group)
}
finish() { # finish JOB OUTPUT
    wait_for "$1" COMPLETED || { logs_of "$2"; scontrol show job "$1"; fail "job $1 is $(state "$1")"; }
}
weights() { (cd "$1/models" && find . -name model.safetensors -print0 | sort -z | xargs -0 sha256sum); }

small="--time=30 --cpus-per-task=1 --mem=0"
export PARTICIPANT_SBATCH=$small GROUP_SBATCH=$small MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1
export PARTICIPANT_OPTIONS="--output-resolution 12 --correction none"
export GROUP_OPTIONS="--folds 2 --epochs 3 --samples-per-class 8 -v"
bids_gevnet_phantom "$scratch/data" --groups AD,PD --per-group 2 --sites 1 --voxel-mm 9 \
    --directions 16 >/dev/null
before=$(digest "$scratch/data")

say "the chain: an array over participants, then training on two nodes"
whole=$scratch/whole
submit "$whole"
[ "$(state "$group")" = PENDING ] || fail "training did not wait for the participants"
finish "$array" "$whole"
pass "array job $array: four participants"
finish "$group" "$whole"
logs_of "$whole" | grep -E 'node [01] of 2 is|participants done|epoch 3/3|AD v. PD'
[ "$(logs_of "$whole" | grep -cE 'node [01] of 2 is (one|two)')" = 2 ] || fail "not on two nodes"
[ "$(weights "$whole" | wc -l)" = 3 ] && [ -s "$whole/group_predictions.tsv" ] || fail "models are missing"
pass "group job $group: three models trained on two nodes"

# begin OUTPUT: submit the group level on the same participants and come back in mid-training.
begin() {
    mkdir "$1"
    cp -r "$whole"/sub-* "$whole/dataset_description.json" "$1"
    LEVELS=group submit "$1"
    until [ -n "$(find "$1/work/group/jobs" -name checkpoint.safetensors 2>/dev/null)" ]; do
        [[ $(state "$group") =~ PENDING|RUNNING|CONFIGURING ]] || { logs_of "$1"; fail "no checkpoint"; }
        sleep 0.2
    done
}

say "a job killed in mid-training, and submitted again"
killed=$scratch/killed
begin "$killed"
# As a node that loses power: every process of the step at once, without a chance to write.
for process in $(grep --files-with-matches --no-messages --null-data "$killed/work/group/jobs.json" \
    /proc/[0-9]*/cmdline | cut -d / -f 3); do
    kill -KILL "$process" 2>/dev/null || true # grep finds itself too
done
wait_for "$group" FAILED || fail "the killed job is $(state "$group")"
[ ! -e "$killed/models/AD-v-PD/final" ] || fail "it was killed too late to mean anything"
pass "job $group was killed with a checkpoint and without a final model"
LEVELS=group submit "$killed"
finish "$group" "$killed"
logs_of "$killed" | grep 'going on from step' || fail "it began from the beginning"
[ "$(weights "$killed")" = "$(weights "$whole")" ] || fail "other weights than without interruption"
pass "resumed to the same weights, byte for byte"

say "a job at its time limit (SIGUSR1 to the batch shell, as --signal=B:USR1 sends it)"
limited=$scratch/limited
begin "$limited"
dependent=$(sbatch --parsable --dependency="afterok:$group" --output="$scratch/dependent.log" \
    --wrap "echo after job $group")
scancel --batch --signal=USR1 "$group"
until [[ $(scontrol show job "$group") = *Restarts=1* ]]; do
    [[ $(state "$group") =~ PENDING|RUNNING|COMPLETING|REQUEUE ]] || { logs_of "$limited"; fail "not requeued: $(state "$group")"; }
    sleep 0.5
done
[ "$(state "$dependent")" = PENDING ] || fail "the dependent job did not go on waiting"
pass "job $group went back into the queue; what depends on it waits"
finish "$group" "$limited"
finish "$dependent" "$limited"
logs_of "$limited" | grep -E 'near the time limit|back into the queue|a signal to stop|going on from step'
logs_of "$limited" | grep 'going on from step' >/dev/null \
    || { logs_of "$limited"; fail "it began from the beginning"; }
[ "$(weights "$limited")" = "$(weights "$whole")" ] || fail "other weights than without interruption"
pass "resumed by itself to the same weights, byte for byte"

say "a job that must fail"
GROUP_OPTIONS="--folds 9" LEVELS=group submit "$limited"
wait_for "$group" FAILED || fail "job $group is $(state "$group")"
scontrol show job "$group" | grep -o 'ExitCode=.*' | grep 'ExitCode=2:0' || fail "another exit code"
pass "exit code 2 of the group level is the job's"

say "Nipype's SLURM plugin"
sed "s/^sbatch_args.*/sbatch_args = \"$small\"/" "$repo/containers/slurm/nipype.toml" >"$scratch/nipype.toml"
jobs_before=$(sbatch --parsable --wrap true --output=/dev/null)
# shellcheck disable=SC2086 # several options in one variable
expect 0 "participant level through --use-plugin" bids_gevnet "$scratch/data" "$scratch/nipype" participant \
    --participant-label 001 --skip-bids-validation --use-plugin "$scratch/nipype.toml" $PARTICIPANT_OPTIONS
jobs_after=$(sbatch --parsable --wrap true --output=/dev/null)
[ $((jobs_after - jobs_before)) -gt 5 ] || fail "Nipype submitted $((jobs_after - jobs_before - 1)) jobs"
pass "Nipype submitted $((jobs_after - jobs_before - 1)) jobs"
image=sub-001/dwi/sub-001_space-MNI152NLin2009aSym_res-12_desc-healpix_dwi.nii.gz
cmp "$scratch/nipype/$image" "$whole/$image" || fail "other samples than from the array job"
pass "the same samples as from the array job"

[ "$(digest "$scratch/data")" = "$before" ] || fail "the input was changed"
pass "input is the same, byte for byte"
say "check-slurm: all $passed checks passed"
