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
daemons=()
stop_cluster() {
    local name
    [ ${#daemons[@]} != 0 ] || return 0
    scancel --full --signal=KILL --user="$(id -un)" >/dev/null 2>&1
    sleep 1
    for name in "${daemons[@]}"; do
        [ ! -s "$scratch/$name.pid" ] || stop_process "$(cat "$scratch/$name.pid")"
    done
}
# stop_process PID: by request, else by force.
stop_process() {
    kill "$1" 2>/dev/null
    for _ in $(seq 20); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.5
    done
    kill -KILL "$1" 2>/dev/null
}
make_scratch check-slurm 5 stop_cluster
install_packages slurm-wlm munge

# free_ports N: all different.
free_ports() {
    python3 -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))' "$1"
}
# A daemon that does not start is this machine's affair; it says why in its log.
start_daemon() { # start_daemon NAME COMMAND...
    daemons+=("$1")
    "${@:2}" >"$scratch/$1.start" 2>&1 </dev/null \
        || { cat "$scratch/$1.start"; skip "$1 does not start"; }
}
start_cluster() {
    local host node ports
    host=$(hostname -s)
    read -r -a ports < <(free_ports 3)
    head -c 1024 /dev/urandom >"$scratch/munge.key"
    chmod 600 "$scratch/munge.key"
    mkdir "$scratch/state"
    cat >"$scratch/slurm.conf" <<CONF
ClusterName=check
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
AuthInfo=socket=$scratch/munge.socket,cred_expire=20
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
MessageTimeout=60
MinJobAge=3600
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=1 State=UNKNOWN
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=120 State=UP
CONF
    export SLURM_CONF="$scratch/slurm.conf"
    start_daemon munged munged --force --key-file="$scratch/munge.key" \
        --socket="$scratch/munge.socket" --pid-file="$scratch/munged.pid" \
        --log-file="$scratch/munged.log" --seed-file="$scratch/munge.seed"
    start_daemon slurmctld slurmctld -c
    for node in one two; do
        start_daemon "slurmd-$node" slurmd -c -N $node
    done
    for _ in $(seq 60); do
        [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" != 2 ] || return 0
        sleep 1
    done
    tail -n 5 "$scratch"/slurm*.log
    skip "the two nodes do not become idle"
}
start_cluster
sinfo
# SLURM itself, before anything of ours is in question.
timeout 120 srun --nodes=2 --ntasks-per-node=1 bash -c 'echo "$SLURM_NODEID $SLURMD_NODENAME"' \
    || skip "jobs do not run on this machine's SLURM"
expect 3 "exit codes come through srun" srun --nodes=1 sh -c 'exit 3'

# state JOB: of the whole job, or the states of all tasks of an array.
# Nothing, for a moment, where the controller is too busy to answer.
state() {
    { scontrol --oneliner show job "$1" || true; } | { grep -o 'JobState=[A-Z_]*' || true; } \
        | cut -d = -f 2 | sort -u | paste -sd ,
}
wait_for() { # wait_for JOB STATE
    local now
    while true; do
        now=$(state "$1")
        [ "$now" != "$2" ] || return 0
        case $now in
            "" | *PENDING* | *RUNNING* | *COMPLETING* | *CONFIGURING* | *REQUEUE*) sleep 1 ;;
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
export GROUP_OPTIONS="--folds 2 --epochs 12 --samples-per-class 8 -v"
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
logs_of "$whole" | grep -E 'node [01] of 2 is|participants done|epoch 12/12|AD v. PD'
[ "$(logs_of "$whole" | grep -cE 'node [01] of 2 is (one|two)')" = 2 ] || fail "not on two nodes"
[ "$(weights "$whole" | wc -l)" = 3 ] && [ -s "$whole/group_predictions.tsv" ] || fail "models are missing"
pass "group job $group: three models trained on two nodes"

# until_seen OUTPUT WHAT COMMAND...: come back in mid-training, when the command succeeds.
until_seen() {
    until "${@:3}" >/dev/null 2>&1; do
        [[ $(state "$group") =~ ^$|PENDING|RUNNING|CONFIGURING|COMPLETING|REQUEUE ]] || { logs_of "$1"; fail "no $2"; }
        sleep 0.2
    done
}
checkpointed() { [ -n "$(find "$1/work/group/jobs" -name checkpoint.safetensors)" ]; }
resumed() { logs_of "$1" | grep 'resumed at step'; }

say "a job killed in mid-training, and submitted again"
stopped=$scratch/stopped
mkdir "$stopped"
cp -r "$whole"/sub-* "$whole/dataset_description.json" "$stopped"
LEVELS=group submit "$stopped"
until_seen "$stopped" checkpoint checkpointed "$stopped"
# As a node that loses power: every process of the step at once, without a chance to write.
for process in $(grep --files-with-matches --no-messages --null-data "$stopped/work/group/jobs.json" \
    /proc/[0-9]*/cmdline | cut -d / -f 3); do
    kill -KILL "$process" 2>/dev/null || true # grep finds itself too
done
wait_for "$group" FAILED || fail "the killed job is $(state "$group")"
[ ! -e "$stopped/models/AD-v-PD/final" ] || fail "it was killed too late to mean anything"
pass "job $group was killed with a checkpoint and without a final model"

LEVELS=group submit "$stopped"
until_seen "$stopped" resumption resumed "$stopped"
pass "job $group resumes from the checkpoint"

say "the same job at its time limit (SIGUSR1 to the batch shell, as --signal=B:USR1 sends it)"
dependent=$(sbatch --parsable --dependency="afterok:$group" --output="$scratch/dependent.log" \
    --wrap "echo after job $group")
scancel --batch --signal=USR1 "$group"
until_seen "$stopped" "requeued job" eval '[[ $(scontrol show job "$group") = *Restarts=1* ]]'
[ "$(state "$dependent")" = PENDING ] || fail "the dependent job did not go on waiting"
pass "job $group went back into the queue; what depends on it waits"
finish "$group" "$stopped"
finish "$dependent" "$stopped"
logs_of "$stopped" | grep -E 'near the time limit|back into the queue|resumed at step'
logs_of "$stopped" | grep 'a signal to stop' || { logs_of "$stopped"; fail "it did not stop by itself"; }
# Between two models there is no step to go on from.
[ "$(resumed "$stopped" | wc -l)" -ge 2 ] || logs_of "$stopped" | grep 'to stop at step 0 of' \
    || { logs_of "$stopped"; fail "it began from the beginning"; }
[ "$(weights "$stopped")" = "$(weights "$whole")" ] || fail "other weights than without interruption"
pass "interrupted twice, it came to the same weights, byte for byte"

say "a job that must fail"
GROUP_OPTIONS="--folds 9" LEVELS=group submit "$stopped"
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
