//! Memcgs that are removed while pages of shared memory are charged to them.

use crate::common::*;
use quire_frame::Kind;
use quire_host::swap::HostRam;

/// Of so many pages one is not all zeros, and stays in memory.
const STAYS: u64 = 16;
/// Removed memcgs that may be kept until what belongs to them is looked for, and while it is freed.
const KEPT: u64 = 1024 + 64;

/// Memcgs that there are, without the root.
fn memcgs(machine: &Machine) -> u64 {
    let mut memcgs = 0;
    machine.memory().memcgs().tree().for_each_in_subtree(MemcgId::ROOT, |_| memcgs += 1);
    memcgs - 1
}

/// What a memcg has: pages in memory, of these pages of shared memory as `memory.stat` counts them, slots.
fn has(machine: &Machine, memcg: MemcgId) -> (u64, i64, u64) {
    let shmem = machine.memory().memcgs().counters().stats(memcg)[MemcgStat::Shmem as usize];
    (usage(machine, memcg), shmem, swap_usage(machine, memcg))
}

/// A program that has shared memory, and goes from one memcg to the next.
struct Visitor<'m> {
    machine: &'m Machine,
    cpu: &'m Vcpu,
    space: HostSpace<'m>,
    area: VirtAddr,
    above: MemcgId,
}

impl<'m> Visitor<'m> {
    fn new(machine: &'m Machine, cpu: &'m Vcpu, pages: u64) -> Self {
        let above = memcg(machine, "above", &[]);
        let space = create_space(machine);
        let request = MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(pages * PAGE, RW) };
        let area = space.mmap(&request).unwrap();
        Self { machine, cpu, space, area, above }
    }

    /// Gets page `nth` in a memcg of its own, which is removed then.
    fn visit(&self, nth: u64, pages_out: bool) {
        let memory = self.machine.memory();
        let here = page(self.area, nth);
        let one = memory.create_memcg(self.above, &format!("m{nth}")).unwrap();
        self.space.set_memcg(one).unwrap();
        if nth.is_multiple_of(STAYS) {
            write(self.cpu, &self.space, here, nth + 1);
        } else if pages_out {
            // One that is only read is no page any more.
            write(self.cpu, &self.space, here, 0);
            self.space.madvise(here, PAGE, Advice::PageOut).unwrap();
        } else {
            read(self.cpu, &self.space, here);
        }
        self.space.set_memcg(MemcgId::ROOT).unwrap();
        memory.remove_memcg(one).unwrap();
    }

    /// All that removed memcgs have left goes to the one above.
    fn search(&self) {
        let reparenting = self.machine.memory().swap().reparenting();
        // The second time there is none.
        assert!(reparenting.free_numbers() && !reparenting.free_numbers());
        assert_eq!(memcgs(self.machine), 1, "a number is lost");
    }
}

/// Hazard: memcgs that share memory live as long as it does, and use up all numbers, of which there are
/// 32 767.
#[test]
fn a_hundred_thousand_memcgs_that_shared_memory_leave_no_number_behind() {
    let pages = setting("QUIRE_MEMCGS", 100_000);
    let host = HostConfig::with_ram(64 << 20);
    let machine = Setup::of(host).overcommit().build();
    swap_on(&machine, HostRam::new(pages as usize).unwrap());
    let cpu = machine.vcpu(0).unwrap();
    let visitor = Visitor::new(&machine, &cpu, pages);
    for nth in 0..pages {
        visitor.visit(nth, true);
        if nth.is_multiple_of(4096) {
            assert!(memcgs(&machine) <= KEPT + 1, "{} memcgs after {nth}", memcgs(&machine));
        }
    }
    let stay = pages.div_ceil(STAYS);
    assert_eq!(has(&machine, visitor.above), (stay, stay as i64, pages - stay));
    assert_audit(&machine);
    visitor.search();
    assert_eq!(has(&machine, visitor.above), (stay, stay as i64, pages - stay));
    let charges = machine.memory().memcgs().charges();
    assert_eq!(charges.charged(visitor.above), stay, "they are its own now");
    assert_audit(&machine);
    for nth in (0..pages).step_by(977) {
        let value = if nth.is_multiple_of(STAYS) { nth + 1 } else { 0 };
        assert_eq!(read(&cpu, &visitor.space, page(visitor.area, nth)), value);
    }
    let Visitor { space, above, .. } = visitor;
    drop(space);
    assert_eq!(has(&machine, above), (0, 0, 0));
    assert_audit(&machine);
}

/// Hazard: a page that another thread has locked during the one search after a removal keeps the number of
/// its memcg, and no memcg can be made, until one is removed.
#[test]
fn what_was_busy_is_looked_for_again_when_numbers_are_short() {
    let machine = Setup::of(HostConfig::with_ram(8 << 20)).overcommit().build();
    let cpu = machine.vcpu(0).unwrap();
    let visitor = Visitor::new(&machine, &cpu, 4);
    visitor.visit(1, false);
    let frames = machine.memory().frames();
    let mut busy = None;
    frames.audit().for_each_frame(|head, frame| {
        if frame.kind() == Kind::Shmem {
            busy = Some(head);
        }
    });
    let lock = frames.folios().try_lock_folio(busy.unwrap()).unwrap();
    let reparenting = machine.memory().swap().reparenting();
    assert!(reparenting.free_numbers());
    assert_eq!(memcgs(&machine), 2, "it is busy");
    drop(lock);
    visitor.search();
    assert_eq!(has(&machine, visitor.above), (1, 1, 0));
    assert_audit(&machine);
}

/// Before the first swap device no page is on a list.
#[test]
fn what_is_on_no_list_goes_to_the_memcg_above_too() {
    const PAGES: u64 = 2100;
    let machine = Setup::of(HostConfig::with_ram(32 << 20)).overcommit().build();
    let cpu = machine.vcpu(0).unwrap();
    let visitor = Visitor::new(&machine, &cpu, PAGES);
    (0..PAGES).for_each(|nth| visitor.visit(nth, false));
    assert!(memcgs(&machine) <= KEPT + 1, "{} memcgs", memcgs(&machine));
    visitor.search();
    assert_eq!(has(&machine, visitor.above), (PAGES, PAGES as i64, 0));
    assert_audit(&machine);
    // They are listed where they are now.
    swap_on_ram(&machine, 4096);
    assert_audit(&machine);
    machine.memory().memcgs().folios().take_in(None);
    let sizes = machine.memory().memcgs().folios().sizes(visitor.above, NodeId::FIRST);
    assert_eq!(sizes[LruList::InactiveAnon as usize], PAGES);
    let Visitor { space, above, .. } = visitor;
    drop(space);
    assert_eq!(has(&machine, above), (0, 0, 0));
}
