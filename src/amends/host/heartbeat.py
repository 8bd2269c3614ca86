"""The heartbeat: one thread per runtime renews all its leases."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from typing import Any, Final

from amends.drivers import process
from amends.errors import LedgerError, LedgerUnavailable
from amends.ledger.operations import Renewed, RenewLeases
from amends.ledger.world import Lease
from amends.visible import visible_log

log = visible_log("amends")

BEATS_PER_LEASE: Final = 3
LOOKS_PER_LEASE: Final = 30
"""So often is asked again, between two beats, for a lease that nothing was learned of."""


class Heartbeat:
    """Keeps leases alive while their runs are open, and tells a run that has lost its own."""

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
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pid = os.getpid()

    def keep(self, lease: Lease, on_lost: Callable[[], Any] | None = None) -> None:
        """Renew this lease until it is forgotten."""
        if self._pid != os.getpid():
            # A forked child owns nothing of its parent's: if it renewed those leases, nobody could recover them.
            self._pid, self._leases, self._thread = os.getpid(), {}, None
            self._changed = threading.Condition()
        with self._changed:
            self._leases[lease.root] = (lease, on_lost)
            if not self._beats:
                return  # virtual time: whoever moves the clock renews
            if self._thread is None or not self._thread.is_alive():
                self._closed = False
                self._thread = threading.Thread(target=self._beat, name="amends-heartbeat", daemon=True)
                self._thread.start()

    def forget(self, lease: Lease) -> None:
        """The run has been given back."""
        with self._changed:
            kept = self._leases.get(lease.root)
            if kept is not None and kept[0] is lease:
                del self._leases[lease.root]

    def close(self) -> None:
        """Stop the thread; leases that are still kept run out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)

    def _beat(self) -> None:
        period, soon = self._lease_s / BEATS_PER_LEASE, self._lease_s / LOOKS_PER_LEASE
        since, left = 0.0, list[Lease]()
        while True:
            is_beat = not left or since + soon >= period
            pause = period - since if is_beat else soon
            with self._changed:
                # Looked at before the wait too: a runtime may be closed before its thread came this far.
                self._changed.wait_for(lambda: self._closed, pause)
                if self._closed or not self._leases:
                    self._thread = None
                    return
            since = 0.0 if is_beat else since + pause
            left = self.renew(self.kept(), stuck=left) if is_beat else self.renew(left, again=True)

    def kept(self) -> list[Lease]:
        """The leases that are kept now."""
        with self._changed:
            return [lease for lease, _ in self._leases.values()]

    def renew(self, leases: list[Lease], *, again: bool = False, stuck: Collection[Lease] = ()) -> list[Lease]:
        """Renew these now; those that nothing was learned of. An unreachable ledger is not a lost lease: the monotonic
        clock ends it in time. ``again``: it was said already that they are late; ``stuck``: they are, for a whole beat.
        """
        # What the caller's own transaction keeps locked nobody else can have meanwhile; on SQLite all would wait for it.
        left = [lease for lease in leases if lease.rides is not None and lease.rides.are_open()]
        free = [lease for lease in leases if not any(lease is one for one in left)]
        for owner in {lease.owner for lease in free}:
            mine = [lease for lease in free if lease.owner == owner]
            try:
                left += self._renew_some(mine, owner)
            except Exception as error:  # whatever it was: a heart that stops for good loses every run of this process
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
            elif lease.root in renewed.busy:
                busy.append(lease)
            else:
                self._lose(lease, given_back=lease.root in renewed.given_back)
        return busy

    def _renew_each(self, mine: list[Lease], owner: str, error: Exception, *, again: bool) -> list[Lease]:
        """A batch failed. Where the ledger answers, the fault may be one run's: it must not cost the others theirs."""
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
                return  # given back while we asked, and perhaps opened again
            del self._leases[lease.root]
        lease.lost = True
        if given_back:  # by this process, which forgets it in a moment
            log.debug("run tree %s ended or was let go while its lease was renewed", lease.root)
        else:
            log.warning("run tree %s is no longer ours: it was taken over, or a person ended it", lease.root)
        if kept[1] is not None:
            kept[1]()
