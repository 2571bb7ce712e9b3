//! The rmap: what it finds of each page is compared with all tables of all spaces.

use crate::common::{HostSpace, PAGE, READ, RW, assert_audit, in_use, machine, map_at};
use proptest::prelude::*;
use quire_arch::paging::X86_64Level4;
use quire_arch::{Entry, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::Kind;
use quire_host::{Machine, Vcpu};
use quire_mm::{Advice, MapFlags, MapRequest, RemapFlags};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

type Format = X86_64Level4;
/// Places of a page: the space and the address.
type Places = Vec<(u64, u64)>;

/// A little below a border of tables.
const BASE: u64 = (1 << 39) - 16 * PAGE;

/// Every page that a program wrote to, with all places where it is mapped, read from the tables.
fn scan(machine: &Machine, spaces: &[HostSpace<'_>]) -> BTreeMap<u64, Places> {
    let mut found = BTreeMap::new();
    for space in spaces {
        scan_table(machine, space.id().get(), space.root(), Format::root_level(), 0, &mut found);
    }
    found
}

fn scan_table(
    machine: &Machine,
    space: u64,
    table: Pfn,
    level: Level,
    start: u64,
    found: &mut BTreeMap<u64, Places>,
) {
    let entries = machine.memory().platform().direct_map(table).cast::<AtomicU64>();
    for index in 0..Format::entries(level) {
        // SAFETY: a table is a frame of entries, and the machine is quiet.
        let raw = unsafe { entries.add(index).as_ref() }.load(Ordering::Relaxed);
        let addr = start + index as u64 * Format::entry_bytes(level);
        match Format::decode(raw, level) {
            Entry::Table(below) => scan_table(machine, space, below, level.down().unwrap(), addr, found),
            Entry::Leaf(leaf)
                if !leaf.flags.contains(LeafFlags::SPECIAL)
                    && machine.memory().frames().known(leaf.pfn).kind() == Kind::Anonymous =>
            {
                found.entry(leaf.pfn.0).or_default().push((space, addr));
            }
            _ => {}
        }
    }
}

/// The places where the rmap finds a page, and how many mappings it looked at.
fn walk(machine: &Machine, pfn: Pfn) -> (Places, usize) {
    let mut places = Places::new();
    let looked_at =
        machine.memory().spaces().for_each_map(pfn, |space, addr| places.push((space.get(), addr.0)));
    places.sort_unstable();
    (places, looked_at)
}

/// Panics unless the rmap finds every page where it is, and nowhere else. Returns how many pages there are.
#[track_caller]
fn assert_walks(machine: &Machine, spaces: &[HostSpace<'_>]) -> usize {
    let all = scan(machine, spaces);
    for (&pfn, places) in &all {
        let mut places = places.clone();
        places.sort_unstable();
        assert_eq!(walk(machine, Pfn(pfn)).0, places, "frame {pfn}");
    }
    all.len()
}

fn anon_vmas(machine: &Machine) -> u64 {
    in_use(machine);
    quire_slab::cache_reports(machine.memory().frames())
        .find(|cache| cache.name == "anon_vma")
        .unwrap()
        .in_use
}

fn write(cpu: &Vcpu, space: &HostSpace<'_>, addr: u64, value: u64) {
    cpu.program(space).write_u64(VirtAddr(addr), value).unwrap();
}

/// The frame that `space` has at `addr`.
fn frame_at(machine: &Machine, space: &HostSpace<'_>, addr: u64) -> Pfn {
    let all = scan(machine, std::slice::from_ref(space));
    Pfn(*all.iter().find(|(_, places)| places.iter().any(|&(_, at)| at == addr)).unwrap().0)
}

#[test]
fn pages_of_files_and_free_frames_are_found_nowhere() {
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    map_at(&space, BASE, 2 * PAGE, RW);
    write(&cpu, &space, BASE, 1);
    let pfn = frame_at(&machine, &space, BASE);
    assert_eq!(walk(&machine, pfn), (vec![(space.id().get(), BASE)], 1));
    space.madvise(VirtAddr(BASE), PAGE, Advice::DontNeed).unwrap();
    assert_eq!(walk(&machine, pfn), (vec![], 0));
    assert_eq!(walk(&machine, space.root()), (vec![], 0), "a table");
    assert_eq!(walk(&machine, machine.memory().spaces().zero_page()), (vec![], 0));
    assert_eq!(walk(&machine, Pfn(u64::MAX)), (vec![], 0), "no frame at all");
}

#[test]
fn a_page_of_a_private_file_mapping_is_found_once_it_was_written_to() {
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let file = quire_mm::MappedFile::new(1, 7);
    let request = MapRequest { file: Some(file), ..MapRequest::anonymous(4 * PAGE, RW) };
    space.mmap(&request.at(VirtAddr(BASE), MapFlags::FIXED)).unwrap();
    cpu.program(&space).read_u64(VirtAddr(BASE + PAGE)).unwrap();
    for at in 0..3 {
        write(&cpu, &space, BASE + at * PAGE, 5);
    }
    assert_eq!(assert_walks(&machine, &[space]), 3);
}

/// Each forks a child, which writes, and exits: the anon_vmas that remain do not grow.
#[test]
fn a_chain_of_forks_whose_parents_exit_keeps_few_anon_vmas() {
    let machine = machine(32, 1);
    let cpu = machine.vcpu(0).unwrap();
    let mut space = machine.memory().create_space().unwrap();
    for part in 0..3 {
        map_at(&space, BASE + 4 * part * PAGE, 2 * PAGE, RW);
        write(&cpu, &space, BASE + 4 * part * PAGE, part);
    }
    for generation in 0..500 {
        let child = space.fork().unwrap();
        write(&cpu, &child, BASE + generation % 3 * 4 * PAGE + PAGE, generation);
        space = child;
        assert!(anon_vmas(&machine) <= 9, "{} anon_vmas in generation {generation}", anon_vmas(&machine));
        if generation % 100 == 99 {
            assert_audit(&machine);
            assert_walks(&machine, std::slice::from_ref(&space));
        }
    }
    drop(space);
    assert_eq!(anon_vmas(&machine), 0);
}

/// The same with all of them alive: each has an anon_vma of its own, and a page of the last is looked for in
/// one mapping.
#[test]
fn a_long_chain_of_living_forks_is_walked() {
    let machine = machine(64, 1);
    let cpu = machine.vcpu(0).unwrap();
    let mut chain = vec![machine.memory().create_space().unwrap()];
    map_at(&chain[0], BASE, PAGE, RW);
    write(&cpu, &chain[0], BASE, 0);
    for generation in 1..500 {
        let child = chain.last().unwrap().fork().unwrap();
        write(&cpu, &child, BASE, generation);
        chain.push(child);
    }
    assert_eq!(anon_vmas(&machine), 500);
    assert_eq!(assert_walks(&machine, &chain), 500);
    for space in &chain {
        assert_eq!(walk(&machine, frame_at(&machine, space, BASE)).1, 1);
    }
    assert_audit(&machine);
    // From the middle, so that anon_vmas without VMAs lie between others.
    for at in [250, 100, 300, 5, 490] {
        drop(chain.remove(at));
    }
    assert_eq!((anon_vmas(&machine), assert_walks(&machine, &chain)), (500, 495));
    assert_audit(&machine);
    chain.truncate(1);
    assert_eq!(anon_vmas(&machine), 1);
}

/// A parent that exits early leaves an anon_vma without VMAs. Its grandchildren must not share one for that.
#[test]
fn the_children_of_a_daemon_have_anon_vmas_of_their_own() {
    let machine = machine(32, 1);
    let cpu = machine.vcpu(0).unwrap();
    let shell = machine.memory().create_space().unwrap();
    map_at(&shell, BASE, PAGE, RW);
    write(&cpu, &shell, BASE, 0);
    let session = shell.fork().unwrap();
    drop(shell);
    let daemon = session.fork().unwrap();
    drop(session);
    let worker = |number| {
        let worker = daemon.fork().unwrap();
        write(&cpu, &worker, BASE, number);
        worker
    };
    let workers: Vec<_> = (0..50).map(worker).collect();
    let looked_at: usize =
        workers.iter().map(|worker| walk(&machine, frame_at(&machine, worker, BASE)).1).sum();
    assert!(looked_at <= 54, "{looked_at} mappings for 50 pages");
    assert_audit(&machine);
}

#[test]
fn an_anon_vma_is_freed_with_its_last_mapping() {
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    map_at(&space, BASE, 8 * PAGE, RW);
    assert_eq!(anon_vmas(&machine), 0);
    (0..8).for_each(|at| write(&cpu, &space, BASE + at * PAGE, at));
    space.munmap(VirtAddr(BASE + 2 * PAGE), PAGE).unwrap();
    space.mprotect(VirtAddr(BASE + 5 * PAGE), PAGE, READ, false).unwrap();
    assert_eq!(space.figures().mappings, 4);
    assert_eq!(anon_vmas(&machine), 1, "all parts have one");
    assert_audit(&machine);
    let child = space.fork().unwrap();
    assert_eq!(anon_vmas(&machine), 5);
    space.munmap(VirtAddr(BASE), 8 * PAGE).unwrap();
    assert_eq!(anon_vmas(&machine), 5, "the child's pages may be the parent's");
    assert_audit(&machine);
    child.munmap(VirtAddr(BASE), 8 * PAGE).unwrap();
    assert_eq!(anon_vmas(&machine), 0);
}

/// What a program does.
#[derive(Clone, Debug)]
enum Step {
    Map { at: u64, pages: u64 },
    Write { at: u64, pages: u64 },
    Unmap { at: u64, pages: u64 },
    Protect { at: u64, pages: u64, writable: bool },
    Move { at: u64, pages: u64, to: u64, keep: bool },
    Grow { at: u64, pages: u64, by: u64 },
    Drop { at: u64, pages: u64 },
    Fork,
    Exit,
}

/// Pages of the test's range.
const PAGES: u64 = 32;

fn step() -> impl Strategy<Value = Step> {
    let run = || (0..PAGES, 1..10_u64);
    prop_oneof![
        2 => run().prop_map(|(at, pages)| Step::Map { at, pages }),
        4 => run().prop_map(|(at, pages)| Step::Write { at, pages }),
        1 => run().prop_map(|(at, pages)| Step::Unmap { at, pages }),
        2 => (run(), any::<bool>())
            .prop_map(|((at, pages), writable)| Step::Protect { at, pages, writable }),
        2 => (run(), 0..PAGES, any::<bool>())
            .prop_map(|((at, pages), to, keep)| Step::Move { at, pages, to, keep }),
        1 => (run(), 1..6_u64).prop_map(|((at, pages), by)| Step::Grow { at, pages, by }),
        1 => run().prop_map(|(at, pages)| Step::Drop { at, pages }),
        2 => Just(Step::Fork),
        1 => Just(Step::Exit),
    ]
}

/// Most steps may fail, as those of programs may: only the state afterwards matters.
fn take(step: &Step, which: usize, cpu: &Vcpu, spaces: &mut Vec<HostSpace<'_>>) {
    let space = &spaces[which];
    let place = |at: u64| VirtAddr(BASE + at * PAGE);
    match *step {
        Step::Map { at, pages } => {
            map_at(space, place(at).0, pages * PAGE, RW);
        }
        Step::Write { at, pages } => {
            for page in at..at + pages {
                let _ = cpu.program(space).write_u64(place(page), page);
            }
        }
        Step::Unmap { at, pages } => space.munmap(place(at), pages * PAGE).unwrap(),
        Step::Protect { at, pages, writable } => {
            let protection = if writable { RW } else { READ };
            let _ = space.mprotect(place(at), pages * PAGE, protection, false);
        }
        Step::Move { at, pages, to, keep } => {
            let mut flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            flags.set(RemapFlags::DONTUNMAP, keep);
            let _ = space.mremap(place(at), pages * PAGE, pages * PAGE, flags, place(to));
        }
        Step::Grow { at, pages, by } => {
            let new = (pages + by) * PAGE_SIZE;
            let _ = space.mremap(place(at), pages * PAGE, new, RemapFlags::MAYMOVE, VirtAddr(0));
        }
        Step::Drop { at, pages } => {
            let _ = space.madvise(place(at), pages * PAGE, Advice::DontNeed);
        }
        Step::Fork => {
            if spaces.len() < 6 {
                spaces.push(space.fork().unwrap());
            }
        }
        Step::Exit => {
            if spaces.len() > 1 {
                drop(spaces.swap_remove(which));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_program_leaves_every_page_where_the_rmap_finds_it(
        steps in prop::collection::vec((step(), any::<prop::sample::Index>()), 1..80)
    ) {
        let machine = machine(16, 1);
        let cpu = machine.vcpu(0).unwrap();
        let mut spaces = vec![machine.memory().create_space().unwrap()];
        map_at(&spaces[0], BASE, PAGES / 2 * PAGE, RW);
        for (step, which) in &steps {
            let which = which.index(spaces.len());
            take(step, which, &cpu, &mut spaces);
            assert_walks(&machine, &spaces);
        }
        assert_audit(&machine);
        drop(spaces);
        prop_assert_eq!(anon_vmas(&machine), 0);
    }
}
