-- The ledger, for MariaDB and MySQL. tests/stores/test_mysql_schema.py compares these tables with rows.py, calls.py and
-- states.py. No statement here is part of a transaction: each can be repeated, and the version is recorded last.
--
-- A text that is compared or indexed is varbinary: in both servers' common collations 'a' equals 'a ', and in most
-- 'a' equals 'A'. Ids come from the caller: a run id of 512 characters takes at most 2048 bytes, and a tenant gets the
-- rest of an index entry's 3072. Other texts are longtext. What is bytes and no text is binary or a blob: by this a
-- connection knows which columns to decode. An index of a tinyblob has all of its 255 bytes.

-- needs: the newest migration that an amends must know to use the ledger. ledger: its name, the same in all rows.
create table if not exists amends_schema (
    version bigint not null primary key,
    needs bigint not null,
    applied_at double not null,
    ledger varchar(64) not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- One row. halt: a number that every plain statement compares; whoever halts the ledger changes it.
create table if not exists amends_ledger (
    no bigint not null primary key,
    halt bigint not null,
    constraint amends_ledger_one check (no = 1)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

insert ignore into amends_ledger (no, halt) values (1, 0);

-- One row for each version of a tool: what all its calls have in common.
create table if not exists amends_tool (
    no bigint not null auto_increment primary key,
    name varbinary(1024) not null,
    version varbinary(1024) not null,
    kind varbinary(64) not null,
    scope varbinary(64) not null,
    declared bigint not null,
    undoable bigint not null,
    at_commit bigint not null,
    unique index amends_tool_facts (name, version, kind, scope, declared, undoable, at_commit)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- no: the order of creation, parents before children. Every index ends in it.
-- owners: the owner of the tree in each epoch, as JSON.
-- touch: every transaction that writes an event row counts it up; a plain statement is done only by who knows it.
-- n, head, at: the newest event. Every step writes them: so no index has them, and the row is updated in place.
-- sealed: the number up to which checkpoints cover the events of the tree. unsealed: whether there may be events that no
-- checkpoint covers. ended_at: when a tree ended whose payloads still exist, for gc. Neither server has partial indexes.
create table if not exists amends_run (
    no bigint not null auto_increment primary key,
    uid varbinary(255) not null,
    id varbinary(2048) not null,
    tenant varbinary(1016) not null,
    generation bigint not null,
    root varbinary(255) not null,
    parent varbinary(255) not null,
    state varchar(32) character set ascii collate ascii_bin not null,
    created_at double not null,
    came_from longtext not null,
    goal longtext not null,
    goal_by longtext not null,
    goal_why longtext not null,
    plan varchar(64) not null,
    policy longtext not null,
    order_mode longtext not null,
    agent longtext not null,
    principal longtext not null,
    input longtext not null,
    input_digest longtext not null,
    output longtext not null,
    tags longtext not null,
    deadline_at double,
    owner varbinary(512) not null,
    opener longtext not null,
    epoch bigint not null,
    lease_s double not null,
    lease_until double not null,
    wake_at double,
    suspended bigint not null,
    history bigint not null,
    interrupted bigint not null,
    pivot longtext not null,
    staged_pivot longtext not null,
    locked bigint not null,
    charged bigint not null,
    budgets longtext not null,
    completion longtext not null,
    causes longtext not null,
    closed_at double,
    gone_at double,
    origin longtext not null,
    forked_from varbinary(255) not null,
    forked_at longtext not null,
    lease_boot varchar(255) not null,
    lease_mono double,
    silent_boot varchar(255) not null,
    silent_mono double,
    silent_at double,
    owners longtext not null default (''),
    touch bigint not null default 0,
    n bigint not null default 0,
    head binary(32),
    at double not null default 0,
    sealed bigint not null default 0,
    unsealed tinyint generated always as (
        case when parent = '' and (closed_at is null or n > sealed) then 1 end
    ) stored,
    ended_at double generated always as (case when parent = '' and gone_at is null then closed_at end) stored,
    constraint amends_run_state check (state in (
        'open', 'pivoted', 'committed', 'rolling_back', 'rolled_back', 'blocked', 'abandoned'
    )),
    unique index amends_run_uid (uid),
    unique index amends_run_id (tenant, id, generation),
    index amends_run_root (root),
    index amends_run_created (created_at, uid),
    index amends_run_wake (wake_at),
    index amends_run_owned (owner),
    index amends_run_closed (ended_at, uid),
    index amends_run_forked (forked_from),
    index amends_run_unsealed (unsealed, uid)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- One row for each call. no: the number of its id, which sorts by time. The four events of an ordinary call are folded
-- into it: (n, at, hash), (settled_n, settled_at, settled_hash), (comp_n, comp_at, comp_hash) and (undone_n, undone_at,
-- undone_hash); a hash is null if the event is a row of amends_event. more: everything else, as JSON.
-- attention: whether somebody has to look. States that every call passes through are left out, so no step of a plain call
-- changes an index.
create table if not exists amends_call (
    no bigint not null primary key,
    root bigint not null,
    `key` tinyblob not null,
    gen bigint not null,
    n bigint not null,
    tool bigint not null,
    state varchar(32) character set ascii collate ascii_bin not null,
    attempt bigint not null,
    ident longblob not null,
    digest longblob not null,
    args longtext not null,
    at double not null,
    epoch bigint not null,
    hash binary(32),
    result longtext,
    settled_n bigint,
    settled_at double,
    settled_hash binary(32),
    comp_n bigint,
    comp_at double,
    comp_epoch bigint,
    comp_hash binary(32),
    undone_n bigint,
    undone_at double,
    undone_hash binary(32),
    more longtext,
    attention tinyint generated always as (case when state in (
        'held', 'ready', 'backing_off', 'in_doubt', 'compensation_failed', 'compensation_in_doubt'
    ) then 1 end) stored,
    constraint amends_call_state check (state in (
        'held', 'ready', 'started', 'succeeded', 'failed', 'backing_off', 'in_doubt', 'compensating',
        'compensated', 'compensation_failed', 'compensation_in_doubt', 'refused', 'dropped', 'residue'
    )),
    unique index amends_call_key (root, `key`(255), gen),
    index amends_call_open (attention)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Calls whose key belongs to the whole ledger (scope="ledger"): the first insert of a key and generation wins.
create table if not exists amends_ledger_key (
    `key` tinyblob not null,
    gen bigint not null,
    `call` bigint not null,
    primary key (`key`(255), gen)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Calls whose id was made elsewhere: their numbers.
create table if not exists amends_call_name (
    id varbinary(255) not null primary key,
    `call` bigint not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Events that are not folded. One number, one event in every tree: a chain cannot fork.
create table if not exists amends_event (
    root varbinary(255) not null,
    n bigint not null,
    at double not null,
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
    hash binary(32) not null,
    primary key (root, n),
    -- The order of feeds.
    index amends_event_at (at, root, n)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- The holder of each lock, until its root has ended. The name is the key: the first insert takes the lock.
-- A name has 200 characters at most.
create table if not exists amends_lock (
    tenant varbinary(1016) not null,
    name varbinary(800) not null,
    root varbinary(255) not null,
    run_id varbinary(2048) not null,
    `call` varbinary(255) not null,
    tool longtext not null,
    taken_at double not null,
    unique index amends_lock_name (tenant, name),
    index amends_lock_root (root)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

create table if not exists amends_wait (
    root varbinary(255) not null,
    tenant varbinary(1016) not null,
    name varbinary(800) not null,
    run_id varbinary(2048) not null,
    tool longtext not null,
    since double not null,
    seen_at double not null,
    unique index amends_wait_root (root, name),
    index amends_wait_name (tenant, name)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- What may be spent and what was: one row for each slice of a budget. Amounts are decimals, kept exact as text.
create table if not exists amends_budget (
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
    unique index amends_budget_slice (name),
    index amends_budget_tenant (tenant, name),
    index amends_budget_root (root)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Requests for a person's approval. no: the order of creation. seq: the number of the request's first event in its tree.
create table if not exists amends_approval (
    no bigint not null auto_increment primary key,
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
    use_key varbinary(255) not null,
    residue longtext not null,
    follows longtext not null,
    by_whom longtext not null,
    reason longtext not null,
    decided_at double,
    used_at double,
    used_seq bigint not null,
    told_at double,
    tell_at double,
    tells bigint not null,
    teller longtext not null,
    editors longtext not null,
    constraint amends_approval_states check (state in (
        'pending', 'approved', 'rejected', 'expired', 'used', 'cancelled'
    )),
    unique index amends_approval_id (id),
    index amends_approval_root (root),
    index amends_approval_state (state),
    index amends_approval_tell (tell_at),
    index amends_approval_use (use_key)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- sealed: whether a checkpoint covers its event.
create table if not exists amends_delegation (
    id varbinary(255) not null,
    tenant varbinary(1016) not null,
    by_whom longtext not null,
    to_whom varbinary(1016) not null,
    until_at double not null,
    why longtext not null,
    made_at double not null,
    seq bigint not null,
    sealed bigint not null default 0,
    unique index amends_delegation_id (id),
    index amends_delegation_to (tenant, to_whom),
    index amends_delegation_unsealed (sealed, id)
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- Facts about the ledger itself: the first insert of a name wins. "time" has the latest time that the ledger has seen.
create table if not exists amends_mark (
    name varbinary(255) not null primary key,
    value longtext not null,
    made_at double not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

insert ignore into amends_mark (name, value, made_at) values ('time', '', 0);

-- The ledger's own chain, over the newest hash of each tree that changed. The first insert of a number wins.
create table if not exists amends_checkpoint (
    n bigint not null primary key,
    at double not null,
    ledger longtext not null,
    heads longtext not null,
    prev longtext not null,
    hash longtext not null,
    `key` longtext not null,
    signature longtext not null
) engine = innodb row_format = dynamic default character set utf8mb4 collate utf8mb4_bin;

-- The plain steps of a call (amends/stores/mysql/quick.py). Each procedure is one transaction, which locks the run,
-- continues its chain and writes the call; it answers with the number and the microseconds of the event. If anything is
-- not as it must be, it changes nothing and answers nothing. The number in its name changes with what it does: two
-- versions of amends may use one ledger. given_: replaces the server's clock, for tests. alone_: 0 in a transaction with
-- steps of other runs, which the caller begins and commits; then it does not wait for a run that somebody has locked.
create procedure amends_admit_1(
    uid_ varbinary(255), owner_ varbinary(512), epoch_ bigint, given_ double, body_ varchar(64) character set ascii,
    low_ double, high_ double, halt_ bigint, no_ bigint, key_ varbinary(255), tool_ bigint, ident_ varbinary(255),
    digest_ varbinary(255), args_ longtext character set utf8mb4, more_ longtext character set utf8mb4, alone_ tinyint
)
sql security invoker
$$
begin
    declare run_, n_, micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    -- The key has a first generation already: nothing else is worth looking for before the insert.
    declare exit handler for 1062
    begin
        if alone_ then
            rollback;
        end if;
    end;
    if alone_ then
        start transaction;
    else
        select no into run_ from amends_run where uid = uid_ for update skip locked;
    end if;
    if alone_ or run_ is not null then
        select no, n + 1, head, greatest(
            at, coalesce(given_, unix_timestamp(sysdate(6)) + 0e0), (select made_at from amends_mark where name = 'time')
        ) into run_, n_, hash_, at_ from amends_run
        where uid = uid_ and owner = owner_ and epoch = epoch_
            and state = 'open' and goal = '' and pivot = '' and deadline_at is null and forked_from = ''
            and (select halt from amends_ledger where no = 1) = halt_
        for update;
    end if;
    if at_ between low_ and high_ then
        set micros_ = round(at_ * 1e6), at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(
            coalesce(lower(hex(hash_)), repeat('0', 64)), ':', n_, ':', micros_, ':', body_
        ), 256));
        -- First what may fail: a step that is not alone cannot be rolled back.
        insert into amends_call (
            no, root, `key`, gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash, more
        ) values (
            no_, run_, key_, 1, n_, tool_, 'started', 1, ident_, digest_, args_, at_, epoch_, hash_, more_
        );
        update amends_run set n = n_, at = at_, head = hash_ where no = run_;
        if alone_ then
            commit;
        end if;
        select n_, micros_;
    elseif alone_ then
        rollback;
    end if;
end
$$;

create procedure amends_settle_1(
    uid_ varbinary(255), owner_ varbinary(512), epoch_ bigint, given_ double, body_ varchar(64) character set ascii,
    high_ double, no_ bigint, result_ longtext character set utf8mb4, more_ longtext character set utf8mb4,
    was_ longtext character set utf8mb4 collate utf8mb4_bin, alone_ tinyint
)
sql security invoker
$$
begin
    declare run_, n_, micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    if alone_ then
        start transaction;
    else
        select no into run_ from amends_run where uid = uid_ for update skip locked;
    end if;
    if alone_ or run_ is not null then
        select no, n + 1, head, greatest(
            at, coalesce(given_, unix_timestamp(sysdate(6)) + 0e0), (select made_at from amends_mark where name = 'time')
        ) into run_, n_, hash_, at_ from amends_run where uid = uid_ and owner = owner_ and epoch = epoch_ for update;
    end if;
    if at_ <= high_ then
        set micros_ = round(at_ * 1e6), at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(
            coalesce(lower(hex(hash_)), repeat('0', 64)), ':', n_, ':', micros_, ':', body_
        ), 256));
        -- Another more: something was learned of the call meanwhile.
        update amends_call set state = 'succeeded', result = result_, settled_n = n_, settled_at = at_,
            settled_hash = hash_, more = coalesce(more_, more)
        where no = no_ and root = run_ and state = 'started' and attempt = 1 and settled_n is null and more <=> was_;
        if row_count() = 1 then
            update amends_run set n = n_, at = at_, head = hash_ where no = run_;
            if alone_ then
                commit;
            end if;
            select n_, micros_;
        elseif alone_ then
            rollback;
        end if;
    elseif alone_ then
        rollback;
    end if;
end
$$;

create procedure amends_begin_1(
    uid_ varbinary(255), owner_ varbinary(512), epoch_ bigint, given_ double, body_ varchar(64) character set ascii,
    high_ double, no_ bigint, touch_ bigint, settled_ bigint
)
sql security invoker
$$
begin
    declare run_, n_, micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    start transaction;
    select no, n + 1, head, greatest(
        at, coalesce(given_, unix_timestamp(sysdate(6)) + 0e0), (select made_at from amends_mark where name = 'time')
    ) into run_, n_, hash_, at_ from amends_run
    where uid = uid_ and owner = owner_ and epoch = epoch_ and state = 'rolling_back' and touch = touch_ for update;
    if at_ <= high_ then
        set micros_ = round(at_ * 1e6), at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(
            coalesce(lower(hex(hash_)), repeat('0', 64)), ':', n_, ':', micros_, ':', body_
        ), 256));
        update amends_call set state = 'compensating', comp_n = n_, comp_at = at_, comp_epoch = epoch_,
            comp_hash = hash_
        where no = no_ and root = run_ and state = 'succeeded' and settled_n = settled_ and comp_at is null;
        if row_count() = 1 then
            update amends_run set n = n_, at = at_, head = hash_ where no = run_;
            commit;
            select n_, micros_;
        else
            rollback;
        end if;
    else
        rollback;
    end if;
end
$$;

create procedure amends_end_1(
    uid_ varbinary(255), owner_ varbinary(512), epoch_ bigint, given_ double, body_ varchar(64) character set ascii,
    high_ double, no_ bigint, touch_ bigint
)
sql security invoker
$$
begin
    declare run_, n_, micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    start transaction;
    select no, n + 1, head, greatest(
        at, coalesce(given_, unix_timestamp(sysdate(6)) + 0e0), (select made_at from amends_mark where name = 'time')
    ) into run_, n_, hash_, at_ from amends_run
    where uid = uid_ and owner = owner_ and epoch = epoch_ and touch = touch_ for update;
    if at_ <= high_ then
        set micros_ = round(at_ * 1e6), at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(
            coalesce(lower(hex(hash_)), repeat('0', 64)), ':', n_, ':', micros_, ':', body_
        ), 256));
        update amends_call set state = 'compensated', undone_n = n_, undone_at = at_, undone_hash = hash_
        where no = no_ and root = run_ and state = 'compensating' and comp_hash is not null and undone_at is null;
        if row_count() = 1 then
            update amends_run set n = n_, at = at_, head = hash_ where no = run_;
            commit;
            select n_, micros_;
        else
            rollback;
        end if;
    else
        rollback;
    end if;
end
$$;
