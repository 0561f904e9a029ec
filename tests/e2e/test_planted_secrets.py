"""Secrets planted wherever a daemon reads some, and looked for wherever it or its programs tell anything."""

import asyncio
import json
import secrets
import signal
import subprocess
from pathlib import Path

import httpx

from demo.daemons import program
from tests.support.certificates import Authority
from tests.support.daemon import RunningDaemon, daemon, ended, eventually
from tests.support.group_client import Target, join_all, members, records

PATHS = ("/livez", "/readyz", "/metrics", "/openapi.json", "/v1/node", "/v1/cluster?networks=1", "/v1/events")


def plant(folder: Path, authority: Authority) -> tuple[Path, dict[str, str]]:
    """Write a configuration with a secret of each kind; return its file and the secrets."""
    kinds = ("cluster token", "access token", "group secret", "claim", "wrong token", "token in a bad line")
    planted = {kind: secrets.token_hex(20) for kind in kinds}
    pair = authority.issue("node", "IP:127.0.0.1")
    planted["private key"] = Path(pair.key_file).read_text().splitlines()[1]
    for name, text in (
        ("token", planted["cluster token"]),
        ("access", f"grafana read {planted['access token']}\n"),
    ):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    lines = [f'tls_certificate_file = "{pair.certificate_file}"', f'tls_key_file = "{pair.key_file}"']
    lines += [f'tls_ca_file = "{authority.file}"', f'token_file = "{folder}/token"', f'access_file = "{folder}/access"']
    lines += ['log_level = "debug"', 'peers = ["https://127.0.0.1:9"]']  # nobody listens at a port below 10
    (folder / "c.toml").write_text("\n".join(lines) + "\n")
    return folder / "c.toml", planted


def asked(running: RunningDaemon, authority: Authority, known: dict[str, str]) -> list[str]:
    """Ask everything with right, wrong and misplaced secrets; return what was answered."""
    said = []
    with httpx.Client(base_url=running.url, verify=authority.client(), trust_env=False, timeout=20) as client:
        for secret in ("cluster token", "access token", "wrong token"):
            bearer = {"Authorization": f"Bearer {known[secret]}"}
            for path in PATHS:
                said += _told(client.get(path, headers=bearer))
            said += _told(client.post("/v1/plans", headers=bearer, content=b"{"))
        basic = {"Authorization": f"Basic {known['wrong token']}"}
        said += _told(client.get("/v1/node", headers=basic))
        # Where no secret belongs: in the body of a request that is refused.
        said += _told(client.post("/v1/plans", headers=bearer, json={"nodes": [], "token": known["wrong token"]}))
    return said


def _told(answer: httpx.Response) -> list[str]:
    return [answer.text, json.dumps(dict(answer.headers))]


async def job(running: RunningDaemon, known: dict[str, str]) -> list[str]:
    """Run a job, and let a stranger try to join, look and end it; return what was answered."""
    async with Target(socket=running.socket).client() as client:
        ranks = members(client, 2, group="job", secret=known["group secret"])
        ranks[0].claim = known["claim"]
        answers = await join_all(ranks)
        stranger = members(client, 2, group="job", secret=known["wrong token"])[1]
        tried = [
            await stranger.put(wait=0.0),
            await stranger.status(),
            await stranger.abort("x"),
            await ranks[0].abort(),
        ]
        return [repr(answers), *(word for answer in tried for word in _told(answer))]


def process_list() -> str:
    """Return every process's command line, as every user of the machine sees it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_no_secret_is_told_anywhere(tmp_path):
    authority = Authority(tmp_path)
    config, known = plant(tmp_path, authority)
    said = {}
    with daemon(tmp_path, "--config", str(config)) as running:
        said["answers"] = "\n".join(asked(running, authority, known))
        said["group"] = "\n".join(asyncio.run(job(running, known)))
        said["processes"] = process_list()
        said["records"] = "\n".join(file.read_text() for file in records(tmp_path))
        (tmp_path / "access").write_text(f"grafana read {known['access token']}\n{known['token in a bad line']} x\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "stays as it is" in running.log, told=[running])
        said["log"] = running.log
    status, said["check-config"] = ended("check-config", "--config", str(config))
    assert status == 2
    assert ended("capture", str(tmp_path / "machine.json"))[0] == 0
    said["capture"] = (tmp_path / "machine.json").read_text()
    told = subprocess.run([program("fabricd"), "serve", "--help"], capture_output=True, text=True, check=True)
    said["help"] = told.stdout
    for where, text in said.items():
        assert text, where
        for kind, secret in known.items():
            assert secret not in text, f"{kind} in {where}"
