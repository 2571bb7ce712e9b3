//! MADV_COLLAPSE and khugepaged of files that are not shared memory and that none has open for writing, as
//! Linux 6.18 does with CONFIG_READ_ONLY_THP_FOR_FS (by reading: `collapse_file`, `file_thp_enabled`,
//! `do_dentry_open`).

use crate::common::*;
use crate::mapped::numbered;
use quire_frame::FailPlan;
use quire_mm::proc::memcg_file;
use quire_space::MappingFigures;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PRIVATE: MapFlags = MapFlags::empty();
const SHARED: MapFlags = MapFlags::SHARED;
const FIXED: MapFlags = MapFlags::FIXED;
/// Where a mapping has its borders at those of tables.
pub(crate) const AREA: VirtAddr = VirtAddr(1 << 30);
const HUGE: u64 = 512;
const EINVAL: Result<(), Errno> = Err(Errno::EINVAL);

pub(crate) fn setup(mib: u64) -> Setup {
    Setup::mib(mib).cpus(1).with(|memory| memory.huge.read_only_files = true)
}

/// A file of so many pages, with numbers from 1 on, that is open for reading only.
pub(crate) fn only_read<'m>(machine: &'m Machine, pages: u64) -> (File<'m, HostPlatform>, Arc<FileStore>) {
    let (backing, store) = MemoryFile::new(numbered(pages));
    let file = machine.memory().create_file(backing, pages * PAGE).unwrap();
    (file.open(Access::Read).unwrap(), store)
}

pub(crate) fn map(
    space: &HostSpace<'_>,
    file: &File<'_, HostPlatform>,
    pages: u64,
    flags: MapFlags,
) -> VirtAddr {
    let protection = READ | Protection::EXECUTE;
    space.mmap_file(&file_request(0, pages, protection, flags).at(AREA, flags | FIXED), file).unwrap()
}

pub(crate) fn collapse(space: &HostSpace<'_>, at: VirtAddr, len: u64) -> Result<(), Errno> {
    space.madvise(at, len, Advice::Collapse).map_err(Error::errno)
}

fn figures(space: &HostSpace<'_>) -> MappingFigures {
    let mut found = None;
    space.mappings().for_each_figures(|figures| {
        if figures.mapping.range.contains(AREA) {
            found = Some(*figures);
        }
    });
    found.unwrap()
}

/// Resident pages of the mapping at [`AREA`], and those of them that PMD leaves map.
fn mapped(space: &HostSpace<'_>) -> (u64, u64) {
    let figures = figures(space);
    (figures.resident / PAGE, figures.file_huge / PAGE)
}

/// Pages of folios of the PMD's order of files.
pub(crate) fn huge(machine: &Machine) -> u64 {
    machine.memory().file_totals().huge
}

fn assert_numbers(cpu: &Vcpu, space: &HostSpace<'_>, pages: u64) {
    (0..pages).for_each(|at| assert_eq!(read(cpu, space, page(AREA, at)), at + 1, "page {at}"));
}

fn set(machine: &Machine, word: HugeEnabled) {
    machine.memory().huge().change(|policy| policy.with_enabled(word));
}

#[test]
fn what_is_missing_is_read_and_one_leaf_maps_the_block() {
    for sharing in [PRIVATE, SHARED] {
        let machine = setup(32).build();
        let (cpu, space) = cpu_and_space(&machine);
        let (file, store) = only_read(&machine, 2 * HUGE);
        map(&space, &file, 2 * HUGE, sharing);
        assert_eq!(read(&cpu, &space, page(AREA, 40)), 41);
        let events = [VmEvent::ThpCollapseAlloc, VmEvent::ThpFileMapped, VmEvent::ThpFileAlloc];
        let before = events.map(|event| count(&machine, event));
        assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
        let more: Vec<_> =
            events.iter().zip(before).map(|(event, before)| count(&machine, *event) - before).collect();
        assert_eq!(more, [1, 1, 0]);
        assert_eq!((mapped(&space), huge(&machine)), ((HUGE, HUGE), HUGE));
        assert_eq!(store.reads.load(Ordering::Relaxed), HUGE / 16, "64 KiB at a time");
        assert_audit(&machine);
        let faults = |pages| {
            let before = count(&machine, VmEvent::Pgfault);
            assert_numbers(&cpu, &space, pages);
            count(&machine, VmEvent::Pgfault) - before
        };
        assert_eq!([faults(HUGE), faults(2 * HUGE)], [0, HUGE / 16], "64 KiB around each fault");
        assert_eq!(collapse(&space, AREA, MIB2), Ok(()), "it is one already");
        assert_eq!(count(&machine, VmEvent::ThpCollapseAlloc), before[0] + 1);
        assert_eq!(read_file(&file, 300 * PAGE, 8), 301_u64.to_le_bytes());
        // Of a part, as of any leaf of a file.
        space.munmap(page(AREA, 8), 8 * PAGE).unwrap();
        assert_eq!(mapped(&space).1, 0);
        assert_eq!(read(&cpu, &space, page(AREA, 7)), 8);
        assert_audit(&machine);
    }
}

