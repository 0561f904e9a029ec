"""Who a rank is, from arguments and launchers' variables."""

import socket

import pytest

from fabric_client.environment import identify, pmi_is_alive
from fabricd.errors import InputError
from fabricd.model.wire import GROUP_NAME

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "7"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"}


def who(environ, *, alive=False, **arguments):
    return identify(environ=environ, pmi_alive=lambda _: alive, **arguments)


def rank_and_size(environ, **options):
    found = who(environ, **options)
    return found.rank, found.size, found.source


@pytest.mark.parametrize(
    ("environ", "alive", "expected"),
    [
        (TORCH, False, (1, 4, "RANK and WORLD_SIZE")),
        (OPEN_MPI, False, (2, 5, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE")),
        (SLURM, False, (3, 6, "SLURM_PROCID and SLURM_NTASKS")),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "8"}, False, (3, 8, "SLURM_PROCID and SLURM_STEP_NUM_TASKS")),
        (PMI, True, (0, 2, "PMI_RANK and PMI_SIZE")),
        (PMI, False, (0, 2, "PMI_RANK and PMI_SIZE")),
        # torchrun under mpiexec, in a Slurm allocation: the innermost launcher counts
        (TORCH | PMI | SLURM, True, (1, 4, "RANK and WORLD_SIZE")),
        # mpiexec in a batch script, whose own SLURM_PROCID=0 every rank inherits
        (PMI | SLURM, True, (0, 2, "PMI_RANK and PMI_SIZE")),
        (OPEN_MPI | SLURM, False, (2, 5, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE")),
        # srun in a job that mpiexec once started: nothing answers there any more
        (PMI | SLURM, False, (3, 6, "SLURM_PROCID and SLURM_NTASKS")),
        # half a pair is none
        ({"RANK": "9"} | SLURM, False, (3, 6, "SLURM_PROCID and SLURM_NTASKS")),
    ],
)
def test_order_of_sources(environ, alive, expected):
    assert rank_and_size(environ, alive=alive) == expected


def test_arguments_come_first_and_may_be_one_of_both():
    assert rank_and_size(TORCH, rank=0, world_size=2) == (0, 2, "arguments")
    assert rank_and_size(TORCH, rank=3) == (3, 4, "RANK and WORLD_SIZE, and arguments")


@pytest.mark.parametrize(
    ("environ", "arguments", "said"),
    [
        ({}, {}, ["no rank and world_size", "none of RANK, WORLD_SIZE"]),
        ({"RANK": "1"}, {}, ["no rank and world_size", "set here: RANK=1"]),
        ({}, {"rank": 1}, ["no world_size"]),
        ({"RANK": "4", "WORLD_SIZE": "4"}, {}, ["rank 4 of 4", "RANK and WORLD_SIZE", "set here: RANK=4 WORLD_SIZE=4"]),
        ({"RANK": "x", "WORLD_SIZE": "4"}, {}, ["RANK='x' is not a number"]),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, {}, ["RANK='-1'"]),
        ({}, {"rank": 0, "world_size": 0}, ["rank 0 of 0", "arguments"]),
        ({}, {"rank": -1, "world_size": 2}, ["rank -1 of 2"]),
        (TORCH, {"group": "a b"}, ["group", "'a b'"]),
        (TORCH, {"group": ""}, ["group"]),
        (TORCH | {"FABRICD_GROUP": "x" * 300}, {}, ["FABRICD_GROUP"]),
    ],
)
def test_errors_say_what_was_found_where(environ, arguments, said):
    with pytest.raises(InputError) as error:
        who(environ, **arguments)
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"FABRICD_GROUP": "mine", "TORCHELASTIC_RUN_ID": "r"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "run 7/x"}, "torch-run-7-x"),
        ({"TORCHELASTIC_RUN_ID": "none"} | SLURM, "slurm-77.1"),
        ({"SLURM_JOB_ID": "77"}, "slurm-77.batch"),
        ({"PMIX_NAMESPACE": "prterun-host-123@1"}, "pmix-prterun-host-123@1"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "master-10.0.0.1-29500"),
        ({"MASTER_ADDR": ""}, "default"),
        ({"TORCHELASTIC_RUN_ID": "é" * 500}, "torch--"),
    ],
)
def test_group_names(environ, name):
    found = who(TORCH | environ)
    assert found.group == name
    assert __import__("re").fullmatch(GROUP_NAME, found.group)
    assert found.group_asked == ("FABRICD_GROUP" in environ)


@pytest.mark.parametrize(
    ("environ", "incarnation"),
    [
        ({}, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "3"}, 3),
        ({"SLURM_RESTART_COUNT": "2"}, 2_000_000),
        ({"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "3"}, 1_000_003),
        ({"SLURM_RESTART_COUNT": "1", "FABRICD_INCARNATION": "5"}, 5),
    ],
)
def test_incarnations(environ, incarnation):
    assert who(TORCH | environ).incarnation == incarnation


def test_a_launcher_tells_that_all_ranks_are_local():
    assert who(TORCH).all_local
    assert not who(TORCH | {"LOCAL_WORLD_SIZE": "2"}).all_local
    assert not who(SLURM).all_local
    assert who({}, rank=0, world_size=1).all_local


def test_a_live_descriptor_is_told_from_a_stale_one(tmp_path):
    ours, theirs = socket.socketpair()
    number = str(theirs.fileno())
    assert pmi_is_alive({"PMI_FD": number})
    ours.close()
    assert not pmi_is_alive({"PMI_FD": number})
    theirs.close()
    assert not pmi_is_alive({"PMI_FD": number})
    with (tmp_path / "file").open("w") as file:  # the number is something else by now
        assert not pmi_is_alive({"PMI_FD": str(file.fileno())})
    for text in ("", "x", "-1", "99999999"):
        assert not pmi_is_alive({"PMI_FD": text})


def test_a_live_port_is_told_from_a_stale_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert pmi_is_alive({"PMI_PORT": f"127.0.0.1:{port}"})
    assert not pmi_is_alive({"PMI_PORT": f"127.0.0.1:{port}"})
    for text in ("", "host", ":5", "127.0.0.1:x", "127.0.0.1:99999999"):
        assert not pmi_is_alive({"PMI_PORT": text})
