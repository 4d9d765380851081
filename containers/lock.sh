#!/usr/bin/env bash
# make lock: pin the image's packages by version (constraints.txt) and by hash.
#
#   requirements.lock             dependencies, without torch and the one below
#   requirements-torch-cuda.lock  torch from PyPI with the CUDA libraries it brings
#   requirements-torch-cpu.lock   torch's CPU build
#   requirements-sdist.lock       the dependency that has no wheel on PyPI, built in the image
#   requirements-build.lock       what builds wheels
#
# The CPU build of torch is not on PyPI. It is taken from pip's find-links where pip has such a
# setting, else from PyTorch's own index; the lock holds the hash of the wheel found there, for
# the Python of Debian 12 (3.11).
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-$(command -v uv || true)}
[ -n "$uv" ] || { echo "lock: uv is needed (pip install uv, or UV=path/to/uv)" >&2; exit 2; }

# uv does not read pip's settings.
setting() { python3 -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | sed -n 1p; }
certificates=$(setting cert)
[ -z "$certificates" ] || export SSL_CERT_FILE="$certificates"
links=$(setting find-links)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

compile() { # compile NAME INPUT [OPTION...]
    "$uv" pip compile --quiet --no-config --no-header --no-annotate --generate-hashes \
        --python-version 3.11 --output-file "$folder/$1" "${@:3}" "$2" >/dev/null
}
pinned=(--constraint constraints.txt --universal)
sdists=(docopt)
where=()

compile build.lock - "${pinned[@]}" <<<$'build\nhatchling\npip\nsetuptools'
compile sdist.lock - "${pinned[@]}" < <(printf '%s\n' "${sdists[@]}")
compile all pyproject.toml "${pinned[@]}" "${sdists[@]/#/--no-emit-package=}"
# A package's lines begin with its name; those that follow are indented.
awk -v folder="$folder" '/^[^ #]/ {
        torch = /^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==/
    } { print > (folder "/" (torch ? "torch-cuda.lock" : "common.lock")) }' "$folder/all"
version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' constraints.txt)
[ -n "$links" ] || where=(--extra-index-url https://download.pytorch.org/whl/cpu)
python3 -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_x86_64 "${where[@]}" --dest "$folder/torch" "torch==$version+cpu"
printf 'torch==%s+cpu \\\n    --hash=sha256:%s\n' "$version" \
    "$(sha256sum "$folder"/torch/*.whl | cut -d ' ' -f 1)" >"$folder/torch-cpu.lock"

for part in common torch-cuda torch-cpu sdist build; do
    name=containers/requirements-$part.lock
    name=${name/-common/}
    {
        echo "# Made by 'make lock' from pyproject.toml and constraints.txt; do not edit."
        grep -v '^#' "$folder/$part.lock"
    } >"$name.part"
    mv "$name.part" "$name"
    echo "$name: $(grep -c '^[^ ].*==' "$name") packages"
done
