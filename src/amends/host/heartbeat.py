"""The heartbeat: one thread per runtime renews all its leases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from typing import Any, Final

from amends.drivers import process
from amends.drivers.log import tell_lease_lost
from amends.errors import LedgerError, LedgerUnavailable
from amends.ledger.leases import Lease
from amends.ledger.operations import Renewed, RenewLeases
from amends.visible import visible_log

log = visible_log("amends")

BEATS_PER_LEASE: Final = 3
LOOKS_PER_LEASE: Final = 30
"""How often per lease a renewal without an answer is tried again, between two beats."""


class Heartbeat:
    """Renews leases while their runs are open, and marks a lease as lost when another owner has the run."""

    def __init__(
        self,
        renew: Callable[[RenewLeases], Renewed],
        lease_s: float,
        *,
        mono: Callable[[], float] = process.mono,
        boot: Callable[[], str] = process.boot_id,
        beats: bool = True,
    ) -> None:
        self._renew, self._lease_s, self._mono, self._boot, self._beats = renew, lease_s, mono, boot, beats
        self._leases: dict[str, tuple[Lease, Callable[[], Any] | None]] = {}
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Who only reads and writes takes the lock itself: a condition does that in Python."""
        self._thread: threading.Thread | None = None
        """None as soon as it has ended, whatever has ended it."""
        self._closed = False
        self._pid = os.getpid()

    def keep(self, lease: Lease, on_lost: Callable[[], Any] | None = None) -> None:
        """Renew this lease until ``forget``; call ``on_lost`` if it is lost."""
        self._reset_after_fork()
        with self._lock:
            self._leases[lease.root] = (lease, on_lost)
            if not self._beats:
                return  # virtual time: the simulation renews when it moves the clock
            if self._thread is None:
                self._closed = False
                thread = threading.Thread(target=self._run, name="amends-heartbeat", daemon=True)
                thread.start()
                self._thread = thread

    def forget(self, lease: Lease) -> None:
        """Stop renewing: the run was released."""
        self._reset_after_fork()
        with self._lock:
            kept = self._leases.get(lease.root)
            if kept is not None and kept[0] is lease:
                del self._leases[lease.root]

    def close(self) -> None:
        """Stop the thread; leases that are still held expire."""
        self._reset_after_fork()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)

    def hand_over(self, lease_s: float) -> int:
        """Give every lease only so long to live, and renew none again; return how many runs others take over then.

        For a process that is about to end: from now on it starts no body. It must be gone before these leases end.
        """
        leases = self.kept()
        for lease in leases:
            lease.lost = True  # first: no body starts after this
        self.close()
        for owner in {lease.owner for lease in leases}:
            epochs = {lease.root: lease.epoch for lease in leases if lease.owner == owner}
            self._renew(RenewLeases(owner, epochs, lease_s, waits=False, boot=self._boot(), mono=self._mono()))
        return len(leases)

    def _reset_after_fork(self) -> None:
        """Forget the leases, the thread and the lock of the parent process.

        A forked child owns no run of its parent. If it renewed those leases, nobody could recover the runs. The parent's
        thread may have held the lock at the moment of the fork, and does not exist here: nobody would ever release it.
        """
        if self._pid != os.getpid():
            self._pid, self._leases, self._thread = os.getpid(), {}, None
            self._lock = threading.RLock()
            self._changed = threading.Condition(self._lock)

    def _run(self) -> None:
        try:
            self._beat()
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _beat(self) -> None:
        period, soon = self._lease_s / BEATS_PER_LEASE, self._lease_s / LOOKS_PER_LEASE
        since, left = 0.0, list[Lease]()
        while True:
            is_beat = not left or since + soon >= period
            pause = period - since if is_beat else soon
            with self._changed:
                # wait_for also checks before it waits: a runtime may be closed before its thread gets here.
                self._changed.wait_for(lambda: self._closed, pause)
                if self._closed or not self._leases:
                    self._thread = None
                    return
            since = 0.0 if is_beat else since + pause
            left = self.renew(self.kept(), stuck=left) if is_beat else self.renew(left, again=True)

    def kept(self) -> list[Lease]:
        """Return the leases that are renewed now."""
        self._reset_after_fork()
        with self._changed:
            return [lease for lease, _ in self._leases.values()]

    def renew(self, leases: list[Lease], *, again: bool = False, stuck: Collection[Lease] = ()) -> list[Lease]:
        """Renew these leases now; return those without an answer.

        An unreachable ledger is not a lost lease: the monotonic clock ends the lease in time. ``again``: it was logged
        already that these are late. ``stuck``: leases that had no answer for a whole beat.
        """
        # Nobody else can take a run while the caller's own transaction locks it; on SQLite a renewal would wait for it.
        left = [lease for lease in leases if lease.joined is not None and lease.joined.are_open()]
        free = [lease for lease in leases if not any(lease is one for one in left)]
        for owner in {lease.owner for lease in free}:
            mine = [lease for lease in free if lease.owner == owner]
            try:
                left += self._renew_some(mine, owner)
            except Exception as error:  # whatever it is: a heartbeat that stops loses every run of this process
                left += self._renew_each(mine, owner, error, again=again)
        for lease in left:
            if any(lease is one for one in stuck):
                log.warning("the lease of run tree %s could not be renewed for %.1f s", lease.root, self._lease_s / 3)
        return left

    def _renew_some(self, mine: list[Lease], owner: str) -> list[Lease]:
        asked_at = self._mono()
        epochs = {lease.root: lease.epoch for lease in mine}
        renewed = self._renew(RenewLeases(owner, epochs, self._lease_s, waits=False, boot=self._boot(), mono=asked_at))
        busy: list[Lease] = []
        for lease in mine:
            if lease.root in renewed.goals:
                lease.until = max(lease.until, asked_at + self._lease_s)
                lease.goal = renewed.goals[lease.root]
                lease.is_wanted = lease.is_wanted or lease.root in renewed.wanted
            elif lease.root in renewed.busy:
                busy.append(lease)
            else:
                self._lose(lease, given_back=lease.root in renewed.given_back)
        return busy

    def _renew_each(self, mine: list[Lease], owner: str, error: Exception, *, again: bool) -> list[Lease]:
        """Renew one by one after a batch failed: if the ledger answers, one bad run must not cost the others their leases."""
        left: list[Lease] = []
        if len(mine) == 1 or isinstance(error, LedgerUnavailable):
            left = mine
        else:
            for lease in mine:
                try:
                    left += self._renew_some([lease], owner)
                except Exception as one:
                    left, error = [*left, lease], one
        if left and not again:
            is_known = isinstance(error, LedgerError)
            log.warning(
                "leases of %d runs could not be renewed: %s", len(left), error, exc_info=None if is_known else error
            )
        return left

    def _lose(self, lease: Lease, *, given_back: bool) -> None:
        with self._changed:
            kept = self._leases.get(lease.root)
            if kept is None or kept[0] is not lease:
                return  # released during the renewal, and perhaps opened again
            del self._leases[lease.root]
        lease.lost = True
        if given_back:  # released by this process, which is about to call forget()
            log.debug("run tree %s ended or was released while its lease was renewed", lease.root)
        else:
            tell_lease_lost(lease.root, lease.epoch)
        if kept[1] is not None:
            kept[1]()
