-- The owner of the schema: the role that migrated, and that the fleet's role has to be or be a member of.

-- Make a role the owner of the schema and of all that is in it. For a superuser that has migrated: nobody should become
-- its member for that.
create procedure inbox.hand_over(p_role name)
    language plpgsql
    as $$
declare
    v_change text;
begin
    for v_change in
        select format('alter table %s owner to %I', c.oid::regclass, p_role)
          from pg_class c
         where c.relnamespace = 'inbox'::regnamespace and c.relkind in ('r', 'p')
         union all
        select format('alter routine %s owner to %I', f.oid::regprocedure, p_role)
          from pg_proc f
         where f.pronamespace = 'inbox'::regnamespace
         union all
        select format('alter schema inbox owner to %I', p_role)
    loop
        execute v_change;
    end loop;
end
$$;
