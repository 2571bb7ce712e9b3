//! Private memory that is charged to a memcg when that is removed: it goes to the memcg above.

use crate::common::*;
use quire_host::swap::HostRam;
use quire_memcg::DeferredOf;

const PAGES: u64 = 64;

/// A memcg below another one.
fn nested(machine: &Machine) -> (MemcgId, MemcgId) {
    let above = memcg(machine, "above", &[]);
    let memory = machine.memory();
    (above, memory.create_memcg(above, "below").unwrap())
}

/// Its program goes to the root, and it is removed.
fn leave_and_remove(machine: &Machine, space: &HostSpace<'_>, memcg: MemcgId) {
    space.set_memcg(MemcgId::ROOT).unwrap();
    machine.memory().remove_memcg(memcg).unwrap();
    // As the next creation or removal does.
    machine.memory().memcgs().lifecycle().sweep();
}

fn is_there(machine: &Machine, memcg: MemcgId) -> bool {
    let mut is_there = false;
    machine.memory().memcgs().tree().for_each_in_subtree(MemcgId::ROOT, |id| is_there |= id == memcg);
    is_there
}

/// Makes so many pages of a memcg active.
fn activate(machine: &Machine, memcg: MemcgId, pages: usize) {
    lists(machine, memcg);
    let mut some = Vec::new();
    machine.memory().memcgs().audit().for_each_listed(|head, id, list| {
        if id == memcg && list == LruList::InactiveAnon && some.len() < pages {
            some.push(head);
        }
    });
    let pin = machine.memory().platform().pin();
    some.into_iter().for_each(|head| assert!(machine.memory().memcgs().folios().activate(&pin, head)));
}

fn lists(machine: &Machine, memcg: MemcgId) -> [u64; LruList::COUNT] {
    machine.memory().memcgs().folios().take_in(None);
    machine.memory().memcgs().folios().sizes(memcg, NodeId::FIRST)
}

/// Each page comes to the list of the same name, and as old as it was among its own: the oldest is the first
/// to be reclaimed.
#[test]
fn pages_come_to_the_same_lists_in_the_same_order() {
    let machine = Setup::mib(16).overcommit().build();
    swap_on(&machine, HostRam::new(256).unwrap());
    let cpu = machine.vcpu(0).unwrap();
    let (above, below) = nested(&machine);
    let space = space_in(&machine, below);
    let area = map_filled(&cpu, &space, GIB, PAGES, 1);
    space.mlock(area, 8 * PAGE, false).unwrap();
    activate(&machine, below, 16);
    let before = lists(&machine, below);
    let of = |list: LruList| before[list as usize];
    assert_eq!([LruList::Unevictable, LruList::ActiveAnon, LruList::InactiveAnon].map(of), [8, 16, 40]);
    let order = |memcg| {
        let mut order = Vec::new();
        machine.memory().memcgs().audit().for_each_listed(|head, id, list| {
            if id == memcg {
                order.push((list as usize, head));
            }
        });
        order
    };
    let listed = order(below);
    leave_and_remove(&machine, &space, below);
    assert_eq!((lists(&machine, above), order(above)), (before, listed));
    assert!(!is_there(&machine, below));
    assert_audit(&machine);
    // Freeing them uncharges the memcg above.
    space.munmap(area, PAGES * PAGE).unwrap();
    assert_eq!((usage(&machine, above), swap_usage(&machine, above)), (0, 0));
}

