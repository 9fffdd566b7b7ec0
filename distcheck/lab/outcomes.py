"""How has a scenario ended? Decided by what its workers were seen to do.

A scenario ends when all workers have reported "ended", when one of them or mpirun has
ended before, when one prints too much, when they get nowhere, or when its
time is up. A machine may be slow, and time that passes says little; so what counts is
what the workers do without a report: they compute, or sleep, or would like to compute
and get no processor, which is no fault. The outcomes are named in `distcheck.lab`.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from distcheck import lab

FAILING = 1.0  # seconds that the other workers have at most when one has failed
# Workers that all wait, for different things, are in a deadlock when they have slept
# for so many seconds since the last report.
DEADLOCK_AFTER = 4.0
# Workers hang that have slept for so many times the seconds that they may compute.
SLEEPING_FACTOR = 3
COMPUTING_LIMIT = 150.0  # seconds of processor for a worker, whatever it reports
LOOK_SECONDS = 0.5  # between two looks at what the workers do

# What a worker waits for whose last event is "ended", see `Recorder.wait_for_the_end`.
AT_THE_END = "the end"
# Rank -> what a worker waits for; None: it works.
Waits = Mapping[int, str | None]


@dataclass
class Watch:
    """What was seen of a scenario so far. In all of its methods, `now` is the time.

    recorded: do its workers report? served: are there servers of tf.distribute? These
    never end, and the end of the chief, who has rank 0, is the end of all.
    """

    size: int
    recorded: bool
    served: bool
    may_compute: float
    started: float = field(default_factory=time.monotonic)
    failed: float | None = None  # when it was seen that a worker has ended
    looked: float = field(default_factory=time.monotonic)  # last at what workers do
    # As it was when one of them last reported: the bytes of all reports, and seconds of
    # processor of each rank.
    reported_then: int = -1
    computed_then: Mapping[int, float] = field(default_factory=dict)
    # In sum since then, seconds for which none of those that work, or of all if all
    # wait, computed or wanted to.
    asleep: float = 0.0

    def ended(
        self, now: float, waits: Waits, mpirun: int | None, gone: int, printed: int
    ) -> str | None:
        """How the scenario has ended, by reports, exit statuses and the clock; None
        while it goes on, or gets nowhere.

        mpirun: its exit status, None while it runs. gone: how many of the workers, each
        of which is in `waits`, have ended. printed: bytes, of the worker with the most.
        """
        if not self.recorded:
            if mpirun is not None:
                return lab.FAILED if mpirun else lab.ENDED
        else:
            those_who_end = [0] if self.served else [*waits]
            all_ended = all(waits.get(rank) == AT_THE_END for rank in those_who_end)
            if len(waits) == self.size and all_ended:
                return lab.ENDED
            if gone or mpirun is not None:
                self.failed = self.failed or now
                # The others may be about to say why they fail, too.
                if now - self.failed > FAILING or gone == self.size:
                    return lab.FAILED
        if printed > lab.OUTPUT:
            return lab.FLOOD
        return lab.TIME_UP if now - self.started > lab.TIME_LIMIT else None

    def is_due(self, now: float) -> bool:
        """Is it time to look at what the workers do?"""
        return now - self.looked >= LOOK_SECONDS

    def gets_nowhere(
        self,
        now: float,
        waits: Waits,
        reported: int,
        computed: Mapping[int, float],
        awake: set[int],
    ) -> str | None:
        """Do the workers wait for each other, or compute or sleep without end?

        reported: bytes, by all. computed: rank -> seconds of processor of each worker
        that lives, with all that it has started. awake: those of which something
        computes, or wants to.

        Who has come to the end of the program waits, too: for the end. So workers are
        in a deadlock where one has ended and another waits in a collective. Where all
        wait for the same, it is none; they hang, if they do so beyond the limits above.
        """
        self.looked = now
        if reported != self.reported_then:
            self.reported_then, self.computed_then = reported, computed
            self.asleep = 0.0
        # Those who work count alone; if all wait in a collective, all of them do. Who
        # waits need not sleep: MPI asks all the time.
        working = [rank for rank in computed if waits.get(rank) is None] or [*computed]
        if awake.isdisjoint(working):
            self.asleep += LOOK_SECONDS
        all_there = len(waits) == self.size
        all_wait = all_there and None not in waits.values()
        if all_wait and len(set(waits.values())) > 1:
            if self.asleep > DEADLOCK_AFTER:
                return lab.DEADLOCK
        hangs = self.asleep > SLEEPING_FACTOR * self.may_compute or any(
            computed[rank] > COMPUTING_LIMIT
            or computed[rank] - self.computed_then.get(rank, 0.0) > self.may_compute
            for rank in working
        )
        if hangs and not all_there:  # mpirun has started too few
            return lab.FAILED
        return lab.HUNG if hangs else None
