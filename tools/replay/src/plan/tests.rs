//! What is planned for made-up events.

use super::*;
use quire_mm::thp::HugeEnabled;
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, ContentSample, Denial, ExitStatus, FiguresCause, FileChange,
    FileEvent, FileFacts, FileKind, IndexRun, LinuxFigures, Lost, LostCause, Mapping, Mode, PageContents,
    PageRun, PageSample, ReuseRun, SizeCause,
};
use std::sync::Arc;

const START: u64 = 0x1000_0000_0000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Tables above those that hold pages: one of each level.
const UPPER: u64 = 2;

fn needs(mappings: Vec<Mapping>) -> Needs {
    let mut needs = Needs::default();
    exec(&mut needs, 0, mappings);
    needs
}

fn exec(needs: &mut Needs, task: usize, mappings: Vec<Mapping>) {
    let image = ExecImage { mappings, start_brk: 0x60_0000, brk: 0x60_0000, ..ExecImage::default() };
    step(needs, task, EventKind::Exec(Box::new(image)));
}

fn data(bytes: u64) -> Vec<Mapping> {
    vec![Mapping { start: START, end: START + bytes, read: true, write: true, ..Mapping::default() }]
}

fn step(needs: &mut Needs, task: usize, kind: EventKind) {
    needs.add(&Event { time_ns: 0, task: TaskId(task as u32), cpu: 0, kind });
}

fn call(needs: &mut Needs, number: i64, args: [u64; 6], result: u64) {
    call_by(needs, 0, number, args, result);
}

fn call_by(needs: &mut Needs, task: usize, number: i64, args: [u64; 6], result: u64) {
    let call = Call { number: number as u32, args, result: result as i64, detail: CallDetail::None };
    step(needs, task, EventKind::Call(call));
}

/// `madvise` of the start of the data.
fn advise(needs: &mut Needs, bytes: u64, advice: i32) {
    call(needs, libc::SYS_madvise, [START, bytes, advice as u64, 0, 0, 0], 0);
}

fn touch(needs: &mut Needs, task: usize, pages: impl IntoIterator<Item = u64>, access: Access) {
    for page in pages {
        let addr = START.wrapping_add(page << 12);
        let (mode, outcome) = (Mode::User, Outcome::Minor);
        step(needs, task, EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false }));
    }
}

fn write(needs: &mut Needs, task: usize, pages: impl IntoIterator<Item = u64>) {
    touch(needs, task, pages, Access::Write);
}

fn fork(needs: &mut Needs) {
    fork_to(needs, 1);
}

fn fork_to(needs: &mut Needs, child: u32) {
    let (child_tid, child_pid) = (child + 1, child + 1);
    let (flags, shares_memory, same_process) = (0, false, false);
    let child = TaskId(child);
    let facts = CloneFacts { child, child_tid, child_pid, flags, shares_memory, same_process };
    step(needs, 0, EventKind::Clone(facts));
}

fn exit(needs: &mut Needs, task: usize) {
    step(needs, task, EventKind::Exit(ExitStatus::Code(0)));
}

fn ram_of(pages: u64) -> u64 {
    (pages + pages / 8) * 4096
}

/// RAM for so many pages.
#[track_caller]
fn assert_pages(needs: &Needs, policy: HugePolicy, pages: u64) {
    let mut spare = needs.spare;
    spare.note(needs.images.len(), [&needs.now, &needs.layers.demand]);
    let spare = spare.bytes(pages, [false, true].map(|advised| block::way(policy, advised)));
    let expected = (ram_of(pages) + spare).next_multiple_of(STEP);
    assert_eq!(needs.ram(policy), expected, "{} pages", needs.pages([0, 0]));
}

fn always() -> HugePolicy {
    HugePolicy::default().with_enabled(HugeEnabled::Always)
}

const MADVISE: HugePolicy = HugePolicy::MADVISE;

#[test]
fn only_spaces_that_live_at_once_add_up_and_what_they_share_counts_once() {
    let mut needs = needs(data(GIB));
    write(&mut needs, 0, 0..10_240);
    fork(&mut needs);
    assert_pages(&needs, MADVISE, 10_240 + 2 * (20 + UPPER));
    // What the one or the other writes is copied.
    write(&mut needs, 1, 0..5000);
    write(&mut needs, 0, 0..5000);
    touch(&mut needs, 1, 6000..7000, Access::Read);
    assert_pages(&needs, MADVISE, 20_240 + 2 * (20 + UPPER));
    exit(&mut needs, 0);
    exit(&mut needs, 1);
    exec(&mut needs, 0, data(GIB));
    write(&mut needs, 0, 0..15_360);
    assert_pages(&needs, MADVISE, 20_240 + 2 * (20 + UPPER));
    assert_eq!(needs.pages([0, 0]), 15_360 + 30 + UPPER);
    assert!(needs.layers.is_empty() && needs.images.len() == 1);
}

/// A replay makes no such thread, so the one that it names keeps what it has.
#[test]
fn a_thread_that_makes_itself_changes_nothing() {
    let mut needs = needs(data(GIB));
    write(&mut needs, 0, 0..10);
    fork_to(&mut needs, 0);
    write(&mut needs, 0, 10..20);
    assert_eq!(needs.pages([0, 0]), 20 + 1 + UPPER);
}

