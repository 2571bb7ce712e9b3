//! Page faults from the kernel's performance events.
//!
//! Two events together tell all: one when a fault begins (a tracepoint or the software event), one when it
//! was resolved (`PAGE_FAULTS_MIN` or `PAGE_FAULTS_MAJ`, which the kernel raises for successful faults only).
//! Each CPU has one ring, which all events of that CPU write to, so its samples are in order.

mod access;
mod tracepoint;

pub(crate) use access::AccessFinder;

use super::proc::system;
use super::sys::process::close_in_background;
use super::sys::{Tid, check};
use crate::event::{Access, Mode};
use crate::format::FaultSource;
use perf_event::events::{self, Event, Software};
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};
use perf_event_open_sys::{bindings as perf, ioctls};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use tracepoint::{FieldOffsets, Tracepoint};

/// All rings together use at most this much memory.
const RINGS_TOTAL: usize = 256 << 20;
/// A ring never has more, nor less than the smallest size unless the kernel refuses it.
const RING_LARGEST: usize = 16 << 20;
const RING_SMALLEST: usize = 64 << 10;
/// User addresses end here (with 5-level tables); faults beyond are the kernel's own.
const USER_END: u64 = 1 << 56;

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) time: u64,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) what: SampleKind,
}

/// What a sample tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleKind {
    /// A fault began. The access was worked out here if the source does not tell it.
    Begin { addr: u64, mode: Mode, access: Access, inferred: bool },
    /// A fault was resolved.
    End { addr: u64, major: bool },
}

/// Which event a sample comes from.
#[derive(Debug, Clone, Copy)]
enum Source {
    UserTracepoint,
    KernelTracepoint,
    Software,
    Minor,
    Major,
}

/// The open events of one recording.
pub(crate) struct PerfSession {
    /// The first event of each CPU, with the ring of all of them.
    rings: Vec<Sampler>,
    /// Keeps the other events open.
    events: Vec<Counter>,
    sources: HashMap<u64, Source>,
    fields: FieldOffsets,
    lost: u64,
}

