//! Events from bytes: a few processes, with whatever a file may claim in between.

use crate::bytes::Bytes;
use quire_trace::event::*;
use quire_trace::format::{FaultSource, TraceHeader};
use std::sync::Arc;

/// Events of one input.
pub(super) const MOST_EVENTS: usize = 2000;
const PAGE: u64 = 4096;
/// Landmarks of a layout: code, data, heap, where mappings go, the stack, the end of user space.
const LANDMARKS: [u64; 6] =
    [0x40_0000, 0x60_0000, 0x100_0000, 0x7f00_0000_0000, 0x7fff_f000_0000, 0x7fff_ffff_f000];
const CALLS: &[u32] =
    &[9, 9, 9, 11, 11, 10, 12, 25, 67, 28, 149, 151, 27, 26, 30, 59, 135, 157, 160, 216, 302, 329, 330, 1000];
const KINDS: &[FileKind] = &[
    FileKind::Regular,
    FileKind::Memory,
    FileKind::Zero,
    FileKind::BadDescriptor,
    FileKind::Directory,
    FileKind::HugePages,
    FileKind::Unknown,
];

/// The header of every trace that is made here.
pub(super) fn header() -> TraceHeader {
    TraceHeader { cpus: 2, ram: 1 << 30, faults: FaultSource::Tracepoint, ..TraceHeader::default() }
}

/// The events that the bytes describe, after the first image.
pub(super) fn events(bytes: &mut Bytes<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut time_ns = 0u64;
    let mut push = |task, cpu, kind| {
        time_ns += 1;
        events.push(Event { time_ns, task: TaskId(task), cpu, kind });
        events.len() < MOST_EVENTS
    };
    let mut going = push(0, 0, EventKind::Exec(Box::new(image(bytes))));
    while going && let Some(what) = bytes.next() {
        let task = u32::from(what >> 6);
        going = push(task, u32::from(what >> 5 & 1), kind(what & 31, bytes));
    }
    events
}

fn kind(what: u8, bytes: &mut Bytes<'_>) -> EventKind {
    match what {
        0..=9 => EventKind::Fault(Fault {
            addr: address(bytes).wrapping_add(u64::from(what)),
            access: bytes.pick(&[Access::Write, Access::Read, Access::Execute, Access::Unknown]),
            mode: if what == 9 { Mode::Kernel } else { Mode::User },
            outcome: bytes.pick(&[
                Outcome::Minor,
                Outcome::Unknown,
                Outcome::Unresolved,
                Outcome::Denied(Denial::NotMapped),
                Outcome::Denied(Denial::NoBacking),
            ]),
            inferred: what == 8,
        }),
        10..=19 => EventKind::Call(call(bytes)),
        20 => match bytes.byte() {
            bits @ 0..128 => EventKind::Privileges(privileges(bits)),
            inode => EventKind::File(Box::new(FileEvent {
                device: if inode < 250 { 1 } else { FileEvent::SEGMENTS },
                inode: u64::from(inode & 3),
                change: file_change(bytes),
            })),
        },
        21 | 22 => {
            let (child, bits) = (bytes.byte(), bytes.byte());
            let child = if child < 250 { u32::from(child & 7) } else { u32::from(child) << 17 };
            EventKind::Clone(CloneFacts {
                child: TaskId(child),
                child_tid: child,
                child_pid: child,
                flags: 0,
                shares_memory: bits & 1 != 0,
                same_process: bits & 2 != 0,
            })
        }
        23 => EventKind::Exec(Box::new(image(bytes))),
        25 => EventKind::Limit(Limit {
            target: TaskId(u32::from(bytes.byte() & 3)),
            kind: bytes.pick(&[
                LimitKind::AddressSpace,
                LimitKind::Data,
                LimitKind::Stack,
                LimitKind::LockedMemory,
            ]),
            soft: bytes.number(),
            hard: u64::MAX,
        }),
        26 => EventKind::Figures(Box::new(figures(bytes))),
        27 => {
            let count = bytes.number();
            let cause = if count.is_multiple_of(2) { LostCause::RingFull } else { LostCause::Unheard };
            EventKind::Lost(Lost { count, cause })
        }
        28 if bytes.byte() & 3 != 0 => {
            let (start_ns, long) = (u64::from(bytes.byte()), u64::from(bytes.byte()));
            EventKind::Window(Window { start_ns, end_ns: start_ns + long })
        }
        28 => EventKind::Unsupported(Unsupported::ForeignAbi),
        29 => EventKind::Reuse(reuse(bytes)),
        30 => EventKind::Compressibility(compressibility(bytes)),
        24 => EventKind::Contents(Box::new(ContentSample {
            start: address(bytes),
            bytes: bytes.number(),
            sizes: compressibility(bytes),
            compressed: bytes.number(),
            lz4_of_both: bytes.number(),
            zstd: bytes.number(),
            pages: page_samples(bytes),
        })),
        _ => EventKind::Exit(bytes.pick(&[
            ExitStatus::Code(0),
            ExitStatus::Signal(9),
            ExitStatus::Replaced,
            ExitStatus::Unknown,
        ])),
    }
}

