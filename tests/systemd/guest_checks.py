"""Checks of the units that were installed. A check's first line says what it proves."""

import errno
import os
import re
import signal
import stat
import time
from pathlib import Path

from guest_tools import (
    CONFIG,
    RUNTIME,
    STATE,
    UNIT,
    Journal,
    answers,
    break_off,
    get,
    get_text,
    main_pid,
    new_process,
    run,
    told,
    wait_until,
)

_JOURNALD = Path("/etc/systemd/journald.conf.d/checks.conf")
_DROP_IN = Path("/run/systemd/system/fabricd.service.d/gpus.conf")
PROCESSES = Path("/sys/fs/cgroup/system.slice/fabricd.service/cgroup.procs")
#: What `systemd-analyze security` may say at most, of 10.
EXPOSURE = {"fabricd.service": 2.0, "fabricd-facts.service": 3.0}


def unprivileged() -> str:
    """The daemon is the user fabricd, holds no capability, can gain none, and sees what a map needs."""
    status = Path(f"/proc/{main_pid()}/status").read_text()
    words = dict(re.findall(r"(\w+):\t(.*)", status))
    user = run("id", "-u", "fabricd").strip()
    assert words["Uid"].split() == [user] * 4
    assert (words["CapEff"], words["CapBnd"], words["NoNewPrivs"], words["Seccomp"]) == ("0" * 16, "0" * 16, "1", "2")
    node = get("/v1/node")
    outcomes = {probe["name"]: probe["outcome"] for probe in node["probes"]}
    bad = {name: one for name, one in outcomes.items() if one in ("failed", "denied")}
    assert not bad, [probe for probe in node["probes"] if probe["name"] in bad]
    assert outcomes["host"] == outcomes["pci"] == outcomes["numa"] == "ok", outcomes
    assert any(interface["name"] == "lo" for interface in node["interfaces"]), node["interfaces"]
    return " ".join(f"{name}:{one}" for name, one in sorted(outcomes.items()))


def exposure() -> str:
    """systemd-analyze security gives both units a score within what they promise."""
    lines = []
    for unit, most in EXPOSURE.items():
        last = run("systemd-analyze", "security", "--no-pager", unit).splitlines()[-1]
        found = re.search(r"([0-9.]+) [A-Z]+", last)
        assert found is not None, last
        assert float(found[1]) <= most, last
        lines.append(f"{unit} {found[0]}")
    return ", ".join(lines)


