//! A recording as text, a line an event.

use super::command_line;
use quire_mm::abi::CallNumber;
use quire_output::Shown;
use quire_trace::event::ThpDisable;
use quire_trace::event::{
    Call, CallDetail, Event, EventKind, ExecImage, Fault, FileChange, FileEvent, IndexRun,
};
use quire_trace::format::{HostSettings, TraceHeader, Trailer};
use std::io::{self, Write};

/// Prints where, when and how the recording was made.
pub(crate) fn header(out: &mut impl Write, header: &TraceHeader) -> io::Result<()> {
    let [recorder, kernel, machine] = [&header.recorder, &header.kernel, &header.machine].map(Shown::new);
    writeln!(out, "{recorder} on {kernel} {machine}: {}", command_line(&header.command))?;
    if let Some(pressure) = header.pressure {
        let part = if pressure.is_sample() {
            let (kib, one_in) = ((1_u64 << pressure.block_shift.clamp(10, 63)) >> 10, pressure.one_in);
            format!("; of one block of {kib} KiB in {one_in} the rest is paged out")
        } else {
            String::new()
        };
        writeln!(out, "pressure: {} bytes of anonymous memory stay resident{part}", pressure.bytes)?;
    }
    if let Some(limit) = header.shown_limit {
        writeln!(out, "limit: the program was shown a memory limit of {limit} bytes")?;
    }
    let ahead = header.read_ahead.map_or("unknown".to_owned(), |bytes| bytes.to_string());
    writeln!(out, "    fault_around_bytes {}, read-ahead {ahead}", header.fault_around)?;
    header.settings.as_ref().map_or(Ok(()), |settings| host_settings(out, settings))
}

fn host_settings(out: &mut impl Write, settings: &HostSettings) -> io::Result<()> {
    let thp = if settings.thp_turned_off { "turned off by the recorder" } else { "as the host has them" };
    let caller = match settings.thp_disable {
        ThpDisable::No => "did not disable them",
        ThpDisable::Completely => "had disabled them",
        ThpDisable::ExceptAdvised => "had disabled them except where advised",
    };
    writeln!(out, "    transparent huge pages {thp}; the caller {caller}")?;
    let files: Vec<String> = settings
        .thp_files
        .iter()
        .map(|(name, text)| format!("{} {}", Shown::new(name), Shown::new(text)))
        .collect();
    writeln!(out, "    {}", files.join(", "))?;
    let space = settings.randomize_va_space.map_or("unknown".to_owned(), |value| value.to_string());
    let personality = if settings.no_randomize { "ADDR_NO_RANDOMIZE" } else { "no ADDR_NO_RANDOMIZE" };
    writeln!(out, "    randomize_va_space {space}, {personality}")
}

/// Prints the totals.
pub(crate) fn trailer(out: &mut impl Write, trailer: &Trailer) -> io::Result<()> {
    writeln!(out, "{trailer:?}")
}

/// Prints one event.
pub(crate) fn event(out: &mut impl Write, event: &Event) -> io::Result<()> {
    let Event { time_ns, task, cpu, kind } = event;
    write!(out, "{:10.3} us  task {:3} cpu {cpu}  ", *time_ns as f64 / 1e3, task.0)?;
    match kind {
        EventKind::Fault(Fault { addr, access, mode, outcome, inferred }) => {
            let mark = if *inferred { " (inferred)" } else { "" };
            writeln!(out, "fault {addr:#x} {access:?} {mode:?} {outcome:?}{mark}")
        }
        EventKind::Call(Call { number, args, result, detail }) => {
            let args: Vec<String> = args.iter().map(|arg| format!("{arg:#x}")).collect();
            match CallNumber::from_raw(*number).name() {
                Some(name) => write!(out, "{name}")?,
                None => write!(out, "call {number}")?,
            }
            write!(out, "({}) = {result:#x} ", args.join(", "))?;
            match detail {
                CallDetail::None => writeln!(out),
                CallDetail::File(file) => {
                    let name = Shown::bytes(&file.name);
                    let rights = [(file.readable, 'r'), (file.writable, 'w'), (file.no_exec, 'n')];
                    let rights: String =
                        rights.iter().filter(|(has, _)| *has).map(|(_, letter)| letter).collect();
                    let held = file.held.map_or_else(String::new, |held| {
                        let mark = if held.changed { ", changed" } else { "" };
                        format!(" ({} held{mark})", held.bytes)
                    });
                    let mount =
                        file.mount_huge.map_or_else(String::new, |huge| format!(" (huge={})", huge.name()));
                    writeln!(out, "{:?} {rights} {} bytes{held}{mount} {name}", file.kind, file.size)
                }
                detail => writeln!(out, "{detail:x?}"),
            }
        }
        EventKind::Exec(image) => print_image(out, image),
        EventKind::File(file) => print_file(out, file),
        kind => writeln!(out, "{kind:?}"),
    }
}

fn print_file(out: &mut impl Write, file: &FileEvent) -> io::Result<()> {
    write!(out, "file {:x}:{} ", file.device, file.inode)?;
    match &file.change {
        FileChange::Size { bytes, cause } => writeln!(out, "{bytes} bytes, {cause:?}"),
        FileChange::Punched(bytes) => writeln!(out, "punched {:#x}-{:#x}", bytes.start, bytes.end),
        FileChange::Cached(runs) => print_runs(out, "cached", runs),
        FileChange::Evicted(runs) => print_runs(out, "evicted", runs),
        FileChange::Gone => writeln!(out, "gone"),
    }
}

fn print_runs(out: &mut impl Write, what: &str, runs: &[IndexRun]) -> io::Result<()> {
    let pages: u64 = runs.iter().map(|run| run.pages).sum();
    write!(out, "{what} {pages} pages")?;
    runs.iter().try_for_each(|run| write!(out, " {}+{}", run.first, run.pages))?;
    writeln!(out)
}

fn print_image(out: &mut impl Write, image: &ExecImage) -> io::Result<()> {
    writeln!(out, "exec {} {:?}", Shown::bytes(&image.program), image.abi)?;
    writeln!(out, "    base {:x?}", image.mmap_base)?;
    writeln!(out, "    brk {:#x} from {:#x}, stack {:#x}", image.brk, image.start_brk, image.start_stack)?;
    writeln!(out, "    {:x?}", image.limits)?;
    writeln!(
        out,
        "    max_map_count {} overcommit {} min_addr {:#x} lowest {:#x} personality {:#x} thp {:?} tables {}",
        image.max_map_count,
        image.overcommit_memory,
        image.mmap_min_addr,
        image.lowest_placed,
        image.personality,
        image.thp,
        image.page_tables
    )?;
    writeln!(out, "    {:?} exec gain {:?}", image.privileges, image.exec_gain)?;
    for mapping in &image.mappings {
        // What a recording claims may be more than fits.
        let pages = mapping.resident.iter().fold(0_u64, |sum, run| sum.saturating_add(run.pages));
        let rights =
            [(mapping.read, 'r'), (mapping.write, 'w'), (mapping.execute, 'x'), (mapping.shared, 's')];
        let rights: String = rights.iter().map(|(has, letter)| if *has { *letter } else { '-' }).collect();
        let name = Shown::bytes(&mapping.name);
        writeln!(out, "    {:x}-{:x} {rights} {pages:3} pages {name}", mapping.start, mapping.end)?;
    }
    Ok(())
}
