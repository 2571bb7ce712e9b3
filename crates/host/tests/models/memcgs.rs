//! memcgs that are removed while others still find their numbers: in slots, in spaces, on CPUs. A
//! number is reused only when nothing is charged to it and no thread is about to charge something.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::collections::BTreeMap;

/// A memcg two levels below the root, and the one between.
fn nested(machine: &Machine) -> (MemcgId, MemcgId) {
    as_one_step(|| {
        let memcgs = machine.memory().memcgs();
        let above = memcgs.lifecycle().create(MemcgId::ROOT, "above").expect("memory");
        (above, memcgs.lifecycle().create(above, "old").expect("memory"))
    })
}

/// Removes `old`, which no space is in, and makes another memcg as soon as possible, elsewhere in the tree.
/// It may have the same number.
fn replace(machine: &Machine, cpu: usize, old: MemcgId) -> MemcgId {
    let cpu = machine.vcpu(cpu).expect("each CPU has one thread");
    cpu.run(|| {
        let memcgs = machine.memory().memcgs();
        memcgs.lifecycle().remove(old).expect("no space is in it");
        memcgs.lifecycle().create(MemcgId::ROOT, "new").expect("memory")
    })
}

/// The charges of each memcg equal the frames and slots that name it, and no frame is charged to a removed
/// memcg.
fn assert_charges(machine: &Machine) {
    as_one_step(|| {
        let (memcgs, frames) = (machine.memory().memcgs(), machine.memory().frames());
        memcgs.charges().drain_stocks(&machine.memory().platform().pin());
        let mut charged = BTreeMap::<u16, u64>::new();
        frames.audit().for_each_frame(|_, frame| {
            if frame.kind().is_given_out() {
                let pages = frame.word().order().pages();
                *charged.entry(frame.as_folio().memcg()).or_default() += pages;
            }
        });
        memcgs.tree().for_each_in_subtree(MemcgId::ROOT, |id| {
            let expected = charged.remove(&id.get()).unwrap_or(0);
            if !id.is_root() {
                assert_eq!(memcgs.charges().charged(id), expected, "{id} is charged other pages than it has");
            }
        });
        assert!(charged.is_empty(), "pages are charged to memcgs that are gone: {charged:?}");
    });
}

/// Nothing is charged to these memcgs: they can be removed, and then they are gone.
fn assert_over(machine: &Machine, all: &[MemcgId]) {
    assert_charges(machine);
    as_one_step(|| {
        let memcgs = machine.memory().memcgs();
        for &memcg in all {
            assert_eq!(
                (memcgs.charges().usage(memcg), memcgs.charges().swap_usage(memcg)),
                (0, 0),
                "{memcg} is charged"
            );
            assert!(matches!(memcgs.lifecycle().remove(memcg), Ok(()) | Err(MemcgError::NoMemcg)));
        }
    });
}

/// The page is freed, and with it the memcg's last charge, while another CPU is about to swap it in: it read
/// the memcg before that, and charges it after.
#[test]
fn shuttle_a_swap_in_for_a_memcg_that_ends() {
    for value in [1, 0] {
        with_swap(2).check(SOME, move |machine, space| {
            let (above, old) = nested(machine);
            as_one_step(|| space.set_memcg(old)).expect("the memcg is there");
            swapped(machine, space, ADDR, PAGE, value);
            as_one_step(|| space.set_memcg(MemcgId::ROOT)).expect("the root is there");
            let mut new = MemcgId::ROOT;
            thread::scope(|scope| {
                scope.spawn(|| {
                    let seen = read(machine, 0, space, ADDR);
                    assert!(seen == 0 || seen == value, "{seen}");
                });
                scope.spawn(|| {
                    on_cpu(machine, 1, space, |_| space.madvise(ADDR, PAGE, Advice::DontNeed))
                        .expect("mapped");
                    new = replace(machine, 1, old);
                });
            });
            assert_charges(machine);
            as_one_step(|| space.madvise(ADDR, PAGE, Advice::DontNeed)).expect("mapped");
            assert_over(machine, &[new, old, above]);
        });
    }
}

