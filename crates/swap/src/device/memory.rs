//! Frames for devices, and access to their contents.

use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, Frames, Kind};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Bytes of a page.
pub(super) const PAGE: usize = PAGE_SIZE as usize;
/// Words of a page.
pub(super) const WORDS: usize = PAGE / size_of::<u64>();

/// One frame for data that reclaim writes. Reclaim frees more than it takes, so it may go below the
/// watermark. It does not drain: it runs because memory is short.
pub(super) const fn frame_for_contents(site: FailSite) -> AllocRequest {
    AllocRequest::new(Order::ZERO, site).kind(Kind::Swap).below_min().without_drain()
}

/// A block of `bytes` for the device itself, of zeros.
pub(super) fn own_block<P: Platform>(
    frames: &Frames<P>,
    pin: &Pin<'_, P>,
    bytes: u64,
    site: FailSite,
) -> Result<(Pfn, Order), AllocError> {
    let order = Order::for_bytes(bytes).ok_or(AllocError::OutOfMemory)?;
    Ok((frames.allocate(pin, AllocRequest::new(order, site).kind(Kind::Swap).zeroed())?, order))
}

/// Gives back a block that the device allocated.
pub(super) fn give_back<P: Platform>(frames: &Frames<P>, pin: &Pin<'_, P>, pfn: Pfn, order: Order) {
    let freed = frames.free(pin, pfn, order);
    debug_assert!(freed.is_ok(), "a device's own frame can be freed: {freed:?}");
}

/// The first byte of a frame.
#[inline]
pub(super) fn bytes_of<P: Platform>(frames: &Frames<P>, pfn: Pfn) -> NonNull<u8> {
    frames.platform().direct_map(pfn)
}

/// The words of a frame that others may be writing.
///
/// # Safety
///
/// `pfn` is a frame of RAM that stays what it is for as long as the result is used, and that others access by
/// atomics only, or as programs do.
#[inline]
pub(super) unsafe fn words_of<P: Platform>(frames: &Frames<P>, pfn: Pfn) -> &[AtomicU64; WORDS] {
    // SAFETY: the direct map of a frame in RAM is one valid, aligned page (contract of `Platform`); the
    // caller keeps it.
    unsafe { bytes_of(frames, pfn).cast().as_ref() }
}

/// The word that all words of the page equal, if there is one.
///
/// Few pages have equal first, middle and last words by chance, so that most others cost three loads.
#[inline]
pub(super) fn word_of_same(words: &[AtomicU64; WORDS]) -> Option<u64> {
    let at = |index: usize| words[index].load(Ordering::Relaxed);
    let word = at(0);
    if at(WORDS - 1) != word || at(WORDS / 2) != word {
        return None;
    }
    // Words are gathered over four cache lines: a branch for each would cost more than the loads. They are
    // equal if the bits that all have are those that any has.
    let differs = |part: &[AtomicU64]| {
        let (mut all, mut any) = (word, word);
        for at in part {
            let word = at.load(Ordering::Relaxed);
            all &= word;
            any |= word;
        }
        all != any
    };
    if words.chunks_exact(32).any(differs) { None } else { Some(word) }
}

/// Fills the frame with `word`.
///
/// # Safety
///
/// `pfn` is a frame of RAM that the caller owns.
pub(super) unsafe fn fill<P: Platform>(frames: &Frames<P>, pfn: Pfn, word: u64) {
    if word == 0 {
        // SAFETY: the caller owns the frame.
        unsafe { frames.platform().zero(pfn, Order::ZERO) };
        return;
    }
    // SAFETY: an aligned page of the caller's (contract of `Platform`), where any bytes are words. Not
    // written as one array, which would first be built on the stack.
    unsafe { bytes_of(frames, pfn).cast::<[u64; WORDS]>().as_mut() }.fill(word);
}
