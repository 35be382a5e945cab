#!/usr/bin/env bash
# Makes .venv from requirements-dev.lock (hashes checked) and puts the `sentinel` command into it.
# With the argument "test" it also sees to the system tools that the tests use.
# Does nothing, in a few milliseconds, when all of it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
lock=requirements-dev.lock

fail() {
    echo "setup: $*" >&2
    exit 1
}

# Installs Debian packages where we may; else says which ones are missing and how to get them.
apt_install() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || fail "missing: $*. Install with: apt-get install $*"
        as_root=(sudo -n)
    fi
    command -v apt-get >/dev/null || fail "missing: $* (Debian's names); install them and run this again"
    echo "setup: installing $*"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)
    "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null 2>&1 ||
        { "${apt[@]}" update </dev/null >/dev/null &&
            "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null; } ||
        fail "could not install $*"
}

new_enough='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$name" -c "$new_enough" 2>/dev/null; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

# A venv holds absolute paths, so a moved checkout needs a new one.
wanted() {
    { pwd && sha256sum "$lock" && grep -A30 '^\[build-system\]' pyproject.toml; } | sha256sum | cut -d' ' -f1
}

install_python_side() {
    local stamp=$venv/.made-from hash python
    hash=$(wanted)
    [ -x $venv/bin/sentinel ] && [ "$(cat $stamp 2>/dev/null)" = "$hash" ] && return
    if ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
        python=$(find_python) || {
            apt_install python3 python3-venv
            python=$(find_python) || fail "Python 3.11 or newer with venv is needed (PYTHON=... names one)"
        }
        echo "setup: making $venv with $python"
        rm -rf $venv
        "$python" -m venv $venv
    fi
    echo "setup: installing the packages of $lock"
    $venv/bin/python -m pip install -q --disable-pip-version-check --no-input --only-binary=:all: \
        --require-hashes -r $lock
    $venv/bin/python -m pip install -q --disable-pip-version-check --no-input --no-deps \
        --no-build-isolation -e .
    echo "$hash" >$stamp
}

# command:package of what tests use; a C compiler builds the stand-in for NVIDIA's library, and the status page is
# looked at by a real browser.
install_test_tools() {
    local missing=() pair
    for pair in cc:gcc mkfs.ext4:e2fsprogs fsfreeze:util-linux losetup:mount grep:grep ip:iproute2 \
        git:git containerd:containerd runc:runc mpirun:openmpi-bin busybox:busybox-static chromium:chromium \
        promtool:prometheus prometheus-alertmanager:prometheus-alertmanager; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    if ! [ -e /usr/include/stdlib.h ]; then missing+=(libc6-dev); fi
    # Ranks that train for real. PyPI's PyTorch brings 5 GB of CUDA with it.
    if ! [ -e /usr/lib/python3/dist-packages/torch/__init__.py ]; then missing+=(python3-torch); fi
    if ! [ -e /usr/lib/cni/bridge ]; then missing+=(containernetworking-plugins); fi
    if [ ${#missing[@]} -gt 0 ]; then
        apt_install "${missing[@]}"
        for pair in "${missing[@]}"; do
            case $pair in prometheus*) end_service "$pair" ;; esac
        done
    fi
}

# Tests start their own: what the package has started for this machine ends, and does not begin again with it.
end_service() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
    if [ -d /run/systemd/system ]; then
        "${as_root[@]}" systemctl disable --now "$1" >/dev/null 2>&1 || fail "could not end the service $1"
    else
        "${as_root[@]}" "/etc/init.d/$1" stop >/dev/null 2>&1 || true
        "${as_root[@]}" update-rc.d "$1" disable >/dev/null 2>&1 || true
    fi
}

install_python_side
if [ "${1:-}" = test ]; then
    install_test_tools
    # Kubernetes' programs for the test cluster (docs/test-rig.md): some minutes the first time.
    $venv/bin/python -m tests.rig.binaries
fi
