//! Prints a trace as text: `dump [--salvage] FILE`.

use quire_trace::event::{Call, CallDetail, Event, EventKind, ExecImage, Fault};
use quire_trace::format::TraceReader;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    let salvage = words.next_if(|word| word == "--salvage").is_some();
    let path = words.next().unwrap_or_default();
    let mut out = BufWriter::new(io::stdout().lock());
    let mut reader = match TraceReader::open(path) {
        Ok(reader) if salvage => reader.salvaging(),
        Ok(reader) => reader,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let header = reader.header();
    let command: Vec<_> = header.command.iter().map(|word| String::from_utf8_lossy(word)).collect();
    // Whoever reads the output may stop reading it.
    let _ =
        writeln!(out, "{} on {} {}: {}", header.recorder, header.kernel, header.machine, command.join(" "));
    for event in &mut reader {
        match event {
            Ok(event) => {
                if print(&mut out, &event).is_err() {
                    return ExitCode::SUCCESS;
                }
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if let Some(damage) = reader.damage() {
        eprintln!("{damage}");
    }
    let _ = writeln!(out, "{:?}", reader.trailer());
    ExitCode::SUCCESS
}

fn print(out: &mut impl Write, event: &Event) -> io::Result<()> {
    let Event { time_ns, task, cpu, kind } = event;
    write!(out, "{:10.3} us  task {:3} cpu {cpu}  ", *time_ns as f64 / 1e3, task.0)?;
    match kind {
        EventKind::Fault(Fault { addr, access, mode, outcome, inferred }) => {
            let mark = if *inferred { " (inferred)" } else { "" };
            writeln!(out, "fault {addr:#x} {access:?} {mode:?} {outcome:?}{mark}")
        }
        EventKind::Call(Call { number, args, result, detail }) => {
            write!(out, "call {number} {args:x?} = {result:#x} ")?;
            match detail {
                CallDetail::None => writeln!(out),
                CallDetail::File(file) => {
                    let name = String::from_utf8_lossy(&file.name);
                    let rights = [(file.readable, 'r'), (file.writable, 'w'), (file.no_exec, 'n')];
                    let rights: String =
                        rights.iter().filter(|(has, _)| *has).map(|(_, letter)| letter).collect();
                    writeln!(out, "{:?} {rights} {} bytes {name}", file.kind, file.size)
                }
                detail => writeln!(out, "{detail:x?}"),
            }
        }
        EventKind::Exec(image) => print_image(out, image),
        kind => writeln!(out, "{kind:?}"),
    }
}

fn print_image(out: &mut impl Write, image: &ExecImage) -> io::Result<()> {
    writeln!(out, "exec {} {:?}", String::from_utf8_lossy(&image.program), image.abi)?;
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
        let pages: u64 = mapping.resident.iter().map(|run| run.pages).sum();
        let rights =
            [(mapping.read, 'r'), (mapping.write, 'w'), (mapping.execute, 'x'), (mapping.shared, 's')];
        let rights: String = rights.iter().map(|(has, letter)| if *has { *letter } else { '-' }).collect();
        let name = String::from_utf8_lossy(&mapping.name);
        writeln!(out, "    {:x}-{:x} {rights} {pages:3} pages {name}", mapping.start, mapping.end)?;
    }
    Ok(())
}
