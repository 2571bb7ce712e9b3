//! Swapped pages of a memcg that was removed.

use crate::common::*;
use crate::swap_techniques::{assert_contents, contents, write_contents};
use quire_host::swap::HostRam;

const PAGES: u64 = MIB2 / PAGE;
const SLOTS: usize = 2 * PAGES as usize;

/// A program whose pages, of which some are zeros, are swapped out and charged to a memcg that was removed.
/// The program is in `home`.
fn swapped_out<'m>(machine: &'m Machine, cpu: &Vcpu, home: MemcgId) -> (HostSpace<'m>, VirtAddr, MemcgId) {
    let removed = memcg(machine, "removed", &[]);
    let space = space_in(machine, removed);
    let area = map_at(&space, GIB, MIB2, RW);
    write_contents(cpu, &space, area, PAGES);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, MIB2);
    assert_eq!(swap_usage(machine, removed), PAGES);
    space.set_memcg(home).unwrap();
    machine.memory().memcgs().lifecycle().remove(removed).unwrap();
    (space, area, removed)
}

/// Hazard: pages that come back are charged to the memcg, which was removed. It is kept in the tree as long
/// as programs elsewhere use them, and no limit holds for them.
#[test]
fn a_swap_in_charges_the_program_where_the_memcg_of_the_slot_was_removed() {
    for technique in SwapTechnique::ALL {
        for (huge, on_disk) in [(false, false), (false, true), (true, false), (true, true)] {
            let sizes = if huge { OrderSet::PMD } else { OrderSet::EMPTY };
            let policy = HugePolicy::MADVISE.with_sizes(sizes, SizeEnabled::Always);
            let setup = Setup::mib(32).reserve().overcommit().huge(policy);
            let machine = setup.with(|memory| memory.techniques.swap = technique).build();
            let device = if on_disk { HostRam::disk(SLOTS) } else { HostRam::new(SLOTS) };
            swap_on(&machine, device.unwrap());
            let cpu = machine.vcpu(0).unwrap();
            let memcgs = machine.memory().memcgs();
            let home = memcg(&machine, "home", &[]);
            let (space, area, removed) = swapped_out(&machine, &cpu, home);
            let how = format!("{technique:?}, huge: {huge}, on a disk: {on_disk}");
            assert_contents(&cpu, &space, area, PAGES);
            assert_eq!((usage(&machine, home), usage(&machine, removed)), (PAGES, 0), "{how}");
            assert_eq!(memcgs.charges().swap_usage(removed), 0, "{how}");
            let kept = SLOTS as u64 - free_slots(&machine);
            assert_eq!(memcgs.charges().swap_usage(home), kept, "{how}");
            let refaults = count(&machine, VmEvent::WorkingsetRefaultAnon);
            let counted = [home, removed]
                .map(|of| memcgs.counters().stats(of)[MemcgStat::WorkingsetRefaultAnon as usize]);
            assert_eq!(counted, [refaults.cast_signed(), 0], "{how}");
            assert!(refaults > 0, "{how}");
            assert_audit(&machine);
            // Its number is free soon.
            assert!((0..64).any(|nth| memcg(&machine, &nth.to_string(), &[]) == removed), "{how}");
            drop(space);
            assert_eq!((usage(&machine, home), swap_usage(&machine, home)), (0, 0), "{how}");
        }
    }
}

/// Hazard: the limit of the program's memcg does not hold for what it swaps in.
#[test]
fn what_is_swapped_in_for_a_removed_memcg_stays_within_the_programs_limit() {
    const LIMIT: u64 = 128;
    let machine = Setup::mib(32).reserve().overcommit().build();
    swap_on(&machine, HostRam::new(SLOTS).unwrap());
    let cpu = machine.vcpu(0).unwrap();
    let home = memcg(&machine, "home", &[(Limit::Max, LIMIT)]);
    let (space, area, removed) = swapped_out(&machine, &cpu, home);
    for at in 0..PAGES {
        assert_eq!(read(&cpu, &space, page(area, at)), contents(at));
        assert!(usage(&machine, home) <= LIMIT);
    }
    assert_eq!(usage(&machine, removed), 0);
}
