//! Which program is killed when memory is exhausted, and what happens if its memory does not come back.

use crate::common::*;
use crate::disk::Disk;
use quire_frame::AllocRequest;
use quire_host::swap::HostRam;
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim};
use std::sync::mpsc;

/// Pages that the memcg may have.
pub(super) const LIMIT: u64 = 2048;

/// A machine that kills programs, and a memcg with a limit.
pub(super) fn killing_machine() -> (Machine, Vcpu, MemcgId) {
    let machine = Setup::mib(64).cpus(2).overcommit().with(|memory| memory.oom = OomAction::Kill).build();
    let memcg = memcg(&machine, "g", &[(Limit::Max, LIMIT)]);
    let cpu = machine.vcpu(0).unwrap();
    (machine, cpu, memcg)
}

/// A program with 64 pages at 1 GiB that is chosen first, and another one.
fn victim_and_other<'m>(cpu: &Vcpu, machine: &'m Machine, memcg: MemcgId) -> [HostSpace<'m>; 2] {
    let spaces = [0, 1].map(|_| space_in(machine, memcg));
    spaces[0].oom().set_score_adj(1000);
    map_filled(cpu, &spaces[0], GIB, 64, 1);
    spaces
}

pub(super) fn kills(machine: &Machine, memcg: MemcgId) -> u64 {
    events(machine, memcg, MemcgEvent::OomKill)
}

/// Writes to page after page until the program is killed or another one was; returns the pages written.
pub(super) fn grow(cpu: &Vcpu, space: &HostSpace<'_>, is_over: impl Fn() -> bool) -> u64 {
    let area = map_at(space, 2 * GIB, 2 * LIMIT * PAGE, RW);
    let mut at = 0;
    while !is_over() {
        assert!(at < 2 * LIMIT, "nothing was killed");
        match cpu.program(space).write_u64(page(area, at), 1) {
            Ok(()) => at += 1,
            Err(error) => {
                assert_eq!(error, AccessError::Fault(FaultError::Killed));
                return at;
            }
        }
    }
    at
}

/// A thousandth for each point of the adjustment: of what the memcg may have, not of the machine.
#[test]
fn the_adjustment_is_weighed_by_the_limit_of_the_memcg() {
    let (machine, cpu, memcg) = killing_machine();
    let [large, small] = [0, 1].map(|_| space_in(&machine, memcg));
    small.oom().set_score_adj(100);
    let area = map_filled(&cpu, &small, GIB, 256, 1);
    // 1792 pages against 256 and 100 times 2.
    grow(&cpu, &large, || small.oom().is_killed());
    assert_eq!((large.oom().is_killed(), small.oom().is_killed()), (true, false));
    assert_eq!((kills(&machine, memcg), count(&machine, VmEvent::OomKill)), (1, 1));
    assert_filled(&cpu, &small, area, 0..256, 1);
}

/// What a killed program keeps until it exits is not waited for.
#[test]
fn a_killed_program_that_keeps_shared_memory_is_killed_once() {
    let (machine, cpu, memcg) = killing_machine();
    let [first, second] = [0, 1].map(|_| space_in(&machine, memcg));
    first.oom().set_score_adj(1000);
    let mut request = MapRequest::anonymous(64 * PAGE, RW);
    request.flags |= MapFlags::SHARED;
    let area = first.mmap(&request).unwrap();
    fill(&cpu, &first, area, 0..64, 1);
    grow(&cpu, &second, || false);
    assert_eq!((first.oom().is_killed(), second.oom().is_killed()), (true, true));
    assert_eq!((first.figures().resident, second.figures().resident), (64 * PAGE, 0));
    assert_eq!(kills(&machine, memcg), 2);
}

/// Locked memory is freed like any other, as Linux's reaper does.
#[test]
fn the_locked_memory_of_a_killed_program_is_freed() {
    let (machine, cpu, memcg) = killing_machine();
    swap_on_ram(&machine, 16);
    machine.memory().write_memcg_file(memcg, "memory.swap.max", "0").unwrap();
    let [first, second] = victim_and_other(&cpu, &machine, memcg);
    first.mlock(VirtAddr(GIB), 64 * PAGE, false).unwrap();
    let written = grow(&cpu, &second, || first.oom().is_killed());
    assert_eq!((first.oom().is_killed(), second.oom().is_killed()), (true, false));
    assert_eq!(first.figures().resident, 0);
    assert!(written > LIMIT - 64, "{written} pages");
    assert_audit(&machine);
    grow_on(&cpu, &second, written);
    assert_eq!(kills(&machine, memcg), 2);
}

