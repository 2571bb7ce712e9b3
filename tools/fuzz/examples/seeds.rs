//! Writes inputs of the targets of traces to begin from: recordings whose few bytes claim much, one of each
//! kind. `cargo run -p quire-fuzz --example seeds -- FOLDER [RECORDING...]`; further recordings become
//! inputs, too. Each becomes one as it is, and one of its first events that can be mutated: nothing is
//! compressed, and checksums do not count.

use quire_trace::event::*;
use quire_trace::format::*;
use std::error::Error;
use std::path::Path;
use std::{env, fs, iter};

const START: u64 = 0x20_0000;
const END: u64 = 0x7f00_0000_0000;
/// Events of an input: as many as the target replays with enough memory.
const MANY: u64 = 500;
/// Bytes of an input.
const MOST_BYTES: usize = 64 << 10;

fn image(mappings: Vec<Mapping>) -> EventKind {
    EventKind::Exec(Box::new(ExecImage {
        pid: 1,
        program: Box::from(*b"p"),
        mappings,
        max_map_count: u64::MAX,
        overcommit_memory: 1,
        privileges: Privileges { ipc_lock: true, sys_rawio: true },
        thp: ThpMode::Never,
        ..ExecImage::default()
    }))
}

fn mapped(start: u64, end: u64) -> Mapping {
    Mapping { start, end, read: true, write: true, ..Mapping::default() }
}

/// Mappings of a page, each with a hole behind it.
fn small_mappings(count: u64) -> Vec<Mapping> {
    (0..count).map(|number| mapped(START + number * 8192, START + number * 8192 + 4096)).collect()
}

fn fault(addr: u64) -> EventKind {
    let (access, mode, outcome) = (Access::Write, Mode::User, Outcome::Minor);
    EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false })
}

fn call(number: u32, args: [u64; 6], result: i64) -> EventKind {
    EventKind::Call(Call { number, args, result, detail: CallDetail::None })
}

fn clone(child: u32, shares_memory: bool) -> EventKind {
    let (child, child_tid, child_pid) = (TaskId(child), child + 1, child + 1);
    EventKind::Clone(CloneFacts {
        child,
        child_tid,
        child_pid,
        flags: 0,
        shares_memory,
        same_process: shares_memory,
    })
}

fn recording(events: impl IntoIterator<Item = EventKind>) -> Result<Vec<u8>, Box<dyn Error>> {
    let header =
        TraceHeader { cpus: 2, ram: 1 << 30, faults: FaultSource::Tracepoint, ..TraceHeader::default() };
    let mut writer = TraceWriter::new(Vec::new(), &header, 19)?;
    for (time_ns, kind) in (0..).zip(events) {
        writer.push(&Event { time_ns, task: TaskId(0), cpu: 0, kind })?;
    }
    Ok(writer.finish(1, 0)?.0)
}

