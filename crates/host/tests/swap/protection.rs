//! What reclaim leaves to memcgs with `memory.min` and `memory.low`, and what it counts meanwhile.

use crate::common::*;
use crate::disk::Disk;

/// Pages that a scan may take beyond the protection: the least that it scans.
const SLACK: u64 = 32;

fn reclaiming_machine(mib: u64) -> Machine {
    let machine = Setup::mib(mib).reserve().overcommit().build();
    swap_on(&machine, Disk::new(mib << 10).0);
    machine
}

/// A memcg below `parent`, with limits as a user writes them.
fn memcg(machine: &Machine, parent: MemcgId, name: &str, limits: &[(&str, u64)]) -> MemcgId {
    let memcg = machine.memory().create_memcg(parent, name).unwrap();
    for &(file, pages) in limits {
        set(machine, memcg, file, pages);
    }
    memcg
}

fn set(machine: &Machine, memcg: MemcgId, file: &str, pages: u64) {
    machine.memory().write_memcg_file(memcg, file, &(pages * PAGE).to_string()).unwrap();
}

fn reclaim_from(machine: &Machine, memcg: MemcgId, pages: u64) -> Result<(), MemcgError> {
    machine.memory().write_memcg_file(memcg, "memory.reclaim", &(pages * PAGE).to_string()).map(|_| ())
}

/// A space in the memcg with so many pages, all written to.
fn used<'m>(machine: &'m Machine, cpu: &Vcpu, memcg: MemcgId, pages: u64) -> HostSpace<'m> {
    let space = space_in(machine, memcg);
    map_filled(cpu, &space, GIB, pages, 100);
    space
}

