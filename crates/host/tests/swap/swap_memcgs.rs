//! memcgs whose limits cause reclaim, and pages that were freed lazily.

#[allow(dead_code, reason = "each test binary uses its own part")]
use crate::common::*;
use crate::disk::Disk;

/// With a swap device of so many slots, if there are any.
pub(crate) fn limited_machine(mib: u64, oom: OomAction, slots: u64) -> Machine {
    let machine = Setup::mib(mib).reserve().overcommit().with(|memory| memory.oom = oom).build();
    if slots > 0 {
        swap_on(&machine, Disk::new(slots).0);
    }
    machine
}

/// Writes to `pages` pages; returns how many succeeded before the first error, and that error.
fn write_up_to(
    cpu: &Vcpu,
    space: &HostSpace<'_>,
    pages: u64,
) -> (VirtAddr, u64, Result<(), AccessError<FaultError>>) {
    let area = map_at(space, GIB, pages * PAGE, RW);
    for at in 0..pages {
        if let Err(error) = cpu.program(space).write_u64(page(area, at), 100 + at) {
            return (area, at, Err(error));
        }
    }
    (area, pages, Ok(()))
}

fn is_out_of_memory(error: AccessError<FaultError>) -> bool {
    matches!(error, AccessError::Fault(FaultError::OutOfMemory(_)))
}

#[test]
fn a_program_larger_than_its_memcg_runs_through() {
    let machine = limited_machine(16, OomAction::Refuse, 4096);
    let (cpu, memcg, space) = in_memcg(&machine, "small", &[(Limit::Max, 128)]);
    let (area, _, filled) = write_up_to(&cpu, &space, 512);
    assert_eq!(filled, Ok(()));
    for _ in 0..2 {
        assert_filled(&cpu, &space, area, 0..512, 100);
        assert!(usage(&machine, memcg) <= 128, "{} pages", usage(&machine, memcg));
        assert!(swap_usage(&machine, memcg) >= 512 - 128);
        assert_audit(&machine);
    }
    assert!(events(&machine, memcg, MemcgEvent::Max) > 0);
    assert_eq!(events(&machine, memcg, MemcgEvent::Oom), 0);
    drop(space);
    assert_eq!((usage(&machine, memcg), swap_usage(&machine, memcg)), (0, 0));
    machine.memory().memcgs().lifecycle().remove(memcg).unwrap();
    assert_audit(&machine);
}

#[test]
fn a_memcg_gets_no_more_swap_than_its_limit() {
    let machine = limited_machine(16, OomAction::Refuse, 4096);
    let (cpu, memcg, space) = in_memcg(&machine, "little swap", &[(Limit::Max, 128), (Limit::SwapMax, 100)]);
    let (area, written, filled) = write_up_to(&cpu, &space, 512);
    assert!(filled.is_err_and(is_out_of_memory), "{filled:?}");
    assert!((200..=228).contains(&written), "{written} pages");
    assert!(swap_usage(&machine, memcg) <= 100);
    assert!(events(&machine, memcg, MemcgEvent::SwapMax) > 0);
    assert_audit(&machine);
    // Others are not throttled.
    let other = create_space(&machine);
    assert_eq!(write_up_to(&cpu, &other, 512).2, Ok(()));
    // With more swap it continues.
    let _ = machine.memory().memcgs().files().set(memcg, Limit::SwapMax, None).unwrap();
    assert_eq!(cpu.program(&space).write_u64(page(area, written), 100 + written), Ok(()));
    assert_filled(&cpu, &space, area, 0..written + 1, 100);
}

#[test]
fn no_swap_at_all_keeps_a_memcg_in_memory() {
    let machine = limited_machine(16, OomAction::Refuse, 4096);
    let (cpu, memcg, space) = in_memcg(&machine, "no swap", &[(Limit::SwapMax, 0)]);
    let (area, ..) = write_up_to(&cpu, &space, 64);
    space.madvise(area, 64 * PAGE, Advice::PageOut).unwrap();
    machine.memory().reclaim(memcg, 64);
    assert_eq!(space.figures().swapped, 0);
    assert_filled(&cpu, &space, area, 0..64, 100);
}

