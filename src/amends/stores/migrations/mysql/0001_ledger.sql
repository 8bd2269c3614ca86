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

-- One row. halt: how many halts stand; every plain statement compares it with 0.
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
-- touch: every transaction that writes an event row counts it up, and so does whoever has to look for the end of the chain;
-- a plain step is done only by who knows it.
-- n, head, at: the newest event that is a row. The events of plain calls come after it; the owner remembers the last one.
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
    wanted varchar(400) not null,
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

-- The runs that were answered from a call of another run, and rely on it.
create table if not exists amends_answer (
    `call` varbinary(255) not null,
    root varbinary(255) not null,
    run_id varbinary(2048) not null,
    at double not null,
    unique index amends_answer_call (`call`, root)
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
    timetable longtext not null,
    reached bigint not null,
    due_at double,
    asked_at double,
    constraint amends_approval_states check (state in (
        'pending', 'approved', 'rejected', 'expired', 'used', 'cancelled'
    )),
    unique index amends_approval_id (id),
    index amends_approval_root (root),
    index amends_approval_state (state),
    index amends_approval_tell (tell_at),
    index amends_approval_due (due_at),
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

-- What people ordered for calls to come: halts and permits. seq: the number of its newest event. sealed: the number up to
-- which checkpoints cover its events.
create table if not exists amends_directive (
    id varbinary(255) not null,
    kind varbinary(64) not null,
    tenant varbinary(1016) not null,
    wide bigint not null,
    agent longtext not null,
    tool varbinary(1024) not null,
    words longtext not null,
    by_whom longtext not null,
    why longtext not null,
    made_at double not null,
    until_at double,
    uses bigint not null,
    closed_at double,
    seq bigint not null,
    sealed bigint not null default 0,
    unsealed tinyint generated always as (case when sealed <> seq then 1 end) stored,
    unique index amends_directive_id (id),
    index amends_directive_standing (kind, tenant, tool),
    index amends_directive_closed (kind, closed_at),
    index amends_directive_unsealed (unsealed, id)
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

-- The plain steps that write more than one row (amends/stores/mysql/quick.py; the admission and the settlement of a call
-- are one statement each, and there). Each procedure is one transaction. It locks the run if nobody but its owner has
-- written since: run_, owner_, epoch_ and touch_ say so, and then the chain ends where the owner remembers it: head_, and n_
-- is the number of the next event. It answers with that number and the microseconds of the event. If anything is not as it
-- must be, it changes nothing and answers nothing. The number in its name changes with what it does: two versions of amends
-- may use one ledger. low_: the microseconds of the newest event. given_: replaces the server's clock, for tests.
create procedure amends_begin_1(
    run_ bigint, owner_ varbinary(512), epoch_ bigint, touch_ bigint, n_ bigint, head_ varchar(64) character set ascii,
    low_ bigint, given_ bigint, body_ varchar(64) character set ascii, high_ bigint, no_ bigint, settled_ bigint
)
sql security invoker
$$
begin
    declare micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    start transaction;
    select greatest(
        low_, coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
        (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
    ) into micros_ from amends_run where no = run_ and owner = owner_ and epoch = epoch_ and touch = touch_ and state = 'rolling_back' for update;
    if micros_ <= high_ then
        set at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(head_, ':', n_, ':', micros_, ':', body_), 256));
        update amends_call set state = 'compensating', comp_n = n_, comp_at = at_, comp_epoch = epoch_, comp_hash = hash_
        where no = no_ and root = run_ and state = 'succeeded' and settled_n = settled_ and comp_at is null;
        if row_count() = 1 then
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
    run_ bigint, owner_ varbinary(512), epoch_ bigint, touch_ bigint, n_ bigint, head_ varchar(64) character set ascii,
    low_ bigint, given_ bigint, body_ varchar(64) character set ascii, high_ bigint, no_ bigint
)
sql security invoker
$$
begin
    declare micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    start transaction;
    select greatest(
        low_, coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
        (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
    ) into micros_ from amends_run where no = run_ and owner = owner_ and epoch = epoch_ and touch = touch_ for update;
    if micros_ <= high_ then
        set at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(head_, ':', n_, ':', micros_, ':', body_), 256));
        update amends_call set state = 'compensated', undone_n = n_, undone_at = at_, undone_hash = hash_
        where no = no_ and root = run_ and state = 'compensating' and comp_hash is not null and undone_at is null;
        if row_count() = 1 then
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

