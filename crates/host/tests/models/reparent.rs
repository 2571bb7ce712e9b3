//! What a removed memcg has goes to the one above it, while programs free, page out and swap in just that.

use crate::machines::*;
use crate::shmem::shared;
use quire_frame::FrameFlags;
use quire_memcg::{Begin, Most};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// A memcg below another one, and in it a program, which goes to the root once it has done `prepare`.
fn nested(space: &HostSpace<'_>, machine: &Machine, prepare: impl FnOnce()) -> (MemcgId, MemcgId) {
    let memory = machine.memory();
    let (above, old) = as_one_step(|| {
        let above = memory.create_memcg(MemcgId::ROOT, "above").expect("memory");
        let old = memory.create_memcg(above, "old").expect("memory");
        space.set_memcg(old).expect("the memcg is there");
        (above, old)
    });
    prepare();
    as_one_step(|| space.set_memcg(MemcgId::ROOT)).expect("the root is there");
    (above, old)
}

/// Removes the memcg, and looks for all that is left of it.
fn remove(machine: &Machine, cpu: usize, old: MemcgId) {
    as_cpu(machine, cpu, || {
        machine.memory().remove_memcg(old).expect("no space is in it");
        machine.memory().swap().reparenting().free_numbers();
    });
}

/// Both are gone once nothing is left in them but what the other thread had in hand: each charge is where the
/// folio or the slot says.
fn assert_over(machine: &Machine, space: &HostSpace<'_>, above: MemcgId) {
    audit(machine);
    as_one_step(|| {
        let memory = machine.memory();
        let next = memory.create_memcg(MemcgId::ROOT, "next").expect("memory");
        memory.remove_memcg(next).expect("no space is in it");
        memory.swap().reparenting().free_numbers();
        let mut left = Vec::new();
        memory.memcgs().tree().for_each_in_subtree(MemcgId::ROOT, |id| left.push(id));
        assert_eq!(left, [MemcgId::ROOT, above], "a number is lost");
    });
    audit(machine);
    as_one_step(|| {
        space.munmap(ADDR, PAGE).expect("mapped");
        let charges = machine.memory().memcgs().charges();
        charges.drain_stocks(&machine.memory().platform().pin());
        assert_eq!((charges.usage(above), charges.swap_usage(above)), (0, 0));
        machine.memory().remove_memcg(above).expect("it is empty");
    });
}

/// The thread that drops the last reference to the page uncharges the memcg that the page names.
#[test]
fn shuttle_a_page_changes_its_memcg_while_it_is_freed() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(space, machine, || written(machine, space, ADDR, PAGE, 1));
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| space.madvise(ADDR, PAGE, Advice::DontNeed)).expect("mapped");
            });
            scope.spawn(|| remove(machine, 1, old));
        });
        assert_over(machine, space, above);
    });
}

/// The slot is charged to the memcg that the page named when page-out asked for it.
#[test]
fn shuttle_a_page_changes_its_memcg_while_it_is_paged_out() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(space, machine, || written(machine, space, ADDR, PAGE, 1));
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| page_out(space, ADDR, PAGE));
            });
            scope.spawn(|| remove(machine, 1, old));
        });
        as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 1));
        assert_over(machine, space, above);
    });
}

/// The page is charged to the memcg that the slot named before.
#[test]
fn shuttle_a_slot_changes_its_memcg_while_it_is_swapped_in() {
    // A page of zeros comes back by another path.
    for value in [1, 0] {
        with_swap(2).check(SOME, move |machine, space| {
            let (above, old) = nested(space, machine, || swapped(machine, space, ADDR, PAGE, value));
            thread::scope(|scope| {
                scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), value));
                scope.spawn(|| remove(machine, 1, old));
            });
            assert_over(machine, space, above);
        });
    }
}

