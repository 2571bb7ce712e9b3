//! The same calls on every page-table format, and random calls on the invented one against a model.

use crate::common::*;
use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{X86_64Level4, X86_64Level5};

/// Map, touch, protect, move, fork, unmap, exit, around a border of all levels.
fn basic_life<F: PagingFormat>() {
    let machine: Machine<F> = Setup::mib(16).cpus(2).build();
    let cpu = machine.vcpu(0).unwrap();
    let before = in_use(&machine);
    {
        let space = create_space(&machine).audited(&machine);
        let root_entry = F::entry_bytes(F::root_level());
        let table = F::table_bytes(Level::PTE);
        let (base, pages) = (root_entry - table - 3 * PAGE, 2 * table / PAGE + 5);
        let addr = map_at(&space, base, pages * PAGE, RW);
        let program = cpu.program(&space);
        for at in 0..pages {
            assert_eq!(program.read_u64(page(addr, at)), Ok(0));
            program.write_u64(page(addr, at), at + 1).unwrap();
        }
        assert_eq!(space.figures().resident, pages * PAGE);
        assert_audit(&machine);

        space.mprotect(page(addr, 1), (pages - 2) * PAGE, READ, false).unwrap();
        assert_eq!(program.write_u64(page(addr, 1), 0), Err(DENIED));
        assert_eq!(program.write_u64(addr, 1), Ok(()));
        space.mprotect(addr, pages * PAGE, NONE, false).unwrap();
        assert_eq!(program.read_u64(addr), Err(DENIED));
        space.mprotect(addr, pages * PAGE, RW, false).unwrap();
        assert_audit(&machine);

        let target = VirtAddr(2 * root_entry - table + 7 * PAGE);
        space.mremap(addr, pages * PAGE, pages * PAGE, MOVE, target).unwrap();
        assert_eq!(program.read_u64(addr), Err(NOT_MAPPED));
        let child = space.fork().unwrap();
        let other = machine.vcpu(1).unwrap();
        for at in 0..pages {
            assert_eq!(program.read_u64(page(target, at)), Ok(at + 1));
            program.write_u64(page(target, at), 0).unwrap();
            assert_eq!(other.program(&child).read_u64(page(target, at)), Ok(at + 1));
        }
        assert_audit(&machine);

        space.munmap(page(target, 2), (pages - 4) * PAGE).unwrap();
        assert_audit(&machine);
        assert_eq!(program.read_u64(page(target, 2)), Err(NOT_MAPPED));
        assert_eq!(program.read_u64(page(target, pages - 1)), Ok(0));
        space.munmap(target, pages * PAGE).unwrap();
        assert_eq!(space.figures().page_tables, 0);
        assert_eq!(space.figures().resident, 0);
        // Without an address, and at the very end of user space.
        let chosen = space.mmap(&MapRequest::anonymous(5 * PAGE, RW)).unwrap();
        program.write_u64(page(chosen, 4), 1).unwrap();
        let last = map_at(&space, F::USER_END.0 - PAGE, PAGE, RW);
        program.write_u64(last, 1).unwrap();
    }
    assert_audit(&machine);
    let after = in_use(&machine);
    assert_eq!(after, before);
}

#[test]
fn life_on_x86_64_with_four_levels() {
    basic_life::<X86_64Level4>();
}

#[test]
fn life_on_x86_64_with_five_levels() {
    basic_life::<X86_64Level5>();
}

#[test]
fn life_on_an_invented_format() {
    basic_life::<Invented3>();
}

/// The border in the middle of the random calls: of all levels of the invented format.
const MIDDLE: u64 = 1 << (12 + 6 + 8);
const WINDOW_PAGES: u64 = 160;
const WINDOW: u64 = MIDDLE - WINDOW_PAGES / 2 * PAGE;

