//! Which CPUs a flush reaches, and what those see that it leaves out. One thread drives all CPUs, in paranoid
//! mode.
use crate::common::*;

const BASE: VirtAddr = VirtAddr((1 << 39) - 8 * PAGE);

fn vcpus(machine: &Machine) -> Vec<Vcpu> {
    let cpus = machine.memory().platform().cpu_count();
    (0..cpus).map(|number| machine.vcpu(number).unwrap()).collect()
}

fn space(machine: &Machine) -> HostSpace<'_> {
    create_space(machine)
}

/// Leaves the CPU without a space.
fn idle(machine: &Machine, cpu: &Vcpu) {
    cpu.run(|| machine.memory().spaces().deactivate(&machine.memory().platform().pin()));
}

/// Each of the CPUs writes `value` to a page.
#[track_caller]
fn all_write(cpus: &[Vcpu], space: &HostSpace<'_>, addr: VirtAddr, value: u64) {
    cpus.iter().for_each(|cpu| write(cpu, space, addr, value));
}

/// What each of them reads there.
#[track_caller]
fn assert_all_read(cpus: &[Vcpu], space: &HostSpace<'_>, addr: VirtAddr, expected: AccessResult<u64>) {
    cpus.iter().for_each(|cpu| assert_eq!(cpu.program(space).read_u64(addr), expected));
}

/// What a call sent to other CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sent {
    shootdowns: u64,
    interrupts: u64,
}

const NOTHING: Sent = Sent { shootdowns: 0, interrupts: 0 };

/// What `action` sends. The machine's own count and those by cause must agree.
#[track_caller]
fn sent(machine: &Machine, action: impl FnOnce()) -> Sent {
    let read = || {
        let host = machine.memory().platform().counters();
        let sum = |event: fn(FlushCause) -> VmEvent| -> u64 {
            FlushCause::ALL.iter().map(|&cause| count(machine, event(cause))).sum()
        };
        let received = host.targets_inside + host.targets_by_proxy;
        [
            [count(machine, VmEvent::NrTlbRemoteFlush), host.shootdowns, sum(FlushCause::shootdowns)],
            [count(machine, VmEvent::NrTlbRemoteFlushReceived), received, sum(FlushCause::interrupts)],
        ]
    };
    let before = read();
    action();
    let after = read();
    let [shootdowns, interrupts] = [0, 1].map(|which| {
        let grown: Vec<u64> =
            after[which].iter().zip(before[which]).map(|(after, before)| after - before).collect();
        assert_eq!(grown, [grown[0]; 3], "Linux's count, the machine's, and the sum over the causes");
        grown[0]
    });
    Sent { shootdowns, interrupts }
}

/// A process of one thread that the scheduler migrates interrupts no other CPU, whatever it does.
#[test]
fn a_space_that_moves_from_cpu_to_cpu_interrupts_no_cpu() {
    let machine = machine(16, 4);
    let (cpus, one, other) = (vcpus(&machine), space(&machine), space(&machine));
    map_at(&other, BASE.0, PAGE, RW);
    let moves = sent(&machine, || {
        for round in 0..12u64 {
            let cpu = &cpus[round as usize % 4];
            let program = cpu.program(&one);
            cpu.run(|| map_at(&one, BASE.0, 16 * PAGE, RW));
            for at in 0..16 {
                assert_eq!(program.read_u64(page(BASE, at)), Ok(0), "what an earlier round left");
                program.write_u64(page(BASE, at), round + 1).unwrap();
            }
            cpu.run(|| one.mprotect(BASE, 8 * PAGE, READ, false)).unwrap();
            assert_eq!(program.write_u64(BASE, 1), Err(DENIED));
            cpu.run(|| one.madvise(page(BASE, 8), 4 * PAGE, Advice::DontNeed)).unwrap();
            assert_eq!(program.read_u64(page(BASE, 8)), Ok(0));
            cpu.run(|| one.munmap(page(BASE, 12), 4 * PAGE)).unwrap();
            assert_eq!(program.read_u64(page(BASE, 12)), Err(NOT_MAPPED));
            // The CPU runs something else: another process, or nothing.
            if round % 2 == 0 {
                cpu.program(&other).write_u64(BASE, round).unwrap();
            } else {
                idle(&machine, cpu);
            }
            assert_audit(&machine);
        }
    });
    assert_eq!(moves, NOTHING);
    assert!(count(&machine, VmEvent::TlbCpuSpared) > 0);
}

