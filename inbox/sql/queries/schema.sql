-- What the start of a process checks, and what migrations need.

-- name: schema_standing
-- What has the name of the inbox schema here: 'missing', 'ours' by the shape of its record of migrations, or 'foreign'.
-- Read from catalogs, which every role may.
select case when s.oid is null then 'missing'
            when (select count(*)
                    from pg_class c
                    join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
                   where c.relnamespace = s.oid and c.relname = 'migration' and c.relkind = 'r'
                     and (a.attname, a.atttypid) in (('number', 'integer'::regtype), ('name', 'text'::regtype),
                                                     ('checksum', 'text'::regtype))) = 3 then 'ours'
            else 'foreign' end
  from (select to_regnamespace('inbox') as oid) s;

-- name: applied_migrations
-- Every applied migration, oldest first.
select number, name, checksum from inbox.migration order by number;

-- name: note_migration
-- Remember an applied migration with the checksum of its file.
insert into inbox.migration (number, name, checksum) values ($1, $2, $3);

-- name: missing_grants
-- What the role that asks lacks to run a fleet, as the statements that give it, and who may run them. Making and dropping
-- partitions takes who owns the receipts, so a privilege that comes with that is not named besides. Where a superuser
-- owns them, also by a membership, everything is handed over instead: nobody should become a member of that.
with receipt as (
       select c.relnamespace as schema, c.relowner as owner,
              exists (select from pg_roles s where s.rolsuper and pg_has_role(c.relowner, s.oid, 'MEMBER')) as of_superuser
         from pg_class c
        where c.relnamespace = to_regnamespace('inbox') and c.relname = 'receipt'),
     lacking as (
       select c.relname, string_agg(p.privilege, ', ' order by p.position) as privileges
         from receipt r
         join pg_class c on c.relnamespace = r.schema and c.relkind in ('r', 'p') and not c.relispartition
        cross join unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) with ordinality p(privilege, position)
        where (p.privilege = 'SELECT' or c.relname <> 'migration')
          and not has_table_privilege(c.oid, p.privilege) and not has_table_privilege(r.owner, c.oid, p.privilege)
        group by c.relname)
select statement, who
  from (select 1 as place, 'superuser' as who, format('CALL inbox.hand_over(%L)', current_user) as statement
          from receipt r
         where r.of_superuser and not pg_has_role(r.owner, 'USAGE')
         union all
        select 1, case when pg_has_role(r.owner, 'MEMBER') and current_setting('server_version_num')::integer < 160000
                       then 'superuser' else 'admin' end,
               case when not pg_has_role(r.owner, 'MEMBER') then
                         format('GRANT %I TO %I', pg_get_userbyid(r.owner), current_user)
                    when current_setting('server_version_num')::integer >= 160000 then
                         format('GRANT %I TO %I WITH INHERIT TRUE', pg_get_userbyid(r.owner), current_user)
                    else format('ALTER ROLE %I INHERIT', current_user) end
          from receipt r
         where not r.of_superuser and not pg_has_role(r.owner, 'USAGE')
         union all
        select 2, 'owner', format('GRANT %s ON SCHEMA inbox TO %I', string_agg(p, ', ' order by p desc), current_user)
          from receipt r
         cross join unnest(array['USAGE', 'CREATE']) p
         where not has_schema_privilege(r.schema, p) and not has_schema_privilege(r.owner, r.schema, p)
        having count(*) > 0
         union all
        select 3, 'owner', format('GRANT %s ON %s TO %I', l.privileges,
                                  string_agg(format('inbox.%I', l.relname), ', ' order by l.relname), current_user)
          from lacking l
         group by l.privileges
         union all
        select 4, 'owner', format('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA inbox TO %I', current_user)
         where exists (select from receipt r
                         join pg_proc f on f.pronamespace = r.schema
                        where not has_function_privilege(f.oid, 'EXECUTE')
                          and not has_function_privilege(r.owner, f.oid, 'EXECUTE'))) needed
 order by place, statement;

-- name: missing_operator_grants
-- What the role that asks lacks to look at messages and, if $1, to change them, as the statements that grant it.
with wanted(relname, privilege, changes) as (
       select unnest(array['attempt', 'exhaustion', 'history', 'member', 'message', 'migration', 'receipt', 'replay',
                           'replay_item']), 'SELECT', false
        union all
       select unnest(array['history', 'replay', 'replay_item']), 'INSERT', true
        union all
       select unnest(array['exhaustion', 'message', 'replay', 'replay_item']), 'UPDATE', true),
     lacking as (
       select c.relname, string_agg(w.privilege, ', ' order by w.privilege desc) as privileges
         from wanted w
         join pg_class c on c.relnamespace = to_regnamespace('inbox') and c.relname = w.relname
        where (not w.changes or $1) and not has_table_privilege(c.oid, w.privilege)
        group by c.relname)
select statement
  from (select 1 as place, format('GRANT USAGE ON SCHEMA inbox TO %I', current_user) as statement
         where not has_schema_privilege('inbox', 'USAGE')
         union all
        select 2, format('GRANT %s ON %s TO %I', l.privileges,
                         string_agg(format('inbox.%I', l.relname), ', ' order by l.relname), current_user)
          from lacking l
         group by l.privileges
         union all
        select 3, format('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA inbox TO %I', current_user)
         where exists (select from pg_proc f
                        where f.pronamespace = to_regnamespace('inbox')
                          and not has_function_privilege(f.oid, 'EXECUTE'))) needed
 order by place, statement;

-- name: missing_grants_to_see_migrations
-- What the role that asks lacks to see which migrations are applied, as the statements that grant it.
select statement
  from (select 1 as place, format('GRANT USAGE ON SCHEMA inbox TO %I', current_user) as statement
         where not has_schema_privilege('inbox', 'USAGE')
         union all
        select 2, format('GRANT SELECT ON inbox.migration TO %I', current_user)
          from pg_class c
         where c.relnamespace = to_regnamespace('inbox') and c.relname = 'migration'
           and not has_table_privilege(c.oid, 'SELECT')) needed
 order by place;

-- name: current_role
-- Who it is that may not do something.
select current_user;

-- name: try_migration_lock
-- Polled, never waited for: a waiting session's snapshot would itself block concurrent index builds.
select pg_try_advisory_lock($1);

-- name: session_facts
-- Settings that decide whether a commit is durable and a text can be stored, as this session has them.
select current_setting('synchronous_commit') as synchronous_commit,
       current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       pg_encoding_to_char(d.encoding) as encoding,
       pg_is_in_recovery() as in_recovery,
       current_setting('server_version_num')::integer as server_version
  from pg_database d where d.datname = current_database();

-- name: probe
-- Whether this server takes writes now.
select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on';