/// The memcg's last charge moves from its slot to its page while another thread looks whether there is one.
#[test]
fn shuttle_the_last_charge_moves_while_its_memcg_ends() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(machine);
        as_one_step(|| space.set_memcg(old)).expect("the memcg is there");
        swapped(machine, space, ADDR, PAGE, 1);
        as_one_step(|| space.set_memcg(MemcgId::ROOT)).expect("the root is there");
        let mut new = MemcgId::ROOT;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), 1));
            scope.spawn(|| new = replace(machine, 1, old));
        });
        // What is swapped in once the memcg was removed is charged to the program's, which is the root: then
        // nothing keeps the number.
        if new == old {
            let memcgs = machine.memory().memcgs();
            let left = as_one_step(|| (memcgs.charges().usage(new), memcgs.charges().swap_usage(new)));
            assert_eq!(left, (0, 0), "the number is used again while something is charged to it");
        }
        assert_charges(machine);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::DontNeed)).expect("mapped");
        assert_over(machine, &[new, old, above]);
    });
}

/// A program leaves the memcg while it gets its first page there.
#[test]
fn shuttle_a_first_write_while_its_memcg_ends() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(machine);
        as_one_step(|| space.set_memcg(old)).expect("the memcg is there");
        map(space, ADDR, 1);
        let mut new = MemcgId::ROOT;
        thread::scope(|scope| {
            scope.spawn(|| write(machine, 0, space, ADDR, 1));
            scope.spawn(|| {
                // In one step, since each point of the other's is to be tried.
                as_one_step(|| {
                    space.set_memcg(MemcgId::ROOT).expect("the root is there");
                    new = replace(machine, 1, old);
                });
            });
        });
        assert_charges(machine);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::DontNeed)).expect("mapped");
        assert_over(machine, &[new, old, above]);
    });
}

/// A fast pin takes a reference to a page of a private file, in vain, and drops it while the program makes
/// the page its own and unmaps it. The last reference says whether it counted as a page of a file.
#[test]
fn shuttle_a_fast_pin_of_a_file_page_that_becomes_anonymous() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, memcg) = nested(machine);
        as_one_step(|| {
            space.set_memcg(memcg).expect("the memcg is there");
            let file = Some(MappedFile::new(1, 0));
            let request = MapRequest { file, ..MapRequest::anonymous(PAGE, RW) };
            space.mmap(&request.at(ADDR, MapFlags::FIXED)).expect("memory");
            space.fault(ADDR, Access::Read).expect("mapped");
            let file = machine.memory().memcgs().counters().stats(above)[MemcgStat::File as usize];
            assert_eq!(file, 1);
            space.set_memcg(MemcgId::ROOT).expect("the root is there");
        });
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || drop(space.pin_page_fast(ADDR, Access::Read))));
            scope.spawn(|| {
                // It takes the page where it lies if nothing else has a reference when it looks.
                space.fault(ADDR, Access::Write).expect("mapped");
                as_one_step(|| space.munmap(ADDR, PAGE)).expect("the end of a mapping can go");
            });
        });
        as_one_step(|| {
            let file = machine.memory().memcgs().counters().stats(above)[MemcgStat::File as usize];
            assert_eq!(file, 0, "a page of a file is counted that is gone, or one was subtracted twice");
        });
        assert_over(machine, &[memcg, above]);
    });
}

/// A program changes its memcg beside its fork, and the memcg that it was in is removed, and its number used
/// again. The child is in one of the program's memcgs, and in the last one if that was removed.
#[test]
fn shuttle_a_fork_against_a_change_of_the_memcg() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(machine);
        let next =
            as_one_step(|| machine.memory().memcgs().lifecycle().create(above, "next")).expect("memory");
        as_one_step(|| space.set_memcg(old)).expect("the memcg is there");
        let (mut child, mut removed) = (None, Ok(()));
        thread::scope(|scope| {
            scope.spawn(|| child = Some(fork_on(machine, 0, space)));
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    space.set_memcg(next).expect("the memcg is there");
                    let memcgs = machine.memory().memcgs();
                    removed = memcgs.lifecycle().remove(old);
                    memcgs.lifecycle().create(MemcgId::ROOT, "new").expect("memory");
                });
            });
        });
        let child = child.expect("it was made");
        // Either the change came first, or the child had come to the old one by then.
        assert!(child.memcg() == next || child.memcg() == old && removed == Err(MemcgError::Busy));
        assert_eq!(space.memcg(), next);
    });
}

