//! Discarding lazily freed pages (MADV_FREE) against writes, forks and unmaps of them.

use crate::common::{NOT_MAPPED, PAGE};
use crate::harness::{Fact, on_cpu};
use crate::swap_machine::*;
use quire_mm::space::Advice;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

/// A program frees the page lazily and writes to it nevertheless: what it wrote is not discarded.
#[test]
fn shuttle_a_discard_against_a_write() {
    Swapping::on(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::Free).expect("mapped"));
        thread::scope(|scope| {
            scope.spawn(|| {
                let seen = read(machine, 0, space, ADDR);
                assert!(seen == 0 || seen == 7, "{seen}");
                write(machine, 0, space, ADDR, 9);
                assert_eq!(read(machine, 0, space, ADDR), 9, "a lost write");
            });
            scope.spawn(|| reclaim(machine, 1));
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, ADDR), 9);
            machine.memory().reclaim(quire_mm::memcg::MemcgId::ROOT, 1);
            assert_eq!(read(machine, 0, space, ADDR), 9);
        });
    });
}

/// The same beside a fork: what was written before it is in both, and what the parent writes after it is not
/// lost.
#[test]
fn shuttle_a_discard_against_a_fork() {
    Swapping::on(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::Free).expect("mapped"));
        let first = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ADDR, 8);
                first.tell();
                write(machine, 0, space, ADDR, 9);
                assert_eq!(read(machine, 0, space, ADDR), 9, "a lost write");
            });
            scope.spawn(|| {
                let late = first.is_told();
                let made = on_cpu(machine, 1, space, |_| space.fork()).expect("memory");
                let child = ManuallyDrop::new(made);
                let seen = read(machine, 1, &child, ADDR);
                assert!(seen == 8 || seen == 9 || (seen == 7 || seen == 0) && !late, "{seen}");
                drop(ManuallyDrop::into_inner(child));
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, ADDR), 9);
            let child = space.fork().expect("memory");
            machine.memory().reclaim(quire_mm::memcg::MemcgId::ROOT, 2);
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (9, 9));
        });
    });
}

#[test]
fn shuttle_a_discard_against_the_unmapping_of_its_page() {
    Swapping::on(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::Free).expect("mapped"));
        let gone = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |program| {
                    for _ in 0..2 {
                        let late = gone.is_told();
                        let seen = program.read_u64(ADDR);
                        let before = matches!(seen, Ok(0 | 7)) && !late;
                        assert!(seen == Err(NOT_MAPPED) || before, "{seen:?}");
                    }
                });
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| space.munmap(ADDR, PAGE).expect("a whole mapping"));
                gone.tell();
            });
            scope.spawn(|| reclaim(machine, 2));
        });
    });
}
