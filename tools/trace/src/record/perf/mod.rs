//! Page faults from the kernel's performance events.
//!
//! Two events together tell all: one when a fault begins (a tracepoint or the software event), one when it
//! was resolved (`PAGE_FAULTS_MIN` or `PAGE_FAULTS_MAJ`, which the kernel raises for successful faults only).
//! Each CPU has one ring, which all events of that CPU write to, so its samples are in order.

mod access;
mod ring;
mod tracepoint;

pub(crate) use access::AccessFinder;

use super::proc::system;
use super::sys::process::close_in_background;
use super::sys::{Tid, check};
use crate::event::{Access, Mode};
use crate::format::FaultSource;
use perf_event_open_sys::bindings as perf;
use ring::Ring;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
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
#[derive(Debug)]
pub(crate) struct PerfSession {
    rings: Vec<Ring>,
    /// Keeps the events open.
    events: Vec<OwnedFd>,
    sources: HashMap<u64, Source>,
    fields: FieldOffsets,
    lost: u64,
}

impl PerfSession {
    /// Opens the events for a process that has not executed its program yet. They begin with its exec and are
    /// inherited by all that it makes.
    pub(crate) fn open(pid: Tid, wanted: FaultSource) -> io::Result<Self> {
        let (mut attrs, fields) = match wanted {
            FaultSource::Tracepoint => {
                let [user, kernel] = Tracepoint::find_page_faults()?;
                let fields = user.fields;
                let attr = |id| attributes(perf::PERF_TYPE_TRACEPOINT, id, perf::PERF_SAMPLE_RAW);
                let attrs = vec![
                    (Source::UserTracepoint, attr(user.id)),
                    (Source::KernelTracepoint, attr(kernel.id)),
                ];
                (attrs, fields)
            }
            FaultSource::Software | FaultSource::Pagemap | FaultSource::None => {
                let begin = u64::from(perf::PERF_COUNT_SW_PAGE_FAULTS);
                let extra = perf::PERF_SAMPLE_ADDR | perf::PERF_SAMPLE_IP;
                let attr = attributes(perf::PERF_TYPE_SOFTWARE, begin, extra);
                (vec![(Source::Software, attr)], FieldOffsets::default())
            }
        };
        let ends = [
            (Source::Minor, perf::PERF_COUNT_SW_PAGE_FAULTS_MIN),
            (Source::Major, perf::PERF_COUNT_SW_PAGE_FAULTS_MAJ),
        ];
        for (source, config) in ends {
            let config = u64::from(config);
            attrs.push((source, attributes(perf::PERF_TYPE_SOFTWARE, config, perf::PERF_SAMPLE_ADDR)));
        }
        let cpus = system::cpus();
        let size = (RINGS_TOTAL / cpus.len()).clamp(RING_SMALLEST, RING_LARGEST);
        // Rings are a power of two.
        let size = 1 << size.ilog2();
        let mut session =
            Self { rings: Vec::new(), events: Vec::new(), sources: HashMap::new(), fields, lost: 0 };
        for cpu in cpus {
            match session.open_cpu(pid, cpu, &mut attrs, size) {
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
        cpu: i32,
        attrs: &mut [(Source, perf::perf_event_attr)],
        size: usize,
    ) -> io::Result<()> {
        let mut ring: Option<Ring> = None;
        for (source, attr) in attrs {
            let flags = libc::c_ulong::from(perf::PERF_FLAG_FD_CLOEXEC);
            // SAFETY: `attr` is a live, fully initialised structure with its own size in it.
            let fd = unsafe { perf_event_open_sys::perf_event_open(attr, pid, cpu, -1, flags) };
            check(i64::from(fd))?;
            // SAFETY: the call succeeded, so this is an open descriptor that has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let mut id = 0_u64;
            // SAFETY: the request writes the event's id to a live local.
            let result = unsafe { perf_event_open_sys::ioctls::ID(fd.as_raw_fd(), &raw mut id) };
            check(i64::from(result))?;
            match &ring {
                None => ring = Some(Ring::map(fd.as_raw_fd(), size, RING_SMALLEST)?),
                Some(ring) => {
                    // SAFETY: both descriptors are open events on one CPU.
                    let result =
                        unsafe { perf_event_open_sys::ioctls::SET_OUTPUT(fd.as_raw_fd(), ring.event()) };
                    check(i64::from(result))?;
                }
            }
            self.sources.insert(id, *source);
            self.events.push(fd);
        }
        self.rings.extend(ring);
        Ok(())
    }

    /// Takes all samples out of the rings. Accesses that the source does not tell are found now, while the
    /// processes are still there.
    pub(crate) fn drain(&mut self, into: &mut Vec<Sample>, accesses: &mut AccessFinder) {
        let (sources, fields, lost) = (&self.sources, &self.fields, &mut self.lost);
        for ring in &mut self.rings {
            ring.drain(|kind, misc, body| match kind {
                perf::PERF_RECORD_SAMPLE => into.extend(sample(sources, fields, misc, body, accesses)),
                // The id of an event, then how many samples it lost.
                perf::PERF_RECORD_LOST => *lost += word(body, 8).unwrap_or(0),
                _ => {}
            });
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

fn attributes(kind: u32, config: u64, extra: u32) -> perf::perf_event_attr {
    let mut attr = perf::perf_event_attr {
        type_: kind,
        size: size_of::<perf::perf_event_attr>() as u32,
        config,
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1;
    let always =
        perf::PERF_SAMPLE_IDENTIFIER | perf::PERF_SAMPLE_TID | perf::PERF_SAMPLE_TIME | perf::PERF_SAMPLE_CPU;
    attr.sample_type = u64::from(extra | always);
    attr.set_disabled(1);
    attr.set_enable_on_exec(1);
    attr.set_inherit(1);
    attr.set_use_clockid(1);
    attr.set_sample_id_all(1);
    attr
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
