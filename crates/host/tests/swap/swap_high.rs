//! `memory.swap.high`: programs are held up, and nothing else.

use crate::common::*;
use crate::swap_memcgs::limited_machine;
use quire_mm::proc::memcg_file;

/// Pages in memory, and as many more in swap.
const LIMIT: u64 = 256;

fn swap_events(machine: &Machine, path: &str) -> String {
    let mut text = String::new();
    memcg_file(machine.memory(), path, None, &mut text).unwrap();
    text
}

#[test]
fn a_program_with_too_much_swap_is_held_up_when_it_charges() {
    let machine = limited_machine(16, OomAction::Refuse, 0);
    swap_on_ram(&machine, 4096);
    let memory = machine.memory();
    let (cpu, memcg, outer_space) = in_memcg(&machine, "outer", &[(Limit::Max, LIMIT)]);
    drop(outer_space);
    let inner = memory.create_memcg(memcg, "inner").unwrap();
    let space = space_in(&machine, inner);
    let area = map_at(&space, GIB, 8 * LIMIT * PAGE, RW);
    fill(&cpu, &space, area, 0..2 * LIMIT, 1);
    let used = swap_usage(&machine, memcg);
    assert!(used >= LIMIT / 2, "{used} pages of swap");
    let high = || [inner, memcg].map(|memcg| events(&machine, memcg, MemcgEvent::SwapHigh));
    assert_eq!(high(), [0, 0]);
    // A limit below the usage reclaims nothing by itself, and that of an ancestor counts there.
    memory.write_memcg_file(memcg, "memory.swap.high", &((used - used / 16) * PAGE).to_string()).unwrap();
    assert_eq!((high(), swap_usage(&machine, memcg)), ([0, 0], used));
    let began = memory.platform().now();
    let mut at = 2 * LIMIT;
    while high()[1] == 0 {
        assert!(at < 4 * LIMIT, "nothing is held up");
        cpu.program(&space).write_u64(page(area, at), 1).unwrap();
        at += 1;
    }
    // The square of 1/16 of 64 seconds, for 32 pages at least.
    let waited = memory.platform().now() - began;
    assert!(waited >= 100_000_000, "{waited} ns");
    assert_eq!(high()[0], 0);
    let text = swap_events(&machine, "outer/memory.swap.events");
    assert!(text.starts_with("high 1\n"), "{text}");
    // What was charged before the limit was lifted may be noted.
    memory.write_memcg_file(memcg, "memory.swap.high", "max").unwrap();
    let before = high();
    fill(&cpu, &space, area, at..at + 128, 1);
    assert!(high()[1] <= before[1] + 1);
    assert_filled(&cpu, &space, area, 0..2 * LIMIT, 1);
    assert_audit(&machine);
}