#[test]
fn what_a_process_alone_still_has_counts_once_when_it_writes_it_again() {
    let mut needs = needs(data(GIB));
    write(&mut needs, 0, 0..5120);
    for _ in 0..5 {
        fork(&mut needs);
        write(&mut needs, 0, 0..5120);
        exit(&mut needs, 1);
        assert_eq!(needs.pages([0, 0]), 5120 + 10 + UPPER);
    }
    assert_pages(&needs, MADVISE, 2 * 5120 + 2 * (10 + UPPER));
}

/// What a child drops of what it inherited comes in anew: as huge pages too, and beside what the parent
/// keeps.
#[test]
fn what_a_child_drops_of_what_it_inherited_comes_in_anew() {
    let range = [START, 64 * MIB];
    let advise = [range[0], range[1], libc::MADV_DONTNEED as u64, 0, 0, 0];
    for drops in [
        &[(libc::SYS_madvise, advise, 0)][..],
        &[
            (libc::SYS_munmap, [range[0], range[1], 0, 0, 0, 0], 0),
            (libc::SYS_mmap, [0, range[1], 3, 0x22, u64::MAX, 0], START),
        ],
    ] {
        let mut needs = needs(data(64 * MIB));
        write(&mut needs, 0, 0..16_384);
        // What a grandchild is left with is not dropped either.
        fork_to(&mut needs, 1);
        fork_to(&mut needs, 2);
        for &(number, args, result) in drops {
            call_by(&mut needs, 1, number, args, result);
        }
        write(&mut needs, 1, (0..16_384).step_by(512));
        let tables = 3 * (32 + UPPER);
        assert_pages(&needs, always(), 2 * 16_384 + tables);
        assert_pages(&needs, MADVISE, 16_384 + 32 + tables);
        // The second child writes to copies.
        write(&mut needs, 2, (0..16_384).step_by(512));
        assert_pages(&needs, always(), 2 * 16_384 + 32 + tables);
    }
}

/// Moves the first 64 MiB to where there is room for twice as much.
fn move_data(needs: &mut Needs, task: usize) {
    let grown = [START, 64 * MIB, 128 * MIB, libc::MREMAP_MAYMOVE as u64, 0, 0];
    call_by(needs, task, libc::SYS_mremap, grown, START + GIB);
}

/// What a space moves after a fork stays there when the other process ends, and counts once then.
#[test]
fn what_is_moved_after_a_fork_stays_when_the_other_process_ends() {
    for ([mover, other], execs) in [([0, 1], false), ([1, 0], false), ([0, 1], true), ([1, 0], true)] {
        // Huge pages move as such.
        for step in [1, 512] {
            let mut needs = needs(data(64 * MIB));
            write(&mut needs, 0, (0..16_384).step_by(step));
            fork(&mut needs);
            move_data(&mut needs, mover);
            if execs {
                exec(&mut needs, other, Vec::new());
            } else {
                exit(&mut needs, other);
            }
            let moved = |needs: &Needs| [needs.pages([0, 0]), needs.pages([9, 9])];
            let tables = 32 + UPPER;
            assert_eq!(moved(&needs), [16_384 / step as u64 + tables, 16_384 + tables]);
            write(&mut needs, mover, ((GIB >> 12) + 16_384..(GIB >> 12) + 32_768).step_by(step));
            let tables = 64 + UPPER;
            assert_eq!(moved(&needs), [32_768 / step as u64 + tables, 32_768 + tables]);
            exit(&mut needs, mover);
            assert_eq!((needs.pages([9, 9]), needs.layers.is_empty()), (0, true));
        }
    }
}

/// What a space wrote after the fork is moved as its own, and what it moved and forked again counts once.
#[test]
fn what_was_moved_is_gone_from_the_layers_that_are_merged() {
    let mut needs = needs(data(64 * MIB));
    write(&mut needs, 0, 0..16_384);
    fork_to(&mut needs, 1);
    write(&mut needs, 0, 0..5120);
    move_data(&mut needs, 0);
    fork_to(&mut needs, 2);
    // Of the first child, of the two others, and their tables, with those of the old place.
    assert_eq!(needs.pages([0, 0]), 16_384 + 16_384 + 32 + UPPER + 2 * (64 + UPPER + 1));
    exit(&mut needs, 1);
    assert_eq!(needs.pages([0, 0]), 16_384 + 2 * (64 + UPPER + 1));
    exit(&mut needs, 2);
    assert_eq!(needs.pages([0, 0]), 16_384 + 32 + UPPER);
}

