//! What is done under one pin, which keeps interrupts off, and what may come between two locks: on a machine
//! that counts the frames that are looked at, and calls the test when a lock is dropped.

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
pub(crate) mod machine;

use crate::common::*;
use machine::{
    Machine, ONE, TEST, after_each_hold, at_the_next_look_at_the_clock, exhaust, holds,
    most_holds_under_a_pin, most_under_a_pin, put_all, run_on,
};
use quire_frame::{AllocRequest, PcpTechnique};
use quire_mm::{Memory, MemoryConfig};
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim, Space, Spaces, SpacesConfig};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

/// Hazard: a split looks for zeros in the pages of all mappings of a folio with interrupts off. Under one pin
/// it looks at those of one mapping, twice.
#[test]
fn a_folio_of_many_processes_is_split_under_short_pins() {
    const CHILDREN: usize = 12;
    const MOST: u64 = 4 * 512;
    run_on(0);
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Always);
    let config = MemoryConfig {
        overcommit: Overcommit::Always,
        min_free_kib: Some(0),
        huge: HugeConfig { policy, ..HugeConfig::default() },
        ..MemoryConfig::default()
    };
    let memory = Memory::new(Machine::new(&[(0, 1 << 14)], 1), config).unwrap();
    let parent = memory.create_space().unwrap();
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = parent.mmap(&request).unwrap();
    parent.fault(area, Access::Write).unwrap();
    let children: Vec<_> = (0..CHILDREN).map(|_| parent.fork().unwrap()).collect();
    assert_eq!(memory.frames().events().pmd_mapped(), 1);
    let (split, looked) = most_under_a_pin(|| parent.split_folio(area, Order::ZERO));
    split.unwrap();
    assert_eq!(parent.figures().resident_anonymous, 0, "the folio was all zeros");
    assert!(looked <= MOST, "{looked} frames for {} mappings", children.len() + 1);
}

/// Hazard: a program is moved to another memcg while its pages are copied for a child, and the child stays in
/// the old one, or comes to none.
#[test]
fn a_child_comes_to_the_memcg_where_its_parent_is_in_the_end() {
    run_on(0);
    let config = MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() };
    let memory: &'static _ = Box::leak(Box::new(Memory::new(Machine::new(&[(0, 2048)], 1), config).unwrap()));
    let [old, next] = ["old", "next"].map(|name| memory.create_memcg(MemcgId::ROOT, name).unwrap());
    let parent: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    parent.set_memcg(old).unwrap();
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = parent.mmap(&request).unwrap();
    parent.fault(area, Access::Write).unwrap();
    let step = move || parent.set_memcg(next).unwrap();
    let child = after_each_hold(LockClass::PteTable, step, || parent.fork()).unwrap();
    assert_eq!((parent.memcg(), child.memcg()), (next, next));
    memory.remove_memcg(old).unwrap();
}

/// Hazard: the OOM killer chooses a child that is still being made, whose memory is its parent's.
#[test]
fn the_child_of_a_fork_under_way_is_not_chosen() {
    run_on(0);
    let config = MemoryConfig { min_free_kib: Some(0), oom: OomAction::Kill, ..MemoryConfig::default() };
    let memory: &'static _ = Box::leak(Box::new(Memory::new(Machine::new(&[(0, 4096)], 1), config).unwrap()));
    let parent: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = parent.mmap(&request).unwrap();
    (0..8).for_each(|at| parent.fault(page(area, at), Access::Write).unwrap());
    let mut dropped = 0;
    let step = move || {
        dropped += 1;
        if dropped % 2 == 1 {
            // The lock of the other table of two is still held.
            return;
        }
        let mut made = 0;
        memory.for_each_resident(|id, resident| {
            made += if id == parent.id() { 0 } else { resident.anonymous };
        });
        // It has as much as its parent, and comes before it in the list.
        if made == 8 * PAGE && !parent.oom().is_killed() {
            let _ = Policy.out_of_memory(memory.spaces(), Need::Frames(Order::PMD));
        }
    };
    let child = after_each_hold(LockClass::PteTable, step, || parent.fork()).unwrap();
    assert_eq!((parent.oom().is_killed(), child.oom().is_killed()), (true, false));
    assert_eq!(child.oom().score_adj(), parent.oom().score_adj());
}

