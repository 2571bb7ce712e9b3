//! Copy-on-write after fork: which process copies, which reuses the page, what a pin keeps.

use crate::common::*;

#[test]
fn the_last_owner_keeps_the_page() {
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).unwrap();
    let reused = || count(&machine, VmEvent::Pgreuse);
    let space = create_space(&machine).audited(&machine);
    let area = map_filled(&cpu, &space, GIB, 4, 0);
    let child = space.fork().unwrap();
    assert_eq!(anonymous_frames(&machine), 4);
    write(&cpu, &child, area, 10);
    assert_eq!((anonymous_frames(&machine), reused()), (5, 0));
    // Only the parent still has the old page.
    write(&cpu, &space, area, 11);
    assert_eq!((anonymous_frames(&machine), reused()), (5, 1));
    drop(child);
    fill(&cpu, &space, area, 1..4, 20);
    assert_eq!((anonymous_frames(&machine), reused()), (4, 4));
    assert_eq!(read(&cpu, &space, area), 11);
}

/// A page that both only read stays one page, and `mprotect` makes it writable for neither.
#[test]
fn a_shared_page_does_not_become_writable_by_a_change_of_protection() {
    let machine = machine(16, 1);
    let (cpu, space, area) = filled(&machine, 1, 1);
    let child = space.fork().unwrap();
    child.mprotect(area, PAGE, READ, false).unwrap();
    child.mprotect(area, PAGE, RW, false).unwrap();
    write(&cpu, &child, area, 2);
    assert_eq!((read(&cpu, &space, area), read(&cpu, &child, area)), (1, 2));
}

/// Hazard: a fork copies a pinned page at once, whichever process writes first.
#[test]
fn a_pinned_page_stays_the_parents() {
    let machine = machine(16, 1);
    let (cpu, space, area) = mapped(&machine, GIB, 2 * PAGE);
    write(&cpu, &space, area, 1);
    write(&cpu, &space, page(area, 1), 2);
    let pinned = space.pin_page(area, Access::Write).unwrap();
    let child = space.fork().unwrap();
    assert_eq!(anonymous_frames(&machine), 3);
    write(&cpu, &space, area, 3);
    let device = machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>();
    // SAFETY: the page is pinned, and no other thread runs.
    assert_eq!(unsafe { device.read() }, 3, "the program and its device see the same page");
    // SAFETY: the page is pinned, and no other thread runs.
    unsafe { device.write(4) };
    assert_eq!((read(&cpu, &space, area), read(&cpu, &child, area)), (4, 1));
    space.munmap(area, 2 * PAGE).unwrap();
    assert_audit(&machine);
    // SAFETY: the page is still pinned, and no other thread runs.
    assert_eq!(unsafe { device.read() }, 4, "a pinned page outlives its mapping");
    drop(pinned);
}

/// Hazard: what a device reads is the program's own page from then on.
#[test]
fn pinning_a_shared_page_copies_it_first() {
    let machine = machine(16, 1);
    let (cpu, space, area) = filled(&machine, 1, 1);
    let child = space.fork().unwrap();
    let pinned = space.pin_page(area, Access::Read).unwrap();
    assert_eq!(anonymous_frames(&machine), 2);
    write(&cpu, &space, area, 5);
    assert_eq!(device_reads(&machine, &pinned), 5);
    write(&cpu, &child, area, 6);
    assert_eq!((read(&cpu, &space, area), anonymous_frames(&machine)), (5, 2));
    drop(pinned);
}

/// Hazard: a page of a private file mapping that a device reads is shared by fork, and the first write gets a
/// copy.
#[test]
fn a_pinned_page_of_a_private_file_stays_the_parents() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = MapRequest { file: Some(MappedFile::new(1, 0)), ..MapRequest::anonymous(2 * PAGE, RW) };
    let area = space.mmap(&file).unwrap();
    // The mapping has an anon_vma, so that its pages are shared by fork.
    write(&cpu, &space, page(area, 1), 2);
    let pinned = space.pin_page(area, Access::Read).unwrap();
    let child = space.fork().unwrap();
    write(&cpu, &space, area, 3);
    assert_eq!(device_reads(&machine, &pinned), 3, "the program and its device see the same page");
    assert_eq!((read(&cpu, &child, area), read(&cpu, &child, page(area, 1))), (0, 2));
    drop(pinned);
}