/// A child has nothing of what is wiped for it, and no mapping where there is none for it.
#[test]
fn what_advice_keeps_from_a_child_comes_in_anew() {
    let mut needs = needs(data(64 * MIB));
    write(&mut needs, 0, 0..16_384);
    advise(&mut needs, 64 * MIB, libc::MADV_WIPEONFORK);
    fork(&mut needs);
    write(&mut needs, 1, (0..16_384).step_by(512));
    let tables = 32 + UPPER;
    assert_eq!(needs.pages([9, 9]), 2 * (16_384 + tables));
    assert_eq!(needs.pages([0, 0]), 16_384 + 32 + 2 * tables);
    // What a child that copies needs is another matter.
    advise(&mut needs, 64 * MIB, libc::MADV_KEEPONFORK);
    fork_to(&mut needs, 2);
    write(&mut needs, 2, (0..16_384).step_by(512));
    assert_eq!(needs.pages([9, 9]), 2 * 16_384 + 32 + 3 * tables);
    exit(&mut needs, 2);
    exit(&mut needs, 0);
    assert_eq!(needs.pages([0, 0]), 32 + tables);
    exec(&mut needs, 0, data(64 * MIB));
    exit(&mut needs, 1);
    write(&mut needs, 0, 0..16_384);
    advise(&mut needs, 64 * MIB, libc::MADV_DONTFORK);
    fork(&mut needs);
    write(&mut needs, 1, 0..16_384);
    exit(&mut needs, 0);
    assert_eq!(needs.pages([9, 9]), 0);
}

#[test]
fn pages_that_are_touched_again_and_pages_that_go_add_nothing() {
    let mut needs = needs(data(GIB));
    for _ in 0..3 {
        write(&mut needs, 0, 0..5120);
        call(&mut needs, libc::SYS_madvise, [START, GIB, libc::MADV_DONTNEED as u64, 0, 0, 0], 0);
        write(&mut needs, 0, 10_240..15_360);
        call(&mut needs, libc::SYS_munmap, [START, GIB, 0, 0, 0, 0], 0);
        call(&mut needs, libc::SYS_mmap, [0, GIB, 3, 0x22, u64::MAX, 0], START);
    }
    // The tables of what is dropped stay.
    assert_pages(&needs, MADVISE, 5120 + 20 + UPPER);
    call(&mut needs, libc::SYS_mmap, [0, GIB, 3, 0x22, u64::MAX, 0], START + 2 * GIB);
    write(&mut needs, 0, 0..5120);
    let moved = [START, GIB, GIB, 3, START + 2 * GIB, 0];
    call(&mut needs, libc::SYS_mremap, moved, START + 2 * GIB);
    assert_eq!(needs.pages([0, 0]), 5120 + 10 + UPPER);
}

/// What a file says came of them does not count: a replay refuses them, and the pages stay or come in.
#[test]
fn calls_that_nothing_mapped_allows_change_nothing() {
    let refused = [
        (libc::SYS_munmap, [START, u64::MAX - START, 0]),
        (libc::SYS_munmap, [START, 0, 0]),
        (libc::SYS_munmap, [START + 1, MIB, 0]),
        (libc::SYS_mprotect, [START, u64::MAX - 4095, 0]),
        (libc::SYS_pkey_mprotect, [START + 8, MIB, 0]),
        (libc::SYS_madvise, [START + 8, MIB, libc::MADV_DONTNEED as u64]),
        (libc::SYS_madvise, [START, u64::MAX, libc::MADV_DONTNEED as u64]),
    ];
    for (number, [start, len, third]) in refused {
        let mut needs = needs(data(MIB));
        write(&mut needs, 0, 0..10);
        call(&mut needs, number, [start, len, third, 0, 0, 0], 0);
        write(&mut needs, 0, 10..20);
        assert_eq!(needs.pages([0, 0]), 20 + 1 + UPPER, "call {number}");
    }
}

#[test]
fn huge_pages_are_counted_by_blocks_and_end_with_the_mapping() {
    let mut needs = needs(data(60 * MIB));
    write(&mut needs, 0, 0..15_360);
    assert_pages(&needs, always(), 15_360 + 30 + UPPER);
    exec(&mut needs, 0, data(60 * MIB - 4096));
    write(&mut needs, 0, (0..15_360).step_by(512));
    assert_eq!(needs.pages([9, 9]), 15_359 + 30 + UPPER);
    assert_eq!(needs.pages([0, 9]), 30 + 30 + UPPER);
    // Advised memory is another matter.
    call(&mut needs, libc::SYS_madvise, [START, 4 * MIB, libc::MADV_HUGEPAGE as u64, 0, 0, 0], 0);
    assert_eq!(needs.pages([0, 9]), 28 + 1024 + 30 + UPPER);
    call(&mut needs, libc::SYS_madvise, [START, 8 * MIB, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0], 0);
    assert_eq!(needs.pages([9, 9]), 4 + 15_359 - 2048 + 30 + UPPER);
    // A write of what is shared with a child copies one page, whatever it was before.
    exec(&mut needs, 0, data(60 * MIB));
    write(&mut needs, 0, 0..15_360);
    fork(&mut needs);
    write(&mut needs, 1, (0..15_360).step_by(512));
    assert_eq!(needs.pages([9, 9]), 15_360 + 30 + 2 * (30 + UPPER));
}

#[test]
fn anonymous_memory_that_is_only_read_needs_tables() {
    let mut needs = needs(data(GIB));
    touch(&mut needs, 0, 0..10_240, Access::Read);
    assert_eq!(needs.pages([0, 0]), 20 + UPPER);
    // The huge zero page is one; without it each read brings one in.
    assert_eq!(needs.pages([9, 9]), 20 + UPPER);
    assert_pages(&needs, always(), 20 + UPPER);
    assert_pages(&needs, always().with_zero_page(false), 10_240 + 20 + UPPER);
    call(&mut needs, libc::SYS_madvise, [START, GIB, libc::MADV_POPULATE_READ as u64, 0, 0, 0], 0);
    assert_eq!(needs.pages([0, 0]), 512 + UPPER);
}