/// Hazard: all frames that waited for readers are freed with interrupts off, for a fault that finds no other
/// memory. Under one pin a portion is freed.
#[test]
fn what_waited_for_readers_is_freed_under_short_pins() {
    const TABLES: u64 = 8000;
    const MOST: u64 = 60;
    run_on(0);
    let config =
        MemoryConfig { overcommit: Overcommit::Always, min_free_kib: Some(0), ..MemoryConfig::default() };
    let memory = Memory::new(Machine::new(&[(0, 1 << 15)], 1), config).unwrap();
    let frames = memory.frames();
    let space = memory.create_space().unwrap();
    let map = |addr: u64, len: u64| {
        space.mmap(&MapRequest::anonymous(len, RW).at(VirtAddr(addr), MapFlags::FIXED)).unwrap()
    };
    let (sparse, other) = (map(1 << 40, TABLES * MIB2), map(1 << 30, 2 * PAGE));
    (0..TABLES).for_each(|nth| space.fault(VirtAddr(sparse.0 + nth * MIB2), Access::Write).unwrap());
    space.fault(other, Access::Write).unwrap();
    let taken = {
        let pin = frames.platform().pin();
        let _reader = frames.epoch().enter(&pin);
        // What is retired from now on waits for the fault's section of the epoch, too.
        frames.limbo().push_epoch();
        space.munmap(sparse, TABLES * MIB2).unwrap();
        exhaust(frames, ONE)
    };
    let before = frames.events().sum(VmEvent::LimboFreed);
    let (fault, holds) = most_holds_under_a_pin(|| space.fault(page(other, 1), Access::Write));
    fault.unwrap();
    assert!(frames.events().sum(VmEvent::LimboFreed) - before >= TABLES, "all of them were freed");
    assert!(holds <= MOST, "{holds} locks under one pin");
    put_all(frames, taken, Order::ZERO);
}

