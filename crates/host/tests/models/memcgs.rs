//! memcgs that are removed while others still find their numbers: in slots, in spaces, on CPUs. A
//! number is reused only when nothing is charged to it and no thread is about to charge something.

use crate::common::PAGE;
use crate::harness::{map, on_cpu};
use crate::swap_machine::*;
use quire_arch::Platform;
use quire_host::Machine;
use quire_mm::{
    memcg::{MemcgError, MemcgId},
    space::Advice,
};
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::collections::BTreeMap;

/// A memcg two levels below the root, and the one between.
fn nested(machine: &Machine) -> (MemcgId, MemcgId) {
    as_one_step(|| {
        let memcgs = machine.memory().memcgs();
        let above = memcgs.create(MemcgId::ROOT, "above").expect("memory");
        (above, memcgs.create(above, "old").expect("memory"))
    })
}

/// Removes `old`, which no space is in, and makes another memcg as soon as possible, elsewhere in the tree.
/// It may have the same number.
fn replace(machine: &Machine, cpu: usize, old: MemcgId) -> MemcgId {
    let cpu = machine.vcpu(cpu).expect("each CPU has one thread");
    cpu.run(|| {
        let memcgs = machine.memory().memcgs();
        memcgs.remove(old).expect("no space is in it");
        memcgs.create(MemcgId::ROOT, "new").expect("memory")
    })
}

/// The charges of each memcg equal the frames and slots that name it, and no frame is charged to a removed
/// memcg.
fn assert_charges(machine: &Machine) {
    as_one_step(|| {
        let (memcgs, frames) = (machine.memory().memcgs(), machine.memory().frames());
        memcgs.drain_stocks(&machine.memory().platform().pin());
        let mut charged = BTreeMap::<u16, u64>::new();
        frames.for_each_frame(|_, frame| {
            if frame.kind().is_given_out() {
                let pages = frame.word().order().pages();
                *charged.entry(frame.as_folio().memcg()).or_default() += pages;
            }
        });
        memcgs.for_each_in_subtree(MemcgId::ROOT, |id| {
            let expected = charged.remove(&id.get()).unwrap_or(0);
            if !id.is_root() {
                assert_eq!(memcgs.charged(id), expected, "{id} is charged other pages than it has");
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
            assert_eq!((memcgs.usage(memcg), memcgs.swap_usage(memcg)), (0, 0), "{memcg} is charged");
            assert!(matches!(memcgs.remove(memcg), Ok(()) | Err(MemcgError::NoMemcg)));
        }
    });
}

/// The page is freed, and with it the memcg's last charge, while another CPU is about to swap it in: it read
/// the memcg before that, and charges it after.
#[test]
fn shuttle_a_swap_in_for_a_memcg_that_ends() {
    for value in [1, 0] {
        Swapping::on(2).check(SOME, move |machine, space| {
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
    Swapping::on(2).check(SOME, |machine, space| {
        let (above, old) = nested(machine);
        as_one_step(|| space.set_memcg(old)).expect("the memcg is there");
        swapped(machine, space, ADDR, PAGE, 1);
        as_one_step(|| space.set_memcg(MemcgId::ROOT)).expect("the root is there");
        let mut new = MemcgId::ROOT;
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), 1));
            scope.spawn(|| new = replace(machine, 1, old));
        });
        assert_ne!(new, old, "the number is used again while something is charged to it");
        assert_charges(machine);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::DontNeed)).expect("mapped");
        assert_over(machine, &[new, old, above]);
    });
}

/// A program leaves the memcg while it gets its first page there.
#[test]
fn shuttle_a_first_write_while_its_memcg_ends() {
    Swapping::on(2).check(SOME, |machine, space| {
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
