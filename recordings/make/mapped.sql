-- A database in a file of which sqlite maps what there is, while it grows and is made smaller.
pragma mmap_size = 268435456;
pragma cache_size = 100;
create table entry(id integer primary key, key text, value text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
insert into entry select i, 'key ' || (i * 7919 % 20000), hex(i * 2654435761) || ' value of ' || i from n;
create index entry_key on entry(key);
select count(*), max(length(value)) from entry;
select value from entry where key = 'key 77';
select sum(length(value)) from entry where id % 7 = 0;
with recursive n(i) as (select 20001 union all select i + 1 from n where i < 30000)
insert into entry select i, 'key ' || i, hex(i * 2654435761) from n;
select count(*) from entry where value like '%7F%';
delete from entry where id > 5000;
vacuum;
select count(*), max(id) from entry;
select sum(length(key)) from entry;