#[test]
fn sparse_memory_needs_tables_of_two_levels() {
    let mut needs = needs(data(60_000 * GIB));
    write(&mut needs, 0, (0..60_000).map(|gib| gib << 18));
    assert_pages(&needs, MADVISE, 3 * 60_000 + 60_000 / 512 + 1);
}

#[test]
fn locks_bring_in_what_is_mapped_and_a_length_that_wraps_is_none() {
    let mut needs = needs(data(40 * MIB));
    for (start, len) in [(START, u64::MAX), (0, u64::MAX), (START + 5, u64::MAX - 4)] {
        call(&mut needs, libc::SYS_mlock, [start, len, 0, 0, 0, 0], 0);
    }
    assert_pages(&needs, MADVISE, 0);
    call(&mut needs, libc::SYS_mmap, [0, 200 * GIB, 0, 0x4022, u64::MAX, 0], START + GIB);
    // What may not be touched does not come in.
    call(&mut needs, libc::SYS_mlockall, [3, 0, 0, 0, 0, 0], 0);
    assert_eq!(needs.pages([0, 0]), 10_240 + 20 + UPPER);
    call(&mut needs, libc::SYS_mprotect, [START + GIB, 2 * MIB, 3, 0, 0, 0], 0);
    call(&mut needs, libc::SYS_mmap, [0, 2 * MIB, 3, 0x22, u64::MAX, 0], START - 4 * MIB);
    assert_eq!(needs.pages([0, 0]), 10_240 + 20 + 2 * 513 + UPPER + 3);
    call(&mut needs, libc::SYS_munlockall, [0; 6], 0);
    call(&mut needs, libc::SYS_mmap, [0, 2 * MIB, 3, 0x22, u64::MAX, 0], START - 16 * MIB);
    assert_eq!(needs.pages([0, 0]), 10_240 + 20 + 2 * 513 + UPPER + 3);
}

#[test]
fn collapsed_ranges_are_resident_and_guards_need_tables() {
    let mut needs = needs(data(GIB));
    write(&mut needs, 0, 0..40);
    call(&mut needs, libc::SYS_madvise, [START, 20_480 << 12, libc::MADV_COLLAPSE as u64, 0, 0, 0], 0);
    assert_pages(&needs, MADVISE, 20_480 + 40 + UPPER);
    call(&mut needs, libc::SYS_madvise, [START, 20_480 << 12, 102, 0, 0, 0], 0);
    assert_eq!(needs.pages([0, 0]), 40 + UPPER);
}

#[test]
fn a_heap_and_a_stack_grow() {
    let stack = Mapping {
        start: START - 8 * MIB,
        end: START - 7 * MIB,
        name: (*b"[stack]").into(),
        ..data(0)[0].clone()
    };
    let mut needs = needs(vec![stack]);
    call(&mut needs, libc::SYS_brk, [0; 6], 0x60_0000 + 10 * MIB);
    let in_heap = (0..2560).map(|page| (0x60_0000_u64.wrapping_sub(START) >> 12).wrapping_add(page));
    write(&mut needs, 0, in_heap.map(|page| page & ((1 << 52) - 1)));
    assert_eq!(needs.pages([0, 0]), 2560 + 5 + UPPER);
    write(&mut needs, 0, [(0_u64.wrapping_sub(9 * MIB) >> 12) & ((1 << 52) - 1)]);
    assert_eq!(needs.pages([0, 0]), 2560 + 5 + UPPER + 1 + 1 + UPPER);
}

/// A page of a file, which grows down.
fn stack_of_a_file() -> Mapping {
    let name = (*b"[stack]").into();
    Mapping { start: START - 4096, end: START, name, inode: 1, ..data(0)[0].clone() }
}

#[test]
fn a_stack_grows_as_far_as_its_limit() {
    let mut image = ExecImage { mappings: vec![stack_of_a_file()], ..ExecImage::default() };
    image.limits.stack.soft = 8 * MIB;
    let mut needs = Needs::default();
    step(&mut needs, 0, EventKind::Exec(Box::new(image)));
    let below = |bytes: u64| [(0_u64.wrapping_sub(bytes) >> 12) & ((1 << 52) - 1)];
    write(&mut needs, 0, below(64 * GIB));
    assert_eq!(needs.pages([0, 0]), 0, "64 GiB are not allowed");
    let limit = Limit { target: TaskId(0), kind: LimitKind::Stack, soft: u64::MAX, hard: u64::MAX };
    step(&mut needs, 0, EventKind::Limit(limit));
    write(&mut needs, 0, below(64 * GIB));
    assert_eq!(needs.pages([0, 0]), 1 + 1 + UPPER);
}

/// The end of the file of a mapping that grows down may be reached where it has grown to. What is populated
/// there counts.
#[test]
fn a_stack_grows_by_a_touch_that_is_denied() {
    let mut needs = needs(vec![stack_of_a_file()]);
    let (access, mode, outcome) = (Access::Write, Mode::User, Outcome::Denied(Denial::NoBacking));
    let addr = START - MIB;
    step(&mut needs, 0, EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false }));
    assert_eq!(needs.pages([0, 0]), 0, "it brings nothing in");
    call(&mut needs, libc::SYS_remap_file_pages, [addr, 64 << 12, 0, 0, 0, 0], 0);
    assert_eq!(needs.pages([0, 0]), 64 + 1 + UPPER);
}

