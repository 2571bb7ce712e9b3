//! Page faults and calls from perf events.
//!
//! A fault has two events: one when it begins (a tracepoint or the software event), one when it was resolved
//! (`PAGE_FAULTS_MIN` or `PAGE_FAULTS_MAJ`, which the kernel raises for successful faults only). A call has
//! three: its entry, its exit, and the lock under which it changes the address space. Each CPU has one ring
//! buffer, which all events of that CPU write to, so its samples are in order.

mod access;
mod call;
mod pages;
mod ring;
mod tracepoint;

pub(crate) use access::AccessFinder;
pub(crate) use call::BegunCall;
pub(crate) use ring::Loss;

use super::proc::system;
use super::sys::Tid;
use super::sys::process::close_in_background;
use pages::{PageFields, WatchedFiles};
use perf_event::events::{self, Event, Software};
use perf_event::{Builder, Clock, ReadFormat, SampleFlag};
use perf_event_open_sys::bindings as perf;
use quire_trace::event::{Access, IndexRun, Mode};
use quire_trace::format::FaultSource;
use ring::Ring;
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::io;
use tracepoint::{Offsets, Tracepoint};

/// All ring buffers together use at most this much memory.
const RINGS_TOTAL: usize = 256 << 20;
/// A ring buffer is never larger.
const RING_LARGEST: usize = 16 << 20;
/// User addresses end here (with 5-level tables); faults beyond are the kernel's own.
const USER_END: u64 = 1 << 56;

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PerfSample {
    pub(crate) time: u64,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) what: SampleKind,
}

/// What a sample reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SampleKind {
    /// A fault began. The access was derived here if the source does not report it.
    Begin { addr: u64, mode: Mode, access: Access, inferred: bool },
    /// A fault was resolved.
    End { addr: u64, major: bool },
    /// A call began that does not stop.
    Call(Box<BegunCall>),
    /// A call ended with this result. It may be one that stopped.
    Return { number: u64, result: i64 },
    /// The lock of an address space was taken to change it.
    Lock { mm: u64 },
    /// Pages of a file entered the page cache, or left it. The thread need not be recorded.
    Page { added: bool, device: u64, inode: u64, run: IndexRun },
}

/// Which event a sample comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    UserTracepoint(Offsets),
    KernelTracepoint(Offsets),
    Software,
    Minor,
    Major,
    CallBegins(Offsets),
    CallEnds(Offsets),
    Lock(Offsets),
    Page(PageFields),
}

/// An event that is to be opened on each CPU.
struct Wanted {
    source: Source,
    builder: Builder<'static>,
    /// Which of the tracepoint's hits make samples; all if there is none.
    filter: Option<CString>,
}

/// Which events are opened.
#[derive(Debug, Clone, Copy)]
struct How {
    faults: FaultSource,
    calls: bool,
    read: ReadFormat,
}

/// A thread, and all that it makes, from which samples come: the first is the program itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Root(u32);

impl Root {
    /// Stands for no thread but for events of files.
    const FILES: u32 = 1 << 31;

    fn of_files(number: u32) -> Self {
        Self(Self::FILES | number)
    }

    fn is_of_files(self) -> bool {
        self.0 & Self::FILES != 0
    }
}

/// The open perf events of one recording.
pub(crate) struct PerfSession {
    how: How,
    rings: Vec<Ring>,
    /// The last root.
    last: Root,
    sources: HashMap<u64, (Root, Source)>,
    /// What was lost and not returned to the caller yet.
    losses: Vec<Loss>,
    /// Files whose pages are told.
    files: WatchedFiles,
}

