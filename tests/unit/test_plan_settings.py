"""What engines are told of a job's network: the right value, for the right nodes, and nothing that needs no telling."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import InputError, NoNetworkError, UnknownNameError
from fabricd.graph.networks import find_networks
from fabricd.localview import LocalView, ViewHca, ViewInterface
from fabricd.model.collective import CollectivePlan
from fabricd.model.device import Gid, Gpu, HcaPort, InterfaceKind, IpAddress, LldpNeighbor
from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.model.infiniband import IbFabric
from fabricd.model.network import NetworkRule
from fabricd.model.path import Policy
from fabricd.model.routing import Route
from fabricd.model.topology_file import TopologyFile
from fabricd.plan.job_plan import with_settings
from fabricd.plan.settings import SiteChoices, as_seen, of_node, settings_for
from fabricd.plan.settings.gid import Scan, nccl_index, ucx_index
from fabricd.plan.settings.sockets import default_interfaces
from tests.support.composed import member
from tests.support.nodes import BRIDGE, GEN4, hca, hgx, ib_port, nic, node, nvlinks, pci


def told(*snapshots, **options):
    """Return the values by name; of settings that differ by node, a mapping by node."""
    found = {}
    for one in settings_for({snapshot.node.name: snapshot for snapshot in snapshots}, **options):
        if one.scope == "node":
            found.setdefault(one.name, {})[one.node] = one.value
        else:
            found[one.name] = one.value
        assert one.because
    return found


def nccl(*snapshots, **options):
    return told(*snapshots, engines=["nccl"], **options)


def with_nics(snapshot, *nics):
    return replace(snapshot, interfaces=tuple(replace(one, index=index) for index, one in enumerate(nics, 1)))


def ib_pair():
    a, b = hgx("a"), hgx("b", lid=101)
    return with_nics(a, nic("eth0", "10.0.0.1/24")), with_nics(b, nic("eth0", "10.0.0.2/24"))


def test_one_node_needs_nothing():
    assert told(with_nics(hgx("a"), nic("eth0", "10.0.0.1/24"))) == {}


def test_infiniband_is_named_so_that_a_fallback_fails_and_nothing_else():
    assert nccl(*ib_pair()) == {"NCCL_NET": "IB"}


def test_gloo_and_ucx_get_concrete_names():
    found = told(*ib_pair(), engines=["ucx", "gloo"])
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"
    assert found["UCX_NET_DEVICES"] == ",".join(f"mlx5_{index}:1" for index in range(8))


def test_names_that_differ_are_told_by_node():
    a, b = ib_pair()
    b = with_nics(b, nic("enp1s0", "10.0.0.2/24"))
    assert told(a, b, engines=["gloo"]) == {"GLOO_SOCKET_IFNAME": {"a": "eth0", "b": "enp1s0"}}
    found = settings_for({"a": a, "b": b}, engines=["gloo"])
    assert [one.value for one in of_node(found, "b")] == ["enp1s0"]


def test_an_adapter_for_storage_is_left_out():
    rules = (NetworkRule(interface="mlx5_9:1", name="storage", role="storage"),)
    a, b = (
        replace(one, hcas=(*one.hcas, hca("mlx5_9", ib_port(lid=lid))), site_networks=rules)
        for one, lid in zip(ib_pair(), (90, 190), strict=True)
    )
    found = nccl(a, b)
    assert found["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{index}:1" for index in range(8))


@pytest.mark.parametrize(
    ("nics", "taken"),
    [
        ([nic("eth0", "10.0.0.1/24"), nic("docker0", "172.17.0.1/16")], ["eth0"]),
        ([nic("docker0", "172.17.0.1/16"), nic("eth0", "10.0.0.1/24"), nic("eth1", "10.1.0.1/24")], ["eth0", "eth1"]),
        ([nic("eth0", "10.0.0.1/24"), nic("ib0", "10.9.0.1/24")], ["ib0"]),
        ([nic("eth0", "10.0.0.1/24", admin_up=False), nic("lo", "127.0.0.1/8")], ["lo"]),
        ([nic("eth0", "10.0.0.1/24", carrier=False), nic("docker0", "172.17.0.1/16")], ["docker0"]),
        ([nic("veth1", "fe80::1/64"), nic("eth0", "10.0.0.1/24")], ["veth1", "eth0"]),
        ([nic("eth0")], []),
    ],
)
def test_what_nccls_sockets_take_by_themselves(nics, taken):
    assert default_interfaces(with_nics(node("a"), *nics)) == taken


def test_sockets_that_would_begin_on_a_dead_end_are_told_the_network():
    a, b = ib_pair()
    a = with_nics(a, nic("cni0", "10.244.1.1/24"), nic("eth0", "10.0.0.1/24"))
    assert nccl(a, b)["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_the_start_of_a_job_may_go_over_management():
    a, b = ib_pair()
    a = with_nics(a, nic("mgmt", "10.9.0.1/24"), nic("eth0", "10.0.0.1/24"))
    b = with_nics(b, nic("mgmt", "10.9.0.2/24"), nic("eth0", "10.0.0.2/24"))
    assert "NCCL_SOCKET_IFNAME" not in nccl(a, b)


def test_where_sockets_carry_the_data_no_other_interface_may():
    speed = {"speed_bytes_per_second": 12_500_000_000}
    a, b = (
        with_nics(node(name), nic("eth0", f"10.0.0.{host}/24", **speed), nic("tailscale0", f"100.64.0.{host}/10"))
        for name, host in (("a", 1), ("b", 2))
    )
    assert nccl(a, b) == {"NCCL_SOCKET_IFNAME": "=eth0"}


def test_a_node_without_infiniband_makes_all_use_sockets():
    a, _ = ib_pair()
    b = with_nics(node("b"), nic("eth0", "10.0.0.2/24"))
    found = settings_for({"a": a, "b": b}, engines=["nccl"])
    assert [(one.name, one.value) for one in found] == [("NCCL_NET", "Socket")]
    assert "NCCL would take mlx5_0 of a" in found[0].because


def test_rails_that_are_fabrics_of_their_own_are_not_crossed():
    def railed(name, base):
        hcas = tuple(
            replace(card, ports=(ib_port(lid=base, sm_lid=1, prefix=f"fec0:0000:0000:{rail:04x}"),))
            for rail, card in enumerate(hgx(name).hcas)
        )
        return replace(hgx(name), hcas=hcas)

    a, b = with_nics(railed("a", 1), nic("eth0", "10.0.0.1/24")), with_nics(railed("b", 2), nic("eth0", "10.0.0.2/24"))
    assert nccl(a, b) == {"NCCL_NET": "IB", "NCCL_CROSS_NIC": "0"}


def roce(name, host, gids):
    """A node whose one adapter has a GID table of (index, type, address)."""
    table = tuple(Gid(index=index, gid=gid(address), type=kind, interface="eth1") for index, kind, address in gids)
    port = HcaPort(port=1, state="active", link_layer="ethernet", rate_bytes_per_second=50 * 10**9, gids=table)
    family = 6 if ":" in host else 4
    data = nic(
        "eth1",
        "",
        rdma_device="mlx5_0",
        addresses=(IpAddress(address=host, prefix_length=24 if family == 4 else 64, family=family),),
        speed_bytes_per_second=50 * 10**9,
    )
    return replace(with_nics(node(name), data), hcas=(hca("mlx5_0", port, kind="roce"),))


def gid(address):
    if ":" in address:
        return ":".join(f"{int(group or '0', 16):04x}" for group in expanded(address))
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def expanded(address):
    head, _, tail = address.partition("::")
    left, right = head.split(":") if head else [], tail.split(":") if tail else []
    return [*left, *["0"] * (8 - len(left) - len(right)), *right]


def usual(address):
    return [(0, "roce-v1", "fe80::1"), (1, "roce-v2", "fe80::1"), (2, "roce-v1", address), (3, "roce-v2", address)]


@pytest.mark.parametrize("told_by", ["prefix", "gateway", ""])
def test_roce_behind_routers_is_not_given_up_for_management(told_by):
    """Every link to a leaf is a subnet of its own, and only management joins the hosts by subnet."""

    def routed(name, host):
        made = roce(name, f"10.{host}.0.1", usual(f"10.{host}.0.1"))
        length = 31 if told_by == "prefix" else 24
        data = replace(
            made.interfaces[0], addresses=(IpAddress(address=f"10.{host}.0.1", prefix_length=length, family=4),)
        )
        routes = (Route(destination="10.0.0.0/8", family=4, interface="eth1", gateway=f"10.{host}.0.254"),)
        made = with_nics(made, data, nic("mgmt", f"192.168.0.{host}/24", speed_bytes_per_second=125_000_000))
        return replace(made, routes=routes if told_by == "gateway" else ())

    found = nccl(routed("a", 1), routed("b", 2))
    assert found.get("NCCL_NET") == ("IB" if told_by else None), "what is not known is left to NCCL"
    assert found["NCCL_SOCKET_IFNAME"] == "=mgmt"
    assert "NCCL_CROSS_NIC" not in found


def test_the_usual_gid_table_needs_no_setting():
    found = nccl(roce("a", "10.0.0.1", usual("10.0.0.1")), roce("b", "10.0.0.2", usual("10.0.0.2")))
    assert found == {"NCCL_NET": "IB"}


def test_ipv6_alone_needs_the_family():
    found = nccl(roce("a", "fd00::1", usual("fd00::1")), roce("b", "fd00::2", usual("fd00::2")))
    assert found["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    assert "NCCL_IB_GID_INDEX" not in found


def test_a_second_address_before_the_right_one_needs_the_range():
    """A container's leftover at an earlier index: the range tells, where an index would be another on each node."""
    a = roce("a", "10.0.0.1", [(3, "roce-v2", "192.168.7.1"), (5, "roce-v2", "10.0.0.1")])
    b = roce("b", "10.0.0.2", [(3, "roce-v2", "10.0.0.2")])
    found = nccl(a, b)
    assert found["NCCL_IB_ADDR_RANGE"] == "10.0.0.0/30"
    assert "NCCL_IB_GID_INDEX" not in found


