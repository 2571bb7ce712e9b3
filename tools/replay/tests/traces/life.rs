//! Memory over the recorded time, under settings of transparent huge pages other than the recorded.

use quire_mm::thp::{
    HugeConfig, HugeEnabled, HugePolicy, KhugepagedConfig, KhugepagedSetting, OrderSet, SizeEnabled,
};
use quire_replay::{
    HeatCell, HeatPlace, LifeFigures, Replay, ReplayOptions, ReplayReport, SwapKind, SwapSpec,
};
use quire_trace::event::{
    Access, Call, CallDetail, Event, EventKind, ExecImage, ExitStatus, Fault, FileFacts, FileKind, Mode,
    Outcome, TaskId,
};
use quire_trace::format::{TraceReader, TraceWriter};
use quire_trace::import::lackey;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tempfile::{Builder, NamedTempFile, TempPath};

pub(super) const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
/// Where the programs map memory: a border of a PMD entry.
pub(super) const BASE: u64 = 0x10_0000_0000;
pub(super) const SECOND: u64 = 1_000_000_000;
const MADV_GUARD_INSTALL: i32 = 102;

/// A recording that was made up, as a file of the test's own.
pub(super) struct Invented {
    file: TempPath,
    events: Vec<Event>,
}

impl Invented {
    pub(super) fn new(name: &str) -> Self {
        let file = Builder::new().prefix(name).suffix(".qtr").tempfile().unwrap().into_temp_path();
        let image = ExecImage { max_map_count: 65530, overcommit_memory: 1, ..ExecImage::default() };
        let mut this = Self { file, events: Vec::new() };
        this.push(0, EventKind::Exec(Box::new(image)));
        this
    }

    pub(super) fn push(&mut self, time_ns: u64, kind: EventKind) {
        self.events.push(Event { time_ns, task: TaskId(0), cpu: 0, kind });
    }

    pub(super) fn call(&mut self, time_ns: u64, number: i64, args: [u64; 6], result: u64) {
        let call = Call { number: number as u32, args, result: result as i64, detail: CallDetail::None };
        self.push(time_ns, EventKind::Call(call));
    }

    /// Maps `len` bytes at `addr`, with more flags.
    pub(super) fn map(&mut self, time_ns: u64, addr: u64, len: u64, flags: i32) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE | flags;
        self.call(time_ns, libc::SYS_mmap, [addr, len, 3, flags as u64, u64::MAX, 0], addr);
    }

    fn unmap(&mut self, time_ns: u64, addr: u64, len: u64) {
        self.call(time_ns, libc::SYS_munmap, [addr, len, 0, 0, 0, 0], 0);
    }

    /// After a report: the program does not end yet.
    pub(super) fn go_on(&mut self) {
        self.events.pop_if(|last| matches!(last.kind, EventKind::Exit(_)));
    }

    /// The last event.
    pub(super) fn last(&mut self) -> &mut Event {
        self.events.last_mut().unwrap()
    }

    pub(super) fn write(&mut self, time_ns: u64, addr: u64) {
        let (access, mode, outcome) = (Access::Write, Mode::User, Outcome::Minor);
        self.push(time_ns, EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false }));
    }

    fn replay(&mut self, options: ReplayOptions) -> ReplayReport {
        let report = self.report(options);
        assert!(report.does_not_fit.is_none(), "{:?}", report.does_not_fit);
        report
    }

    pub(super) fn report(&mut self, options: ReplayOptions) -> ReplayReport {
        let last = self.events.last().map_or(0, |event| event.time_ns);
        if !matches!(self.events.last(), Some(Event { kind: EventKind::Exit(_), .. })) {
            self.push(last, EventKind::Exit(ExitStatus::Code(0)));
        }
        // The header of an import; the events are ours.
        let mut text = NamedTempFile::new().unwrap();
        text.write_all(b" S 05000000,8\n").unwrap();
        lackey(text.path(), &self.file, false).unwrap();
        let header = TraceReader::open(&self.file).unwrap().header().clone();
        let mut writer = TraceWriter::new(File::create(&self.file).unwrap(), &header, 3).unwrap();
        for event in &self.events {
            writer.push(event).unwrap();
        }
        writer.finish(0, 0).unwrap();
        Replay::open(&self.file, options).unwrap().run(&mut |_, _| {}).unwrap()
    }

    fn life(&mut self, policy: HugePolicy) -> LifeFigures {
        let huge = HugeConfig { policy, ..HugeConfig::default() };
        self.replay(ReplayOptions { huge, life: true, ..ReplayOptions::default() }).life.unwrap()
    }
}