impl fmt::Debug for PerfSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerfSession").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl PerfSession {
    /// Opens the events for a process that has not executed its program yet. They begin with its exec and are
    /// inherited by all that it makes.
    pub(crate) fn open(pid: Tid, wanted: FaultSource) -> io::Result<Self> {
        let mut fields = FieldOffsets::default();
        let mut builders = match wanted {
            FaultSource::Tracepoint => {
                let [user, kernel] = Tracepoint::find_page_faults()?;
                fields = user.fields;
                let begin = |tracepoint: Tracepoint| {
                    builder(events::Tracepoint::with_id(tracepoint.id), SampleFlag::RAW)
                };
                vec![(Source::UserTracepoint, begin(user)), (Source::KernelTracepoint, begin(kernel))]
            }
            FaultSource::Software | FaultSource::Pagemap | FaultSource::None => {
                let begin = builder(Software::PAGE_FAULTS, SampleFlag::ADDR | SampleFlag::IP);
                vec![(Source::Software, begin)]
            }
        };
        builders.push((Source::Minor, builder(Software::PAGE_FAULTS_MIN, SampleFlag::ADDR)));
        builders.push((Source::Major, builder(Software::PAGE_FAULTS_MAJ, SampleFlag::ADDR)));
        let cpus = system::cpus();
        let size = (RINGS_TOTAL / cpus.len()).clamp(RING_SMALLEST, RING_LARGEST);
        // Rings are a power of two.
        let size = 1 << size.ilog2();
        let mut session =
            Self { rings: Vec::new(), events: Vec::new(), sources: HashMap::new(), fields, lost: 0 };
        for cpu in cpus {
            match session.open_cpu(pid, cpu, &mut builders, size) {
                // The CPU went offline in between.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                result => result?,
            }
        }
        Ok(session)
    }

    fn open_cpu(
        &mut self,
        pid: Tid,
        cpu: usize,
        builders: &mut [(Source, Builder<'static>)],
        size: usize,
    ) -> io::Result<()> {
        let mut ring: Option<Sampler> = None;
        for (source, builder) in builders {
            builder.observe_pid(pid).one_cpu(cpu);
            let id = match &ring {
                None => ring.insert(map_ring(builder, size)?).as_counter().id(),
                Some(ring) => {
                    let event = builder.build()?;
                    let (from, to) = (event.as_raw_fd(), ring.as_counter().as_raw_fd());
                    // SAFETY: both descriptors are open events on one CPU.
                    check(i64::from(unsafe { ioctls::SET_OUTPUT(from, to) }))?;
                    let id = event.id();
                    self.events.push(event);
                    id
                }
            };
            self.sources.insert(id, *source);
        }
        self.rings.extend(ring);
        Ok(())
    }

    /// Takes all samples out of the rings. Accesses that the source does not tell are found now, while the
    /// processes are still there.
    pub(crate) fn drain(&mut self, into: &mut Vec<Sample>, accesses: &mut AccessFinder) {
        for ring in &mut self.rings {
            while let Some(record) = ring.next_record() {
                let body = record.to_contiguous();
                match record.ty() {
                    perf::PERF_RECORD_SAMPLE => {
                        into.extend(sample(&self.sources, &self.fields, record.misc(), &body, accesses));
                    }
                    // The id of an event, then how many samples it lost.
                    perf::PERF_RECORD_LOST => self.lost += word(&body, 8).unwrap_or(0),
                    _ => {}
                }
            }
        }
    }

    /// How many samples were lost since this was last asked.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

impl Drop for PerfSession {
    /// Taking a tracepoint's last event away makes the kernel wait until no CPU is in the tracepoint any
    /// more: some 80 ms. A process of its own waits for that.
    fn drop(&mut self) {
        let (rings, events) = (std::mem::take(&mut self.rings), std::mem::take(&mut self.events));
        close_in_background((rings, events));
    }
}

/// An event that makes a sample each time.
fn builder(event: impl Event, extra: SampleFlag) -> Builder<'static> {
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
    builder
}

/// Opens an event with a ring. A smaller one is taken if the kernel does not allow so much locked memory.
fn map_ring(builder: &Builder<'_>, mut size: usize) -> io::Result<Sampler> {
    loop {
        match builder.build()?.sampled(size) {
            Err(_) if size > RING_SMALLEST => size /= 2,
            result => return result,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

/// Parses a sample. The order of its parts is the kernel's: identifier, ip, tid, time, addr, cpu, raw, each
/// only if it was asked for.
fn sample(
    sources: &HashMap<u64, Source>,
    fields: &FieldOffsets,
    misc: u16,
    body: &[u8],
    accesses: &mut AccessFinder,
) -> Option<Sample> {
    let mut at = 0;
    let mut next = || {
        at += 8;
        word(body, at - 8)
    };
    let source = *sources.get(&next()?)?;
    let ip = if matches!(source, Source::Software) { next()? } else { 0 };
    let both = next()?;
    let (pid, tid) = (both as u32, (both >> 32) as u32);
    let time = next()?;
    let is_tracepoint = matches!(source, Source::UserTracepoint | Source::KernelTracepoint);
    let addr = if is_tracepoint { 0 } else { next()? };
    let cpu = next()? as u32;
    let what = match source {
        Source::Minor => SampleKind::End { addr, major: false },
        Source::Major => SampleKind::End { addr, major: true },
        Source::Software => {
            let user = u32::from(misc) & perf::PERF_RECORD_MISC_CPUMODE_MASK == perf::PERF_RECORD_MISC_USER;
            let mode = if user { Mode::User } else { Mode::Kernel };
            let access = accesses.find(pid as Tid, tid as Tid, mode, addr, ip);
            SampleKind::Begin { addr, mode, access, inferred: true }
        }
        Source::UserTracepoint | Source::KernelTracepoint => {
            // The raw part begins with its length, 32 bits.
            let raw = body.get(at + 4..)?;
            let addr = word(raw, fields.address)?;
            let user = matches!(source, Source::UserTracepoint);
            SampleKind::Begin {
                addr,
                mode: if user { Mode::User } else { Mode::Kernel },
                access: access_of(word(raw, fields.error_code)?),
                inferred: false,
            }
        }
    };
    let (SampleKind::Begin { addr, .. } | SampleKind::End { addr, .. }) = what;
    (addr < USER_END).then_some(Sample { time, tid, cpu, what })
}

/// The access that the processor's error code tells.
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
