#!/usr/bin/env bash
# submit.sh BIDS_DIR OUTPUT_DIR [WORK_DIR]: all participants, then the group level, on SLURM.
#
# Two jobs: an array over participants, and training on several nodes that waits for it. Both go
# back into the queue before their time limit and go on where they were. The same command again
# does the same: what is finished is left alone, so it is also the way to go on after a failure
# or a cancelled job. settings.sh has what to change for a cluster; all of it can be set in the
# environment. LEVELS=group (or participant) submits one level only.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
command -v sbatch >/dev/null || { echo "submit.sh: there is no sbatch here" >&2; exit 2; }
SCRIPTS=$(cd "$(dirname "$0")" && pwd)
BIDS_DIR=$(cd "$1" && pwd)
mkdir -p "$2/logs/slurm"
OUTPUT_DIR=$(cd "$2" && pwd)
mkdir -p "${3:-$OUTPUT_DIR/work}"
WORK_DIR=$(cd "${3:-$OUTPUT_DIR/work}" && pwd)
logs=$OUTPUT_DIR/logs/slurm
PARTICIPANTS=$logs/participants.txt
export SCRIPTS BIDS_DIR OUTPUT_DIR WORK_DIR PARTICIPANTS
. "$SCRIPTS/settings.sh"

find "$BIDS_DIR" -mindepth 1 -maxdepth 1 -type d -name 'sub-*' -printf '%f\n' \
    | sed 's/^sub-//' | sort >"$PARTICIPANTS"
count=$(wc -l <"$PARTICIPANTS")
[ "$count" -gt 0 ] || { echo "submit.sh: no sub-* folders in $BIDS_DIR" >&2; exit 2; }
tasks=$((count < MAX_TASKS ? count : MAX_TASKS))

levels=${LEVELS:-participant group}
after=()
# shellcheck disable=SC2086 # several options in one variable
if [[ $levels = *participant* ]]; then
    array=$(sbatch --parsable --array="1-$tasks%$AT_ONCE" --output="$logs/participant-%A_%a.log" \
        $PARTICIPANT_SBATCH "$SCRIPTS/participant.sbatch")
    echo "participants: job $array, $count in $tasks tasks"
    after=(--dependency="$AFTER:$array" --kill-on-invalid-dep=yes)
fi
# shellcheck disable=SC2086
if [[ $levels = *group* ]]; then
    group=$(sbatch --parsable "${after[@]}" --output="$logs/group-%j.log" $GROUP_SBATCH \
        "$SCRIPTS/group.sbatch")
    echo "group: job $group${after[0]:+, $AFTER $array}"
fi
echo "logs: $logs"
