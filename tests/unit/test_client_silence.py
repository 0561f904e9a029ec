"""A daemon that nobody reaches: a rank that goes on asking says so, once."""

import logging

import pytest

from fabric_client import rendezvous
from fabric_client.connection import Connection
from fabric_client.locate import parse_address
from fabric_client.rendezvous import Member, Rendezvous, new_claim
from fabricd.errors import UnreachableError
from fabricd.localview import LocalView


def test_who_asks_for_long_says_whom_and_how_long_still(caplog, monkeypatch):
    monkeypatch.setattr(rendezvous, "_FIRST_POLL_SECONDS", 0.2)
    monkeypatch.setattr(rendezvous, "_GOODBYE_SECONDS", 0.0)
    connection = Connection(parse_address("http://127.0.0.2:9"))  # not this host, by its name
    asking = Rendezvous(connection, Member(group="g", rank=3, size=4, incarnation=0, claim=new_claim()))
    with caplog.at_level(logging.WARNING, "fabric_client"), pytest.raises(UnreachableError, match="joining group 'g'"):
        asking.join(LocalView(), timeout=1.0, engine="auto")
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("joining group 'g' as rank 3: no answer from the daemon at http://127.0.0.2:9")
    assert told.endswith(" s more")