/// One call, one shootdown: whatever its size, and however many mappings and tables it removes.
#[test]
fn an_unmapping_of_any_size_on_two_cpus_sends_one_shootdown() {
    let machine = machine(32, 3);
    let (cpus, space) = (vcpus(&machine), space(&machine));
    for pages in [1, 2, 33, 34, 600, 1500] {
        map_at(&space, BASE.0, pages * PAGE, RW);
        if pages > 2 {
            // Three mappings.
            space.mprotect(page(BASE, 1), PAGE, READ, false).unwrap();
        }
        for at in (0..pages).filter(|&at| pages <= 2 || at != 1) {
            all_write(&cpus[..2], &space, page(BASE, at), at);
        }
        let unmapped = sent(&machine, || {
            cpus[1].run(|| space.munmap(BASE, pages * PAGE)).unwrap();
        });
        assert_eq!(unmapped, Sent { shootdowns: 1, interrupts: 1 }, "{pages} pages");
        assert_all_read(&cpus[..2], &space, page(BASE, pages - 1), Err(NOT_MAPPED));
        assert_audit(&machine);
    }
    // From a CPU that does not run it, both are interrupted.
    map_at(&space, BASE.0, PAGE, RW);
    cpus[0].program(&space).write_u64(BASE, 1).unwrap();
    let unmapped = sent(&machine, || cpus[2].run(|| space.munmap(BASE, PAGE)).unwrap());
    assert_eq!(unmapped, Sent { shootdowns: 1, interrupts: 2 });
}

/// The same where it splits PMD leaves at both ends, and where a child shares all that is removed.
#[test]
fn an_unmapping_of_parts_of_large_leaves_sends_one_shootdown() {
    let machine = machine(64, 3);
    let (cpus, space) = (vcpus(&machine), space(&machine));
    const LARGE: VirtAddr = VirtAddr(1 << 30);
    for shared in [false, true] {
        map_at(&space, LARGE.0, 3 * MIB2, RW);
        space.madvise(LARGE, 3 * MIB2, Advice::HugePage).unwrap();
        for at in [0, 700, 1535] {
            all_write(&cpus[..2], &space, page(LARGE, at), at + 1);
        }
        assert_eq!(pmd_mapped(&machine), 3);
        let child = shared.then(|| space.fork().unwrap());
        assert_all_read(&cpus[..2], &space, page(LARGE, 1535), Ok(1536));
        let unmapped = sent(&machine, || {
            cpus[1].run(|| space.munmap(page(LARGE, 100), 1300 * PAGE)).unwrap();
        });
        assert_eq!(unmapped, Sent { shootdowns: 1, interrupts: 1 }, "shared: {shared}");
        assert_audit(&machine);
        assert_all_read(&cpus[..2], &space, page(LARGE, 100), Err(NOT_MAPPED));
        assert_all_read(&cpus[..2], &space, page(LARGE, 0), Ok(1));
        assert_all_read(&cpus[..2], &space, page(LARGE, 1535), Ok(1536));
        if let Some(child) = child {
            assert_eq!(cpus[2].program(&child).read_u64(page(LARGE, 700)), Ok(701));
        }
        // Small pages that are shared, more than are noted, at the end of a table that stays.
        let small = VirtAddr(2 << 30);
        map_at(&space, small.0, 400 * PAGE, RW);
        for at in 0..400 {
            all_write(&cpus[..2], &space, page(small, at), at);
        }
        let child = space.fork().unwrap();
        assert_all_read(&cpus[..2], &space, page(small, 399), Ok(399));
        let unmapped = sent(&machine, || {
            cpus[1].run(|| space.munmap(page(small, 3), 390 * PAGE)).unwrap();
        });
        assert_eq!(unmapped, Sent { shootdowns: 1, interrupts: 1 });
        assert_audit(&machine);
        assert_eq!(cpus[2].program(&child).read_u64(page(small, 200)), Ok(200));
        space.munmap(LARGE, 2 << 30).unwrap();
    }
    assert_audit(&machine);
}