#[test]
fn without_the_option_such_files_are_refused() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, HUGE);
    map(&space, &file, HUGE, PRIVATE);
    set(&machine, HugeEnabled::Always);
    assert_numbers(&cpu, &space, HUGE);
    assert_eq!(collapse(&space, AREA, MIB2), EINVAL);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    assert!(!figures(&space).huge_eligible);
}

#[test]
fn a_file_that_is_open_for_writing_is_refused() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, HUGE);
    map(&space, &file, HUGE, PRIVATE);
    set(&machine, HugeEnabled::Always);
    let writer = file.open(Access::Write).unwrap();
    assert!(!figures(&space).huge_eligible);
    assert_eq!(collapse(&space, AREA, MIB2), EINVAL);
    // A mapping keeps the file open.
    let other = create_space(&machine);
    map(&other, &writer, 1, PRIVATE);
    drop(writer);
    assert_eq!(collapse(&space, AREA, MIB2), EINVAL);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    drop(other);
    assert!(figures(&space).huge_eligible);
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    assert_numbers(&cpu, &space, HUGE);
}

/// As in Linux all that is cached goes; but what is dirty from before stays here.
#[test]
fn who_opens_a_file_for_writing_finds_no_such_folio() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, 2 * HUGE);
    write_file(&file.open(Access::Write).unwrap(), page(VirtAddr(0), HUGE + 9).0, &[77]);
    map(&space, &file, 2 * HUGE, PRIVATE);
    space.mprotect(AREA, MIB2, RW, false).unwrap();
    assert_numbers(&cpu, &space, HUGE + 9);
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    assert_eq!((huge(&machine), file.figures().dirty), (HUGE, 1));
    // A copy.
    write(&cpu, &space, page(AREA, 5), 7);
    let child = space.fork().unwrap();
    assert_numbers(&cpu, &child, 5);
    let writer = file.open(Access::Write).unwrap();
    assert_eq!((huge(&machine), file.figures().cached, file.figures().dirty), (0, 1, 1));
    assert_eq!(mapped(&space), (1, 0));
    assert_audit(&machine);
    write_file(&writer, 300 * PAGE, &9_u64.to_le_bytes());
    assert_eq!(read(&cpu, &space, page(AREA, 300)), 9);
    assert_eq!((read(&cpu, &space, page(AREA, 5)), read(&cpu, &child, page(AREA, 7))), (7, 8));
    assert_eq!(read(&cpu, &space, page(AREA, HUGE + 9)) & 0xff, 77);
    writer.set_size(100 * PAGE).unwrap();
    drop(writer);
    file.sync(ALL, false).unwrap();
    assert_eq!(store.bytes.lock().unwrap()[300 * PAGE as usize], 45, "past the end nothing is written");
    assert_audit(&machine);
}