def test_a_fixed_index_is_the_last_resort_and_only_where_it_is_one():
    """Version 1 before version 2 of one address in a table without entry 0: NCCL keeps the first of the family."""
    one = [(1, "roce-v1", "10.0.0.1"), (2, "roce-v2", "10.0.0.1")]
    assert (
        nccl_index([Gid(index=1, gid=gid("10.0.0.1"), type=""), Gid(index=2, gid=gid("10.0.0.1"), type="")], Scan())
        == 1
    )
    assert "NCCL_IB_GID_INDEX" not in nccl(roce("a", "10.0.0.1", one), roce("b", "10.0.0.2", usual("10.0.0.2")))


def test_ucx_is_told_an_index_where_it_is_one_on_all_ports_of_a_node():
    a = roce("a", "10.0.0.1", [(3, "roce-v2", "192.168.7.1"), (5, "roce-v2", "10.0.0.1")])
    b = roce("b", "10.0.0.2", [(3, "roce-v2", "10.0.0.2")])
    assert told(a, b, engines=["ucx"])["UCX_IB_GID_INDEX"] == {"a": "5", "b": "3"}


GIDS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(["roce-v1", "roce-v2"]),
        st.sampled_from(["10.0.0.1", "10.0.1.1", "fd00::1", "fe80::1"]),
    ),
    unique_by=lambda entry: entry[0],
)


