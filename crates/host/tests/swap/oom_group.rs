//! Which programs are killed together: `memory.oom.group`.

use crate::common::*;
use crate::oom::{LIMIT, grow, killing_machine, kills};

/// A shortage in "g", which is in "outer": programs in "g/a/x" (the first to be chosen), "g/a/y", another one
/// there that is never chosen, "g/b" (which needs the memory), and "outer/other". Groups are where `set`
/// says. Returns which of these were killed, and `oom_group_kill` of outer, g, a and x as they count it
/// themselves.
fn killed_with(set: &[&str]) -> ([bool; 5], [u64; 4]) {
    let (machine, cpu, _) = killing_machine();
    let memory = machine.memory();
    let make = |parent, name| memory.create_memcg(parent, name).unwrap();
    let outer = make(MemcgId::ROOT, "outer");
    let (g, other) = (make(outer, "g"), make(outer, "other"));
    let (a, b) = (make(g, "a"), make(g, "b"));
    let (x, y) = (make(a, "x"), make(a, "y"));
    set_limit(&machine, g, Limit::Max, LIMIT);
    for path in set {
        memory.write_memcg_file(memory.find_memcg(path).unwrap(), "memory.oom.group", "1").unwrap();
    }
    let spaces = [x, y, y, b, other].map(|memcg| space_in(&machine, memcg));
    spaces[0].oom().set_score_adj(1000);
    spaces[2].oom().set_score_adj(-1000);
    for space in &spaces {
        map_filled(&cpu, space, GIB, 64, 1);
    }
    grow(&cpu, &spaces[3], || spaces[0].oom().is_killed());
    let killed = spaces.each_ref().map(|space| space.oom().is_killed());
    let count = killed.iter().filter(|&&killed| killed).count() as u64;
    assert_eq!((kills(&machine, outer), count_of_machine(&machine)), (count, count));
    for (space, &killed) in spaces.iter().zip(&killed) {
        // Their memory is freed at once.
        assert_eq!(space.figures().resident == 0, killed);
    }
    let counters = memory.memcgs().counters();
    let groups = [outer, g, a, x].map(|memcg| counters.local_events(memcg, MemcgEvent::OomGroupKill));
    assert_eq!(events(&machine, outer, MemcgEvent::OomGroupKill), groups.iter().sum());
    assert_audit(&machine);
    (killed, groups)
}

fn count_of_machine(machine: &Machine) -> u64 {
    count(machine, VmEvent::OomKill)
}

#[test]
fn a_group_is_killed_with_its_first_program() {
    const ONE: [bool; 5] = [true, false, false, false, false];
    assert_eq!(killed_with(&[]), (ONE, [0; 4]));
    assert_eq!(killed_with(&["outer/g/a"]), ([true, true, false, false, false], [0, 0, 1, 0]));
    // The topmost one up to the limit that was hit.
    let all = [true, true, false, true, false];
    assert_eq!(killed_with(&["outer", "outer/g", "outer/g/a", "outer/g/a/x"]), (all, [0, 1, 0, 0]));
    assert_eq!(killed_with(&["outer"]), (ONE, [0; 4]));
    // Of its own programs only, and of no memcg beside it.
    assert_eq!(killed_with(&["outer/g/a/x", "outer/g/b"]), (ONE, [0, 0, 0, 1]));
}
