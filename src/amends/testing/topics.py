"""The checkers of single topics, in the order in which they are told."""

from __future__ import annotations

from typing import Final

from amends.testing.approvalcheckers import APPROVAL_CHECKERS
from amends.testing.budgetcheckers import BUDGET_CHECKERS
from amends.testing.chaincheckers import CHAIN_CHECKERS
from amends.testing.checkpointcheckers import CHECKPOINT_CHECKERS
from amends.testing.deskcheckers import DESK_CHECKERS
from amends.testing.forkcheckers import FORK_CHECKERS
from amends.testing.lockcheckers import LOCK_CHECKERS
from amends.testing.noticecheckers import NOTICE_CHECKERS
from amends.testing.replaycheckers import REPLAY_CHECKERS

TOPIC_CHECKERS: Final = (
    *LOCK_CHECKERS,
    *DESK_CHECKERS,
    *APPROVAL_CHECKERS,
    *BUDGET_CHECKERS,
    *NOTICE_CHECKERS,
    *CHECKPOINT_CHECKERS,
    *CHAIN_CHECKERS,
    *REPLAY_CHECKERS,
    *FORK_CHECKERS,
)