/// Whatever was written is written back, pinned by a reader or not.
#[test]
fn what_is_dirty_stays_when_it_is_pinned() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, 2 * HUGE);
    let at = page(AREA, HUGE + 9);
    write_file(&file.open(Access::Write).unwrap(), at.0 - AREA.0, &[77]);
    map(&space, &file, 2 * HUGE, SHARED);
    assert_eq!(read(&cpu, &space, at) & 0xff, 77);
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    let pinned = space.pin_page(at, Access::Read).unwrap();
    assert_eq!((huge(&machine), file.figures().dirty), (HUGE, 1));
    let writer = file.open(Access::Write).unwrap();
    assert_eq!((huge(&machine), file.figures().cached, file.figures().dirty), (0, 1, 1));
    assert_eq!(read(&cpu, &space, at) & 0xff, 77);
    drop((pinned, writer));
    file.sync(ALL, false).unwrap();
    assert_eq!(store.bytes.lock().unwrap()[(at.0 - AREA.0) as usize], 77);
    assert_audit(&machine);
}

/// As Linux: a program cannot have pages of its own of what it shares without being able to write to it.
#[test]
fn a_page_of_a_file_that_is_only_read_is_pinned_where_it_is() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, HUGE);
    map(&space, &file, HUGE, SHARED);
    assert_eq!(read(&cpu, &space, page(AREA, 1)), 2);
    let pinned = space.pin_page(page(AREA, 1), Access::Read).unwrap();
    assert_eq!((figures(&space).anonymous, file.figures().cached), (0, 16));
    drop(pinned);
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    let pinned = space.pin_page(page(AREA, 1), Access::Read).unwrap();
    assert_eq!((mapped(&space), figures(&space).anonymous), ((HUGE, HUGE), 0));
    drop(pinned);
    assert_audit(&machine);
}

#[test]
fn what_is_dirty_is_written_first() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, 2 * HUGE);
    {
        let writer = file.open(Access::Write).unwrap();
        write_file(&writer, 70 * PAGE, &71_u64.to_le_bytes());
        write_file(&writer, 700 * PAGE, &701_u64.to_le_bytes());
    }
    map(&space, &file, 2 * HUGE, PRIVATE);
    assert_eq!(collapse(&space, AREA, 2 * MIB2), EINVAL);
    assert_eq!((store.writes.load(Ordering::Relaxed), huge(&machine)), (2, 0), "all that is dirty");
    assert_eq!(collapse(&space, AREA, 2 * MIB2), Ok(()));
    assert_eq!(mapped(&space), (2 * HUGE, 2 * HUGE));
    assert_numbers(&cpu, &space, 2 * HUGE);
}

#[test]
fn a_block_that_the_file_ends_in_is_refused_and_ends_the_call() {
    let machine = setup(32).build();
    let (_cpu, space) = cpu_and_space(&machine);
    for (pages, wanted) in [(2 * HUGE - 1, EINVAL), (2 * HUGE, Ok(()))] {
        let (file, _) = only_read(&machine, pages);
        map(&space, &file, 2 * HUGE, PRIVATE);
        assert_eq!(collapse(&space, AREA, 2 * MIB2), wanted);
        assert_eq!(mapped(&space).1, if wanted.is_ok() { 2 * HUGE } else { HUGE });
        space.munmap(AREA, 2 * MIB2).unwrap();
    }
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_and_no_more() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, 2 * HUGE);
    map(&space, &file, 2 * HUGE, PRIVATE);
    assert_eq!(read(&cpu, &space, page(AREA, 40)), 41);
    store.fails_reads.store(true, Ordering::Relaxed);
    assert_eq!(collapse(&space, AREA, 2 * MIB2), EINVAL);
    assert_eq!((huge(&machine), file.figures().cached), (0, 16));
    assert_audit(&machine);
    store.fails_reads.store(false, Ordering::Relaxed);
    assert_eq!(collapse(&space, AREA, 2 * MIB2), Ok(()));
    assert_numbers(&cpu, &space, 2 * HUGE);
}

