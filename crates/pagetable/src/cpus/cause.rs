//! Causes of TLB flushes, for the counters.

use quire_frame::VmEvent;

/// Declares the causes once, with the name and the two counters of each.
macro_rules! flush_causes {
    ($($(#[doc = $doc:literal])+ $cause:ident = $name:literal, $shootdowns:ident, $interrupts:ident;)+) => {
        /// The cause of a TLB flush.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum FlushCause {
            $($(#[doc = $doc])+ $cause,)+
        }

        impl FlushCause {
            /// Every cause.
            pub const ALL: &'static [Self] = &[$(Self::$cause,)+];

            /// Its name in the names of its counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$cause => $name,)+
                }
            }

            /// Counts the flushes for this cause that went to other CPUs.
            pub const fn shootdowns(self) -> VmEvent {
                match self {
                    $(Self::$cause => VmEvent::$shootdowns,)+
                }
            }

            /// Counts the CPUs that were interrupted for these.
            pub const fn interrupts(self) -> VmEvent {
                match self {
                    $(Self::$cause => VmEvent::$interrupts,)+
                }
            }
        }
    };
}

flush_causes! {
    /// Pages were unmapped, by `munmap`, `brk`, or a mapping that takes the place of others.
    Unmap = "unmap", TlbShootdownUnmap, TlbInterruptUnmap;
    /// Permissions were removed.
    Protect = "protect", TlbShootdownProtect, TlbInterruptProtect;
    /// `mremap`: pages moved to other addresses, or were unmapped on the way.
    Move = "move", TlbShootdownMove, TlbInterruptMove;
    /// The contents of a mapping were discarded.
    Discard = "discard", TlbShootdownDiscard, TlbInterruptDiscard;
    /// Pages became read-only because a child shares them.
    Fork = "fork", TlbShootdownFork, TlbInterruptFork;
    /// Copy-on-write: a write replaced a shared page, or the zero page.
    CopyOnWrite = "cow", TlbShootdownCopyOnWrite, TlbInterruptCopyOnWrite;
    /// A PMD leaf was split into a table.
    Split = "split", TlbShootdownSplit, TlbInterruptSplit;
    /// A collapse.
    Collapse = "collapse", TlbShootdownCollapse, TlbInterruptCollapse;
    /// Pages were unmapped by reclaim.
    PageOut = "pageout", TlbShootdownPageOut, TlbInterruptPageOut;
    /// The space exits. No CPU runs it then, so this sends no interrupt.
    Exit = "exit", TlbShootdownExit, TlbInterruptExit;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn every_cause_has_its_own_counters() {
        for &cause in FlushCause::ALL {
            assert_eq!(cause.shootdowns().name(), format!("tlb_shootdown_{}", cause.name()));
            assert_eq!(cause.interrupts().name(), format!("tlb_interrupt_{}", cause.name()));
        }
    }
}
