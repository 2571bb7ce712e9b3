//! Pages of zeros, which are swapped in without the cache: against each other, a fork, an unmap and swapoff.

use crate::common::PAGE;
use crate::harness::on_cpu;
use crate::swap_machine::*;
use quire_arch::VirtAddr;
use quire_mm::{frame::VmEvent, space::Advice};
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

/// Another word of the page at `ADDR`.
const SECOND: VirtAddr = VirtAddr(ADDR.0 + 8);

/// Two CPUs write to the page: if each mapped a page of its own there, one write would be lost.
#[test]
fn shuttle_two_faults_of_one_page_of_zeros() {
    Swapping::on(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 0);
        thread::scope(|scope| {
            scope.spawn(|| write(machine, 0, space, ADDR, 5));
            scope.spawn(|| write(machine, 1, space, SECOND, 6));
            scope.spawn(|| reclaim(machine, 2));
        });
        let seen = as_one_step(|| [ADDR, SECOND].map(|addr| read(machine, 0, space, addr)));
        assert_eq!(seen, [5, 6], "a write is lost");
    });
}

#[test]
fn shuttle_a_fork_against_the_return_of_zeros() {
    Swapping::on(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(read(machine, 0, space, ADDR), 0);
                write(machine, 0, space, ADDR, 2);
                assert_eq!(read(machine, 0, space, ADDR), 2);
            });
            scope.spawn(|| {
                let made = on_cpu(machine, 1, space, |_| space.fork()).expect("memory");
                let child = ManuallyDrop::new(made);
                let seen = read(machine, 1, &child, ADDR);
                assert!(seen == 0 || seen == 2, "{seen}");
                write(machine, 1, &child, ADDR, 5);
                assert_eq!(read(machine, 1, &child, ADDR), 5);
                drop(ManuallyDrop::into_inner(child));
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 2);
    });
}

/// The slot is used for another page as soon as it is free: no fault maps that one in the place of zeros.
#[test]
fn shuttle_a_swap_in_of_zeros_against_reuse_of_the_slot() {
    Swapping::on(3).slots(1).check(SOME, |machine, space| {
        written(machine, space, BEFORE, PAGE, 2);
        swapped(machine, space, ADDR, PAGE, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let seen = read(machine, 0, space, ADDR);
                assert!(seen == 0 || seen == 5, "{seen}: another page");
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| space.madvise(ADDR, PAGE, Advice::DontNeed))
                    .expect("it is mapped");
                on_cpu(machine, 1, space, |_| page_out(space, BEFORE, PAGE));
                write(machine, 1, space, ADDR, 5);
            });
            scope.spawn(|| assert_eq!(read(machine, 2, space, BEFORE), 2));
        });
        let seen = as_one_step(|| [ADDR, BEFORE].map(|addr| read(machine, 0, space, addr)));
        assert_eq!(seen, [5, 2]);
    });
}

/// Both the fault and swapoff swap the page in: one of them does.
#[test]
fn shuttle_a_swap_in_of_zeros_against_swapoff() {
    Swapping::on(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 0);
        thread::scope(|scope| {
            scope.spawn(|| write(machine, 0, space, ADDR, 5));
            scope.spawn(|| on_cpu(machine, 1, space, |_| swap_off(machine)).expect("memory holds it"));
            scope.spawn(|| write(machine, 2, space, SECOND, 6));
        });
        let seen = as_one_step(|| [ADDR, SECOND].map(|addr| read(machine, 0, space, addr)));
        assert_eq!(seen, [5, 6], "a write is lost");
        assert_eq!(count(machine, VmEvent::SwpinZero), 1, "the page came back twice");
    });
}