impl fmt::Debug for PerfSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerfSession").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl PerfSession {
    /// Opens the events for a process that has not executed its program yet. They are enabled by its exec and
    /// inherited by all threads and processes that it makes. With `calls`, the events of calls that need no
    /// stop are opened, too.
    pub(crate) fn open(pid: Tid, faults: FaultSource, calls: bool) -> io::Result<Self> {
        match Self::open_with(pid, faults, calls, ReadFormat::LOST) {
            // Linux before 6.0 reports lost samples only if another sample follows. A recording of calls must
            // know them.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !calls => {
                Self::open_with(pid, faults, calls, ReadFormat::empty())
            }
            result => result,
        }
    }

    fn open_with(pid: Tid, faults: FaultSource, calls: bool, read: ReadFormat) -> io::Result<Self> {
        let how = How { faults, calls, read };
        let mut wanted = how.wanted()?;
        let cpus = system::cpus();
        let size = (RINGS_TOTAL / cpus.len()).clamp(ring::SMALLEST, RING_LARGEST);
        // The size of a ring buffer is a power of two.
        let size = 1 << size.ilog2();
        let [first, others @ ..] = &mut wanted[..] else { return Err(io::ErrorKind::Unsupported.into()) };
        let (last, sources) = (Root::default(), HashMap::new());
        let files = WatchedFiles::default();
        let mut session = Self { how, rings: Vec::new(), last, sources, losses: Vec::new(), files };
        for mut ring in Ring::open_all(&cpus, first.builder.observe_pid(pid), size)? {
            session.sources.insert(ring.first_id(), (last, first.source));
            match session.open_others(pid, others, &mut ring) {
                // The CPU went offline in between.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                result => result?,
            }
            session.rings.push(ring);
        }
        Ok(session)
    }

    fn open_others(&mut self, pid: Tid, others: &mut [Wanted], ring: &mut Ring) -> io::Result<()> {
        for Wanted { source, builder, filter } in others {
            let event = builder.observe_pid(pid).one_cpu(ring.cpu()).build()?;
            let id = ring.add(Root::default(), event, filter.as_ref())?;
            self.sources.insert(id, (Root::default(), *source));
        }
        Ok(())
    }

    /// Opens the same events for a stopped thread that has none any more, and for all that it makes.
    pub(crate) fn attach(&mut self, tid: Tid) -> io::Result<Root> {
        let root = Root(self.last.0 + 1);
        let mut wanted = self.how.wanted()?;
        let mut sources = Vec::new();
        for Wanted { source, builder, filter } in &mut wanted {
            builder.observe_pid(tid).enable_on_exec(false).enabled(true);
            for ring in &mut self.rings {
                let event = builder.one_cpu(ring.cpu()).build();
                let added = event.and_then(|event| ring.add(root, event, filter.as_ref()));
                match added {
                    Ok(id) => sources.push((id, (root, *source))),
                    Err(error) => {
                        self.rings.iter_mut().for_each(|ring| ring.close(|other| other == root, |_| {}));
                        return Err(error);
                    }
                }
            }
        }
        self.last = root;
        self.sources.extend(sources);
        Ok(root)
    }

    /// Closes the events of roots of which no thread is left.
    pub(crate) fn close_unless(&mut self, lives: impl Fn(Root) -> bool) {
        for ring in &mut self.rings {
            let closed = |id| {
                self.sources.remove(&id);
            };
            ring.close(|root| root != Root::default() && !root.is_of_files() && !lives(root), closed);
        }
    }

    /// Takes all samples out of the ring buffers, of threads and events for which `is_counted`. Accesses that
    /// the source does not report are derived now, while the processes still exist.
    pub(crate) fn drain(
        &mut self,
        into: &mut Vec<PerfSample>,
        accesses: &mut AccessFinder,
        mut is_counted: impl FnMut(Tid, Root) -> bool,
    ) {
        // The events of one root are no one's twice.
        let mut is_counted =
            |tid, root: Root| self.last == Root::default() || root.is_of_files() || is_counted(tid, root);
        for ring in &mut self.rings {
            let sources = &self.sources;
            ring.empty(&mut self.losses, |misc, body| {
                let time = time_of(sources, body)?;
                into.extend(sample(sources, misc, body, accesses, &mut is_counted));
                Some(time)
            });
        }
        self.forget_closed_sets();
    }

    /// What was lost and not returned before.
    pub(crate) fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    /// What was lost and not returned before, at the end of the recording.
    pub(crate) fn losses_at_end(&mut self) -> Vec<Loss> {
        for ring in &mut self.rings {
            ring.count_lost(&mut self.losses);
        }
        self.take_losses()
    }
}

impl Drop for PerfSession {
    /// Closing a tracepoint's last event makes the kernel wait until no CPU is in the tracepoint any
    /// more: some 80 ms. A process of its own waits for that.
    fn drop(&mut self) {
        close_in_background(std::mem::take(&mut self.rings));
    }
}

impl How {
    fn wanted(self) -> io::Result<Vec<Wanted>> {
        let mut wanted = match self.faults {
            FaultSource::Tracepoint => {
                let [user, kernel] = Tracepoint::find(tracepoint::FAULTS)?;
                vec![
                    on_tracepoint(Source::UserTracepoint(user.offsets), user),
                    on_tracepoint(Source::KernelTracepoint(kernel.offsets), kernel),
                ]
            }
            FaultSource::Software | FaultSource::Pagemap | FaultSource::None => {
                vec![on(Source::Software, Software::PAGE_FAULTS, SampleFlag::ADDR | SampleFlag::IP)]
            }
        };
        wanted.push(on(Source::Minor, Software::PAGE_FAULTS_MIN, SampleFlag::ADDR));
        wanted.push(on(Source::Major, Software::PAGE_FAULTS_MAJ, SampleFlag::ADDR));
        if self.calls {
            wanted.extend(on_calls()?);
        }
        for Wanted { builder, .. } in &mut wanted {
            builder.read_format(self.read);
        }
        Ok(wanted)
    }
}

