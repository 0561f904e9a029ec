"""The life of a group, event by event."""

import pytest

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_access import Access
from fabricd.cluster.groups_record import record_of, state_of
from fabricd.cluster.groups_state import (
    ASK_AGAIN_SECONDS,
    ENDED_SECONDS,
    FAILED_SECONDS,
    FIRST_WATCH_SECONDS,
    RECONNECT_SECONDS,
    GroupState,
)
from fabricd.errors import (
    GroupAbortedError,
    GroupConflictError,
    GroupError,
    GroupGoneError,
    GroupTimeoutError,
    InputError,
    NoNetworkError,
    RankLostError,
)
from fabricd.localview import LocalView
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import GroupPhase

PLAN = GroupPlan(engine="mpi", size=3, ranks=(), process_mapping="(vector,(0,1,3))")
ACCESS = Access(salt="00", uid=0)


def group(size: int = 3, **fields) -> GroupState:
    return GroupState(name="g", size=size, kvsname="k", deadline=60.0, **fields)


def join(rank: int, *, claim: str = "", size: int = 3, host: str = "a", cost: int = 0, engine: str = "mpi") -> ev.Join:
    view = LocalView(hostname=host, pid=100 + rank)
    return ev.Join(rank=rank, claim=claim or f"claim{rank}", size=size, engine=engine, view=view, cost=cost)


def running(size: int = 3) -> GroupState:
    """All ranks are in and have their watches open; stream numbers are rank + 10."""
    state = group(size)
    for rank in range(size):
        state.handle(join(rank, size=size), 0.0)
    state.handle(ev.Planned(plan=PLAN), 1.0)
    for rank in range(size):
        state.handle(ev.WatchOpened(rank=rank, stream=rank + 10), 1.0)
    return state


def kinds(instructions) -> list[str]:
    return [type(one).__name__ for one in instructions]


def told(instructions) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.event.kind, one.event.ranks) for one in instructions if isinstance(one, ev.Tell)]


