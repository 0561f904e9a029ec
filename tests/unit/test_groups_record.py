"""Records of groups that a daemon finds when it starts: some were cut off, changed by hand, or are no files."""

import asyncio
import json
import os

import pytest

from fabricd.cluster.groups import GroupService
from fabricd.cluster.groups_record import GroupStore
from tests.unit.test_groups_service import OneHost, joined


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> dict:
    """Return what is on record of a running group of two."""
    folder = tmp_path_factory.mktemp("records")

    async def scenario():
        service = GroupService(OneHost(), store=GroupStore(folder))
        await joined(service, 2)
        service.stop()

    asyncio.run(scenario())
    (path,) = folder.iterdir()
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 10**15},
        {"size": 0, "members": []},
        {"size": 3},
        {"rounds_done": -1},
        {"incarnation": -1},
        {"name": "../g\n"},
        {"plan": None},
        {"access": {"salt": "no hex", "uid": 7}},
        {"access": {"salt": "", "uid": 7}},
    ],
)
def test_a_record_of_what_no_group_can_be_is_left_out(tmp_path, record, wrong):
    path = tmp_path / f"{record['kvsname']}.group.json"
    path.write_text(json.dumps(record))
    assert len(GroupStore(tmp_path).load()) == 1
    path.write_text(json.dumps(record | wrong))
    assert GroupStore(tmp_path).load() == []
    assert not path.exists()


def test_members_on_record_are_all_ranks_once(tmp_path, record):
    path = tmp_path / f"{record['kvsname']}.group.json"
    first, second = record["members"]
    for members in ([first, first], [first, second | {"rank": 7}], [first, second, second]):
        path.write_text(json.dumps(record | {"members": members}))
        assert GroupStore(tmp_path).load() == []


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_what_is_no_file_is_not_read_as_a_record(tmp_path, record, make):
    path = tmp_path / f"{record['kvsname']}.group.json"
    make(path)
    assert GroupStore(tmp_path).load() == []
    assert path.lstat()  # it is nobody's business here
