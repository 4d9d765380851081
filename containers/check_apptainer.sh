#!/usr/bin/env bash
# make check-apptainer: turn the image into an Apptainer image and run both levels in it, as an
# ordinary user, without network and with the input bound read-only.
#
# IMAGE_ARCHIVE: a docker archive from SAVE_IMAGE of check_container.sh; without it the image is
# built first. Apptainer itself comes from Debian unstable, in a Debian 13 root below /var/tmp,
# because Debian 12 has neither the package nor a libc that is new enough for it.
. "$(dirname "$0")/common.sh"
. "$(dirname "$0")/image.sh"
need_root "building an Apptainer root"
make_scratch check-apptainer 20 stop_podman
[ -c /dev/fuse ] || modprobe fuse 2>/dev/null || skip "there is no /dev/fuse"
unshare --user --map-root-user true 2>/dev/null || skip "user namespaces are switched off"

share=$scratch/share
mkdir "$share"
if [ -n "${IMAGE_ARCHIVE:-}" ]; then
    [ -s "$IMAGE_ARCHIVE" ] || fail "no such file: $IMAGE_ARCHIVE"
    cp --reflink=auto "$IMAGE_ARCHIVE" "$share/image.tar"
else
    sandbox=(--network none)
    start_podman
    make_base
    build_image open bids_gevnet
    podman save --quiet --format docker-archive --output "$share/image.tar" bids_gevnet
    stop_podman
fi
unset TMPDIR

install_packages debootstrap
root=$scratch/root
make_root trixie "$root"
# As on an installed system; torchrun looks up localhost and its own machine, without network.
printf "127.0.0.1 localhost\n127.0.1.1 %s\n" "$(hostname)" >"$root/etc/hosts"