class TestForming:
    def test_the_last_join_asks_for_the_plan_and_the_plan_is_saved_before_it_is_told(self):
        state = group()
        assert [kinds(state.handle(join(rank), 0.0)) for rank in (2, 0, 1)] == [[], [], ["MakePlan"]]
        assert state.phase is GroupPhase.PLANNING
        assert kinds(state.handle(ev.Planned(plan=PLAN), 1.0)) == ["Save", "AnswerJoins"]
        assert state.phase is GroupPhase.RUNNING

    def test_a_repeated_join_changes_nothing(self):
        state = group(2)
        state.handle(join(0, size=2), 0.0)
        assert state.handle(join(0, size=2), 1.0) == []
        assert kinds(state.handle(join(1, size=2), 2.0)) == ["MakePlan"]
        assert state.handle(join(1, size=2), 3.0) == []

    def test_a_second_claim_to_a_rank_names_both_parties(self):
        state = group()
        state.handle(join(1, host="host-a"), 0.0)
        with pytest.raises(
            GroupConflictError, match=r"rank 1 \(host-b, pid 101\) claims the place that rank 1 \(host-a, pid 101\) has"
        ):
            state.handle(join(1, claim="other", host="host-b"), 0.0)
        assert state.status().present == (1,)

    def test_another_world_size_names_both_parties(self):
        state = group()
        state.handle(join(0, host="host-a"), 0.0)
        with pytest.raises(
            GroupConflictError, match=r"rank 1 \(host-b.* says world_size 4, but rank 0 \(host-a.* says 3"
        ):
            state.handle(join(1, size=4, host="host-b"), 0.0)

    def test_one_claim_for_two_ranks_and_another_engine_are_refused(self):
        state = group()
        state.handle(join(0), 0.0)
        with pytest.raises(GroupConflictError, match="bears the claim of rank 0"):
            state.handle(join(1, claim="claim0"), 0.0)
        with pytest.raises(GroupConflictError, match="wants engine 'nccl'"):
            state.handle(join(1, engine="nccl"), 0.0)

    def test_the_deadline_names_who_is_missing_who_came_and_who_was_refused(self):
        state = group(4, previous="was aborted by rank 1")
        state.handle(join(0, size=4, host="host-a"), 0.0)
        state.handle(join(1, size=4, host="host-a"), 0.0)
        with pytest.raises(GroupConflictError):
            state.handle(join(2, size=5, host="host-b"), 1.0)
        for rank in (0, 1):
            state.handle(ev.Ask(rank=rank, open=True), 1.0)
        assert state.handle(ev.Tick(), 59.9) == []
        assert kinds(state.handle(ev.Tick(), 60.0)) == ["AnswerJoins", "AnswerFences", "Tell"]
        with pytest.raises(GroupTimeoutError) as caught:
            state.check()
        assert caught.value.details == {"missing": [2, 3], "present": [0, 1]}
        for fact in ("no rank 2-3 of 4", "rank 0-1 (host-a)", "rank 2 (host-b, pid 102) says world_size 5", "aborted"):
            assert fact in caught.value.message

    def test_a_member_that_falls_silent_is_missed_and_its_place_is_free(self):
        state = group()
        state.handle(join(0), 0.0)
        state.handle(join(1), 0.0)
        state.handle(ev.Ask(rank=0, open=True), 0.0)
        state.handle(ev.Ask(rank=1, open=True), 0.0)
        state.handle(ev.Ask(rank=1, open=False, vanished=True), 5.0)
        state.handle(ev.Tick(), 5.0 + RECONNECT_SECONDS)
        assert state.status().present == (0,)
        state.handle(join(1, claim="next attempt"), 10.0)
        assert state.status().present == (0, 1)

    def test_no_plan_is_made_with_a_member_that_has_just_gone_away(self):
        state = group(2)
        state.handle(join(1, size=2), 0.0)
        state.handle(ev.Ask(rank=1, open=True), 0.0)
        state.handle(ev.Ask(rank=1, open=False, vanished=True), 5.0)
        assert state.handle(join(0, size=2), 5.1) == []
        state.handle(ev.Ask(rank=0, open=True), 5.1)
        state.handle(ev.Tick(), 5.0 + RECONNECT_SECONDS)
        assert kinds(state.handle(join(1, size=2, claim="next attempt"), 7.0)) == ["MakePlan"]

    def test_the_plan_is_made_when_a_member_that_went_away_is_back(self):
        state = group(2)
        state.handle(join(1, size=2), 0.0)
        state.handle(ev.Ask(rank=1, open=True), 0.0)
        state.handle(ev.Ask(rank=1, open=False, vanished=True), 5.0)
        state.handle(join(0, size=2), 5.1)
        assert state.handle(join(1, size=2), 5.2) == []
        assert kinds(state.handle(ev.Ask(rank=1, open=True), 5.2)) == ["MakePlan"]

    def test_a_member_that_was_told_to_ask_again_has_time_for_that(self):
        state = group()
        for rank in (0, 1):
            state.handle(join(rank), 0.0)
            state.handle(ev.Ask(rank=rank, open=True), 0.0)
        state.handle(ev.Ask(rank=1, open=False), 5.0)
        state.handle(ev.Tick(), 5.0 + ASK_AGAIN_SECONDS - 0.1)
        assert state.status().present == (0, 1)
        state.handle(ev.Tick(), 5.0 + ASK_AGAIN_SECONDS)
        assert state.status().missing == (1, 2)

    def test_a_group_that_everybody_left_is_over(self):
        state = group()
        state.handle(join(0), 0.0)
        state.handle(ev.Leave(rank=0), 1.0)
        assert state.over
        assert state.forget_at == 1.0

    def test_views_beyond_the_limit_are_refused(self):
        state = group(max_bytes=1000)
        state.handle(join(0, cost=900), 0.0)
        with pytest.raises(GroupError, match="1000 bytes"):
            state.handle(join(1, cost=101), 0.0)
        assert state.status().present == (0,)

    def test_no_plan_fails_the_group_with_the_reason(self):
        state = group(1)
        state.handle(join(0, size=1), 0.0)
        state.handle(ev.PlanFailed(error=NoNetworkError("a has eth0, b has ib0")), 1.0)
        with pytest.raises(NoNetworkError, match="a has eth0, b has ib0"):
            state.check()


