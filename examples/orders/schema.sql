-- The service's own table, beside the fleet's schema `inbox` in the same database.
--
-- A real service would make order_id the primary key. Here nothing but the inbox keeps a message from having its effect
-- twice, so that a doubled effect could be seen.
create table placed_order (
    entry     bigint      generated always as identity primary key,
    order_id  text        not null,
    customer  text        not null,
    cents     bigint      not null,
    placed_at timestamptz not null default clock_timestamp()
);
