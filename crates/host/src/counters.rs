//! A machine's counters: per CPU, written by the thread that is the CPU, summed on reading.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! events {
    ($($(#[$doc:meta])* $event:ident => $field:ident,)*) => {
        /// An event that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Event {
            $($event,)*
        }

        const EVENTS: usize = [$(Event::$event),*].len();

        /// The counters of a machine, summed over its CPUs.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct HostCounters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl HostCounters {
            /// Every counter with its name, e.g. to print them.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            pub(crate) fn sum<C: AsRef<CpuCounters>>(cpus: &[C]) -> Self {
                let mut sum = Self::default();
                for cpu in cpus {
                    $(sum.$field += cpu.as_ref().0[Event::$event as usize].load(Ordering::Relaxed);)*
                }
                sum
            }
        }
    };
}

events! {
    /// Accesses that the TLB translated.
    TlbHit => tlb_hits,
    /// Accesses that walked the tables.
    TlbMiss => tlb_misses,
    /// Page faults taken.
    Fault => faults,
    /// Shootdowns sent, whatever the number of targets.
    Shootdown => shootdowns,
    /// Targets of shootdowns that were the initiator itself.
    TargetLocal => targets_local,
    /// Targets that were running a program and flushed themselves.
    TargetInside => targets_inside,
    /// Targets that were not, and were flushed by the initiator.
    TargetByProxy => targets_by_proxy,
    /// Requests that found a mailbox full and became a full flush.
    MailboxOverflow => mailbox_overflows,
    /// Flushes without a shootdown.
    LocalFlush => local_flushes,
    /// Flushes of a range, local ones and shootdowns.
    FlushRange => flushes_range,
    /// Flushes of a space.
    FlushSpace => flushes_space,
    /// Flushes of everything.
    FlushAll => flushes_all,
    /// Times that a space was made current.
    Activate => activations,
    /// Times that a thread that was no vCPU became one for a pinned section.
    Borrow => borrowed_pins,
}

/// One CPU's counters.
#[derive(Debug, Default)]
pub(crate) struct CpuCounters([AtomicU64; EVENTS]);

impl CpuCounters {
    /// Counts `event`. Only the CPU's owner calls this, so nothing is lost between the load and the store.
    #[inline]
    pub(crate) fn add(&self, event: Event) {
        let counter = &self.0[event as usize];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often `event` was counted.
    pub(crate) fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}