fn policy(enabled: HugeEnabled) -> HugePolicy {
    HugePolicy::default().with_enabled(enabled)
}

/// A byte in each 2 MiB of 64 MiB: a page each without huge pages, all of it with them. The machine has
/// memory for either without being told. Twice that is little for a host to have left.
#[test]
fn ram_suffices_for_what_the_settings_bring_in() {
    const BLOCKS: u64 = 32;
    const ALL: u64 = BLOCKS * HUGE;
    let mut program = Invented::new("sparse");
    program.map(SECOND, BASE, ALL, 0);
    for block in 0..BLOCKS {
        program.write(2 * SECOND, BASE + block * HUGE + 5 * PAGE);
    }
    program.unmap(4 * SECOND, BASE, ALL);
    let never = program.life(policy(HugeEnabled::Never));
    assert_eq!((never.at_peak.anonymous, never.at_peak.huge, never.faults), (BLOCKS * PAGE, 0, BLOCKS));
    assert!(never.folios.is_empty() && never.fallbacks() == 0, "{never:?}");
    let always = program.life(policy(HugeEnabled::Always));
    assert_eq!((always.at_peak.anonymous, always.at_peak.huge), (ALL, ALL));
    assert_eq!((always.peak_largest, always.processes[0].peak_anonymous), (ALL, ALL));
    assert_eq!(always.folios.iter().map(|folio| folio.faults).collect::<Vec<_>>(), [BLOCKS]);
    assert_eq!((always.fallbacks(), always.large_share()), (0, 1.0));
    assert!(always.peak_page_tables < never.peak_page_tables + BLOCKS * PAGE, "{always:?}");
    // From 2 s on, of 4 s.
    let half = (ALL / 2) as f64;
    assert!((always.mean_anonymous - half).abs() < half * 0.01, "{}", always.mean_anonymous);
}

/// A page of each block is touched and dropped, or the others are unmapped: the folio stays, and the machine
/// has memory for all.
#[test]
fn what_is_left_of_large_folios_has_room() {
    for unmaps in [false, true] {
        let mut program = Invented::new("dropped");
        program.map(SECOND, BASE, 64 * HUGE, 0);
        for block in (0..64).map(|block| BASE + block * HUGE) {
            program.write(2 * SECOND, block);
            if unmaps {
                program.unmap(2 * SECOND, block + PAGE, HUGE - PAGE);
            } else {
                let args = [block, PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0];
                program.call(2 * SECOND, libc::SYS_madvise, args, 0);
            }
        }
        let life = program.life(policy(HugeEnabled::Always));
        assert_eq!(life.fallbacks(), 0, "unmaps: {unmaps}");
        let splits: u64 = life.folios.iter().map(|folio| folio.splits).sum();
        assert_eq!(splits, 0, "unmaps: {unmaps}");
        let left = if unmaps { 64 * PAGE } else { 64 * (HUGE - PAGE) };
        assert!(life.at_peak.anonymous >= left, "unmaps: {unmaps}: {life:?}");
    }
}