/// Each touch past its end cuts shared memory in the replay, which walks all that maps it.
#[test]
fn touches_past_the_end_of_what_has_many_mappings_are_too_much() {
    let too_much_at = |mappings: u64| {
        let mut needs = needs(Vec::new());
        needs.budget = Budget::SMALL;
        let at = |nth: u64| START + nth * 2 * MIB;
        for nth in 0..mappings {
            let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
            let args = [at(nth), 4096, 3, flags, 3, 0];
            let facts = FileFacts { kind: FileKind::Memory, size: 4096, inode: 7, ..FileFacts::default() };
            let detail = CallDetail::File(Arc::new(facts));
            let map = Call { number: libc::SYS_mmap as u32, args, result: at(nth) as i64, detail };
            step(&mut needs, 0, EventKind::Call(map));
        }
        let (access, mode, outcome) = (Access::Read, Mode::User, Outcome::Denied(Denial::NoBacking));
        for _ in 0..10_000 {
            let fault = Fault { addr: START, access, mode, outcome, inferred: false };
            step(&mut needs, 0, EventKind::Fault(fault));
        }
        needs.too_much_at
    };
    assert_eq!(too_much_at(1), None);
    assert!(too_much_at(1000).is_some());
}

/// Linux gives the end of the heap, which is not below its start. A replay keeps what was asked for then.
#[test]
fn a_heap_that_ends_before_it_begins_stays_as_it_is() {
    const HEAP: u64 = 0x60_0000;
    for (asked, result, pages) in
        [(HEAP + MIB, 0, 10), (HEAP + MIB, -1_i64 as u64, 10), (HEAP + MIB, HEAP, 0), (0, 0, 0)]
    {
        let mut needs = needs(Vec::new());
        call(&mut needs, libc::SYS_brk, [asked, 0, 0, 0, 0, 0], result);
        write(&mut needs, 0, (0..10).map(|page| (HEAP.wrapping_sub(START) >> 12) + page));
        let tables = if pages > 0 { 1 + UPPER } else { 0 };
        assert_eq!(needs.pages([0, 0]), pages + tables, "{asked:#x} gave {result:#x}");
    }
}

/// A file claims that these succeeded. A replay refuses them, and what was mapped there stays.
#[test]
fn calls_that_can_only_fail_take_nothing_away() {
    let mut needs = needs(data(8 * MIB));
    write(&mut needs, 0, 0..100);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    for (start, len) in [(START, 1 << 48), (START - 4096, USER_END), (START - 8, 16 * MIB), (START, u64::MAX)]
    {
        call(&mut needs, libc::SYS_mmap, [start, len, 3, flags, u64::MAX, 0], start);
        assert_eq!(needs.pages([0, 0]), 100 + 1 + UPPER, "{len:#x} bytes at {start:#x}");
    }
    // The heap begins below all of that.
    let end = START + GIB;
    call(&mut needs, libc::SYS_brk, [end, 0, 0, 0, 0, 0], end);
    assert_eq!(needs.pages([0, 0]), 100 + 1 + UPPER);
    call(&mut needs, libc::SYS_mmap, [START, 8 * MIB, 3, flags, u64::MAX, 0], START);
    assert_eq!(needs.pages([0, 0]), 0, "this one can be, and what was there is gone");
    // If a replay did not map it, there is the heap.
    write(&mut needs, 0, [(8 * MIB) >> 12, (16 * MIB) >> 12]);
    assert_eq!(needs.pages([0, 0]), 2 + 2 + UPPER);
}

/// A mapping that cannot be installed takes nothing from the one that was.
#[test]
fn mappings_over_another_are_left_out_with_their_pages() {
    let run = |start| PageRun { start, pages: 10, file: false };
    let mut mappings = data(8 * MIB);
    mappings[0].resident = vec![run(START)];
    for (start, end) in [(START - 4096, START + 16 * MIB), (START + 16 * MIB + 8, START + 17 * MIB)] {
        let resident = vec![run(start), run(start + 16 * MIB)];
        mappings.push(Mapping { start, end, write: false, resident, ..mappings[0].clone() });
    }
    assert_eq!(needs(mappings).pages([0, 0]), 10 + UPPER + 1);
}

