"""What is looked at before MPI starts."""

import mmap
import secrets
from pathlib import Path

from fabric_client.engine.mpi_segments import _fnv1a, shared_memory_shortage, unlink_left_segments


def test_too_little_shared_memory_is_told_with_what_to_do(tmp_path):
    assert shared_memory_shortage(1, str(tmp_path)) == ""
    told = shared_memory_shortage(10**9, str(tmp_path))
    assert f"{tmp_path} holds " in told
    assert "1000000000 ranks on one host take about 6000000000 of them" in told
    assert "--shm-size" in told
    assert shared_memory_shortage(1, str(tmp_path / "none")).endswith("cannot be used: No such file or directory")


def test_what_killed_ranks_left_goes_and_what_somebody_has_mapped_stays():
    kvsname, other = secrets.token_hex(16), secrets.token_hex(16)
    path, foreign = (Path(f"/dev/shm/mpich_shm_{_fnv1a(name):x}_0") for name in (kvsname, other))
    try:
        for one in (path, foreign):
            one.write_bytes(bytes(4096))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert unlink_left_segments(kvsname) == 0
        assert path.exists()
        assert unlink_left_segments(kvsname) == 1
        assert not path.exists()
        assert foreign.exists()
    finally:
        path.unlink(missing_ok=True)
        foreign.unlink(missing_ok=True)
