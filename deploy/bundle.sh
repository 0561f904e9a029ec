#!/usr/bin/env bash
# Makes OUT/fabricd-VERSION.tar.gz: all that install.sh needs on a host that reaches no package index.
#
#   deploy/bundle.sh [OUT]            (OUT: by default dist)
#   tar xf fabricd-VERSION.tar.gz && sudo fabricd-VERSION/install.sh
#
# It holds wheels for one machine architecture, this one's, and for the versions of Python in PYTHONS ("3.11 3.12"; by
# default that of PYTHON, /usr/bin/python3). What comes from the index has the hashes of requirements.lock.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-/usr/bin/python3}
pythons=${PYTHONS:-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
mkdir -p "${1:-dist}"
out=$(cd "${1:-dist}" && pwd)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
pip() { "$scratch/venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

pip wheel --quiet --no-deps --wheel-dir "$scratch" "$here/.."
wheel=$(echo "$scratch"/fabricd-*.whl)
version=${wheel##*/fabricd-}
name=fabricd-${version%%-*}
folder=$scratch/$name
mkdir -p "$folder/wheels"
mv "$wheel" "$folder/wheels"
for version in $pythons; do
    pip download --quiet --no-deps --require-hashes --only-binary :all: --python-version "$version" \
        --requirement "$here/requirements.lock" --dest "$folder/wheels"
done
cp -p "$here"/{install.sh,requirements.lock,fabricd.toml,fabricd.sysusers,fabricd.service,manpages.py} "$here"/fabricd-facts.* \
    "$here/../LICENSE" "$folder"
(cd "$folder" && find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum) >"$scratch/sums"
mv "$scratch/sums" "$folder/SHA256SUMS"
tar --sort=name --owner=0 --group=0 --numeric-owner -czf "$out/$name.tar.gz" -C "$scratch" "$name"
echo "$out/$name.tar.gz"