/// An event that makes a sample each time.
fn on(source: Source, event: impl Event, extra: SampleFlag) -> Wanted {
    let mut builder = Builder::new(event);
    builder
        .sample(SampleFlag::IDENTIFIER | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | extra)
        .sample_period(1)
        .sample_id_all(true)
        .clockid(Clock::MONOTONIC)
        .enable_on_exec(true)
        .inherit(true)
        .exclude_kernel(false)
        .exclude_hv(false);
    Wanted { source, builder, filter: None }
}

/// An event on a tracepoint, whose samples have its fields.
fn on_tracepoint(source: Source, tracepoint: Tracepoint) -> Wanted {
    on(source, events::Tracepoint::with_id(tracepoint.id), SampleFlag::RAW)
}

/// The events of calls that need no stop.
fn on_calls() -> io::Result<[Wanted; 3]> {
    let [enter, exit, lock] = Tracepoint::find(tracepoint::CALLS)?;
    let mut begins = on_tracepoint(Source::CallBegins(enter.offsets), enter);
    begins
        .builder
        .sample(SampleFlag::REGS_USER | SampleFlag::STACK_USER)
        .sample_regs_user(call::REGISTER_MASK)
        .sample_stack_user(call::STACK_BYTES);
    let ends = on_tracepoint(Source::CallEnds(exit.offsets), exit);
    let locks = on_tracepoint(Source::Lock(lock.offsets), lock);
    Ok([
        Wanted { filter: Some(call::filter()), ..begins },
        Wanted { filter: Some(call::filter()), ..ends },
        Wanted { filter: Some(call::lock_filter()), ..locks },
    ])
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

/// The time of a sample.
fn time_of(sources: &HashMap<u64, (Root, Source)>, body: &[u8]) -> Option<u64> {
    let (_, source) = sources.get(&word(body, 0)?)?;
    word(body, if matches!(source, Source::Software) { 24 } else { 16 })
}

/// Parses a sample. The order of its parts is the kernel's: identifier, ip, tid, time, addr, cpu, raw,
/// registers, stack, each only if it was asked for.
fn sample(
    sources: &HashMap<u64, (Root, Source)>,
    misc: u16,
    body: &[u8],
    accesses: &mut AccessFinder,
    is_counted: &mut impl FnMut(Tid, Root) -> bool,
) -> Option<PerfSample> {
    let mut at = 0;
    let mut next = || {
        at += 8;
        word(body, at - 8)
    };
    let (root, source) = *sources.get(&next()?)?;
    let ip = if matches!(source, Source::Software) { next()? } else { 0 };
    let both = next()?;
    let (pid, tid) = (both as u32, (both >> 32) as u32);
    if !is_counted(tid as Tid, root) {
        return None;
    }
    let time = next()?;
    let has_address = matches!(source, Source::Software | Source::Minor | Source::Major);
    let addr = if has_address { next()? } else { 0 };
    let cpu = next()? as u32;
    let raw = body.get(at..)?;
    let field = |offset| word(call::fields(raw)?.0, offset);
    let begin = |mode, [address, error_code]: Offsets| {
        let (addr, access) = (field(address)?, access_of(field(error_code)?));
        Some(SampleKind::Begin { addr, mode, access, inferred: false })
    };
    let what = match source {
        Source::Minor => SampleKind::End { addr, major: false },
        Source::Major => SampleKind::End { addr, major: true },
        Source::Software => {
            let user = u32::from(misc) & perf::PERF_RECORD_MISC_CPUMODE_MASK == perf::PERF_RECORD_MISC_USER;
            let mode = if user { Mode::User } else { Mode::Kernel };
            let access = accesses.find(pid as Tid, tid as Tid, mode, addr, ip);
            SampleKind::Begin { addr, mode, access, inferred: true }
        }
        Source::UserTracepoint(offsets) => begin(Mode::User, offsets)?,
        Source::KernelTracepoint(offsets) => begin(Mode::Kernel, offsets)?,
        Source::CallBegins(offsets) => SampleKind::Call(Box::new(call::begun(raw, offsets)?)),
        Source::CallEnds([number, result]) => {
            SampleKind::Return { number: field(number)?, result: field(result)?.cast_signed() }
        }
        Source::Lock([mm, _]) => SampleKind::Lock { mm: field(mm)? },
        Source::Page(fields) => pages::change(call::fields(raw)?.0, fields)?,
    };
    let is_wanted = match what {
        SampleKind::Begin { addr, .. } | SampleKind::End { addr, .. } => addr < USER_END,
        SampleKind::Call(_)
        | SampleKind::Return { .. }
        | SampleKind::Lock { .. }
        | SampleKind::Page { .. } => true,
    };
    is_wanted.then_some(PerfSample { time, tid, cpu, what })
}

/// The access, from the processor's error code.
fn access_of(error_code: u64) -> Access {
    const WRITE: u64 = 1 << 1;
    const FETCH: u64 = 1 << 4;
    if error_code & FETCH != 0 {
        Access::Execute
    } else if error_code & WRITE != 0 {
        Access::Write
    } else {
        Access::Read
    }
}
