//! Acknowledged TLB shootdowns.
//!
//! # The protocol
//!
//! A vCPU's TLB is guarded by the vCPU's *door* (`door.rs`), whose state word has three bits. `OWNED`: some
//! thread is this vCPU. `INSIDE`: that thread runs program accesses, and the TLB is its own. `FLUSHING`: the
//! vCPU is outside, and another thread (or the owner itself, in kernel code) has taken over its TLB to flush
//! it. `INSIDE` and `FLUSHING` exclude each other, which makes the word a lock on the TLB.
//!
//! Between two program accesses the vCPU looks at its *mailbox*, as a CPU takes interrupts between
//! instructions, drops what is asked and acknowledges. To flush target T an initiator either finds T outside
//! and takes T over, flushes as T's proxy and gives T back; or it posts a request in T's mailbox and waits
//! until T has acknowledged it or has gone outside, where the initiator takes it over and serves the mailbox
//! for it.
//!
//! A pinned section, i.e. all memory-manager code that could be an initiator, always runs outside: starting
//! one leaves guest mode. So a waiting initiator can itself be taken over by any other initiator, and two
//! that flush each other both make progress. No thread waits while it flushes.
//!
//! # Why it is correct
//!
//! The promise: after a shootdown returns, T uses no translation that it covers, unless T read it from the
//! tables afterwards; and all accesses through the old one happened before the return. The initiator changes
//! the tables (A), flushes (B) and frees the memory (C). T walks the tables and fills its TLB (D), accesses
//! (E), polls (F).
//!
//! - *By proxy.* T's step outside (`exit`, release) pairs with the take-over (`change`, acquire): T's earlier
//!   D and E happen before B, so B sees and drops what D filled, and E happens before C. Giving T back
//!   (`Release`, release) pairs with T's next step inside (`change`, acquire): T's later D happens after A
//!   and reads the new tables.
//! - *By mail.* Posting (release) pairs with T's poll (`has_mail`, acquire): A happens before whatever T does
//!   after F, so what T reads from the tables then is new; what it read before is in its TLB and is dropped
//!   in F. The acknowledgement (`serve`, release) pairs with the initiator's look at it (`has_acknowledged`,
//!   acquire): every E through the old translation happens before C. A T that never polls again goes outside,
//!   which is the first case.
//! - *Not at all.* A CPU that is not in the initiator's set is the memory manager's responsibility; see
//!   `crates/pagetable/src/cpus/mod.rs`. `activate` ends with a full fence, so that a CPU which has put
//!   itself in the set before it activates the space reads no table before that.
//!
//! A TLB fill and the access through it lie between the same two polls, so no flush can come between them.
//! The loom models in `models.rs` try every interleaving of these steps within a bound of preemptions.

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;

use crate::counters::{CpuCounters, Event};
use crate::cpu::Cpu;
use crate::door::{Cache, Reached};
use quire_arch::{CpuId, CpuMask, TlbFlush};

/// Flushes the TLBs of `targets`, of which `own` may be one, and returns when all have acknowledged. The
/// caller is pinned on `own`, so it is outside.
pub(crate) fn shoot(cpus: &[Cpu], own: CpuId, targets: &CpuMask, flush: TlbFlush) {
    let Some(counters) = cpus.get(own.index()).map(|cpu| &cpu.counters) else { return };
    counters.add(Event::Shootdown);
    count_kind(counters, flush);
    // First all requests are sent, then all are waited for: the targets flush at the same time.
    let mut waiting = CpuMask::EMPTY;
    for target in targets.iter() {
        let Some(cpu) = cpus.get(target.index()) else { continue };
        let door = &cpu.door;
        if target == own {
            door.hold(|cached| cached.apply(flush));
            counters.add(Event::TargetLocal);
        } else if door.try_hold(|cached| cached.apply(flush)).is_some() {
            counters.add(Event::TargetByProxy);
        } else {
            let (_, separate) = door.post(flush);
            if !separate {
                counters.add(Event::MailboxOverflow);
            }
            waiting.insert(target);
        }
    }
    for target in waiting.iter() {
        let Some(cpu) = cpus.get(target.index()) else { continue };
        let door = &cpu.door;
        // The number of the newest request covers ours, and one look empties a mailbox.
        counters.add(match door.await_acknowledgement(door.newest()) {
            Reached::Inside => Event::TargetInside,
            Reached::ByProxy => Event::TargetByProxy,
        });
    }
}

/// Counts a flush under its kind.
pub(crate) fn count_kind(counters: &CpuCounters, flush: TlbFlush) {
    counters.add(match flush {
        TlbFlush::Range { .. } => Event::FlushRange,
        TlbFlush::Space { .. } => Event::FlushSpace,
        TlbFlush::All => Event::FlushAll,
    });
}
