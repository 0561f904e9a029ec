"""An engine and a group that do what a test says, for what a communicator does with both."""

from types import SimpleNamespace

from fabricd.errors import RankLostError


class Scripted:
    """An operation that ends when told, or with an error."""

    def __init__(self):
        self.ends = False
        self.error = None
        self.tests = 0

    def test(self):
        self.tests += 1
        if self.error is not None:
            raise self.error
        return self.ends


class Engine:
    name, rank, size, arrays = "test", 0, 2, None
    abandoned = ended = False

    def __init__(self, made=None):
        self.made = made

    def abandon(self):
        self.abandoned = True

    def farewell(self):
        pending = Scripted()
        pending.ends = True
        return pending

    def shutdown(self, *, timeout):
        self.ended = True
        return True

    def split(self, color, key):
        pending = self.farewell()
        pending.engine = lambda: self.made
        return pending


class Member:
    """A group in which a rank may be lost."""

    def __init__(self):
        self.watch = SimpleNamespace(doing=str, alert=True)
        self.lost = None
        self.said = []

    def failure(self, during):
        return RankLostError("g", self.lost, during=during) if self.lost else None

    def before_start(self, now, since, during):
        return self.failure(during)

    def leave(self):
        self.said.append("left")

    def explain(self, error, what):
        """Nobody is asked."""

    def give_up(self, what, error):
        self.said.append(f"gave up: {error}")

    def abort(self, reason):
        self.said.append(f"aborted: {reason}")
