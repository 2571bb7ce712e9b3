//! Folios of the PMD's order in the `memory.stat` of memcgs.

use crate::common::*;
use crate::large::{AREA, set};
use quire_mm::proc::memcg_file;

const HUGE: u64 = 512;

/// `file`, `shmem`, `file_thp` and `shmem_thp` of a memcg, in pages.
fn counted(machine: &Machine, folder: &str) -> [u64; 4] {
    let mut text = String::new();
    memcg_file(machine.memory(), &format!("{folder}/memory.stat"), None, &mut text).unwrap();
    ["file", "shmem", "file_thp", "shmem_thp"].map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
        value.parse::<u64>().unwrap() / PAGE
    })
}

/// A machine with so many slots, and shared memory in folios of 2 MiB; two memcgs, and a program in the lower
/// one that has written two such folios.
fn with_two_folios(
    machine: &Machine,
) -> (Vcpu, HostSpace<'_>, (MemcgId, MemcgId), File<'_, HostPlatform>, VirtAddr) {
    set(machine, "shmem_enabled", "always");
    let above = memcg(machine, "above", &[]);
    let below = machine.memory().create_memcg(above, "below").unwrap();
    let (cpu, space) = cpu_and_space(machine);
    space.set_memcg(below).unwrap();
    let file = machine.memory().create_shmem((), 2 * HUGE * PAGE).unwrap();
    let request = file_request(0, 2 * HUGE, RW, MapFlags::SHARED);
    let area = space.mmap_file(&request.at(AREA, MapFlags::SHARED | MapFlags::FIXED), &file).unwrap();
    (0..2).for_each(|nth| write(&cpu, &space, page(area, nth * HUGE), nth + 1));
    (cpu, space, (above, below), file, area)
}

#[test]
fn huge_folios_of_shared_memory_are_counted_until_they_are_split_paged_out_or_gone() {
    let machine = swapping(64, 1, 4096);
    let (cpu, space, _, file, area) = with_two_folios(&machine);
    let check = |pages: u64, huge: u64, what: &str| {
        for folder in ["above/below", "above", ""] {
            let [.., files, shmem] = counted(&machine, folder);
            assert_eq!((counted(&machine, folder)[1], files, shmem), (pages, 0, huge), "{what}: {folder:?}");
        }
        assert_audit(&machine);
    };
    check(2 * HUGE, 2 * HUGE, "two came");
    space.madvise(area, HUGE * PAGE, Advice::PageOut).unwrap();
    check(HUGE, HUGE, "one is paged out");
    assert_eq!(read(&cpu, &space, area), 1);
    check(2 * HUGE, 2 * HUGE, "it came back in one piece");
    file.punch(3 * PAGE..4 * PAGE, |_| Ok(())).unwrap();
    check(2 * HUGE - 1, HUGE, "a hole divided one");
    file.set_size((HUGE + 4) * PAGE).unwrap();
    check(HUGE + 3, 0, "the end divided the other");
    file.set_size(2 * HUGE * PAGE).unwrap();
    file.punch(HUGE * PAGE..2 * HUGE * PAGE, |_| Ok(())).unwrap();
    write(&cpu, &space, page(area, HUGE), 2);
    check(2 * HUGE - 1, HUGE, "a new one came");
    file.set_size(0).unwrap();
    check(0, 0, "all is gone");
}

#[test]
fn one_that_is_paged_out_in_pages_is_no_huge_folio_any_more() {
    let machine = swapping(64, 1, 3 * HUGE);
    let (cpu, space, (_, below), file, area) = with_two_folios(&machine);
    // No block of slots is left: every second one is taken by private memory.
    let pages = 3 * HUGE;
    space.set_memcg(MemcgId::ROOT).unwrap();
    let private = map_filled(&cpu, &space, 2 * GIB, pages, 1);
    space.madvise(private, pages * PAGE, Advice::PageOut).unwrap();
    (0..pages).step_by(2).for_each(|at| write(&cpu, &space, page(private, at), at));
    space.set_memcg(below).unwrap();
    space.madvise(area, HUGE * PAGE, Advice::PageOut).unwrap();
    assert_eq!(file.figures().swapped, HUGE);
    assert_eq!(counted(&machine, "above/below"), [HUGE, HUGE, 0, HUGE]);
    assert_audit(&machine);
    assert_eq!(read(&cpu, &space, area), 1);
    assert_eq!(counted(&machine, "above/below")[3], HUGE, "a page came back");
}

/// Whether they are on lists or, before there is a swap device, on none.
#[test]
fn huge_folios_of_a_removed_memcg_count_in_the_one_above() {
    for slots in [0, 4096] {
        let machine = if slots == 0 { machine(64, 1) } else { swapping(64, 1, slots) };
        let (_cpu, space, (above, below), file, _) = with_two_folios(&machine);
        space.set_memcg(MemcgId::ROOT).unwrap();
        machine.memory().remove_memcg(below).unwrap();
        machine.memory().swap().reparenting().free_numbers();
        machine.memory().memcgs().lifecycle().sweep();
        assert_eq!(machine.memory().memcgs().charges().charged(above), 2 * HUGE, "they are its own");
        assert_eq!(counted(&machine, "above"), [2 * HUGE, 2 * HUGE, 0, 2 * HUGE]);
        assert_audit(&machine);
        file.punch(0..PAGE, |_| Ok(())).unwrap();
        assert_eq!(counted(&machine, "above"), [2 * HUGE - 1, 2 * HUGE - 1, 0, HUGE]);
        file.set_size(0).unwrap();
        assert_eq!(counted(&machine, "above"), [0; 4]);
        assert_audit(&machine);
    }
}