@given(GIDS)
def test_the_index_that_nccl_takes_has_the_wanted_family_if_any_valid_entry_has(entries):
    table = [Gid(index=index, gid=gid(address), type=kind) for index, kind, address in entries]
    taken = nccl_index(table, Scan())
    wanted = [index for index, kind, address in entries if kind == "roce-v2" and "." in address and index > 0]
    if wanted:
        chosen = next(entry for entry in entries if entry[0] == taken)
        assert chosen[1] == "roce-v2"
        assert "." in chosen[2]


@given(GIDS)
def test_the_index_that_ucx_takes_is_of_the_best_version_and_family(entries):
    table = [Gid(index=index, gid=gid(address), type=kind) for index, kind, address in entries]
    taken = ucx_index(table)
    best = sorted((kind != "roce-v2", "." not in address, index) for index, kind, address in entries)
    assert taken == (best[0][2] if best else None)


def test_the_sites_own_choices_are_set_and_never_guessed():
    site = SiteChoices(traffic_class=106, service_level=3, pkey_index=1, graph_file="/tmp/graph.xml")
    found = nccl(*ib_pair(), site=site)
    assert {name: found[name] for name in ("NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_PKEY", "NCCL_GRAPH_FILE")} == {
        "NCCL_IB_TC": "106",
        "NCCL_IB_SL": "3",
        "NCCL_IB_PKEY": "1",
        "NCCL_GRAPH_FILE": "/tmp/graph.xml",
    }