/// A page that was swapped in and still has its slot: both go, and both are freed there.
#[test]
fn a_page_goes_with_its_slot() {
    let machine = Setup::mib(16).overcommit().build();
    swap_on(&machine, HostRam::disk(256).unwrap());
    let cpu = machine.vcpu(0).unwrap();
    let (above, below) = nested(&machine);
    let space = space_in(&machine, below);
    let area = map_filled(&cpu, &space, GIB, PAGES, 1);
    space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
    // Its entries name the slots on.
    let child = space.fork().unwrap();
    child.set_memcg(MemcgId::ROOT).unwrap();
    assert_filled(&cpu, &space, area, 0..PAGES, 1);
    let has = (usage(&machine, below), swap_usage(&machine, below));
    assert_eq!(has, (PAGES, PAGES));
    leave_and_remove(&machine, &space, below);
    assert_eq!((usage(&machine, above), swap_usage(&machine, above)), has);
    assert!(!is_there(&machine, below));
    assert_audit(&machine);
    machine.memory().reclaim(above, 4 * PAGES);
    assert!(usage(&machine, above) < PAGES && swap_usage(&machine, above) == PAGES);
    drop(child);
    space.munmap(area, PAGES * PAGE).unwrap();
    assert_eq!((usage(&machine, above), swap_usage(&machine, above)), (0, 0));
}

/// Folios that wait to be split wait in the queue of the memcg above.
#[test]
fn folios_that_wait_to_be_split_change_the_queue() {
    let machine = Setup::mib(16).overcommit().folios(orders(&[4])).build();
    swap_on(&machine, HostRam::new(256).unwrap());
    let cpu = machine.vcpu(0).unwrap();
    let (above, below) = nested(&machine);
    let space = space_in(&machine, below);
    let area = map_filled(&cpu, &space, GIB, PAGES, 1);
    space.madvise(area, PAGE, Advice::DontNeed).unwrap();
    space.madvise(page(area, 16), PAGE, Advice::DontNeed).unwrap();
    let waiting = |memcg| machine.memory().memcgs().splits().waiting_of(DeferredOf::Memcg(memcg));
    assert_eq!((waiting(below), waiting(above)), (2, 0));
    let counted = folios(&machine, 4, FolioCounter::SplitDeferred);
    leave_and_remove(&machine, &space, below);
    assert_eq!((waiting(below), waiting(above)), (0, 2));
    assert_eq!(folios(&machine, 4, FolioCounter::SplitDeferred), counted, "they were counted before");
    assert_audit(&machine);
    assert_eq!(split_deferred(&machine), 2, "a page of each is freed");
    assert_eq!(usage(&machine, above), PAGES - 2);
    assert_audit(&machine);
}

/// The same of folios that have their slots still.
#[test]
fn folios_that_wait_to_be_split_and_have_slots_change_the_queue() {
    let machine = Setup::mib(16).overcommit().folios(orders(&[4])).build();
    swap_on(&machine, HostRam::disk(256).unwrap());
    let cpu = machine.vcpu(0).unwrap();
    let (above, below) = nested(&machine);
    let space = space_in(&machine, below);
    let area = map_filled(&cpu, &space, GIB, PAGES, 1);
    space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
    // Its entries name the slots on.
    let child = space.fork().unwrap();
    child.set_memcg(MemcgId::ROOT).unwrap();
    assert_filled(&cpu, &space, area, 0..PAGES, 1);
    space.madvise(area, PAGE, Advice::DontNeed).unwrap();
    space.madvise(page(area, 16), PAGE, Advice::DontNeed).unwrap();
    let waiting = |memcg| machine.memory().memcgs().splits().waiting_of(DeferredOf::Memcg(memcg));
    assert_eq!((waiting(below), waiting(above)), (2, 0));
    let has = (usage(&machine, below), swap_usage(&machine, below));
    assert_eq!(has, (PAGES, PAGES));
    leave_and_remove(&machine, &space, below);
    assert_eq!((waiting(below), waiting(above)), (0, 2));
    assert_eq!((usage(&machine, above), swap_usage(&machine, above)), has);
    assert!(!is_there(&machine, below));
    assert_audit(&machine);
}

