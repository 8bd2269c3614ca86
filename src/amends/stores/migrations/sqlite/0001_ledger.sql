-- The ledger. tests/stores/test_schema.py compares these tables with rows.py, calls.py and states.py.
-- Needs SQLite 3.37 (strict tables). Chains of OR, because SQLite builds a tree of the values for each IN.

-- needs: the newest migration that an amends must know to use the ledger. ledger: its name, the same in all rows.
create table amends_schema (
    version integer primary key,
    needs integer not null,
    applied_at real not null,
    ledger text not null
) strict;

-- One row. halt: how many halts stand; every plain statement compares it with 0.
create table amends_ledger (
    no integer primary key check (no = 1),
    halt integer not null
) strict;

insert into amends_ledger (no, halt) values (1, 0);

-- One row for each version of a tool: what all its calls have in common.
create table amends_tool (
    no integer primary key,
    name text not null,
    version text not null,
    kind text not null,
    scope text not null,
    declared integer not null,
    undoable integer not null,
    at_commit integer not null,
    unique (name, version, kind, scope, declared, undoable, at_commit)
) strict;

-- no: the order of creation, parents before children. owners: the owner of the tree in each epoch, as JSON.
-- touch: every transaction that writes an event row counts it up; a plain statement is done only by who knows it.
-- n, head, at: the newest event that is a row. Folded events of plain statements may be newer: they do not write here.
-- sealed: the number up to which checkpoints cover the events of the tree.
-- unsealed: 1 from the beginning of a tree until a checkpoint covers its end, then null; written, because SQLite writes
-- the entry of a partial index anew whenever a column of its condition is set.
create table amends_run (
    no integer primary key,
    uid text not null unique,
    id text not null,
    tenant text not null,
    generation integer not null,
    root text not null,
    parent text not null,
    state text not null,
    created_at real not null,
    came_from text not null,
    goal text not null,
    goal_by text not null,
    goal_why text not null,
    plan text not null,
    policy text not null,
    order_mode text not null,
    agent text not null,
    principal text not null,
    input text not null,
    input_digest text not null,
    output text not null,
    tags text not null,
    deadline_at real,
    owner text not null,
    opener text not null,
    epoch integer not null,
    lease_s real not null,
    lease_until real not null,
    wake_at real,
    suspended integer not null,
    history integer not null,
    interrupted integer not null,
    pivot text not null,
    staged_pivot text not null,
    locked integer not null,
    charged integer not null,
    budgets text not null,
    completion text not null,
    causes text not null,
    closed_at real,
    gone_at real,
    origin text not null,
    forked_from text not null,
    forked_at text not null,
    lease_boot text not null,
    lease_mono real,
    silent_boot text not null,
    silent_mono real,
    silent_at real,
    wanted text not null,
    owners text not null default '',
    touch integer not null default 0,
    n integer not null default 0,
    head blob,
    at real not null default 0,
    sealed integer not null default 0,
    unsealed integer,
    check (
        state = 'open' or state = 'pivoted' or state = 'committed' or state = 'rolling_back'
        or state = 'rolled_back' or state = 'blocked' or state = 'abandoned'
    )
) strict;

create unique index amends_run_id on amends_run (tenant, id, generation);

create index amends_run_root on amends_run (root);

create index amends_run_created on amends_run (created_at, uid);

create index amends_run_wake on amends_run (wake_at) where wake_at is not null;

create index amends_run_owned on amends_run (owner) where owner <> '';

-- Ended trees whose payloads still exist: what gc reads.
create index amends_run_closed on amends_run (closed_at, uid)
    where parent = '' and gone_at is null and closed_at is not null;

-- The forks of a tree, which rely on what it did.
create index amends_run_forked on amends_run (forked_from) where forked_from <> '';

-- Trees that may have events which no checkpoint covers.
create index amends_run_unsealed on amends_run (uid) where unsealed = 1;

-- One row for each call. no: the number of its id, which sorts by time. The four events of an ordinary call are folded
-- into it: (n, at, hash), (settled_n, settled_at, settled_hash), (comp_n, comp_at, comp_hash) and (undone_n, undone_at,
-- undone_hash); a hash is null if the event is a row of amends_event. more: everything else, as JSON.
create table amends_call (
    no integer primary key,
    root integer not null,
    "key" blob not null,
    gen integer not null,
    n integer not null,
    tool integer not null,
    state text not null,
    attempt integer not null,
    ident blob not null,
    digest blob not null,
    args text not null,
    at real not null,
    epoch integer not null,
    hash blob,
    result text,
    settled_n integer,
    settled_at real,
    settled_hash blob,
    comp_n integer,
    comp_at real,
    comp_epoch integer,
    comp_hash blob,
    undone_n integer,
    undone_at real,
    undone_hash blob,
    more text,
    check (
        state = 'held' or state = 'ready' or state = 'started' or state = 'succeeded' or state = 'failed'
        or state = 'backing_off' or state = 'in_doubt' or state = 'compensating' or state = 'compensated'
        or state = 'compensation_failed' or state = 'compensation_in_doubt' or state = 'refused'
        or state = 'dropped' or state = 'residue'
    )
) strict;

-- The key of a call, and the list of the calls of a tree.
create unique index amends_call_key on amends_call (root, "key", gen);

-- What needs attention. States that every call passes through are left out: they would cost each call two writes.
create index amends_call_open on amends_call (state) where (
    state = 'held' or state = 'ready' or state = 'backing_off' or state = 'in_doubt'
    or state = 'compensation_failed' or state = 'compensation_in_doubt'
);

