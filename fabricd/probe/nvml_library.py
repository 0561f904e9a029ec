"""NVML through nvidia-ml-py, with every call counted and every refusal kept as a note. Runs in the probe's child."""

from collections.abc import Iterable
from typing import Any

from fabricd.units import format_ranges

# Numbers of nvmlReturn_t, stable since the library's first release. Source: NVIDIA's NVML API reference.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
ARGUMENT_VERSION_MISMATCH = 25

# Members of nvmlValue_t by nvmlValueType_t.
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_GROUPED = {
    NOT_SUPPORTED: "not supported by this GPU",
    FUNCTION_NOT_FOUND: "not in this driver's NVML",
    None: "not in this nvidia-ml-py",
}


class GpuLostError(Exception):
    """The GPU does not answer any more, or needs a reset before it does."""


class Refusal:
    """Why a call gave no value: NVML's error number, None where the binding has no such function, and words."""

    def __init__(self, code: int | None, words: str) -> None:
        self.code = code
        self.words = words


class Library:
    """The initialised library.

    Attributes:
        nvml: the module ``pynvml``.
        calls: how many calls reached the library.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.calls = 0

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what a function of the binding returns, or a Refusal.

        Raises:
            GpuLostError: the GPU fell off the bus or needs a reset.
        """
        bound = getattr(self.nvml, function, None)
        if bound is None:
            return Refusal(None, f"this nvidia-ml-py has no {function}")
        self.calls += 1
        try:
            return bound(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in (GPU_IS_LOST, RESET_REQUIRED):
                raise GpuLostError(str(error)) from error
            return Refusal(error.value, str(error))
        except UnicodeDecodeError as error:
            return Refusal(0, f"not a text: {error}")


class Reader:
    """Reads fields of one GPU.

    Attributes:
        library: the library.
        handle: the GPU's handle.
    """

    def __init__(self, library: Library, handle: Any) -> None:
        self.library = library
        self.handle = handle
        self._notes: dict[str, dict[str, list[int]]] = {}  # reason -> field -> links

    def note(self, field: str, why: str, link: int | None = None) -> None:
        """Remember why a field, or a field of one link, has no value."""
        links = self._notes.setdefault(why, {}).setdefault(field, [])
        if link is not None:
            links.append(link)

    def ask(self, field: str, function: str, *arguments: Any, link: int | None = None) -> Any:
        """Return what a function says of this GPU, or None and a note for the field.

        Raises:
            GpuLostError: see ``Library.call``.
        """
        answer = self.library.call(function, self.handle, *arguments)
        if isinstance(answer, Refusal):
            self.note(field, _GROUPED.get(answer.code, answer.words), link)
            return None
        return answer

    def fields(self, wanted: Iterable[tuple[int, int]]) -> list[int | None]:
        """Return the values of NVML fields, each a (field, scope); None where the driver gives none. One call."""
        wanted = list(wanted)
        answer = self.library.call("nvmlDeviceGetFieldValues", self.handle, wanted) if wanted else []
        if isinstance(answer, Refusal):
            return [None] * len(wanted)
        return [
            int(getattr(value.value, _VALUE_MEMBERS[value.valueType]))
            if value.nvmlReturn == 0 and value.valueType < len(_VALUE_MEMBERS)
            else None
            for value in answer
        ]

    def notes(self) -> list[str]:
        """Return the notes, "fields: why"."""
        return [
            f"{', '.join(_with_links(field, links) for field, links in fields.items())}: {why}"
            for why, fields in self._notes.items()
        ]


def _with_links(field: str, links: list[int]) -> str:
    """Return ``"links.error 0-3,7"``."""
    return f"{field} {format_ranges(links)}" if links else field
