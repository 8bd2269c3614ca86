"""The heartbeat: one thread per runtime renews all its leases."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from amends import process
from amends.errors import LedgerError
from amends.ledger import Renewed, RenewLeases
from amends.ops import Lease

log = logging.getLogger("amends")

PARTS: Final = 3
SOON_PARTS: Final = 30
"""A lease is renewed when this part of it has passed, and when that did not work, when that part has."""


class Keeper:
    """Keeps leases alive while their runs are open, and tells a run that has lost its own."""

    def __init__(
        self,
        renew: Callable[[RenewLeases], Renewed],
        lease_s: float,
        *,
        mono: Callable[[], float] = process.mono,
        beats: bool = True,
    ) -> None:
        self._renew, self._lease_s, self._mono, self._beats = renew, lease_s, mono, beats
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
        well = True
        while True:
            with self._changed:
                # Looked at before the wait too: a runtime may be closed before its thread came this far.
                self._changed.wait_for(lambda: self._closed, self._lease_s / (PARTS if well else SOON_PARTS))
                if self._closed or not self._leases:
                    self._thread = None
                    return
                leases = [lease for lease, _ in self._leases.values()]
            well = self.renew(leases)

    def kept(self) -> list[Lease]:
        """The leases that are kept now."""
        with self._changed:
            return [lease for lease, _ in self._leases.values()]

    def renew(self, leases: list[Lease]) -> bool:
        """Renew these now; False when some have to be tried again soon.

        An unreachable ledger is not a lost lease: the monotonic clock ends it in time. Neither is a run that the
        caller's own transaction keeps locked: nobody else can have it meanwhile, and whoever asked for it together
        with others would make them wait.
        """
        free = [lease for lease in leases if lease.rides is None or not lease.rides.are_open()]
        well = len(free) == len(leases)
        for owner in {lease.owner for lease in free}:
            mine = [lease for lease in free if lease.owner == owner]
            if self._renewed(mine):
                continue
            well = False
            if len(mine) > 1:  # one that is locked must not cost the others theirs
                for lease in mine:
                    self._renewed([lease])
        return well

    def _renewed(self, mine: list[Lease]) -> bool:
        """Renew these, all of one owner; False when the ledger did not answer."""
        asked_at = self._mono()
        try:
            asked = RenewLeases(mine[0].owner, {lease.root: lease.epoch for lease in mine}, self._lease_s)
            renewed = self._renew(asked)
        except LedgerError as error:
            log.warning("leases of %d runs could not be renewed: %s", len(mine), error)
            return False
        except Exception:  # whatever it was: a heart that stops for good loses every run of this process
            log.exception("leases of %d runs could not be renewed", len(mine))
            return False
        for lease in mine:
            if lease.root in renewed.goals:
                lease.until = max(lease.until, asked_at + self._lease_s)
                lease.goal = renewed.goals[lease.root]
            else:
                self._lose(lease)
        return True

    def _lose(self, lease: Lease) -> None:
        with self._changed:
            kept = self._leases.get(lease.root)
            if kept is None or kept[0] is not lease:
                return  # given back while we asked, and perhaps opened again
            del self._leases[lease.root]
        lease.lost = True
        log.warning("the lease of run tree %s was taken over by another worker", lease.root)
        if kept[1] is not None:
            kept[1]()
