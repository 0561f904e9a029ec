"""What engines are told of machines that are known from a topology file alone: it has links and ports, no addresses."""

from collections.abc import Iterator

from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.path import Transport
from fabricd.model.plan import Setting
from fabricd.plan.predict.conditions import conditions_of
from fabricd.plan.settings.nccl import NCCL_NET
from fabricd.plan.settings.others import PROVIDER
from fabricd.units import format_count


def settings_of_file(topology: NcclTopology, machines: int) -> tuple[tuple[Setting, ...], str]:
    """Return the settings of a job on machines that are all like a file, and why there are no more.

    Args:
        topology: the first machine's.
        machines: how many there are.
    """
    if machines < 2:
        return (), "no settings: within one machine NCCL gets right what a topology file tells"
    settings = tuple(_network(topology))
    more = "which interfaces and GIDs to use, a topology file does not tell: fabricctl env does, on the machines"
    return settings, more if settings else f"no settings: {more}"


def _network(topology: NcclTopology) -> Iterator[Setting]:
    transport = conditions_of(topology).transport
    plugin = NCCL_NET.get(transport)
    if plugin is None or transport is Transport.ETHERNET:
        return
    names = [net.name for cpu in topology.cpus for nic, _ in cpu.nics() for net in nic.nets if net.dev is not None]
    because = (
        f"the file's {format_count(len(names), 'port')} ({names[0] or 'without a name'}, ...; {transport}) join the "
        "machines: without them the job is to fail, not to fall back to TCP"
    )
    yield Setting(name="NCCL_NET", value=plugin, because=because)
    if transport in PROVIDER:
        yield Setting(name="FI_PROVIDER", value=PROVIDER[transport], because=because)
