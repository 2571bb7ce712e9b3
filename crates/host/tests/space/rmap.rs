//! The rmap: what it finds of each page is compared with all tables of all spaces.

use crate::common::*;
use quire_frame::Kind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

type Format = X86_64Level4;
/// Places of a page: the space and the address.
type Places = Vec<(u64, u64)>;

/// A little below a border of tables.
const BASE: u64 = (1 << 39) - 16 * PAGE;

/// Every page that a program wrote to, with all places where it is mapped, read from the tables.
fn scan<'s>(machine: &Machine, spaces: impl IntoIterator<Item = &'s HostSpace<'s>>) -> BTreeMap<u64, Places> {
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
        machine.memory().spaces().rmap().for_each_map(pfn, |space, addr| places.push((space.get(), addr.0)));
    places.sort_unstable();
    (places, looked_at)
}

/// Panics unless the rmap finds every page where it is, and nowhere else. Returns how many pages there are.
#[track_caller]
fn assert_walks<'s>(machine: &Machine, spaces: impl IntoIterator<Item = &'s HostSpace<'s>>) -> usize {
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

fn write_at(cpu: &Vcpu, space: &HostSpace<'_>, addr: u64, value: u64) {
    cpu.program(space).write_u64(VirtAddr(addr), value).unwrap();
}

/// The frame that `space` has at `addr`.
fn frame_at(machine: &Machine, space: &HostSpace<'_>, addr: u64) -> Pfn {
    let all = scan(machine, [space]);
    Pfn(*all.iter().find(|(_, places)| places.iter().any(|&(_, at)| at == addr)).unwrap().0)
}

#[test]
fn pages_of_files_and_free_frames_are_found_nowhere() {
    let machine = machine(16, 1);
    let (cpu, space, _) = mapped(&machine, BASE, 2 * PAGE);
    write_at(&cpu, &space, BASE, 1);
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
    let (cpu, space) = cpu_and_space(&machine);
    let file = MappedFile::new(1, 7);
    let request = MapRequest { file: Some(file), ..MapRequest::anonymous(4 * PAGE, RW) };
    space.mmap(&request.at(VirtAddr(BASE), MapFlags::FIXED)).unwrap();
    cpu.program(&space).read_u64(VirtAddr(BASE + PAGE)).unwrap();
    for at in 0..3 {
        write_at(&cpu, &space, BASE + at * PAGE, 5);
    }
    assert_eq!(assert_walks(&machine, [&space]), 3);
}

/// Each forks a child, which writes, and exits: the anon_vmas that remain do not grow.
#[test]
fn a_chain_of_forks_whose_parents_exit_keeps_few_anon_vmas() {
    let machine = machine(32, 1);
    let cpu = machine.vcpu(0).unwrap();
    let mut space = create_space(&machine);
    for part in 0..3 {
        map_at(&space, BASE + 4 * part * PAGE, 2 * PAGE, RW);
        write_at(&cpu, &space, BASE + 4 * part * PAGE, part);
    }
    for generation in 0..500 {
        let child = space.fork().unwrap();
        write_at(&cpu, &child, BASE + generation % 3 * 4 * PAGE + PAGE, generation);
        space = child;
        assert!(anon_vmas(&machine) <= 9, "{} anon_vmas in generation {generation}", anon_vmas(&machine));
        if generation % 100 == 99 {
            assert_audit(&machine);
            assert_walks(&machine, [&space]);
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
    let mut chain = vec![create_space(&machine)];
    map_at(&chain[0], BASE, PAGE, RW);
    write_at(&cpu, &chain[0], BASE, 0);
    for generation in 1..500 {
        let child = chain.last().unwrap().fork().unwrap();
        write_at(&cpu, &child, BASE, generation);
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
    let shell = create_space(&machine);
    map_at(&shell, BASE, PAGE, RW);
    write_at(&cpu, &shell, BASE, 0);
    let session = shell.fork().unwrap();
    drop(shell);
    let daemon = session.fork().unwrap();
    drop(session);
    let worker = |number| {
        let worker = daemon.fork().unwrap();
        write_at(&cpu, &worker, BASE, number);
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
    let (cpu, space, _) = mapped(&machine, BASE, 8 * PAGE);
    assert_eq!(anon_vmas(&machine), 0);
    (0..8).for_each(|at| write_at(&cpu, &space, BASE + at * PAGE, at));
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

/// Pages of the test's range.
const PAGES: u64 = 32;

/// What a program does to a range of pages.
#[derive(Clone, Copy)]
enum Step {
    Map,
    Write,
    Unmap,
    Protect,
    Move,
    Grow,
    Drop,
    Fork,
    Exit,
}

/// How often it does each.
const STEPS: [(u64, Step); 9] = [
    (2, Step::Map),
    (4, Step::Write),
    (1, Step::Unmap),
    (2, Step::Protect),
    (2, Step::Move),
    (1, Step::Grow),
    (1, Step::Drop),
    (2, Step::Fork),
    (1, Step::Exit),
];

/// Most steps may fail, as those of programs may: only the state afterwards matters.
fn take(random: &mut Random, cpu: &Vcpu, processes: &mut Vec<Process<'_>>) {
    let nth = random.below(processes.len() as u64) as usize;
    let living = processes.len();
    let process = &mut processes[nth];
    let (at, pages) = (random.below(PAGES), 1 + random.below(9));
    let call = match random.weighted(&STEPS) {
        Step::Map => Call::Map(RW),
        Step::Write => {
            // Parts of the range may be read-only, or not mapped.
            return (at..at + pages).for_each(|at| _ = process.write(cpu, at, 1 + at));
        }
        Step::Unmap => Call::Unmap,
        Step::Protect => Call::Protect(random.pick(&[READ, RW])),
        Step::Move => {
            let keep = random.pick(&[RemapFlags::empty(), RemapFlags::DONTUNMAP]);
            let flags = MOVE | keep;
            Call::Remap { to: random.below(PAGES), pages, flags }
        }
        Step::Grow => Call::Remap { to: 0, pages: pages + 1 + random.below(5), flags: RemapFlags::MAYMOVE },
        Step::Drop => Call::Advise(Advice::DontNeed),
        Step::Fork if living < 6 => {
            let child = process.fork().unwrap();
            return processes.push(child);
        }
        Step::Exit if living > 1 => return drop(processes.swap_remove(nth)),
        Step::Fork | Step::Exit => return,
    };
    let result = process.call(call, at..at + pages);
    if result.is_err() {
        assert!(!matches!(call, Call::Map(_) | Call::Unmap), "{call:?}: {result:?}");
        process.reload(cpu);
    }
}

#[test]
fn any_program_leaves_every_page_where_the_rmap_finds_it() {
    let first = setting("QUIRE_SEED", 1);
    for seed in first..first + setting("QUIRE_SEEDS", 256) {
        println!("QUIRE_SEED={seed}");
        let mut random = Random(seed);
        let machine = machine(16, 1);
        let (cpu, space) = cpu_and_space(&machine);
        let mut processes = vec![Process::with_pages(space, VirtAddr(BASE), PAGES / 2)];
        for _ in 0..1 + random.below(79) {
            take(&mut random, &cpu, &mut processes);
            assert_walks(&machine, processes.iter().map(|process| &*process.space));
        }
        processes.iter().for_each(|process| process.check_all(&cpu));
        assert_audit(&machine);
        drop(processes);
        assert_eq!(anon_vmas(&machine), 0);
    }
}
