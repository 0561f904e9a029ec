#!/usr/bin/env bash
# Installs fabricd on a node, upgrades it, takes an upgrade back, or removes it.
#
# The programs live in PREFIX/versions/VERSION, a Python environment each; PREFIX/current is the one that runs, and
# PREFIX/previous the one before. A new version is built aside and asked whether it takes the configuration as it is;
# only then does `current` move. Does its daemon not get ready, `current` moves back. So an upgrade that fails, for
# whatever reason, leaves what ran before. Running this again with the same version changes nothing.
# The environments see the distribution's packages, for pyverbs; all else comes with hashes from requirements.lock.
set -euo pipefail

usage() {
    cat <<'END'
Usage: install.sh [OPTION]...
Installs fabricd on this host, or upgrades it: programs, units, the user fabricd, a sample configuration.
A configuration that is there is never written to.

  --wheels DIR     take all Python packages from DIR and ask no package index
                   (default: the folder wheels beside this script, where there is one)
  --prefix DIR     where the programs go (default /opt/fabricd)
  --python FILE    interpreter to use, 3.11 or newer (default /usr/bin/python3)
  --root DIR       install below DIR, for an image or a package; start nothing
  --no-start       do not start a daemon that does not run yet
  --rollback       go back to the version that ran before
  --uninstall      remove all but the configuration
  --purge          with --uninstall: remove /etc/fabricd and the user, too
  --dry-run        say what would be done
  --help           this text

Exit status: 0 done, 1 it failed and what ran before still does, 2 wrong usage.
END
}

say() { echo "install: $*" >&2; }
fail() { say "$*"; exit 1; }
misused() { say "$*"; say "try --help"; exit 2; }
# Do something, or tell that it would be done.
act() { if $dry; then echo "would: $*"; else "$@"; fi; }

here=$(cd "$(dirname "$0")" && pwd)
prefix=/opt/fabricd python=/usr/bin/python3 root='' wheels='' task=install start=true purge=false dry=false
# As they are stopped: what starts another one first.
units=(fabricd-facts.timer fabricd.service fabricd-facts.service)
programs=(fabricd fabricctl)

read_options() {
    while [ $# -gt 0 ]; do
        case $1 in
            --wheels | --prefix | --python | --root)
                [ $# -ge 2 ] && [ -n "$2" ] || misused "$1 needs a value"
                printf -v "${1#--}" %s "$2"
                shift
                ;;
            --no-start) start=false ;;
            --rollback | --uninstall) task=${1#--} ;;
            --purge) purge=true ;;
            --dry-run) dry=true ;;
            --help) usage; exit 0 ;;
            *) misused "no such option: $1" ;;
        esac
        shift
    done
    # The prefix goes into units and scripts.
    [[ $prefix =~ ^(/[A-Za-z0-9._-]+){2,}$ && $prefix != *..* ]] ||
        misused "--prefix $prefix: give an absolute path of at least two plain names, such as /opt/fabricd"
    [[ ! $prefix =~ ^/(home|root|tmp|var/tmp)/ ]] || misused "--prefix $prefix: the unit sees no such folder (ProtectHome)"
    if [ -n "$root" ]; then root=$(cd "$root" && pwd) || misused "--root: no such folder"; fi
    if [ -n "$wheels" ]; then wheels=$(cd "$wheels" && pwd) || misused "--wheels: no such folder"; fi
    if $purge && [ "$task" != uninstall ]; then misused "--purge goes with --uninstall"; fi
    if [ -z "$wheels" ] && [ -d "$here/wheels" ]; then wheels=$here/wheels; fi
}

home() { echo "$root$prefix"; }
# Folders that belong to this host's administrator, not to its package manager.
unit_folder=/usr/local/lib/systemd/system
users_file=/usr/local/lib/sysusers.d/fabricd.conf
program_folder=/usr/local/bin
completions=/usr/local/share/bash-completion/completions/fabricctl
manual=/usr/local/share/man
pages=(fabricctl.1 fabricd.8)
page_path() { echo "$manual/man${1##*.}/$1"; }
systemd_runs() { [ -z "$root" ] && [ -d /run/systemd/system ]; }
is_active() { systemctl --quiet is-active "$1"; }

