"""Every statement of the hot path names its run, and nothing is used that compatible databases lack, except what is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import amends
from amends.stores import calls as stored
from amends.stores.migrations import migrations
from amends.stores.postgres import quick, wakeup
from amends.stores.sql import POSTGRES, Statements
from tests.failover.bank import Bank
from tests.failover.shop import Shop, load, recover, saga
from tests.stores.recorded import recording

# ---- The distribution column

VALUE: Final = r"(?:\$\d+(?:::\w+)?|r\.no|r\.uid|x\.no|x\.uid|l\.run|v\.run|r\.own_\w+)"
"""A parameter, or the same column of the row of the run in the same statement."""
NAMES_RUN: Final = {
    # The run itself: by its number, its uid, its root, or by tenant and id, under which callers know it.
    "amends_run": rf'(?:\b\w+\.)?"?(?:no|uid|root|id)"? = (?:{VALUE}|\(select root from amends_(?:run|call) where )',
    "amends_call": rf'(?:\b\w+\.)?"?root"?(?: \+ 0)? = {VALUE}|insert into amends_call \("?no"?, "?root"?',
    "amends_event": rf'(?:\b\w+\.)?"?root"? = {VALUE}|insert into amends_event \("?root"?',
    "amends_approval": rf'(?:\b\w+\.)?"?root"? = {VALUE}',
    "amends_answer": rf'(?:\b\w+\.)?"?root"? = {VALUE}|"?call"? = {VALUE}',
}
"""The tables whose rows belong to a run, and how a statement names that run."""
WHOLE: Final = {
    "amends_mark": "one row is read: the time that the ledger has seen. Heartbeats and checkpoints move it",
    "amends_ledger": "one row is read: how many halts stand. A halt writes it",
    "amends_tool": "one row for each version of a tool, written once and then only read",
    "amends_schema": "read when a process starts",
}
"""Small tables of the whole ledger that hot statements read: copied to every node, or on one."""
BY_CALL: Final = {
    "no = (select root from amends_call where no = $1)": "whoever has only the id of a call looks up its run by the primary key",
}
"""Statements that name a call and not its run, with the reason."""
MANY: Final = {
    "unnest(": "steps of up to 64 runs in one statement, under load only; each row names its run",
}
"""Statements of several runs, with the reason."""
BACKGROUND: Final = (
    "amends_checkpoint", "amends_delegation", "amends_directive", "sealed = case", "and unsealed = 1 and", "for update skip locked",
)  # fmt: skip
"""What the statements of checkpoints have, which are over the whole ledger and off the hot path."""
SESSION: Final = re.compile(
    r"select 1$|select pg_backend_pid|set |begin|commit$|rollback$|listen |select pg_notify", re.IGNORECASE
)
STARTING: Final = re.compile(
    r"create |alter |insert into amends_(?:schema|ledger|mark) |.*pg_class|.*pg_namespace", re.IGNORECASE
)


def hot(statements: list[str]) -> list[str]:
    """Those of runs and calls: neither of a session, nor of the schema, nor of checkpoints."""
    return [
        one
        for one in statements
        if not SESSION.match(one) and not STARTING.match(one) and not any(word in one for word in BACKGROUND)
    ]


def unnamed(statement: str) -> list[str]:
    """The tables of runs in this statement that it touches without naming the run."""
    tables = set(re.findall(r"\b(?:from|join|into|update) (amends_\w+)", statement))
    unknown = tables - set(NAMES_RUN) - set(WHOLE)
    wrong = [table for table in tables & set(NAMES_RUN) if not re.search(NAMES_RUN[table], statement)]
    return sorted([*unknown, *wrong])


def test_every_statement_of_a_saga_names_its_run() -> None:
    with recording() as recorder, Bank() as bank:
        shop = Shop(bank)
        rt = shop.runtime(recorder.url)
        saga(shop, rt, "first")
        load(shop, rt, [f"order-{number}" for number in range(24)], threads=8)
        rt.close()
        found = hot(recorder.statements())
    wrong = {one: unnamed(one) for one in found if unnamed(one) and not any(said in one for said in BY_CALL)}
    assert not wrong, "statements that could not be kept on one shard"
    # It recorded what it should have: each way of a plain step, batches, the general path, rollback and commit.
    for part in (
        "insert into amends_call (no, root", "c set state = 'succeeded'", "unnest(", "insert into amends_run",
        "state = 'rolling_back'", "state = 'committed'", "update amends_call set", 'insert into amends_event ("root"',
    ):  # fmt: skip
        assert any(part in one for one in found), part
    assert len(found) >= 20
    several = [one for one in found if re.search(r"\b(?:no|uid|root) in \(|= v\.run|any\(", one)]
    assert several, "no batch was sent"
    assert all(any(said in one for said in MANY) for one in several), "statements of several runs without a reason"


def test_recovery_after_a_lost_process_looks_for_runs_once_and_then_names_them() -> None:
    """The look is over the whole ledger: of the runs that are due, by an index; everything else names its run."""
    with recording() as recorder, Bank() as bank:
        shop = Shop(bank)
        rt = shop.runtime(recorder.url, lease=0.05)
        rt.open("left")  # nobody renews its lease once the runtime is closed
        rt.close()
        again = shop.runtime(recorder.url)
        recover(again)
        again.close()
        found = hot(recorder.statements())
    wrong = [one for one in found if unnamed(one) and not any(said in one for said in BY_CALL)]
    looks = [one for one in wrong if "wake_at" in one or "order by" in one]
    assert wrong == looks, "only listings are over the whole ledger"


@pytest.mark.parametrize(
    "statement",
    [
        "update amends_call set state = $1 where no = $2",
        "select * from amends_event where at > $1",
        "update amends_run set owner = '' where lease_until < $1",
        "select * from amends_secret where root = $1",
    ],
)
def test_the_check_finds_a_statement_that_names_no_run(statement: str) -> None:
    assert unnamed(statement)


# ---- What compatible databases lack

USES: Final = {
    "listen/notify": r"\blisten\b|\bnotify\b|\bunlisten\b|pg_notify",
    "advisory lock": r"pg_(?:try_)?advisory",
    "exclusion constraint": r"\bexclude using\b",
    "deferrable": r"\bdeferrable\b|\binitially deferred\b",
    "trigger": r"\bcreate (?:constraint )?trigger\b|\bexecute (?:function|procedure)\b",
    "procedure or function": r"\bcreate (?:or replace )?(?:function|procedure)\b|\bdo \$\$|\bcall \w+\(",
    "system column": r"\bctid\b|\bxmin\b|\bxmax\b|\btableoid\b",
    "transaction id": r"txid_|pg_current_xact|pg_snapshot|pg_current_snapshot",
    "unlogged or temporary": r"\bunlogged\b|\btemp(?:orary)? table\b",
    "table lock": r"\block table\b",
    "inheritance": r"\binherits\b",
    "index method": r"\busing (?:gin|gist|brin|hash|spgist)\b",
    "extension": r"\bcreate extension\b",
    "foreign key": r"\breferences \w+\s*\(",
    "two-phase commit": r"\bprepare transaction\b",
    "cursor": r"\bdeclare \w+ cursor\b",
    "copy": r"\bcopy \w+ (?:from|to)\b",
    "skip locked": r"\bskip locked\b",
    "no key update": r"\bfor no key update\b",
    "domain": r"\bcreate domain\b",
    "generated column": r"\bgenerated always as\b",
    "identity column": r"\bgenerated by default as identity\b",
    "partial index": r"\bcreate (?:unique )?index [^;]* where\b",
    "collation": r'\bcollate "C"',
    "fillfactor": r"\bfillfactor\b",
    "writing cte": r"\bas \((?:insert|update)\b",
    "materialized cte": r"\bas materialized\b",
    "lateral": r"\blateral\b",
    "sha256 of bytea": r"\bsha256\(",
}
"""What a database that speaks PostgreSQL's protocol may lack, or do otherwise."""
USED: Final = {
    "listen/notify", "advisory lock", "skip locked", "no key update", "domain", "generated column", "identity column",
    "partial index", "collation", "fillfactor", "writing cte", "materialized cte", "lateral", "sha256 of bytea",
}  # fmt: skip
"""What amends uses. A row of docs/explanation/scale.md says for each which database lacks it, and what happens there."""