# enter COMMAND...: run it in the root, in mounts of its own; Apptainer needs a root that is no
# chroot. /dev/fuse is opened to everybody there, and there only.
enter() {
    unshare --mount --propagation private bash -euc '
        root=$1; share=$2; shift 2
        mount --bind "$root" "$root"
        cd "$root"
        mkdir -p share old
        mount --bind "$share" share
        mount -t proc proc proc
        mount --rbind /sys sys
        mount -t tmpfs -o mode=755 dev dev
        for name in null zero full random urandom tty; do
            touch dev/$name
            mount --bind /dev/$name dev/$name
        done
        mknod -m 666 dev/fuse c 10 229
        mkdir -p dev/shm dev/pts
        mount -t tmpfs -o mode=1777 shm dev/shm
        mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
        ln -s pts/ptmx dev/ptmx
        ln -s /proc/self/fd dev/fd
        for number in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${number%:*} dev/${number#*:}; done
        mount -t tmpfs -o mode=755 run run
        cat /etc/resolv.conf >etc/resolv.conf 2>/dev/null || true
        pivot_root . old
        umount --lazy /old
        cd /
        exec chroot / env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root LANG=C.UTF-8 "$@"' enter "$root" "$share" "$@"
}

say "installing Apptainer from unstable"
mirror=$(debian_mirror)
echo "deb $mirror unstable main" >"$root/etc/apt/sources.list.d/unstable.list"
printf 'Package: *\nPin: release a=unstable\nPin-Priority: 100\n' >"$root/etc/apt/preferences.d/unstable"
grep -lis proxy /etc/apt/apt.conf.d/* | while read -r file; do
    cp "$file" "$root/etc/apt/apt.conf.d/"
done || true # grep finds nothing where there is no proxy
twice "$scratch/apptainer.log" enter bash -ec '
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o Acquire::Check-Valid-Until=false update
    apt-get install --yes --no-install-recommends apptainer squashfuse fuse-overlayfs fakeroot uidmap' \
    || { tail -n 5 "$scratch/apptainer.log"; skip "Apptainer cannot be installed from unstable"; }
expect 0 "Apptainer is there" enter apptainer --version

export_source "$scratch/source"
cp "$scratch/source/containers/bids_gevnet.def" "$share/"
# zstd at its fastest: four times faster than gzip, for an image that is thrown away.
build='cd /share && export APPTAINER_TMPDIR=/share/tmp && mkdir -p tmp && apptainer build \
    --mksquashfs-args "-comp zstd -Xcompression-level 1" --build-arg BOOTSTRAP=docker-archive \
    --build-arg IMAGE=image.tar bids_gevnet.sif bids_gevnet.def'
expect 0 "image built from the definition, its %test run" enter unshare --user \
    --map-users=0,0,65536 --map-groups=0,0,65536 --mount bash -ec "$build"
rm -rf "$share/image.tar" "$share/tmp"
say "$(du -h "$share/bids_gevnet.sif" | cut -f 1) bids_gevnet.sif"

# An ordinary user of that system, who owns the output and nothing else.
enter useradd --uid 23456 --create-home --shell /bin/bash person
mkdir "$share/data" "$share/out"
chown 23456:23456 "$share/data" "$share/out"
chmod 755 "$share"
as_person() { enter setpriv --reuid 23456 --regid 23456 --init-groups env HOME=/home/person USER=person "$@"; }
sif=/share/bids_gevnet.sif
# --containall leaves /etc/hosts out, where torchrun finds localhost.
isolated=(--cleanenv --containall --no-home --net --network none --bind /etc/hosts)
offline=(as_person apptainer run "${isolated[@]}" --bind /share/data:/data:ro --bind /share/out:/out "$sif")

as_person apptainer run-help "$sif" >"$scratch/help" || fail "no help"
grep -e --nv "$scratch/help" || fail "the help does not mention --nv"
pass "help"
expect 0 "%test as the user" as_person apptainer test "${isolated[@]}" "$sif"
expect 0 "user, read-only root and no network inside" as_person apptainer exec "${isolated[@]}" "$sif" python -c '
import os, socket
assert os.getuid() == 23456
try:
    open("/opt/bids_gevnet/probe", "w")
except OSError as error:
    print("root:", error)
else:
    raise SystemExit("the image can be written to")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=3)
except OSError as error:
    print("network:", error)
else:
    raise SystemExit("there is a network")'
expect 0 "phantom cohort" as_person apptainer exec "${isolated[@]}" --bind /share/data:/data "$sif" \
    bids_gevnet_phantom /data --groups AD,PD --per-group 2 --sites 1 --voxel-mm 9 --directions 16
before=$(digest "$share/data")
fast=(--output-resolution 12 --correction none)
small=(--folds 2 --epochs 1 --samples-per-class 2 -v)
expect 0 "participant level" "${offline[@]}" /data /out participant "${fast[@]}"
expect 0 "group level, two training processes" "${offline[@]}" /data /out group "${small[@]}" --devices cpu:2
[ -s "$share/out/models/AD-v-PD/final/model.safetensors" ] || fail "no model"

say "the SLURM jobs with SIF; check-slurm has a real SLURM, here a few lines stand in for srun"
mkdir "$share/cluster" "$share/cluster/work" "$share/bin"
cp -r "$repo/containers/slurm" "$share/slurm"
cp -r "$share/out"/sub-00[234]* "$share/out/dataset_description.json" "$share/cluster"
printf '001\n' >"$share/cluster/participants.txt"
cat >"$share/bin/srun" <<'SRUN'
#!/bin/bash
nodes=2 code=0 processes=()
while [[ $1 = --* ]]; do
    case $1 in --nodes=1 | --ntasks=1) nodes=1 ;; esac
    shift
done
for ((node = 0; node < nodes; node++)); do
    SLURM_NODEID=$node SLURMD_NODENAME=node$node "$@" &
    processes+=($!)
done
for process in "${processes[@]}"; do wait "$process" || code=$?; done
exit $code
SRUN
chmod 755 "$share/bin/srun"
chown -R 23456:23456 "$share/cluster"
job=(as_person env PATH=/share/bin:/usr/bin:/bin:/usr/sbin:/sbin SCRIPTS=/share/slurm SIF="$sif" BIDS_DIR=/share/data
    OUTPUT_DIR=/share/cluster WORK_DIR=/share/cluster/work PARTICIPANTS=/share/cluster/participants.txt
    PARTICIPANT_OPTIONS="${fast[*]}" GROUP_OPTIONS="${small[*]}" MASTER_ADDR=127.0.0.1
    SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST="node[0-1]"
    SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=1)
expect 0 "participant.sbatch in Apptainer" "${job[@]}" bash /share/slurm/participant.sbatch
expect 0 "group.sbatch in Apptainer, one training process on each of two nodes" \
    "${job[@]}" bash /share/slurm/group.sbatch
model=models/AD-v-PD/final/model.safetensors
cmp "$share/cluster/$model" "$share/out/$model" || fail "other weights than from two processes of one node"
pass "the same weights as from two processes in one container, byte for byte"

expect 2 "a run that must fail" "${offline[@]}" /data /out participant --participant-label 999
[ "$(digest "$share/data")" = "$before" ] || fail "the input was changed"
pass "input is the same, byte for byte"
[ -z "$(find "$share/out" ! -uid 23456)" ] || fail "output of another owner"
pass "all output belongs to the user who ran it"
say "check-apptainer: all $passed checks passed"