def test_gpudirect_through_an_amd_host_bridge_is_allowed():
    """GPUs and adapters below ports of one root each: NCCL's limit is a switch, and these processors pass it on."""
    zen = Cpu(vendor="AuthenticAMD", family=0x19, model=1, architecture="x86_64")

    def machine(name, host, cpu):
        devices = (
            pci("0000:01:00.0", root="pci0000:00", numa_node=0, link=GEN4, class_code=0x030200),
            pci("0000:02:00.0", root="pci0000:00", numa_node=0, link=GEN4, class_code=0x020700),
        )
        gpus = (Gpu(index=0, pci_address="0000:01:00.0", compute_capability=(8, 0), numa_node=0),)
        cards = (hca("mlx5_0", ib_port(lid=host), pci_address="0000:02:00.0", numa_node=0, dmabuf=True),)
        identity = NodeIdentity(node_id=f"id-{name}", name=name, cpu=cpu)
        made = node(name, node=identity, pci=devices, gpus=gpus, hcas=cards)
        return with_nics(made, nic("eth0", f"10.0.0.{host}/24"))

    found = settings_for({"a": machine("a", 1, zen), "b": machine("b", 2, zen)}, engines=["nccl"])
    level = next(one for one in found if one.name == "NCCL_NET_GDR_LEVEL")
    assert level.value == "PHB"
    assert "GPU:0 is PHB from NET:0, beyond P2C (the default)" in level.because
    old = replace(zen, vendor="GenuineIntel", family=6, model=0x4F)
    assert "NCCL_NET_GDR_LEVEL" not in nccl(machine("a", 1, zen), machine("b", 2, old))


def test_bridges_that_redirect_take_gpus_off_pcie():
    def below_a_switch(redirects):
        common = {"root": "pci0000:00", "numa_node": 0, "link": GEN4}
        devices = [
            pci("0000:00:01.0", class_code=BRIDGE, **common),
            pci("0000:01:00.0", parent="0000:00:01.0", class_code=BRIDGE, **common),
        ]
        gpus = []
        for index in range(2):
            port, own = f"0000:02:0{index}.0", f"0000:0{index + 3}:00.0"
            devices += [
                pci(port, parent="0000:01:00.0", class_code=BRIDGE, acs_redirects=redirects, **common),
                pci(own, parent=port, class_code=0x030200, **common),
            ]
            gpus.append(Gpu(index=index, pci_address=own))
        return node("a", pci=tuple(devices), gpus=tuple(gpus))

    found = settings_for({"a": below_a_switch(True)}, engines=["nccl"])
    assert [(one.name, one.value) for one in found] == [("NCCL_P2P_LEVEL", "NVL")]
    assert "0000:02:00.0 redirects" in found[0].because
    assert nccl(below_a_switch(False)) == {}
    linked = below_a_switch(True)
    assert nccl(replace(linked, gpus=tuple(replace(gpu, links=nvlinks(4)) for gpu in linked.gpus))) == {}, "by NVLink"
    guest = below_a_switch(True)
    assert nccl(replace(guest, node=replace(guest.node, virtualization="kvm"))) == {}, "a hypervisor needs it"


def test_a_virtual_machine_is_told_the_file_that_describes_it():
    xml = (
        '<system version="1"><cpu numaid="0"><pci busid="0000:10:00.0" class="0x060400">'
        '<pci busid="0001:00:00.0" class="0x030200"/><pci busid="0002:00:00.0" class="0x020700"/></pci></cpu></system>'
    )
    devices = (
        pci("0001:00:00.0", root="pci0001:00", class_code=0x030200),
        pci("0002:00:00.0", root="pci0002:00", class_code=0x020700),
    )
    made = node(
        "a",
        pci=devices,
        gpus=(Gpu(index=0, pci_address="0001:00:00.0"),),
        hcas=(hca("mlx5_0", ib_port(), pci_address="0002:00:00.0"),),
        topology_file=TopologyFile(path="/opt/topo.xml", text=xml),
    )
    guest = replace(made, node=replace(made.node, virtualization="microsoft"))
    assert nccl(guest) == {"NCCL_TOPO_FILE": "/opt/topo.xml"}
    assert nccl(made) == {}, "bare metal hides nothing"