/// Writes to the pages after those that [`grow`] wrote, until the program is killed.
fn grow_on(cpu: &Vcpu, space: &HostSpace<'_>, from: u64) {
    let killed =
        (from..2 * LIMIT).find_map(|at| cpu.program(space).write_u64(page(VirtAddr(2 * GIB), at), 1).err());
    assert_eq!(killed, Some(AccessError::Fault(FaultError::Killed)));
}

/// A thread that holds the mmap lock of a killed program lets it go, after another one has looked for memory
/// three times.
#[test]
fn a_killed_program_whose_mmap_lock_is_let_go_has_no_second_victim() {
    let (machine, cpu, memcg) = killing_machine();
    let [first, second] = victim_and_other(&cpu, &machine, memcg);
    let (held, is_held) = mpsc::channel();
    std::thread::scope(|scope| {
        let (first, second, machine) = (&first, &second, &machine);
        scope.spawn(move || {
            let cpu = machine.vcpu(1).unwrap();
            let looks = || events(machine, memcg, MemcgEvent::Max);
            let hold = || {
                held.send(()).unwrap();
                let mut until = None;
                while !second.oom().is_killed() && until.is_none_or(|until| looks() < until) {
                    if until.is_none() && first.oom().is_killed() {
                        until = Some(looks() + 3);
                    }
                    std::thread::yield_now();
                }
            };
            cpu.run(|| first.mappings().while_held(hold));
        });
        is_held.recv().unwrap();
        grow(&cpu, second, || first.figures().resident == 0);
        assert_eq!((first.oom().is_killed(), second.oom().is_killed()), (true, false));
        assert_eq!(kills(machine, memcg), 1);
    });
    assert_audit(&machine);
}

/// A thread that holds the mmap lock of a killed program may wait for long: the next one is chosen. Hazard:
/// until then the thread without memory looks for it again and again, and each time is an event of the memcg.
#[test]
fn a_killed_program_whose_mmap_lock_is_held_is_not_waited_for() {
    let (machine, cpu, memcg) = killing_machine();
    let [first, second] = victim_and_other(&cpu, &machine, memcg);
    let (held, is_held) = mpsc::channel();
    let (let_go, may_go) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (first, machine) = (&first, &machine);
        scope.spawn(move || {
            let cpu = machine.vcpu(1).unwrap();
            cpu.run(|| {
                first.mappings().while_held(|| {
                    held.send(()).unwrap();
                    let _ = may_go.recv();
                });
            });
        });
        is_held.recv().unwrap();
        grow(&cpu, &second, || false);
        assert_eq!((first.oom().is_killed(), second.oom().is_killed()), (true, true));
        assert_eq!(kills(machine, memcg), 2);
        // Ten in a second at most.
        for event in [MemcgEvent::Max, MemcgEvent::Oom] {
            let events = events(machine, memcg, event);
            assert!((1..100).contains(&events), "{events} times {event:?} in three seconds");
        }
        drop(let_go);
    });
    assert_audit(&machine);
}

/// The need of a thread for `pages`, after the memcg has refused it a charge.
fn need_of(machine: &Machine, memcg: MemcgId, pages: u64) -> Need {
    let memory = machine.memory();
    Need::Memcg(
        memory.memcgs().charges().try_charge(&memory.platform().pin(), memcg, 2 * LIMIT).unwrap_err(),
        pages,
    )
}

/// The choice of a thread that has looked for memory in vain.
fn choose(cpu: &Vcpu, machine: &Machine, need: Need) -> OomOutcome {
    cpu.run(|| Policy.out_of_memory(machine.memory().spaces(), need))
}

/// Hazard: others free memory after a thread has looked for it in vain, and before it chooses. A program is
/// killed though there is room.
#[test]
fn no_program_is_killed_where_there_is_room_again() {
    let (machine, cpu, memcg) = killing_machine();
    let [space, _other] = victim_and_other(&cpu, &machine, memcg);
    let for_memcg = |pages| need_of(&machine, memcg, pages);
    for need in [for_memcg(1), for_memcg(LIMIT / 2), Need::Frames(Order::ZERO)] {
        assert_eq!(
            (choose(&cpu, &machine, need), space.oom().is_killed()),
            (OomOutcome::Freed, false),
            "{need:?}"
        );
    }
    assert_eq!(choose(&cpu, &machine, for_memcg(LIMIT)), OomOutcome::Freed);
    assert!(space.oom().is_killed(), "there is not as much");
}

