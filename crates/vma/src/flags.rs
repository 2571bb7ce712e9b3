//! Protections and the flags of a VMA.

use bitflags::bitflags;
use quire_arch::LeafFlags;

bitflags! {
    /// Protection flags (`PROT_*`, with Linux's values).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Protection: u32 {
        /// Loads.
        const READ = 1;
        /// Stores.
        const WRITE = 2;
        /// Instruction fetches.
        const EXECUTE = 4;
    }
}

bitflags! {
    /// State of a VMA, with Linux's values where Linux has the flag.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct VmFlags: u64 {
        /// Loads are allowed (`rd`).
        const READ = 0x1;
        /// Stores are allowed (`wr`).
        const WRITE = 0x2;
        /// Instruction fetches are allowed (`ex`).
        const EXEC = 0x4;
        /// The mapping is shared (`sh`).
        const SHARED = 0x8;
        /// `mprotect` may set READ (`mr`).
        const MAYREAD = 0x10;
        /// `mprotect` may set WRITE (`mw`).
        const MAYWRITE = 0x20;
        /// `mprotect` may set EXEC (`me`).
        const MAYEXEC = 0x40;
        /// The mapping was asked to be shared, even if its file is read-only (`ms`).
        const MAYSHARE = 0x80;
        /// A stack: grows towards lower addresses on a fault (`gd`).
        const GROWSDOWN = 0x100;
        /// Frames without descriptors (`pf`): the vDSO's data page and the like.
        const PFNMAP = 0x400;
        /// There may be guard pages (`gu`): set with the first one, and never cleared.
        const MAYBE_GUARD = 0x800;
        /// Pages stay in memory (`lo`).
        const LOCKED = 0x2000;
        /// Device memory (`io`).
        const IO = 0x4000;
        /// Read ahead aggressively (`sr`).
        const SEQ_READ = 0x8000;
        /// Do not read ahead (`rr`).
        const RAND_READ = 0x10000;
        /// Not copied on fork (`dc`).
        const DONTCOPY = 0x20000;
        /// `mremap` may not grow it (`de`).
        const DONTEXPAND = 0x40000;
        /// With LOCKED: pages are locked as they are faulted in, not at once (`lf`).
        const LOCKONFAULT = 0x80000;
        /// Counts against the commit limit (`ac`).
        const ACCOUNT = 0x100000;
        /// Swap space is not reserved (`nr`).
        const NORESERVE = 0x200000;
        /// Huge pages of the program's choice (`ht`).
        const HUGETLB = 0x400000;
        /// Zero-filled in a child (`wf`).
        const WIPEONFORK = 0x2000000;
        /// Left out of core dumps (`dd`).
        const DONTDUMP = 0x4000000;
        /// `MADV_HUGEPAGE` (`hg`).
        const HUGEPAGE = 0x20000000;
        /// `MADV_NOHUGEPAGE` (`nh`).
        const NOHUGEPAGE = 0x40000000;
        /// `MADV_MERGEABLE` (`mg`).
        const MERGEABLE = 0x80000000;
        /// Of a file that knows how many mappings it has: none of them goes in a merge, but they give each
        /// other parts. Linux asks whether the mapping's operations have an end (`close`).
        const COUNTED = 1 << 57;
        /// `mincore` says of all pages that they are in memory: the program must not learn what others do
        /// with the file. Linux asks whether it owns the file, or may write to it.
        const HIDES_CACHE = 1 << 58;
        /// Of a file whose pages are all zeros (`/dev/zero`): a private mapping of it is anonymous memory, a
        /// shared one is new shared memory. No mapping has it.
        const ZEROS = 1 << 59;
        /// It is not split, as Linux's special mappings: a call for a part of it fails. Linux asks the
        /// mapping's operations.
        const WHOLE = 1 << 60;
        /// The file chooses where it is mapped: `mremap` moves such a mapping alone only. Linux asks the
        /// file's operations.
        const PLACES_ITSELF = 1 << 61;
        /// With HUGETLB: pages of 1 GiB. Linux asks the file.
        const HUGETLB_GIB = 1 << 62;
        /// The file wants its large mappings aligned for huge pages. Linux asks the file's operations
        /// instead.
        const HUGE_ALIGNED = 1 << 63;
    }
}

