"""Logging: one line a record, with its facts as ``key=value``; for a terminal, the journal, or as JSON.

A module logs with ``logging.getLogger("fabricd.part")`` and passes facts as ``extra={"facts": {...}}``. No secret is
ever a fact.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fabricd.log_output import Output
from fabricd.smallfile import escaped

#: Priorities of sd-daemon(3), which the journal reads from the beginning of a line.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def configure(level: str, form: str = "auto", *, environ: Mapping[str, str] | None = None) -> Output:
    """Send what fabricd and its server log to standard error; return what writes it.

    Args:
        level: "debug", "info", "warning" or "error".
        form: "text", "journal", "json", or "auto": journal where standard error is the journal, else text.
        environ: the environment, by default this process's.
    """
    handler = Output(sys.stderr.fileno())
    handler.setFormatter(_formatter(form, os.environ if environ is None else environ))
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries speak up when something is wrong; their chatter, which may hold URLs and headers, stays out.
    root.setLevel(logging.WARNING)
    set_level(level)
    # asyncio warns of each write to a connection that its client has just closed.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # The gate logs what handlers raise; uvicorn would log it again, and every cancelled request at the daemon's end.
    logging.getLogger("uvicorn.error").disabled = True
    return handler


def set_level(level: str) -> None:
    """Change the least level that fabricd logs."""
    logging.getLogger("fabricd").setLevel(level.upper())


def _formatter(form: str, environ: Mapping[str, str]) -> logging.Formatter:
    if form == "auto":
        form = "journal" if _is_journal(environ.get("JOURNAL_STREAM", "")) else "text"
    return {"text": _Text, "journal": _Journal, "json": _Json}[form]()


def _is_journal(stream: str) -> bool:
    """Whether standard error is the socket that systemd told of ("device:inode")."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


class _Text(logging.Formatter):
    """``2026-11-30T10:00:00.000+00:00 warning fabricd.part: message key=value``; in UTC, alike on all nodes."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return f"{when} {record.levelname.lower()} {record.name}: {_sentence(self, record)}"


class _Journal(logging.Formatter):
    """``<4>part: message key=value``; the journal adds time, unit and process."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITIES.get(record.levelno, 5)}>{record.name}: {_sentence(self, record)}"


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"facts": facts} if (facts := _facts(record)) else {}),
            **({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}),
        }
        return json.dumps(told, default=str)


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, Mapping) else {}


def _sentence(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return message and facts in one line: what came from outside must not look like further records."""
    facts = "".join(f" {key}={value}" for key, value in _facts(record).items())
    line = escaped(record.getMessage() + facts)
    if record.exc_info:
        line += " | " + escaped(" | ".join(formatter.formatException(record.exc_info).splitlines()))
    return line
