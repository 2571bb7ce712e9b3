//! The same calls on every page-table format, and random calls on the invented one against a model.

use crate::common::{
    AccessResult, DENIED, HostProgram, HostSpace, NONE, NOT_MAPPED, PAGE, READ, RW, Setup, assert_audit,
    in_use, map_at, page,
};
use proptest::prelude::*;
use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{X86_64Level4, X86_64Level5};
use quire_arch::{Level, PagingFormat, VirtAddr};
use quire_host::Machine;
use quire_mm::{Advice, MapRequest, Protection, RemapFlags};
use std::collections::BTreeMap;

const MOVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Map, touch, protect, move, fork, unmap, exit, around a border of all levels.
fn basic_life<F: PagingFormat>() {
    let machine: Machine<F> = Setup::mib(16).cpus(2).build();
    let cpu = machine.vcpu(0).unwrap();
    let before = in_use(&machine);
    {
        let space = machine.memory().create_space().unwrap();
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
        assert_audit(&machine);
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

/// A random call on pages of the window.
#[derive(Clone, Debug)]
enum Call {
    Map(u64, u64, Protection),
    Unmap(u64, u64),
    Protect(u64, u64, Protection),
    Move(u64, u64, u64, bool),
    Drop(u64, u64),
    Populate(u64, u64),
    Write(u64, u64),
    Read(u64),
    Fork,
}

fn any_call() -> impl Strategy<Value = Call> {
    let at = prop_oneof![0..WINDOW_PAGES, 70..90u64, 14..20u64];
    let count = prop_oneof![4 => 1..8u64, 1 => 8..100u64];
    let protection = prop_oneof![4 => Just(RW), 2 => Just(READ), 1 => Just(NONE)];
    prop_oneof![
        3 => (at.clone(), count.clone(), protection.clone()).prop_map(|(a, n, p)| Call::Map(a, n, p)),
        2 => (at.clone(), count.clone()).prop_map(|(a, n)| Call::Unmap(a, n)),
        2 => (at.clone(), count.clone(), protection).prop_map(|(a, n, p)| Call::Protect(a, n, p)),
        3 => (at.clone(), count.clone(), at.clone(), any::<bool>())
            .prop_map(|(a, n, to, keep)| Call::Move(a, n, to, keep)),
        1 => (at.clone(), count.clone()).prop_map(|(a, n)| Call::Drop(a, n)),
        1 => (at.clone(), count).prop_map(|(a, n)| Call::Populate(a, n)),
        6 => (at.clone(), 1..u64::MAX).prop_map(|(a, v)| Call::Write(a, v)),
        3 => at.prop_map(Call::Read),
        1 => Just(Call::Fork),
    ]
}

/// The rights and contents of each page.
#[derive(Clone, Default, Debug)]
struct Model(BTreeMap<u64, (Protection, u64)>);

impl Model {
    fn read(&self, at: u64) -> AccessResult<u64> {
        match self.0.get(&at) {
            None => Err(NOT_MAPPED),
            Some((protection, _)) if protection.is_empty() => Err(DENIED),
            Some((_, value)) => Ok(*value),
        }
    }

    fn write(&mut self, at: u64, new: u64) -> AccessResult<()> {
        match self.0.get_mut(&at) {
            None => Err(NOT_MAPPED),
            Some((protection, _)) if !protection.contains(Protection::WRITE) => Err(DENIED),
            Some((_, value)) => {
                *value = new;
                Ok(())
            }
        }
    }

    /// How many pages from `at` are mapped without a hole, up to `count`.
    fn whole(&self, at: u64, count: u64) -> u64 {
        (0..count).take_while(|page| self.0.contains_key(&(at + page))).count() as u64
    }
}

fn clip(at: u64, count: u64) -> u64 {
    count.min(WINDOW_PAGES - at)
}

fn addr_of(at: u64) -> VirtAddr {
    VirtAddr(WINDOW + at * PAGE)
}

fn apply(
    call: &Call,
    space: &HostSpace<'_, Invented3>,
    program: &HostProgram<'_, '_, Invented3>,
    model: &mut Model,
) -> Result<(), TestCaseError> {
    match *call {
        Call::Map(at, count, protection) => {
            let count = clip(at, count);
            map_at(space, addr_of(at).0, count * PAGE, protection);
            model.0.extend((at..at + count).map(|page| (page, (protection, 0))));
        }
        Call::Unmap(at, count) => {
            space.munmap(addr_of(at), clip(at, count) * PAGE).unwrap();
            model.0.retain(|page, _| !(at..at + count).contains(page));
        }
        Call::Protect(at, count, protection) => {
            let count = clip(at, count);
            let whole = model.whole(at, count);
            let result = space.mprotect(addr_of(at), count * PAGE, protection, false);
            prop_assert_eq!(result.is_ok(), whole == count);
            for page in at..at + whole {
                if let Some(entry) = model.0.get_mut(&page) {
                    entry.0 = protection;
                }
            }
        }
        Call::Move(at, count, to, keep) => {
            let count = clip(at, count).min(WINDOW_PAGES - to);
            if at < to + count && to < at + count {
                return Ok(());
            }
            let flags = if keep { MOVE | RemapFlags::DONTUNMAP } else { MOVE };
            let result = space.mremap(addr_of(at), count * PAGE, count * PAGE, flags, addr_of(to));
            prop_assert_eq!(result.is_ok(), model.0.contains_key(&at), "{:?}", result);
            if result.is_err() {
                return Ok(());
            }
            let pages: Vec<_> = (at..at + count).map(|page| (page, model.0.get(&page).copied())).collect();
            // A gap at the end of the source leaves the target there alone, as does one in between.
            for (page, entry) in pages {
                let Some((protection, value)) = entry else { continue };
                model.0.insert(to + (page - at), (protection, value));
                if keep {
                    model.0.insert(page, (protection, 0));
                } else {
                    model.0.remove(&page);
                }
            }
        }
        Call::Drop(at, count) => {
            let count = clip(at, count);
            let result = space.madvise(addr_of(at), count * PAGE, Advice::DontNeed);
            prop_assert_eq!(result.is_ok(), model.whole(at, count) == count);
            model.0.range_mut(at..at + count).for_each(|(_, entry)| entry.1 = 0);
        }
        Call::Populate(at, count) => {
            let _ = space.madvise(addr_of(at), clip(at, count) * PAGE, Advice::PopulateWrite);
        }
        Call::Write(at, value) => {
            prop_assert_eq!(program.write_u64(addr_of(at), value), model.write(at, value));
        }
        Call::Read(at) => prop_assert_eq!(program.read_u64(addr_of(at)), model.read(at)),
        Call::Fork => drop(space.fork().unwrap()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_on_an_invented_format_follow_the_model(calls in prop::collection::vec(any_call(), 1..120)) {
        let machine: Machine<Invented3> = Setup::mib(8).build();
        let cpu = machine.vcpu(0).unwrap();
        let before = in_use(&machine);
        let space = machine.memory().create_space().unwrap();
        let mut model = Model::default();
        {
            let program = cpu.program(&space);
            for call in &calls {
                apply(call, &space, &program, &mut model)?;
                prop_assert_eq!(machine.audit(), vec![], "after {:?}", call);
            }
            for at in 0..WINDOW_PAGES {
                prop_assert_eq!(program.read_u64(addr_of(at)), model.read(at), "page {}", at);
            }
        }
        drop(space);
        prop_assert_eq!(machine.audit(), vec![]);
        prop_assert_eq!(in_use(&machine), before);
    }
}
