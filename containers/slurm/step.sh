# Run the steps of a job so that its time limit does no harm; sourced by the .sbatch files.
#
# SLURM sends SIGUSR1 to the batch shell before the limit (--signal=B:USR1@300). The shell passes
# it on to the step, training writes a checkpoint between two steps, and the job goes back into
# the queue under its own number: jobs that depend on it go on waiting. What was done is not done
# again: training goes on from the checkpoint, preprocessing from its work directory.
# srun has not taken this from sbatch by itself since SLURM 22.05.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

interrupted=0
step=
stop() {
    interrupted=1
    echo "$(date +%T) near the time limit: stopping job $SLURM_JOB_ID"
    [ -z "$step" ] || kill -USR1 "$step" 2>/dev/null || true
}
trap stop USR1

# run_step COMMAND...: like the command, but the shell hears signals while it runs.
run_step() {
    local code=0
    "$@" &
    step=$!
    # A signal ends "wait" early; ask again until the step itself has ended.
    while true; do
        code=0
        wait "$step" || code=$?
        kill -0 "$step" 2>/dev/null || break
    done
    step=
    [ $interrupted = 0 ] || requeue
    return $code
}

requeue() {
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_RESTARTS" ]; then
        echo "restarted $MAX_RESTARTS times: giving up; submit.sh goes on from here"
        exit 1
    fi
    echo "$(date +%T) back into the queue (restart $((${SLURM_RESTART_COUNT:-0} + 1)))"
    local job=$SLURM_JOB_ID
    [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    scontrol requeue "$job"
    sleep 60 # SLURM ends this shell
    exit 1
}

# What jobs run by: nothing, or the container. --cleanenv keeps the node's variables out of it, and
# APPTAINERENV_ brings these back; they are read on the node, because nodes differ.
inside=()
if [ -n "$SIF" ]; then
    # shellcheck disable=SC2016,SC2206 # expanded there, not here; several options in one variable
    inside=(bash -c '
        for name in BIDS_GEVNET_DEVICE CUDA_VISIBLE_DEVICES PET_NODE_RANK; do
            [ -z "${!name:-}" ] || export "APPTAINERENV_$name=${!name}"
        done
        exec "$@"' inside apptainer exec $APPTAINER_OPTIONS --bind "$BIDS_DIR:$BIDS_DIR:ro"
        --bind "$OUTPUT_DIR" --bind "$WORK_DIR" "$SIF")
fi
