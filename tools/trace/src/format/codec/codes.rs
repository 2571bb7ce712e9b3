//! The numbers that stand for the variants of enums. They are part of the format: never change one.

use crate::event::{
    Abi, Access, BaseSource, Denial, Direction, ExecGain, Fault, FiguresCause, FileKind, LimitKind,
    LostCause, Mode, Outcome, ReuseAccess, ReuseSource, ThpDisable, ThpMode, TmpfsHuge, Unsupported,
};
use crate::format::varint::{Cursor, Malformed};
use crate::format::wire::{Wire, codes};
use crate::format::{CallSource, FaultSource};

codes!(Access, "unknown access", Read = 0, Write = 1, Execute = 2, Unknown = 3);
codes!(
    Outcome,
    "unknown outcome of a fault",
    Minor = 0,
    Major = 1,
    Unresolved = 2,
    Unknown = 3,
    Denied(Denial::NotMapped) = 4,
    Denied(Denial::NotAllowed) = 5,
    Denied(Denial::ProtectionKey) = 6,
    Denied(Denial::NoBacking) = 7,
    Denied(Denial::Other) = 8,
);
codes!(
    FileKind,
    "unknown kind of file",
    BadDescriptor = 0,
    Regular = 1,
    Directory = 2,
    Memory = 3,
    HugePages = 4,
    Zero = 5,
    CharDevice = 6,
    BlockDevice = 7,
    Other = 8,
    Unknown = 9,
);
codes!(LimitKind, "unknown limit", AddressSpace = 0, Data = 1, Stack = 2, LockedMemory = 3,);
codes!(LostCause, "unknown cause of a loss", RingFull = 0, Damage = 1, Unheard = 2);
codes!(FiguresCause, "unknown cause of figures", Exec = 0, Exit = 1);
codes!(Abi, "unknown ABI", X86_64 = 0, I386 = 1);
codes!(Direction, "unknown direction", Down = 0, Up = 1);
codes!(BaseSource, "unknown source of a base", Probed = 0, Inferred = 1);
codes!(ExecGain, "unknown state of MDWE", Allowed = 0, Refused = 1, RefusedNotInherited = 2);
codes!(ReuseAccess, "unknown use of a page", Read = 0, Write = 1, Unknown = 2);
codes!(ReuseSource, "unknown source of uses", Exact = 0, MappingCounts = 1);
codes!(ThpDisable, "unknown state of PR_SET_THP_DISABLE", No = 0, Completely = 1, ExceptAdvised = 3);
codes!(ThpMode, "unknown mode of huge pages", Always = 0, Madvise = 1, Never = 2, Unknown = 3,);
codes!(
    TmpfsHuge,
    "unknown option of a file system in memory",
    Never = 0,
    Always = 1,
    WithinSize = 2,
    Advise = 3
);
codes!(Unsupported, "unknown reason for an unsupported event", ForeignAbi = 0);
codes!(FaultSource, "unknown source of faults", Tracepoint = 0, Software = 1, Pagemap = 2, None = 3);
codes!(CallSource, "unknown source of calls", Seccomp = 0, EveryCall = 1);

const MODE_KERNEL: u8 = 0x04;
const INFERRED: u8 = 0x08;

/// Access, mode and outcome of a fault in one byte.
pub(crate) fn fault_byte(fault: &Fault) -> u8 {
    let mut byte = fault.access.code() | fault.outcome.code() << 4;
    if fault.mode == Mode::Kernel {
        byte |= MODE_KERNEL;
    }
    if fault.inferred {
        byte |= INFERRED;
    }
    byte
}

/// The inverse of [`fault_byte`].
#[inline]
pub(crate) fn fault_from_byte(byte: u8, addr: u64) -> Result<Fault, Malformed> {
    Ok(Fault {
        addr,
        access: Access::from_code(byte & 3)?,
        mode: if byte & MODE_KERNEL == 0 { Mode::User } else { Mode::Kernel },
        outcome: Outcome::from_code(byte >> 4)?,
        inferred: byte & INFERRED != 0,
    })
}
