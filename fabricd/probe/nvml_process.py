"""The process in which NVML runs."""

from collections.abc import Mapping

from fabricd.probe.process import ProbeProcess


class NvmlProcess(ProbeProcess):
    """Starts ``fabricd.probe.nvml_child`` for each question.

    Args:
        environment: of the child, by default this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__("fabricd.probe.nvml_child", "NVML", environment)
