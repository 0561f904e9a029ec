"""The image that ``deploy/container/Containerfile`` describes, built and run. Needs root, apt and the package index.

    python -m tests.container

buildah (which is installed where it is missing) makes each step of the file in a chroot, on a Debian that debootstrap
has made. The daemon then runs as Kubernetes' manifests run it: as their user, without capabilities, on a
root that is read-only, with their configuration, a Secret's file as the kubelet mounts it, and the host's folder after
the init container. Exit status 0: it answers, and can do no more than it should; 3: it cannot run here.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.container.builder import PROJECT, Builder, debian, expect, run
from tests.rdma.image import CannotRunError, need_programs

_MANIFESTS = PROJECT / "deploy/kubernetes/base"
#: In place of the headless service's name, which no DNS here knows.
_PEER = "http://127.0.0.9:7470"
#: A container of the built root: $1. Mounts as the DaemonSet has them, from the folder $2; then user $3 without rights.
_RUN = """
ip link set lo up
mount --make-rprivate /
mount --bind "$1" "$1"
for folder in proc sys dev; do mount --rbind "/$folder" "$1/$folder"; done
mount -o remount,bind,ro "$1"
for name in run/fabricd etc/fabricd etc/fabricd-token tmp; do mount --bind "$2/$name" "$1/$name"; done
mount -o remount,bind,ro "$1/etc/fabricd"
mount -o remount,bind,ro "$1/etc/fabricd-token"
root=$1 user=$3
shift 3
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all \
    --inh-caps=-all --ambient-caps=-all "$@"
"""
#: The init container: root with the one right to give files away.
_INIT = """
mount --bind "$2/run/fabricd" "$1/run/fabricd"
root=$1
shift 2
exec chroot "$root" setpriv --no-new-privs --bounding-set=-all,+chown --inh-caps=-all "$@"
"""
_READY_SECONDS = 60.0


def folders(work: Path, pod: Mapping[str, Any], token: str) -> None:
    """Make what the pod mounts: the ConfigMap, the Secret, the host's folder and /tmp."""
    user = pod["securityContext"]["runAsUser"]
    for name in ("run/fabricd", "etc/fabricd", "etc/fabricd-token", "tmp"):
        (work / name).mkdir(parents=True)
    (work / "tmp").chmod(0o1777)
    config = yaml.safe_load((_MANIFESTS / "configmap.yaml").read_text())["data"]["fabricd.toml"]
    (work / "etc/fabricd/fabricd.toml").write_text(config.replace("dns://fabricd-peers.fabricd.svc:7470", _PEER))
    # As the kubelet does it: the file behind two links, root's, and the pod's group may read.
    (work / "etc/fabricd-token/..2026").mkdir()
    file = work / "etc/fabricd-token/..2026/token"
    file.touch(mode=0o440)
    file.write_text(token + "\n")
    os.chown(file, 0, user)
    (work / "etc/fabricd-token/..data").symlink_to("..2026")
    (work / "etc/fabricd-token/token").symlink_to("..data/token")


