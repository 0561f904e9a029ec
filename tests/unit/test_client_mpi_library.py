"""MPI libraries that do not do, and what MPICH says, in words for people."""

import ctypes

import pytest

pytest.importorskip("mpi4py")
from fabric_client.engine import mpi_library
from fabricd.errors import UnavailableError


def test_a_library_of_before_mpi_4_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setattr(mpi_library, "_library", lambda: ctypes.CDLL("libc.so.6"))  # it knows no MPI at all
    with pytest.raises(UnavailableError, match=r"MPICH \S+ knows no sessions, as 4.0 and later do.*install"):
        mpi_library.open_devices()


def test_a_reason_has_no_arguments_and_no_dots_that_align_it():
    said = "Other MPI error, error stack:\ninternal_Session_init(103): MPI_Session_init(info=0x9c, errh=0x54) failed"
    said += "\nMPII_Init_thread(232).....: \npmi1_init(14).............: PMI_Init returned -1"
    assert mpi_library.reason_of(said) == (
        "Other MPI error, error stack: internal_Session_init(103): MPI_Session_init failed "
        "MPII_Init_thread(232): pmi1_init(14): PMI_Init returned -1"
    )
