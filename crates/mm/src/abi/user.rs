//! The calling program's memory, where a call writes a result.

use crate::space::{Error, FaultError, Space};
use quire_arch::{Access, PAGE_SHIFT, PAGE_SIZE, PagingFormat, Platform, VirtAddr};

/// Copies results to the program.
pub trait UserMemory {
    /// Copies `bytes` to `addr` as a write of the program: pages are faulted in, and what precedes a page
    /// that may not be written is written.
    ///
    /// # Errors
    ///
    /// Why a page may not be written, or could not be faulted in.
    fn write(&self, addr: VirtAddr, bytes: &[u8]) -> Result<(), FaultError>;
}

/// Faults pages in as a copy would, and leaves their contents alone.
#[derive(Debug)]
pub struct FaultIn<'s, 'm, P: Platform>(pub &'s Space<'m, P>);

impl<P: Platform> UserMemory for FaultIn<'_, '_, P> {
    fn write(&self, addr: VirtAddr, bytes: &[u8]) -> Result<(), FaultError> {
        let Some(last) = (bytes.len() as u64).checked_sub(1) else { return Ok(()) };
        let end = addr.0.checked_add(last).ok_or(FaultError::NotMapped)?;
        for page in addr.0 >> PAGE_SHIFT..=end >> PAGE_SHIFT {
            self.0.fault(VirtAddr(page << PAGE_SHIFT), Access::Write)?;
        }
        Ok(())
    }
}

/// Pages that are checked before their bytes are copied.
const CHUNK: u64 = 4096;
/// Bytes that are copied at a time.
const PIECE: u64 = 64;

/// `mincore` with the vector at `vector`.
pub(super) fn mincore<P: Platform>(
    space: &Space<'_, P>,
    user: &impl UserMemory,
    addr: VirtAddr,
    len: u64,
    vector: VirtAddr,
) -> Result<u64, Error> {
    let user_end = P::Paging::USER_END.0;
    let fits = |start: u64, len: u64| start.checked_add(len).is_some_and(|end| end <= user_end);
    if !addr.is_page_aligned() {
        return Err(Error::Unaligned);
    }
    if !fits(addr.0, len) {
        return Err(Error::OutOfRange);
    }
    let pages = len.div_ceil(PAGE_SIZE);
    if !fits(vector.0, pages) {
        return Err(Error::BadAddress);
    }
    let mut done = 0;
    while done < pages {
        let mut resident = [0_u8; (CHUNK / 8) as usize];
        let mut looked = 0;
        let at = VirtAddr(addr.0 + (done << PAGE_SHIFT));
        space.mappings().mincore_of(at, (pages - done).min(CHUNK), |is| {
            resident[looked / 8] |= u8::from(is) << (looked % 8);
            looked += 1;
        })?;
        copy(user, VirtAddr(vector.0 + done), &resident, looked)?;
        done += looked as u64;
    }
    Ok(0)
}

/// Copies the first `count` bits, a byte for each.
fn copy(user: &impl UserMemory, to: VirtAddr, bits: &[u8], count: usize) -> Result<(), Error> {
    for from in (0..count).step_by(PIECE as usize) {
        let mut bytes = [0_u8; PIECE as usize];
        let piece = &mut bytes[..(count - from).min(PIECE as usize)];
        for (byte, place) in piece.iter_mut().zip(from..) {
            *byte = bits[place / 8] >> (place % 8) & 1;
        }
        user.write(VirtAddr(to.0 + from as u64), piece).map_err(|error| match error {
            FaultError::OutOfMemory(cause) => Error::NoFrames(cause),
            _ => Error::BadAddress,
        })?;
    }
    Ok(())
}
