"""Laws of a group's life, whatever ranks, networks and the daemon's end do, and in whatever order."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_access import Access
from fabricd.cluster.groups_failure import FailureKind
from fabricd.cluster.groups_record import GroupRecord, record_of, state_of
from fabricd.cluster.groups_state import GroupState
from fabricd.errors import GroupError, GroupGoneError, RankLostError
from fabricd.localview import LocalView
from fabricd.model.codec import from_json, to_json
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import GroupPhase

ROUNDS = 2
ACCESS = Access(salt="00", uid=0)
PLAN = GroupPlan(engine="mpi", size=1, ranks=())


@dataclass
class Rank:
    """A client: joins, watches, comes to the fences, leaves; repeats what was not answered."""

    number: int
    stream: int | None = None
    kvsname: str = ""
    keys: list[dict[str, str]] = field(default_factory=list)
    left: bool = False
    alive: bool = True
    failed: str = ""


class GroupLife(RuleBasedStateMachine):
    """A daemon with one group, and its ranks."""

    @initialize(size=st.integers(1, 4))
    def begin(self, size):
        self.size = size
        self.now = 0.0
        self.lives = 0
        self.streams = 0
        self.saved: bytes | None = None
        self.planning = False
        self.ranks = [Rank(number) for number in range(size)]
        self.unnoticed: list[tuple[int, int]] = []  #: streams that broke, and the daemon does not know
        self.failure = ""
        self.start()

    def start(self):
        """Start the daemon: with what is on record, else with nothing."""
        self.planning = False
        self.unnoticed = []
        for rank in self.ranks:
            rank.stream = None
        if self.saved is not None:
            record = from_json(self.saved, GroupRecord)
            self.state = state_of(record, self.now, max_bytes=1 << 20)
        else:
            self.lives += 1
            self.failure = ""
            self.state = GroupState(
                name="g", size=self.size, kvsname=f"life {self.lives}", deadline=self.now + 60, max_bytes=1 << 20
            )

    def feed(self, event):
        for instruction in self.state.handle(event, self.now):
            match instruction:
                case ev.MakePlan():
                    self.planning = True
                case ev.Save():
                    record = record_of(self.state, ACCESS, "uid 0")
                    self.saved = None if self.state.phase is GroupPhase.ENDED else to_json(record)
                case ev.EndWatch(stream=number):
                    for rank in self.ranks:
                        rank.stream = None if rank.stream == number else rank.stream

    @rule(order=st.lists(st.integers(0, 3), min_size=1, max_size=12), plan=st.booleans())
    def act(self, order, plan):
        """Ranks do the next thing that each has to do, one after the other."""
        for number in order:
            rank = self.ranks[number % self.size]
            if rank.alive and not rank.failed and not rank.left:
                self.try_step(rank)
            if plan and self.planning:
                self.planned()

    def try_step(self, rank):
        try:
            self.step(rank)
        except GroupGoneError:
            raise  # a rank that keeps the rules may hear what became of its group, and nothing else
        except (GroupError, RankLostError) as error:
            rank.failed = str(error)

    @precondition(lambda self: self.planning)
    @rule()
    def planned(self):
        self.planning = False
        self.feed(ev.Planned(plan=PLAN))

    def step(self, rank):
        if not rank.kvsname:
            self.feed(
                ev.Join(rank=rank.number, claim=f"c{rank.number}", size=self.size, engine="mpi", view=LocalView())
            )
            if self.state.plan is not None:
                rank.kvsname = self.state.kvsname
        elif rank.stream is None:
            self.streams += 1
            self.feed(ev.WatchOpened(rank=rank.number, stream=self.streams))
            rank.stream = self.streams
        elif len(rank.keys) < ROUNDS:
            number = len(rank.keys)
            self.feed(ev.Contribute(rank=rank.number, round=number, keys={f"{number}.{rank.number}": "v"}))
            if self.state.fences.answers(number):
                rank.keys.append(dict(self.state.fences.last_keys))
        else:
            self.feed(ev.Leave(rank=rank.number))
            rank.left = True

    @rule(seconds=st.sampled_from([0.2, 0.2, 1.0, 1.0, 2.0, 12.0, 40.0]))
    def wait(self, seconds):
        self.now += seconds
        self.feed(ev.Tick())

    @precondition(lambda self: any(rank.stream is not None for rank in self.ranks))
    @rule(data=st.data(), dies=st.booleans())
    def disconnect(self, data, dies):
        rank = data.draw(st.sampled_from([rank for rank in self.ranks if rank.stream is not None]))
        self.unnoticed.append((rank.number, rank.stream))
        rank.stream = None
        rank.alive = not dies

    @precondition(lambda self: self.unnoticed)
    @rule()
    def notice(self):
        number, stream = self.unnoticed.pop(0)
        self.feed(ev.WatchClosed(rank=number, stream=stream))

    @rule()
    def restart(self):
        """The daemon is killed and started again, between any two events."""
        self.start()

    @precondition(lambda self: any(rank.left for rank in self.ranks))
    @rule()
    def abort(self):
        self.feed(ev.Abort(who="somebody", reason="so"))

    @invariant()
    def one_life(self):
        """All ranks that were told a name were told the same one."""
        assert len({rank.kvsname for rank in self.ranks if rank.kvsname}) <= 1

    @invariant()
    def fences_hold_everybodys_keys(self):
        for rank in self.ranks:
            for number, keys in enumerate(rank.keys):
                assert keys == {f"{number}.{other}": "v" for other in range(self.size)}

    @invariant()
    def nobody_goes_on_alone(self):
        """No rank is past a fence that another one has not come to."""
        fences = [len(rank.keys) for rank in self.ranks]
        assert max(fences) - min(fences) <= 1 or any(not rank.alive or rank.failed for rank in self.ranks)

    @invariant()
    def the_lost_are_those_who_were_silent(self):
        failure = self.state.failure
        if failure is not None and failure.kind is FailureKind.LOST:
            assert failure.ranks
            assert all(self.ranks[number].stream is None for number in failure.ranks)

    @invariant()
    def the_end_is_the_end(self):
        if self.state.phase is GroupPhase.ENDED and self.state.fences.done:
            assert all(rank.left or not rank.alive or rank.failed for rank in self.ranks)
        if self.state.failure is not None:
            kind = self.state.failure.kind
            assert self.failure in ("", kind)
            self.failure = kind

    @invariant()
    def what_is_told_of_it_adds_up(self):
        status = self.state.status()
        if status.phase is GroupPhase.FORMING:
            assert sorted((*status.present, *status.missing)) == list(range(self.size))
        assert not set(status.lost) & set(status.left)
        assert self.state.bytes >= 0


GroupLife.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestGroupLife = GroupLife.TestCase