-- The event of a plain failure is a row.
create procedure amends_fail_1(
    run_ bigint, owner_ varbinary(512), epoch_ bigint, touch_ bigint, n_ bigint, head_ varchar(64) character set ascii,
    low_ bigint, given_ bigint, body_ varchar(64) character set ascii, no_ bigint, call_ varbinary(255),
    facts_ longtext character set utf8mb4, more_ longtext character set utf8mb4, was_ longtext character set utf8mb4 collate utf8mb4_bin
)
sql security invoker
$$
begin
    declare micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    declare uid_ varbinary(255);
    declare id_ varbinary(2048);
    declare tenant_ varbinary(1016);
    start transaction;
    select uid, id, tenant, greatest(
        low_, coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
        (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
    ) into uid_, id_, tenant_, micros_ from amends_run where no = run_ and owner = owner_ and epoch = epoch_ and touch = touch_ for update;
    set at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(head_, ':', n_, ':', micros_, ':', body_), 256));
    update amends_call set state = 'failed', settled_at = at_, more = more_
    where no = no_ and root = run_ and micros_ is not null and state = 'started' and attempt = 1 and settled_n is null
        and settled_at is null and result is null and more <=> was_;
    if row_count() = 1 then
        insert into amends_event (
            root, n, at, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts, hash
        ) values (
            uid_, n_, at_, uid_, id_, tenant_, call_, 'call', 'started', 'failed', owner_, epoch_, facts_, hash_
        );
        update amends_run set n = n_, at = at_, head = hash_, touch = touch_ + 1 where no = run_;
        commit;
        select n_, micros_;
    else
        rollback;
    end if;
end
$$;