fn compressibility(bytes: &mut Bytes<'_>) -> Compressibility {
    Compressibility {
        zero: u32::from(bytes.byte()),
        same: u32::from(bytes.byte()),
        sizes: std::array::from_fn(|_| u32::from(bytes.byte()) << 20),
    }
}

fn page_samples(bytes: &mut Bytes<'_>) -> Vec<PageSample> {
    let sample = |bytes: &mut Bytes<'_>| PageSample {
        page: bytes.number() as u32,
        contents: match bytes.byte() {
            0 => PageContents::Zero,
            1 => PageContents::Same,
            size => PageContents::Compressed(u16::from(size) << 4),
        },
    };
    (0..bytes.byte() % 5).map(|_| sample(bytes)).collect()
}

fn file_change(bytes: &mut Bytes<'_>) -> FileChange {
    match bytes.byte() {
        0..64 => {
            let cause = bytes.pick(&[SizeCause::Call, SizeCause::Seen]);
            FileChange::Size { bytes: length(bytes) & FileChange::MOST_BYTES, cause }
        }
        64..100 => {
            let start = length(bytes) >> 2;
            FileChange::Punched(start..start + (length(bytes) >> 2).max(1))
        }
        100..200 => FileChange::Cached(index_runs(bytes)),
        200..250 => FileChange::Evicted(index_runs(bytes)),
        _ => FileChange::Gone,
    }
}

fn index_runs(bytes: &mut Bytes<'_>) -> Vec<IndexRun> {
    let mut next = 0;
    let runs = (0..bytes.byte() % 5).map(|_| {
        let first = next + (length(bytes) >> 16);
        let run = IndexRun { first, pages: (length(bytes) >> 16).max(1) };
        next = run.end() + 1;
        run
    });
    runs.collect()
}

fn privileges(bits: u8) -> Privileges {
    Privileges { ipc_lock: bits & 1 != 0, sys_rawio: bits & 4 != 0 }
}

fn reuse(bytes: &mut Bytes<'_>) -> Reuse {
    let source = bytes.pick(&[ReuseSource::Exact, ReuseSource::MappingCounts]);
    let runs = (0..bytes.byte() % 5).map(|_| ReuseRun {
        start: address(bytes),
        pages: u64::from(bytes.byte()),
        access: bytes.pick(&[ReuseAccess::Read, ReuseAccess::Write, ReuseAccess::Unknown]),
    });
    Reuse { source, runs: runs.collect() }
}

/// An address near a landmark, or any.
fn address(bytes: &mut Bytes<'_>) -> u64 {
    let byte = bytes.byte();
    let near = u64::from(byte & 31).wrapping_sub(4).wrapping_mul(PAGE);
    match LANDMARKS.get(usize::from(byte >> 5)) {
        Some(landmark) => landmark.wrapping_add(near),
        None => bytes.number(),
    }
}

fn length(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        pages @ 0..200 => u64::from(pages) * PAGE / 2,
        _ => bytes.number(),
    }
}

fn call(bytes: &mut Bytes<'_>) -> Call {
    let number = bytes.pick(CALLS);
    let (addr, len) = (address(bytes), length(bytes));
    let mut args = [addr, len, 0, 0, 0, 0];
    match number {
        9 => {
            let how = bytes.byte();
            args[2] = u64::from(how & 7);
            let odd = if how >= 0xe0 { 1 << (bytes.byte() & 31) } else { 0 };
            args[3] = bytes.pick(&[0x22, 0x32, 0x21, 0x31, 0x2, 0x12, 0x8022, 0x122]) | odd;
        }
        25 => {
            args[2] = length(bytes);
            args[3] = u64::from(bytes.byte());
            args[4] = address(bytes);
        }
        _ => args[2] = u64::from(bytes.byte()),
    }
    let detail = match bytes.byte() {
        0..=160 => CallDetail::None,
        161..=199 => CallDetail::File(Arc::new(FileFacts {
            kind: bytes.pick(KINDS),
            device: 1,
            inode: u64::from(bytes.byte()),
            // Any, also for what is populated.
            size: if len % 17 == 0 { 0 } else { len },
            file_system: 0xef53,
            readable: true,
            writable: len % 8192 == 0,
            no_exec: len % 16384 == 0,
            name: Box::from(bytes.take(2)),
            trial: (len % 3 == 0).then(|| MapTrial {
                refused: (len % 5 == 0).then_some(19),
                write_refused: (len % 7 == 0).then_some(1),
                exec_refused: (len % 11 == 0).then_some(13),
            }),
            held: (len % 13 == 0).then_some(HeldInMemory { bytes: len, changed: len % 2 == 0 }),
            mount_huge: TmpfsHuge::ALL.get((len % 6) as usize).copied(),
        })),
        200..=214 => CallDetail::Ranges(Box::from([(addr, len), (len, addr)])),
        215..=224 => CallDetail::Name(Some(Box::from(bytes.take(3)))),
        225..=229 => CallDetail::Name(None),
        230..=239 => CallDetail::Site { instruction: address(bytes), on_stack: address(bytes) },
        240..=249 => CallDetail::Mapped { start: address(bytes), bytes: length(bytes) },
        _ => CallDetail::Resident { pages: bytes.number() },
    };
    let result = match bytes.byte() {
        0..128 => addr as i64,
        128..200 => 0,
        error @ 200..250 => -i64::from(error - 199),
        _ => bytes.number() as i64,
    };
    Call { number, args, result, detail }
}