class TestRunning:
    def test_a_fence_is_answered_when_all_came_and_holds_all_keys(self):
        state = running()
        for rank in (2, 0):
            assert state.handle(ev.Contribute(rank=rank, round=0, keys={f"k{rank}": f"v{rank}"}), 2.0) == []
        assert kinds(state.handle(ev.Contribute(rank=1, round=0, keys={"k1": "v1"}), 2.0)) == ["Save", "AnswerFences"]
        assert state.fences.last_keys == {"k0": "v0", "k1": "v1", "k2": "v2"}

    def test_a_repeated_contribution_is_one_and_other_keys_are_refused(self):
        state = running()
        state.handle(ev.Contribute(rank=0, round=0, keys={"a": "1"}), 2.0)
        assert state.handle(ev.Contribute(rank=0, round=0, keys={"a": "1"}), 3.0) == []
        with pytest.raises(GroupConflictError, match="other keys"):
            state.handle(ev.Contribute(rank=0, round=0, keys={"a": "2"}), 3.0)

    def test_only_the_open_and_the_latest_round_can_be_asked_for(self):
        state = running(1)
        for number in (0, 1):
            state.handle(ev.Contribute(rank=0, round=number, keys={}), 2.0)
        assert state.handle(ev.Contribute(rank=0, round=1, keys={}), 3.0) == []
        for number in (0, 3):
            with pytest.raises(InputError, match="the open one is 2"):
                state.handle(ev.Contribute(rank=0, round=number, keys={}), 3.0)

    def test_keys_beyond_the_limit_are_refused(self):
        state = running()
        state.max_bytes = 10
        with pytest.raises(GroupError, match="at most 10 bytes"):
            state.handle(ev.Contribute(rank=0, round=0, keys={"a": "1"}, cost=11), 2.0)

    def test_a_watch_that_breaks_has_a_moment_to_come_back(self):
        state = running()
        state.handle(ev.WatchClosed(rank=1, stream=11), 10.0)
        assert state.handle(ev.Tick(), 10.0 + RECONNECT_SECONDS - 0.01) == []
        state.handle(ev.WatchOpened(rank=1, stream=21), 11.4)
        assert state.handle(ev.Tick(), 100.0) == []

    def test_a_watch_that_stays_away_is_a_loss_that_all_others_hear_of(self):
        state = running()
        state.handle(ev.WatchClosed(rank=1, stream=11), 10.0)
        done = state.handle(ev.Tick(), 10.0 + RECONNECT_SECONDS)
        assert kinds(done) == ["Save", "AnswerJoins", "AnswerFences", "Tell"]
        assert told(done) == [("lost", (1,))]
        with pytest.raises(RankLostError) as caught:
            state.check()
        assert caught.value.ranks == (1,)
        assert "rank 1 (a, pid 101)" in caught.value.details["reason"]

    def test_ranks_that_go_with_their_host_are_one_loss(self):
        state = running()
        state.handle(ev.WatchClosed(rank=1, stream=11), 10.0)
        state.handle(ev.WatchClosed(rank=2, stream=12), 10.1)
        assert told(state.handle(ev.Tick(), 10.0 + RECONNECT_SECONDS)) == [("lost", (1, 2))]

    def test_a_rank_silent_since_before_the_failure_is_added_and_survivors_that_give_up_are_not(self):
        state = running()
        state.handle(ev.WatchClosed(rank=1, stream=11), 10.0)
        state.handle(ev.WatchClosed(rank=2, stream=12), 11.0)
        assert told(state.handle(ev.Tick(), 11.5)) == [("lost", (1,))]
        state.handle(ev.WatchClosed(rank=0, stream=10), 11.6)
        assert told(state.handle(ev.Tick(), 12.5)) == [("lost", (2,))]
        assert state.handle(ev.Tick(), 20.0) == []
        assert state.status().lost == (1, 2)

    def test_a_reconnected_watch_replaces_the_one_that_nobody_noticed_to_be_dead(self):
        state = running()
        assert state.handle(ev.WatchOpened(rank=1, stream=21), 10.0) == [ev.EndWatch(stream=11)]
        assert state.handle(ev.WatchClosed(rank=1, stream=11), 10.1) == []
        assert state.handle(ev.Tick(), 50.0) == []

    def test_an_open_request_is_a_sign_of_life_too(self):
        state = running()
        state.handle(ev.Ask(rank=1, open=True), 9.0)
        state.handle(ev.WatchClosed(rank=1, stream=11), 10.0)
        assert state.handle(ev.Tick(), 30.0) == []
        state.handle(ev.Ask(rank=1, open=False), 30.0)
        assert told(state.handle(ev.Tick(), 30.0 + RECONNECT_SECONDS)) == [("lost", (1,))]

    def test_a_member_that_never_opens_its_watch_is_lost_after_a_while(self):
        state = group(1)
        state.handle(join(0, size=1), 0.0)
        state.handle(ev.Ask(rank=0, open=True), 0.0)
        state.handle(ev.Planned(plan=PLAN), 1.0)
        state.handle(ev.Ask(rank=0, open=False), 1.0)
        assert state.handle(ev.Tick(), 1.0 + FIRST_WATCH_SECONDS - 0.1) == []
        assert told(state.handle(ev.Tick(), 1.0 + FIRST_WATCH_SECONDS)) == [("lost", (0,))]

    def test_leaving_is_no_loss_and_the_last_one_ends_the_group(self):
        state = running()
        for rank in (0, 1):
            done = state.handle(ev.Leave(rank=rank), 5.0)
            assert kinds(done) == ["EndWatch", "Save"]
            state.handle(ev.WatchClosed(rank=rank, stream=rank + 10), 5.0)
        assert state.handle(ev.Tick(), 20.0) == []
        assert kinds(state.handle(ev.Leave(rank=2), 21.0)) == ["EndWatch", "Save", "AnswerJoins", "AnswerFences"]
        assert state.phase is GroupPhase.ENDED
        assert state.forget_at == 21.0 + ENDED_SECONDS
        assert (state.plan, state.fences.last_keys) == (None, {})

    def test_leaving_twice_is_leaving_once(self):
        state = running()
        state.handle(ev.Leave(rank=0), 5.0)
        assert state.handle(ev.Leave(rank=0), 6.0) == []

    def test_an_abort_ends_it_for_all_with_reason_and_who(self):
        state = running()
        done = state.handle(ev.Abort(who="rank 2 (a, pid 102)", reason="out of memory"), 5.0)
        assert told(done) == [("aborted", ())]
        with pytest.raises(GroupAbortedError, match=r"by rank 2 \(a, pid 102\): out of memory"):
            state.handle(ev.Contribute(rank=0, round=0, keys={}), 6.0)
        assert state.forget_at == 5.0 + FAILED_SECONDS

    def test_a_newer_incarnation_fences_it(self):
        state = running()
        assert told(state.handle(ev.Supersede(incarnation=4), 5.0)) == [("fenced", ())]
        with pytest.raises(GroupConflictError) as caught:
            state.handle(join(0), 6.0)
        assert caught.value.details == {"fenced_by": 4}

    @pytest.mark.parametrize(
        "event",
        [ev.Abort(who="x", reason="late"), ev.Supersede(incarnation=9), ev.Planned(plan=PLAN), ev.Tick()],
        ids=["abort", "supersede", "planned", "tick"],
    )
    def test_a_failure_is_final(self, event):
        state = running()
        state.handle(ev.Abort(who="rank 0", reason="first"), 5.0)
        assert state.handle(event, 6.0) == []
        with pytest.raises(GroupAbortedError, match="first"):
            state.check()

    def test_who_is_no_member_is_told_so(self):
        state = running()
        for event in (
            ev.Contribute(rank=7, round=0, keys={}),
            ev.WatchOpened(rank=7, stream=1),
            ev.Leave(rank=7),
        ):
            with pytest.raises(GroupGoneError):
                state.handle(event, 5.0)
        assert state.handle(ev.Ask(rank=7, open=True), 5.0) == []
        assert state.handle(ev.WatchClosed(rank=7, stream=1), 5.0) == []

    def test_nobody_comes_to_a_fence_or_watches_before_the_plan(self):
        state = group()
        state.handle(join(0), 0.0)
        for event in (ev.Contribute(rank=0, round=0, keys={}), ev.WatchOpened(rank=0, stream=1)):
            with pytest.raises(GroupConflictError, match="no JoinAnswer yet"):
                state.handle(event, 1.0)