/// Hazard: a memcg is removed while a thread looks for memory in it, and another one gets its number, which
/// is reclaimed from, and loses a program.
#[test]
fn the_shortage_of_a_memcg_that_is_gone_is_not_that_of_the_next_one_with_its_number() {
    let (machine, cpu, memcg) = killing_machine();
    let memory = machine.memory();
    let need = need_of(&machine, memcg, 1);
    memory.memcgs().lifecycle().remove(memcg).unwrap();
    (0..4).for_each(|_| memory.memcgs().lifecycle().sweep());
    assert_eq!(memory.create_memcg(MemcgId::ROOT, "next").unwrap(), memcg);
    memory.write_memcg_file(memcg, "memory.max", &(64 * PAGE).to_string()).unwrap();
    let space = space_in(&machine, memcg);
    map_filled(&cpu, &space, GIB, 64, 1);

    assert!(cpu.run(|| Policy.make_room(memory.spaces(), need)) > 0, "a new attempt charges another memcg");
    assert_eq!((choose(&cpu, &machine, need), space.oom().is_killed()), (OomOutcome::Freed, false));
    assert_eq!(memory.memcgs().counters().events(memcg, MemcgEvent::Max), 0);
    let need = need_of(&machine, memcg, 1);
    assert_eq!((choose(&cpu, &machine, need), space.oom().is_killed()), (OomOutcome::Freed, true));
}

/// Hazard: a killed program moves to another memcg, and is waited for where it is not, for ever, or not
/// waited for where it is.
#[test]
fn a_killed_program_is_counted_where_it_is() {
    let (machine, _, memcg) = killing_machine();
    let memory = machine.memory();
    let below = memory.create_memcg(memcg, "below").unwrap();
    let other = memory.create_memcg(MemcgId::ROOT, "other").unwrap();
    let victims = || [below, memcg, other, MemcgId::ROOT].map(|memcg| memory.spaces().victims().count(memcg));
    let [space, second] = [0, 1].map(|_| space_in(&machine, below));
    assert!(space.oom().kill() && !space.oom().kill());
    assert_eq!(victims(), [1, 1, 0, 1]);
    second.oom().kill();
    assert_eq!(victims(), [2, 2, 0, 2]);
    space.set_memcg(other).unwrap();
    assert_eq!(victims(), [1, 1, 1, 2]);
    space.set_memcg(MemcgId::ROOT).unwrap();
    assert_eq!(victims(), [1, 1, 0, 2]);
    drop(second);
    assert_eq!(victims(), [0, 0, 0, 1]);
    drop(space);
    assert_eq!(victims(), [0; 4]);
}

/// Hazard: the pages of a device do not fit in memory, and programs are killed until they do. That is the
/// caller's error; on Linux the OOM killer chooses the process that called `swapoff`.
#[test]
fn a_swapoff_without_memory_kills_nothing() {
    let machine: Machine = Setup::mib(16).overcommit().with(|memory| memory.oom = OomAction::Kill).build();
    let memory = machine.memory();
    let id = memory.swapon(HostRam::new(4096).unwrap(), SwapOnOptions::default()).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let pages = memory.totals().managed * 2 / 3;
    let [out, kept] = [GIB, 2 * GIB].map(|at| map_at(&space, at, pages * PAGE, RW));
    fill(&cpu, &space, out, 0..pages, 1);
    space.madvise(out, pages * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, pages * PAGE);
    space.set_limits(Limits { locked: u64::MAX, ..space.limits() });
    space.mlock(kept, pages * PAGE, false).unwrap();
    fill(&cpu, &space, kept, 0..pages, 2);
    let failed = Err(SwapOffError::OutOfMemory(AllocError::OutOfMemory));
    assert_eq!(memory.swapoff(id, || !space.oom().is_killed()), failed);
    assert_eq!((space.oom().is_killed(), count(&machine, VmEvent::OomKill)), (false, 0));
    assert_audit(&machine);
    // The device is in use again.
    assert_filled(&cpu, &space, kept, 0..pages, 2);
    space.munlock(kept, pages * PAGE).unwrap();
    assert_filled(&cpu, &space, out, 0..pages, 1);
}

