#!/usr/bin/env bash
# Makes .venv ready for `make demo`, `make test` and the like; does nothing, quickly, when it already is.
#
# Debian packages that are missing are installed when this is root, else the line to run is printed and the rest goes
# on without them. The environment comes from the system's Python, so that the distribution's pyverbs fits; only that
# one package is linked in, for --system-site-packages would bring the distribution's old libraries along.
# setup.sh tests also brings what only the tests need.
# PYTHON=/path/to/python3 chooses another interpreter. Runs at the same time wait for one another.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { echo "setup: $*" >&2; }

# What is needed, the Debian package that brings it, and a file that tells whether it is there.
missing_packages() {
    local missing=()
    [ -e /usr/bin/python3 ] || missing+=(python3)
    compgen -G '/usr/lib/python3*/ensurepip/__init__.py' >/dev/null || missing+=(python3-venv)
    [ -e /usr/lib/python3/dist-packages/pyverbs ] || missing+=(python3-pyverbs)
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
    command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
    if [ "$wanted" = tests ]; then
        # A small NVML is built from C, InfiniBand fabrics are simulated, and examples of docs/ are run.
        command -v gcc >/dev/null || missing+=(gcc)
        [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
        command -v ibsim >/dev/null || missing+=(ibsim-utils)
        command -v ibnetdiscover >/dev/null || missing+=(infiniband-diags)
        command -v curl >/dev/null || missing+=(curl)
        command -v openssl >/dev/null || missing+=(openssl)
    fi
    echo "${missing[@]}"
}

install_packages() {
    local log
    log=$(mktemp)
    say "installing Debian packages: $*"
    export DEBIAN_FRONTEND=noninteractive
    # A fresh image has no package lists; asking for them first would slow down every machine that has.
    if ! apt-get install -qq --no-install-recommends "$@" </dev/null >"$log" 2>&1 &&
        ! { apt-get update -qq && apt-get install -qq --no-install-recommends "$@"; } </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        say "could not install them; going on without"
    fi
    rm -f "$log"
}

debian_packages() {
    local packages
    PATH=$PATH:/usr/sbin:/sbin
    packages=$(missing_packages)
    [ -n "$packages" ] || return 0
    if [ ! -e /etc/debian_version ]; then
        say "not a Debian system; looked for what its packages bring and did not find: $packages"
    elif [ "$(id -u)" -eq 0 ]; then
        # shellcheck disable=SC2086 # one word a package
        install_packages $packages
    else
        say "not root; for everything to work, run: sudo apt-get install --no-install-recommends $packages"
    fi
}

# Python that is new enough and can make environments; the system's first.
base_python() {
    local candidate
    for candidate in ${PYTHON:-/usr/bin/python3 python3}; do
        if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    say "no Python 3.11 or newer with venv and ensurepip (looked at: ${PYTHON:-/usr/bin/python3 python3})"
    say "on Debian: sudo apt-get install python3-venv; or name one: make PYTHON=/path/to/python3 ..."
    return 1
}

link_pyverbs() {
    local source=/usr/lib/python3/dist-packages/pyverbs target suffix
    target=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/pyverbs
    suffix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    rm -f "$target"
    if [ -e "$source/device$suffix" ]; then
        ln -s "$source" "$target"
        .venv/bin/python -c 'import pyverbs.device' 2>/dev/null && return
        rm -f "$target"
    fi
    say "no pyverbs that fits this Python; HCAs are then read from sysfs alone"
}

environment() {
    if ! .venv/bin/python -c '' 2>/dev/null; then
        local python
        python=$(base_python)
        say "making .venv with $("$python" --version)"
        "$python" -m venv --clear .venv
    fi
    link_pyverbs
    packages dev
}

packages() {
    local log=.venv/setup.log
    say "installing Python packages into .venv (once; log in $log)"
    if ! .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check -e ".[$1]" \
        </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        return 1
    fi
}

# etcd for the tests, out of Debian's package without installing it: that would start it as a service.
etcd_program() {
    local folder
    if command -v etcd >/dev/null || [ -x .venv/bin/etcd ] || [ ! -e /etc/debian_version ]; then return; fi
    folder=$(mktemp -d)
    if (cd "$folder" && apt-get -qq download etcd-server && dpkg-deb -x etcd-server_*.deb .) >/dev/null 2>&1; then
        install "$folder/usr/bin/etcd" .venv/bin/etcd
    else
        say "no etcd; its tests are left out (sudo apt-get update brings the list of packages)"
    fi
    rm -rf "$folder"
}

# The lists and the place decide: a copied checkout or a changed pyproject.toml is set up again.
state() { { pwd; cat pyproject.toml deploy/dev/setup.sh; } | sha256sum; }

wanted=${1:-use}  # "tests": also what only the tests need
exec 9>.venv.lock
flock 9
debian_packages
is_new() { [ ! -e "$1" ] || [ "$(state)" != "$(cat "$1")" ]; }
if is_new .venv/setup.stamp; then
    environment
    state >.venv/setup.stamp
fi
if [ "$wanted" = tests ]; then
    if is_new .venv/tests.stamp; then
        packages dev,test-engines
        state >.venv/tests.stamp
    fi
    etcd_program
fi
