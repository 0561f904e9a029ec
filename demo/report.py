"""What a run of the trap showed: the verdict, and the table."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from demo.draw import SLOW_BITS_PER_SECOND, Draw
from demo.measure import Series

#: Sizes from which the verdict counts: below, latency decides and not bandwidth.
VERDICT_BYTES = 16 << 20
#: A plan that uses the slow network at all moves half of its bytes there; daemons and ranks chatter far below this.
SLOW_SHARE_ALLOWED = 0.02
DEFAULT_FACTOR = 5.0
BY_HAND_SHARE = 0.9

Cases = Mapping[str, Mapping[int, Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the plan did, in the worst of the sizes that count."""

    share_on_slow: float  #: of the plan's bytes
    times_default: float  #: the plan's bus bandwidth over the library default's
    times_best_by_hand: float  #: over the best case in which a person chose
    wrong: int  #: elements that were not the sum, in all cases

    @property
    def kept_off(self) -> bool:
        """Whether all sums were right and the plan kept off the slow network: what no busy machine can blur."""
        return self.share_on_slow <= SLOW_SHARE_ALLOWED and self.wrong == 0

    @property
    def good(self) -> bool:
        """Whether it was also well ahead of the library's default, and level with the best choice by hand."""
        return self.kept_off and self.times_default >= DEFAULT_FACTOR and self.times_best_by_hand >= BY_HAND_SHARE

    def __str__(self) -> str:
        return (
            f"{'good' if self.good else 'not good enough'}: {self.times_default:.1f} times the library default "
            f"(at least {DEFAULT_FACTOR:g}), {self.times_best_by_hand:.2f} of the best by hand (at least "
            f"{BY_HAND_SHARE:g}), {self.share_on_slow:.2%} of its bytes on the slow network, {self.wrong} wrong"
        )


def judge(drawn: Draw, cases: Cases, *, default: str, plan: str) -> Verdict:
    """Return the verdict over all sizes from ``VERDICT_BYTES`` on.

    Args:
        drawn: which network was slow.
        cases: series by case and size.
        default: name of the case with nothing set.
        plan: name of the case to be judged; all others are by hand.
    """
    sizes = [size for size in cases[plan] if size >= VERDICT_BYTES]
    by_hand = [name for name in cases if name not in (default, plan)]

    def speed(case: str, size: int) -> float:
        return cases[case][size].bus_bytes_per_second

    return Verdict(
        share_on_slow=max(cases[plan][size].sent_share(drawn.slow) for size in sizes),
        times_default=min(speed(plan, size) / speed(default, size) for size in sizes),
        times_best_by_hand=min(speed(plan, size) / max(speed(case, size) for case in by_hand) for size in sizes),
        wrong=sum(series.wrong for case in cases.values() for series in case.values()),
    )


def excuse(verdict: Verdict, load: float, cpus: int) -> str:
    """Return what a busy machine blurs of a verdict that is not good, or "".

    Args:
        verdict: what came out.
        load: processes that run or want to, as the kernel averages them over a minute.
        cpus: for them. The demo's own take up to twice as many.
    """
    if verdict.good or not verdict.kept_off or load <= 2 * cpus:
        return ""
    return (
        f"the plan kept off the slow network; how fast each way is tells little at a load of {load:.0f} on {cpus} CPUs"
    )


def describe(drawn: Draw) -> str:
    """Return two lines: what each network is, and what its interfaces are called."""
    lines = []
    for spec in drawn.networks:
        speed = f"{SLOW_BITS_PER_SECOND // 1_000_000} Mbit/s" if spec.name == drawn.slow else "as fast as it goes"
        names = ", ".join(f"{name} on h{index}" for index, name in enumerate(spec.interfaces))
        lines.append(f"network {spec.name}: {spec.subnet}, {names}; in truth {speed}")
    return "\n".join(lines)


def table(drawn: Draw, cases: Cases, *, default: str) -> Table:
    """Return one row a case: bus bandwidth by size, how many times the default's, and where the bytes went."""
    sizes = list(cases[default])
    biggest = sizes[-1]
    result = Table(
        title="all_reduce between two hosts, best of many",
        title_justify="left",
        caption="GB/s: bus bandwidth; sent: for one all_reduce of the biggest size, by interface counters",
        caption_justify="left",
    )
    result.add_column("way", no_wrap=True)
    for size in sizes:
        result.add_column(f"{size >> 20} MiB\nGB/s", justify="right")
    result.add_column("times\ndefault", justify="right")
    for spec in drawn.networks:
        result.add_column(f"sent on {spec.name}\nMB", justify="right")
    for name, series in cases.items():
        speeds = [f"{series[size].bus_bytes_per_second / 1e9:.3f}" for size in sizes]
        times = series[biggest].bus_bytes_per_second / cases[default][biggest].bus_bytes_per_second
        sent = [f"{series[biggest].sent_bytes(spec.name) / 1e6:,.1f}" for spec in drawn.networks]
        result.add_row(name, *speeds, f"{times:.1f}", *sent)
    return result