#[test]
fn an_opening_for_reading_changes_nothing() {
    let machine = setup(16).build();
    let (_cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, 4);
    assert_eq!(file.set_size(1), Err(PageError::NotForWriting));
    assert_eq!(file.punch(0..PAGE, |_| Ok(())), Err(PageError::NotForWriting));
    assert_eq!(file.replace_from(0, 0, || Ok(())), Err(PageError::NotForWriting));
    assert_eq!(file.allocate(0..PAGE, false), Err(PageError::NotForWriting));
    let done = file.write(0, &mut Buffer::new(&mut [1; 8]));
    assert_eq!((done.bytes, done.stopped), (0, Some(PageError::NotForWriting)));
    let ask = |protection, sharing| {
        let request = file_request(0, 4, protection, sharing).at(AREA, sharing | FIXED);
        space.mmap_file(&request, &file).map_err(Error::errno)
    };
    assert_eq!(ask(RW, SHARED), Err(Errno::EACCES));
    assert_eq!(ask(READ, SHARED), Ok(AREA));
    assert_eq!(space.mprotect(AREA, PAGE, RW, false).map_err(Error::errno), Err(Errno::EACCES));
    assert_eq!(space.madvise(AREA, PAGE, Advice::Remove).map_err(Error::errno), Err(Errno::EACCES));
    assert_eq!(ask(RW, PRIVATE), Ok(AREA));
    assert_eq!((file.size(), store.writes.load(Ordering::Relaxed)), (4 * PAGE, 0));
}

#[test]
fn programs_that_run_are_not_written_to() {
    let machine = setup(16).build();
    let (_cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, 4);
    let writer = file.open(Access::Write).unwrap();
    assert_eq!(file.open(Access::Execute).unwrap_err(), PageError::TextBusy);
    drop(writer);
    let program = file.open(Access::Execute).unwrap();
    map(&space, &program, 4, PRIVATE);
    drop(program);
    assert_eq!(file.open(Access::Write).unwrap_err(), PageError::TextBusy, "it is mapped");
    let _reader = file.open(Access::Read).unwrap();
    space.munmap(AREA, 4 * PAGE).unwrap();
    file.open(Access::Write).unwrap();
}

/// With `enabled`, whether HUGEPAGE was said; and what comes of it.
#[test]
fn khugepaged_follows_the_common_word() {
    for (word, wanted) in [
        (HugeEnabled::Always, [true, true]),
        (HugeEnabled::Madvise, [false, true]),
        (HugeEnabled::Never, [false, false]),
    ] {
        for (is_advised, wanted) in [false, true].into_iter().zip(wanted) {
            let machine = setup(32).build();
            let (cpu, space) = cpu_and_space(&machine);
            let (file, _) = only_read(&machine, 2 * HUGE);
            map(&space, &file, HUGE, PRIVATE);
            assert_eq!(read(&cpu, &space, AREA), 1);
            if is_advised {
                space.madvise(AREA, MIB2, Advice::HugePage).unwrap();
            }
            set(&machine, word);
            assert_eq!(figures(&space).huge_eligible, wanted);
            machine.memory().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
            for _ in 0..2 {
                assert_eq!(machine.memory().khugepaged_step().collapsed, u64::from(wanted), "{word:?}");
                assert_eq!(mapped(&space), (if wanted { 0 } else { 16 }, 0));
            }
            assert_eq!(huge(&machine), if wanted { HUGE } else { 0 });
            assert_numbers(&cpu, &space, HUGE);
            assert_eq!(mapped(&space), (HUGE, if wanted { HUGE } else { 0 }), "the next fault makes a leaf");
            assert_audit(&machine);
        }
    }
}

#[test]
fn khugepaged_reads_at_most_max_ptes_none_pages() {
    let machine = setup(32).build();
    set(&machine, HugeEnabled::Always);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, HUGE);
    map(&space, &file, HUGE, PRIVATE);
    machine.memory().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
    let none = |pages| machine.memory().huge().set_khugepaged(KhugepagedSetting::MaxPtesNone, pages).unwrap();
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0, "of 511 at most");
    assert_eq!(read(&cpu, &space, AREA), 1);
    none(495);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    assert_eq!(store.reads.load(Ordering::Relaxed), 1);
    none(496);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 1);
    assert_numbers(&cpu, &space, HUGE);
}

#[test]
fn smaps_shows_what_any_aligned_pages_may_become() {
    let machine = setup(16).build();
    set(&machine, HugeEnabled::Always);
    let (_cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, 16);
    for (first, pages, eligible) in [(0, 2, true), (0, 1, false), (1, 8, false), (2, 4, true)] {
        let request = file_request(first, pages, READ, PRIVATE).at(AREA, FIXED);
        space.mmap_file(&request, &file).unwrap();
        assert_eq!(figures(&space).huge_eligible, eligible, "{pages} pages from {first} on");
        space.munmap(AREA, pages * PAGE).unwrap();
    }
}

