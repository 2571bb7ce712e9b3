//! The file format: what is written is read again, and damage is always found.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use quire_trace::event::{
    Abi, Access, BaseSource, Call, CallDetail, CloneFacts, Compressibility, ContentSample, Denial, Direction,
    Event, EventKind, ExecGain, ExecImage, ExitStatus, Fault, FiguresCause, FileChange, FileEvent, FileFacts,
    FileKind, HeldInMemory, IndexRun, Limit, LimitKind, Limits, LinuxFigures, Lost, LostCause, MapTrial,
    Mapping, MmapBase, Mode, Outcome, PageContents, PageRun, PageSample, Privileges, Reuse, ReuseAccess,
    ReuseRun, ReuseSource, Rlimit, SizeCause, TaskId, ThpDisable, ThpMode, TmpfsHuge, Unsupported, VmFlags,
    Window,
};
use quire_trace::format::{
    CallSource, FORMAT_VERSION, FaultSource, HostSettings, Pressure, TraceErrorKind, TraceHeader,
    TraceReader, TraceWriter, UseSource,
};
use std::sync::Arc;

pub(crate) fn settings() -> HostSettings {
    let files = [
        ("enabled", "madvise"),
        ("hugepages-2048kB/enabled", "inherit"),
        ("khugepaged/max_ptes_none", "511"),
    ];
    HostSettings {
        thp_turned_off: true,
        thp_disable: ThpDisable::ExceptAdvised,
        thp_files: files.map(|(name, text)| (name.to_owned(), text.to_owned())).into(),
        randomize_va_space: Some(2),
        no_randomize: true,
    }
}

pub(crate) fn header() -> TraceHeader {
    TraceHeader {
        recorder: "0.0.0".into(),
        kernel: "6.18.0".into(),
        machine: "x86_64".into(),
        page_size: 4096,
        cpus: 2,
        ram: 1 << 34,
        swap: 0,
        faults: FaultSource::Software,
        calls: CallSource::Seccomp,
        uses: UseSource::Sampled { interval_ms: 100 },
        settings: Some(settings()),
        pressure: Some(Pressure::of_sample(3 << 20, 8, 5).in_small_blocks()),
        shown_limit: Some(5 << 20),
        fault_around: 16 << 10,
        read_ahead: Some(128 << 10),
        started: 1_700_000_000,
        command: vec![(*b"ls").into(), (*b"\xff\xfe").into()],
    }
}

/// Writes events with a flush after each of the given counts.
fn write(events: &[Event], flush_after: usize) -> Vec<u8> {
    write_with(&header(), events, flush_after)
}

pub(crate) fn write_with(header: &TraceHeader, events: &[Event], flush_after: usize) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), header, 3).unwrap();
    for (number, event) in events.iter().enumerate() {
        writer.push(event).unwrap();
        if number % flush_after == flush_after - 1 {
            writer.flush().unwrap();
        }
    }
    writer.finish(7, 8).unwrap().0
}

/// One of these variants of an enum.
macro_rules! one_of {
    ($type:ident: $($variant:ident),+ $(,)?) => { prop::sample::select(vec![$($type::$variant),+]) };
}

fn bytes() -> impl Strategy<Value = Box<[u8]>> {
    vec(any::<u8>(), 0..20).prop_map(Into::into)
}

/// Numbers of all sizes, not only large ones.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift)
}

fn fault() -> impl Strategy<Value = EventKind> {
    let access = one_of!(Access: Read, Write, Execute, Unknown);
    let mode = one_of!(Mode: User, Kernel);
    let denial = one_of!(Denial: NotMapped, NotAllowed, ProtectionKey, NoBacking, Other);
    let outcome = prop_oneof![
        4 => one_of!(Outcome: Minor, Major, Unresolved, Unknown),
        5 => denial.prop_map(Outcome::Denied),
    ];
    (number(), access, mode, outcome, any::<bool>()).prop_map(|(addr, access, mode, outcome, inferred)| {
        EventKind::Fault(Fault { addr, access, mode, outcome, inferred })
    })
}

