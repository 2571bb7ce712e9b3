//! Calls that overlap with others, and whose results depend on limits.

use crate::order::{Made, at, image, replay_in};
use quire_trace::event::{ExecImage, Limits, Mapping, Privileges, Rlimit, VmFlags};

const ENOMEM: i64 = -(libc::ENOMEM as i64);
const PAGE: u64 = 4096;
/// The thread that changes mappings, and the one whose call depends on that.
const CHANGER: u32 = 0;
const CALLER: u32 = 1;

fn pages(count: u64) -> Rlimit {
    Rlimit { soft: count * PAGE, hard: count * PAGE }
}

/// The image with these limits, of a program that may not exceed them.
fn limited(change: impl FnOnce(&mut Limits)) -> ExecImage {
    let privileges = Privileges { ipc_lock: false, sys_rawio: false };
    let most = Rlimit { soft: u64::MAX, hard: u64::MAX };
    let limits = Limits { address_space: most, data: most, stack: most, locked: most };
    let mut image = ExecImage { privileges, limits, ..image() };
    change(&mut image.limits);
    image
}

#[track_caller]
fn found(image: ExecImage, calls: &[Made]) -> (u64, u64) {
    let process = replay_in(image, calls);
    (process.mismatches, process.reordered)
}

/// The other thread's pages use the limit up, wherever they are.
#[test]
fn a_call_is_refused_by_a_limit_that_a_change_that_stands_later_uses_up() {
    let locks = |by, window, range, result| Made(by, Some(window), libc::SYS_mlock, range, 0, result);
    let calls = [locks(CALLER, (7, 9), (40, 4), ENOMEM), locks(CHANGER, (5, 100), (0, 16), 0)];
    assert_eq!(found(limited(|limits| limits.locked = pages(18)), &calls), (0, 1));
    // With a limit of so many there is no such order.
    assert_eq!(found(limited(|limits| limits.locked = pages(20)), &calls), (1, 0));

    let maps = |by, window, range, result| Made(by, Some(window), libc::SYS_mmap, range, 3, result);
    let calls = [maps(CALLER, (7, 9), (80, 4), ENOMEM), maps(CHANGER, (5, 100), (100, 16), at(100))];
    assert_eq!(found(limited(|limits| limits.address_space = pages(82)), &calls), (0, 1));
    assert_eq!(found(limited(|limits| limits.address_space = pages(84)), &calls), (1, 0));
    assert_eq!(found(limited(|limits| limits.data = pages(82)), &calls), (0, 1));
    assert_eq!(found(limited(|limits| limits.data = pages(84)), &calls), (1, 0));
}

#[test]
fn a_call_is_refused_by_the_number_of_mappings_after_a_change_that_stands_later() {
    let calls = [
        Made(CALLER, Some((7, 9)), libc::SYS_munmap, (40, 1), 0, ENOMEM),
        Made(CHANGER, Some((5, 100)), libc::SYS_mprotect, (0, 32), 1, 0),
    ];
    assert_eq!(found(ExecImage { max_map_count: 2, ..image() }, &calls), (0, 1));
    assert_eq!(found(ExecImage { max_map_count: 3, ..image() }, &calls), (1, 0));
}

/// The limit refuses it in each order. A trial without the limit would allow it after the change.
#[test]
fn a_wrong_success_beyond_a_limit_is_still_found() {
    let locks = Made(CALLER, Some((7, 9)), libc::SYS_mlock, (40, 4), 0, 0);
    let change = Made(CHANGER, Some((5, 100)), libc::SYS_mprotect, (40, 4), 1, 0);
    assert_eq!(found(limited(|limits| limits.locked = pages(2)), &[locks, change]), (1, 0));
    let splits = Made(CALLER, Some((7, 9)), libc::SYS_munmap, (40, 1), 0, 0);
    let change = Made(CHANGER, Some((5, 100)), libc::SYS_mprotect, (40, 4), 3, 0);
    assert_eq!(found(ExecImage { max_map_count: 1, ..image() }, &[splits, change]), (1, 0));
}

/// What is locked and mapped elsewhere counts against the limits, though a trial does not have it.
#[test]
fn memory_far_from_a_call_counts_against_its_limits() {
    let far = Mapping { start: 0x4000_0000, end: 0x4000_8000, read: true, write: true, ..Mapping::default() };
    let with_far = |locked| {
        let mut image = limited(|limits| limits.locked = pages(locked));
        image.mappings.push(Mapping { flags: VmFlags::from_words("rd wr mr mw me lo"), ..far.clone() });
        image
    };
    let calls = [
        Made(CALLER, Some((7, 9)), libc::SYS_mlock, (40, 4), 0, ENOMEM),
        Made(CHANGER, Some((5, 100)), libc::SYS_mlock, (0, 16), 0, 0),
    ];
    assert_eq!(found(with_far(26), &calls), (0, 1));
    assert_eq!(found(with_far(28), &calls), (1, 0));
}

/// A trial commits what the programs have committed, and no more.
#[test]
fn strict_overcommit_refuses_in_a_trial_as_in_the_program() {
    // Half of the recorded RAM may be committed: 2 097 152 pages.
    let most = 1 << 21;
    let strict = |pages: u64| {
        let mut image = ExecImage { overcommit_memory: 2, ..image() };
        image.mappings[0].flags = VmFlags::from_words("rd wr mr mw me ac");
        let (start, end) = (1 << 32, (1 << 32) + pages * PAGE);
        let flags = VmFlags::from_words("rd wr mr mw me ac");
        image.mappings.push(Mapping { start, end, read: true, write: true, flags, ..Mapping::default() });
        image
    };
    let maps = |by, window, range, result| Made(by, Some(window), libc::SYS_mmap, range, 3, result);
    let calls = || [maps(CALLER, (7, 9), (80, 4), ENOMEM), maps(CHANGER, (5, 100), (100, 16), at(100))];
    assert_eq!(found(strict(most - 64 - 18), &calls()), (0, 1));
    assert_eq!(found(strict(most - 64 - 20), &calls()), (1, 0));
    // Another call's order is found, too, though most of what may be committed is.
    let calls = [
        Made(CALLER, Some((7, 9)), libc::SYS_madvise, (3, 1), libc::MADV_DONTNEED as u64, ENOMEM),
        Made(CHANGER, Some((5, 100)), libc::SYS_munmap, (0, 8), 0, 0),
    ];
    assert_eq!(found(strict(most - 64), &calls), (0, 1));
}