/// Hazard: a mapping is split while a collapse looks for a block with no lock held. Blocks of one part are
/// counted as those of the other, and the call fails though all of them are collapsed.
#[test]
fn a_mapping_that_is_split_while_a_block_is_looked_for_is_collapsed() {
    const BLOCKS: u64 = 3;
    run_on(0);
    let policy = HugePolicy::MADVISE.with_sizes(OrderSet::PMD, SizeEnabled::Madvise);
    let config = MemoryConfig {
        overcommit: Overcommit::Always,
        min_free_kib: Some(0),
        huge: HugeConfig { policy, ..HugeConfig::default() },
        ..MemoryConfig::default()
    };
    let memory: &'static _ =
        Box::leak(Box::new(Memory::new(Machine::new(&[(0, 1 << 13)], 1), config).unwrap()));
    let frames = memory.frames();
    let space: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    let request = MapRequest::anonymous(BLOCKS * MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    (0..BLOCKS).for_each(|nth| space.fault(VirtAddr(area.0 + nth * MIB2), Access::Write).unwrap());
    let waits = frames.allocate(&frames.platform().pin(), ONE).unwrap();
    let mut taken = exhaust(frames, AllocRequest::new(Order::PMD, TEST));
    // There is one for the first block.
    put_all(frames, taken.pop(), Order::PMD);
    let step = move || {
        if frames.events().pmd_mapped() == 1 && !taken.is_empty() {
            put_all(frames, taken.drain(..), Order::PMD);
            space.madvise(area, MIB2, Advice::DontDump).unwrap();
            let pin = frames.platform().pin();
            let _reader = frames.epoch().enter(&pin);
            // Something is free at once.
            frames.limbo().retire(&pin, waits, Order::ZERO).unwrap();
        }
    };
    let collapsed =
        after_each_hold(LockClass::Mmap, step, || space.madvise(area, BLOCKS * MIB2, Advice::Collapse));
    assert_eq!((collapsed, frames.events().pmd_mapped()), (Ok(()), BLOCKS));
}

/// Has nothing to free. When it is first asked others free what the test has taken, or what they have.
#[derive(Default)]
struct Beside {
    taken: Mutex<Vec<Pfn>>,
    was_searched: AtomicBool,
    was_asked: AtomicBool,
}

impl Reclaim<Machine> for Beside {
    fn make_room(&self, spaces: &Spaces<Machine>, _: Need) -> u64 {
        let pin = spaces.platform().pin();
        for pfn in self.taken.lock().unwrap().drain(..) {
            spaces.frames().free(&pin, pfn, Order::ZERO).unwrap();
            spaces.note_reclaimed(1);
        }
        self.was_searched.store(true, Ordering::Release);
        0
    }

    fn out_of_memory(&self, _: &Spaces<Machine>, _: Need) -> OomOutcome {
        self.was_asked.store(true, Ordering::Relaxed);
        OomOutcome::Nothing
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        Policy.page_out(spaces, folios)
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

/// A program with a page to touch writes to it while `others` run, which get all frames of the machine. No
/// program is killed for it.
fn assert_finds_what_others_free(
    others: impl FnOnce(&'static Spaces<Machine>, &'static Beside, Vec<Pfn>, &dyn Fn()),
) {
    type Paging = <Machine as Platform>::Paging;
    run_on(0);
    let beside: &'static Beside = Box::leak(Box::default());
    let swap = Swap::new(
        Memcgs::new(machine::frames(&[(0, 2048)], 2, PcpTechnique::All)).unwrap(),
        SwapTechnique::default(),
    );
    let config =
        SpacesConfig { overcommit: Overcommit::Always, oom: OomAction::Kill, ..SpacesConfig::default() };
    let spaces: &'static _ = Box::leak(Box::new(Spaces::new(swap, config, beside).unwrap()));
    let space =
        Space::create(spaces, Layout::standard(<Paging as PagingFormat>::USER_END), Limits::default())
            .unwrap();
    let request = MapRequest::anonymous(PAGE, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    let taken = exhaust(spaces.frames(), AllocRequest::new(Order::ZERO, TEST));
    others(spaces, beside, taken, &|| assert_eq!(space.fault(area, Access::Write), Ok(())));
    assert!(!beside.was_asked.load(Ordering::Relaxed), "a program would have been killed");
    assert_eq!(space.figures().resident_anonymous, PAGE);
}

/// Hazard: a thread asks only what it can free itself, and a program is killed beside frames that others have
/// freed meanwhile.
#[test]
fn frames_that_others_have_freed_are_found_before_a_program_is_killed() {
    assert_finds_what_others_free(|_, beside, taken, write| {
        *beside.taken.lock().unwrap() = taken;
        write();
    });
}

/// Hazard: what a reclaim frees without a note, as by an exit that ends in it, is not looked for when it is
/// over, and a program is killed.
#[test]
fn frames_that_others_free_without_a_note_are_found() {
    assert_finds_what_others_free(|spaces, beside, taken, write| {
        let begun = Barrier::new(2);
        thread::scope(|scope| {
            let begun = &begun;
            scope.spawn(move || {
                run_on(1);
                let reclaiming = spaces.begin_reclaim();
                begun.wait();
                while !beside.was_searched.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                for pfn in taken {
                    spaces.frames().free(&spaces.platform().pin(), pfn, Order::ZERO).unwrap();
                }
                drop(reclaiming);
            });
            begun.wait();
            write();
        });
    });
}

/// Hazard: others free all that there is between the attempt that finds none and the thread's first look at
/// what they have freed. They have done with it, so that is not looked for, and a program is killed.
#[test]
fn frames_that_others_free_before_the_first_look_are_found() {
    assert_finds_what_others_free(|spaces, _, taken, write| {
        at_the_next_look_at_the_clock(move || {
            let reclaiming = spaces.begin_reclaim();
            put_all(spaces.frames(), taken, Order::ZERO);
            spaces.note_reclaimed(1);
            drop(reclaiming);
        });
        write();
    });
}

/// Hazard: a large folio is mapped, and split before the fault has listed it. The split writes the words of
/// the parts as they were, so the flag of what is being listed is lost, and the page is freed on a list. The
/// fault lists the folio under its head lock, which a split holds.
#[test]
fn a_new_large_folio_is_listed_under_its_head_lock() {
    run_on(0);
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let policy = policy.with_sizes(orders(&[4]), SizeEnabled::Always);
    let config = MemoryConfig {
        overcommit: Overcommit::Always,
        min_free_kib: Some(0),
        huge: HugeConfig { policy, ..HugeConfig::default() },
        ..MemoryConfig::default()
    };
    let memory = Memory::new(Machine::new(&[(0, 1 << 13)], 1), config).unwrap();
    memory.swapon(memory.create_compressed_ram(64).unwrap(), SwapOnOptions::default()).unwrap();
    let space = memory.create_space().unwrap();
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = space.mmap(&request).unwrap();
    let listed = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&listed);
    let step = move || {
        assert!(holds(LockClass::Folio), "the folio may be split while it is listed");
        seen.fetch_add(1, Ordering::Relaxed);
    };
    after_each_hold(LockClass::LruIncoming, step, || space.fault(area, Access::Write)).unwrap();
    assert_eq!((space.figures().resident_anonymous, listed.load(Ordering::Relaxed)), (16 * PAGE, 1));
}