fn file() -> impl Strategy<Value = Arc<FileFacts>> {
    let kind = one_of!(
        FileKind: BadDescriptor, Regular, Directory, Memory, HugePages, Zero, CharDevice, BlockDevice, Other, Unknown,
    );
    // Few different numbers, so that files repeat.
    let errno = || option::of(1_u16..4096);
    let trial = option::of((errno(), errno(), errno()).prop_map(|(refused, write_refused, exec_refused)| {
        MapTrial { refused, write_refused, exec_refused }
    }));
    (kind, 0_u64..3, any::<[bool; 3]>(), bytes(), trial).prop_map(|(kind, device, rights, name, trial)| {
        let [readable, writable, no_exec] = rights;
        Arc::new(FileFacts {
            kind,
            device,
            inode: 2,
            size: 3,
            file_system: 0xef53,
            readable,
            writable,
            no_exec,
            name,
            trial,
            held: (device == 1).then_some(HeldInMemory { bytes: 4096, changed: readable }),
            mount_huge: TmpfsHuge::ALL.get(device as usize).copied().filter(|_| writable),
        })
    })
}

fn call() -> impl Strategy<Value = EventKind> {
    let detail = prop_oneof![
        4 => Just(CallDetail::None),
        4 => file().prop_map(CallDetail::File),
        1 => vec((number(), number()), 0..4).prop_map(|ranges| CallDetail::Ranges(ranges.into())),
        1 => option::of(bytes()).prop_map(CallDetail::Name),
        1 => (number(), number()).prop_map(|(start, bytes)| CallDetail::Mapped { start, bytes }),
        1 => number().prop_map(|pages| CallDetail::Resident { pages }),
        1 => (number(), number()).prop_map(|(instruction, on_stack)| CallDetail::Site { instruction, on_stack }),
    ];
    let args = [number(), number(), number(), number(), number(), number()];
    (any::<u32>(), args, any::<i64>(), detail)
        .prop_map(|(number, args, result, detail)| EventKind::Call(Call { number, args, result, detail }))
}

fn mapping() -> impl Strategy<Value = Mapping> {
    let run =
        (number(), number(), any::<bool>()).prop_map(|(start, pages, file)| PageRun { start, pages, file });
    let places = (number(), number(), number(), number(), number(), number());
    (places, any::<[bool; 4]>(), bytes(), vec(run, 0..4)).prop_map(|(places, bits, name, resident)| {
        let (start, end, offset, device, inode, flags) = places;
        let [read, write, execute, shared] = bits;
        let flags = VmFlags(flags);
        Mapping { start, end, read, write, execute, shared, offset, device, inode, name, flags, resident }
    })
}

fn exec() -> impl Strategy<Value = EventKind> {
    let base = (number(), any::<bool>(), any::<bool>()).prop_map(|(addr, down, probed)| MmapBase {
        addr,
        direction: if down { Direction::Down } else { Direction::Up },
        source: if probed { BaseSource::Probed } else { BaseSource::Inferred },
    });
    let thp = one_of!(ThpMode: Always, Madvise, Never, Unknown);
    let numbers = vec(number(), 20);
    (numbers, vec(mapping(), 0..5), option::of(base), vec(bytes(), 0..3), any::<(u32, u8, bool, bool)>(), thp)
        .prop_map(|(n, mappings, mmap_base, args, (id, small, bit, i386), thp)| {
            let limit = |at: usize| Rlimit { soft: n[at], hard: n[at + 1] };
            EventKind::Exec(Box::new(ExecImage {
                pid: id,
                abi: if i386 { Abi::I386 } else { Abi::X86_64 },
                program: args.first().cloned().unwrap_or_default(),
                args,
                mappings,
                start_brk: n[0],
                brk: n[1],
                start_stack: n[2],
                arg_start: n[3],
                arg_end: n[4],
                env_start: n[5],
                env_end: n[6],
                mmap_base,
                limits: Limits {
                    address_space: limit(7),
                    data: limit(9),
                    stack: limit(11),
                    locked: limit(13),
                },
                max_map_count: n[15],
                overcommit_memory: small,
                mmap_min_addr: n[16],
                lowest_placed: n[18],
                personality: id,
                privileges: Privileges { ipc_lock: bit, sys_rawio: small & 1 != 0 },
                exec_gain: [ExecGain::Allowed, ExecGain::Refused, ExecGain::RefusedNotInherited]
                    [small as usize % 3],
                thp,
                page_tables: n[17],
            }))
        })
}