-- A run that there was not; it answers with the number of the run. The handler: another process has opened it at the same moment.
create procedure amends_open_1(
    uid_ varbinary(255), id_ varbinary(2048), tenant_ varbinary(1016), given_ bigint, body_ varchar(64) character set ascii,
    facts_ longtext character set utf8mb4, policy_ longtext character set utf8mb4, order_mode_ longtext character set utf8mb4, agent_ longtext character set utf8mb4, principal_ longtext character set utf8mb4, input_ longtext character set utf8mb4, input_digest_ longtext character set utf8mb4, tags_ longtext character set utf8mb4,
    owner_ varbinary(512), opener_ longtext character set utf8mb4, lease_s_ double, budgets_ longtext character set utf8mb4, completion_ longtext character set utf8mb4, boot_ varchar(255) character set utf8mb4,
    mono_ double, owners_ longtext character set utf8mb4
)
sql security invoker
$$
begin
    declare micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    declare exit handler for 1062 rollback;
    start transaction;
    if not exists (select 1 from amends_run where tenant = tenant_ and id = id_) then
        set micros_ = greatest(
            coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
            (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
        ), at_ = micros_ / 1e6,
            hash_ = unhex(sha2(concat(repeat('0', 64), ':', 1, ':', micros_, ':', body_), 256));
        insert into amends_run (
            uid, id, tenant, generation, root, parent, state, created_at, came_from, goal, goal_by, goal_why, plan, policy,
            order_mode, agent, principal, input, input_digest, output, tags, owner, opener, epoch, lease_s, lease_until,
            wake_at, suspended, history, interrupted, pivot, staged_pivot, locked, charged, budgets, completion, causes, origin,
            forked_from, forked_at, lease_boot, lease_mono, silent_boot, wanted, owners, n, head, at, touch
        ) values (
            uid_, id_, tenant_, 1, uid_, '', 'open', at_, '', '', '', '', '', policy_,
            order_mode_, agent_, principal_, input_, input_digest_, '', tags_, owner_, opener_, 1, lease_s_, at_ + lease_s_,
            at_ + lease_s_, 0, 0, 0, '', '', 0, 0, budgets_, completion_, '[]', '',
            '', '', boot_, mono_, '', '', owners_, 1, hash_, at_, 1
        );
        insert into amends_event (
            root, n, at, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts, hash
        ) values (
            uid_, 1, at_, uid_, id_, tenant_, '', 'run', '(new)', 'open', owner_, 1, facts_, hash_
        );
        commit;
        select last_insert_id(), micros_;
    else
        rollback;
    end if;
end
$$;

-- A plain run begins its rollback, and the compensation of the call that was settled last.
create procedure amends_turn_1(
    run_ bigint, owner_ varbinary(512), epoch_ bigint, touch_ bigint, n_ bigint, head_ varchar(64) character set ascii,
    low_ bigint, given_ bigint, by_ longtext character set utf8mb4, why_ longtext character set utf8mb4, goal_body_ varchar(64) character set ascii,
    goal_facts_ longtext character set utf8mb4, body_ varchar(64) character set ascii,
    facts_ longtext character set utf8mb4, no_ bigint, settled_ bigint, left_ bigint, high_ bigint,
    first_ varchar(64) character set ascii
)
sql security invoker
$$
begin
    declare micros_, count_ bigint;
    declare at_ double;
    declare goal_hash_, hash_, first_hash_ binary(32);
    declare uid_ varbinary(255);
    declare id_ varbinary(2048);
    declare tenant_ varbinary(1016);
    start transaction;
    select uid, id, tenant, greatest(
        low_, coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
        (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
    ) into uid_, id_, tenant_, micros_ from amends_run
    where no = run_ and owner = owner_ and epoch = epoch_ and touch = touch_ and state = 'open' and goal = '' and pivot = '' and deadline_at is null and forked_from = ''
        and locked = 0 and origin = '' for update;
    -- left_ calls have an effect, and nothing else is to be settled or taken back.
    select coalesce(sum(
        case c.state when 'succeeded' then t.kind <> 'read' when 'failed' then 0 when 'refused' then 0 when 'dropped' then 0
        else 1000000000 end
    ), 0) into count_ from amends_call c join amends_tool t on t.no = c.tool where c.root = run_;
    if micros_ <= high_ and count_ = left_
        and not exists (select 1 from amends_run k where k.root = uid_ and k.uid <> uid_)
        and not exists (select 1 from amends_run f where f.forked_from = uid_)
        and not exists (select 1 from amends_approval a where a.root = uid_)
    then
        set at_ = micros_ / 1e6, goal_hash_ = unhex(sha2(concat(head_, ':', n_, ':', micros_, ':', goal_body_), 256)),
            hash_ = unhex(sha2(concat(lower(hex(goal_hash_)), ':', n_ + 1, ':', micros_, ':', body_), 256)),
            first_hash_ = unhex(sha2(concat(lower(hex(hash_)), ':', n_ + 2, ':', micros_, ':', first_), 256));
        update amends_call set state = 'compensating', comp_n = n_ + 2, comp_at = at_, comp_epoch = epoch_,
            comp_hash = first_hash_
        where no = no_ and root = run_ and state = 'succeeded' and settled_n = settled_ and comp_at is null;
        if row_count() = 1 then
            insert into amends_event (
                root, n, at, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts, hash
            ) values (
                uid_, n_, at_, uid_, id_, tenant_, '', 'goal', '', 'rollback', by_, epoch_, goal_facts_, goal_hash_
            ), (
                uid_, n_ + 1, at_, uid_, id_, tenant_, '', 'run', 'open', 'rolling_back', by_, epoch_, facts_, hash_
            );
            update amends_run set state = 'rolling_back', goal = 'rollback', goal_by = 'self', goal_why = why_, n = n_ + 1,
                at = at_, head = hash_, touch = touch_ + 1 where no = run_;
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

-- A compensation of such a rollback is done, and the next one begins; next_: null if there is none, and the run is closed.
-- With the same touch nobody has changed anything since amends_turn_1: it does not look at the other calls.
create procedure amends_undo_1(
    run_ bigint, owner_ varbinary(512), epoch_ bigint, touch_ bigint, n_ bigint, head_ varchar(64) character set ascii,
    low_ bigint, given_ bigint, body_ varchar(64) character set ascii, no_ bigint, high_ bigint,
    next_ bigint, settled_ bigint, next_body_ varchar(64) character set ascii
)
sql security invoker
$$
begin
    declare micros_ bigint;
    declare at_ double;
    declare hash_, next_hash_ binary(32);
    declare uid_ varbinary(255);
    declare id_ varbinary(2048);
    declare tenant_ varbinary(1016);
    declare done_ bigint default 0;
    start transaction;
    select uid, id, tenant, greatest(
        low_, coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
        (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
    ) into uid_, id_, tenant_, micros_ from amends_run
    where no = run_ and owner = owner_ and epoch = epoch_ and touch = touch_ and state = 'rolling_back' for update;
    if micros_ <= high_ then
        set at_ = micros_ / 1e6, hash_ = unhex(sha2(concat(head_, ':', n_, ':', micros_, ':', body_), 256)),
            next_hash_ = unhex(sha2(concat(lower(hex(hash_)), ':', n_ + 1, ':', micros_, ':', next_body_), 256));
        update amends_call set state = 'compensated', undone_n = n_, undone_at = at_, undone_hash = hash_
        where no = no_ and root = run_ and state = 'compensating' and comp_hash is not null and undone_at is null;
        set done_ = row_count();
        if done_ = 1 and next_ is not null then
            update amends_call set state = 'compensating', comp_n = n_ + 1, comp_at = at_, comp_epoch = epoch_,
                comp_hash = next_hash_
            where no = next_ and root = run_ and state = 'succeeded' and settled_n = settled_ and comp_at is null;
            set done_ = row_count();
        elseif done_ = 1 then
            insert into amends_event (
                root, n, at, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts, hash
            ) values (
                uid_, n_ + 1, at_, uid_, id_, tenant_, '', 'run', 'rolling_back', 'rolled_back', owner_, epoch_, '{}',
                next_hash_
            );
            update amends_run set state = 'rolled_back', n = n_ + 1, at = at_, head = next_hash_, touch = touch_ + 1,
                closed_at = at_, owner = '', lease_until = 0e0, wake_at = null, suspended = 0, causes = '[]'
            where no = run_;
        end if;
    end if;
    if done_ = 1 then
        commit;
        select n_, micros_;
    else
        rollback;
    end if;
end
$$;

-- A plain run begins its rollback, is closed after it, or is committed. The caller begins and commits, and reads in between.
-- goal_body_: null if the goal stays. What is asked of other tables is asked when the run is locked.
create procedure amends_move_1(
    run_ bigint, owner_ varbinary(512), epoch_ bigint, touch_ bigint, n_ bigint, head_ varchar(64) character set ascii,
    low_ bigint, given_ bigint, by_ longtext character set utf8mb4,
    goal_ longtext character set utf8mb4, goal_by_ longtext character set utf8mb4, goal_why_ longtext character set utf8mb4,
    goal_body_ varchar(64) character set ascii, goal_facts_ longtext character set utf8mb4,
    from_ varchar(32) character set ascii collate ascii_bin, to_ varchar(32) character set ascii collate ascii_bin,
    body_ varchar(64) character set ascii, facts_ longtext character set utf8mb4, output_ longtext character set utf8mb4
)
sql security invoker
$$
begin
    declare micros_ bigint;
    declare at_ double;
    declare hash_ binary(32);
    declare uid_ varbinary(255);
    declare id_ varbinary(2048);
    declare tenant_ varbinary(1016);
    select uid, id, tenant, greatest(
        low_, coalesce(given_, cast(unix_timestamp(sysdate(6)) * 1000000 as signed)),
        (select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')
    ) into uid_, id_, tenant_, micros_ from amends_run
    where no = run_ and owner = owner_ and epoch = epoch_ and touch = touch_ and state = from_ and (
        from_ = 'rolling_back' or state = 'open' and goal = '' and pivot = '' and deadline_at is null and forked_from = ''
    ) and (to_ <> 'committed' or goal_why = '' and completion = '') and locked = 0 and origin = '' and forked_from = ''
    for update;
    if micros_ is not null
        and not exists (select 1 from amends_run k where k.root = uid_ and k.uid <> uid_)
        and (to_ <> 'rolling_back' or (
            not exists (select 1 from amends_run f where f.forked_from = uid_)
            and not exists (select 1 from amends_approval a where a.root = uid_)
            and not exists (
                select 1 from amends_call c where c.root = run_
                    and (c.state = 'held' or c.state = 'ready' or c.state = 'backing_off')
            )
        ))
        and (to_ <> 'rolled_back' or not exists (
            select 1 from amends_call c join amends_tool t on t.no = c.tool where c.root = run_ and t.kind <> 'read'
                and c.state in ('held', 'ready', 'started', 'succeeded', 'backing_off', 'in_doubt', 'compensating',
                    'compensation_failed', 'compensation_in_doubt', 'residue')
        ))
        and (to_ <> 'committed' or not exists (
            select 1 from amends_call c where c.root = run_
                and c.state in ('held', 'ready', 'started', 'backing_off', 'in_doubt', 'residue')
        ))
    then
        set at_ = micros_ / 1e6, n_ = n_ - 1;
        if goal_body_ is not null then
            set n_ = n_ + 1, hash_ = unhex(sha2(concat(
            coalesce(lower(hex(hash_)), head_), ':', n_, ':', micros_, ':', goal_body_
        ), 256));
            insert into amends_event (
                root, n, at, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts, hash
            ) values (
                uid_, n_, at_, uid_, id_, tenant_, '', 'goal', '', goal_, by_, epoch_, goal_facts_, hash_
            );
        end if;
        set n_ = n_ + 1, hash_ = unhex(sha2(concat(
            coalesce(lower(hex(hash_)), head_), ':', n_, ':', micros_, ':', body_
        ), 256));
        insert into amends_event (
            root, n, at, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts, hash
        ) values (
            uid_, n_, at_, uid_, id_, tenant_, '', 'run', from_, to_, by_, epoch_, facts_, hash_
        );
        update amends_run set state = to_, goal = coalesce(goal_, goal), goal_by = coalesce(goal_by_, goal_by),
            goal_why = coalesce(goal_why_, goal_why), output = coalesce(output_, output), n = n_, at = at_, head = hash_,
            touch = touch_ + 1,
            closed_at = if(to_ = 'rolling_back', closed_at, at_), owner = if(to_ = 'rolling_back', owner, ''),
            lease_until = if(to_ = 'rolling_back', lease_until, 0e0), wake_at = if(to_ = 'rolling_back', wake_at, null),
            suspended = if(to_ = 'rolling_back', suspended, 0), causes = if(to_ = 'rolling_back', causes, '[]')
        where no = run_;
        select n_, micros_;
    end if;
end
$$;
