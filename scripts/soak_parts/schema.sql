-- The tables of the soak's service. Nothing in them keeps an effect from being doubled: that is the inbox's to do.
create table effect (
    entry      bigint  generated always as identity primary key,
    message_id text    not null,
    generation integer not null,
    attempt    integer not null
);

create table told (
    entry      bigint  generated always as identity primary key,
    record_id  uuid    not null,
    message_id text    not null,
    generation integer not null
);