fn figures() -> impl Strategy<Value = EventKind> {
    (vec(number(), 17), any::<(u32, u32, bool)>()).prop_map(|(n, (pid, threads_peak, exec))| {
        EventKind::Figures(Box::new(LinuxFigures {
            cause: if exec { FiguresCause::Exec } else { FiguresCause::Exit },
            pid,
            vm_peak: n[0],
            vm_size: n[1],
            vm_hwm: n[2],
            vm_rss: n[3],
            rss_anon: n[4],
            rss_file: n[5],
            rss_shmem: n[6],
            vm_data: n[7],
            vm_stk: n[8],
            vm_pte: n[9],
            vm_swap: n[10],
            mappings: n[11],
            vm_pte_peak: n[12],
            mappings_peak: n[13],
            threads_peak,
            minor_faults: n[14],
            major_faults: n[15],
            processor_ns: n[16],
        }))
    })
}

fn other() -> impl Strategy<Value = EventKind> {
    let kind = one_of!(LimitKind: AddressSpace, Data, Stack, LockedMemory);
    let limit = (any::<u32>(), kind, number(), number()).prop_map(|(target, kind, soft, hard)| {
        EventKind::Limit(Limit { target: TaskId(target), kind, soft, hard })
    });
    let clone = any::<(u32, u32, u32, u64, bool, bool)>().prop_map(
        |(child, child_tid, child_pid, flags, shares_memory, same_process)| {
            let child = TaskId(child);
            EventKind::Clone(CloneFacts { child, child_tid, child_pid, flags, shares_memory, same_process })
        },
    );
    let exit = prop_oneof![
        any::<u8>().prop_map(ExitStatus::Code),
        any::<u8>().prop_map(ExitStatus::Signal),
        Just(ExitStatus::Replaced),
        Just(ExitStatus::Unknown),
    ];
    let privileges = any::<(bool, bool)>()
        .prop_map(|(ipc_lock, sys_rawio)| EventKind::Privileges(Privileges { ipc_lock, sys_rawio }));
    prop_oneof![
        limit,
        privileges,
        clone,
        exit.prop_map(EventKind::Exit),
        (number(), one_of!(LostCause: RingFull, Unheard))
            .prop_map(|(count, cause)| EventKind::Lost(Lost { count, cause })),
        Just(EventKind::Unsupported(Unsupported::ForeignAbi)),
        (number(), number()).prop_map(|(start_ns, end_ns)| EventKind::Window(Window { start_ns, end_ns })),
    ]
}