/// Hazard: a thread holds the mmap lock of its program while it waits for the memory of a swapped page. It is
/// killed for that memory, goes on waiting, and keeps the OOM killer from freeing what the program has: the
/// next program is killed.
#[test]
fn a_killed_program_waits_for_no_page_under_its_mmap_lock() {
    const PAGES: u64 = 64;
    let pin = |space: &HostSpace<'_>, area| match space.pin_page(area, Access::Read) {
        Ok(_) => panic!("there is no memory for the page"),
        Err(error) => assert_eq!(error, FaultError::Killed),
    };
    let lock = |space: &HostSpace<'_>, area| assert!(space.mlock(area, PAGE, false).is_err());
    for wait_for in [&pin as &dyn Fn(&HostSpace<'_>, _), &lock] {
        let (machine, _, memcg) = killing_machine();
        let memory = machine.memory();
        memory.swapon(HostRam::new(256).unwrap(), SwapOnOptions::default()).unwrap();
        let cpu = machine.vcpu(0).unwrap();
        let [first, second] = [0, 1].map(|_| space_in(&machine, memcg));
        first.oom().set_score_adj(1000);
        let [out, kept] = [GIB, 2 * GIB].map(|at| map_at(&first, at, PAGES * PAGE, RW));
        fill(&cpu, &first, out, 0..PAGES, 1);
        first.madvise(out, PAGES * PAGE, Advice::PageOut).unwrap();
        assert_eq!(first.figures().swapped, PAGES * PAGE);
        for space in [&first, &second] {
            space.set_limits(Limits { locked: u64::MAX, ..space.limits() });
        }
        first.mlock(kept, PAGES * PAGE, false).unwrap();
        let other = map_at(&second, GIB, PAGES * PAGE, RW);
        second.mlock(other, PAGES * PAGE, false).unwrap();
        let usage = memory.memcgs().charges().usage(memcg) * PAGE;
        memory.write_memcg_file(memcg, "memory.swap.max", &(PAGES * PAGE).to_string()).unwrap();
        memory.write_memcg_file(memcg, "memory.max", &usage.to_string()).unwrap();
        cpu.run(|| wait_for(&first, out));
        assert_eq!((first.oom().is_killed(), second.oom().is_killed()), (true, false));
        assert_eq!(kills(&machine, memcg), 1);
    }
}

/// Hazard: a stack that grows needs an anon_vma, and the memory that was freed for it is gone again: the
/// fault is a segmentation fault, though there is more to free. Here the program that is killed first has
/// nothing.
#[test]
fn a_stack_grows_as_long_as_there_is_memory_to_free() {
    const STACKS: u64 = 256;
    let machine: Machine = Setup::mib(16).overcommit().with(|memory| memory.oom = OomAction::Kill).build();
    let cpu = machine.vcpu(0).unwrap();
    let [poor, rich, growing] = [1000, 500, -1000].map(|adjustment| {
        let space = create_space(&machine);
        space.oom().set_score_adj(adjustment);
        space
    });
    map_filled(&cpu, &rich, GIB, 512, 1);
    // Stacks of a page, each with an empty one below, in tables that are there.
    let top = |stack: u64| VirtAddr(GIB + (4 * stack + 3) * PAGE);
    for stack in 0..STACKS {
        let request = MapRequest::anonymous(PAGE, RW);
        growing.mmap(&request.at(top(stack), MapFlags::FIXED | MapFlags::GROWSDOWN)).unwrap();
        assert_eq!(read(&cpu, &growing, top(stack)), 0);
    }
    let frames = machine.memory().frames();
    let taken: Vec<Pfn> = cpu.run(|| {
        let pin = frames.platform().pin();
        std::iter::from_fn(|| frames.allocate(&pin, AllocRequest::anonymous()).ok()).collect()
    });
    let grown = (0..STACKS).take_while(|&stack| {
        assert_eq!(read(&cpu, &growing, VirtAddr(top(stack).0 - PAGE)), 0);
        !rich.oom().is_killed()
    });
    assert!(grown.count() < STACKS as usize, "there were anon_vmas for all stacks");
    assert!(poor.oom().is_killed() && !growing.oom().is_killed());
    cpu.run(|| {
        let pin = frames.platform().pin();
        taken.into_iter().for_each(|pfn| frames.free(&pin, pfn, Order::ZERO).unwrap());
    });
    assert_audit(&machine);
}