#[test]
fn claims_add_nothing() {
    let runs = [
        PageRun { start: 0, pages: u64::MAX, file: true },
        PageRun { start: START, pages: u64::MAX, file: false },
    ];
    let mut mappings = data(8 * MIB);
    mappings[0].resident = runs.to_vec();
    let mut needs = needs(mappings);
    let most = u64::MAX;
    let figures = LinuxFigures {
        cause: FiguresCause::Exit,
        pid: 1,
        vm_peak: most,
        vm_size: most,
        vm_hwm: most,
        vm_rss: most,
        rss_anon: most,
        rss_file: most,
        rss_shmem: most,
        vm_data: most,
        vm_stk: most,
        vm_pte: most,
        vm_swap: most,
        mappings: most,
        vm_pte_peak: most,
        mappings_peak: most,
        threads_peak: 1,
        minor_faults: most,
        major_faults: most,
        processor_ns: most,
    };
    step(&mut needs, 0, EventKind::Figures(Box::new(figures)));
    for source in [ReuseSource::Exact, ReuseSource::MappingCounts] {
        let run = ReuseRun { start: START, pages: Reuse::MOST_PAGES, access: ReuseAccess::Write };
        step(&mut needs, 0, EventKind::Reuse(Reuse { source, runs: vec![run] }));
    }
    // Outside of all mappings.
    write(&mut needs, 0, (0..1000).map(|block| (block << 9) + 4096));
    assert_pages(&needs, MADVISE, 2048 + 4 + UPPER);
    assert_eq!(needs.too_much_at(), None);
}

/// A call may name terabytes, or a loop of calls: what comes in is bounded by the number of events.
#[test]
fn events_that_name_too_much_end_the_plan() {
    let mut needs = needs(data(16_384 * GIB));
    call(&mut needs, libc::SYS_madvise, [START, 200 * GIB, libc::MADV_POPULATE_READ as u64, 0, 0, 0], 0);
    assert_eq!(needs.too_much_at(), None);
    for _ in 0..3 {
        call(&mut needs, libc::SYS_mlock, [START, 4096 * GIB, 0, 0, 0, 0], 0);
    }
    assert_eq!(needs.too_much_at(), Some(2));
    // What came before it is planned for.
    assert!(needs.ram(MADVISE) < 2 * GIB, "{}", needs.ram(MADVISE));
    let mut many = self::needs(data(GIB));
    write(&mut many, 0, (0..262_144).step_by(512));
    let before = many.events();
    for _ in 0..6000 {
        fork(&mut many);
        exit(&mut many, 1);
    }
    let forks = (many.too_much_at().unwrap() - before) / 2;
    assert!((3000..5000).contains(&forks), "{forks} forks of a GiB");
}

/// Blocks far from each other are told apart only as long as there are not too many.
#[test]
fn a_plan_takes_little_memory_itself() {
    let mut needs = needs(data(16_384 * GIB));
    let touches = Budget::FIRST.blocks + 1000;
    write(&mut needs, 0, (0..touches).map(|block| block << 9));
    let blocks: usize = needs.images.values().map(|image| image.own.blocks.len()).sum();
    assert_eq!(blocks as u64, Budget::FIRST.blocks);
    assert!(needs.ram(MADVISE) >= ram_of(2 * touches));
}

/// So many mappings of a page each, with a page between two.
fn small_mappings(count: u64) -> Vec<Mapping> {
    let start = |number| START + number * 8192;
    let mapping = |number| Mapping { start: start(number), end: start(number) + 4096, ..data(0)[0].clone() };
    (0..count).map(mapping).collect()
}

/// Makes the same event until it is too much with a 16th of what else may be spent, and returns how often it
/// was made.
fn repeated(needs: &mut Needs, mut event: impl FnMut(&mut Needs)) -> u64 {
    needs.budget = Budget::SMALL;
    let before = needs.events();
    while needs.too_much_at().is_none() && needs.events() < before + 20_000 {
        event(needs);
    }
    assert!(needs.too_much_at().is_some() && needs.images.is_empty() && needs.layers.is_empty());
    needs.too_much_at().unwrap() - before
}

#[test]
fn samples_of_contents_cost_what_they_take() {
    let page = |page| PageSample { page, contents: PageContents::Compressed(4000) };
    let pages = (0..10_000).rev().map(page).collect();
    let sample = ContentSample { start: START, bytes: GIB, pages, ..ContentSample::default() };
    let mut needs = needs(data(GIB));
    let samples = repeated(&mut needs, |needs| {
        step(needs, 0, EventKind::Contents(Box::new(sample.clone())));
    });
    assert!((20..80).contains(&samples), "{samples}");
    // Without pages, too.
    let sample = ContentSample { start: START, bytes: u64::MAX, ..ContentSample::default() };
    let mut needs = self::needs(data(GIB));
    let samples = repeated(&mut needs, |needs| {
        step(needs, 0, EventKind::Contents(Box::new(sample.clone())));
    });
    assert!((100..300).contains(&samples), "{samples}");
}

#[test]
fn uses_cost_the_same_where_nothing_can_be_mapped() {
    for start in [START, 1 << 47, u64::MAX - 4095] {
        let run = ReuseRun { start, pages: Reuse::MOST_PAGES, access: ReuseAccess::Read };
        let reuse = Reuse { source: ReuseSource::Exact, runs: vec![run] };
        let mut needs = needs(data(MIB));
        let uses = repeated(&mut needs, |needs| step(needs, 0, EventKind::Reuse(reuse.clone())));
        assert_eq!(uses, (1 << 22) / Reuse::MOST_PAGES);
    }
}

/// A fuzzer's replays take little time, whatever their events claim.
#[test]
fn few_claims_are_out_of_proportion_soon() {
    for (claims, too_much_at) in [(Claims::Ordinary, None), (Claims::Few, Some(2))] {
        let mut needs = Needs::of(&TraceHeader::default(), claims);
        exec(&mut needs, 0, data(GIB));
        for bytes in [16 * MIB, GIB] {
            advise(&mut needs, bytes, libc::MADV_POPULATE_WRITE);
        }
        assert_eq!(needs.too_much_at(), too_much_at, "{claims:?}");
    }
}

