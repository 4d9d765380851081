# Shared by the checks; sourced, not run.
#
# Exit codes of a check: 0 all was run and is right; 1 something is wrong; 77 skipped, because this
# machine cannot run it. 77 is not success: make fails with it, and nothing passes by skipping.
set -euo pipefail
SKIPPED=77
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
started=$SECONDS
passed=0
# Nothing ends without a word.
trap 'say "FAILED: line $LINENO: $BASH_COMMAND"' ERR

say() { printf '[%4ds] %s\n' $((SECONDS - started)) "$*"; }
skip() { say "skipped: $*"; exit "$SKIPPED"; }
fail() { say "FAILED: $*"; exit 1; }
pass() { passed=$((passed + 1)); say "ok: $*"; }

# expect CODE WHAT COMMAND...: run a command, show it and what it prints, compare its exit code.
expect() {
    local wanted=$1 what=$2 code=0
    shift 2
    say "run: $*"
    "$@" || code=$?
    [ "$code" = "$wanted" ] || fail "$what: exit code $code, expected $wanted"
    pass "$what (exit code $code)"
}

need_root() {
    [ "$(id -u)" = 0 ] || skip "$1 needs root here"
    command -v apt-get >/dev/null || skip "$1 installs Debian packages, and there is no apt-get"
}

# install_packages PACKAGE...: those that are missing, from the mirrors that apt already uses.
install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$' \
            || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    {
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}" \
            || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes \
                --no-install-recommends "${missing[@]}"; }
    } >"$scratch/apt.log" 2>&1 || { tail -n 5 "$scratch/apt.log"; skip "apt cannot install ${missing[*]}"; }
}

# Of the main archive: the label tells it from security updates.
debian_mirror() { apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | sed -n 1p; }

# make_root SUITE FOLDER [DEBOOTSTRAP OPTION...]
make_root() {
    local mirror
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || skip "apt knows no Debian mirror to make a base from"
    say "debootstrap $1 (stand-in for the base image)"
    debootstrap --variant=minbase --include=ca-certificates "${@:3}" "$1" "$2" "$mirror" \
        >"$scratch/debootstrap.log" 2>&1 \
        || { tail -n 5 "$scratch/debootstrap.log"; skip "debootstrap cannot make a base"; }
}

pip_setting() { python3 -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | sed -n 1p; }

# pip_mounts: fill `mounts` with what pip in a build needs of this machine's pip settings:
# certificates, a settings file, and the folders of packages that these settings name.
pip_mounts() {
    local certificates name value folder
    certificates=$(pip_setting cert)
    [ -n "$certificates" ] || certificates=/etc/ssl/certs/ca-certificates.crt
    mounts=(--volume "$certificates:/run/pip/certificates.crt:ro" --volume "$scratch/pip.conf:/etc/pip.conf:ro")
    {
        echo "[global]"
        echo "cert = /run/pip/certificates.crt"
        for name in index-url extra-index-url find-links; do
            value=$(pip_setting $name)
            [ -z "$value" ] || echo "$name = $value"
        done
    } >"$scratch/pip.conf"
    for folder in $(sed -n 's/^find-links = //p' "$scratch/pip.conf" | tr ' ' '\n') \
        $(grep -o 'file://[^ ]*' "$scratch/pip.conf" | sed 's,^file://,,; s,/simple/*$,,'); do
        [ ! -d "$folder" ] || mounts+=(--volume "$folder:$folder:ro")
    done
}

# export_source FOLDER: what git knows and what it would add; nothing else.
export_source() {
    mkdir -p "$1"
    (cd "$repo" && git ls-files -z --cached --others --exclude-standard) \
        | (cd "$repo" && tar --create --null --no-recursion --files-from - --ignore-failed-read) \
        | tar --extract --directory "$1"
}

# digest FOLDER: one line that changes with any name, byte or mode below the folder.
digest() {
    (cd "$1" && find . -printf '%p %m %y %T@\n' | sort; cd "$1" && find . -type f -print0 | sort -z \
        | xargs -0 sha256sum) | sha256sum | cut -d ' ' -f 1
}
