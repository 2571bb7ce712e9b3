//! The arguments of `memfd_create`.

use crate::file::Seals;
use crate::space::{Errno, Error, HugePages};

const MFD_CLOEXEC: u32 = 0x1;
const MFD_ALLOW_SEALING: u32 = 0x2;
const MFD_HUGETLB: u32 = 0x4;
const MFD_NOEXEC_SEAL: u32 = 0x8;
const MFD_EXEC: u32 = 0x10;
const KNOWN: u32 = MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_NOEXEC_SEAL | MFD_EXEC;
/// The binary logarithm of the size of huge pages lies from this bit on; 0 is the default size.
const HUGE_SHIFT: u32 = 26;
const HUGE_MASK: u32 = 0x3f << HUGE_SHIFT;
/// The most bytes of a name.
const MOST_NAME: usize = 249;

/// What `memfd_create` is asked for, where `vm.memfd_noexec` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memfd {
    /// The seals of the new memory ([`File::add_seals`](crate::file::File::add_seals)).
    pub seals: Seals,
    /// Its permissions. While they allow execution, [`Seals::EXEC`] brings [`Seals::OF_EXECUTABLE`] with it.
    pub mode: u32,
    /// The descriptor is closed by `execve`.
    pub closes_on_exec: bool,
    /// It is of huge pages, of which there is no pool: a mapping is refused with ENOMEM, and one with
    /// NORESERVE has no page.
    pub huge_pages: Option<HugePages>,
}

impl Memfd {
    /// What these arguments ask for.
    ///
    /// # Errors
    ///
    /// Linux's, for flags and a name that cannot be.
    pub fn new(name: &[u8], flags: u32) -> Result<Self, Error> {
        let has = |flag: u32| flags & flag != 0;
        let known = if has(MFD_HUGETLB) { KNOWN | HUGE_MASK } else { KNOWN };
        if flags & !known != 0 || has(MFD_EXEC) && has(MFD_NOEXEC_SEAL) || name.len() > MOST_NAME {
            return Err(Error::BadFlags);
        }
        let huge_pages = match (has(MFD_HUGETLB), flags >> HUGE_SHIFT) {
            (false, _) => None,
            (true, 0 | 21) => Some(HugePages::Mib2),
            (true, 30) => Some(HugePages::Gib1),
            (true, _) => return Err(Error::RefusedByFile(Errno::ENODEV)),
        };
        let (seals, mode) = if has(MFD_NOEXEC_SEAL) {
            (Seals::EXEC, 0o666)
        } else if has(MFD_ALLOW_SEALING) {
            (Seals::empty(), 0o777)
        } else {
            (Seals::SEAL, 0o777)
        };
        Ok(Self { seals, mode, closes_on_exec: has(MFD_CLOEXEC), huge_pages })
    }
}