/// A call that changes nothing may look at all mappings, and mincore at each page.
#[test]
fn a_look_at_mappings_and_pages_costs() {
    let mut needs = needs(small_mappings(20_000));
    let looks = repeated(&mut needs, |needs| {
        call(needs, libc::SYS_msync, [START, 20_000 * 8192, 4, 0, 0, 0], -i64::from(libc::ENOMEM) as u64);
    });
    assert!((150..250).contains(&looks), "{looks}");
    // To change them costs more.
    let mut needs = self::needs(small_mappings(20_000));
    let mut advices = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE].into_iter().cycle();
    let changes = repeated(&mut needs, |needs| advise(needs, 20_000 * 8192, advices.next().unwrap_or(0)));
    assert!((15..30).contains(&changes), "{changes}");
    let mut needs = self::needs(data(16_384 * GIB));
    call(&mut needs, libc::SYS_mincore, [START, 1024 * GIB, START, 0, 0, 0], 0);
    assert_eq!(needs.too_much_at(), None);
    call(&mut needs, libc::SYS_mincore, [START, 16_384 * GIB, START, 0, 0, 0], 0);
    assert_eq!(needs.too_much_at(), Some(2));
}

#[test]
fn images_and_forks_of_many_mappings_cost() {
    let mappings = small_mappings(2000);
    let mut all = needs(mappings.clone());
    let mut child = 0;
    let alive = repeated(&mut all, |needs| {
        child += 1;
        fork_to(needs, child);
    });
    assert!((80..150).contains(&alive), "{alive} children at once");
    let mut needs = needs(mappings.clone());
    let one_by_one = repeated(&mut needs, |needs| {
        fork(needs);
        exit(needs, 1);
    });
    assert!((3500..5500).contains(&one_by_one), "{one_by_one} events");
    let mut needs = self::needs(Vec::new());
    let images = repeated(&mut needs, |needs| exec(needs, 0, mappings.clone()));
    assert!((400..700).contains(&images), "{images}");
}

/// A change of a file walks its mappings in all processes, and their page tables, and not those of others.
#[test]
fn changes_of_files_that_are_mapped_often_cost() {
    let mapped = |inode| {
        let mut mappings = small_mappings(2000);
        mappings.iter_mut().for_each(|mapping| mapping.inode = inode);
        mappings
    };
    let file = |needs: &mut Needs, inode, change| {
        step(needs, 0, EventKind::File(Box::new(FileEvent { device: 0, inode, change })));
    };
    let size = |bytes| FileChange::Size { bytes, cause: SizeCause::Seen };
    let first = |needs: &mut Needs| [7, 8].into_iter().for_each(|inode| file(needs, inode, size(GIB)));
    let gone = || FileChange::Evicted(vec![IndexRun { first: 9, pages: 1 }]);
    let mut all = Needs::default();
    first(&mut all);
    exec(&mut all, 0, mapped(7));
    for child in 1..10 {
        fork_to(&mut all, child);
    }
    (0..1000).for_each(|_| file(&mut all, 8, gone()));
    let changes = repeated(&mut all, |needs| file(needs, 7, gone()));
    assert!((180..250).contains(&changes), "{changes}");
    // A hole that a program makes of each of its mappings is made in all.
    let shared = |count| {
        let mut mappings = mapped(7);
        mappings.truncate(count);
        mappings.iter_mut().for_each(|mapping| mapping.shared = true);
        mappings
    };
    for (count, expected) in [(2000, 1..3), (20, 5000..20_000)] {
        let mut all = Needs::default();
        first(&mut all);
        exec(&mut all, 0, shared(count));
        let holes = repeated(&mut all, |needs| advise(needs, GIB, libc::MADV_REMOVE));
        assert!(expected.contains(&holes), "{holes}");
    }
    let mut one = Needs::default();
    first(&mut one);
    exec(&mut one, 0, vec![Mapping { inode: 7, ..data(GIB << 10)[0].clone() }]);
    touch(&mut one, 0, (0..10_000).map(|table| table * 512), Access::Read);
    let mut sizes = [MIB, GIB].into_iter().cycle();
    let changes = repeated(&mut one, |needs| file(needs, 7, size(sizes.next().unwrap_or(0))));
    assert!((90..150).contains(&changes), "{changes}");
}

/// Processes whose figures are kept to the end.
#[test]
fn each_process_costs() {
    let mut needs = needs(data(MIB));
    let processes = repeated(&mut needs, |needs| {
        fork(needs);
        exit(needs, 1);
    });
    assert!((15_000..20_000).contains(&processes), "{processes} events");
}

