-- Leases on the owner's monotonic clock, and who noticed that an owner is silent. Who edited a request. The event of
-- a delegation. The latest time that the ledger has seen, in made_at.

alter table runs add column lease_boot text not null default '';

alter table runs add column lease_mono real;

alter table runs add column silent_boot text not null default '';

alter table runs add column silent_mono real;

alter table runs add column silent_at real;

alter table approvals add column editors text not null default '';

alter table delegations add column seq integer not null default 0;

insert into marks (name, value, made_at) values ('time', '', 0);
