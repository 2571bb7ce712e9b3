"""Inputs for the programs of programs.toml, the same each time.

    generate.py c FUNCTIONS        a C file
    generate.py rust FUNCTIONS     a Rust file
    generate.py log LINES          a log file, which compresses like one
    generate.py sql ROWS           a script for an SQL database in memory
"""

import random
import sys

RANDOM = random.Random(7)


def c(count):
    print("#include <stddef.h>")
    for number in range(count):
        terms = " + ".join(f"a[(i * {RANDOM.randrange(2, 90)} + {k}) % n] * {RANDOM.randrange(1, 99)}" for k in range(6))
        print(f"double f{number}(double *a, size_t n) {{\n  double s = {number};")
        print(f"  for (size_t i = 0; i < n; i++) {{ s += {terms}; if (s > {number}e3) s /= 2; }}")
        print(f"  switch (n % 7) {{ {' '.join(f'case {k}: s *= {RANDOM.randrange(1, 50)}; break;' for k in range(7))} }}")
        print("  return s;\n}")
    print("double (*const all[])(double *, size_t) = {" + ", ".join(f"f{n}" for n in range(count)) + "};")


def rust(count):
    print("use std::collections::BTreeMap;")
    for number in range(count):
        print(f"#[derive(Clone, Debug, PartialEq)]\npub struct S{number} {{ pub name: String, pub value: u64, pub rest: Vec<u32> }}")
        print(f"pub fn f{number}(map: &mut BTreeMap<String, S{number}>, n: u64) -> Option<u64> {{")
        print(f"    for i in 0..n {{ let s = S{number} {{ name: format!(\"{{i}}-{number}\"), value: i * {RANDOM.randrange(2, 99)}, rest: vec![i as u32; {number % 9}] }};")
        print("        map.entry(s.name.clone()).and_modify(|old| old.value += s.value).or_insert(s); }")
        print("    map.values().filter(|s| s.value % 3 == 1).map(|s| s.value).max()\n}")


def log(count):
    words = ["".join(RANDOM.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(RANDOM.randrange(3, 12))) for _ in range(4000)]
    for number in range(count):
        text = " ".join(RANDOM.choice(words) for _ in range(8))
        print(f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02} {RANDOM.randrange(1 << 32):08x} {text}")


def sql(count):
    print("create table t(a integer, b text, c real);")
    print(f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})")
    print("insert into t select i, 'name' || (i * 7919 % 100003) || hex(i * i), i * 0.37 from n;")
    print("create index tb on t(b); create index tc on t(c);")
    print("select count(*), sum(x) from (select substr(b, 1, 6) k, sum(c) x from t group by k);")
    print("delete from t where a % 3 = 0; update t set c = c * 2 where a % 5 = 0; select avg(c) from t;")


{"c": c, "rust": rust, "log": log, "sql": sql}[sys.argv[1]](int(sys.argv[2]))