/// Hazard: advice to collapse finds no free block of 2 MiB, and programs are killed for it, or gigabytes are
/// paged out. As in Linux one reclaim is made for a block, and no program is killed.
#[test]
fn a_collapse_without_a_free_block_kills_no_program() {
    const PAGES: u64 = MIB2 / PAGE;
    for swap in [false, true] {
        let policy = HugePolicy::MADVISE.with_sizes(OrderSet::PMD, SizeEnabled::Madvise);
        let setup = Setup::mib(24).overcommit().huge(policy).with(|memory| memory.oom = OomAction::Kill);
        let machine = setup.build();
        if swap {
            swap_on(&machine, Disk::new(16384).0);
        }
        let cpu = machine.vcpu(0).unwrap();
        let [space, other] = [0, 1].map(|_| create_space(&machine));
        let area = map_at(&space, GIB, 4 * MIB2, RW);
        fill(&cpu, &space, area, 0..4 * PAGES, 1);
        fill_with_single_pages(&machine, &cpu, &other);
        space.madvise(area, 4 * MIB2, Advice::HugePage).unwrap();
        let result = space.madvise(area, 4 * MIB2, Advice::Collapse);
        if !swap {
            assert_eq!(result.map_err(Error::errno), Err(Errno::ENOMEM));
        }
        assert_eq!([&space, &other].map(|space| space.oom().is_killed()), [false; 2]);
        assert_eq!(count(&machine, VmEvent::OomKill), 0);
        // A block counts as one with a folio or as one without, also where its folio takes a reclaim. The
        // first one without ends the call.
        let refused = u64::from(result.map_err(Error::errno) == Err(Errno::ENOMEM));
        let without = count(&machine, VmEvent::ThpCollapseAllocFailed);
        assert_eq!(without, refused, "{result:?}");
        let with = count(&machine, VmEvent::ThpCollapseAlloc);
        assert!(with + without <= 4 && with <= 4 * u64::from(swap), "{with} with a folio, {without} without");
        // One reclaim for each block, and what is swapped in for it.
        let written = count(&machine, VmEvent::Pswpout);
        assert!(written <= 4 * 2 * PAGES, "{written} pages were written");
        assert_filled(&cpu, &space, area, 0..4 * PAGES, 1);
        assert_audit(&machine);
    }
}

/// Hazard: a little that is free at once takes the place of the reclaim for a block, and advice to collapse
/// fails while there is swap.
#[test]
fn a_collapse_reclaims_for_a_block_though_other_frames_are_free_at_once() {
    const PAGES: u64 = MIB2 / PAGE;
    let policy = HugePolicy::MADVISE.with_sizes(OrderSet::PMD, SizeEnabled::Madvise);
    let policy = policy.with_sizes(orders(&[4]), SizeEnabled::Madvise);
    let machine = Setup::mib(24).overcommit().huge(policy).build();
    swap_on(&machine, Disk::new(16384).0);
    let cpu = machine.vcpu(0).unwrap();
    let [space, other] = [0, 1].map(|_| create_space(&machine));
    let area = map_at(&space, GIB, MIB2, RW);
    fill(&cpu, &space, area, 0..PAGES, 1);
    // Half of a folio waits to be split.
    let sparse = map_at(&space, 2 * GIB, 16 * PAGE, RW);
    space.madvise(sparse, 16 * PAGE, Advice::HugePage).unwrap();
    fill(&cpu, &space, sparse, 0..16, 1);
    space.madvise(page(sparse, 8), 8 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(waiting_to_split(&machine), 1);
    fill_with_single_pages(&machine, &cpu, &other);
    space.madvise(area, MIB2, Advice::HugePage).unwrap();
    let result = space.madvise(area, MIB2, Advice::Collapse);
    assert!(count(&machine, VmEvent::Pswpout) > 0, "nothing was reclaimed");
    let counted = [VmEvent::ThpCollapseAlloc, VmEvent::ThpCollapseAllocFailed].map(|it| count(&machine, it));
    assert!(matches!(counted, [1, 0] | [0, 1]), "{result:?}: {counted:?}");
    assert_filled(&cpu, &space, area, 0..PAGES, 1);
    assert_audit(&machine);
}

/// Fills the memory with single pages, of which then every second one of some is free again.
fn fill_with_single_pages(machine: &Machine, cpu: &Vcpu, space: &HostSpace<'_>) {
    let filler = map_at(space, GIB, 16 * MIB2, RW);
    let mut filled = 0;
    while !is_nearly_full(machine) {
        write(cpu, space, page(filler, filled), filled);
        filled += 1;
    }
    for at in (0..128).step_by(2) {
        space.madvise(page(filler, at), PAGE, Advice::DontNeed).unwrap();
    }
}

/// Whether less is free than background reclaim would leave.
fn is_nearly_full(machine: &Machine) -> bool {
    let frames = machine.memory().frames();
    frames.pcp().drain_all(&frames.platform().pin());
    !frames.watermarks().is_above_high()
}
