//! What is done under one pin, which keeps interrupts off, and what may come between two locks: on a machine
//! that counts the frames that are looked at, and calls the test when a lock is dropped.

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
pub(crate) mod machine;

use crate::common::*;
use crate::shortage::{Looks, create, memory_of, spaces_of};
use machine::{
    Machine, ONE, TEST, after_all_holds, after_each_hold, at_the_next_look_at_the_clock, exhaust, holds,
    let_time_fly, most_holds_under_a_pin, most_under_a_pin, put_all, run_on,
};
use quire_frame::AllocRequest;
use quire_reclaim::Policy;
use quire_space::{Need, Reclaim, Spaces};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hazard: a split looks for zeros in the pages of all mappings of a folio with interrupts off. Under one pin
/// it looks at those of one mapping, twice.
#[test]
fn a_folio_of_many_processes_is_split_under_short_pins() {
    const CHILDREN: usize = 12;
    const MOST: u64 = 4 * 512;
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Always);
    let memory = memory_of(1 << 14, 1, |memory| memory.huge.policy = policy);
    let parent = memory.create_space().unwrap();
    let area = map_at(&parent, GIB, MIB2, RW);
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
    let memory = memory_of(2048, 1, |_| ());
    let [old, next] = ["old", "next"].map(|name| memory.create_memcg(MemcgId::ROOT, name).unwrap());
    let parent: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    parent.set_memcg(old).unwrap();
    let area = map_at(parent, GIB, MIB2, RW);
    parent.fault(area, Access::Write).unwrap();
    let step = move || parent.set_memcg(next).unwrap();
    let child = after_each_hold(LockClass::PteTable, step, || parent.fork()).unwrap();
    assert_eq!((parent.memcg(), child.memcg()), (next, next));
    memory.remove_memcg(old).unwrap();
}

/// Hazard: the OOM killer chooses a child that is still being made, whose memory is its parent's.
#[test]
fn the_child_of_a_fork_under_way_is_not_chosen() {
    let memory = memory_of(4096, 1, |memory| memory.oom = OomAction::Kill);
    let parent: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    let area = map_at(parent, GIB, MIB2, RW);
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
    let child = after_each_hold(LockClass::PteTable, step, || parent.fork());
    assert_eq!((parent.oom().is_killed(), memory.frames().events().sum(VmEvent::OomKill)), (true, 1));
    // As on Linux, where the signal ends the call.
    assert_eq!(child.err(), Some(Error::NoFrames(AllocError::OutOfMemory)));
}