/// A server that always has a child: what only one still has is its own, and one touch asks one set.
#[test]
fn layers_of_children_that_are_gone_are_merged() {
    let mut needs = needs(data(GIB));
    write(&mut needs, 0, 0..512);
    for round in 0..100 {
        let [new, old] = if round % 2 == 0 { [1, 2] } else { [2, 1] };
        fork_to(&mut needs, new);
        write(&mut needs, 0, 0..512);
        if round > 0 {
            exit(&mut needs, old as usize);
        }
        assert_eq!(needs.pages([0, 0]), 2 * 512 + 2 * (1 + UPPER), "round {round}");
    }
    // Both see what was there before all forks.
    touch(&mut needs, 1, 0..512, Access::Read);
    touch(&mut needs, 2, 0..512, Access::Read);
    assert_eq!(needs.pages([0, 0]), 2 * 512 + 2 * (1 + UPPER));
    exit(&mut needs, 2);
    assert!(needs.layers.is_empty());
    assert_eq!(needs.pages([0, 0]), 512 + 1 + UPPER);
}

#[test]
fn many_children_at_once_share_what_was_there_before() {
    let mut needs = needs(data(GIB));
    for child in 1..=500 {
        write(&mut needs, 0, [u64::from(child)]);
        fork_to(&mut needs, child);
    }
    let tables = 501 * (1 + UPPER);
    assert_eq!(needs.pages([0, 0]), 500 + tables);
    // The last one has all pages of the parent, the first one a single page.
    write(&mut needs, 500, 1..=500);
    write(&mut needs, 1, [1]);
    assert_eq!(needs.pages([0, 0]), 500 + 501 + tables);
    for child in (1..=500).rev() {
        exit(&mut needs, child);
    }
    assert!(needs.layers.is_empty());
    assert_eq!(needs.pages([0, 0]), 500 + 1 + UPPER);
    assert_eq!(needs.too_much_at(), None);
}

#[test]
fn mappings_are_unknown_where_events_were_lost() {
    let mut needs = needs(data(MIB));
    let outside = START + GIB;
    let at = |addr: u64| [addr.wrapping_sub(START) >> 12];
    write(&mut needs, 0, at(outside));
    assert_eq!(needs.pages([0, 0]), 0);
    step(&mut needs, 0, EventKind::Lost(Lost { count: 1, cause: LostCause::RingFull }));
    fork(&mut needs);
    write(&mut needs, 0, at(outside));
    write(&mut needs, 1, at(outside));
    assert_eq!(needs.pages([0, 0]), 2 * (1 + 1 + UPPER));
    exec(&mut needs, 1, data(MIB));
    write(&mut needs, 1, at(outside));
    assert_eq!(needs.pages([0, 0]), 1 + 1 + UPPER);
}

/// The recorder refuses each MADV_COLLAPSE, and a replay does not.
#[test]
fn what_a_refused_collapse_names_is_there_under_settings_with_huge_pages() {
    let collapse = |needs: &mut Needs| {
        write(needs, 0, (0..32).map(|block| block * 512));
        let args = [START, 64 * MIB, libc::MADV_COLLAPSE as u64, 0, 0, 0];
        call(needs, libc::SYS_madvise, args, -i64::from(libc::EINVAL) as u64);
        needs.take_peaks();
        [0, 4, 9].map(|way| needs.pages([way, way]) - 32 - UPPER)
    };
    let mut kept_off = Needs { thp_turned_off: true, ..Needs::default() };
    exec(&mut kept_off, 0, data(GIB));
    assert_eq!(collapse(&mut kept_off), [32, 16_384, 16_384]);
    // MADV_HUGEPAGE is not there, so that touches bring in single pages under this policy.
    assert_eq!(kept_off.pages([0, 9]), 32 + 32 + UPPER);
    let mut asked = needs(data(GIB));
    assert_eq!(collapse(&mut asked), [32, 32 * 16, 16_384], "what the touches bring in");
    advise(&mut kept_off, 64 * MIB, libc::MADV_DONTNEED);
    assert_eq!(kept_off.pages([9, 9]), 32 + UPPER);
}

/// A program that touches and drops one page of each block.
#[test]
fn what_a_program_drops_of_large_folios_leaves_the_rest() {
    let mut needs = needs(data(GIB));
    for block in 0..16 {
        write(&mut needs, 0, [512 * block + 7]);
        let page = START + ((512 * block + 7) << 12);
        call(&mut needs, libc::SYS_madvise, [page, 4096, libc::MADV_DONTNEED as u64, 0, 0, 0], 0);
    }
    assert_eq!(needs.pages([9, 9]), 16 * 512 + 16 + UPPER);
    assert_eq!(needs.pages([4, 4]), 16 * 16 + 16 + UPPER);
    assert_eq!(needs.pages([0, 0]), 16 + UPPER);
    call(&mut needs, libc::SYS_munmap, [START, 8 * 2 * MIB, 0, 0, 0, 0], 0);
    assert_eq!(needs.pages([9, 9]), 8 * 512 + 8 + UPPER);
}

/// A guard for each page takes as long as some pages that come in, also where Linux did not know the advice.
#[test]
fn guards_for_a_terabyte_are_too_much() {
    const GUARD_INSTALL: u64 = 102;
    for result in [0, -i64::from(libc::EINVAL)] {
        for (bytes, at) in [(GIB, None), (1 << 40, Some(1))] {
            let mut needs = needs(data(bytes));
            call(&mut needs, libc::SYS_madvise, [START, bytes, GUARD_INSTALL, 0, 0, 0], result as u64);
            assert_eq!(needs.too_much_at(), at, "{result} {bytes:#x}");
        }
    }
}