/// A program with one mapping of nearly all addresses, and these events.
fn in_large_mapping(events: impl IntoIterator<Item = EventKind>) -> Result<Vec<u8>, Box<dyn Error>> {
    recording(iter::once(image(vec![mapped(0x10_0000, END)])).chain(events))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, files @ ..] = &arguments[..] else {
        return Err("usage: seeds FOLDER [RECORDING...]".into());
    };
    let resident = vec![PageRun { start: START, pages: u64::MAX, file: false }; 50];
    let uses = |number: u64| {
        let run = ReuseRun { start: START << (number % 43), pages: 1 << 17, access: ReuseAccess::Write };
        EventKind::Reuse(Reuse { source: ReuseSource::Exact, runs: vec![run] })
    };
    let sample = |number: u64| {
        let page = |page| PageSample { page, contents: PageContents::Compressed(4000) };
        let pages = if number.is_multiple_of(2) { (0..2000).map(page).collect() } else { Vec::new() };
        EventKind::Contents(Box::new(ContentSample {
            start: START,
            bytes: u64::MAX,
            pages,
            ..ContentSample::default()
        }))
    };
    let file = |number: u64| {
        let runs = (0..1000).map(|run| IndexRun { first: run << 35, pages: 1 << 34 }).collect();
        let change = match number % 4 {
            0 => FileChange::Size { bytes: FileChange::MOST_BYTES, cause: SizeCause::Seen },
            1 => FileChange::Cached(runs),
            2 => FileChange::Evicted(runs),
            _ => FileChange::Punched(0..FileChange::MOST_BYTES),
        };
        EventKind::File(Box::new(FileEvent { device: 1, inode: number / 4 % 2, change }))
    };
    // Calls for 16 TiB, with their third argument: madvise (MADV_POPULATE_WRITE, MADV_COLLAPSE,
    // MADV_GUARD_INSTALL), mlock, mincore, msync, mprotect, mremap, munmap.
    let calls =
        [(28, 23), (28, 25), (28, 102), (149, 0), (27, START), (26, 4), (10, 3), (25, 1 << 45), (11, 0)];
    let calls = calls.map(|(number, third)| call(number, [START, 1 << 44, third, 1, 0, 0], 0));
    let forks =
        (1..MANY as u32).flat_map(|child| [fault(START + u64::from(child) * 4096), clone(child, false)]);
    let with_resident = image(vec![Mapping { resident, ..mapped(0x10_0000, END) }]);
    let lost = EventKind::Lost(Lost { count: u64::MAX, cause: LostCause::RingFull });
    let loses = (0..MANY).flat_map(|_| [lost.clone(), fault(0)]).take(MANY as usize);
    let forks_of_many_mappings =
        [image(small_mappings(20_000)), clone(1, false), fault(START), clone(2, false)];
    let seeds = [
        ("faults", in_large_mapping((0..MANY).map(|number| fault(START + (number << 21))))?),
        ("resident", recording([with_resident, EventKind::Exit(ExitStatus::Code(0))])?),
        ("calls", in_large_mapping(calls)?),
        ("forks", in_large_mapping(forks.take(MANY as usize))?),
        ("threads", in_large_mapping((1..MANY as u32).map(|number| clone(number * 1000, true)))?),
        ("uses", in_large_mapping((0..200).map(uses))?),
        ("contents", in_large_mapping((0..100).map(sample))?),
        ("files", in_large_mapping((0..100).map(file))?),
        ("mappings", recording(forks_of_many_mappings)?),
        ("images", recording((0..30).map(|_| image(small_mappings(1000))))?),
        ("lost", in_large_mapping(loses)?),
    ];
    let files = files.iter().map(|file| {
        let name = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        fs::read(file).map(|bytes| (name, bytes))
    });
    let files = files.collect::<Result<Vec<_>, _>>()?;
    for (name, bytes) in seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).chain(files) {
        // The first byte says that the rest is a file.
        fs::write(Path::new(folder).join(format!("claims-{name}")), [&[0][..], &bytes].concat())?;
        let open = [&[4][..], &in_the_open(&bytes)?].concat();
        if open.len() <= MOST_BYTES {
            fs::write(Path::new(folder).join(format!("open-{name}")), open)?;
        }
    }
    Ok(())
}

/// The first events of a recording in small blocks that are not compressed, so that a changed byte costs few
/// of them. Without a trailer.
fn in_the_open(recording: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let reader = TraceReader::new(recording)?.salvaging();
    let mut writer = TraceWriter::new(Vec::new(), &reader.header().clone(), 1)?;
    for (number, event) in reader.take(MANY as usize).enumerate() {
        writer.push(&event?)?;
        if number % 8 == 7 {
            writer.flush()?;
        }
    }
    let file = writer.finish(1, 0)?.0;
    let (preamble, mut rest) = file.split_at(12);
    let mut open = preamble.to_vec();
    // docs/trace-format.md, "Bytes": the head of a frame.
    while let Some((head, after)) = rest.split_at_checked(36)
        && !head.starts_with(b"QEND")
    {
        let word = |at| head[at..at + 4].try_into().map(u32::from_le_bytes);
        let (stored, after) = after.split_at(word(12)? as usize);
        let plain =
            if head[4] == 0 { stored.to_vec() } else { zstd::bulk::decompress(stored, word(8)? as usize)? };
        let length = (plain.len() as u32).to_le_bytes();
        open.extend([&head[..4], &[0; 4], &length, &length, &head[16..], &plain].concat());
        rest = after;
    }
    Ok(open)
}
