-- The plain case of admitting, settling and compensating in one round trip; store/quick.py says what is plain, store/pgquick.py calls.
-- A function that returns no row has changed nothing: the flow decides. Numbered, because an older amends may still
-- call the older one during a deploy: a change is a new function beside it.

create function amends_admit_1(
    p_now double precision, p_owner text, p_epoch bigint, p_facts text,
    p_id text, p_root text, p_tool text, p_version text, p_kind text, p_key text, p_ident text, p_digest text,
    p_args text, p_scope text, p_declared bigint, p_call_ref text, p_parent text, p_grp text, p_undoable bigint
) returns table (seq bigint, at double precision, run_id text, tenant text, agent text, principal text)
language plpgsql as
$$
#variable_conflict use_column
declare
    r record;
    moment double precision;
    place bigint;
begin
    select id, tenant, agent, principal into r from runs
    where uid = p_root and owner = p_owner and epoch = p_epoch
        and state = 'open' and goal = '' and pivot = '' and deadline_at is null
    for update;
    if not found or exists (select 1 from calls where "key" = p_key) then
        return;
    end if;
    select greatest(coalesce(p_now, extract(epoch from clock_timestamp())::float8), (
        select e.at from events e order by e.seq desc limit 1
    )) into moment;
    insert into events (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts)
    values (
        moment, p_root, p_root, r.id, r.tenant, p_id, 'call', '(new)', 'started', p_owner, p_epoch, p_facts
    ) returning events.seq into place;
    insert into calls (
        id, seq, run, root, run_id, tenant, tool, version, kind, "key", generation, ident, digest, args, state,
        created_at, created_epoch, asked_epoch, scope, declared, call_ref, parent, grp, undoable, attempt, first_at,
        started_at, agent, principal
    ) values (
        p_id, place, p_root, p_root, r.id, r.tenant, p_tool, p_version, p_kind, p_key, 1, p_ident, p_digest, p_args,
        'started', moment, p_epoch, p_epoch, p_scope, p_declared, p_call_ref, p_parent, p_grp, p_undoable, 1, moment,
        moment, r.agent, r.principal
    );
    return query select place, moment, r.id, r.tenant, r.agent, r.principal;
end
$$;

create function amends_settle_1(
    p_now double precision, p_owner text, p_epoch bigint, p_facts text, p_id text, p_root text, p_attempt bigint,
    p_places boolean, p_state text, p_result text, p_loss text, p_error text, p_why text, p_quiet_boot text,
    p_quiet_mono double precision, p_retry_s double precision
) returns table (seq bigint, at double precision)
language plpgsql as
$$
#variable_conflict use_column
declare
    c record;
    moment double precision;
    place bigint;
begin
    perform 1 from runs where uid = p_root and owner = p_owner and epoch = p_epoch for update;
    if not found then
        return;
    end if;
    select run, run_id, tenant, settled_seq into c from calls
    where id = p_id and root = p_root and state = 'started' and attempt = p_attempt and evidence = '' and kind <> 'pivot';
    if not found then
        return;
    end if;
    select greatest(coalesce(p_now, extract(epoch from clock_timestamp())::float8), (
        select e.at from events e order by e.seq desc limit 1
    )) into moment;
    insert into events (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts)
    values (
        moment, p_root, c.run, c.run_id, c.tenant, p_id, 'call', 'started', p_state, p_owner, p_epoch, p_facts
    ) returning events.seq into place;
    update calls set state = p_state, result = p_result, loss = p_loss, error = p_error, why = p_why,
        quiet_boot = p_quiet_boot, quiet_mono = p_quiet_mono, settled_at = moment, retry_at = moment + p_retry_s,
        settled_seq = case when p_places then place else c.settled_seq end
    where id = p_id;
    return query select place, moment;
end
$$;

create function amends_begin_1(
    p_now double precision, p_owner text, p_epoch bigint, p_facts text, p_id text, p_root text, p_attempt bigint,
    p_comp_attempt bigint, p_settled_seq bigint, p_evidence text, p_replays bigint
) returns table (seq bigint, at double precision)
language plpgsql as
$$
#variable_conflict use_column
declare
    c record;
    moment double precision;
    place bigint;
begin
    perform 1 from runs
    where uid = p_root and owner = p_owner and epoch = p_epoch and state = 'rolling_back' for update;
    if not found then
        return;
    end if;
    select c.run, c.run_id, c.tenant into c from calls c
    where c.id = p_id and c.root = p_root and c.run = p_root
        and c.state = 'succeeded' and c.comp_attempt = p_comp_attempt and c.settled_seq = p_settled_seq
        and c.evidence = p_evidence and c.replays = p_replays
        and not exists (select 1 from runs k where k.root = c.root and k.uid <> c.root)
        and not exists (
            select 1 from calls o where o.root = c.root and o.id <> c.id and o.kind <> 'read' and (
                o.state = 'started'
                or o.settled_seq > c.settled_seq and (c.grp = '' or o.grp <> c.grp)
                and (o.state = 'compensating' or o.state = 'succeeded' and o.undoable = 1)
            )
        );
    if not found then
        return;
    end if;
    select greatest(coalesce(p_now, extract(epoch from clock_timestamp())::float8), (
        select e.at from events e order by e.seq desc limit 1
    )) into moment;
    insert into events (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts)
    values (
        moment, p_root, c.run, c.run_id, c.tenant, p_id, 'call', 'succeeded', 'compensating', p_owner, p_epoch, p_facts
    ) returning events.seq into place;
    update calls set state = 'compensating', comp_attempt = p_attempt, comp_at = moment, comp_settled_at = null,
        comp_retry_at = null, comp_error = '', comp_boot = '', comp_mono = null, quiet_left = null
    where id = p_id;
    return query select place, moment;
end
$$;

create function amends_end_1(
    p_now double precision, p_owner text, p_epoch bigint, p_facts text, p_id text, p_root text, p_attempt bigint,
    p_evidence text, p_replays bigint, p_state text, p_error text, p_gave_up bigint, p_boot text,
    p_mono double precision, p_retry_s double precision
) returns table (seq bigint, at double precision)
language plpgsql as
$$
#variable_conflict use_column
declare
    c record;
    moment double precision;
    place bigint;
begin
    perform 1 from runs where uid = p_root and owner = p_owner and epoch = p_epoch for update;
    if not found then
        return;
    end if;
    select run, run_id, tenant into c from calls
    where id = p_id and root = p_root and state = 'compensating' and comp_attempt = p_attempt
        and evidence = p_evidence and replays = p_replays;
    if not found then
        return;
    end if;
    select greatest(coalesce(p_now, extract(epoch from clock_timestamp())::float8), (
        select e.at from events e order by e.seq desc limit 1
    )) into moment;
    insert into events (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts)
    values (
        moment, p_root, c.run, c.run_id, c.tenant, p_id, 'call', 'compensating', p_state, p_owner, p_epoch, p_facts
    ) returning events.seq into place;
    update calls set state = p_state, comp_error = p_error, comp_gave_up = p_gave_up, comp_boot = p_boot,
        comp_mono = p_mono, comp_settled_at = moment, comp_retry_at = moment + p_retry_s
    where id = p_id;
    return query select place, moment;
end
$$;
