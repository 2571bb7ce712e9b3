//! Shared memory that several mappings and processes have: one object, whose pages count once.

use super::life::{BASE, Invented, PAGE, SECOND};
use quire_arch::Order;
use quire_mm::file::{ShmemEnabled, ShmemHuge};
use quire_replay::{ProcessReport, ReplayOptions, ReplayReport};
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Denial, Event, EventKind, Fault, FileChange, FileEvent, FileFacts,
    FileKind, HeldInMemory, LinuxFigures, Mode, Outcome, SizeCause, TaskId, TmpfsHuge,
};
use std::sync::Arc;

const OTHER: u64 = BASE + (1 << 30);

/// The last event is that of another thread.
fn by(program: &mut Invented, task: u32) {
    let last = program.last();
    *last = Event { task: TaskId(task), ..last.clone() };
}

/// Maps a file in memory of so many pages, from its first page on.
fn map(program: &mut Invented, task: u32, (addr, len): (u64, u64), size: u64, held: Option<HeldInMemory>) {
    let (kind, size) = (FileKind::Memory, size * PAGE);
    let facts =
        FileFacts { kind, size, readable: true, writable: true, inode: 7, held, ..FileFacts::default() };
    let args = [addr, len * PAGE, 3, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
    let detail = CallDetail::File(Arc::new(facts));
    let map = Call { number: libc::SYS_mmap as u32, args, result: addr as i64, detail };
    program.push(SECOND, EventKind::Call(map));
    by(program, task);
}

/// Attaches segment number 5, of so many pages.
fn attach(program: &mut Invented, task: u32, (asked, addr): (u64, u64), pages: u64, flags: i32) {
    let detail = CallDetail::Mapped { start: addr, bytes: pages * PAGE };
    let args = [5, asked, flags as u64, 0, 0, 0];
    let call = Call { number: libc::SYS_shmat as u32, args, result: addr as i64, detail };
    program.push(SECOND, EventKind::Call(call));
    by(program, task);
}

fn touch(program: &mut Invented, task: u32, addr: u64, access: Access, outcome: Outcome) {
    let fault = Fault { addr, access, mode: Mode::User, outcome, inferred: false };
    program.push(2 * SECOND, EventKind::Fault(fault));
    by(program, task);
}

fn write(program: &mut Invented, task: u32, addr: u64) {
    touch(program, task, addr, Access::Write, Outcome::Minor);
}

fn fork(program: &mut Invented) {
    let child = CloneFacts {
        child: TaskId(1),
        child_tid: 2,
        child_pid: 2,
        flags: 0,
        shares_memory: false,
        same_process: false,
    };
    program.push(SECOND, EventKind::Clone(child));
}

fn report(program: &mut Invented) -> ReplayReport {
    let report = program.report(ReplayOptions { life: true, ..ReplayOptions::default() });
    program.go_on();
    assert!(report.processes.iter().all(ProcessReport::is_good), "{:?}", report.processes);
    report
}

fn mismatches(program: &mut Invented) -> u64 {
    let report = program.report(ReplayOptions::default());
    program.go_on();
    report.processes.iter().map(|process| process.mismatches).sum()
}

/// The shared memory of all at its most, and of each process, in pages.
fn shared(report: &ReplayReport) -> (u64, Vec<u64>) {
    let each = report.processes.iter().map(|process| process.quire.resident_shmem / PAGE);
    (report.life.as_ref().unwrap().at_charge_peak.shared / PAGE, each.collect())
}

#[test]
fn a_memfd_has_its_pages_once_in_all_processes_that_map_it() {
    let mut program = Invented::new("memfd");
    fork(&mut program);
    map(&mut program, 0, (BASE, 100), 100, None);
    map(&mut program, 1, (OTHER, 100), 100, None);
    (0..100).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    (0..60).for_each(|page| write(&mut program, 1, OTHER + page * PAGE));
    assert_eq!(shared(&report(&mut program)), (100, vec![100, 60]));
    // What is unmapped keeps its pages while the file is there.
    program.call(3 * SECOND, libc::SYS_munmap, [BASE, 100 * PAGE, 0, 0, 0, 0], 0);
    map(&mut program, 0, (BASE, 100), 100, None);
    (0..16).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    let report = report(&mut program);
    assert_eq!(shared(&report), (100, vec![16, 60]));
    assert_eq!(report.life.unwrap().at_end.shared, 100 * PAGE);
}

#[test]
fn a_file_in_memory_grows_and_shrinks_as_touches_tell() {
    let mut program = Invented::new("memfd");
    // It was empty when it was mapped.
    map(&mut program, 0, (BASE, 100), 0, None);
    write(&mut program, 0, BASE + 50 * PAGE);
    let args = [BASE, 80 * PAGE, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0];
    program.call(2 * SECOND, libc::SYS_madvise, args, 0);
    assert_eq!(shared(&report(&mut program)), (80, vec![80]));
    // And was truncated.
    program.call(2 * SECOND, libc::SYS_munmap, [OTHER, PAGE, 0, 0, 0, 0], 0);
    touch(&mut program, 0, BASE + 20 * PAGE, Access::Read, Outcome::Denied(Denial::NoBacking));
    map(&mut program, 0, (OTHER, 10), 20, None);
    let report = report(&mut program);
    assert_eq!(shared(&report), (80, vec![20]));
    assert_eq!(report.life.unwrap().at_end.shared, 20 * PAGE);
}

fn change(program: &mut Invented, (device, inode): (u64, u64), change: FileChange) {
    program.push(3 * SECOND, EventKind::File(Box::new(FileEvent { device, inode, change })));
}

#[test]
fn a_file_in_memory_changes_and_ends_as_recorded() {
    let mut program = Invented::new("memfd");
    let of_file = (0, 7);
    map(&mut program, 0, (BASE, 100), 100, None);
    (0..100).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    let at_end = |program: &mut Invented| {
        program.call(3 * SECOND, libc::SYS_munmap, [OTHER + 100 * PAGE, PAGE, 0, 0, 0, 0], 0);
        let report = report(program);
        (report.life.as_ref().unwrap().at_end.shared / PAGE, report.processes[0].quire.resident_shmem / PAGE)
    };
    assert_eq!(at_end(&mut program), (100, 100));
    change(&mut program, of_file, FileChange::Size { bytes: 60 * PAGE, cause: SizeCause::Call });
    assert_eq!(at_end(&mut program), (60, 60));
    change(&mut program, of_file, FileChange::Punched(10 * PAGE..30 * PAGE));
    assert_eq!(at_end(&mut program), (40, 40));
    // Longer again, without pages there.
    change(&mut program, of_file, FileChange::Size { bytes: 100 * PAGE, cause: SizeCause::Call });
    write(&mut program, 0, BASE + 99 * PAGE);
    assert_eq!(at_end(&mut program), (41, 41));
    program.call(3 * SECOND, libc::SYS_munmap, [BASE, 100 * PAGE, 0, 0, 0, 0], 0);
    assert_eq!(at_end(&mut program), (41, 0), "a descriptor has it");
    change(&mut program, of_file, FileChange::Gone);
    assert_eq!(at_end(&mut program), (0, 0));
    // Another file with its numbers, which ends before its last mapping does: as mappings in a recording may
    // stand behind.
    map(&mut program, 0, (BASE, 10), 10, None);
    touch(&mut program, 0, BASE, Access::Read, Outcome::Minor);
    write(&mut program, 0, BASE + PAGE);
    change(&mut program, of_file, FileChange::Gone);
    assert_eq!(at_end(&mut program).1, 10);
    program.call(3 * SECOND, libc::SYS_munmap, [BASE, 10 * PAGE, 0, 0, 0, 0], 0);
    change(&mut program, (0, 8), FileChange::Gone);
    change(&mut program, of_file, FileChange::Gone);
    assert_eq!(at_end(&mut program), (0, 0));
}

#[test]
fn a_segment_ends_as_recorded() {
    let mut program = Invented::new("segment");
    attach(&mut program, 0, (BASE, BASE), 50, 0);
    (0..50).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    program.call(3 * SECOND, libc::SYS_shmdt, [BASE, 0, 0, 0, 0, 0], 0);
    let at_end = |program: &mut Invented| report(program).life.unwrap().at_end.shared / PAGE;
    assert_eq!(at_end(&mut program), 50, "its id has it");
    // Of a file with such an inode, and of a segment that was never attached.
    change(&mut program, (0, 5), FileChange::Gone);
    change(&mut program, (FileEvent::SEGMENTS, 6), FileChange::Gone);
    assert_eq!(at_end(&mut program), 50);
    change(&mut program, (FileEvent::SEGMENTS, 5), FileChange::Gone);
    program.call(4 * SECOND, libc::SYS_munmap, [OTHER, PAGE, 0, 0, 0, 0], 0);
    assert_eq!(at_end(&mut program), 0);
}

/// Of a file of 1024 pages one is written, under a setting of the machine, in a file system with an option.
#[test]
fn shared_memory_comes_in_large_folios_where_the_machine_and_the_mount_say_so() {
    use ShmemEnabled::{Always, Deny, Never, WithinSize};
    for (setting, mount, pages) in [
        (None, None, 1),
        (Some(Never), None, 1),
        (Some(Always), None, 512),
        (Some(WithinSize), None, 512),
        (Some(Always), Some(TmpfsHuge::Never), 1),
        (None, Some(TmpfsHuge::Always), 512),
        (None, Some(TmpfsHuge::Advise), 1),
        (Some(Deny), Some(TmpfsHuge::Always), 1),
    ] {
        let mut program = Invented::new("large");
        let (kind, size) = (FileKind::Memory, 1024 * PAGE);
        let (readable, writable, mount_huge) = (true, true, mount);
        let facts =
            FileFacts { kind, size, readable, writable, inode: 7, mount_huge, ..FileFacts::default() };
        let args = [BASE, 1024 * PAGE, 3, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
        let detail = CallDetail::File(Arc::new(facts));
        let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
        program.push(SECOND, EventKind::Call(map));
        write(&mut program, 0, BASE + 3 * PAGE);
        let shmem = setting.map(|word| ShmemHuge::NEVER.with_enabled(word).unwrap());
        let report = program.report(ReplayOptions { shmem, life: true, ..ReplayOptions::default() });
        assert!(report.is_good() && !report.host_is_short);
        assert_eq!(shared(&report), (pages, vec![pages]), "{setting:?} {mount:?}");
        let life = report.life.unwrap();
        let large =
            life.folios.iter().find(|folio| folio.order == Order::PMD).map_or(0, |folio| folio.shared);
        assert_eq!(large, pages / 512, "{setting:?} {mount:?}");
    }
}

/// Linux aligns shared memory for its large folios. Where the replay has other settings that is no
/// difference, and it lies where it lay.
#[test]
fn shared_memory_lies_where_it_was_recorded_under_other_settings() {
    let mut program = Invented::new("places");
    let (flags, bytes) = ((libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64, 4 << 20);
    // The invented program has nothing above.
    program.call(SECOND, libc::SYS_mmap, [0, bytes, 3, flags, u64::MAX, 0], BASE);
    write(&mut program, 0, BASE + PAGE);
    let of = |program: &mut Invented, word| {
        let shmem = Some(ShmemHuge::NEVER.with_enabled(word).unwrap());
        let report = program.report(ReplayOptions { shmem, life: true, ..ReplayOptions::default() });
        program.go_on();
        let process = &report.processes[0];
        (process.mismatches, process.settings_dependent, shared(&report).1[0])
    };
    assert_eq!(of(&mut program, ShmemEnabled::Never), (1, 0, 1), "as the host had it");
    assert_eq!(of(&mut program, ShmemEnabled::Always), (0, 1, 512));
}

/// The machine has room for all of its large folios.
#[test]
fn a_machine_is_planned_for_large_folios_of_shared_memory() {
    let mut program = Invented::new("large");
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
    let bytes = 64 << 21;
    program.call(SECOND, libc::SYS_mmap, [BASE, bytes, 3, flags, u64::MAX, 0], BASE);
    (0..64).for_each(|block| write(&mut program, 0, BASE + (block << 21)));
    let of = |program: &mut Invented, word| {
        let shmem = Some(ShmemHuge::NEVER.with_enabled(word).unwrap());
        let report = program.report(ReplayOptions { shmem, life: true, ..ReplayOptions::default() });
        program.go_on();
        assert!(report.is_good());
        (report.ram, shared(&report).0)
    };
    let (small, pages) = of(&mut program, ShmemEnabled::Never);
    assert!(pages == 64 && small < 4 << 20, "{small}");
    let (large, pages) = of(&mut program, ShmemEnabled::Always);
    assert!(pages == 64 * 512 && (bytes..2 * bytes).contains(&large), "{large} {pages}");
}

/// What a trace can claim of a call: a file larger than any, and one that anonymous memory maps.
#[test]
fn a_populated_mapping_of_what_no_file_can_be_is_replayed() {
    for (flags, size) in [(libc::MAP_SHARED, u64::MAX), (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 2 * PAGE)] {
        let mut program = Invented::new("claims");
        let facts = FileFacts { kind: FileKind::Memory, size, inode: 7, ..FileFacts::default() };
        let detail = CallDetail::File(Arc::new(facts));
        let flags = (flags | libc::MAP_FIXED | libc::MAP_POPULATE) as u64;
        let args = [BASE, 4 * PAGE, 3, flags, 3, 0];
        let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
        program.push(SECOND, EventKind::Call(map));
        let report = program.report(ReplayOptions { life: true, ..ReplayOptions::default() });
        let anonymous = report.life.unwrap().at_peak.anonymous / PAGE;
        assert_eq!(anonymous, if size == u64::MAX { 0 } else { 4 });
    }
}

/// No call tells that a file was truncated: a touch does that finds it shorter.
#[test]
fn the_peak_is_seen_of_a_file_that_a_touch_finds_shorter() {
    let mut program = Invented::new("truncated");
    map(&mut program, 0, (BASE, 100), 100, None);
    (0..100).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    touch(&mut program, 0, BASE + 20 * PAGE, Access::Read, Outcome::Denied(Denial::NoBacking));
    let life = report(&mut program).life.unwrap();
    let peaks = [life.at_charge_peak.shared, life.peak_pageable];
    assert_eq!((peaks, life.at_end.shared), ([100 * PAGE; 2], 20 * PAGE));
}

/// A copy of the kernel that may not sleep fails where a page is not mapped, and is repeated in another way.
#[test]
fn a_copy_of_the_kernel_that_was_not_resolved_cuts_no_file() {
    let mut program = Invented::new("copied");
    map(&mut program, 0, (BASE, 100), 100, None);
    (0..100).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    touch(&mut program, 0, BASE + 20 * PAGE, Access::Read, Outcome::Unresolved);
    program.call(3 * SECOND, libc::SYS_munmap, [OTHER, PAGE, 0, 0, 0, 0], 0);
    let report = report(&mut program);
    assert_eq!(shared(&report), (100, vec![100]));
    assert_eq!(report.life.unwrap().at_end.shared, 100 * PAGE);
}

/// Of a file of 400 pages 64 were there when it was mapped. Linux maps these around a touch.
#[test]
fn what_a_file_had_comes_in_around_reads_and_counts_at_once() {
    for (changed, counted) in [(true, 64), (false, 0)] {
        let held = Some(HeldInMemory { bytes: 64 * PAGE, changed });
        let mut program = Invented::new("written");
        map(&mut program, 0, (BASE, 400), 400, held);
        program.call(SECOND, libc::SYS_munmap, [OTHER, PAGE, 0, 0, 0, 0], 0);
        assert_eq!(shared(&report(&mut program)), (counted, vec![0]), "{changed}");
        for page in (0..400).step_by(16) {
            touch(&mut program, 0, BASE + page * PAGE, Access::Read, Outcome::Minor);
        }
        // 4 windows have them all, and a page of each of the 21 others is new.
        let figures = LinuxFigures { rss_shmem: 85 * PAGE, ..LinuxFigures::default() };
        program.push(3 * SECOND, EventKind::Figures(Box::new(figures)));
        let report = report(&mut program);
        assert_eq!(shared(&report).1, [85], "{changed}");
        assert_eq!(report.processes[0].unrecorded_shared, 0);
        assert_eq!(report.processes[0].residency().map(|near| near.shared), Some(true));
    }
}

#[test]
fn a_segment_is_one_wherever_it_is_attached() {
    let mut program = Invented::new("segment");
    attach(&mut program, 0, (BASE, BASE), 50, 0);
    fork(&mut program);
    (0..50).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
    // The child has it since the fork, and attaches it again, to read.
    attach(&mut program, 1, (OTHER + 5, OTHER), 50, libc::SHM_RND | libc::SHM_RDONLY);
    (0..50).for_each(|page| touch(&mut program, 1, OTHER + page * PAGE, Access::Read, Outcome::Minor));
    write(&mut program, 1, BASE);
    let found = report(&mut program);
    assert_eq!(shared(&found), (50, vec![50, 51]));
    assert!(found.processes.iter().all(|process| process.gaps.is_empty()));
    // Parts of it are detached together; the segment stays.
    program.call(3 * SECOND, libc::SYS_munmap, [BASE + 3 * PAGE, PAGE, 0, 0, 0, 0], 0);
    program.call(3 * SECOND, libc::SYS_shmdt, [BASE, 0, 0, 0, 0, 0], 0);
    touch(&mut program, 0, BASE + 9 * PAGE, Access::Read, Outcome::Denied(Denial::NotMapped));
    attach(&mut program, 0, (BASE, BASE), 50, libc::SHM_REMAP);
    touch(&mut program, 0, BASE + 49 * PAGE, Access::Read, Outcome::Minor);
    // With the page before, which is in the same 64 KiB.
    assert_eq!(shared(&report(&mut program)), (50, vec![2, 51]));
    // It is not attached there twice.
    attach(&mut program, 0, (BASE, BASE), 50, 0);
    assert_eq!(mismatches(&mut program), 1);
    program.call(3 * SECOND, libc::SYS_shmdt, [BASE + PAGE, 0, 0, 0, 0, 0], 0);
    assert_eq!(mismatches(&mut program), 2);
}

/// Programs map and unmap shared memory again and again: a machine that has room for it once is enough.
#[test]
fn shared_memory_without_a_name_takes_its_memory_once_and_gives_it_back() {
    const PAGES: u64 = 4096;
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let mut program = Invented::new("again");
    for _ in 0..20 {
        program.call(SECOND, libc::SYS_mmap, [BASE, PAGES * PAGE, 3, flags, u64::MAX, 0], BASE);
        let args = [BASE, PAGES * PAGE, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0];
        program.call(SECOND, libc::SYS_madvise, args, 0);
        // The data is kept.
        let args = [BASE, PAGES * PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0];
        program.call(SECOND, libc::SYS_madvise, args, 0);
        program.call(SECOND, libc::SYS_munmap, [BASE, (PAGES - 1) * PAGE, 0, 0, 0, 0], 0);
        program.call(SECOND, libc::SYS_munmap, [BASE + (PAGES - 1) * PAGE, PAGE, 0, 0, 0, 0], 0);
    }
    let report = report(&mut program);
    assert_eq!(shared(&report).0, PAGES);
    assert!((PAGES * PAGE..3 * PAGES * PAGE).contains(&report.ram), "{}", report.ram);
}

/// What has two mappings cannot be paged out by a recorder, also where both are of one process, as those of a
/// ring buffer are. Without the second one it can.
#[test]
fn what_one_process_maps_twice_is_known() {
    for (twice, joint) in [(true, 60), (false, 0)] {
        let mut program = Invented::new("ring");
        map(&mut program, 0, (BASE, 100), 100, None);
        map(&mut program, 0, (OTHER, 100), 100, None);
        (0..100).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
        if twice {
            (0..60).for_each(|page| write(&mut program, 0, OTHER + page * PAGE));
        }
        // It lasts, and is gone before the end.
        program.call(90 * SECOND, libc::SYS_munmap, [BASE, 100 * PAGE, 0, 0, 0, 0], 0);
        program.call(100 * SECOND, libc::SYS_munmap, [OTHER, 100 * PAGE, 0, 0, 0, 0], 0);
        let report = program.report(ReplayOptions { peak_use: true, ..ReplayOptions::default() });
        assert_eq!(report.peak_use.unwrap().shared, joint * PAGE, "{twice}");
    }
}

/// A recorder does not know that a file of an overlay is in memory, and does not page it out.
#[test]
fn files_in_memory_of_an_overlay_are_known_to_stay() {
    for (file_system, joint) in [(0x794c_7630, 80), (0x0102_1994, 0)] {
        let mut program = Invented::new("overlay");
        let (kind, size) = (FileKind::Memory, 100 * PAGE);
        let facts = FileFacts {
            kind,
            size,
            readable: true,
            writable: true,
            inode: 7,
            file_system,
            ..FileFacts::default()
        };
        let args = [BASE, 100 * PAGE, 3, (libc::MAP_SHARED | libc::MAP_FIXED) as u64, 3, 0];
        let detail = CallDetail::File(Arc::new(facts));
        let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail };
        program.push(SECOND, EventKind::Call(map));
        (0..80).for_each(|page| write(&mut program, 0, BASE + page * PAGE));
        program.call(90 * SECOND, libc::SYS_munmap, [OTHER, PAGE, 0, 0, 0, 0], 0);
        program.call(100 * SECOND, libc::SYS_munmap, [BASE, 100 * PAGE, 0, 0, 0, 0], 0);
        let report = program.report(ReplayOptions { peak_use: true, ..ReplayOptions::default() });
        assert_eq!(report.peak_use.unwrap().shared, joint * PAGE, "{file_system:x}");
    }
}

/// Private memory that is gone when shared memory comes is no part of one peak with it.
#[test]
fn what_can_be_paged_out_is_the_most_of_one_moment() {
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    for (gone, most) in [(true, 400), (false, 700)] {
        let mut program = Invented::new("two");
        program.map(SECOND, OTHER, 300 * PAGE, 0);
        (0..300).for_each(|page| write(&mut program, 0, OTHER + page * PAGE));
        if gone {
            program.call(3 * SECOND, libc::SYS_munmap, [OTHER, 300 * PAGE, 0, 0, 0, 0], 0);
        }
        program.call(3 * SECOND, libc::SYS_mmap, [BASE, 400 * PAGE, 3, flags, u64::MAX, 0], BASE);
        (0..400).for_each(|page| program.write(4 * SECOND, BASE + page * PAGE));
        let life = report(&mut program).life.unwrap();
        assert_eq!(life.peak_pageable, most * PAGE, "{life:?}");
    }
}