/// A file whose backing takes large folios keeps them, as in Linux.
#[test]
fn a_backing_that_takes_large_folios_gets_them_back_dirty() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (backing, store) = MemoryFile::huge(numbered(2 * HUGE));
    let file = machine.memory().create_file(backing, 2 * MIB2).unwrap();
    let reader = file.open(Access::Read).unwrap();
    map(&space, &reader, HUGE, PRIVATE);
    assert_eq!(collapse(&space, AREA, MIB2), EINVAL, "open for writing");
    drop(file);
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    let writer = reader.open(Access::Write).unwrap();
    assert_eq!((huge(&machine), mapped(&space)), (HUGE, (HUGE, HUGE)));
    write_file(&writer, 9 * PAGE, &10_u64.to_le_bytes());
    assert_eq!(file_figures(&writer), (HUGE, HUGE));
    writer.sync(ALL, false).unwrap();
    assert_eq!(store.written.load(Ordering::Relaxed), MIB2);
    writer.set_size(100 * PAGE).unwrap();
    assert_eq!(huge(&machine), 0);
    assert_numbers(&cpu, &space, 100);
    assert_audit(&machine);
}

fn file_figures(file: &File<'_, HostPlatform>) -> (u64, u64) {
    let figures = file.figures();
    (figures.cached, figures.dirty)
}

/// A device may have a page for longer than the program that may write to it has mapped it.
#[test]
fn a_pinned_page_keeps_its_block_as_it_is() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, store) = only_read(&machine, 2 * HUGE);
    map(&space, &file, 2 * HUGE, PRIVATE);
    assert_eq!(read(&cpu, &space, page(AREA, 1)), 2);
    let pin = {
        let other = create_space(&machine);
        let writer = file.open(Access::Write).unwrap();
        let request = file_request(0, HUGE, RW, SHARED).at(AREA, SHARED | FIXED);
        other.mmap_file(&request, &writer).unwrap();
        let pin = other.pin_page(page(AREA, 1), Access::Write).unwrap();
        other.munmap(AREA, MIB2).unwrap();
        pin
    };
    // What is pinned for writing keeps the file open so.
    assert_eq!(collapse(&space, AREA, 2 * MIB2), EINVAL);
    drop(pin);
    assert_eq!(collapse(&space, AREA, 2 * MIB2), EINVAL, "it is dirty");
    let pin = {
        let other = create_space(&machine);
        let writer = file.open(Access::Write).unwrap();
        let request = file_request(0, HUGE, RW, SHARED).at(AREA, SHARED | FIXED);
        other.mmap_file(&request, &writer).unwrap();
        other.pin_page(page(AREA, 1), Access::Read).unwrap()
    };
    assert_eq!(collapse(&space, AREA, 2 * MIB2), Err(Errno::EAGAIN));
    assert_eq!((mapped(&space), huge(&machine)), ((HUGE + 16, HUGE), HUGE), "the block behind is collapsed");
    drop(pin);
    assert_eq!(collapse(&space, AREA, 2 * MIB2), Ok(()));
    assert_numbers(&cpu, &space, 2 * HUGE);
    assert_eq!(store.writes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_mapping_with_copies_gets_no_leaf() {
    let machine = setup(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, HUGE);
    map(&space, &file, HUGE, PRIVATE);
    space.mprotect(AREA, MIB2, RW, false).unwrap();
    write(&cpu, &space, page(AREA, 5), 7);
    assert_eq!(collapse(&space, AREA, MIB2), EINVAL);
    assert_eq!((huge(&machine), mapped(&space)), (HUGE, (1, 0)));
    space.madvise(AREA, MIB2, Advice::DontNeed).unwrap();
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    assert_eq!(mapped(&space), (HUGE, HUGE));
    write(&cpu, &space, page(AREA, 5), 7);
    assert_eq!((read(&cpu, &space, page(AREA, 5)), read(&cpu, &space, page(AREA, 6))), (7, 7));
    assert_eq!(read_file(&file, 5 * PAGE, 1), [6]);
}

#[test]
fn calls_on_a_part_of_the_leaf_work_as_on_any() {
    let machine = setup(64).build();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, _) = only_read(&machine, 2 * HUGE);
    let moved = VirtAddr(AREA.0 + 8 * MIB2);
    for call in 0..7 {
        map(&space, &file, HUGE, PRIVATE);
        assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
        let (part, len) = (page(AREA, 16), 16 * PAGE);
        match call {
            0 => space.madvise(part, len, Advice::DontNeed).unwrap(),
            1 => space.mlock(part, len, false).unwrap(),
            2 => space.mprotect(part, len, RW, false).unwrap(),
            3 => {
                space.mremap(AREA, MIB2, MIB2, MOVE, Some(moved)).unwrap();
                assert_eq!(read(&cpu, &space, page(moved, 20)), 21);
                space.mremap(moved, MIB2, MIB2, MOVE, Some(AREA)).unwrap();
            }
            4 => space.mremap(part, len, len, MOVE, Some(moved)).map(|_| ()).unwrap(),
            5 => drop(space.fork().unwrap()),
            _ => file.invalidate(ALL).unwrap_err().pages.checked_sub(HUGE).map(|_| ()).unwrap(),
        }
        assert_audit(&machine);
        let seen = if call == 4 { 16 } else { HUGE };
        assert_numbers(&cpu, &space, seen);
        assert_audit(&machine);
        space.munmap(AREA, 16 * MIB2).unwrap();
    }
    file.invalidate(ALL).unwrap();
    assert_eq!((huge(&machine), file.figures().cached), (0, 0));
}

