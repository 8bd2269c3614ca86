-- needs: 2
-- PostgreSQL parses the text of a CHECK and of a generated column again in every statement that writes the table: a
-- quarter of the server's time for a plain call. So the states are checked by domains, whose conditions a session keeps,
-- and the statements write attention and unsealed themselves (amends/stores/sql.py); an audit compares them with the
-- columns that they follow from. An amends that does not write them must not use the ledger. No table is rewritten.

-- 1 for the states that need attention, as before.
alter table amends_call alter column attention drop expression;

-- 1 for a root that is open, or that has events which no checkpoint covers, as before.
alter table amends_run alter column unsealed drop expression;

alter table amends_call drop constraint amends_call_state_check;

alter table amends_run drop constraint amends_run_state_check;

-- First without a condition: else PostgreSQL would write every row again.
create domain amends_call_state as text collate "C";

create domain amends_run_state as text collate "C";

alter table amends_call alter column state type amends_call_state;

alter table amends_run alter column state type amends_run_state;

alter domain amends_call_state add constraint amends_call_state_check check (value in (
    'held', 'ready', 'started', 'succeeded', 'failed', 'backing_off', 'in_doubt', 'compensating', 'compensated', 'compensation_failed', 'compensation_in_doubt', 'refused', 'dropped', 'residue'
));

alter domain amends_run_state add constraint amends_run_state_check check (value in (
    'open', 'pivoted', 'committed', 'rolling_back', 'rolled_back', 'blocked', 'abandoned'
));