-- Calls whose key belongs to the whole ledger (scope="ledger"): the first insert of a key and generation wins.
create table amends_ledger_key (
    "key" blob not null,
    gen integer not null,
    "call" integer not null,
    primary key ("key", gen)
) strict, without rowid;

-- The runs that were answered from a call of another run, and rely on it.
create table amends_answer (
    "call" text not null,
    root text not null,
    run_id text not null,
    at real not null
) strict;

create unique index amends_answer_call on amends_answer ("call", root);

-- Calls whose id was made elsewhere: their numbers.
create table amends_call_name (
    id text not null primary key,
    "call" integer not null
) strict, without rowid;

-- Events that are not folded. One number, one event in every tree: a chain cannot fork.
create table amends_event (
    root text not null,
    n integer not null,
    at real not null,
    run text not null,
    run_id text not null,
    tenant text not null,
    "call" text not null,
    what text not null,
    frm text not null,
    to_state text not null,
    by_whom text not null,
    epoch integer not null,
    facts text not null,
    hash blob not null,
    primary key (root, n)
) strict, without rowid;

create index amends_event_at on amends_event (at);

-- The holder of each lock, until its root has ended. The name is the key: the first insert takes the lock.
create table amends_lock (
    tenant text not null,
    name text not null,
    root text not null,
    run_id text not null,
    "call" text not null,
    tool text not null,
    taken_at real not null
) strict;

create unique index amends_lock_name on amends_lock (tenant, name);

create index amends_lock_root on amends_lock (root);

create table amends_wait (
    root text not null,
    tenant text not null,
    name text not null,
    run_id text not null,
    tool text not null,
    since real not null,
    seen_at real not null
) strict;

create unique index amends_wait_root on amends_wait (root, name);

create index amends_wait_name on amends_wait (tenant, name);

-- What may be spent and what was: one row for each slice of a budget. Amounts are decimals, kept exact as text.
create table amends_budget (
    name text not null unique,
    tenant text not null,
    root text not null,
    words text not null,
    unit text not null,
    cap text not null,
    allot text not null,
    reserved text not null,
    spent text not null,
    period text not null
) strict;

create index amends_budget_tenant on amends_budget (tenant, name);

create index amends_budget_root on amends_budget (root) where root <> '';

-- Requests for a person's approval. no: the order of creation.
create table amends_approval (
    no integer primary key,
    id text not null unique,
    seq integer not null,
    "call" text not null,
    run text not null,
    root text not null,
    run_id text not null,
    tenant text not null,
    tool text not null,
    version text not null,
    principal text not null,
    agent text not null,
    digest text not null,
    nonce text not null,
    state text not null,
    needed integer not null,
    roles text not null,
    reasons text not null,
    "rule" text not null,
    policy text not null,
    given text not null,
    requested_at real not null,
    expires_at real not null,
    use_key text not null,
    residue text not null,
    follows text not null,
    by_whom text not null,
    reason text not null,
    decided_at real,
    used_at real,
    used_seq integer not null,
    told_at real,
    tell_at real,
    tells integer not null,
    teller text not null,
    editors text not null,
    timetable text not null,
    reached integer not null,
    due_at real,
    asked_at real,
    check (
        state = 'pending' or state = 'approved' or state = 'rejected' or state = 'expired' or state = 'used'
        or state = 'cancelled'
    )
) strict;

create index amends_approval_root on amends_approval (root);

-- Ordered by no within a state: every index here ends in the rowid.
create index amends_approval_state on amends_approval (state);

-- The outbox of notices: requests whose notice is still to be sent.
create index amends_approval_tell on amends_approval (tell_at) where tell_at is not null;

-- Requests that nobody has answered, and whose timetable goes on.
create index amends_approval_due on amends_approval (due_at) where due_at is not null;

-- Whether an agent has used a tool after somebody approved it.
create index amends_approval_use on amends_approval (use_key) where use_key <> '';

-- sealed: whether a checkpoint covers its event.
create table amends_delegation (
    id text not null unique,
    tenant text not null,
    by_whom text not null,
    to_whom text not null,
    until_at real not null,
    why text not null,
    made_at real not null,
    seq integer not null,
    sealed integer not null default 0
) strict;

create index amends_delegation_to on amends_delegation (tenant, to_whom);

create index amends_delegation_unsealed on amends_delegation (id) where sealed = 0;

-- What people ordered for calls to come: halts and permits. seq: the number of its newest event. sealed: the number up to
-- which checkpoints cover its events.
create table amends_directive (
    id text not null unique,
    kind text not null,
    tenant text not null,
    wide integer not null,
    agent text not null,
    tool text not null,
    words text not null,
    by_whom text not null,
    why text not null,
    made_at real not null,
    until_at real,
    uses integer not null,
    closed_at real,
    seq integer not null,
    sealed integer not null default 0
) strict;

create index amends_directive_standing on amends_directive (kind, tenant, tool) where closed_at is null;

create index amends_directive_closed on amends_directive (kind, closed_at) where closed_at is not null;

create index amends_directive_unsealed on amends_directive (id) where sealed <> seq;

-- Facts about the ledger itself: the first insert of a name wins. "time" has the latest time that the ledger has seen.
create table amends_mark (
    name text not null primary key,
    value text not null,
    made_at real not null
) strict;

insert into amends_mark (name, value, made_at) values ('time', '', 0);

-- The ledger's own chain, over the newest hash of each tree that changed. The first insert of a number wins.
create table amends_checkpoint (
    n integer primary key,
    at real not null,
    ledger text not null,
    heads text not null,
    prev text not null,
    hash text not null,
    "key" text not null,
    signature text not null
) strict;