/// A random call on pages of the window. What it returns follows the model, as does what it leaves.
fn any_call(random: &mut Random, cpu: &Vcpu<Invented3>, process: &mut Process<'_, Invented3>) {
    let place = |random: &mut Random| match random.below(3) {
        0 => random.below(WINDOW_PAGES),
        1 => 70 + random.below(20),
        _ => 14 + random.below(6),
    };
    let at = place(random);
    let count = if random.chance(80) { 1 + random.below(7) } else { 8 + random.below(92) };
    let range = at..(at + count).min(WINDOW_PAGES);
    let whole = process.hole(range.clone()) == range.end;
    let protection = random.weighted(&[(4, RW), (2, READ), (1, NONE)]);
    match random.below(22) {
        0..3 => process.call(Call::Map(protection), range).unwrap(),
        3..5 => process.call(Call::Unmap, range).unwrap(),
        5..7 => assert_eq!(process.call(Call::Protect(protection), range).is_ok(), whole),
        7..10 => {
            let to = place(random);
            let pages = (range.end - at).min(WINDOW_PAGES - to);
            let flags = MOVE | random.pick(&[RemapFlags::empty(), RemapFlags::DONTUNMAP]);
            if at >= to + pages || to >= at + pages {
                let mapped = process.pages.contains_key(&at);
                let result = process.call(Call::Remap { to, pages, flags }, at..at + pages);
                assert_eq!(result.is_ok(), mapped, "{result:?}");
            }
        }
        10 => assert_eq!(process.call(Call::Advise(Advice::DontNeed), range).is_ok(), whole),
        // It fails where a page is missing or read-only.
        11 => drop(process.call(Call::Advise(Advice::PopulateWrite), range)),
        12..18 => {
            let written = process.write(cpu, at, 1 + random.below(u64::MAX - 1));
            assert!(matches!(written, Ok(()) | Err(NOT_MAPPED | DENIED)), "{written:?}");
        }
        18..21 => process.check(cpu, at).unwrap(),
        _ => drop(process.fork().unwrap()),
    }
}

#[test]
fn random_calls_on_an_invented_format_follow_the_model() {
    let first = setting("QUIRE_SEED", 1);
    for seed in first..first + setting("QUIRE_SEEDS", 64) {
        println!("QUIRE_SEED={seed}");
        let mut random = Random(seed);
        let machine: Machine<Invented3> = Setup::mib(8).build();
        let cpu = machine.vcpu(0).unwrap();
        let before = in_use(&machine);
        let mut process = Process::new(create_space(&machine), VirtAddr(WINDOW), []);
        for _ in 0..1 + random.below(119) {
            any_call(&mut random, &cpu, &mut process);
            assert_audit(&machine);
        }
        for at in 0..WINDOW_PAGES {
            process.check(&cpu, at).unwrap();
        }
        drop(process);
        assert_audit(&machine);
        assert_eq!(in_use(&machine), before);
    }
}

/// Hazard: a layout that reaches past all addresses overflows where a hint above 47 bits widens it.
#[test]
fn a_layout_past_all_addresses_places_nothing_there() {
    fn place<F: PagingFormat>() {
        let machine: Machine<F> = Setup::mib(8).overcommit().build();
        let end = F::USER_END;
        for base in [end.0, end.0 + PAGE, 1 << 63, !(PAGE - 1), u64::MAX].map(VirtAddr) {
            for top_down in [true, false] {
                let layout =
                    Layout { mmap_base: base, mmap_legacy_base: base, top_down, ..Layout::standard(end) };
                let space = machine.memory().create_space_with(layout, Limits::default()).unwrap();
                for hint in [0, 1 << 46, end.0 - 4 * PAGE, end.0, !(PAGE - 1)].map(VirtAddr) {
                    let request = MapRequest { addr: Some(hint), ..MapRequest::anonymous(2 * PAGE, RW) };
                    if let Ok(at) = space.mmap(&request) {
                        assert!(at.0 + 2 * PAGE <= end.0, "{at:?} for a base of {base:?}");
                    }
                }
            }
        }
    }
    place::<X86_64Level4>();
    place::<X86_64Level5>();
}
