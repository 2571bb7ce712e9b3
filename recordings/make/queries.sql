-- Builds two tables with indices in memory, then asks about them.
create table person(id integer primary key, name text, city integer);
create table sale(id integer primary key, person integer, amount real, note text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)
insert into person select i, 'name ' || (i * 7919 % 5000), i % 97 from n;
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
insert into sale select i, i * 31 % 5000 + 1, (i * 17 % 1000) / 10.0, 'note ' || hex(i * 2654435761) from n;
create index sale_person on sale(person);
create index person_city on person(city);
select city, count(*), round(sum(amount), 1) from person join sale on person.id = sale.person
  group by city order by 3 desc limit 5;
select name, count(*) from person join sale on person.id = sale.person where note like '%AB%'
  group by name order by 2 desc, 1 limit 5;
update sale set note = note || ' (again)' where id % 3 = 0;
delete from sale where amount < 20;
vacuum;
select count(*), round(avg(amount), 3), max(length(note)) from sale;