/// Hazard: all frames that waited for readers are freed with interrupts off, for a fault that finds no other
/// memory. Under one pin a portion is freed.
#[test]
fn what_waited_for_readers_is_freed_under_short_pins() {
    const TABLES: u64 = 8000;
    const MOST: u64 = 70;
    let memory = memory_of(1 << 15, 1, |_| ());
    let frames = memory.frames();
    let space = memory.create_space().unwrap();
    let sparse = map_at(&space, 1 << 40, TABLES * MIB2, RW);
    let other = map_at(&space, GIB, 2 * PAGE, RW);
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
    let policy = HugePolicy::MADVISE.with_sizes(OrderSet::PMD, SizeEnabled::Madvise);
    let memory = memory_of(1 << 13, 1, |memory| memory.huge.policy = policy);
    let frames = memory.frames();
    let space: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    let area = map_at(space, GIB, BLOCKS * MIB2, RW);
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

/// Hazard: a page is pinned when a collapse has looked for pins, while the table is still in reach, and the
/// device goes on with a page that the program has lost. It is tried whenever a lock of a table is dropped.
#[test]
fn a_page_that_is_pinned_beside_a_collapse_stays_the_programs_own() {
    // Returns whether there was an `nth` such lock, and whether the page is collapsed.
    let pin_at = |nth: usize| {
        let memory = memory_of(1 << 12, 1, |_| ());
        let space: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
        let area = map_at(space, GIB, MIB2, RW);
        space.fault(area, Access::Write).unwrap();
        let pinned: Rc<Cell<Option<PinnedPage<'static, Machine>>>> = Rc::default();
        let (made, mut held, reached) = (Rc::clone(&pinned), 0, Rc::new(Cell::new(false)));
        let reaches = Rc::clone(&reached);
        let step = move |class| {
            if matches!(class, LockClass::PteTable | LockClass::UpperTable) {
                held += 1;
                if held == nth {
                    reaches.set(true);
                    made.set(space.pin_page_fast(area, Access::Write));
                }
            }
        };
        let collapsed = after_all_holds(step, || space.madvise(area, MIB2, Advice::Collapse));
        if let Some(pinned) = pinned.take() {
            let mapped = space.pin_page(area, Access::Read).unwrap();
            assert_eq!(mapped.pfn(), pinned.pfn(), "pinned at lock {nth}: {collapsed:?}");
        }
        (reached.get(), collapsed.is_ok())
    };
    let outcomes: Vec<bool> = (1..).map(pin_at).take_while(|it| it.0).map(|it| it.1).collect();
    assert!(outcomes.contains(&true) && outcomes.contains(&false), "{outcomes:?}");
}

/// A program with a page to touch writes to it while `others` run, which get all frames of the machine. No
/// program is killed for it. When memory is looked for, others free what is in `Looks::taken`.
fn assert_finds_what_others_free(
    others: impl FnOnce(&'static Spaces<Machine>, &'static Looks, Vec<Pfn>, &dyn Fn()),
) {
    let (spaces, looks) = spaces_of(2048, 2, HugePolicy::default());
    looks.at_each(move |_| {
        let freed = looks.give_back(spaces);
        (0..freed).for_each(|_| spaces.note_reclaimed(1));
        0
    });
    let space = create(spaces);
    let area = map_at(space, GIB, PAGE, RW);
    let taken = exhaust(spaces.frames(), ONE);
    others(spaces, looks, taken, &|| assert_eq!(space.fault(area, Access::Write), Ok(())));
    assert_eq!(looks.counts()[1], 0, "a program would have been killed");
    assert_eq!(space.figures().resident_anonymous, PAGE);
}

/// Hazard: a thread asks only what it can free itself, and a program is killed beside frames that others have
/// freed meanwhile.
#[test]
fn frames_that_others_have_freed_are_found_before_a_program_is_killed() {
    assert_finds_what_others_free(|_, looks, taken, write| {
        *looks.taken.lock().unwrap() = taken;
        write();
    });
}

/// Hazard: what a reclaim frees without a note, as by an exit that ends in it, is not looked for when it is
/// over, and a program is killed. It is tried whenever the thread that looks for memory drops a CPU's lists.
#[test]
fn frames_that_others_free_without_a_note_are_found() {
    const LOCKS: u64 = 32;
    let_time_fly();
    for nth in 1..=LOCKS {
        assert_finds_what_others_free(|spaces, looks, taken, write| {
            let (mut held, mut others) = (0, Some((taken, spaces.begin_reclaim())));
            let step = move || {
                held += looks.counts()[0].min(1);
                if held == nth
                    && let Some((taken, reclaiming)) = others.take()
                {
                    run_on(1);
                    put_all(spaces.frames(), taken, Order::ZERO);
                    drop(reclaiming);
                    run_on(0);
                }
            };
            after_each_hold(LockClass::Pcp, step, write);
        });
    }
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
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
    let policy = policy.with_sizes(orders(&[4]), SizeEnabled::Always);
    let memory = memory_of(1 << 13, 1, |memory| memory.huge.policy = policy);
    memory.swapon(memory.create_compressed_ram(64).unwrap(), SwapOnOptions::default()).unwrap();
    let space = memory.create_space().unwrap();
    let area = map_at(&space, GIB, MIB2, RW);
    let listed = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&listed);
    let step = move || {
        assert!(holds(LockClass::Folio), "the folio may be split while it is listed");
        seen.fetch_add(1, Ordering::Relaxed);
    };
    after_each_hold(LockClass::LruIncoming, step, || space.fault(area, Access::Write)).unwrap();
    assert_eq!((space.figures().resident_anonymous, listed.load(Ordering::Relaxed)), (16 * PAGE, 1));
}