/// All but a page of each folio is dropped and comes in again beside it: twice as much as was planned. Where
/// that is too much for the machine, there is another one.
#[test]
fn a_replay_that_was_short_of_memory_is_made_again_with_more() {
    const BLOCKS: u64 = 24;
    let mut program = Invented::new("again");
    program.map(SECOND, BASE, BLOCKS * HUGE, 0);
    for block in (0..BLOCKS).map(|block| BASE + block * HUGE) {
        program.write(2 * SECOND, block);
        let args = [block + PAGE, HUGE - PAGE, libc::MADV_DONTNEED as u64, 0, 0, 0];
        program.call(2 * SECOND, libc::SYS_madvise, args, 0);
        (1..512).for_each(|page| program.write(2 * SECOND, block + page * PAGE));
    }
    let huge = HugeConfig { policy: policy(HugeEnabled::Always), ..HugeConfig::default() };
    let report = program.replay(ReplayOptions { huge, life: true, ..ReplayOptions::default() });
    let life = report.life.unwrap();
    let splits: u64 = life.folios.iter().map(|folio| folio.splits).sum();
    assert_eq!((life.fallbacks(), splits), (0, 0));
    assert!(report.ram >= 2 * BLOCKS * HUGE, "{} MiB", report.ram >> 20);
}

/// What the programs hold is not held by the replay.
#[test]
fn a_peak_of_16_gib_fits_into_one() {
    const PEAK: u64 = 16 << 30;
    let mut program = Invented::new("large");
    program.map(SECOND, BASE, PEAK, 0);
    for block in 0..PEAK / HUGE {
        program.write(2 * SECOND, BASE + block * HUGE);
    }
    program.unmap(4 * SECOND, BASE, PEAK);
    // As much as is planned for it, which may be more than half of what the host has left.
    let memory = Some(PEAK + PEAK / 8 + (68 << 20));
    let huge = HugeConfig { policy: policy(HugeEnabled::Always), ..HugeConfig::default() };
    let options = ReplayOptions { huge, memory, life: true, ..ReplayOptions::default() };
    let always = program.replay(options).life.unwrap();
    assert_eq!((always.at_peak.anonymous, always.at_peak.huge, always.fallbacks()), (PEAK, PEAK, 0));
    // Of all tests of this process together.
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let most: u64 = most.and_then(|most| most.parse().ok()).expect("a number");
    assert!(most < 1 << 20, "{most} kB");
}

/// A small file that is mapped far past its end, as databases do that let it grow: Linux populates what is
/// there.
#[test]
fn a_file_is_populated_up_to_its_end() {
    for (number, size, offset, resident) in [
        (0, 3 * PAGE - 100, 0, 3 * PAGE),
        (1, 3 * PAGE, 2 * PAGE, PAGE),
        (2, 0, 0, 0),
        (3, 1 << 30, 0, 64 << 20),
    ] {
        let mut program = Invented::new(&format!("file-{number}"));
        let facts = FileFacts { kind: FileKind::Regular, size, readable: true, ..FileFacts::default() };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
        let call = Call {
            number: libc::SYS_mmap as u32,
            args: [BASE, 64 << 20, libc::PROT_READ as u64, flags as u64, 3, offset],
            result: BASE as i64,
            detail: CallDetail::File(Arc::new(facts)),
        };
        program.push(SECOND, EventKind::Call(call));
        program.unmap(2 * SECOND, BASE, 64 << 20);
        let life = program.life(policy(HugeEnabled::Never));
        assert_eq!(life.peak_resident, resident, "{size} bytes, from {offset} on");
        let table = resident.div_ceil(HUGE) * PAGE;
        assert!((table..table + 8 * PAGE).contains(&life.peak_page_tables), "{}", life.peak_page_tables);
    }
}

/// Sizes below the PMD's.
#[test]
fn each_size_of_folio_is_counted() {
    let mut program = Invented::new("sizes");
    program.map(0, BASE, 4 << 20, 0);
    for page in 0..1024 {
        program.write(0, BASE + page * PAGE);
    }
    for (kib, order) in [(16, 2), (64, 4), (1024, 8)] {
        let order = quire_arch::Order::new(order).unwrap();
        let sizes = OrderSet::of(order);
        let life = program.life(policy(HugeEnabled::Never).with_sizes(sizes, SizeEnabled::Always));
        assert_eq!(life.at_peak.anonymous, 4 << 20, "{kib} KiB");
        assert_eq!(life.at_peak.large, 4 << 20);
        let [folio] = life.folios[..] else { panic!("{:?}", life.folios) };
        assert_eq!((folio.order, folio.faults, folio.fallbacks), (order, (4 << 10) / kib, 0));
        assert_eq!(life.faults, (4 << 10) / kib);
    }
}