#[test]
fn a_high_limit_throttles_and_never_fails() {
    let machine = limited_machine(16, OomAction::Refuse, 4096);
    let cpu = machine.vcpu(0).unwrap();
    // A limit of zero is possible: a page that was just swapped in stays until the program has used it.
    for high in [128, 0] {
        let memcg = memcg(&machine, &format!("high{high}"), &[(Limit::High, high)]);
        let space = space_in(&machine, memcg);
        let (area, _, filled) = write_up_to(&cpu, &space, 512);
        assert_eq!(filled, Ok(()));
        assert_filled(&cpu, &space, area, 0..512, 100);
        let times = events(&machine, memcg, MemcgEvent::High);
        assert!(times > 10, "the program was held up {times} times");
        let usage = usage(&machine, memcg);
        assert!(usage <= high + 64, "{usage} pages");
        assert_eq!(events(&machine, memcg, MemcgEvent::Oom), 0);
    }
}

#[test]
fn a_high_limit_without_swap_never_fails() {
    let machine = limited_machine(16, OomAction::Refuse, 0);
    let (cpu, _, space) = in_memcg(&machine, "high", &[(Limit::High, 16)]);
    let (area, _, filled) = write_up_to(&cpu, &space, 128);
    assert_eq!(filled, Ok(()));
    assert_filled(&cpu, &space, area, 0..128, 100);
}

/// A memcg over a high limit that cannot be met looks again when there is something to reclaim, and not at
/// every fault.
#[test]
fn a_high_limit_that_cannot_be_met_is_not_retried_at_every_fault() {
    let machine = limited_machine(16, OomAction::Refuse, 4096);
    let (cpu, _, space) = in_memcg(&machine, "high", &[(Limit::High, 16), (Limit::SwapMax, 0)]);
    assert_eq!(write_up_to(&cpu, &space, 1024).2, Ok(()));
    let scanned = count(&machine, VmEvent::PgscanAnon);
    assert!(scanned > 0 && scanned < 100 * 1024, "{scanned} pages were looked at");
}

/// What a fault swaps in must not be reclaimed for the copy of it: it would be swapped in and out for ever.
#[test]
fn reclaim_for_a_swap_in_spares_its_page() {
    let machine = limited_machine(16, OomAction::Refuse, 64);
    let (cpu, memcg, space) = in_memcg(&machine, "full", &[(Limit::Max, 64), (Limit::SwapMax, 1)]);
    let (shared, ..) = write_up_to(&cpu, &space, 1);
    space.madvise(shared, PAGE, Advice::PageOut).unwrap();
    let child = space.fork().unwrap();
    let area = map_at(&space, 2 * GIB, 63 * PAGE, RW);
    (0..63).for_each(|at| cpu.program(&space).write_u64(page(area, at), 7).unwrap());
    // There is memory for the page or for a copy, and nothing else has a slot or gets one.
    let written = cpu.program(&space).write_u64(shared, 200);
    assert!(written.is_err_and(is_out_of_memory), "{written:?}");
    assert_audit(&machine);
    set_limit(&machine, memcg, Limit::Max, 65);
    assert_eq!(cpu.program(&space).write_u64(shared, 200), Ok(()));
    assert_filled(&cpu, &child, shared, 0..1, 100);
    assert_eq!(cpu.program(&space).read_u64(shared), Ok(200));
}

#[test]
fn a_slot_is_charged_to_its_own_memcg() {
    let machine = limited_machine(16, OomAction::Refuse, 1024);
    let cpu = machine.vcpu(0).unwrap();
    let [owner, other] = ["owner", "other"].map(|name| memcg(&machine, name, &[]));
    let space = space_in(&machine, owner);
    let (area, ..) = write_up_to(&cpu, &space, 32);
    let child = space.fork().unwrap();
    child.set_memcg(other).unwrap();
    let memcgs = machine.memory().memcgs();
    assert_eq!((usage(&machine, owner), usage(&machine, other)), (32, 0));
    // Both map the pages, so that only reclaim of the whole machine may page them out.
    machine.memory().reclaim(MemcgId::ROOT, 32);
    assert_eq!((space.figures().swapped, child.figures().swapped), (32 * PAGE, 32 * PAGE));
    assert_eq!((usage(&machine, owner), swap_usage(&machine, owner)), (0, 32));
    assert_audit(&machine);
    assert_filled(&cpu, &child, area, 0..32, 100);
    assert_eq!((usage(&machine, owner), usage(&machine, other)), (32, 0), "the owner pays");
    assert_eq!(memcgs.charges().swap_usage(other), 0);
    // The child owns the pages that it writes to.
    fill(&cpu, &child, area, 0..32, 200);
    assert_eq!((usage(&machine, owner), usage(&machine, other)), (32, 32));
    assert_filled(&cpu, &space, area, 0..32, 100);
    assert_audit(&machine);
    // The owner has exited, its memcg is removed; what is left of it is charged until the last page.
    drop(space);
    assert_eq!((usage(&machine, owner), swap_usage(&machine, owner)), (0, 0));
    memcgs.lifecycle().remove(owner).unwrap();
    drop(child);
    assert_eq!((usage(&machine, other), swap_usage(&machine, other)), (0, 0));
    memcgs.lifecycle().remove(other).unwrap();
    assert_audit(&machine);
}