class TestRestart:
    """What a restarted daemon makes of each state that it may find on record."""

    def restarted(self, state: GroupState, now: float) -> GroupState:
        return state_of(record_of(state, ACCESS, "uid 0"), now, max_bytes=1 << 20)

    def test_members_have_time_to_come_back_and_those_who_do_not_are_lost(self):
        state = self.restarted(running(), 100.0)
        state.handle(ev.WatchOpened(rank=0, stream=1), 101.0)
        state.handle(ev.WatchOpened(rank=2, stream=2), 102.0)
        assert state.handle(ev.Tick(), 99.9 + FIRST_WATCH_SECONDS) == []
        assert told(state.handle(ev.Tick(), 100.0 + FIRST_WATCH_SECONDS)) == [("lost", (1,))]

    def test_who_left_is_not_waited_for(self):
        state = running(2)
        state.handle(ev.Leave(rank=0), 5.0)
        state = self.restarted(state, 100.0)
        state.handle(ev.WatchOpened(rank=1, stream=1), 101.0)
        assert state.handle(ev.Tick(), 200.0) == []
        assert state.left == [0]

    def test_the_latest_fence_is_still_answered_and_the_next_one_is_open(self):
        state = running(2)
        for rank in (0, 1):
            state.handle(ev.Contribute(rank=rank, round=0, keys={f"k{rank}": "v"}), 2.0)
        state.handle(ev.Contribute(rank=0, round=1, keys={"x": "y"}), 3.0)
        state = self.restarted(state, 100.0)
        assert state.handle(ev.Contribute(rank=1, round=0, keys={"k1": "v"}), 101.0) == []
        assert state.fences.last_keys == {"k0": "v", "k1": "v"}
        state.handle(ev.Contribute(rank=1, round=1, keys={}), 101.0)
        assert "AnswerFences" in kinds(state.handle(ev.Contribute(rank=0, round=1, keys={"x": "y"}), 101.0))

    @pytest.mark.parametrize(
        ("event", "error"),
        [
            (ev.Abort(who="rank 1", reason="stop"), GroupAbortedError),
            (ev.Supersede(incarnation=5), GroupConflictError),
        ],
        ids=["aborted", "fenced"],
    )
    def test_a_failure_is_remembered_as_it_was(self, event, error):
        state = running()
        state.handle(event, 5.0)
        before = state.failure
        state = self.restarted(state, 100.0)
        assert state.failure == before
        with pytest.raises(error):
            state.handle(ev.WatchOpened(rank=0, stream=1), 101.0)
        assert state.forget_at == 100.0 + FAILED_SECONDS

    def test_a_loss_is_remembered_with_its_ranks(self):
        state = running()
        state.handle(ev.WatchClosed(rank=1, stream=11), 10.0)
        state.handle(ev.Tick(), 20.0)
        with pytest.raises(RankLostError) as caught:
            self.restarted(state, 100.0).check()
        assert caught.value.ranks == (1,)
