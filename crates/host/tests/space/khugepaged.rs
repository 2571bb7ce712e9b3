//! In which order khugepaged comes to the programs of a machine.

use crate::common::*;
use quire_space::khugepaged_totals;

const BASE: VirtAddr = VirtAddr(1 << 39);

/// Each new program has more memory than khugepaged scans in a step, and exits before the scan of it is over.
/// An old program has its turn all the same.
#[test]
fn short_lived_programs_do_not_keep_khugepaged_from_an_old_one() {
    let never = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let machine = Setup::mib(64).cpus(1).overcommit().huge(never).build::<X86_64Level4>();
    let (cpu, old) = cpu_and_space(&machine);
    let memory = machine.memory();
    map_filled(&cpu, &old, BASE.0, 512, 1);
    memory.huge().change(|policy| policy.with_enabled(HugeEnabled::Always));
    let mut young = create_space(&machine);
    let mut collapsed = 0;
    for _ in 0..8 {
        let next = create_space(&machine);
        map_at(&next, BASE.0, 32 * MIB2, RW);
        write(&cpu, &next, page(BASE, 5), 1);
        collapsed += memory.khugepaged_step().collapsed;
        // The program before this one exits.
        young = next;
    }
    drop(young);
    assert_eq!(collapsed, 1, "blocks that were collapsed");
    assert_filled(&cpu, &old, BASE, 0..512, 1);
}

/// A round that ends with the exit of the space that was being scanned, the last one of the list, is a full
/// scan.
#[test]
fn a_round_that_an_exit_ends_is_counted() {
    let machine = Setup::mib(16).cpus(1).overcommit().build::<X86_64Level4>();
    let memory = machine.memory();
    let rounds = || khugepaged_totals(memory.spaces()).0;
    memory.huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
    let spaces = [(); 3].map(|()| create_space(&machine));
    spaces.iter().for_each(|space| _ = map_at(space, BASE.0, PAGE, RW));
    let [oldest, middle, newest] = spaces;
    // The newest is scanned first, one with each step: a space, and a mapping that is skipped.
    assert_eq!(memory.khugepaged_step().scanned, 2);
    drop(middle);
    assert_eq!((memory.khugepaged_step().scanned, rounds()), (2, 1));
    assert_eq!((memory.khugepaged_step().scanned, rounds()), (2, 1));
    drop(oldest);
    assert_eq!((memory.khugepaged_step().scanned, rounds()), (2, 3));
    drop(newest);
    assert_eq!((memory.khugepaged_step().scanned, rounds()), (0, 3));
}

/// There are many processes without memory. A step visits as many as it may scan pages.
#[test]
fn a_step_visits_no_more_spaces_than_it_may_scan_pages() {
    let machine = Setup::mib(16).cpus(1).overcommit().build::<X86_64Level4>();
    let memory = machine.memory();
    memory.huge().set_khugepaged(KhugepagedSetting::PagesToScan, 10).unwrap();
    let _spaces = [(); 30].map(|()| create_space(&machine));
    let steps = [(); 3].map(|()| memory.khugepaged_step());
    assert_eq!(steps.map(|step| (step.scanned, step.rounds)), [(10, 0), (10, 0), (10, 1)]);
}

/// A step that may scan one page has used that up with the visit of a space, and scans a block all the same.
#[test]
fn a_step_of_one_page_gets_on() {
    let never = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let machine = Setup::mib(64).cpus(1).overcommit().huge(never).build::<X86_64Level4>();
    let (cpu, space) = cpu_and_space(&machine);
    let memory = machine.memory();
    map_filled(&cpu, &space, BASE.0, 1024, 1);
    memory.huge().change(|policy| policy.with_enabled(HugeEnabled::Always));
    memory.huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
    let steps = [(); 3].map(|()| memory.khugepaged_step());
    assert_eq!(steps.map(|step| (step.scanned, step.collapsed)), [(513, 1), (513, 1), (513, 0)]);
    assert_filled(&cpu, &space, BASE, 0..1024, 1);
}