def main() -> int:
    """Build it, run it, look at it."""
    if os.geteuid() != 0:
        raise SystemExit("chroots and namespaces need root")
    need_programs({"buildah": "buildah", "debootstrap": "debootstrap", "unshare": "util-linux", "ip": "iproute2"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is mounted and runs ends with this program
    kept = PROJECT / "build/container"
    kept.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fabricd-container-") as name:
        work = Path(name)
        work.chmod(0o755)
        run(str(PROJECT / "deploy/bundle.sh"), str(work / "dist"))
        builder = Builder(work / "storage")
        builder.take_base(debian(kept))
        image = builder.build(PROJECT / "deploy/container/Containerfile", work / "dist")
        with builder.mounted(image) as root:
            print(f"container: built after {time.monotonic() - begun:.0f} s: {_size(root) >> 20} MiB", flush=True)
            check(root, builder.config(image), work / "pod")
    print(f"container: all as it should be, after {time.monotonic() - begun:.0f} s")
    return 0


def check(root: Path, config: Mapping[str, Any], work: Path) -> None:
    """Run the daemon in the image's root and look at what it can do."""
    expect(config["User"] == "65532:65532", "the image's user is not root", config)
    expect(config["Entrypoint"] == ["/opt/fabricd/bin/fabricd"] and config["Cmd"] == ["serve"], "it serves", config)
    run("chroot", str(root), "/opt/fabricd/bin/python", "-B", "-c", "import pyverbs.device")
    for name in ("etc/fabricd", "etc/fabricd-token"):  # a runtime makes them before the root is read-only
        (root / name).mkdir(parents=True, exist_ok=True)
    pod = yaml.safe_load((_MANIFESTS / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    token = secrets.token_hex(32)
    folders(work, pod, token)
    environ = dict(entry.split("=", 1) for entry in config["Env"])
    environ |= {
        "FABRICD_HOST": "127.0.0.1",
        "FABRICD_NAME": "node0",
        "FABRICD_NODE_ID": "node0",
        "FABRICD_PORT": "7470",
    }
    user = str(pod["securityContext"]["runAsUser"])
    (init,) = pod["initContainers"]
    run("unshare", "--mount", "sh", "-ec", _INIT, "sh", str(root), str(work), *init["command"])
    command = [str(root), str(work), user, *config["Entrypoint"], *config["Cmd"]]
    process = subprocess.Popen(
        ["unshare", "--mount", "--net", "--fork", "--kill-child", "sh", "-ec", _RUN, "sh", *command],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    try:
        look(process, work, token)
        os.kill(_child(process.pid), signal.SIGTERM)  # unshare itself takes no such signal
        expect(process.wait(10) == 0, "it ends in peace", process.returncode)
    finally:
        process.kill()


def look(process: "subprocess.Popen[bytes]", work: Path, token: str) -> None:
    """Ask the daemon, and the kernel about it."""
    transport = httpx.HTTPTransport(uds=str(work / "run/fabricd/fabricd.sock"))
    deadline = time.monotonic() + _READY_SECONDS
    with httpx.Client(transport=transport, base_url="http://fabricd", trust_env=False) as client:
        while True:
            with suppress(httpx.TransportError):
                if client.get("/readyz").status_code == 200:
                    break
            expect(process.poll() is None and time.monotonic() < deadline, "it gets ready", process.returncode)
            time.sleep(0.1)
        expect(client.get("/livez").text == "alive\n", "it lives", "")
        node = client.get("/v1/node").json()
        told = {one["name"]: one["outcome"] for one in node["probes"]}
        print(f"container: {json.dumps(told)}")
        expect("failed" not in told.values(), "no probe fails", told)
    daemon = _child(process.pid)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{daemon}/status").read_text().splitlines())
    expect(set(status["Uid"].split()) == {"65532"} and int(status["CapBnd"], 16) == 0, "it has no rights", status)
    expect(int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1", "and gets none", status)
    mounts = [line.split() for line in Path(f"/proc/{daemon}/mountinfo").read_text().splitlines()]
    writable = {words[4] for words in mounts if words[5].startswith("rw") and not words[4].startswith(_KERNELS)}
    expect(writable == {"/run/fabricd", "/tmp"}, "it can write there and nowhere else", writable)
    command = Path(f"/proc/{daemon}/cmdline").read_bytes() + Path(f"/proc/{daemon}/environ").read_bytes()
    expect(token.encode() not in command, "no secret in its command line or environment", "")


#: Folders of the kernel, which a runtime gives to containers in its own way.
_KERNELS = ("/proc", "/sys", "/dev")


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _size(root: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in root.rglob("*"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CannotRunError as error:
        print(f"container: cannot run here: {error}", file=sys.stderr)
        sys.exit(3)