/// A memcg with protected pages is removed while the last ones are uncharged, on two CPUs. Nothing of what it
/// claimed is left in the sum of its parent, which its sibling's share depends on.
#[test]
fn shuttle_the_removal_of_a_protected_memcg_against_its_last_pages() {
    with_swap(2).check(SOME, |machine, _| {
        let (above, old) = nested(machine);
        let memcgs = machine.memory().memcgs();
        let pin = || machine.memory().platform().pin();
        let other = as_one_step(|| {
            for (memcg, pages) in [(above, 100), (old, 400)] {
                let _ = memcgs.files().set(memcg, Limit::Low, Some(pages * PAGE)).expect("it is there");
            }
            let other = memcgs.lifecycle().create(above, "other").expect("memory");
            memcgs.charges().charge_anyway(&pin(), other, 50);
            memcgs.charges().charge_anyway(&pin(), old, 400);
            other
        });
        thread::scope(|scope| {
            // So many that they are not put in stock.
            scope.spawn(|| as_cpu(machine, 0, || memcgs.charges().uncharge(&pin(), old, 200)));
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    memcgs.charges().uncharge(&pin(), old, 200);
                    memcgs.lifecycle().remove(old).expect("no space is in it");
                });
            });
        });
        as_one_step(|| {
            memcgs.charges().drain_stocks(&pin());
            (0..3).for_each(|_| memcgs.lifecycle().sweep());
            assert_eq!(memcgs.tree().next_in_subtree(old, None), None, "it is gone");
            assert_eq!(memcgs.tree().protection(MemcgId::ROOT, other).low, 100);
            memcgs.charges().uncharge(&pin(), other, 50);
            memcgs.charges().drain_stocks(&pin());
        });
        assert_over(machine, &[other, above]);
    });
}

/// Two threads move a killed program at once. The one that comes first is overtaken before it counts the
/// program where it has put it; that memcg is removed, and its number used again. Each memcg counts the
/// killed programs that are in it, or its next shortage waits for ever for one that is not.
#[test]
fn shuttle_a_killed_program_that_two_threads_move() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, between) = nested(machine);
        let memcgs = machine.memory().memcgs();
        let last = as_one_step(|| memcgs.lifecycle().create(MemcgId::ROOT, "last")).expect("memory");
        as_one_step(|| assert!(space.oom().kill()));
        let mut new = MemcgId::ROOT;
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || _ = space.set_memcg(between)));
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    space.set_memcg(last).expect("the memcg is there");
                    let _ = memcgs.lifecycle().remove(between);
                    new = memcgs.lifecycle().create(MemcgId::ROOT, "new").expect("memory");
                });
            });
        });
        as_one_step(|| {
            for memcg in [above, between, last, new].into_iter().filter(|memcg| !memcg.is_root()) {
                let expected = u32::from(memcgs.tree().is_below(space.memcg(), memcg));
                assert_eq!(memcgs.tree().killed(memcg), expected, "{memcg} counts programs elsewhere");
            }
        });
    });
}

/// A removed memcg has no switches. What it has on devices keeps it, and goes where the memcgs above allow.
#[test]
fn shuttle_a_switch_is_written_while_its_memcg_is_removed() {
    with_swap(2).check(SOME, |machine, space| {
        let (above, old) = nested(machine);
        as_one_step(|| space.set_memcg(old)).expect("the memcg is there");
        swapped(machine, space, ADDR, PAGE, 1);
        as_one_step(|| space.set_memcg(MemcgId::ROOT)).expect("the root is there");
        let memory = machine.memory();
        thread::scope(|scope| {
            scope.spawn(|| {
                as_cpu(machine, 0, || {
                    let written = memory.write_memcg_file(old, "memory.zswap.writeback", "0");
                    assert!(matches!(written, Ok(_) | Err(MemcgError::NoMemcg)), "{written:?}");
                });
            });
            scope.spawn(|| as_cpu(machine, 1, || memory.remove_memcg(old)).expect("no space is in it"));
        });
        as_one_step(|| {
            assert_eq!(memory.memcgs().charges().swap_usage(old), 1, "it is kept");
            assert!(memory.memcgs().zswap().writes_back(old), "a removed memcg has a switch");
            space.madvise(ADDR, PAGE, Advice::DontNeed).expect("mapped");
        });
        assert_over(machine, &[old, above]);
    });
}