#[test]
fn a_removed_memcg_is_charged_until_its_last_slot_is_free() {
    let machine = limited_machine(16, OomAction::Refuse, 1024);
    let (cpu, memcg, space) = in_memcg(&machine, "gone", &[]);
    let (area, ..) = write_up_to(&cpu, &space, 32);
    space.madvise(area, 32 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, 32 * PAGE);
    space.set_memcg(MemcgId::ROOT).unwrap();
    machine.memory().memcgs().lifecycle().remove(memcg).unwrap();
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..32, 100);
    assert_audit(&machine);
    drop(space);
    assert_eq!((usage(&machine, memcg), swap_usage(&machine, memcg)), (0, 0));
    assert_audit(&machine);
}

#[test]
fn the_program_with_the_highest_score_is_ended() {
    let machine = limited_machine(32, OomAction::Kill, 0);
    let cpu = machine.vcpu(0).unwrap();
    let memcg = memcg(&machine, "killed", &[(Limit::Max, 2560)]);
    // An adjustment counts in thousandths of the limit.
    // The largest is protected by OOM_SCORE_ADJ, the second has raised its own, the third is larger than the
    // OOM scores: the first gets -1000, the third 1000 later; the fourth grows.
    let spaces: Vec<_> = (0..4).map(|_| space_in(&machine, memcg)).collect();
    let outside = create_space(&machine);
    assert_eq!(write_up_to(&cpu, &outside, 600).2, Ok(()));
    for (space, pages) in spaces.iter().zip([1000, 600, 400, 200]) {
        assert_eq!(write_up_to(&cpu, space, pages).2, Ok(()));
    }
    spaces[0].oom().set_score_adj(-1000);
    let more = map_at(&spaces[3], 2 * GIB, 5120 * PAGE, RW);
    let kills = || events(&machine, memcg, MemcgEvent::OomKill);
    let mut at = 0;
    let mut grow = |until: u64| {
        while kills() < until {
            cpu.program(&spaces[3]).write_u64(page(more, at), 1).unwrap();
            at += 1;
        }
    };
    spaces[2].oom().set_score_adj(1000);
    grow(1);
    let killed = || spaces.iter().map(|space| space.oom().is_killed()).collect::<Vec<_>>();
    assert_eq!(killed(), [false, false, true, false], "the one that asked for it");
    assert_eq!(spaces[2].figures().resident, 0, "its memory is back");
    assert_eq!(
        cpu.program(&spaces[2]).read_u64(VirtAddr(GIB)),
        Err(AccessError::Fault(FaultError::Killed)),
        "it gets nothing any more"
    );
    assert_audit(&machine);
    // Now the fourth is the largest that may be killed: it is its own victim.
    let own = loop {
        match cpu.program(&spaces[3]).write_u64(page(more, at), 1) {
            Ok(()) => at += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(own, AccessError::Fault(FaultError::Killed));
    assert_eq!(killed(), [false, false, true, true]);
    assert!(!outside.oom().is_killed(), "a space outside of the memcg is left alone");
    assert_filled(&cpu, &spaces[0], VirtAddr(GIB), 0..1000, 100);
    assert_filled(&cpu, &spaces[1], VirtAddr(GIB), 0..600, 100);
    assert_eq!(usage(&machine, memcg), 1600);
    assert_eq!(kills(), 2);
    assert_eq!(count(&machine, VmEvent::OomKill), 2);
    assert_audit(&machine);
    drop(spaces);
    assert_eq!(usage(&machine, memcg), 0);
}

#[test]
fn a_machine_that_is_full_ends_the_largest_program() {
    let machine = limited_machine(8, OomAction::Kill, 0);
    let cpu = machine.vcpu(0).unwrap();
    let [small, large] = [0, 1].map(|_| create_space(&machine));
    let (area, ..) = write_up_to(&cpu, &small, 200);
    let (_, written, result) = write_up_to(&cpu, &large, 4096);
    assert_eq!(result, Err(AccessError::Fault(FaultError::Killed)), "after {written} pages");
    assert!(large.oom().is_killed() && !small.oom().is_killed());
    assert_eq!(large.figures().resident, 0);
    assert_filled(&cpu, &small, area, 0..200, 100);
    assert_audit(&machine);
}

/// Frames of page tables.
fn tables(space: &HostSpace<'_>) -> u64 {
    space.figures().page_tables / PAGE
}

#[test]
fn lazily_freed_pages_and_their_tables_are_freed_without_a_device() {
    for device in [false, true] {
        let machine = limited_machine(16, OomAction::Refuse, if device { 1024 } else { 0 });
        let (cpu, space) = cpu_and_space(&machine);
        // A page elsewhere keeps the tables above.
        map_at(&space, GIB + 8 * MIB2, PAGE, RW);
        cpu.program(&space).write_u64(VirtAddr(GIB + 8 * MIB2), 5).unwrap();
        let few = tables(&space);
        let area = map_at(&space, GIB, 2 * MIB2, RW);
        let pages = 2 * MIB2 / PAGE;
        fill(&cpu, &space, area, 0..pages, 100);
        assert_eq!(tables(&space), few + 2);
        space.madvise(area, 2 * MIB2, Advice::Free).unwrap();
        assert_audit(&machine);
        // Two of them are needed again.
        fill(&cpu, &space, area, [3, pages - 1], 200);
        let freed = machine.memory().reclaim(MemcgId::ROOT, 2 * pages);
        assert!(freed >= pages - 2, "{freed} came free");
        assert_audit(&machine);
        let events = machine.memory().frames().events();
        assert_eq!(events.sum(VmEvent::Pglazyfreed), pages - 2);
        assert_filled(&cpu, &space, area, [3, pages - 1], 200);
        assert_eq!(cpu.program(&space).read_u64(page(area, 4)), Ok(0));
        // All of the first table's pages are freed, and the table with them.
        space.madvise(area, 2 * MIB2, Advice::Free).unwrap();
        machine.memory().reclaim(MemcgId::ROOT, 2 * pages);
        assert_audit(&machine);
        for at in 0..pages {
            let word = cpu.program(&space).read_u64(page(area, at));
            let kept = [3, pages - 1].contains(&at) && word == Ok(200 + at);
            assert!(kept || word == Ok(0), "page {at}: {word:?}");
        }
        assert_audit(&machine);
        space.madvise(area, 2 * MIB2, Advice::DontNeed).unwrap();
        for at in 0..pages {
            cpu.program(&space).write_u64(page(area, at), 1).unwrap();
        }
        space.madvise(area, 2 * MIB2, Advice::Free).unwrap();
        machine.memory().reclaim(MemcgId::ROOT, pages);
        // More was asked for than was there to free: with a device the other page was swapped out too.
        assert_eq!(space.figures().resident, if device { 0 } else { PAGE });
        assert_eq!(tables(&space), few, "the tables are empty");
        // Those that were needed again were swapped out once, too.
        assert!(events.sum(VmEvent::Pswpout) <= if device { 8 } else { 0 }, "little was worth to be written");
    }
}

/// `memory.stat` counts what the memcg's programs do.
#[test]
fn statistics_of_a_memcg_count_its_programs() {
    let machine = limited_machine(16, OomAction::Refuse, 0);
    swap_on_ram(&machine, 1024);
    let (cpu, memcg, space) = in_memcg(&machine, "told", &[]);
    let (area, ..) = write_up_to(&cpu, &space, 16);
    for at in 12..16 {
        cpu.program(&space).write_u64(page(area, at), 0).unwrap();
    }
    let told = |line: &str| {
        let mut text = String::new();
        memcg_file(machine.memory(), "told/memory.stat", None, &mut text).unwrap();
        assert!(text.contains(&format!("{line}\n")), "no `{line}` in\n{text}");
    };
    told("anon 65536");
    told("pgfault 16");
    space.madvise(area, 16 * PAGE, Advice::PageOut).unwrap();
    // As in Linux, pages that a program asked to be paged out are not counted as reclaim.
    ["anon 0", "pswpout 12", "swpout_zero 4", "pgsteal 0"].into_iter().for_each(told);
    assert_eq!(cpu.program(&space).read_u64(area), Ok(100));
    assert_eq!(cpu.program(&space).read_u64(page(area, 15)), Ok(0));
    ["anon 8192", "pswpin 1", "swpin_zero 1", "pgmajfault 2", "pgfault 18"].into_iter().for_each(told);
    space.madvise(page(area, 15), PAGE, Advice::Free).unwrap();
    machine.memory().reclaim(memcg, 16);
    ["pglazyfree 1", "pglazyfreed 1"].into_iter().for_each(told);
    let stolen = ["pgscan_direct 0", "pgsteal_direct 0", "pgsteal_proactive 2", "pgsteal 2"];
    stolen.into_iter().for_each(told);
    let events = machine.memory().frames().events();
    // Those by cause count scans of the whole machine.
    let causes =
        [VmEvent::PgscanDirect, VmEvent::PgstealDirect, VmEvent::PgscanProactive, VmEvent::PgstealProactive];
    assert_eq!(causes.map(|event| events.sum(event)), [0; 4]);
    assert_eq!([VmEvent::PgstealAnon, VmEvent::PgstealFile].map(|event| events.sum(event)), [1, 1]);
    let of_machine =
        [VmEvent::Pswpout, VmEvent::SwpoutZero, VmEvent::SwpinZero].map(|event| events.sum(event));
    assert_eq!(of_machine[1..], [4, 1]);
}

/// The root's `memory.stat` is of the whole machine: what its own programs do and what those of memcgs do,
/// and reclaim for any of them.
#[test]
fn the_roots_statistics_are_of_the_whole_machine() {
    let machine = limited_machine(16, OomAction::Refuse, 0);
    swap_on_ram(&machine, 1024);
    let cpu = machine.vcpu(0).unwrap();
    let below = memcg(&machine, "below", &[]);
    let spaces = [below, MemcgId::ROOT].map(|memcg| space_in(&machine, memcg));
    let areas = spaces.each_ref().map(|space| write_up_to(&cpu, space, 16).0);
    let file = MapRequest { file: Some(MappedFile::new(1, 0)), ..MapRequest::anonymous(2 * PAGE, RW) };
    for space in &spaces {
        let mapped = space.mmap(&file).unwrap();
        cpu.program(space).read_u64(mapped).unwrap();
    }
    let told = |line: &str| {
        let mut text = String::new();
        memcg_file(machine.memory(), "memory.stat", None, &mut text).unwrap();
        assert!(text.contains(&format!("{line}\n")), "no `{line}` in\n{text}");
    };
    ["anon 131072", "file 8192", "pgfault 34", "pgsteal 0"].into_iter().for_each(told);
    for (space, area) in spaces.iter().zip(areas) {
        space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    }
    ["anon 65536", "pswpout 16", "pgfault 34"].into_iter().for_each(told);
    machine.memory().reclaim(below, 2);
    let stolen = || machine.memory().memcgs().counters().stats(below)[MemcgStat::PgstealProactive as usize];
    assert!(stolen() >= 2);
    told(&format!("pgsteal_proactive {}", stolen()));
    let in_memcg = stolen();
    spaces[0].munmap(areas[0], 16 * PAGE).unwrap();
    machine.memory().reclaim(MemcgId::ROOT, 2);
    let sum = machine.memory().memcgs().counters().stats(MemcgId::ROOT)[MemcgStat::PgstealProactive as usize];
    assert!(sum >= in_memcg + 2, "what the root's own program lost counts, too");
    told(&format!("pgsteal_proactive {sum}"));
}

/// A program with `pages` pages that was in a memcg with this limit, which is removed.
fn moved_out<'m>(
    machine: &'m Machine,
    cpu: &Vcpu,
    limit: (Limit, u64),
    pages: u64,
) -> (HostSpace<'m>, VirtAddr) {
    let removed = memcg(machine, "m", &[limit]);
    let space = space_in(machine, removed);
    let (area, _, filled) = write_up_to(cpu, &space, pages);
    assert_eq!(filled, Ok(()));
    space.set_memcg(MemcgId::ROOT).unwrap();
    machine.memory().memcgs().lifecycle().remove(removed).unwrap();
    (space, area)
}

/// Hazard: a program that left a memcg, which was removed then, is refused its swapped pages: no more of them
/// fit into what that memcg might have.
#[test]
fn the_limit_of_a_removed_memcg_refuses_no_page() {
    let machine = limited_machine(16, OomAction::Refuse, 64);
    let cpu = machine.vcpu(0).unwrap();
    let (space, area) = moved_out(&machine, &cpu, (Limit::Max, 64), 120);
    assert!(space.figures().swapped >= 50 * PAGE);
    assert_filled(&cpu, &space, area, 0..120, 100);
}

/// Hazard: the pages of a memcg that might have no swap are never reclaimed once it is removed.
#[test]
fn the_swap_limit_of_a_removed_memcg_keeps_no_page_in_memory() {
    let machine = limited_machine(16, OomAction::Refuse, 64);
    let cpu = machine.vcpu(0).unwrap();
    let (space, area) = moved_out(&machine, &cpu, (Limit::SwapMax, 0), 32);
    reclaim(&machine, 2, 32);
    assert_eq!(space.figures().swapped, 32 * PAGE);
    assert_filled(&cpu, &space, area, 0..32, 100);
}
