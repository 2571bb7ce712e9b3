//! Killed programs: once their memory was reaped, they get none again, and read no zeros where they had
//! written.

use crate::common::*;

const KILLED: AccessError<FaultError> = AccessError::Fault(FaultError::Killed);

/// Places of 2 MiB: a page of the first was written, the second was read, the third was left alone.
const WRITTEN: VirtAddr = VirtAddr(GIB);
const SEEN: VirtAddr = VirtAddr(GIB + MIB2);
const FRESH: VirtAddr = VirtAddr(GIB + 2 * MIB2);

/// A machine with folios of this order, by default of single pages.
fn machine_of(order: u8, zero_page: bool, tables: TablesTechnique) -> Machine {
    let enabled = if order == 9 { HugeEnabled::Always } else { HugeEnabled::Never };
    let policy = HugePolicy::default().with_enabled(enabled).with_zero_page(zero_page);
    let policy = if order == 4 { policy.with_sizes(orders(&[4]), SizeEnabled::Always) } else { policy };
    Setup::mib(64).overcommit().huge(policy).with(|memory| memory.techniques.tables = tables).build()
}

/// Calls `each` with every kind of program that was killed and reaped, and audits what it leaves.
fn for_each_killed(each: impl Fn(&Machine, &Vcpu, &HostSpace<'_>)) {
    for order in [0, 4, 9] {
        for zero_page in [false, true] {
            for tables in [TablesTechnique::Keep, TablesTechnique::default()] {
                let machine = machine_of(order, zero_page, tables);
                let (cpu, space, _) = mapped(&machine, WRITTEN.0, 3 * MIB2);
                write(&cpu, &space, page(WRITTEN, 5), 7);
                assert_eq!(read(&cpu, &space, SEEN), 0);
                space.oom().kill();
                space.oom().reap();
                let figures = space.figures();
                assert_eq!(figures.resident, 0, "order {order}");
                each(&machine, &cpu, &space);
                let after = space.figures();
                let less = after.page_tables <= figures.page_tables;
                assert!(after.resident == 0 && less, "memory is filled again, with order {order}");
            }
        }
    }
}

#[test]
fn a_killed_program_reads_no_zeros() {
    for_each_killed(|_, cpu, space| {
        for addr in [page(WRITTEN, 5), WRITTEN, SEEN, FRESH] {
            assert_eq!(cpu.program(space).read_u64(addr), Err(KILLED), "{addr:?}");
            assert_eq!(cpu.program(space).write_u64(addr, 1), Err(KILLED), "{addr:?}");
        }
    });
}

#[test]
fn a_killed_program_is_populated_and_pinned_no_more() {
    for_each_killed(|_, _, space| {
        for addr in [page(WRITTEN, 5), SEEN, FRESH] {
            for access in [Access::Read, Access::Write] {
                assert_eq!(space.pin_page(addr, access).unwrap_err(), FaultError::Killed);
                assert!(space.pin_page_fast(addr, access).is_none());
            }
            for advice in [Advice::PopulateRead, Advice::PopulateWrite] {
                assert!(space.madvise(addr, PAGE, advice).is_err());
            }
            assert!(space.mlock(addr, PAGE, false).is_err());
        }
    });
}

/// Hazard: a collapse fills the holes that the reaping left with zeros.
#[test]
fn a_killed_programs_memory_is_not_collapsed() {
    for_each_killed(|machine, _, space| {
        for addr in [WRITTEN, SEEN, FRESH] {
            assert!(space.madvise(addr, MIB2, Advice::Collapse).is_err());
        }
        machine.memory().huge().change(|policy| policy.with_enabled(HugeEnabled::Always));
        let set = machine.memory().spaces().huge();
        set.set_khugepaged(KhugepagedSetting::MaxPtesNone, 511).unwrap();
        assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    });
}

/// Hazard: a call makes tables for a large range, with the lock that the reaper needs.
#[test]
fn a_killed_program_gets_no_tables_for_guards() {
    for_each_killed(|_, _, space| {
        let installed = space.madvise(WRITTEN, 3 * MIB2, Advice::GuardInstall);
        assert_eq!(installed, Err(Error::NoFrames(AllocError::OutOfMemory)));
    });
}

/// Hazard: a child, which was not killed, reads zeros where its parent had written.
#[test]
fn a_killed_program_has_no_child() {
    for_each_killed(|_, _, space| {
        assert_eq!(space.fork().unwrap_err(), Error::NoFrames(AllocError::OutOfMemory));
    });
}

/// Hazard: khugepaged, or a call, fills with zeros what a reaper has removed so far of a block.
#[test]
fn a_program_is_not_collapsed_from_its_kill_on() {
    for killed in [false, true] {
        for by_call in [false, true] {
            let machine = machine_of(0, false, TablesTechnique::default());
            let (cpu, space, _) = mapped(&machine, WRITTEN.0, MIB2);
            write(&cpu, &space, page(WRITTEN, 5), 7);
            if killed {
                space.oom().kill();
            }
            let huge = machine.memory().huge();
            huge.change(|policy| policy.with_enabled(HugeEnabled::Always));
            huge.set_khugepaged(KhugepagedSetting::MaxPtesNone, 511).unwrap();
            let collapsed = if by_call {
                u64::from(space.madvise(WRITTEN, MIB2, Advice::Collapse).is_ok())
            } else {
                machine.memory().khugepaged_step().collapsed
            };
            assert_eq!(collapsed, u64::from(!killed), "by a call: {by_call}");
            assert_eq!(space.figures().resident, if killed { PAGE } else { MIB2 });
        }
    }
}