fn reuse() -> impl Strategy<Value = EventKind> {
    let access = one_of!(ReuseAccess: Read, Write, Unknown);
    let run = (number(), 0_u64..1 << 16, access).prop_map(|(start, pages, access)| ReuseRun {
        start,
        pages,
        access,
    });
    let source = one_of!(ReuseSource: Exact, MappingCounts);
    let reuse = (source, vec(run, 0..9)).prop_map(|(source, runs)| EventKind::Reuse(Reuse { source, runs }));
    let sample = any::<(u32, u32, [u32; 16])>()
        .prop_map(|(zero, same, sizes)| EventKind::Compressibility(Compressibility { zero, same, sizes }));
    let contents = prop_oneof![
        Just(PageContents::Zero),
        Just(PageContents::Same),
        (0..=PageContents::MOST_BYTES).prop_map(PageContents::Compressed),
    ];
    let page = prop_oneof![4 => 0_u32..512, 1 => any::<u32>()];
    let pages = vec((page, contents).prop_map(|(page, contents)| PageSample { page, contents }), 0..9);
    let contents =
        (number(), number(), any::<(u32, u32, [u32; 16])>(), [number(), number(), number()], pages);
    let contents = contents.prop_map(|(start, bytes, (zero, same, sizes), of_all, pages)| {
        let sizes = Compressibility { zero, same, sizes };
        let [compressed, lz4_of_both, zstd] = of_all;
        let sample = ContentSample { start, bytes, sizes, compressed, lz4_of_both, zstd, pages };
        EventKind::Contents(Box::new(sample))
    });
    prop_oneof![3 => reuse, 1 => sample, 1 => contents]
}

fn file_event() -> impl Strategy<Value = EventKind> {
    // The pages between two runs, and of each.
    let runs = || {
        vec((0_u64..1 << 40, 1_u64..1 << 40), 0..9).prop_map(|steps| {
            let mut next = 0;
            let runs = steps.into_iter().map(|(gap, pages)| {
                let first = next + gap;
                next = first + pages + 1;
                IndexRun { first, pages }
            });
            runs.collect::<Vec<_>>()
        })
    };
    let length = || number().prop_map(|bytes| bytes >> 1);
    let cause = one_of!(SizeCause: Call, Seen);
    let change = prop_oneof![
        (length(), cause).prop_map(|(bytes, cause)| FileChange::Size { bytes, cause }),
        (number(), 1_u64..1 << 60)
            .prop_map(|(start, bytes)| FileChange::Punched(start >> 2..(start >> 2) + bytes)),
        runs().prop_map(FileChange::Cached),
        runs().prop_map(FileChange::Evicted),
        Just(FileChange::Gone),
    ];
    (number(), number(), change)
        .prop_map(|(device, inode, change)| EventKind::File(Box::new(FileEvent { device, inode, change })))
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        8 => fault(),
        4 => call(),
        1 => exec(),
        1 => figures(),
        3 => other(),
        2 => reuse(),
        2 => file_event(),
    ];
    // Few threads and CPUs, so that they repeat, and some far away.
    let task = prop_oneof![4 => 0_u32..4, 1 => any::<u32>()];
    let cpu = prop_oneof![4 => 0_u32..2, 1 => any::<u32>()];
    (number(), task, cpu, kind).prop_map(|(time_ns, task, cpu, kind)| Event {
        time_ns,
        task: TaskId(task),
        cpu,
        kind,
    })
}

