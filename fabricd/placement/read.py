"""Reads a file that says where nodes stand; its content decides which form it has."""

from fabricd.errors import ParseError
from fabricd.placement import documents, slurm, slurm_yaml
from fabricd.placement.imported import Imported

#: The labels of 10,000 nodes fill 40 MiB.
MAX_BYTES = 64 * 2**20


def read_placement(data: bytes, origin: str) -> Imported:
    """Return what a file says: Slurm's ``topology.conf`` or ``topology.yaml``, or JSON of several kinds.

    Args:
        data: its content.
        origin: what messages call it.

    Raises:
        ParseError: it has none of the forms, or is wrong in its own; says where.
        UnavailableError: it is YAML, and no parser is installed.
    """
    if len(data) > MAX_BYTES:
        raise ParseError(f"{origin} is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"{origin} is no text in UTF-8: {error}") from error
    if text.lstrip()[:1] in ("{", "["):
        return documents.read(text.encode(), origin)
    if slurm.looks_so(text):
        return slurm.read(text, origin)
    if slurm_yaml.looks_so(text):
        return slurm_yaml.read(text, origin)
    raise ParseError(
        f"{origin} does not say where nodes stand",
        hint="understood are Slurm's topology.conf and topology.yaml, topograph's output, "
        "`kubectl get nodes -o json` and `aws ec2 describe-instance-topology`",
    )
