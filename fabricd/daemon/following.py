"""Whom this daemon follows, and where it keeps its own record, by its configuration."""

from fabricd.api.services import Services
from fabricd.background import in_thread
from fabricd.cluster.etcd_publish import StoreSettings
from fabricd.cluster.etcd_store import EtcdStore
from fabricd.cluster.peers import PeerSettings
from fabricd.daemon.advertise import advertised_url


def peer_settings(services: Services) -> PeerSettings:
    """Return which peers are followed, and how, as configuration and credentials are at the moment."""
    config = services.config
    follows = config.role == "map"
    return PeerSettings(
        entries=config.peers if follows else (),
        file=config.peers_file if follows else None,
        equal=not config.map_nodes,
        access=services.credentials.peers,
        secure=config.tls_certificate_file is not None,
        gone_seconds=config.peer_gone_seconds,
    )


async def etcd_store(services: Services, port: int) -> EtcdStore:
    """Return the store in etcd; that no other node could ask this one is a fault of the map.

    Args:
        services: with configuration, credentials and nodes.
        port: that this daemon listens at.
    """
    config = services.config
    url = await in_thread(lambda: advertised_url(config, port), name="own address")
    if not url:
        services.nodes.set_faults("own address", ("no other node can ask this one: set advertise_url",))
    settings = StoreSettings(
        prefix=config.etcd_prefix,
        lease_seconds=config.etcd_lease_seconds,
        slot=url or str(port),
        url=lambda: advertised_url(config, port),
        gone_seconds=lambda: services.config.peer_gone_seconds,
        token=lambda: services.credentials.token,
    )
    return EtcdStore(
        config.etcd_endpoints,
        services.nodes,
        settings,
        follow=config.role == "map",
        access=lambda: services.credentials.etcd,
    )