def test_two_machines_of_azure_get_what_their_maker_recommends():
    """The image's topology file, and the InfiniBand adapters without the one that is the virtual machine's Ethernet."""
    found = nccl(*(member("azure-nd-h100-v5", name, number) for number, name in enumerate("ab")))
    assert found == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_ib{index}:1" for index in range(8)),
        "NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml",
    }


def test_efa_and_slingshot_are_told_their_provider():
    def efa(name, host):
        port = HcaPort(port=1, state="active", link_layer="unspecified", rate_bytes_per_second=12_500_000_000)
        made = node(name, hcas=(hca("rdmap0", port, kind="efa"),))
        return with_nics(made, nic("ens32", f"10.0.0.{host}/24"))

    found = told(efa("a", 1), efa("b", 2))
    assert found == {"NCCL_NET": "AWS Libfabric", "GLOO_SOCKET_IFNAME": "ens32", "FI_PROVIDER": "efa"}

    def cray(name, host):
        return with_nics(
            node(name), nic("hsn0", f"10.0.0.{host}/16", driver="cxi_ss1", speed_bytes_per_second=25 * 10**9)
        )

    found = told(cray("a", 1), cray("b", 2))
    assert found["NCCL_NET"] == "AWS Libfabric"
    assert found["FI_PROVIDER"] == "cxi"


def test_googles_cards_beside_gpus_are_named_for_its_plugin():
    def a3(name, host):
        common = {"root": "pci0000:00", "numa_node": 0, "link": GEN4}
        devices = [pci("0000:00:01.0", class_code=BRIDGE, **common)]
        nics = [nic("eth0", f"10.0.0.{host}/24", driver="gve")]
        gpus = []
        for index in range(2):
            up, gpu, card = f"0000:{index + 1}0:00.0", f"0000:{index + 1}3:00.0", f"0000:{index + 1}4:00.0"
            devices += [
                pci(up, parent="0000:00:01.0", class_code=BRIDGE, **common),
                pci(gpu, parent=up, class_code=0x030200, **common),
                pci(card, parent=up, class_code=0x020000, **common),
            ]
            gpus.append(Gpu(index=index, pci_address=gpu))
            nics.append(nic(f"eth{index + 1}", f"10.{index + 1}.0.{host}/24", driver="gve", pci_address=card))
        return replace(with_nics(node(name), *nics), pci=tuple(devices), gpus=tuple(gpus))

    found = nccl(a3("a", 1), a3("b", 2))
    assert found["NCCL_FASTRAK_IFNAME"] == "eth1,eth2"
    assert found["NCCL_FASTRAK_CTRL_DEV"] == "eth0"
    assert found["NCCL_CROSS_NIC"] == "0"


def test_the_faster_class_is_taken_unless_the_order_of_classes_is_to_hold():
    a, b = (
        replace(
            with_nics(node(name), nic("eth0", f"10.0.0.{host}/24", speed_bytes_per_second=12_500_000_000)),
            hcas=(hca("mlx4_0", ib_port(lid=host, rate=1_000_000_000)),),
        )
        for name, host in (("a", 1), ("b", 2))
    )
    assert nccl(a, b)["NCCL_NET"] == "Socket"
    assert nccl(a, b, policy=Policy.PRIORITY)["NCCL_NET"] == "IB"


def test_a_plan_names_islands_that_only_tcp_joins():
    nodes = {}
    for name, host, prefix in (("a", 1, 1), ("b", 2, 1), ("c", 3, 2), ("d", 4, 2)):
        port = ib_port(lid=host, prefix=f"fec0:0000:0000:{prefix:04x}")
        nodes[name] = replace(with_nics(node(name), nic("eth0", f"10.0.0.{host}/24")), hcas=(hca("mlx5_0", port),))
    plan = CollectivePlan(
        collective="all_reduce", bytes=1, ranks=tuple(f"{name}/gpu{n}" for name in "abcd" for n in (0, 1))
    )
    found = with_settings(plan, nodes)
    assert [(one.network, one.ranks, one.leader) for one in found.islands] == [
        ("ib:fec0:0000:0000:0001", (0, 1, 2, 3), 0),
        ("ib:fec0:0000:0000:0002", (4, 5, 6, 7), 4),
    ]
    assert found.because == (
        "2 islands, with TCP alone between them: ranks 0-3 over ib:fec0:0000:0000:0001 (infiniband); "
        "ranks 4-7 over ib:fec0:0000:0000:0002 (infiniband)",
        "a hierarchy would talk inside the islands, and between them by ranks 0,4 alone",
    )
    assert with_settings(plan, {name: nodes[name] for name in "ab"}).because == ()