#[test]
fn the_program_pays_for_the_folio() {
    let machine = setup(64).build();
    let (cpu, _) = cpu_and_space(&machine);
    let [poor, rich] =
        [("poor", 300), ("rich", 4096)].map(|(name, pages)| memcg(&machine, name, &[(Limit::Max, pages)]));
    let (file, _) = only_read(&machine, HUGE);
    let space = space_in(&machine, rich);
    map(&space, &file, HUGE, PRIVATE);
    assert_eq!(read(&cpu, &space, AREA), 1);
    let other = space_in(&machine, poor);
    map(&other, &file, HUGE, PRIVATE);
    assert_eq!(collapse(&other, AREA, MIB2), Err(Errno::EBUSY));
    assert_eq!((usage(&machine, rich), usage(&machine, poor)), (16, 0));
    assert_eq!(collapse(&space, AREA, MIB2), Ok(()));
    assert_eq!(usage(&machine, rich), HUGE);
    let mut text = String::new();
    memcg_file(machine.memory(), "rich/memory.stat", None, &mut text).unwrap();
    assert!(text.contains(&format!("file_thp {MIB2}\n")), "{text}");
    assert_audit(&machine);
    drop(file.open(Access::Write).unwrap());
    assert_eq!(usage(&machine, rich), 0);
}

/// Each allocation of it fails once: nothing has changed then but what was read.
#[test]
fn each_allocation_can_fail() {
    let mut failed = 0;
    for nth in 1.. {
        let machine = setup(32).build();
        let (cpu, space) = cpu_and_space(&machine);
        let (file, _) = only_read(&machine, HUGE);
        map(&space, &file, HUGE, PRIVATE);
        assert_eq!(read(&cpu, &space, page(AREA, 40)), 41);
        let fail_points = machine.memory().frames().fail_points();
        fail_points.set(FailPlan::nth(nth));
        let result = collapse(&space, AREA, MIB2);
        let was_met = fail_points.failed() > 0;
        fail_points.set(FailPlan::OFF);
        assert_audit(&machine);
        assert_numbers(&cpu, &space, HUGE);
        failed += u64::from(result.is_err());
        assert!(matches!(result, Ok(()) | Err(Errno::ENOMEM | Errno::EINVAL)), "{nth}: {result:?}");
        if !was_met {
            assert_eq!(result, Ok(()));
            break;
        }
    }
    assert!(failed >= 4, "{failed}");
}
