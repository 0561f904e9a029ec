"""The map for a browser: what is wrong, the nodes, the networks, and what changed lately. No script, no form."""

import base64
import hashlib
import html
import time
from collections.abc import Iterable, Sequence
from itertools import islice

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from fabricd import __version__
from fabricd.api.findings import recent_findings
from fabricd.api.message import in_words
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ
from fabricd.api.services import UsesServices
from fabricd.model.cluster import NodeStatus
from fabricd.model.event import Event
from fabricd.model.finding import Finding
from fabricd.model.network import Network, role_rank
from fabricd.smallfile import escaped
from fabricd.units import format_count, format_least

router = APIRouter(dependencies=[READ])

#: Rows of a table at most; how many more there are is said.
_ROWS = 200
_EVENTS = 30
_LONGEST = 400
_REFRESH_SECONDS = 15
_FINDING = ("severity", "kind", "node", "what", "because", "next")
_NODE = ("node", "state", "GPUs", "HCAs", "ports", "system", "address", "reason")
_NETWORK = ("network", "kind", "nodes", "ports", "speed", "role", "verified", "reason")
_EVENT = ("at", "what", "node", "of it", "change", "detail")
#: An agent waits so much longer: networks and findings take seconds for thousands of nodes.
_SECONDS = 60.0
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:1.5em auto;max-width:85em;padding:0 1em;color:#1b1f24}
h1{font-size:1.3em}h2{font-size:1.05em;margin-top:1.8em}p{color:#59636e}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25em .8em .25em 0;vertical-align:top;
border-bottom:1px solid #d8dee4}th{color:#59636e;font-weight:600}
.error,.gone,.unknown{color:#b3261e;font-weight:600}.warning,.stale{color:#8a5a00;font-weight:600}.ok{color:#1a7f37}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}th,p{color:#9198a1}td,th{border-color:#30363d}
.error,.gone,.unknown{color:#ff7b72}.warning,.stale{color:#d29922}.ok{color:#3fb950}a{color:#79b8ff}}
""".replace("\n", "")
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
#: Nothing but this style: what hosts and switches are called is text, whatever it looks like.
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


@router.get("/", responses=in_words(200, media_type="text/html"))
async def get_page(request: Request, services: UsesServices) -> Response:
    """Return the map as a page for people, which renews itself. An agent passes this on."""
    if must_pass_on(request, services):
        return PassedOn(request, services, wait=_SECONDS)
    nodes = services.nodes
    head, own = nodes.head(), nodes.local.node
    found = await recent_findings(services)
    networks: Sequence[Network] = (await services.overview.find()).networks
    store = f"{head.store.backend} is {head.store.state}"
    known = 1 + sum(nodes.count().values())
    networks = sorted(networks, key=lambda one: (role_rank(one.role), one.name))
    lately = nodes.history.latest(_EVENTS)
    wrong = len(found.findings) + found.left_out
    page = [
        f"<p>{_text(own.name)}, fabricd {__version__}; {format_count(known, 'node')}; {_text(store)}; at "
        f"{time.strftime('%H:%M:%S %Z')}, again every {_REFRESH_SECONDS} s. For programs: "
        '<a href="/openapi.json">/openapi.json</a></p>',
        _table("Findings", _FINDING, wrong, map(_finding, found.findings), "nothing is found wrong"),
        _table("Nodes", _NODE, known, map(_node, nodes.listing(summary=True)), "there is none"),
        _table("Networks", _NETWORK, len(networks), map(_network, networks), "no port is on any network"),
        _table("Lately", _EVENT, len(lately), map(_event, lately), "nothing, since this daemon started"),
    ]
    title = f"fabricd: {_text(own.name)}"
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{''.join(page)}</body></html>\n"
    )
    return HTMLResponse(text, headers={"Cache-Control": "no-store", "Content-Security-Policy": _POLICY})


def _text(value: object) -> str:
    """Return what machines and switches said of themselves, as text that a browser only shows; a part of a long one."""
    shown = str(value)
    return html.escape(escaped(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."))


def _table(title: str, columns: Sequence[str], count: int, rows: Iterable[Sequence[str]], nothing: str) -> str:
    """Return a table; the cells are HTML. Of ten thousand rows, only those are made up that are shown."""
    shown = list(islice(rows, _ROWS))
    more = count - len(shown)
    if not shown:
        return f"<h2>{title}</h2><p>{nothing}</p>"
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in shown)
    head = "".join(f"<th>{column}</th>" for column in columns)
    rest = f"<p>and {more} more</p>" if more > 0 else ""
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>{rest}"


def _finding(one: Finding) -> Sequence[str]:
    severity = f'<span class="{one.severity.value}">{one.severity.value}</span>'
    return severity, _text(one.code), _text(one.node), _text(one.what), _text("; ".join(one.evidence)), _text(one.fix)


def _node(one: NodeStatus) -> Sequence[str]:
    told = one.inventory
    numbers = (str(told.gpus), str(told.hcas), str(told.cards), _text(told.system)) if told else ("?", "?", "?", "")
    state = f'<span class="{one.state.value}">{one.state.value}</span>'
    where = one.url or ("this node" if one.this_node else "")
    return (_text(one.name or "?"), state, *numbers, _text(where), _text(one.reason or one.note))


def _network(one: Network) -> Sequence[str]:
    nodes = len({port.node for port in one.ports})
    facts = (
        one.name,
        one.transport,
        nodes,
        len(one.ports),
        format_least(port.speed_bytes_per_second for port in one.ports),
        one.role,
        one.verified,
        one.reason,
    )
    return [_text(fact) for fact in facts]


def _event(one: Event) -> Sequence[str]:
    at = time.strftime("%H:%M:%S", time.localtime(one.at))
    change = " → ".join(filter(None, (one.before, one.after)))
    return at, _text(one.kind), _text(one.node), _text(one.subject), _text(change), _text(one.detail)