/// Pages of a file are on no list. They go when what is left of removed memcgs is looked for.
#[test]
fn pages_of_files_go_too() {
    let machine = Setup::mib(16).overcommit().build();
    let cpu = machine.vcpu(0).unwrap();
    let (above, below) = nested(&machine);
    let space = space_in(&machine, below);
    let (backing, _) = MemoryFile::new(vec![1; (PAGES * PAGE) as usize]);
    let file = machine.memory().create_file(backing, PAGES * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, PAGES, READ, MapFlags::SHARED), &file).unwrap();
    (0..PAGES).for_each(|at| _ = read(&cpu, &space, page(area, at)));
    let file_pages = |memcg| machine.memory().memcgs().counters().stats(memcg)[MemcgStat::File as usize];
    leave_and_remove(&machine, &space, below);
    assert!(is_there(&machine, below));
    machine.memory().swap().reparenting().free_numbers();
    assert!(!is_there(&machine, below));
    assert_eq!((usage(&machine, above), file_pages(above)), (PAGES, PAGES as i64));
    assert_audit(&machine);
    drop(space);
    drop(file);
    assert_eq!((usage(&machine, above), file_pages(above)), (0, 0));
}

/// Where a parent was removed, too, all goes to the first one above that is there.
#[test]
fn the_heir_is_the_first_one_above_that_was_not_removed() {
    let machine = Setup::mib(16).overcommit().build();
    let cpu = machine.vcpu(0).unwrap();
    let (above, between) = nested(&machine);
    let below = machine.memory().create_memcg(between, "low").unwrap();
    let space = space_in(&machine, below);
    // Before there is a swap device pages are on no list, and stay for now.
    let area = map_filled(&cpu, &space, GIB, PAGES, 1);
    leave_and_remove(&machine, &space, below);
    machine.memory().remove_memcg(between).unwrap();
    assert!(is_there(&machine, below) && is_there(&machine, between));
    machine.memory().swap().reparenting().free_numbers();
    (0..4).for_each(|_| machine.memory().memcgs().lifecycle().sweep());
    assert!(!is_there(&machine, below) && !is_there(&machine, between));
    assert_eq!(machine.memory().memcgs().charges().charged(above), PAGES);
    assert_audit(&machine);
    space.munmap(area, PAGES * PAGE).unwrap();
    assert_eq!(usage(&machine, above), 0);
}

/// A page that comes back soon after its slot went to another memcg, whose clock shows another time, was
/// evicted too soon all the same; one that comes back late was not.
#[test]
fn the_age_of_a_page_that_is_out_stays() {
    for is_late in [false, true] {
        let machine = Setup::mib(16).overcommit().build();
        swap_on(&machine, HostRam::new(4096).unwrap());
        let cpu = machine.vcpu(0).unwrap();
        let (above, below) = nested(&machine);
        let space = space_in(&machine, below);
        let other = space_in(&machine, above);
        // The clock of the memcg above is far ahead. A page is compared with what that has active.
        machine.memory().memcgs().folios().advance(above, NodeId::FIRST, 100_000);
        map_filled(&cpu, &other, GIB, 512, 1);
        activate(&machine, above, 512);
        let area = map_filled(&cpu, &space, GIB, PAGES, 1);
        machine.memory().reclaim(below, 3 * PAGES);
        assert!(swap_usage(&machine, below) > PAGES / 2);
        let out = swap_usage(&machine, below);
        leave_and_remove(&machine, &space, below);
        machine.memory().swap().reparenting().free_numbers();
        assert!(!is_there(&machine, below));
        assert!(swap_usage(&machine, above) >= out);
        if is_late {
            machine.memory().memcgs().folios().advance(above, NodeId::FIRST, 4096);
        }
        let activated = count(&machine, VmEvent::WorkingsetActivateAnon);
        space.set_memcg(above).unwrap();
        (0..PAGES).for_each(|at| _ = read(&cpu, &space, page(area, at)));
        let activated = count(&machine, VmEvent::WorkingsetActivateAnon) - activated;
        assert_eq!(activated > 0, !is_late, "{activated} of {out} were activated");
        assert_audit(&machine);
    }
}