def devices() -> None:
    """Processes of the unit may open GPUs and RDMA devices, also of drivers that come later, and no others."""
    rights = {"nvidia0": (195, 0, True), "uverbs9": (231, 201, True), "loop9": (7, 9, False), "mem": (1, 1, False)}
    for name, (major, minor, _) in rights.items():
        os.mknod(f"/run/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
    child = os.fork()
    if child == 0:
        wrong = len(rights)
        try:
            PROCESSES.write_text(str(os.getpid()))  # from here on it is one of the unit's
            wrong = sum(may_open(f"/run/{name}") != allowed for name, (_, _, allowed) in rights.items())
        finally:
            os._exit(wrong)
    wrong = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert wrong == 0, f"{wrong} devices are allowed that should not be, or denied"


def may_open(path: str) -> bool:
    """Whether the device's number is allowed; that there is no driver is another matter."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.EACCES)
    return True


def files() -> None:
    """The unit's files: nothing but its runtime directory can be written, homes and other processes are not seen."""
    pid = str(main_pid())
    user = ["setpriv", "--reuid", "fabricd", "--regid", "fabricd", "--clear-groups"]
    inside = ["nsenter", "--target", pid, "--mount", *user, "/bin/sh", "-c"]
    run(*inside, "touch /run/fabricd/x && rm /run/fabricd/x && [ ! -r /home/. ] && [ ! -e /proc/1/status ]")
    root = ["nsenter", "--target", pid, "--mount", "/bin/sh", "-c"]  # not even root may, in there
    for path in ("/etc/fabricd/x", "/var/lib/x", "/opt/fabricd/x", "/usr/x", "/run/x"):
        said = run(*root, f"touch {path}", status=1)
        assert "Read-only file system" in said, said
    assert stat.S_IMODE(RUNTIME.stat().st_mode) == 0o755


def root_facts() -> str:
    """fabricd-facts.service leaves what only root may read, and the daemon takes it at its next look."""
    run("systemctl", "start", "fabricd-facts.service")
    assert told("Result", "fabricd-facts.service") == "success"
    left = sorted(path.name for path in Path("/run/fabricd-facts").iterdir())
    assert "pci.json" in left, left
    return f"left {', '.join(left)}"


def journal() -> str:
    """Records are in the journal with their priorities, under the unit's name, one line each, and no secrets."""
    entries = [one for one in Journal(whole=True).entries() if one.get("SYSLOG_IDENTIFIER") == "fabricd"]
    assert entries, "nothing in the journal"
    assert all(one["_SYSTEMD_UNIT"] == UNIT for one in entries)
    ready = [one for one in entries if one["MESSAGE"].startswith("fabricd.daemon: ready")]
    assert [one["PRIORITY"] for one in ready] == ["6"], ready
    return str(ready[0]["MESSAGE"])


def stuck_journal() -> str:
    """A journal that hangs keeps the daemon from nothing; what was lost meanwhile is told when it goes on."""
    _JOURNALD.parent.mkdir()
    _JOURNALD.write_text("[Journal]\nRateLimitIntervalSec=0\n")
    run("systemctl", "restart", "systemd-journald.service")
    before, seen = CONFIG.read_text(), Journal()
    CONFIG.write_text(before.replace('log_level = "info"', 'log_level = "debug"'))
    run("systemctl", "reload", UNIT)
    journald = int(told("MainPID", "systemd-journald.service"))
    os.kill(journald, signal.SIGSTOP)
    try:
        lines = 0
        while "short of log" not in get_text("/readyz"):
            assert lines < 40_000, get_text("/readyz")  # systemd gives the socket 8 MB
            break_off(500)
            lines += 500
        assert answers()
        assert get("/v1/node")["node"]
    finally:
        os.kill(journald, signal.SIGCONT)
    break_off(1)
    seen.wait_for("records were dropped")
    CONFIG.write_text(before)
    run("systemctl", "reload", UNIT)
    return f"after {lines} lines; " + next(line for line in seen.text().splitlines() if "were dropped" in line)


def reloads() -> str:
    """systemctl reload takes a good configuration; of a bad one it fails, tells the fault, and changes nothing."""
    pid, before, seen = main_pid(), CONFIG.read_text(), Journal()
    CONFIG.write_text(before.replace('log_level = "info"', 'log_level = "debug"'))
    run("systemctl", "reload", UNIT)
    seen.wait_for("the configuration was read again")
    CONFIG.write_text('log_levle = "debug"\n' + before)
    run("systemctl", "reload", UNIT, status=1)
    seen.wait_for("log_levle")
    os.kill(pid, signal.SIGHUP)  # past the check of the unit: the daemon itself refuses
    seen.wait_for("the configuration stays as it is")
    worst = [one for one in seen.entries() if "stays as it is" in one["MESSAGE"]]
    assert worst[0]["PRIORITY"] == "3", worst
    assert main_pid() == pid
    assert answers()
    assert told("ActiveState") == "active"
    CONFIG.write_text(before)
    run("systemctl", "reload", UNIT)
    return worst[0]["MESSAGE"]


def crash() -> str:
    """A daemon that is killed is started again, and what groups need of it is still there."""
    STATE.touch()
    old = main_pid()
    os.kill(old, signal.SIGKILL)
    took = wait_until(lambda: new_process(old), "a new daemon")
    assert STATE.exists()
    assert answers()
    return f"ready again {took:.1f} s after SIGKILL"


def hang() -> str:
    """A daemon that hangs is ended by the watchdog, and started again; the journal has where it hung."""
    old, seen = main_pid(), Journal()
    os.kill(old, signal.SIGSTOP)
    took = wait_until(lambda: new_process(old), "a new daemon")
    said = seen.text()
    assert "Watchdog timeout" in said, said
    assert "Fatal Python error: Aborted" in said, said
    assert STATE.exists()
    assert answers()
    return f"ready again {took:.1f} s after SIGSTOP (WatchdogSec=30)"


def wrong_configuration() -> str:
    """A daemon whose configuration is wrong does not start, says why, and is not started again and again."""
    before, seen = CONFIG.read_text(), Journal()
    CONFIG.write_text("port = 70000\n" + before.replace("\nport = ", "\n#port = "))
    run("systemctl", "restart", UNIT, status=1)
    time.sleep(8.0)  # more than RestartSec
    assert (told("ActiveState"), told("NRestarts"), told("ExecMainStatus")) == ("failed", "0", "2")
    said = seen.text()
    assert "port: 70000" in said, said
    CONFIG.write_text(before)
    run("systemctl", "restart", UNIT)
    return next(line for line in said.splitlines() if "70000" in line)


def gpus() -> str:
    """NVML's library is loaded and GPUs are on the map, in the sandbox; the library is the simulated one."""
    os.mknod("/dev/nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 255))
    _DROP_IN.parent.mkdir(parents=True)
    library = "Environment=LD_LIBRARY_PATH=/srv/nvml NVML_SIM_SCENARIO=/srv/nvml/scenario.txt"
    _DROP_IN.write_text(f"[Service]\n{library}\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", UNIT)
    node = get("/v1/node")
    assert len(node["gpus"]) == 8, [probe for probe in node["probes"] if probe["name"] == "nvml"]
    _DROP_IN.unlink()
    _DROP_IN.parent.rmdir()
    run("systemctl", "daemon-reload")
    return f"{len(node['gpus'])} x {node['gpus'][0]['name']}"


def stops() -> str:
    """systemctl stop ends it at once and cleanly; socket and runtime directory are gone."""
    pid = main_pid()
    begun = time.monotonic()
    run("systemctl", "stop", UNIT)
    took = time.monotonic() - begun
    assert (told("Result"), told("ExecMainStatus")) == ("success", "0")
    assert not RUNTIME.exists()
    assert not Path(f"/proc/{pid}").exists()
    return f"after {took:.1f} s"
