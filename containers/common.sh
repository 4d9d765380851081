# Shared by the checks; sourced, not run.
#
# Exit codes of a check: 0 all was run and is right; 1 something is wrong; 77 skipped, because this
# machine cannot run it. 77 is not success: make fails with it, and nothing passes by skipping.
# CHECK_LOG=FILE keeps what a check says of itself; its last line is the verdict.
# CHECK_TMP=FOLDER is used in place of /var/tmp.
set -euo pipefail
SKIPPED=77
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
started=$SECONDS
passed=0
# Nothing ends without a word.
trap 'say "FAILED: line $LINENO: $BASH_COMMAND"' ERR

say() {
    local line
    printf -v line '[%4ds] %s' $((SECONDS - started)) "$*"
    echo "$line"
    echo "$line" >>"${CHECK_LOG:-/dev/null}"
}
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

# make_scratch NAME GIGABYTES COMMAND...: a folder of our own; at the end, whatever that is, the
# command is run and the folder removed. Cleaning up decides nothing.
make_scratch() {
    local free
    scratch=$(mktemp -d "${CHECK_TMP:-/var/tmp}/$1.XXXXXX") || skip "no folder can be made for $1"
    chmod 755 "$scratch"
    at_end=("${@:3}")
    trap clean_up EXIT
    free=$(df --output=avail --block-size=1G "$scratch" | tail -n 1)
    [ "$free" -ge "$2" ] || skip "$2 GB are needed below ${CHECK_TMP:-/var/tmp}, ${free// /} are free"
}
clean_up() {
    set +e
    trap - ERR
    "${at_end[@]}"
    rm -rf --one-file-system "$scratch"
}

# twice LOG COMMAND...: mirrors have hiccups; what a second attempt mends is no failure.
twice() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 && return
    say "once more, after: $(tail -n 1 "$log" | cut -c 1-160)"
    sleep 10
    "$@" >"$log" 2>&1
}
# Whether a log that ended badly ends with the network, not with us.
unreachable() {
    tail -n 15 "$1" | grep -qiE "temporary failure|could not (resolve|connect)|unable to connect\
|connection (refused|reset|timed out|broken)|failed to (fetch|establish)|(read|connect) ?time(d )?out\
|remote end closed|IncompleteRead|HTTP error 5|hash sum mismatch\
|5[0-9][0-9] (Server Error|Bad Gateway|Service Unavailable|Gateway)"
}

# install_packages PACKAGE...: those that are missing, from the mirrors that apt already uses.
install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$' \
            || missing+=("$package")
    done
    [ ${#missing[@]} != 0 ] || return 0
    say "installing ${missing[*]}"
    apt_install "${missing[@]}" >"$scratch/apt.log" 2>&1 \
        || twice "$scratch/apt.log" apt_install_afresh "${missing[@]}" \
        || { tail -n 5 "$scratch/apt.log"; skip "apt cannot install ${missing[*]}"; }
}
# A mirror that is not there is given up early, and another apt waited for.
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::http::Timeout=30
    -o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=120)
apt_install() { "${apt[@]}" install --yes --no-install-recommends "$@"; }
apt_install_afresh() { "${apt[@]}" update && apt_install "$@"; }

# Of the main archive: the label tells it from security updates.
listed_mirror() { apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' | sed -n 1p; }
debian_mirror() {
    # Machines are often made without apt's lists.
    [ -n "$(listed_mirror)" ] || "${apt[@]}" update >/dev/null 2>&1 || true
    listed_mirror
}

# make_root SUITE FOLDER
make_root() {
    local mirror
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || skip "apt knows no Debian mirror to make a base from"
    say "debootstrap $1 (stand-in for the base image)"
    twice "$scratch/debootstrap.log" bootstrap "$1" "$2" "$mirror" \
        || { tail -n 5 "$scratch/debootstrap.log"; skip "debootstrap cannot make a base"; }
}
bootstrap() {
    rm -rf --one-file-system "$2"
    debootstrap --variant=minbase --include=ca-certificates "$@"
}

# pip_setting NAME: of this machine's pip; nothing where there is no pip or no such setting.
pip_setting() {
    { python3 -m pip config list 2>/dev/null || true; } | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | sed -n 1p
}
# pip_mounts: fill `mounts` with what pip in a build needs of this machine's pip settings:
# certificates, a settings file, and the folders of packages that these settings name.
pip_mounts() {
    local certificates name value folder
    certificates=$(pip_setting cert)
    [ -n "$certificates" ] || certificates=/etc/ssl/certs/ca-certificates.crt
    [ -s "$certificates" ] || skip "pip needs certificates, and there are none in $certificates"
    mounts=(--volume "$certificates:/run/pip/certificates.crt:ro" --volume "$scratch/pip.conf:/etc/pip.conf:ro")
    {
        echo "[global]"
        printf '%s\n' "cert = /run/pip/certificates.crt" "timeout = 60" "retries = 8"
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
    (cd "$repo" && git -c 'safe.directory=*' ls-files -z --cached --others --exclude-standard) \
        | (cd "$repo" && tar --create --null --no-recursion --files-from - --ignore-failed-read) \
        | tar --extract --directory "$1"
}

# digest FOLDER: one line that changes with any name, byte or mode below the folder.
digest() {
    (cd "$1" && find . -printf '%p %m %y %T@\n' | sort; cd "$1" && find . -type f -print0 | sort -z \
        | xargs -0 sha256sum) | sha256sum | cut -d ' ' -f 1
}