/// Shared memory that was touched before the fork is one page for both.
#[test]
fn shared_memory_that_was_touched_is_shared_with_a_child() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let request = MapRequest::anonymous(4 * PAGE, RW).at(VirtAddr(GIB), MapFlags::FIXED | MapFlags::SHARED);
    let area = space.mmap(&request).unwrap();
    fill(&cpu, &space, area, 0..4, 0);
    let child = space.fork().unwrap();
    write(&cpu, &child, area, 7);
    write(&cpu, &space, page(area, 1), 8);
    assert_eq!((read(&cpu, &space, area), read(&cpu, &child, page(area, 1))), (7, 8));
}

/// More pages of a table are shared than a gather notes: dropping their contents takes several flushes,
/// unmapping them one.
#[test]
fn unmapped_shared_pages_are_flushed_in_a_table_that_stays() {
    let machine = machine(32, 1);
    let (cpu, space, area) = filled(&machine, 512, 1);
    let child = space.fork().unwrap();
    let other = space.fork().unwrap();
    child.madvise(page(area, 5), 400 * PAGE, Advice::DontNeed).unwrap();
    other.munmap(page(area, 1), 511 * PAGE).unwrap();
    assert_audit(&machine);
    for at in 0..512 {
        let dropped = (5..405).contains(&at);
        assert_eq!(read(&cpu, &child, page(area, at)), if dropped { 0 } else { at + 1 }, "page {at}");
        assert_eq!(read(&cpu, &space, page(area, at)), at + 1, "page {at}");
    }
    assert_eq!(read(&cpu, &other, area), 1);
    assert_eq!(other.figures().resident, PAGE);
}

/// Children of children, each writing some pages: each process sees what it wrote, or what there was when it
/// was forked.
#[test]
fn a_random_tree_of_processes_keeps_its_contents_apart() {
    let huge = |enabled, sizes: &[u8]| {
        let policy =
            HugePolicy::default().with_enabled(enabled).with_sizes(orders(sizes), SizeEnabled::Always);
        HugeConfig { policy, ..HugeConfig::default() }
    };
    let mut pages = Techniques::default();
    pages.gather = GatherTechnique::Pages;
    let all = huge(HugeEnabled::Always, &[2, 3, 4, 5, 6, 7, 8]);
    let configs = [
        MemoryConfig::default(),
        MemoryConfig { techniques: pages, ..MemoryConfig::default() },
        MemoryConfig { huge: huge(HugeEnabled::Never, &[2]), ..MemoryConfig::default() },
        MemoryConfig { huge: huge(HugeEnabled::Never, &[4, 6]), ..MemoryConfig::default() },
        MemoryConfig { huge: all, ..MemoryConfig::default() },
        MemoryConfig { huge: all, techniques: pages, ..MemoryConfig::default() },
    ];
    for seed in 1..=setting("QUIRE_SEEDS", 3) {
        for config in configs {
            println!("seed {seed}, {config:?}");
            random_tree(&mut Random(seed), config);
        }
    }
}

const PAGES: u64 = 700;

fn random_tree(random: &mut Random, config: MemoryConfig) {
    let machine: Machine = Setup::mib(64).memory(config).build();
    let (cpu, space) = cpu_and_space(&machine);
    // Over the border of two tables.
    let start = VirtAddr(GIB - 100 * PAGE);
    let mut processes = vec![Process::with_pages(space, start, PAGES)];
    for step in 0..1500 {
        let which = random.below(processes.len() as u64) as usize;
        let count = processes.len();
        let process = &mut processes[which];
        let at = random.below(PAGES);
        let len = (random.below(200) + 1).min(PAGES - at);
        let range = at..at + len;
        match random.below(100) {
            0..60 => process.write(&cpu, at, step + 1).unwrap(),
            60..85 => process.check(&cpu, at).unwrap(),
            85..90 if count < 12 => {
                let child = process.fork().unwrap();
                processes.push(child);
            }
            90..93 => process.call(Call::Advise(Advice::DontNeed), range).unwrap(),
            93..95 => {
                // Moved away and back.
                let away = (5 * GIB - start.0) / PAGE + random.below(1000);
                process.call(Call::move_to(away, len), range).unwrap();
                process.call(Call::move_to(at, len), away..away + len).unwrap();
            }
            95..97 => process.call(Call::Map(RW), range).unwrap(),
            97..99 => {
                process.call(Call::Protect(READ), range.clone()).unwrap();
                process.call(Call::Protect(RW), range).unwrap();
            }
            _ if count > 1 => drop(processes.swap_remove(which)),
            _ => {}
        }
        if step % 100 == 0 {
            assert_audit(&machine);
        }
    }
    processes.iter().for_each(|process| process.check_all(&cpu));
}