impl VmFlags {
    /// Any access at all is allowed. On x86-64 without protection keys each of the three lets a program read.
    pub const ACCESS: Self = Self::READ.union(Self::WRITE).union(Self::EXEC);
    /// What `mprotect` may grant on an ordinary mapping.
    pub const MAY_ACCESS: Self = Self::MAYREAD.union(Self::MAYWRITE).union(Self::MAYEXEC);
    /// Both lock flags.
    pub const LOCK_MASK: Self = Self::LOCKED.union(Self::LOCKONFAULT);
    /// Mappings that never merge and can not be locked.
    pub const SPECIAL: Self = Self::IO.union(Self::DONTEXPAND).union(Self::PFNMAP);

    /// Flags in which VMAs that merge may differ. What they become has those of each.
    pub const STICKY: Self = Self::MAYBE_GUARD;

    /// The access flags that `protection` asks for.
    #[doc(hidden)]
    #[inline]
    pub const fn from_protection(protection: Protection) -> Self {
        Self::from_bits_truncate(protection.bits() as u64)
    }

    /// The permissions of a page that this VMA maps for writing as much as it allows.
    #[doc(hidden)]
    #[inline]
    pub fn leaf_flags(self) -> LeafFlags {
        let mut flags = LeafFlags::empty();
        flags.set(LeafFlags::READ, self.intersects(Self::ACCESS));
        flags.set(LeafFlags::WRITE, self.contains(Self::WRITE));
        flags.set(LeafFlags::EXECUTE, self.contains(Self::EXEC));
        flags
    }

    /// Counts in the data segment, for `RLIMIT_DATA`: private, writable and not a stack.
    #[doc(hidden)]
    #[inline]
    pub fn is_data(self) -> bool {
        self & (Self::WRITE | Self::SHARED | Self::GROWSDOWN) == Self::WRITE
    }

    /// Counts as a stack.
    #[doc(hidden)]
    #[inline]
    pub fn is_stack(self) -> bool {
        self.contains(Self::GROWSDOWN)
    }

    /// Counts as code.
    #[doc(hidden)]
    #[inline]
    pub fn is_exec(self) -> bool {
        self & (Self::EXEC | Self::WRITE | Self::GROWSDOWN) == Self::EXEC
    }

    /// Counts against the commit limit when it is mapped: private and writable, unless reservation was
    /// waived.
    #[doc(hidden)]
    #[inline]
    pub fn is_accountable(self) -> bool {
        self & (Self::NORESERVE | Self::SHARED | Self::WRITE) == Self::WRITE
    }
}

/// The flags as the two-letter mnemonics of `/proc/PID/smaps`, in its order.
pub const SMAPS_MNEMONICS: &[(VmFlags, &str)] = &[
    (VmFlags::READ, "rd"),
    (VmFlags::WRITE, "wr"),
    (VmFlags::EXEC, "ex"),
    (VmFlags::SHARED, "sh"),
    (VmFlags::MAYREAD, "mr"),
    (VmFlags::MAYWRITE, "mw"),
    (VmFlags::MAYEXEC, "me"),
    (VmFlags::MAYSHARE, "ms"),
    (VmFlags::GROWSDOWN, "gd"),
    (VmFlags::PFNMAP, "pf"),
    (VmFlags::MAYBE_GUARD, "gu"),
    (VmFlags::LOCKED, "lo"),
    (VmFlags::IO, "io"),
    (VmFlags::SEQ_READ, "sr"),
    (VmFlags::RAND_READ, "rr"),
    (VmFlags::DONTCOPY, "dc"),
    (VmFlags::DONTEXPAND, "de"),
    (VmFlags::LOCKONFAULT, "lf"),
    (VmFlags::ACCOUNT, "ac"),
    (VmFlags::NORESERVE, "nr"),
    (VmFlags::HUGETLB, "ht"),
    (VmFlags::WIPEONFORK, "wf"),
    (VmFlags::DONTDUMP, "dd"),
    (VmFlags::HUGEPAGE, "hg"),
    (VmFlags::NOHUGEPAGE, "nh"),
    (VmFlags::MERGEABLE, "mg"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_only_pages_are_readable_and_none_is_not() {
        let write = VmFlags::from_protection(Protection::WRITE);
        assert!(write.leaf_flags().contains(LeafFlags::READ | LeafFlags::WRITE));
        assert_eq!(VmFlags::empty().leaf_flags(), LeafFlags::empty());
    }

    #[test]
    fn classes_of_a_mapping_follow_linux() {
        let data = VmFlags::READ | VmFlags::WRITE;
        assert!(data.is_data() && !data.is_stack() && !data.is_exec());
        assert!(!(data | VmFlags::GROWSDOWN).is_data());
        assert!((VmFlags::READ | VmFlags::EXEC).is_exec());
        assert!(data.is_accountable() && !(data | VmFlags::SHARED).is_accountable());
    }
}
