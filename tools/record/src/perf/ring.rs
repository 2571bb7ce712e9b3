//! The ring buffer of a CPU, and what did not fit into it.
//!
//! The kernel drops samples while the ring is full, and says how many with the next sample that fits. That
//! one may come much later, or never. So after much was taken out at once, the counts of the events are read,
//! too.

use super::{Root, word};
use crate::sys::check;
use perf_event::{Builder, Counter, Sampler};
use perf_event_open_sys::{bindings as perf, ioctls};
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

/// A ring buffer is never smaller than this, unless the kernel refuses it.
pub(super) const SMALLEST: usize = 64 << 10;
/// So many are made at once.
const AT_ONCE: usize = 8;

/// Samples that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The time of the last sample before them.
    pub(crate) since: u64,
    pub(crate) count: u64,
}

/// The first event of a CPU, the ring buffer that all of its events write to, and these.
pub(super) struct Ring {
    cpu: usize,
    sampler: Sampler,
    size: usize,
    /// Keeps the other events open.
    events: Vec<(Root, Counter)>,
    lost: LostSamples,
    /// Samples that events lost which are closed by now.
    lost_by_closed: u64,
}

/// What a ring lost, as far as that is known.
#[derive(Debug, Default)]
struct LostSamples {
    /// When the last sample was taken that was read.
    last: u64,
    /// How many are known.
    known: u64,
    /// How many of these the ring has not reported.
    unreported: u64,
}

impl LostSamples {
    /// The ring reports some that it lost before the next sample.
    fn reported(&mut self, count: u64) -> Option<Loss> {
        let known = count.min(self.unreported);
        self.unreported -= known;
        self.add(count - known)
    }

    /// The events counted so many in all.
    fn counted(&mut self, all: u64) -> Option<Loss> {
        let new = all.saturating_sub(self.known);
        self.unreported += new;
        self.add(new)
    }

    fn add(&mut self, count: u64) -> Option<Loss> {
        self.known += count;
        (count > 0).then_some(Loss { since: self.last, count })
    }
}

impl Ring {
    /// Opens the first event of each of these CPUs, which are `observed` by the builder, with ring buffers of
    /// so many bytes. A CPU that went offline is left out.
    pub(super) fn open_all(cpus: &[usize], builder: &mut Builder<'_>, size: usize) -> io::Result<Vec<Self>> {
        let mut events = Vec::new();
        for &cpu in cpus {
            match builder.one_cpu(cpu).build() {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                event => events.push((cpu, event?)),
            }
        }
        let mut rings = Vec::new();
        for (cpu, sampler) in with_buffers(events, size) {
            let ring = |sampler, size| {
                let (events, lost) = (Vec::new(), LostSamples::default());
                Self { cpu, sampler, size, events, lost, lost_by_closed: 0 }
            };
            rings.push(match sampler {
                Some(sampler) => ring(sampler, size),
                None => {
                    let (sampler, size) = smaller(builder.one_cpu(cpu), size)?;
                    ring(sampler, size)
                }
            });
        }
        Ok(rings)
    }

    pub(super) fn cpu(&self) -> usize {
        self.cpu
    }

    /// What identifies samples of the first event.
    pub(super) fn first_id(&self) -> u64 {
        self.sampler.as_counter().id()
    }

    /// Lets another event of this CPU use the ring, and sets its filter. Returns what identifies its samples.
    pub(super) fn add(&mut self, root: Root, event: Counter, filter: Option<&CString>) -> io::Result<u64> {
        let (from, to) = (event.as_raw_fd(), self.sampler.as_counter().as_raw_fd());
        // SAFETY: both descriptors are open events on one CPU.
        check(i64::from(unsafe { ioctls::SET_OUTPUT(from, to) }))?;
        if let Some(filter) = filter {
            // SAFETY: the kernel copies the text, which ends with a zero, and does not write to it.
            check(i64::from(unsafe { ioctls::SET_FILTER(from, filter.as_ptr().cast_mut()) }))?;
        }
        let id = event.id();
        self.events.push((root, event));
        Ok(id)
    }

