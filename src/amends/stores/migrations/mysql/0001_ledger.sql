-- The ledger, for MariaDB and MySQL. Columns are the fields of rows.py, in their order; a test compares.
-- No statement here is part of a transaction: each can be repeated, and the version is recorded last.
--
-- Whatever is compared or indexed is varbinary: in both servers' common collations 'a' equals 'a ', and in most
-- 'a' equals 'A'. Ids come from the caller: a run id of 512 characters takes at most 2048 bytes, and a tenant gets the
-- rest of an index entry's 3072. Other texts are longtext, whose default must be an expression in MySQL.

-- needs: the newest migration that an amends must know to use the ledger. ledger: its name, the same in all rows.
create table if not exists amends_schema (
    version bigint not null primary key,
    needs bigint not null,
    applied_at double not null,
    ledger varchar(64) not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- place: the order of creation, parents before children; not a field of a row. Every index ends in the primary key.
-- sealed: on roots, the number of the newest event that a checkpoint covers; neither a field nor part of any digest.
-- ended_at: when a tree ended whose payloads still exist, for gc; not a field of a row.
create table if not exists runs (
    place bigint not null auto_increment primary key,
    uid varbinary(255) not null,
    id varbinary(2048) not null,
    tenant varbinary(1016) not null,
    generation bigint not null,
    root varbinary(255) not null,
    parent varbinary(255) not null,
    state varchar(32) character set ascii collate ascii_bin not null,
    created_at double not null,
    came_from longtext not null default (''),
    goal longtext not null default (''),
    goal_by longtext not null default (''),
    goal_why longtext not null default (''),
    plan varchar(64) not null default '',
    policy longtext not null default ('rollback'),
    order_mode longtext not null default ('strict'),
    agent longtext not null default (''),
    principal longtext not null default (''),
    input longtext not null default (''),
    input_digest longtext not null default (''),
    output longtext not null default (''),
    tags longtext not null default ('[]'),
    deadline_at double,
    owner varbinary(512) not null default '',
    opener longtext not null default (''),
    epoch bigint not null default 0,
    lease_s double not null default 0,
    lease_until double not null default 0,
    wake_at double,
    suspended bigint not null default 0,
    history bigint not null default 0,
    interrupted bigint not null default 0,
    pivot longtext not null default (''),
    staged_pivot longtext not null default (''),
    locked bigint not null default 0,
    charged bigint not null default 0,
    budgets longtext not null default (''),
    causes longtext not null default ('[]'),
    closed_at double,
    gone_at double,
    sealed bigint not null default 0,
    origin longtext not null default (''),
    forked_from varbinary(255) not null default '',
    forked_at longtext not null default (''),
    ended_at double generated always as (case when parent = '' and gone_at is null then closed_at end) stored,
    constraint runs_state check (state in (
        'open', 'pivoted', 'committed', 'rolling_back', 'rolled_back', 'blocked', 'abandoned'
    )),
    unique index runs_uid (uid),
    unique index runs_id (tenant, id, generation),
    index runs_root (root),
    index runs_created (created_at, uid),
    index runs_wake (wake_at),
    index runs_owned (owner),
    index runs_closed (ended_at, uid),
    index runs_forked (forked_from)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- attention: whether the call needs attention; not a field of a row. States that every call passes through are left
-- out. Neither server has partial indexes: this one has mostly nulls, and grows only at its end.
create table if not exists calls (
    place bigint not null auto_increment primary key,
    id varbinary(255) not null,
    seq bigint not null,
    run varbinary(255) not null,
    root varbinary(255) not null,
    run_id varbinary(2048) not null,
    tenant varbinary(1016) not null,
    tool longtext not null,
    version longtext not null,
    kind longtext not null,
    `key` varbinary(512) not null,
    generation bigint not null,
    ident longtext not null,
    digest longtext not null,
    args longtext not null,
    state varchar(32) character set ascii collate ascii_bin not null,
    created_at double not null,
    created_epoch bigint not null,
    asked_epoch bigint not null,
    scope longtext not null default ('run'),
    declared bigint not null default 0,
    again longtext not null default (''),
    call_ref longtext not null default (''),
    parent longtext not null default (''),
    grp longtext not null default (''),
    reason longtext not null default (''),
    twin longtext not null default (''),
    alias longtext not null default (''),
    at_commit bigint not null default 0,
    undoable bigint not null default 0,
    locks longtext not null default (''),
    cost longtext not null default (''),
    violation longtext not null default (''),
    attempt bigint not null default 0,
    result longtext,
    loss longtext not null default (''),
    error longtext not null default (''),
    why longtext not null default (''),
    evidence longtext not null default (''),
    learned longtext not null default (''),
    late bigint not null default 0,
    first_at double,
    started_at double,
    settled_at double,
    settled_seq bigint not null default 0,
    retry_at double,
    tries_from bigint not null default 0,
    quiet_boot longtext not null default (''),
    quiet_mono double,
    quiet_left double,
    probes bigint not null default 0,
    probe_at double,
    agent longtext not null default (''),
    principal longtext not null default (''),
    replays bigint not null default 0,
    comp_attempt bigint not null default 0,
    comp_from bigint not null default 0,
    comp_error longtext not null default (''),
    comp_gave_up bigint not null default 0,
    comp_blind bigint not null default 0,
    comp_at double,
    comp_settled_at double,
    comp_retry_at double,
    comp_boot longtext not null default (''),
    comp_mono double,
    approval longtext not null default (''),
    accepts longtext not null default (''),
    shared longtext not null default (''),
    attention tinyint generated always as (case when state in (
        'held', 'ready', 'backing_off', 'in_doubt', 'compensation_failed', 'compensation_in_doubt'
    ) then 1 end) stored,
    constraint calls_state check (state in (
        'held', 'ready', 'started', 'succeeded', 'failed', 'backing_off', 'in_doubt', 'compensating',
        'compensated', 'compensation_failed', 'compensation_in_doubt', 'refused', 'dropped', 'residue'
    )),
    unique index calls_id (id),
    unique index calls_key (`key`, generation),
    index calls_root (root),
    index calls_open (attention)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

create table if not exists events (
    place bigint not null auto_increment primary key,
    at double not null,
    root varbinary(255) not null,
    run varbinary(255) not null,
    run_id varbinary(2048) not null,
    tenant varbinary(1016) not null,
    `call` varbinary(255) not null,
    what longtext not null,
    frm longtext not null,
    to_state longtext not null,
    by_whom longtext not null,
    epoch bigint not null,
    facts longtext not null,
    n bigint not null,
    hash longtext not null,
    -- One number, one event in every tree: a chain cannot fork.
    unique index events_root (root, n),
    -- The order of feeds.
    index events_feed (at, root, n)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- The holder of each lock, until its root has ended. The name is the key: the first insert takes the lock.
-- A name has 200 characters at most.
create table if not exists locks (
    tenant varbinary(1016) not null,
    name varbinary(800) not null,
    root varbinary(255) not null,
    run_id varbinary(2048) not null,
    `call` varbinary(255) not null,
    tool longtext not null,
    taken_at double not null,
    unique index locks_name (tenant, name),
    index locks_root (root)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

create table if not exists waits (
    root varbinary(255) not null,
    tenant varbinary(1016) not null,
    name varbinary(800) not null,
    run_id varbinary(2048) not null,
    tool longtext not null,
    since double not null,
    seen_at double not null,
    unique index waits_root (root, name),
    index waits_name (tenant, name)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- What may be spent and what was: one row for each slice of a budget. Amounts are decimals, kept exact as text.
create table if not exists budgets (
    name varbinary(255) not null,
    tenant varbinary(1016) not null,
    root varbinary(255) not null,
    words longtext not null,
    unit longtext not null,
    cap longtext not null,
    allot longtext not null,
    reserved longtext not null,
    spent longtext not null,
    period longtext not null,
    unique index budgets_name (name),
    index budgets_tenant (tenant, name),
    index budgets_root (root)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Requests for a person's approval. seq: the number of the request's first event in its tree. place: as in calls.
create table if not exists approvals (
    place bigint not null auto_increment primary key,
    id varbinary(255) not null,
    seq bigint not null,
    `call` varbinary(255) not null,
    run varbinary(255) not null,
    root varbinary(255) not null,
    run_id varbinary(2048) not null,
    tenant varbinary(1016) not null,
    tool longtext not null,
    version longtext not null,
    principal longtext not null,
    agent longtext not null,
    digest longtext not null,
    nonce longtext not null,
    state varchar(32) character set ascii collate ascii_bin not null,
    needed bigint not null,
    roles longtext not null,
    reasons longtext not null,
    `rule` longtext not null,
    policy longtext not null,
    given longtext not null,
    requested_at double not null,
    expires_at double not null,
    use_key varbinary(255) not null default '',
    residue longtext not null default (''),
    follows longtext not null default (''),
    by_whom longtext not null default (''),
    reason longtext not null default (''),
    decided_at double,
    used_at double,
    used_seq bigint not null default 0,
    told_at double,
    tell_at double,
    tells bigint not null default 0,
    teller longtext not null default (''),
    constraint approvals_states check (state in (
        'pending', 'approved', 'rejected', 'expired', 'used', 'cancelled'
    )),
    unique index approvals_id (id),
    index approvals_root (root),
    index approvals_state (state),
    index approvals_tell (tell_at),
    index approvals_use (use_key)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

create table if not exists delegations (
    id varbinary(255) not null,
    tenant varbinary(1016) not null,
    by_whom longtext not null,
    to_whom varbinary(1016) not null,
    until_at double not null,
    why longtext not null,
    made_at double not null,
    sealed bigint not null default 0,
    unique index delegations_id (id),
    index delegations_to (tenant, to_whom)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Facts about the ledger itself: the first insert of a name wins.
create table if not exists marks (
    name varbinary(255) not null primary key,
    value longtext not null,
    made_at double not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- The ledger's own chain, over the newest hash of each tree that changed. The first insert of a number wins.
create table if not exists checkpoints (
    n bigint not null primary key,
    at double not null,
    ledger longtext not null,
    heads longtext not null,
    prev longtext not null,
    hash longtext not null,
    `key` longtext not null,
    signature longtext not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;