def test_a_container_is_told_its_own_names():
    a, b = ib_pair()
    inside = LocalView(
        node_id="id-a",
        interfaces=(ViewInterface(name="net1", mac="02:00:00:00:00:09", up=True, addresses=("10.0.0.77/24",)),),
        hcas=(ViewHca(name="mlx5_0", usable=False),),
    )
    found = told(as_seen(a, inside), b)
    assert found["GLOO_SOCKET_IFNAME"] == {"a": "net1", "b": "eth0"}
    assert found["NCCL_NET"] == "Socket", "its container has no device of InfiniBand"


def test_what_is_said_of_a_hosts_interfaces_is_not_applied_to_a_containers_of_the_same_names():
    """By its name alone a container's eth0 is taken for none of its host: not for its VLAN, role or routes."""
    rules = (
        NetworkRule(role="management", interface="eth0"),
        NetworkRule(name="cluster", subnet="10.9.0.0/16"),
        NetworkRule(role="storage", interface="mlx5_*"),
    )
    a, b = (
        replace(
            with_nics(snapshot, nic("eth0", f"192.168.0.{host}/24"), nic("eth1", f"10.9.0.{host}/24")),
            lldp=(LldpNeighbor(interface="eth0", vlan_id=7),),
            ib_fabrics=(IbFabric(guid="f", switch_count=1, hca_count=2, link_count=2),),
            site_networks=rules,
            hcas=tuple(replace(one, node_guid=f"{host}:{one.name}") for one in snapshot.hcas),
        )
        for host, snapshot in ((1, hgx("a")), (2, hgx("b", lid=101)))
    )
    devices = tuple(ViewHca(name=one.name, node_guid=one.node_guid, usable=True, ports=(1,)) for one in a.hcas)
    inside = LocalView(
        interfaces=(ViewInterface(name="eth0", mac="02:00:00:00:00:09", up=True, addresses=("10.9.0.77/24",)),),
        hcas=devices,
    )
    seen = as_seen(a, inside)
    assert (seen.lldp, seen.ib_fabrics, seen.site_networks) == ((), a.ib_fabrics, rules[1:])
    (found,) = (one for one in find_networks({"a": seen, "b": b}).networks if one.name == "cluster")
    assert [port.interface for port in found.ports] == ["eth0", "eth1"]

    renamed = replace(inside, hcas=(replace(devices[0], name="rdma0"), *devices[1:]))
    seen = as_seen(a, renamed)
    assert (seen.ib_fabrics, seen.site_networks) == ((), rules[1:2]), "the host's names are not its devices'"

    same = tuple(
        ViewInterface(
            name=one.name, mac=one.mac, up=True, addresses=tuple(f"{each.address}/24" for each in one.addresses)
        )
        for one in a.interfaces
    )
    seen = as_seen(a, replace(inside, interfaces=same))
    assert (seen.lldp, seen.ib_fabrics, seen.site_networks) == (a.lldp, a.ib_fabrics, rules)


def test_jobs_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="without nodes"):
        settings_for({})
    with pytest.raises(NoNetworkError, match="no network joins the 2 nodes"):
        told(with_nics(node("a"), nic("eth0", "10.0.0.1/24")), with_nics(node("b"), nic("eth0", "10.1.0.1/24")))
    with pytest.raises(UnknownNameError, match="no engine called 'mpi'"):
        settings_for({"a": node("a")}, engines=["mpi"])


def test_a_name_that_nccls_lists_cannot_hold_is_not_written():
    speed = {"speed_bytes_per_second": 12_500_000_000}
    a, b = (
        with_nics(node(name), nic("a,b", f"10.0.0.{host}/24", **speed), nic("x", f"10.2.{host}.1/24"))
        for name, host in (("a", 1), ("b", 2))
    )
    assert nccl(a, b) == {}
    assert InterfaceKind.PHYSICAL is a.interfaces[0].kind