/// A page that is in memory and has its slot still changes its memcg with that, while the other name of the
/// slot goes.
#[test]
fn shuttle_a_page_changes_its_memcg_with_its_slot() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(space, machine, || swapped(machine, space, ADDR, PAGE, 1));
        let child = as_one_step(|| space.fork()).expect("memory");
        as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 1));
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, &child, |_| child.madvise(ADDR, PAGE, Advice::DontNeed)).expect("mapped");
                reclaim(machine, 0);
            });
            scope.spawn(|| remove(machine, 1, old));
        });
        as_one_step(|| drop(child));
        assert_over(machine, space, above);
    });
}

/// Shared memory goes out and comes back, and counts as such in the right memcg.
#[test]
fn shuttle_shared_memory_changes_its_memcg_on_its_way_out_and_back() {
    with_swap(3).check(SOME, |machine, space| {
        let (above, old) = nested(space, machine, || shared(machine, space));
        thread::scope(|scope| {
            scope.spawn(|| reclaim(machine, 0));
            scope.spawn(|| assert_eq!(read(machine, 1, space, ADDR), 1));
            scope.spawn(|| remove(machine, 2, old));
        });
        assert_over(machine, space, above);
    });
}

/// The first swap device comes, with which pages are listed, while one that is on no list changes its memcg.
#[test]
fn shuttle_a_page_changes_its_memcg_while_it_is_listed() {
    with_swap(2).slots(0).check(SOME, |machine, space| {
        let (above, old) = nested(space, machine, || shared(machine, space));
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || swap_on_ram(machine, 8)));
            scope.spawn(|| remove(machine, 1, old));
        });
        as_one_step(|| {
            let folios = machine.memory().memcgs().folios();
            folios.take_in(None);
            assert_eq!(
                folios.subtree_sizes(MemcgId::ROOT)[LruList::InactiveAnon as usize],
                1,
                "it is not listed"
            );
        });
        assert_over(machine, space, above);
    });
}

/// Without a swap device a page is on no list until it is freed lazily. Whatever comes first, it is on a list
/// of the memcg that it names.
#[test]
fn shuttle_a_page_changes_its_memcg_while_it_is_freed_lazily() {
    with_swap(2).slots(0).check(SOME, |machine, space| {
        let (above, old) = nested(space, machine, || written(machine, space, ADDR, PAGE, 1));
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| space.madvise(ADDR, PAGE, Advice::Free)).expect("mapped");
                as_cpu(machine, 0, || machine.memory().memcgs().folios().take_in(None));
            });
            scope.spawn(|| remove(machine, 1, old));
        });
        as_one_step(|| {
            let folios = machine.memory().memcgs().folios();
            folios.take_in(None);
            assert_eq!(folios.subtree_sizes(MemcgId::ROOT)[LruList::InactiveFile as usize], 1);
        });
        assert_over(machine, space, above);
    });
}

/// Without a swap device reclaim takes a page that was freed lazily off its list, and puts it back since it
/// was written to. Then it is on a list of the memcg that it names.
#[test]
fn shuttle_a_page_changes_its_memcg_while_it_is_put_back() {
    with_swap(2).slots(0).check(4 * SOME, |machine, space| {
        let (above, old) = nested(space, machine, || written(machine, space, ADDR, PAGE, 1));
        let folios = machine.memory().memcgs().folios();
        let isolated = as_one_step(|| {
            space.madvise(ADDR, PAGE, Advice::Free).expect("mapped");
            folios.take_in(None);
            let mut isolated = Vec::new();
            let from = (old, NodeId::FIRST, LruList::InactiveFile);
            let pin = machine.memory().platform().pin();
            folios.isolate(&pin, from, (Begin::Oldest, Most::folios(1)), |_| true, &mut isolated);
            // As where it is found dirty.
            machine.memory().frames().known(isolated[0]).clear_flags(FrameFlags::LAZY_FREE);
            machine.memory().remove_memcg(old).expect("no space is in it");
            isolated[0]
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                as_cpu(machine, 0, || {
                    folios.put_back(&machine.memory().platform().pin(), isolated, LruList::ActiveAnon, true);
                    folios.release_folio(isolated);
                });
            });
            scope.spawn(|| as_cpu(machine, 1, || machine.memory().swap().reparenting().free_numbers()));
        });
        assert_over(machine, space, above);
    });
}
