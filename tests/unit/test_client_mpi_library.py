"""What is looked at before MPI starts."""

from fabric_client.engine.mpi_library import shared_memory_shortage


def test_too_little_shared_memory_is_told_with_what_to_do(tmp_path):
    assert shared_memory_shortage(1, str(tmp_path)) == ""
    told = shared_memory_shortage(10**9, str(tmp_path))
    assert f"{tmp_path} holds " in told
    assert "1000000000 ranks on one host take about 6000000000 of them" in told
    assert "--shm-size" in told
    assert shared_memory_shortage(1, str(tmp_path / "none")).endswith("cannot be used: No such file or directory")