/// The translations of the old place, its tables, and the rest of PMD leaves that are split: one shootdown
/// for all.
#[test]
fn a_move_of_any_size_sends_one_shootdown() {
    let machine = machine(64, 2);
    let (cpus, space) = (vcpus(&machine), space(&machine));
    const LARGE: VirtAddr = VirtAddr(1 << 30);
    const FAR: VirtAddr = VirtAddr(1 << 40);
    let pages = MIB2 / PAGE;
    for large in [false, true] {
        for (first, count, to) in [
            (0, 3 * pages, FAR),
            (0, 3 * pages, page(FAR, 5)),
            (0, pages, page(FAR, 1)),
            (pages, pages, FAR),
            (3, 1, FAR),
            (100, 1300, page(FAR, 100)),
            (700, 836, FAR),
            (pages - 1, 2, page(FAR, pages - 1)),
        ] {
            for kept in [RemapFlags::empty(), RemapFlags::DONTUNMAP] {
                let case = format!("{count} pages from {first} on to {to:?}, large: {large}, {kept:?}");
                map_at(&space, LARGE.0, 3 * MIB2, RW);
                let advice = if large { Advice::HugePage } else { Advice::NoHugePage };
                space.madvise(LARGE, 3 * MIB2, advice).unwrap();
                for cpu in &cpus {
                    fill(cpu, &space, LARGE, 0..3 * pages, 1);
                }
                let flags = MOVE | kept;
                let moved = sent(&machine, || {
                    let bytes = count * PAGE;
                    let moved = cpus[1].run(|| space.mremap(page(LARGE, first), bytes, bytes, flags, to));
                    assert_eq!(moved, Ok(to), "{case}");
                });
                assert_eq!(moved, Sent { shootdowns: 1, interrupts: 1 }, "{case}");
                assert_audit(&machine);
                for cpu in &cpus {
                    for at in 0..3 * pages {
                        let old = cpu.program(&space).read_u64(page(LARGE, at));
                        if !(first..first + count).contains(&at) {
                            assert_eq!(old, Ok(at + 1), "{case}");
                            continue;
                        }
                        assert_eq!(old, if kept.is_empty() { Err(NOT_MAPPED) } else { Ok(0) }, "{case}");
                        let new = page(to, at - first);
                        assert_eq!(cpu.program(&space).read_u64(new), Ok(at + 1), "{case}");
                        cpu.program(&space).write_u64(new, at + 1).unwrap();
                    }
                }
                assert_audit(&machine);
                space.munmap(to, count * PAGE).unwrap();
                space.munmap(LARGE, 3 * MIB2).unwrap();
            }
        }
    }
    assert_audit(&machine);
}