/// khugepaged keeps its pace in recorded time: what is unmapped before it looks is not collapsed.
#[test]
fn khugepaged_looks_at_its_own_times() {
    let mut program = Invented::new("khugepaged");
    // Heaps that grow by a page at the end: faults find no block of 2 MiB in them, khugepaged does later.
    for block in [0, 2] {
        let start = BASE + block * HUGE;
        program.map(0, start, HUGE - PAGE, 0);
        for page in 0..511 {
            program.write(0, start + page * PAGE);
        }
        program.map(0, start + HUGE - PAGE, PAGE, 0);
    }
    program.unmap(9 * SECOND, BASE + 2 * HUGE, HUGE);
    program.unmap(12 * SECOND, BASE, HUGE);
    let mut life = |none: u32, first: Option<u64>| {
        let khugepaged = KhugepagedConfig::LINUX.with(KhugepagedSetting::MaxPtesNone, none).unwrap();
        let policy = policy(HugeEnabled::Always);
        let huge = HugeConfig { policy, khugepaged, ..HugeConfig::default() };
        let khugepaged = first.map(Duration::from_secs);
        let options = ReplayOptions { huge, life: true, khugepaged, ..ReplayOptions::default() };
        let life = program.replay(options).life.unwrap();
        (life.collapses, life.at_peak.anonymous)
    };
    let both = 2 * (HUGE - PAGE);
    assert_eq!(life(511, None), (0, both));
    assert_eq!(life(511, Some(10)), (1, both));
    assert_eq!(life(0, Some(10)), (0, both));
    // At 8 s both are there.
    assert_eq!(life(511, Some(8)), (2, 2 * HUGE));
    assert_eq!(life(511, Some(13)), (0, both));
}

/// Of two blocks one has a guard page, and cannot be collapsed. A folio is allocated for it, which is no
/// collapse, whether a program or khugepaged wants it.
#[test]
fn a_block_that_cannot_be_collapsed_is_no_collapse() {
    for by_call in [false, true] {
        let mut program = Invented::new("guarded");
        for (start, guarded) in [(BASE, false), (BASE + 2 * HUGE, true)] {
            let advise = |program: &mut Invented, addr, len, advice: i32, result: i32| {
                program.call(0, libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0], result as u64);
            };
            program.map(0, start, HUGE, 0);
            advise(&mut program, start, HUGE, libc::MADV_NOHUGEPAGE, 0);
            for page in 0..300 {
                program.write(0, start + page * PAGE);
            }
            if guarded {
                advise(&mut program, start + 400 * PAGE, PAGE, MADV_GUARD_INSTALL, 0);
            }
            advise(&mut program, start, HUGE, libc::MADV_HUGEPAGE, 0);
            if by_call {
                let result = if guarded { -libc::EINVAL } else { 0 };
                advise(&mut program, start, HUGE, libc::MADV_COLLAPSE, result);
            }
        }
        program.unmap(12 * SECOND, BASE, HUGE);
        let huge = HugeConfig { policy: policy(HugeEnabled::Always), ..HugeConfig::default() };
        let khugepaged = (!by_call).then(|| Duration::from_secs(8));
        let options = ReplayOptions { huge, life: true, khugepaged, ..ReplayOptions::default() };
        let life = program.replay(options).life.unwrap();
        assert_eq!((life.collapses, life.khugepaged_collapses), (1, u64::from(!by_call)));
        assert_eq!(life.at_peak.anonymous, HUGE + 300 * PAGE);
    }
}