need_means() {
    "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "$python is not Python 3.11 or newer with venv (Debian: apt-get install python3-venv; RHEL 9: dnf" \
            "install python3.11 and --python /usr/bin/python3.11)"
    local lines
    lines=$("$python" -c 'import pyverbs.device' 2>&1) ||
        say "no pyverbs for $python (Debian: python3-pyverbs); adapters are then read from sysfs alone: ${lines##*$'\n'}"
}

# The wheel of fabricd itself: given, or made of the sources that this script lies in.
find_wheel() {
    local found=()
    if [ -n "$wheels" ]; then
        found=("$wheels"/fabricd-*.whl)
        [ -e "${found[0]}" ] || fail "no fabricd-*.whl in $wheels"
        [ ${#found[@]} -eq 1 ] || fail "several versions of fabricd in $wheels: ${found[*]##*/}"
        wheel=${found[0]}
    else
        [ -e "$here/../pyproject.toml" ] || fail "neither wheels nor sources beside $here: give --wheels DIR"
        say "building fabricd from $(dirname "$here")"
        scratch=$(mktemp -d)
        "$python" -m venv "$scratch/venv"
        "$scratch/venv/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$scratch" "$here/.."
        wheel=$(echo "$scratch"/fabricd-*.whl)
    fi
    # Two builds of one version are two things, and so are those for two versions of Python.
    local name=${wheel##*/fabricd-}
    version=${name%%-*}-$({ cat "$wheel" "$here/requirements.lock"; "$python" -V; } | sha256sum | cut -c1-8)
}

# Build the version aside; its last file says that it is whole.
build_version() {
    local target
    target=$(home)/versions/$version
    if [ -e "$target/complete" ]; then
        say "version $version is there already"
        return
    fi
    if $dry; then
        echo "would: build $target from ${wheel##*/} and ${wheels:-the package index}"
        return
    fi
    say "building $target"
    rm -rf "$target"
    mkdir -p "$target"
    unfinished=$target
    "$python" -m venv --system-site-packages "$target"
    local pip=("$target/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-compile)
    local from=() # a package index, and how to reach it, is the site's own matter: pip's environment and configuration
    [ -z "$wheels" ] || from=(--isolated --no-index --find-links "$wheels")
    # What the distribution has of them may be older or newer, and changes without asking.
    "${pip[@]}" "${from[@]}" --ignore-installed --no-deps --require-hashes -r "$here/requirements.lock"
    "${pip[@]}" --isolated --no-index --no-deps --ignore-installed "$wheel"
    # What was built below --root must not say so.
    if [ -n "$root" ]; then
        grep -lIrZ "$root" "$target/bin" "$target/pyvenv.cfg" | xargs -0r sed -i "s|$root||g"
    fi
    "$python" -m compileall -q -j 0 -s "$root" "$target/lib" >/dev/null || true # some packages carry files of other Pythons
    local file
    mkdir -p "$target/share"
    for file in "${units[@]}" fabricd.sysusers fabricd.toml; do
        sed "s|/opt/fabricd/|$prefix/|g" "$here/$file" >"$target/share/$file"
    done
    completion "$target" >"$target/share/completion.bash" || rm -f "$target/share/completion.bash"
    "$target/bin/python" -I "$here/manpages.py" "$target/share/man" 2>/dev/null || say "no manual pages"
    chmod -R go+rX,go-w "$target"
    touch "$target/complete"
    unfinished=''
}

# in_version VERSION_FOLDER PROGRAM PACKAGE ARGUMENT...: run a program that may not lie where it will be run from.
in_version() {
    "$1/bin/python" -I -c "import sys; from $3 import main; sys.argv[0] = '$2'; main()" "${@:4}"
}

completion() { _FABRICCTL_COMPLETE=source_bash in_version "$1" fabricctl fabric_client.cli 2>/dev/null | grep .; }

# Ask the new version about the configuration before anything changes.
check_configuration() {
    local file=$root/etc/fabricd/fabricd.toml
    if [ ! -e "$file" ] || $dry; then return; fi
    in_version "$(home)/versions/$version" fabricd fabricd.cli check-config "$file" >&2 ||
        fail "version $version does not take $file; nothing has changed"
}

# put FILE TARGET: replace the target where it differs.
put() {
    if ! cmp -s "$1" "$2"; then
        act install -D -m 0644 "$1" "$2"
        changed=true
    fi
}

# Make a version the one that runs, from its next start on. The link is replaced at once.
switch_to() {
    local current old
    current=$(home)/current
    old=$(readlink "$current" || true)
    [ "$old" != "versions/$1" ] || return 0
    if [ -n "$old" ]; then act ln -sfnT "$old" "$(home)/previous"; fi
    act ln -sfnT "versions/$1" "$current.new"
    act mv -fT "$current.new" "$current"
    changed=true
}

# Units, user and links are those of the version that `current` stands for.
install_files() {
    local share name
    share=$(home)/versions/$1/share
    if $dry && [ ! -e "$share" ]; then
        echo "would: install ${units[*]} in $unit_folder, $users_file, ${programs[*]} in $program_folder"
    else
        for name in "${units[@]}"; do put "$share/$name" "$root$unit_folder/$name"; done
        put "$share/fabricd.sysusers" "$root$users_file"
        if [ -e "$share/completion.bash" ]; then put "$share/completion.bash" "$root$completions"; fi
        for name in "${pages[@]}"; do
            if [ -e "$share/man/$name" ]; then put "$share/man/$name" "$root$(page_path "$name")"; fi
        done
    fi
    act mkdir -p "$root$program_folder"
    for name in "${programs[@]}"; do
        act ln -sfnT "$prefix/current/bin/$name" "$root$program_folder/$name"
    done
    if [ ! -e "$root/etc/fabricd/fabricd.toml" ]; then
        act install -D -m 0644 "$here/fabricd.toml" "$root/etc/fabricd/fabricd.toml"
    fi
    [ -n "$root" ] || ! command -v systemd-sysusers >/dev/null || act systemd-sysusers "$users_file"
    ! systemd_runs || act systemctl daemon-reload
}

# Start what is to run, or start it anew; wait until it is ready.
start_units() {
    if $first; then
        act systemctl ${root:+--root="$root"} --quiet enable fabricd.service fabricd-facts.timer ||
            say "no systemd here: enable fabricd.service and fabricd-facts.timer yourself"
    fi
    systemd_runs || return 0
    if is_active fabricd.service || [ "$(systemctl is-failed fabricd.service)" = failed ]; then
        if $changed || ! is_active fabricd.service; then act systemctl restart fabricd.service; fi
    elif $first && $start; then
        act systemctl start fabricd.service fabricd-facts.timer
    else
        say "fabricd.service does not run; left so"
    fi
}

take_back() {
    say "version $version did not get ready:"
    journalctl --quiet --no-pager --lines 20 --unit fabricd.service >&2 || true
    if [ -z "$before" ]; then
        fail "there is none to go back to; what to do next: journalctl -u fabricd, then systemctl restart fabricd"
    fi
    say "going back to ${before#versions/}"
    switch_to "${before#versions/}"
    install_files "${before#versions/}"
    systemctl reset-failed fabricd.service || true
    systemctl restart fabricd.service || fail "${before#versions/} does not get ready any more either: journalctl -u fabricd"
    ln -sfnT "$previous" "$(home)/previous"
    fail "${before#versions/} runs again; $version stays in $(home)/versions to look at"
}

# Keep the version that runs, the one before, and this one.
remove_old_versions() {
    local folder
    for folder in "$(home)"/versions/*; do
        [ -e "$folder" ] || continue
        case versions/${folder##*/} in
            "$(readlink "$(home)/current")" | "$(readlink "$(home)/previous")" | "versions/$version") ;;
            *) act rm -rf "$folder" ;;
        esac
    done
}

run_version() {
    before=$(readlink "$(home)/current" || true)
    previous=$(readlink "$(home)/previous" || echo "$before")
    [ -e "$root$unit_folder/fabricd.service" ] && first=false || first=true
    switch_to "$version"
    install_files "$version"
    start_units || take_back
}

check_copy() {
    if [ -e "$here/SHA256SUMS" ]; then
        (cd "$here" && sha256sum --quiet --check SHA256SUMS >&2) || fail "this bundle is not as it was made: copy it again"
    fi
}

install_version() {
    need_means
    check_copy
    find_wheel
    $dry || mkdir -p "$(home)/versions"
    build_version
    check_configuration
    run_version
    remove_old_versions
    $dry || say "fabricd $version is installed in $prefix; configuration: /etc/fabricd/fabricd.toml"
}

roll_back() {
    version=$(readlink "$(home)/previous" || true)
    version=${version#versions/}
    [ -n "$version" ] && [ -e "$(home)/versions/$version/complete" ] || fail "no earlier version in $(home)"
    [ "versions/$version" != "$(readlink "$(home)/current")" ] || fail "no earlier version than $version"
    check_configuration
    run_version
    $dry || say "fabricd $version is back"
}

uninstall() {
    local name
    if systemd_runs; then
        for name in "${units[@]}"; do
            if systemctl cat "$name" >/dev/null 2>&1; then act systemctl --quiet disable --now "$name"; fi
        done
    elif [ -n "$root" ]; then
        act systemctl --root="$root" --quiet disable fabricd.service fabricd-facts.timer || true
    fi
    for name in "${units[@]}"; do act rm -f "$root$unit_folder/$name"; done
    act rm -f "$root$users_file" "$root$completions"
    for name in "${pages[@]}"; do act rm -f "$root$(page_path "$name")"; done
    for name in "${programs[@]}"; do
        if [ "$(readlink "$root$program_folder/$name")" = "$prefix/current/bin/$name" ]; then
            act rm -f "$root$program_folder/$name"
        fi
    done
    act rm -rf "$(home)/versions" "$(home)/current" "$(home)/previous" "$(home)/lock"
    if [ -d "$(home)" ]; then act rmdir --ignore-fail-on-non-empty "$(home)"; fi
    if systemd_runs; then
        act systemctl daemon-reload
        act rm -rf /run/fabricd-facts /run/fabricd
    fi
    if $purge; then
        act rm -rf "$root/etc/fabricd"
        if [ -z "$root" ] && getent passwd fabricd >/dev/null; then act userdel fabricd; fi
        $dry || say "fabricd is removed, with its configuration"
    else
        $dry || say "fabricd is removed; /etc/fabricd and the user fabricd stay (--purge removes them, too)"
    fi
}

clean_up() {
    if [ -n "$unfinished" ]; then rm -rf "$unfinished"; fi
    if [ -n "$scratch" ]; then rm -rf "$scratch"; fi
}

unfinished='' scratch='' changed=false first=false version='' before='' previous='' wheel=''
umask 022
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
read_options "$@"
trap clean_up EXIT
[ -n "$root" ] || [ ! -e /usr/lib/systemd/system/fabricd.service ] ||
    fail "a package of this system has installed fabricd: upgrade or remove that one"
if ! $dry; then
    [ -n "$root" ] || [ "$(id -u)" -eq 0 ] || fail "must run as root (or with --root DIR, or --dry-run)"
    mkdir -p "$(home)"
    exec 9>"$(home)/lock" # two at once take turns
    flock 9
fi
case $task in
    install) install_version ;;
    rollback) roll_back ;;
    uninstall) uninstall ;;
esac
