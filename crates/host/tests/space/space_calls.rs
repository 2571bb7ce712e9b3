//! Results and counts of single calls that random programs hardly ever reach. The expected values are
//! Linux's.

use crate::common::*;
use std::fmt;

const BASE: u64 = GIB;

/// `mincore` of a hole of several tables reports each of its pages.
#[test]
fn mincore_reports_every_page_of_a_hole_between_tables() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let last = 4 * MIB2 / PAGE - 1;
    let addr = map_at(&space, BASE, 4 * MIB2, RW);
    for at in [0, last] {
        cpu.program(&space).write_u64(page(addr, at), 1).unwrap();
    }
    let mut told = Vec::new();
    space.mincore(addr, 4 * MIB2, |there| told.push(there)).unwrap();
    let wanted: Vec<bool> = (0..=last).map(|at| at == 0 || at == last).collect();
    assert_eq!(told, wanted);
}

/// The caller writes the result to a program's memory, which may fault.
#[test]
fn mincore_tells_its_caller_with_no_lock_held() {
    let machine = machine(16, 1);
    let (cpu, space, addr) = mapped(&machine, BASE, 4 * PAGE);
    write(&cpu, &space, page(addr, 1), 1);
    let mut told = Vec::new();
    let tell = |there| {
        write(&cpu, &space, page(addr, 2), 1);
        space.munmap(page(addr, 3), PAGE).unwrap();
        told.push(there);
    };
    space.mincore(addr, 3 * PAGE, tell).unwrap();
    assert_eq!(told, [false, true, false]);
}

/// Hazard: a program reads of its mappings into a stack that has to grow for it. The text came under the mmap
/// lock, which the growth waits for: for ever.
#[test]
fn texts_of_mappings_are_told_with_no_lock_held() {
    struct Below<'a> {
        put: &'a dyn Fn(u64),
        text: String,
    }
    impl fmt::Write for Below<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.text.push_str(text);
            (self.put)(self.text.lines().count() as u64);
            Ok(())
        }
    }
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let stack = VirtAddr(BASE + MIB2);
    // More than are looked at at once.
    for nth in 0..40 {
        map_at(&space, 2 * BASE + 2 * nth * PAGE, PAGE, RW);
    }
    let request = MapRequest::anonymous(PAGE, RW).at(stack, MapFlags::FIXED | MapFlags::GROWSDOWN);
    space.mmap(&request).unwrap();
    let put = |line: u64| {
        write(&cpu, &space, VirtAddr(stack.0 - line * PAGE), line);
        space.munmap(VirtAddr(3 * BASE), PAGE).unwrap();
    };
    let mut all = Below { put: &put, text: String::new() };
    maps(&space, &mut all).unwrap();
    assert_eq!(all.text.lines().count(), 41);
    let mut last = 0;
    space.mappings().for_each(|mapping| {
        put(50);
        last = mapping.range.end().0;
    });
    assert_eq!(last, 2 * BASE + 79 * PAGE);
    let put = |line: u64| put(60 + line / 100);
    let mut all = Below { put: &put, text: String::new() };
    smaps(&space, &mut all).unwrap();
    assert_eq!(all.text.lines().filter(|line| line.starts_with("VmFlags:")).count(), 41);
}

/// An address that cannot be mapped at all fails before one that is only not aligned.
#[test]
fn the_limit_of_a_fixed_address_is_checked_before_its_alignment() {
    let machine = machine(16, 1);
    let space = create_space(&machine);
    let errno = |addr| {
        let request = MapRequest::anonymous(PAGE, RW).at(VirtAddr(addr), MapFlags::FIXED);
        space.mmap(&request).map_err(Error::errno)
    };
    let end = X86_64Level4::USER_END.0;
    assert_eq!(errno(end - PAGE + 1), Err(Errno::ENOMEM));
    assert_eq!(errno(end - 2 * PAGE + 1), Err(Errno::EINVAL));
    assert_eq!(errno(end - PAGE), Ok(VirtAddr(end - PAGE)));
}

/// Memory that was written stays charged when it is made read-only, and so does what it grows by.
#[test]
fn memory_that_was_protected_is_charged_for_its_growth() {
    let machine = machine(16, 1);
    let (cpu, space, addr) = mapped(&machine, BASE, PAGE);
    cpu.program(&space).write_u64(addr, 1).unwrap();
    space.mprotect(addr, PAGE, READ, false).unwrap();
    let before = machine.memory().spaces().commit().promised();
    assert_eq!(space.mremap(addr, PAGE, 3 * PAGE, RemapFlags::empty(), None), Ok(addr));
    assert_eq!(machine.memory().spaces().commit().promised() - before, 2);
}

/// Memory that is locked already does not count again; that of its neighbours in the same mapping does.
#[test]
fn locking_again_counts_only_the_pages_in_the_range() {
    let machine = machine(16, 1);
    let space = create_space(&machine).audited(&machine);
    space.set_limits(Limits { locked: 2 * PAGE, ..space.limits() });
    let addr = map_at(&space, BASE, 4 * PAGE, RW);
    assert_eq!(space.mlock(addr, 2 * PAGE, false), Ok(()));
    assert_eq!(space.mlock(addr, 2 * PAGE, false), Ok(()));
    assert_eq!(space.mlock(page(addr, 1), 2 * PAGE, false), Err(Error::LockLimit));
    assert_eq!(space.figures().locked, 2 * PAGE);
}
