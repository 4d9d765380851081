# Build the image without a Docker daemon; sourced by the checks after common.sh.

# start_podman: podman with settings and storage of its own, all of it below $scratch.
start_podman() {
    install_packages buildah podman runc debootstrap fuse-overlayfs uidmap
    mkdir -p "$scratch/storage" "$scratch/run" "$scratch/tmp"
    cat >"$scratch/containers.conf" <<'CONF'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
CONF
    printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' \
        "$scratch/storage" "$scratch/run" >"$scratch/storage.conf"
    export CONTAINERS_CONF="$scratch/containers.conf" CONTAINERS_STORAGE_CONF="$scratch/storage.conf"
    export BUILDAH_ISOLATION=chroot TMPDIR="$scratch/tmp"
    podman info >"$scratch/podman.log" 2>&1 \
        || { tail -n 3 "$scratch/podman.log"; skip "podman does not work here"; }
}

stop_podman() {
    [ ! -e "$scratch/storage.conf" ] || podman rm --all --force >/dev/null 2>&1 || true
    awk -v below="$scratch/" 'index($2, below) == 1 {print $2}' /proc/mounts | sort -r \
        | while read -r place; do umount "$place" || umount --lazy "$place"; done
}

# make_base: Debian 12 in place of NVIDIA's image, and a micromamba that installs empty files in
# place of FSL's programs. Whether podman builds and runs anything on this machine is seen with
# these, before anything of ours is in question.
make_base() {
    make_root bookworm "$scratch/base"
    tar --create --directory "$scratch/base" . | podman import --quiet - localhost/stand-in:latest \
        >/dev/null
    rm -rf "$scratch/base"
    mkdir "$scratch/stand-in"
    cat >"$scratch/stand-in/micromamba" <<'MICROMAMBA'
#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/bin" "$2/conda-meta"
cd "$2/bin" && touch bet eddy_cpu eddy_cuda11.0 fslmaths python topup && chmod 755 ./*
MICROMAMBA
    printf '%s\n' "FROM localhost/stand-in:latest" "COPY micromamba /bin/micromamba" \
        "RUN chmod 755 /bin/micromamba" >"$scratch/stand-in/Dockerfile"
    podman build --tag localhost/micromamba:latest "$scratch/stand-in" >"$scratch/podman.log" 2>&1 \
        || { tail -n 3 "$scratch/podman.log"; skip "podman cannot build an image here"; }
    podman run --rm "${sandbox[@]}" localhost/micromamba:latest true >"$scratch/podman.log" 2>&1 \
        || { tail -n 3 "$scratch/podman.log"; skip "podman cannot run a container here"; }
}

# run_build TARGET TAG [OPTION...]: the Dockerfile, with torch's CPU build on the stand-in base.
run_build() {
    podman build --target "$1" --tag "$2" "${mounts[@]}" \
        --build-arg BASE_IMAGE=localhost/stand-in:latest --build-arg TORCH=cpu \
        --build-arg MICROMAMBA_IMAGE=localhost/micromamba:latest \
        --build-arg REVISION="$(git -C "$repo" rev-parse HEAD 2>/dev/null || echo unknown)" \
        "${@:3}" "$scratch/source"
}

# build_image TARGET TAG [OPTION...]: the same, with what pip needs; it comes back with an image.
build_image() {
    [ -d "$scratch/source" ] || export_source "$scratch/source"
    pip_mounts
    say "building the target $1"
    twice "$scratch/build.log" run_build "$@" && return
    tail -n 40 "$scratch/build.log"
    if unreachable "$scratch/build.log"; then skip "packages for the image cannot be had"; fi
    fail "the target $1 does not build"
}