    /// Closes the events of roots that are over.
    pub(super) fn close(&mut self, is_over: impl Fn(Root) -> bool, mut closed: impl FnMut(u64)) {
        for (_, mut event) in self.events.extract_if(.., |(root, _)| is_over(*root)) {
            closed(event.id());
            self.lost_by_closed += lost_by(&mut event);
        }
    }

    /// Takes the events of roots out.
    pub(super) fn take(&mut self, is_over: impl Fn(Root) -> bool) -> Vec<Counter> {
        let taken = self.events.extract_if(.., |(root, _)| is_over(*root));
        let mut taken: Vec<Counter> = taken.map(|(_, event)| event).collect();
        self.lost_by_closed += taken.iter_mut().map(lost_by).sum::<u64>();
        taken
    }

    /// Takes all samples out. `take` gets each, and returns its time.
    pub(super) fn empty(&mut self, losses: &mut Vec<Loss>, mut take: impl FnMut(u16, &[u8]) -> Option<u64>) {
        let mut taken = 0;
        while let Some(record) = self.sampler.next_record() {
            let body = record.to_contiguous();
            taken += body.len();
            match record.ty() {
                perf::PERF_RECORD_SAMPLE => {
                    self.lost.last = take(record.misc(), &body).unwrap_or(self.lost.last);
                }
                // The id of an event, then how many samples the ring lost.
                perf::PERF_RECORD_LOST => losses.extend(self.lost.reported(word(&body, 8).unwrap_or(0))),
                _ => {}
            }
        }
        // It may have been full; the heads of the records are not counted.
        if taken > self.size / 2 {
            self.count_lost(losses);
        }
    }

    /// Adds what was lost since the last sample that was taken out.
    pub(super) fn count_lost(&mut self, losses: &mut Vec<Loss>) {
        let others = self.events.iter_mut().map(|(_, event)| lost_by(event));
        let all = others.sum::<u64>() + lost_by(self.sampler.as_counter_mut()) + self.lost_by_closed;
        losses.extend(self.lost.counted(all));
    }
}

/// Gives these events their ring buffers, if the kernel allows so much locked memory. It clears them, which
/// takes milliseconds for each: so threads of their own do that.
fn with_buffers(events: Vec<(usize, Counter)>, size: usize) -> Vec<(usize, Option<Sampler>)> {
    let mut done = Vec::new();
    let mut events = events.into_iter().peekable();
    while events.peek().is_some() {
        std::thread::scope(|scope| {
            let some: Vec<_> = events.by_ref().take(AT_ONCE).collect();
            let last = some.len() - 1;
            let mut under_way = Vec::new();
            for (place, (cpu, event)) in some.into_iter().enumerate() {
                if place == last {
                    done.push((cpu, event.sampled(size).ok()));
                    continue;
                }
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || event.sampled(size));
                under_way.push((cpu, thread));
            }
            let joined = under_way.into_iter().map(|(cpu, thread)| {
                (cpu, thread.ok().and_then(|thread| thread.join().ok()).and_then(Result::ok))
            });
            done.extend(joined);
        });
    }
    done
}

/// An event with a ring buffer that is as large as the kernel allows, and how large that is.
fn smaller(builder: &Builder<'_>, mut size: usize) -> io::Result<(Sampler, usize)> {
    loop {
        match builder.build()?.sampled(size) {
            Err(_) if size > SMALLEST => size /= 2,
            result => break Ok((result?, size)),
        }
    }
}

/// How many samples an event lost, where the kernel counts them.
fn lost_by(event: &mut Counter) -> u64 {
    event.read_full().ok().and_then(|read| read.lost()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_counted_once_and_where_it_is_missing() {
        let mut lost = LostSamples { last: 10, ..LostSamples::default() };
        assert_eq!(lost.counted(0), None);
        assert_eq!(lost.reported(3), Some(Loss { since: 10, count: 3 }));
        lost.last = 20;
        assert_eq!(lost.counted(3), None);
        assert_eq!(lost.counted(5), Some(Loss { since: 20, count: 2 }));
        // The ring reports these later, with one more.
        lost.last = 30;
        assert_eq!(lost.reported(2), None);
        assert_eq!(lost.reported(1), Some(Loss { since: 30, count: 1 }));
        assert_eq!(lost.counted(6), None);
        // Old kernels count nothing.
        assert_eq!(lost.counted(0), None);
    }
}
