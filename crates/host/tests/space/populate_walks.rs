//! What populating memory costs beside its faults.

use crate::common::*;
use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{Entry, MAX_LEVELS};
use std::cell::Cell;

std::thread_local! {
    /// Entries that this thread has decoded.
    static DECODED: Cell<u64> = const { Cell::new(0) };
}

/// The invented format, which counts the entries that are looked at.
#[derive(Clone, Copy, Debug)]
struct Counted;

// SAFETY: each function is that of another format.
unsafe impl PagingFormat for Counted {
    const LEVELS: u8 = Invented3::LEVELS;
    const INDEX_BITS: [u32; MAX_LEVELS] = Invented3::INDEX_BITS;
    const ACCESSED: u64 = Invented3::ACCESSED;
    const DIRTY: u64 = Invented3::DIRTY;
    const IDENTITY: u64 = Invented3::IDENTITY;
    const NAME: &'static str = "invented, counted";
    const USER_END: VirtAddr = Invented3::USER_END;

    fn leaf_allowed(level: Level) -> bool {
        Invented3::leaf_allowed(level)
    }

    fn encode(entry: Entry, level: Level) -> u64 {
        Invented3::encode(entry, level)
    }

    fn decode(raw: u64, level: Level) -> Entry {
        DECODED.set(DECODED.get() + 1);
        Invented3::decode(raw, level)
    }

    fn is_present_leaf(raw: u64, level: Level) -> bool {
        Invented3::is_present_leaf(raw, level)
    }

    fn without_write(raw: u64) -> u64 {
        Invented3::without_write(raw)
    }

    fn frames_on(raw: u64, pages: u64) -> u64 {
        Invented3::frames_on(raw, pages)
    }
}

/// The entries that are looked at when all pages of `tables` tables, which a program has only read, are
/// populated for writes.
fn looks_to_populate(tables: u64) -> u64 {
    let machine: Machine<Counted> = Setup::mib(64).build();
    let (cpu, space) = cpu_and_space(&machine);
    let table = Counted::table_bytes(Level::PTE);
    let addr = map_at(&space, table, tables * table, RW);
    let program = cpu.program(&space);
    let pages = tables * table / PAGE;
    for at in 0..pages {
        assert_eq!(program.read_u64(page(addr, at)), Ok(0));
    }
    let before = DECODED.get();
    space.madvise(addr, pages * PAGE, Advice::PopulateWrite).unwrap();
    let looks = DECODED.get() - before;
    assert_eq!(space.figures().resident, pages * PAGE);
    looks
}

#[test]
fn populating_does_not_look_at_the_tables_behind_each_missing_page() {
    let (few, many) = (looks_to_populate(16), looks_to_populate(128));
    assert!(many <= 10 * few, "{few} looks for 16 tables, {many} for 128");
}