fn image(bytes: &mut Bytes<'_>) -> ExecImage {
    let bits = bytes.byte();
    let mut numbers = || if bits & 1 == 0 { u64::MAX } else { bytes.number() };
    let (space, data, stack, locked) = (numbers(), numbers(), numbers(), numbers());
    let heap = if bits & 2 == 0 { (LANDMARKS[2], LANDMARKS[2]) } else { (bytes.number(), bytes.number()) };
    let mmap_base = (bits & 4 != 0).then(|| MmapBase {
        addr: if bits & 8 == 0 { LANDMARKS[3] } else { bytes.number() },
        direction: if bits & 16 == 0 { Direction::Down } else { Direction::Up },
        source: BaseSource::Inferred,
    });
    let limit = |soft| Rlimit { soft, hard: u64::MAX };
    let count = bytes.byte();
    let usual = (count & 8 == 0).then(usual_mapping);
    let mappings = usual.into_iter().chain((0..count % 6).map(|_| mapping(bytes))).collect();
    ExecImage {
        pid: u32::from(bits),
        abi: if bits & 32 == 0 { Abi::X86_64 } else { Abi::I386 },
        program: Box::from(*b"p"),
        mappings,
        start_brk: heap.0,
        brk: heap.1,
        start_stack: LANDMARKS[4],
        mmap_base,
        limits: Limits {
            address_space: limit(space),
            data: limit(data),
            stack: limit(stack),
            locked: limit(locked),
        },
        max_map_count: if bits & 64 == 0 { 65530 } else { bytes.number() },
        overcommit_memory: bits >> 6,
        lowest_placed: if bits & 128 == 0 { 65536 } else { bytes.number() },
        mmap_min_addr: if bits & 128 == 0 { 65536 } else { bytes.number() },
        privileges: privileges(bits),
        exec_gain: bytes.pick(&[ExecGain::Allowed, ExecGain::Refused, ExecGain::RefusedNotInherited]),
        thp: ThpMode::Never,
        ..ExecImage::default()
    }
}

/// A program's data.
fn usual_mapping() -> Mapping {
    Mapping {
        start: LANDMARKS[1],
        end: LANDMARKS[1] + 24 * PAGE,
        read: true,
        write: true,
        resident: vec![PageRun { start: LANDMARKS[1], pages: 3, file: false }],
        ..Mapping::default()
    }
}

fn mapping(bytes: &mut Bytes<'_>) -> Mapping {
    let start = address(bytes);
    let end = start.wrapping_add(length(bytes));
    let bits = bytes.byte();
    // Permissions only, or the kernel's flags, which are the low ones of the set.
    let flags = if bits & 16 == 0 { VmFlags::default() } else { VmFlags(u64::from(bytes.short()) | 0x70) };
    let resident = (0..bits >> 6).map(|_| PageRun {
        start: start.wrapping_add(u64::from(bytes.byte()) * PAGE / 4),
        pages: if bits & 32 == 0 { u64::from(bytes.byte()) } else { bytes.number() },
        file: bits & 8 != 0,
    });
    let resident = resident.collect();
    Mapping {
        start,
        end,
        read: bits & 1 != 0,
        write: bits & 2 != 0,
        execute: bits & 4 != 0,
        shared: bits & 8 != 0,
        offset: bytes.number(),
        device: 1,
        inode: u64::from(bytes.byte() & 1),
        flags,
        resident,
        ..Mapping::default()
    }
}

fn figures(bytes: &mut Bytes<'_>) -> LinuxFigures {
    let (some, most) = (bytes.number(), bytes.number());
    LinuxFigures {
        cause: FiguresCause::Exit,
        pid: 1,
        vm_peak: most,
        vm_size: some,
        vm_hwm: most,
        vm_rss: some,
        rss_anon: some,
        rss_file: 0,
        rss_shmem: 0,
        vm_data: some,
        vm_stk: some,
        vm_pte: some,
        vm_swap: 0,
        mappings: some,
        vm_pte_peak: most,
        mappings_peak: most,
        threads_peak: 1,
        minor_faults: some,
        major_faults: most,
        processor_ns: some,
    }
}