/// Without contents a machine of 8 GiB takes little of the host, also where pages go to swap. The tests of
/// the command line hold a process to it.
#[test]
fn what_a_program_holds_is_not_touched() {
    let mut program = Invented::new("populated");
    program.map(0, BASE, 2 << 30, libc::MAP_POPULATE);
    // What is planned for it may be more than half of what the host has left.
    let memory = Some((2 << 30) + (128 << 20));
    let report = program.replay(ReplayOptions { memory, life: true, ..ReplayOptions::default() });
    assert!(report.is_good(), "{report:?}");
    assert_eq!(report.life.unwrap().at_peak.anonymous, 2 << 30);
    let swap = Some(SwapSpec { kind: SwapKind::Disk, bytes: 4 << 30 });
    let limit = Some(1 << 30);
    let within = program.replay(ReplayOptions { memory, limit, swap, ..ReplayOptions::default() }).pressure;
    assert!(within.swap.used * PAGE >= 1 << 30, "{within:?}");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    // The other tests of this program have machines of up to 1 GiB.
    assert!(kib < 2 << 20, "{kib} kB");
}

/// At the end of each column it is told which addresses hold memory, and what was touched since the one
/// before.
#[test]
fn memory_is_followed_by_address() {
    let mut program = Invented::new("addresses");
    program.map(0, BASE, 2 * HUGE, 0);
    program.write(SECOND, BASE);
    program.write(SECOND, BASE + HUGE);
    program.unmap(7 * SECOND, BASE + HUGE, HUGE);
    program.unmap(12 * SECOND, BASE, HUGE);
    let mut columns = |enabled| {
        let huge = HugeConfig { policy: policy(enabled), ..HugeConfig::default() };
        let options = ReplayOptions { huge, heat: Some(4), ..ReplayOptions::default() };
        let map = program.replay(options).heat.unwrap();
        assert_eq!((map.chunk, map.time_ns), (PAGE, 12 * SECOND));
        let (end, name) = &map.mappings[&(0, BASE)];
        assert!(*end <= BASE + 2 * HUGE && name.is_empty(), "{end:#x} {name}");
        let sums = |column: &std::collections::BTreeMap<HeatPlace, HeatCell>| {
            column.values().fold((0, 0), |(resident, touches), cell| {
                assert_eq!(cell.paged_out, 0);
                (resident + cell.resident, touches + cell.touches)
            })
        };
        let found: Vec<_> = map.columns.iter().map(sums).collect();
        // Chunks of twice the size hold as much.
        let doubled: Vec<_> = map.with_chunk_doubled().columns.iter().map(sums).collect();
        assert_eq!(found, doubled);
        found
    };
    // The last column ends before the last event.
    assert_eq!(columns(HugeEnabled::Always), [(1024, 2), (1024, 0), (512, 0), (512, 0)]);
    assert_eq!(columns(HugeEnabled::Never), [(2, 2), (2, 0), (1, 0), (1, 0)]);
}

/// A block is written whole, another one in its first half. Then a page of each is freed lazily, which splits
/// the folios: only the half that was never written to is all zeros and gives its memory back. No contents
/// are needed for that, and made-up ones do not make a page that was written look like zeros.
#[test]
fn a_split_drops_pages_that_were_never_written_and_no_others() {
    let mut program = Invented::new("lazy-part");
    program.map(SECOND, BASE, 2 * HUGE, 0);
    for page in 0..512 + 256 {
        program.write(2 * SECOND, BASE + page * PAGE);
    }
    for block in 0..2 {
        let args = [BASE + block * HUGE + PAGE, PAGE, libc::MADV_FREE as u64, 0, 0, 0];
        program.call(3 * SECOND, libc::SYS_madvise, args, 0);
    }
    for contents in [false, true] {
        let huge = HugeConfig { policy: policy(HugeEnabled::Always), ..HugeConfig::default() };
        let report = program.replay(ReplayOptions { huge, contents, ..ReplayOptions::default() });
        let anonymous = report.processes[0].quire.resident_anonymous / PAGE;
        assert_eq!(anonymous, 512 + 256, "contents: {contents}");
    }
}