/// A change of the page at `BASE`, and the result of a read and a write afterwards.
type Change = (fn(&HostSpace<'_>), AccessResult<u64>, AccessResult<()>);

const CHANGES: [Change; 4] = [
    (|space| space.munmap(BASE, PAGE).unwrap(), Err(NOT_MAPPED), Err(NOT_MAPPED)),
    (|space| space.mprotect(BASE, PAGE, READ, false).unwrap(), Ok(7), Err(DENIED)),
    (|space| space.madvise(BASE, PAGE, Advice::DontNeed).unwrap(), Ok(0), Ok(())),
    (
        |space| {
            space.munmap(BASE, PAGE).unwrap();
            map_at(space, BASE.0, PAGE, RW);
        },
        Ok(0),
        Ok(()),
    ),
];

/// A CPU that ran another space during a flush flushes by itself when it returns, and only then. The flush
/// may be another CPU's or its own.
#[test]
fn a_cpu_that_returns_after_a_flush_sees_no_stale_translation() {
    for (asids, by, (change, read, write)) in [1, 2, 8]
        .into_iter()
        .flat_map(|asids| [0, 1].map(|by| (asids, by)))
        .flat_map(|(asids, by)| CHANGES.map(|change| (asids, by, change)))
    {
        let machine = Setup::mib(16).cpus(2).asids(asids).build();
        let (cpus, one, other) = (vcpus(&machine), space(&machine), space(&machine));
        map_at(&one, BASE.0, PAGE, RW);
        map_at(&other, page(BASE, 64).0, PAGE, RW);
        let programs = [cpus[0].program(&one), cpus[0].program(&other)];
        let elsewhere = || programs[1].write_u64(page(BASE, 64), 9).unwrap();
        let flushes = || count(&machine, VmEvent::TlbFlushOnTaskSwitch);
        programs[0].write_u64(BASE, 7).unwrap();
        elsewhere();
        let before = flushes();
        assert_eq!(programs[0].read_u64(BASE), Ok(7));
        elsewhere();
        assert_eq!(flushes(), before, "nothing was flushed meanwhile");

        assert_eq!(sent(&machine, || cpus[by].run(|| change(&one))), NOTHING);
        assert!(count(&machine, VmEvent::TlbCpuSpared) > 0);
        let mut old = 0;
        machine
            .memory()
            .platform()
            .for_each_cached_translation(&mut |slot| old += u32::from(slot.addr == BASE));
        assert_eq!(old, u32::from(asids > 1), "the TLB still holds what is dead");
        assert_audit(&machine);

        assert_eq!(programs[0].read_u64(BASE), read);
        assert_eq!(programs[0].write_u64(BASE, 10), write);
        assert_eq!(flushes(), before + 1);
        assert_audit(&machine);
    }
}

/// An exit takes the space off the CPUs that still have it, and interrupts none. What their TLBs hold under
/// its tag cannot be used: the next space with this tag sees nothing of it.
#[test]
fn an_exit_interrupts_no_cpu() {
    // No tag but the shared one, or one.
    for asids in [1, 2] {
        let machine = Setup::mib(16).cpus(4).asids(asids).build();
        let cpus = vcpus(&machine);
        let mut tag = None;
        for round in 0..3u64 {
            let one = space(&machine);
            assert_eq!(one.asid(), *tag.get_or_insert(one.asid()), "the tag is used again");
            map_at(&one, page(BASE, round % 2).0, PAGE, RW);
            for cpu in &cpus {
                assert_eq!(cpu.program(&one).read_u64(page(BASE, 1 - round % 2)), Err(NOT_MAPPED));
                cpu.program(&one).write_u64(page(BASE, round % 2), 7).unwrap();
            }
            idle(&machine, &cpus[2]);
            let before = machine.memory().platform().counters();
            assert_eq!(sent(&machine, || drop(one)), NOTHING);
            assert_eq!(machine.memory().platform().counters().local_flushes, before.local_flushes);
            assert_audit(&machine);
        }
    }
}

/// Each call counts under its own cause.
#[test]
fn shootdowns_are_counted_by_cause() {
    type Call = fn(&HostSpace<'_>);
    let calls: [(FlushCause, Call); 5] = [
        (FlushCause::Unmap, |space| space.munmap(BASE, PAGE).unwrap()),
        (FlushCause::Protect, |space| space.mprotect(BASE, PAGE, READ, false).unwrap()),
        (FlushCause::Discard, |space| space.madvise(BASE, PAGE, Advice::DontNeed).unwrap()),
        (FlushCause::Move, |space| {
            let to = page(BASE, 4);
            assert_eq!(space.mremap(BASE, PAGE, PAGE, MOVE, to), Ok(to));
        }),
        (FlushCause::CopyOnWrite, |space| {
            space.madvise(page(BASE, 1), PAGE, Advice::PopulateWrite).unwrap();
        }),
    ];
    for (cause, call) in calls {
        let machine = machine(16, 2);
        let (cpus, space) = (vcpus(&machine), space(&machine));
        // A neighbour in the same table, so that no table is freed.
        map_at(&space, BASE.0, 4 * PAGE, RW);
        for cpu in &cpus {
            cpu.program(&space).write_u64(BASE, 1).unwrap();
            assert_eq!(cpu.program(&space).read_u64(page(BASE, 1)), Ok(0));
        }
        let before = [cause.shootdowns(), cause.interrupts()].map(|event| count(&machine, event));
        assert_eq!(before, [0, 0]);
        assert_eq!(sent(&machine, || cpus[0].run(|| call(&space))), Sent { shootdowns: 1, interrupts: 1 });
        let after = [cause.shootdowns(), cause.interrupts()].map(|event| count(&machine, event));
        assert_eq!(after, [1, 1], "{cause:?}");
    }
}

/// Flushes that the calling CPU does for itself are counted as Linux counts them: whole spaces, and single
/// pages.
#[test]
fn local_flushes_are_counted_by_kind() {
    let machine = machine(16, 2);
    let (cpus, space) = (vcpus(&machine), space(&machine));
    let local =
        || [VmEvent::NrTlbLocalFlushAll, VmEvent::NrTlbLocalFlushOne].map(|event| count(&machine, event));
    for (pages, grown) in [(1, [0, 1]), (33, [0, 33]), (34, [1, 0])] {
        map_at(&space, BASE.0, (pages + 1) * PAGE, RW);
        for at in 0..pages {
            cpus[0].program(&space).write_u64(page(BASE, at), 1).unwrap();
        }
        let before = local();
        cpus[0].run(|| space.madvise(BASE, pages * PAGE, Advice::DontNeed)).unwrap();
        let after = local();
        assert_eq!([after[0] - before[0], after[1] - before[1]], grown, "{pages} pages");
    }
}

/// Hazard: a pin of another machine, which has more CPUs, is taken for one of this machine's.
#[test]
fn a_pin_of_another_machine_is_not_one_of_this() {
    let (small, large) = (machine(16, 1), machine(16, 4));
    let space = create_space(&small).audited(&small);
    let other = create_space(&large).audited(&large);
    let cpu = large.vcpu(3).unwrap();
    map_at(&space, GIB, PAGE, RW);
    map_at(&other, GIB, PAGE, RW);
    write(&cpu, &other, VirtAddr(GIB), 7);
    cpu.run(|| {
        let pin = large.memory().platform().pin();
        Space::activate(&space, &pin);
        small.memory().tick(&pin);
        small.memory().deactivate(&pin);
    });
    assert_eq!(read(&cpu, &other, VirtAddr(GIB)), 7, "the CPU runs what it ran before");
    let own = small.vcpu(0).unwrap();
    assert_eq!(read(&own, &space, VirtAddr(GIB)), 0);
}

/// Hazard: the same where the machines have as many CPUs, so that the CPU's number is no evidence. Their
/// spaces have different roots: otherwise the CPU would find the same tables.
#[test]
fn a_pin_of_a_machine_with_as_many_cpus_is_not_one_of_this() {
    let (here, there) = (machine(16, 4), machine(16, 4));
    // It moves the frames of what comes after.
    let _first = create_space(&there);
    let space = create_space(&here).audited(&here);
    let other = create_space(&there).audited(&there);
    assert_ne!(space.root(), other.root());
    let cpu = there.vcpu(3).unwrap();
    map_at(&space, GIB, PAGE, RW);
    map_at(&other, GIB, PAGE, RW);
    write(&cpu, &other, VirtAddr(GIB), 7);
    let own = here.vcpu(3).unwrap();
    write(&own, &space, VirtAddr(GIB), 8);
    cpu.run(|| {
        let pin = there.memory().platform().pin();
        Space::activate(&space, &pin);
        here.memory().tick(&pin);
        here.memory().deactivate(&pin);
    });
    assert_eq!(read(&cpu, &other, VirtAddr(GIB)), 7, "the CPU runs what it ran before");
    assert_eq!(read(&own, &space, VirtAddr(GIB)), 8);
}
