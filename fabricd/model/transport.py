"""What carries the bytes: a word of its own, because a rank's plan has it and no paths."""

from enum import StrEnum

from fabricd.model.observation import missing_word


class Transport(StrEnum):
    """What carries the bytes. The order is the order of preference where figures are equal."""

    SELF = "self"
    NVLINK = "nvlink"
    C2C = "c2c"
    PCIE = "pcie"
    SHM = "shm"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    SLINGSHOT = "slingshot"
    GPUDIRECT_TCP = "gpudirect-tcp"
    ETHERNET = "ethernet"
    INTERNET = "internet"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Transport | None":
        return missing_word(value, cls.UNKNOWN)
