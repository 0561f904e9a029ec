"""What is wrong with nodes, or may be: derived from facts, never stored with them."""

from dataclasses import dataclass
from enum import StrEnum

from fabricd.model.observation import missing_word

#: Letters with which a question for findings may name nodes.
MAX_HOSTLIST = 8000


class Severity(StrEnum):
    """How much a finding matters to a job. Ordered from worst to least."""

    ERROR = "error"  #: something does not work, or carries less than both of its ends could
    WARNING = "warning"  #: it works, and some job will be slower or fail by it
    NOTE = "note"  #: good to know; also what could not be checked

    @classmethod
    def _missing_(cls, value: object) -> "Severity | None":
        return missing_word(value, cls.NOTE)

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, with the facts that show it and what to do."""

    code: str  #: stable, and a row of docs/findings.md or docs/messages.md: "nvlink-down"
    severity: Severity
    node: str = ""  #: display name; "" the cluster, or this process
    subject: str = ""  #: "gpu3", "mlx5_1:1", "10.1.0.0/24"; "" the node itself
    what: str  #: one sentence
    evidence: tuple[str, ...] = ()  #: the facts that it rests on, a phrase each
    fix: str = ""  #: the next step
    #: Codes of what else shows the same fault and is not told by itself, its facts among the evidence: "port-slow".
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is wrong with some nodes, the worst first."""

    findings: tuple[Finding, ...] = ()
    #: The nodes that were looked at.
    nodes: int = 0
    #: How many more there are than an answer holds; the least are left out.
    left_out: int = 0