/// Reclaims below `memcg` what there is until nothing changes, and returns what there is then.
fn squeeze<T: PartialEq>(machine: &Machine, memcg: MemcgId, there: impl Fn() -> T) -> T {
    let mut before = there();
    let mut same = 0;
    // A scan of pages that were used since the last one frees none of them.
    while same < 300 {
        assert_eq!(reclaim_from(machine, memcg, 1 << 20), Err(MemcgError::Again));
        let now = there();
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    before
}

/// How often `event` was counted in the memcg itself.
fn event(machine: &Machine, memcg: MemcgId, event: MemcgEvent) -> u64 {
    machine.memory().memcgs().counters().local_events(memcg, event)
}

fn stat(machine: &Machine, memcg: MemcgId, stat: MemcgStat) -> i64 {
    machine.memory().memcgs().counters().stats(memcg)[stat as usize]
}

/// A memcg that is a little above its protection loses that little, however much is asked for.
#[test]
fn memory_min_is_not_overrun_by_a_large_reclaim() {
    for large in [false, true] {
        for extra in [0, 16, 64, 256, 1024] {
            let setup = Setup::mib(64).reserve().overcommit();
            let setup = if large { setup.folios(OrderSet::of(Order::PMD)) } else { setup };
            let machine: Machine = setup.build();
            swap_on(&machine, Disk::new(16384).0);
            let cpu = machine.vcpu(0).unwrap();
            let pages = 6144;
            let min = pages - extra;
            let top = memcg(&machine, MemcgId::ROOT, "top", &[]);
            let kept = memcg(&machine, top, "kept", &[("memory.min", min)]);
            let _space = used(&machine, &cpu, kept, pages);
            assert_eq!(usage(&machine, kept), pages);
            // A large folio goes whole.
            let slack = if large { 512 } else { SLACK };
            let left = squeeze(&machine, top, || usage(&machine, kept));
            assert!(left + slack >= min && left <= min, "{left} of {pages} pages are left: {min} are min");
            assert_eq!(event(&machine, kept, MemcgEvent::Low), 0);
        }
    }
}

/// What is protected by `memory.low` stays as long as anything else can be reclaimed, and only so long.
#[test]
fn memory_low_is_broken_only_when_nothing_else_is_left() {
    let machine = reclaiming_machine(64);
    let cpu = machine.vcpu(0).unwrap();
    let top = memcg(&machine, MemcgId::ROOT, "top", &[]);
    let low = memcg(&machine, top, "low", &[("memory.low", 2000)]);
    let min = memcg(&machine, top, "min", &[("memory.min", 500)]);
    let other = memcg(&machine, top, "other", &[]);
    let _spaces = [(low, 2048), (min, 500), (other, 3000)].map(|(id, pages)| used(&machine, &cpu, id, pages));
    let pages = |id| usage(&machine, id);
    // Of the 3048 pages without protection nearly all.
    assert_eq!(reclaim_from(&machine, top, 2900), Ok(()));
    assert!(pages(low) + SLACK >= 2000, "{} of 2000 pages with memory.low", pages(low));
    assert_eq!((pages(min), event(&machine, top, MemcgEvent::Low)), (500, 0));
    assert_eq!(events(&machine, top, MemcgEvent::Low), 0);
    assert_audit(&machine);
    // More than is left of them.
    let freed = 3000;
    assert_eq!(reclaim_from(&machine, top, freed - 2900 + 300), Ok(()));
    assert!(pages(low) < 2000 - 100, "{} pages with memory.low", pages(low));
    assert_eq!(pages(min), 500, "memory.min holds");
    let told = [low, min, other, top].map(|id| event(&machine, id, MemcgEvent::Low) > 0);
    assert_eq!(told, [true, false, false, false], "counted where it was broken");
    assert!(events(&machine, top, MemcgEvent::Low) > 0, "and up the tree");
    // All that is left without memory.min.
    assert_eq!(reclaim_from(&machine, top, 6000), Err(MemcgError::Again));
    assert_eq!((pages(low), pages(min), pages(other)), (0, 500, 0));
}

/// Small reclaims one after the other do not all take from one memcg.
#[test]
fn reclaims_take_from_memcgs_in_turn() {
    let machine = reclaiming_machine(64);
    let cpu = machine.vcpu(0).unwrap();
    let top = memcg(&machine, MemcgId::ROOT, "top", &[]);
    let all = ["a", "b", "c"].map(|name| memcg(&machine, top, name, &[]));
    let _spaces = all.map(|id| used(&machine, &cpu, id, 1024));
    (0..24).for_each(|_| assert_eq!(reclaim_from(&machine, top, 32), Ok(())));
    let lost = all.map(|id| 1024 - usage(&machine, id));
    assert!(lost.iter().all(|&pages| pages >= 128), "{lost:?} of 1024 pages each");
}

/// The machine's own reclaim, too: background reclaim breaks no `memory.low`.
#[test]
fn a_shortage_of_frames_reclaims_what_is_not_protected() {
    let machine = reclaiming_machine(32);
    let cpu = machine.vcpu(0).unwrap();
    let [min, low] = [("min", "memory.min"), ("low", "memory.low")]
        .map(|(name, file)| memcg(&machine, MemcgId::ROOT, name, &[(file, 1500)]));
    let _spaces = [min, low].map(|id| used(&machine, &cpu, id, 1600));
    let other = memcg(&machine, MemcgId::ROOT, "other", &[]);
    let space = space_in(&machine, other);
    // Much more than there is memory.
    let area = map_at(&space, GIB, 16384 * PAGE, RW);
    for at in 0..16384 {
        write(&cpu, &space, page(area, at), at);
        if at % 512 == 0 {
            while machine.memory().kswapd_step().missing > 0 {}
        }
    }
    for id in [min, low] {
        let left = usage(&machine, id);
        assert!(left + SLACK >= 1500, "{left} of 1500 pages are left");
        assert_eq!(event(&machine, id, MemcgEvent::Low), 0);
    }
}

/// Children share what their parent has, by what they use of it.
#[test]
fn children_share_the_protection_of_their_parent() {
    let machine = reclaiming_machine(64);
    let cpu = machine.vcpu(0).unwrap();
    let top = memcg(&machine, MemcgId::ROOT, "top", &[("memory.min", 1800)]);
    let [a, b] =
        [("a", 2000), ("b", 1000)].map(|(name, min)| memcg(&machine, top, name, &[("memory.min", min)]));
    let _spaces = [(a, 2400), (b, 1200)].map(|(id, pages)| used(&machine, &cpu, id, pages));
    let (left_a, left_b) = squeeze(&machine, MemcgId::ROOT, || (usage(&machine, a), usage(&machine, b)));
    assert!(left_a.abs_diff(1200) <= 2 * SLACK, "{left_a} of the 1200 pages of a are left");
    assert!(left_b.abs_diff(600) <= 2 * SLACK, "{left_b} of the 600 pages of b are left");
}

/// A charge that fails is counted once, and its reclaim as direct.
#[test]
fn a_charge_over_the_limit_is_counted_once() {
    let machine = reclaiming_machine(16);
    let cpu = machine.vcpu(0).unwrap();
    let top = memcg(&machine, MemcgId::ROOT, "top", &[]);
    let small = memcg(&machine, top, "small", &[("memory.max", 256)]);
    let _space = used(&machine, &cpu, small, 1024);
    // Each finds room for 32 pages.
    let max = event(&machine, small, MemcgEvent::Max);
    assert!((1..=(1024 - 256) / 32).contains(&max), "{max} charges failed");
    let memcgs = machine.memory().memcgs();
    assert_eq!(
        (memcgs.counters().events(top, MemcgEvent::Max), event(&machine, top, MemcgEvent::Max)),
        (max, 0)
    );
    let steal = |cause| stat(&machine, small, cause);
    assert!(steal(MemcgStat::PgstealDirect) >= 1024 - 256);
    assert_eq!((steal(MemcgStat::PgstealProactive), steal(MemcgStat::PgstealKswapd)), (0, 0));
    let others = [MemcgEvent::High, MemcgEvent::Low, MemcgEvent::Oom, MemcgEvent::OomKill];
    assert_eq!(others.map(|other| event(&machine, small, other)), [0; 4]);
}

/// Only `memory.reclaim` is proactive: a write to a limit reclaims directly, down to the limit, and is no
/// event.
#[test]
fn reclaim_by_a_new_limit_counts_as_direct() {
    for (file, told) in [("memory.max", MemcgEvent::Max), ("memory.high", MemcgEvent::High)] {
        let machine = reclaiming_machine(16);
        let cpu = machine.vcpu(0).unwrap();
        let memcg = memcg(&machine, MemcgId::ROOT, "g", &[]);
        let _space = used(&machine, &cpu, memcg, 512);
        set(&machine, memcg, file, 256);
        let now = usage(&machine, memcg);
        assert!((256 - SLACK..=256).contains(&now), "{file}: {now} pages");
        let freed = 512 - now as i64;
        let steal = |cause| stat(&machine, memcg, cause);
        assert_eq!(
            (steal(MemcgStat::PgstealDirect), steal(MemcgStat::PgstealProactive)),
            (freed, 0),
            "{file}"
        );
        assert_eq!(event(&machine, memcg, told), 0, "{file}");
        assert_eq!(reclaim_from(&machine, memcg, 64), Ok(()));
        assert_eq!(steal(MemcgStat::PgstealDirect), freed, "{file}");
        assert!(steal(MemcgStat::PgstealProactive) >= 64, "{file}");
    }
}

/// Each memcg that is over its `memory.high` reclaims and counts that, not only the one furthest over it.
#[test]
fn every_memcg_over_its_high_limit_counts_it() {
    let machine = reclaiming_machine(16);
    let cpu = machine.vcpu(0).unwrap();
    let top = memcg(&machine, MemcgId::ROOT, "top", &[("memory.high", 128)]);
    let below = memcg(&machine, top, "below", &[("memory.high", 256)]);
    // So that nothing leaves it, and it stays over both.
    set(&machine, below, "memory.swap.max", 0);
    let _space = used(&machine, &cpu, below, 512);
    let [at_top, at_below] = [top, below].map(|id| event(&machine, id, MemcgEvent::High));
    assert!(at_top > 0 && at_below > 0, "{at_top} and {at_below} times over memory.high");
    assert_eq!(events(&machine, top, MemcgEvent::High), at_top + at_below);
}

/// Scans by cause are the machine's only if they are for the machine; those of active lists as well.
#[test]
fn scans_are_counted_where_they_belong() {
    let machine = reclaiming_machine(16);
    let cpu = machine.vcpu(0).unwrap();
    let memcg = memcg(&machine, MemcgId::ROOT, "g", &[]);
    let space = used(&machine, &cpu, memcg, 512);
    // Twice used: active.
    for _ in 0..3 {
        assert_eq!(reclaim_from(&machine, memcg, 1), Ok(()));
        assert_filled(&cpu, &space, VirtAddr(GIB), 0..512, 100);
    }
    assert_eq!(reclaim_from(&machine, memcg, 400), Ok(()));
    let refilled = stat(&machine, memcg, MemcgStat::Pgrefill);
    assert!(refilled > 0, "{refilled} pages left the active list");
    assert_eq!(stat(&machine, memcg, MemcgStat::Pgdeactivate), refilled);
    let by_cause = [VmEvent::PgscanProactive, VmEvent::PgstealProactive, VmEvent::Pgrefill];
    assert_eq!(by_cause.map(|event| count(&machine, event)), [0; 3]);
    assert_eq!(count(&machine, VmEvent::Pgdeactivate), refilled as u64);
    assert!(count(&machine, VmEvent::PgstealAnon) >= 400);
    // As the root's is for a memcg, too, it is not the machine's.
    assert_filled(&cpu, &space, VirtAddr(GIB), 0..512, 100);
    assert_eq!(reclaim_from(&machine, MemcgId::ROOT, 400), Ok(()));
    assert_eq!(by_cause.map(|event| count(&machine, event)), [0; 3]);
}
