//! The address of a new mapping, chosen exactly as Linux does.

use crate::calls::map_request::{MapFlags, MapRequest};
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_file::{NewFolioOrders, OpenFile, Opening};
use quire_vma::{HugePages, Rights, Vma};

/// The end of user space unless a program requests more by a hint above it (five-level tables): 47 bits.
const DEFAULT_WINDOW: u64 = (1 << 47) - PAGE_SIZE;
/// `MAP_32BIT` puts a mapping here.
const BELOW_2G: VirtRange = VirtRange::new(VirtAddr(0x4000_0000), VirtAddr(0x8000_0000));

/// The folios for which Linux aligns a mapping of shared memory: of `opened`, or what the call makes.
pub(crate) fn shmem_alignment<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    opened: Option<&Opening<Vma>>,
) -> Option<Order> {
    if let Some(opened) = opened {
        // SAFETY: an opening of a file of this machine, which the caller holds.
        let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opened)) }.file();
        return NewFolioOrders::of(file).alignment();
    }
    let makes_it = match &request.file {
        None => request.huge_pages.is_none() && request.flags.contains(MapFlags::SHARED),
        Some(_) => request.is_shared_zeros(),
    };
    makes_it.then(|| writer.spaces.page_cache().files().shmem_huge().alignment(None)).flatten()
}

/// The address for a mapping of `len` bytes as requested by `request`, aligned for folios of shared memory of
/// order `shmem`.
pub(crate) fn place<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    (hint, len): (VirtAddr, u64),
    shmem: Option<Order>,
) -> Result<VirtAddr, Error> {
    let user_end = P::Paging::USER_END.0;
    if len > user_end {
        return Err(Error::OutOfRange);
    }
    let addr = if let Some((size, page_offset)) = request.huge_pages {
        place_huge_pages(writer, request, hint, len, size, page_offset)?
    } else if request.flags.is_fixed() {
        hint
    } else if let Some(order) = shmem {
        place_shmem(writer, request, (hint, len), order)?
    } else {
        place_huge(writer, request, hint, len).map_or_else(|| place_free(writer, request, hint, len), Ok)?
    };
    if addr.0 > user_end - len {
        return Err(Error::OutOfRange);
    }
    if !addr.is_page_aligned() {
        return Err(Error::Unaligned);
    }
    if addr < writer.core.layout.fixed_min && !writer.rights.contains(Rights::MAP_LOW) {
        return Err(Error::NotPermitted);
    }
    Ok(addr)
}

/// A place aligned for huge pages, where the mapping could use them: private anonymous memory of whole
/// huge pages without a hint, and files whose file system asks for it. `None` if there is none.
fn place_huge<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    hint: VirtAddr,
    len: u64,
) -> Option<VirtAddr> {
    let huge = Order::PMD.bytes();
    let file_offset = match (request.huge_aligned_file(), &request.file) {
        (Some(file), _) => file.page_offset.wrapping_mul(PAGE_SIZE),
        (None, None)
            if !request.flags.contains(MapFlags::SHARED) && hint.0 == 0 && len.is_multiple_of(huge) =>
        {
            0
        }
        _ => return None,
    };
    // The part of the file that huge pages could hold. Offsets are signed in Linux, and those of devices
    // may wrap: the order of the two ends is that of the signed numbers, and their distance that of the
    // unsigned ones.
    let end = file_offset.wrapping_add(len).cast_signed();
    let first_huge = (file_offset.wrapping_add(huge - 1) & !(huge - 1)).cast_signed();
    if end <= first_huge || (end.wrapping_sub(first_huge) as u64) < huge {
        return None;
    }
    let padded = len.checked_add(huge)?;
    file_offset.checked_add(padded)?;
    let found = place_free(writer, request, hint, padded).ok()?;
    if found == hint {
        return Some(found);
    }
    let shift = file_offset.wrapping_sub(found.0) & (huge - 1);
    // Searched from the top, so the highest of the two places that fit is taken.
    let shift = if shift == 0 && writer.core.layout.top_down { huge } else { shift };
    Some(VirtAddr(found.0 + shift))
}

/// A place for shared memory that may come in folios of `order`: aligned for them, unless the hint is free,
/// or the mapping has no such folio.
fn place_shmem<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    (hint, len): (VirtAddr, u64),
    order: Order,
) -> Result<VirtAddr, Error> {
    let (size, user_end) = (order.bytes(), P::Paging::USER_END.0);
    let found = place_free(writer, request, hint, len)?;
    // Also of a file of zeros, of which the memory made has no such part.
    let page_offset = request.file.as_ref().map_or(0, |file| file.page_offset);
    let offset = page_offset.wrapping_mul(PAGE_SIZE) & (size - 1);
    let has_none = len < size || offset != 0 && offset.saturating_add(len) < 2 * size;
    if found == hint || has_none || found.0 & (size - 1) == offset {
        return Ok(found);
    }
    let Some(padded) = len.checked_add(size - PAGE_SIZE).filter(|padded| *padded <= user_end) else {
        return Ok(found);
    };
    let Ok(room) = place_free(writer, request, hint, padded) else { return Ok(found) };
    let aligned = room.0 + (offset.wrapping_sub(room.0) & (size - 1));
    Ok(if aligned > user_end - len { found } else { VirtAddr(aligned) })
}

