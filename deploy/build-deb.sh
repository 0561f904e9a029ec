#!/usr/bin/env bash
# Makes a Debian package of a bundle (bundle.sh), for the release that it is built on: it holds an environment for that
# release's Python, in the folders of install.sh. Building it needs no package index.
#
#   deploy/build-deb.sh BUNDLE [OUT]     BUNDLE: the folder that fabricd-VERSION.tar.gz holds; OUT: by default dist
set -euo pipefail
bundle=$(cd "$1" && pwd)
mkdir -p "${2:-dist}"
out=$(cd "${2:-dist}" && pwd)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/fabricd
mkdir "$tree"
"$bundle/install.sh" --root "$tree"
# What belongs to the administrator in install.sh belongs to the package manager here.
mv "$tree/usr/local"/* "$tree/usr/"
rmdir "$tree/usr/local"
rm -rf "$tree/etc/systemd" "$tree/opt/fabricd/lock"
find "$tree/usr/lib/systemd" "$tree/usr/lib/sysusers.d" -type f -exec sed -i 's|/usr/local/lib|/usr/lib|g' {} +
install -D -m 0644 "$bundle/LICENSE" "$tree/usr/share/doc/fabricd/copyright"

version=$(readlink "$tree/opt/fabricd/current")
version=${version#versions/}
python=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
mkdir "$tree/DEBIAN"
echo /etc/fabricd/fabricd.toml >"$tree/DEBIAN/conffiles"
cat >"$tree/DEBIAN/control" <<END
Package: fabricd
Version: ${version%-*}
Architecture: $(dpkg --print-architecture)
Section: net
Priority: optional
Maintainer: fabricd <root@localhost>
Installed-Size: $(du -sk "$tree" | cut -f1)
Depends: $python, systemd
Recommends: python3-pyverbs
Description: topology map, path choice and communicators for GPU clusters
 A daemon on each node finds out how its GPUs, adapters and networks are wired,
 publishes the map over HTTP, and answers which path is best and why.
END
# Whether it is an upgrade is what preinst is told alone: to postinst, one that was removed and is installed again looks
# like one, for its configuration stayed.
cat >"$tree/DEBIAN/preinst" <<'END'
#!/bin/sh
set -e
rm -f /run/fabricd.installed
[ "$1" != install ] || touch /run/fabricd.installed
END
cat >"$tree/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
systemd-sysusers /usr/lib/sysusers.d/fabricd.conf
first=false
if [ -e /run/fabricd.installed ]; then first=true; fi
rm -f /run/fabricd.installed
if $first; then systemctl --quiet enable fabricd.service fabricd-facts.timer; fi
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
if $first; then
    systemctl start fabricd.service fabricd-facts.timer || echo "fabricd does not start: journalctl -u fabricd" >&2
else
    systemctl try-restart fabricd.service || echo "fabricd does not start: journalctl -u fabricd" >&2
fi
END
cat >"$tree/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
systemctl --quiet disable fabricd.service fabricd-facts.timer
[ -d /run/systemd/system ] || exit 0
systemctl stop fabricd-facts.timer fabricd.service # these start the third
systemctl stop fabricd-facts.service
END
cat >"$tree/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
[ "$1" = remove ] || [ "$1" = purge ] || exit 0
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
rm -rf /run/fabricd-facts
[ "$1" = purge ] || exit 0
rm -rf /etc/fabricd
if getent passwd fabricd >/dev/null; then userdel fabricd; fi
END
chmod 0755 "$tree/DEBIAN/"{preinst,postinst,prerm,postrm}
# gzip: the rest takes minutes for little.
dpkg-deb --root-owner-group -Zgzip --build "$tree" "$out" >/dev/null
echo "$out/fabricd_${version%-*}_$(dpkg --print-architecture).deb"