/// Checks that what a salvaging reader gives is the original with gaps of known sizes.
fn check_salvage(file: &[u8], events: &[Event]) -> Result<(), TestCaseError> {
    let Ok(reader) = TraceReader::new(file) else { return Ok(()) };
    let mut reader = reader.salvaging();
    let mut at = 0;
    for event in &mut reader {
        let event = event.expect("a salvaging reader fails only if the source does");
        match event.kind {
            EventKind::Lost(Lost { count, cause: LostCause::Damage }) => at += count as usize,
            _ => {
                prop_assert_eq!(Some(&event), events.get(at));
                at += 1;
            }
        }
    }
    prop_assert!(at <= events.len());
    prop_assert!(at == events.len() || reader.damage().is_some_and(|damage| damage.offset().is_some()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(events in vec(event(), 0..60), flush_after in 1_usize..40) {
        let file = write(&events, flush_after);
        let mut reader = TraceReader::new(&file[..]).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let read: Vec<Event> = (&mut reader).map(Result::unwrap).collect();
        prop_assert_eq!(&read, &events);
        let trailer = *reader.trailer().unwrap();
        prop_assert_eq!(trailer.events, events.len() as u64);
        prop_assert_eq!((trailer.wall_ns, trailer.stopped_ns), (7, 8));
        let mut salvaging = TraceReader::new(&file[..]).unwrap().salvaging();
        prop_assert_eq!((&mut salvaging).count(), events.len());
        prop_assert!(salvaging.damage().is_none());
    }

    #[test]
    fn a_damaged_byte_is_found(
        events in vec(event(), 1..30),
        flush_after in 1_usize..12,
        place in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
    ) {
        let mut file = write(&events, flush_after);
        let place = place.index(file.len());
        file[place] ^= flip;
        let mut read = Vec::new();
        let error = match TraceReader::new(&file[..]) {
            Err(error) => Some(error),
            Ok(mut reader) => {
                let mut error = None;
                for event in &mut reader {
                    match event {
                        Ok(event) => read.push(event),
                        Err(wrong) => error = Some(wrong),
                    }
                }
                prop_assert!(reader.next().is_none());
                error
            }
        };
        let error = error.expect("every byte is checked");
        prop_assert!(error.offset() <= place as u64, "{} is after {}", error, place);
        prop_assert_eq!(&read[..], &events[..read.len()]);
        check_salvage(&file, &events)?;
    }

    #[test]
    fn a_missing_piece_is_found(
        events in vec(event(), 1..30),
        flush_after in 1_usize..12,
        from in any::<prop::sample::Index>(),
        len in 1_usize..400,
    ) {
        let mut file = write(&events, flush_after);
        let from = from.index(file.len());
        let to = (from + len).min(file.len());
        file.drain(from..to);
        let sound = TraceReader::new(&file[..]).is_ok_and(|reader| reader.collect::<Result<Vec<_>, _>>().is_ok());
        prop_assert!(!sound);
        check_salvage(&file, &events)?;
    }

    #[test]
    fn any_bytes_are_refused_in_peace(junk in vec(any::<u8>(), 0..2000), events in vec(event(), 1..5)) {
        prop_assert!(TraceReader::new(&junk[..]).is_err());
        // Also behind a sound beginning.
        let mut file = write(&events, 1);
        let sound = file.len();
        file.extend_from_slice(&junk);
        let result: Result<Vec<_>, _> = TraceReader::new(&file[..]).unwrap().collect();
        match result {
            Ok(read) => prop_assert!(junk.is_empty() && read == events),
            Err(error) => prop_assert_eq!(error.offset(), sound as u64),
        }
        check_salvage(&file, &events)?;
    }
}

fn some_events(count: usize) -> Vec<Event> {
    let fault = |n: usize| Fault {
        addr: 0x7000_0000 + 4096 * n as u64,
        access: Access::Write,
        mode: Mode::User,
        outcome: Outcome::Minor,
        inferred: false,
    };
    let event =
        |n| Event { time_ns: 700 * n as u64, task: TaskId(0), cpu: 0, kind: EventKind::Fault(fault(n)) };
    (0..count).map(event).collect()
}

#[test]
fn every_truncation_is_found() {
    let events = some_events(40);
    let file = write(&events, 10);
    for len in 0..file.len() {
        let cut = &file[..len];
        let error = match TraceReader::new(cut) {
            Err(error) => error,
            Ok(reader) => reader.filter_map(Result::err).next().expect("a cut file is not sound"),
        };
        assert!(error.offset() <= len as u64, "{error} at {len}");
        assert!(!error.to_string().contains('\n'), "one line: {error}");
        check_salvage(cut, &events).unwrap();
    }
}

/// The first blocks are short, so that of a short trace, too, only the end is lost with the end of the file.
#[test]
fn most_of_a_short_trace_survives_a_cut() {
    let events = some_events(4000);
    let file = write(&events, usize::MAX);
    for percent in [50, 75, 90] {
        let mut reader = TraceReader::new(&file[..file.len() * percent / 100]).unwrap().salvaging();
        let salvaged = (&mut reader).filter(Result::is_ok).count();
        assert!(salvaged * 100 >= events.len() * (percent - 25), "{salvaged} events of {percent} %");
        assert!(reader.damage().is_some_and(quire_trace::format::Damage::cut_short));
    }
}

#[test]
fn every_bit_is_checked() {
    let events = some_events(25);
    let sound = write(&events, 10);
    for place in 0..sound.len() {
        for bit in 0..8 {
            let mut file = sound.clone();
            file[place] ^= 1 << bit;
            let result = TraceReader::new(&file[..]).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            assert!(result.is_err(), "bit {bit} of byte {place}");
            check_salvage(&file, &events).unwrap();
        }
    }
}

#[test]
fn a_false_length_takes_no_memory() {
    let file = write(&some_events(3), 10);
    // The first block's head follows the preamble and the header's frame.
    let header_len = u32::from_le_bytes(file[12 + 12..12 + 16].try_into().unwrap()) as usize;
    let head = 12 + 36 + header_len;
    assert_eq!(&file[head..head + 4], b"QBLK");
    for (at, part) in [(8, "raw"), (12, "stored")] {
        let mut file = file.clone();
        file[head + at..head + at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = crc32fast::hash(&file[head..head + 32]);
        file[head + 32..head + 36].copy_from_slice(&crc.to_le_bytes());
        let mut reader = TraceReader::new(&file[..]).unwrap();
        let error = reader.next().unwrap().unwrap_err();
        assert!(matches!(error.kind(), TraceErrorKind::TooLarge { .. }), "{part}: {error}");
        assert_eq!(error.offset(), head as u64);
    }
}

#[test]
fn another_version_is_told() {
    let mut file = write(&[], 1);
    let next = FORMAT_VERSION + 1;
    file[8] = next as u8;
    let error = TraceReader::new(&file[..]).unwrap_err();
    assert!(matches!(error.kind(), TraceErrorKind::Version { found, .. } if *found == next));
    let error = TraceReader::new(&b"\x7fELF and so on"[..]).unwrap_err();
    assert!(matches!(error.kind(), TraceErrorKind::NotATrace));
    let error = TraceReader::open("/nowhere/x.qtr").unwrap_err();
    assert!(error.to_string().starts_with("/nowhere/x.qtr: No such file"), "{error}");
}

/// Puts other contents into the plainly stored frame whose head is at `at`.
fn replace_contents(file: &mut Vec<u8>, at: usize, change: impl Fn(&mut Vec<u8>)) {
    let old = u32::from_le_bytes(*file[at + 12..].first_chunk().unwrap()) as usize;
    let mut contents = file[at + 36..at + 36 + old].to_vec();
    change(&mut contents);
    let head = &mut file[at..at + 36];
    let len = (contents.len() as u32).to_le_bytes();
    head[8..12].copy_from_slice(&len);
    head[12..16].copy_from_slice(&len);
    head[28..32].copy_from_slice(&crc32fast::hash(&contents).to_le_bytes());
    let crc = crc32fast::hash(&head[..32]).to_le_bytes();
    head[32..].copy_from_slice(&crc);
    file.splice(at + 36..at + 36 + old, contents);
}

/// Makes the header of a file one of version 1 to 6, which has no shown limit and nothing of files, and does
/// not end with the version.
fn set_version(file: &mut Vec<u8>, version: u8) {
    file[8] = version;
    replace_contents(file, 12, |contents| {
        assert_eq!(contents.pop().map(u16::from), Some(FORMAT_VERSION));
        // A limit of 5 MiB, 16 KiB around a fault and 128 KiB ahead.
        let later = [1, 0x80, 0x80, 0xc0, 2, 0x80, 0x80, 1, 1, 0x80, 0x80, 8];
        let at = contents.windows(12).rposition(|bytes| bytes == later).unwrap();
        contents.drain(at..at + 12);
    });
}

/// A file of an earlier version: the same bytes, with fewer kinds of events in the trailer, and without what
/// is known of uses and of the host's settings in the header.
fn as_version(version: u8, kinds: u8, events: &[Event]) -> Vec<u8> {
    let mut old = write_with(&TraceHeader { settings: None, pressure: None, ..header() }, events, 10);
    set_version(&mut old, version);
    replace_contents(&mut old, 12, |contents| {
        // Software, seccomp, samples at 100 ms, no settings, no pressure.
        let at = contents.windows(6).rposition(|bytes| bytes == [1, 0, 1, 100, 0, 0]).unwrap();
        contents.drain(at + 2..at + 6);
    });
    drop_later_kinds(&mut old, kinds);
    let at = old.windows(4).rposition(|bytes| bytes == b"QEND").unwrap();
    replace_contents(&mut old, at, |contents| {
        assert_eq!(contents.pop(), Some(0), "the programs ended");
    });
    old
}

#[test]
fn earlier_versions_are_read_and_have_no_later_kinds() {
    let (access, mode, outcome) = (Access::Unknown, Mode::User, Outcome::Minor);
    let unknown = Fault { addr: 0, access, mode, outcome, inferred: true };
    let later = [
        (1, 9, EventKind::Compressibility(Compressibility::default())),
        (2, 11, EventKind::Privileges(Privileges::ALL)),
        (2, 11, EventKind::Fault(unknown)),
    ];
    for (version, kinds, kind) in later {
        let mut events = some_events(20);
        let old = as_version(version, kinds, &events);
        let mut reader = TraceReader::new(&old[..]).unwrap();
        assert_eq!(reader.header().uses, UseSource::Unknown);
        let read: Result<Vec<Event>, _> = (&mut reader).collect();
        assert_eq!(read.unwrap(), events, "version {version}");
        events[7].kind = kind;
        let file = write(&events, 10);
        assert!(TraceReader::new(&file[..]).unwrap().all(|event| event.is_ok()));
        let old = as_version(version, kinds, &events);
        let error = TraceReader::new(&old[..]).unwrap().find_map(Result::err).unwrap();
        assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{error}");
    }
}

/// Leaves what a version with fewer kinds of events has not out of the trailer, whose contents are three
/// counts of at most 127 events, then the counts of all kinds.
fn drop_later_kinds(file: &mut Vec<u8>, kinds: u8) {
    let at = file.windows(4).rposition(|bytes| bytes == b"QEND").unwrap();
    replace_contents(file, at, |contents| {
        let known = std::mem::replace(&mut contents[2], kinds);
        assert_eq!(usize::from(known), EventKind::COUNT);
        contents.drain(3 + usize::from(kinds)..3 + usize::from(known));
    });
}

/// A file of version 4 has the host's settings, and says nothing of pressure and contents.
#[test]
fn version_4_has_no_pressure() {
    let events = some_events(20);
    let pressed = Some(Pressure::of(1 << 20));
    let new = write_with(&TraceHeader { pressure: pressed, settings: None, ..header() }, &events, 10);
    assert_eq!(TraceReader::new(&new[..]).unwrap().header().pressure, pressed);
    let mut old = write_with(&TraceHeader { settings: None, pressure: None, ..header() }, &events, 10);
    set_version(&mut old, 4);
    replace_contents(&mut old, 12, |contents| {
        let at = contents.windows(6).rposition(|bytes| bytes == [1, 0, 1, 100, 0, 0]).unwrap();
        contents.remove(at + 5);
    });
    drop_later_kinds(&mut old, 12);
    let mut reader = TraceReader::new(&old[..]).unwrap();
    assert!(reader.header().pressure.is_none() && reader.header().uses == header().uses);
    assert_eq!((&mut reader).collect::<Result<Vec<Event>, _>>().unwrap(), events);
}

#[test]
fn the_blocks_of_a_sample_of_version_5_have_2_mib() {
    let pressure = Some(Pressure::of_sample(1 << 20, 8, 5));
    let events = some_events(20);
    let mut old = write_with(&TraceHeader { pressure, ..header() }, &events, 10);
    set_version(&mut old, 5);
    replace_contents(&mut old, 12, |contents| {
        // The exponent of the size of a block is last.
        let end = [0x80, 0x80, 0x40, 8, 5, 21];
        let at = contents.windows(6).rposition(|bytes| bytes == end).unwrap();
        contents.remove(at + 5);
    });
    drop_later_kinds(&mut old, 13);
    let mut reader = TraceReader::new(&old[..]).unwrap();
    assert_eq!(reader.header().pressure, pressure);
    assert_eq!((&mut reader).collect::<Result<Vec<Event>, _>>().unwrap(), events);
}

#[test]
fn figures_of_version_6_have_no_processor_time() {
    let mut kind = figures().new_tree(&mut TestRunner::deterministic()).unwrap().current();
    let EventKind::Figures(figures) = &mut kind else { panic!("{kind:?}") };
    figures.processor_ns = 0;
    let event = Event { time_ns: 0, task: TaskId(0), cpu: 0, kind };
    let mut old = write(std::slice::from_ref(&event), 1);
    set_version(&mut old, 6);
    let at = old.windows(4).position(|bytes| bytes == b"QBLK").unwrap();
    replace_contents(&mut old, at, |contents| assert_eq!(contents.pop(), Some(0)));
    // The trailer's checksum of all blocks is not made again.
    assert_eq!(TraceReader::new(&old[..]).unwrap().next().unwrap().unwrap(), event);
}

#[test]
fn an_event_names_no_more_pages_than_a_reader_takes() {
    let run = |pages| ReuseRun { start: 0, pages, access: ReuseAccess::Write };
    let reuse = |runs| EventKind::Reuse(Reuse { source: ReuseSource::Exact, runs });
    let event = |kind| Event { time_ns: 0, task: TaskId(0), cpu: 0, kind };
    let most = event(reuse(vec![run(Reuse::MOST_PAGES)]));
    assert_eq!(
        TraceReader::new(&write(std::slice::from_ref(&most), 1)[..]).unwrap().next().unwrap().unwrap(),
        most
    );
    for runs in [vec![run(Reuse::MOST_PAGES), run(1)], vec![run(u64::MAX), run(u64::MAX)]] {
        let mut writer = TraceWriter::new(Vec::new(), &header(), 3).unwrap();
        assert!(writer.push(&event(reuse(runs))).is_err());
    }
}

#[test]
fn a_change_of_a_file_that_no_reader_takes_is_not_written() {
    let event = |runs: Vec<IndexRun>| {
        let change = FileChange::Cached(runs);
        let kind = EventKind::File(Box::new(FileEvent { device: 1, inode: 2, change }));
        Event { time_ns: 0, task: TaskId(0), cpu: 0, kind }
    };
    let many =
        |count: usize| (0..count as u64).map(|number| IndexRun { first: number * 3, pages: 2 }).collect();
    let most = event(many(FileChange::MOST_RUNS));
    let file = write(std::slice::from_ref(&most), 1);
    assert_eq!(TraceReader::new(&file[..]).unwrap().next().unwrap().unwrap(), most);
    let touching = vec![IndexRun { first: 0, pages: 1 }, IndexRun { first: 1, pages: 1 }];
    for wrong in [event(many(FileChange::MOST_RUNS + 1)), event(touching)] {
        let mut writer = TraceWriter::new(Vec::new(), &header(), 3).unwrap();
        let error = writer.push(&wrong).unwrap_err();
        assert!(matches!(error.kind(), TraceErrorKind::Malformed { .. }), "{error}");
    }
}

#[test]
fn large_images_and_long_commands_fit() {
    let mut long = header();
    long.command = vec![vec![b'x'; 1 << 20].into(); 3];
    let writer = TraceWriter::new(Vec::new(), &long, 3).unwrap();
    let (file, _) = writer.finish(0, 0).unwrap();
    let reader = TraceReader::new(&file[..]).unwrap();
    assert_eq!(reader.header().command.last().map(|word| &word[..]), Some(&b"..."[..]));
}