/// A place for huge pages: aligned for them, at an offset of their file too.
fn place_huge_pages<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    hint: VirtAddr,
    len: u64,
    size: HugePages,
    page_offset: u64,
) -> Result<VirtAddr, Error> {
    if request.flags.is_fixed() {
        return if hint.is_aligned(size.bytes()) { Ok(hint) } else { Err(Error::Unaligned) };
    }
    // A hint that wraps is none.
    let hint = VirtAddr(size.align_up(hint.0));
    if let Some(found) = place_free(writer, request, hint, len).ok().filter(|found| *found == hint) {
        return Ok(found);
    }
    let mask = size.bytes() - PAGE_SIZE;
    let padded = len.checked_add(mask).ok_or(Error::NoRoom)?;
    let found = place_free(writer, request, VirtAddr(0), padded)?;
    let offset = page_offset.wrapping_mul(PAGE_SIZE);
    Ok(if writer.core.layout.top_down && !request.flags.contains(MapFlags::BELOW_2G) {
        let highest = found.0 + mask;
        VirtAddr(highest - (highest.wrapping_sub(offset) & mask))
    } else {
        VirtAddr(found.0 + (offset.wrapping_sub(found.0) & mask))
    })
}

/// A free place: the hint's if it is free, else the highest (or lowest) one.
fn place_free<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    hint: VirtAddr,
    len: u64,
) -> Result<VirtAddr, Error> {
    let layout = &writer.core.layout;
    let user_end = P::Paging::USER_END.0;
    if len > user_end {
        return Err(Error::OutOfRange);
    }
    let below_2g = request.flags.contains(MapFlags::BELOW_2G);
    if layout.top_down && !below_2g {
        if hint.0 != 0 && hint_is_valid(hint.0, len, user_end) && is_free(writer, hint, len) {
            return Ok(hint);
        }
        let mut window = layout.top_down_window();
        if hint.0 > DEFAULT_WINDOW {
            let end = window.end().0.saturating_add(user_end.saturating_sub(DEFAULT_WINDOW));
            window = VirtRange::new(window.start(), VirtAddr(end));
        }
        if let Some(found) = search_down(writer, len, window) {
            return Ok(found);
        }
    }
    let window = if below_2g {
        BELOW_2G
    } else {
        let end = if hint.0 > DEFAULT_WINDOW { user_end } else { user_end.min(DEFAULT_WINDOW) };
        VirtRange::new(layout.mmap_legacy_base, VirtAddr(end))
    };
    if hint.0 != 0 && hint.0 <= window.end().0.saturating_sub(len) && is_free(writer, hint, len) {
        return Ok(hint);
    }
    let window = VirtRange::new(window.start().max(layout.mmap_min), window.end());
    search_up(writer, len, window).ok_or(Error::NoRoom)
}

/// Whether nothing lies in the `len` bytes from `addr`, the guard gap of a stack above them included.
fn is_free<P: Platform>(writer: &MmapWriter<'_, P>, addr: VirtAddr, len: u64) -> bool {
    writer.first_ending_after(addr).is_none_or(|next| addr.0 + len <= next.snapshot().start_with_guard().0)
}

fn search_down<P: Platform>(writer: &MmapWriter<'_, P>, len: u64, mut window: VirtRange) -> Option<VirtAddr> {
    loop {
        let gap = writer.highest_gap(len, window)?;
        match writer.first_ending_after(gap.end()).map(Vma::snapshot) {
            // The mapping above is a stack that wants a gap below it.
            Some(next) if next.flags.is_stack() && next.start_with_guard() < gap.end() => {
                window = VirtRange::new(window.start(), next.start_with_guard());
            }
            _ => return Some(VirtAddr(gap.end().0 - len)),
        }
    }
}

fn search_up<P: Platform>(writer: &MmapWriter<'_, P>, len: u64, mut window: VirtRange) -> Option<VirtAddr> {
    loop {
        let gap = writer.lowest_gap(len, window)?;
        match writer.first_ending_after(gap.start()).map(Vma::snapshot) {
            Some(next) if next.flags.is_stack() && next.start_with_guard().0 < gap.start().0 + len => {
                window = VirtRange::new(next.range.end(), window.end());
            }
            _ => return Some(gap.start()),
        }
    }
}

/// Whether a hint lies in user space and not across the border of the default window.
fn hint_is_valid(hint: u64, len: u64, user_end: u64) -> bool {
    user_end - len >= hint && (hint > DEFAULT_WINDOW) == (hint + len > DEFAULT_WINDOW)
}
