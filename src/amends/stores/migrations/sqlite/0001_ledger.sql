-- The ledger. Columns are the fields of rows.py, in their order; tests/stores/test_schema.py compares.
-- Needs SQLite 3.37 (strict tables). Chains of OR, because SQLite builds a tree of the values for each IN.

-- needs: the newest migration that an amends must know to use the ledger. ledger: its name, the same in all rows.
create table amends_schema (
    version integer primary key,
    needs integer not null,
    applied_at real not null,
    ledger text not null
) strict;

-- place: the order of creation, parents before children; not a field of a row. sealed: on roots, the number of the
-- newest event that a checkpoint covers; neither a field of a row nor part of any digest.
create table runs (
    place integer primary key,
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
    causes text not null,
    closed_at real,
    gone_at real,
    sealed integer not null default 0,
    origin text not null default '',
    forked_from text not null default '',
    forked_at text not null default '',
    check (
        state = 'open' or state = 'pivoted' or state = 'committed' or state = 'rolling_back'
        or state = 'rolled_back' or state = 'blocked' or state = 'abandoned'
    )
) strict;

create unique index runs_id on runs (tenant, id, generation);

create index runs_root on runs (root);

create index runs_created on runs (created_at, uid);

create index runs_wake on runs (wake_at) where wake_at is not null;

create index runs_owned on runs (owner) where owner <> '';

-- Ended trees whose payloads still exist: what gc reads.
create index runs_closed on runs (closed_at, uid) where parent = '' and gone_at is null and closed_at is not null;

-- The forks of a tree, which rely on what it did.
create index runs_forked on runs (forked_from) where forked_from <> '';

-- The defaults are those of rows.py: a plain admission sets only the columns of its request.
-- seq: the number of the call's first event in its tree. place: the order of creation; not a field of a row.
create table calls (
    place integer primary key,
    id text not null unique,
    seq integer not null,
    run text not null,
    root text not null,
    run_id text not null,
    tenant text not null,
    tool text not null,
    version text not null,
    kind text not null,
    "key" text not null,
    generation integer not null,
    ident text not null,
    digest text not null,
    args text not null,
    state text not null,
    created_at real not null,
    created_epoch integer not null,
    asked_epoch integer not null,
    scope text not null default 'run',
    declared integer not null default 0,
    again text not null default '',
    call_ref text not null default '',
    parent text not null default '',
    grp text not null default '',
    reason text not null default '',
    twin text not null default '',
    alias text not null default '',
    at_commit integer not null default 0,
    undoable integer not null default 0,
    locks text not null default '',
    cost text not null default '',
    violation text not null default '',
    attempt integer not null default 0,
    result text,
    loss text not null default '',
    error text not null default '',
    why text not null default '',
    evidence text not null default '',
    learned text not null default '',
    late integer not null default 0,
    first_at real,
    started_at real,
    settled_at real,
    settled_seq integer not null default 0,
    retry_at real,
    tries_from integer not null default 0,
    quiet_boot text not null default '',
    quiet_mono real,
    quiet_left real,
    probes integer not null default 0,
    probe_at real,
    agent text not null default '',
    principal text not null default '',
    replays integer not null default 0,
    comp_attempt integer not null default 0,
    comp_from integer not null default 0,
    comp_error text not null default '',
    comp_gave_up integer not null default 0,
    comp_blind integer not null default 0,
    comp_at real,
    comp_settled_at real,
    comp_retry_at real,
    comp_boot text not null default '',
    comp_mono real,
    approval text not null default '',
    accepts text not null default '',
    shared text not null default '',
    check (
        state = 'held' or state = 'ready' or state = 'started' or state = 'succeeded' or state = 'failed'
        or state = 'backing_off' or state = 'in_doubt' or state = 'compensating' or state = 'compensated'
        or state = 'compensation_failed' or state = 'compensation_in_doubt' or state = 'refused'
        or state = 'dropped' or state = 'residue'
    )
) strict;

create unique index calls_key on calls ("key", generation);

-- Ordered by place within a root: every index here ends in the rowid.
create index calls_root on calls (root);

-- What needs attention. States that every call passes through are left out: they would cost each call two writes.
create index calls_open on calls (state) where (
    state = 'held' or state = 'ready' or state = 'backing_off' or state = 'in_doubt'
    or state = 'compensation_failed' or state = 'compensation_in_doubt'
);

create table events (
    place integer primary key,
    at real not null,
    root text not null,
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
    n integer not null,
    hash text not null
) strict;

-- One number, one event in every tree: a chain cannot fork.
create unique index events_root on events (root, n);

-- The order of feeds.
create index events_feed on events (at, root, n);

-- The holder of each lock, until its root has ended. The name is the key: the first insert takes the lock.
create table locks (
    tenant text not null,
    name text not null,
    root text not null,
    run_id text not null,
    "call" text not null,
    tool text not null,
    taken_at real not null
) strict;

create unique index locks_name on locks (tenant, name);

create index locks_root on locks (root);

create table waits (
    root text not null,
    tenant text not null,
    name text not null,
    run_id text not null,
    tool text not null,
    since real not null,
    seen_at real not null
) strict;

create unique index waits_root on waits (root, name);

create index waits_name on waits (tenant, name);

-- What may be spent and what was: one row for each slice of a budget. Amounts are decimals, kept exact as text.
create table budgets (
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

create index budgets_tenant on budgets (tenant, name);

create index budgets_root on budgets (root) where root <> '';

-- Requests for a person's approval. seq: the number of the request's first event in its tree. place: as in calls.
create table approvals (
    place integer primary key,
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
    use_key text not null default '',
    residue text not null default '',
    follows text not null default '',
    by_whom text not null default '',
    reason text not null default '',
    decided_at real,
    used_at real,
    used_seq integer not null default 0,
    told_at real,
    tell_at real,
    tells integer not null default 0,
    teller text not null default '',
    check (
        state = 'pending' or state = 'approved' or state = 'rejected' or state = 'expired' or state = 'used'
        or state = 'cancelled'
    )
) strict;

create index approvals_root on approvals (root);

-- Ordered by place within a state: every index here ends in the rowid.
create index approvals_state on approvals (state);

-- The outbox of notices: requests whose notice is still to be sent.
create index approvals_tell on approvals (tell_at) where tell_at is not null;

-- Whether an agent has used a tool after somebody approved it.
create index approvals_use on approvals (use_key) where use_key <> '';

create table delegations (
    id text not null unique,
    tenant text not null,
    by_whom text not null,
    to_whom text not null,
    until_at real not null,
    why text not null,
    made_at real not null,
    sealed integer not null default 0
) strict;

create index delegations_to on delegations (tenant, to_whom);

-- Facts about the ledger itself: the first insert of a name wins.
create table marks (
    name text not null primary key,
    value text not null,
    made_at real not null
) strict;

-- The ledger's own chain, over the newest hash of each tree that changed. The first insert of a number wins.
create table checkpoints (
    n integer primary key,
    at real not null,
    ledger text not null,
    heads text not null,
    prev text not null,
    hash text not null,
    "key" text not null,
    signature text not null
) strict;
