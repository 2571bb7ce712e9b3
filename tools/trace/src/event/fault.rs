//! Page faults.

/// A page fault: the program, or the kernel on its behalf, touched memory that was not ready for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The address touched, to the byte.
    pub addr: u64,
    /// The kind of access.
    pub access: Access,
    /// Whether the program or the kernel accessed it.
    pub mode: Mode,
    /// Its outcome on Linux.
    pub outcome: Outcome,
    /// `access` was derived by the recorder, not reported by the processor.
    pub inferred: bool,
}

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Load.
    Read,
    /// Store, or load and store.
    Write,
    /// Instruction fetch.
    Execute,
    /// Not known: the source of faults does not report it, and it could not be derived.
    Unknown,
}

/// Who accessed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The program itself.
    User,
    /// The kernel, while it worked for the program (copying to or from it).
    Kernel,
}

/// The outcome of a fault on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Resolved without input from a device.
    Minor,
    /// Resolved after input from a device, or after waiting for it.
    Major,
    /// Refused: the thread got a signal.
    Denied(Denial),
    /// The fault handler did not resolve it, and no signal followed: a kernel copy that failed (`EFAULT`), or
    /// one that may not sleep and was repeated in another way.
    Unresolved,
    /// Not known: the source of faults does not report it, or the sample was lost.
    Unknown,
}

/// Why a fault was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Denial {
    /// Nothing is mapped there (SIGSEGV, `SEGV_MAPERR`).
    NotMapped,
    /// The mapping does not allow it (SIGSEGV, `SEGV_ACCERR`).
    NotAllowed,
    /// A protection key does not allow it (SIGSEGV, `SEGV_PKUERR`).
    ProtectionKey,
    /// The file behind the mapping ends before it (SIGBUS, `BUS_ADRERR`).
    NoBacking,
    /// Another SIGSEGV or SIGBUS.
    Other,
}