def every_text() -> list[str]:
    """Every migration and every SQL text in the source of the store, comments and docstrings aside."""
    texts = [statement for one in migrations("postgresql") for statement in one.statements]
    folder = Path(amends.__file__).parent / "stores"
    for path in [
        folder / "sql.py",
        folder / "quick.py",
        folder / "calls.py",
        *sorted((folder / "postgres").glob("*.py")),
    ]:
        code = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text(encoding="utf-8"))
        texts += [line for line in code.splitlines() if not line.lstrip().startswith("#") and "import" not in line]
    made = Statements(POSTGRES)
    texts += [value for value in vars(quick).values() if isinstance(value, str)]
    texts += [
        value for part in (made, made.calls, made.events) for value in vars(part).values() if isinstance(value, str)
    ]
    return [*texts, wakeup.notify_sql(1), ", ".join(stored.READ)]


def quoted_parts(text: str) -> str:
    """Of a line of Python, what is inside quotes: a name in the code is no SQL."""
    parts = re.findall(r'"([^"]*)"|\'([^\']*)\'', text)
    return " ".join(one or other for one, other in parts) if "(" in text or "=" in text else text


def test_nothing_is_used_that_compatible_databases_lack_but_what_the_page_names() -> None:
    texts = every_text()
    found = {
        name
        for name, pattern in USES.items()
        if any(
            re.search(pattern, one, re.IGNORECASE) or re.search(pattern, quoted_parts(one), re.IGNORECASE)
            for one in texts
        )
    }
    assert found == USED


def test_the_page_has_a_row_for_everything_that_is_used() -> None:
    page = (Path(amends.__file__).parents[2] / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")}
    assert rows >= USED
    assert all(reason in page for reason in WHOLE)
